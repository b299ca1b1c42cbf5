//! The pages of an answer.

use super::record::TextRecord;
use super::record::{END, RecordWriter};
use crate::client_info::ClientInfo;

/// The length of a page, in bytes, at which the next one begins.
pub const PAGE: usize = 64 * 1024;

/// The longest first record of a page, in bytes: the texts about a client, in which each byte may be encoded.
const LONGEST_HEAD: usize = 6 * 1024;

/// The most pages of an answer.
const MOST_PAGES: usize = 16;

/// The pages of an answer, in their order. Each is the text of one message.
pub type AnswerPages = Vec<String>;

/// The client that answers, and the question.
#[derive(Debug)]
pub struct AnswerHead<'a> {
    /// The number of the question.
    pub number: u64,
    /// Distinguishes the client from others.
    pub from: &'a str,
    pub client: &'a ClientInfo,
    pub is_revocable: bool,
    /// Whether the client knows the question.
    pub is_known: bool,
}

impl AnswerHead<'_> {
    /// The answer that consists of these records. If they do not fit, the answer has the first ones.
    pub fn pages(&self, records: impl IntoIterator<Item = RecordWriter>) -> AnswerPages {
        let (mut bodies, mut is_complete) = (vec![String::new()], true);
        for record in records {
            let record = record.into_text();
            let is_full = bodies.last().is_some_and(|page| page.len() + record.len() > PAGE);
            if is_full && bodies.len() == MOST_PAGES {
                is_complete = false;
                break;
            }
            if is_full {
                bodies.push(String::new());
            }
            if let Some(page) = bodies.last_mut() {
                page.push(END);
                page.push_str(&record);
            }
        }
        let count = bodies.len();
        let pages = bodies.into_iter().enumerate();
        pages.map(|(page, body)| self.head((page, count), is_complete) + &body).collect()
    }

    fn head(&self, (page, pages): (usize, usize), is_complete: bool) -> String {
        let Self { number, from, client, is_revocable, is_known } = *self;
        let head = RecordWriter::default()
            .field("v", 1)
            .field("number", number)
            .field("from", from)
            .field("page", page)
            .field("pages", pages)
            .field("complete", u8::from(is_complete))
            .field("known", u8::from(is_known))
            .field("revocable", u8::from(is_revocable))
            .optional("id", client.id.as_ref());
        let fields = client.fields();
        let with_field = |head: RecordWriter, (name, value)| head.optional(name, value);
        fields.into_iter().fold(head, with_field).into_text()
    }
}

/// A page that was read.
#[derive(Debug, Clone)]
pub struct AnswerPage {
    /// The number of the question.
    pub number: u64,
    pub from: String,
    /// The position of the page, and the number of pages.
    pub page: usize,
    pub pages: usize,
    /// Whether all records have fitted into the answer.
    pub is_complete: bool,
    pub is_known: bool,
    pub is_revocable: bool,
    pub client: ClientInfo,
    /// The records, one in each line.
    records: String,
}

impl AnswerPage {
    /// Reads a page. `None` if the text is something else.
    pub fn of_text(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let (head, records) = text.split_once(END).unwrap_or((text, ""));
        if head.len() > LONGEST_HEAD {
            return None;
        }
        let head = TextRecord::new(head);
        let flag = |name| head.number(name) == Some(1);
        let position = |name| usize::try_from(head.number(name)?).ok();
        let (page, pages) = (position("page")?, position("pages")?);
        let is_page = page < pages && pages <= MOST_PAGES;
        is_page.then_some(())?;
        Some(Self {
            number: head.number("number")?,
            from: head.get("from")?,
            page,
            pages,
            is_complete: flag("complete"),
            is_known: flag("known"),
            is_revocable: flag("revocable"),
            client: ClientInfo::of_fields(|name| head.get(name)),
            records: records.to_owned(),
        })
    }

    pub fn records(&self) -> impl Iterator<Item = TextRecord<'_>> {
        self.records.split(END).filter(|line| !line.is_empty()).map(TextRecord::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(client: &ClientInfo) -> AnswerHead<'_> {
        AnswerHead { number: 3, from: "a", client, is_revocable: true, is_known: true }
    }

    fn read(pages: &AnswerPages) -> Vec<AnswerPage> {
        let read = |page: &String| AnswerPage::of_text(page.as_bytes()).expect("a page");
        pages.iter().map(read).collect()
    }

    #[test]
    fn an_answer_without_records_has_one_page() {
        let client =
            ClientInfo { id: Some("x".to_owned()), process: Some(7), ..Default::default() };
        let pages = read(&head(&client).pages([]));
        let [page] = &pages[..] else { panic!("{pages:?}") };
        assert_eq!((page.number, &*page.from, page.page, page.pages), (3, "a", 0, 1));
        assert!(page.is_complete && page.is_known && page.is_revocable);
        assert_eq!((&page.client, page.records().count()), (&client, 0));
    }

    #[test]
    fn a_long_answer_has_several_pages() {
        let client = ClientInfo::default();
        let record = |n| RecordWriter::default().field("n", n).field("text", "x".repeat(1000));
        let pages = head(&client).pages((0..200).map(record));
        assert!(pages.iter().all(|page| page.len() < PAGE + 1024));
        let pages = read(&pages);
        assert_eq!(pages.len(), 4);
        assert!(pages.iter().all(|page| page.is_complete && page.pages == 4));
        let numbers = pages.iter().flat_map(AnswerPage::records).filter_map(|it| it.number("n"));
        assert!(numbers.eq(0..200));
    }

    #[test]
    fn an_answer_that_is_too_long_has_the_first_records() {
        let client = ClientInfo::default();
        let record = |n| RecordWriter::default().field("n", n).field("text", "x".repeat(1000));
        let pages = read(&head(&client).pages((0..2000).map(record)));
        assert_eq!(pages.len(), MOST_PAGES);
        assert!(pages.iter().all(|page| !page.is_complete));
        let last = pages.last().expect("a page").records().last().expect("a record").number("n");
        assert!((900..1100).contains(&last.expect("a number")), "{last:?}");
    }

    #[test]
    fn other_texts_are_no_pages() {
        let client = ClientInfo::default();
        let page = head(&client).pages([]).remove(0);
        for other in ["", "garbage", "\n\n", &page.replace("page=0", "page=1")] {
            assert!(AnswerPage::of_text(other.as_bytes()).is_none(), "{other:?}");
        }
        let endless = page.replace("pages=1", "pages=999999999");
        assert!(AnswerPage::of_text(endless.as_bytes()).is_none());
        assert!(AnswerPage::of_text(&[200; 10]).is_none());
    }
}
