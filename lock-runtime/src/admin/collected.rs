//! The pages of the answers to one question, until all have arrived.

use std::collections::{BTreeMap, HashMap};

use super::answers::{ClientAnswer, ClientAnswers};
use crate::questions::answer::AnswerPage;

/// The most bytes that are collected. Anybody may send pages.
const ROOM: usize = 256 * 1024 * 1024;

/// What a page takes beside its text, in bytes.
const PAGE_SIZE: usize = 2 * size_of::<AnswerPage>();

/// The most clients that are known to have answered only in part.
const MOST_PARTS: usize = 10_000;

/// The pages of all answers so far.
pub(super) struct CollectedPages {
    /// The number of the question.
    number: u64,
    /// The pages of the clients of which some may be missing, by their positions.
    parts: HashMap<String, BTreeMap<usize, AnswerPage>>,
    /// The pages of the clients whose answers are complete.
    complete: HashMap<String, Vec<AnswerPage>>,
    /// The bytes of all pages.
    length: usize,
}

impl CollectedPages {
    pub(super) fn of(number: u64) -> Self {
        Self { number, parts: HashMap::new(), complete: HashMap::new(), length: 0 }
    }

    /// The number of clients of which all pages have arrived.
    pub(super) fn answers(&self) -> usize {
        self.complete.len()
    }

    pub(super) fn has_room(&self) -> bool {
        self.length < ROOM && self.parts.len() < MOST_PARTS
    }

    /// Adds a page, if the text is a page of an answer to the question.
    pub(super) fn add(&mut self, text: &[u8]) {
        let page = AnswerPage::of_text(text).filter(|page| page.number == self.number);
        let Some(page) = page.filter(|page| !self.complete.contains_key(&page.from)) else {
            return;
        };
        let (from, count) = (page.from.clone(), page.pages);
        let pages = self.parts.entry(from.clone()).or_default();
        // The first page tells how many there are.
        if pages.values().next().is_some_and(|known| known.pages != count) {
            return;
        }
        self.length += text.len() + PAGE_SIZE;
        pages.entry(page.page).or_insert(page);
        if pages.len() == count
            && let Some(pages) = self.parts.remove(&from)
        {
            self.complete.insert(from, pages.into_values().collect());
        }
    }

    /// The answers that are complete. `received` is the number of clients that have received the question.
    pub(super) fn into_answers(self, received: Option<usize>) -> ClientAnswers<Vec<AnswerPage>> {
        let mut answers = Vec::with_capacity(self.complete.len());
        for pages in self.complete.into_values() {
            let Some(first) = pages.first().filter(|first| first.is_known) else { continue };
            let AnswerPage { is_complete, is_revocable, .. } = *first;
            let client = first.client.clone();
            answers.push(ClientAnswer { client, is_revocable, is_complete, found: pages });
        }
        let order = |answer: &ClientAnswer<_>| {
            let client = &answer.client;
            (client.name.clone(), client.process, client.id.clone())
        };
        answers.sort_by_cached_key(order);
        let missing = received.map(|received| received.saturating_sub(answers.len()));
        let unanswered = missing.map(|missing| u64::try_from(missing).unwrap_or(u64::MAX));
        ClientAnswers { answers, unanswered }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_info::ClientInfo;
    use crate::questions::answer::AnswerHead;
    use crate::questions::record::RecordWriter;

    fn pages(from: &str, number: u64, records: usize) -> Vec<String> {
        let mut client = ClientInfo::default();
        client.name = Some(from.to_owned());
        let head = AnswerHead {
            number,
            from,
            client: &client,
            is_revocable: false,
            is_known: from != "old",
        };
        let record = |_| RecordWriter::default().field("text", "x".repeat(60 * 1024));
        head.pages((0..records).map(record))
    }

    fn collected(pages: impl IntoIterator<Item = String>) -> CollectedPages {
        let mut collected = CollectedPages::of(3);
        pages.into_iter().for_each(|page| collected.add(page.as_bytes()));
        collected
    }

    #[test]
    fn answers_are_complete_when_all_their_pages_have_arrived_in_any_order() {
        let (mut one, mut two) = (pages("b", 3, 2), pages("a", 3, 3));
        assert_eq!((one.len(), two.len()), (2, 3));
        two.reverse();
        let missing = one.pop();
        let some = collected(one.into_iter().chain(two.clone()).chain(two));
        assert_eq!(some.answers(), 1);
        let answers = some.into_answers(Some(2));
        let names: Vec<_> = answers.answers.iter().map(|it| it.client.to_string()).collect();
        assert_eq!((names, answers.unanswered), (vec!["a".to_owned()], Some(1)));
        let numbers: Vec<_> = answers.answers[0].found.iter().map(|page| page.page).collect();
        assert_eq!(numbers, [0, 1, 2]);
        drop(missing);
    }

    #[test]
    fn other_texts_are_ignored() {
        let garbage = ["", "garbage", "v=1\tnumber=3"].map(ToOwned::to_owned);
        let late = pages("late", 2, 0);
        let some = collected(garbage.into_iter().chain(late).chain(pages("a", 3, 0)));
        assert_eq!(some.answers(), 1);
        assert_eq!(some.into_answers(None).unanswered, None);
    }

    #[test]
    fn a_page_that_does_not_fit_the_others_is_ignored() {
        let mut some = collected(pages("a", 3, 1));
        for page in pages("a", 3, 5) {
            some.add(page.as_bytes());
        }
        assert_eq!(some.answers(), 1, "counted once");
        assert_eq!(some.into_answers(Some(1)).answers[0].found.len(), 1);
    }

    #[test]
    fn a_client_that_does_not_know_the_question_has_not_answered() {
        let some = collected(pages("old", 3, 0));
        assert_eq!(some.answers(), 1, "nothing more is to come");
        let answers = some.into_answers(Some(1));
        assert_eq!((answers.answers.len(), answers.unanswered), (0, Some(1)));
    }
}
