//! The last holders of each lock, as far as the dashboard has seen them.
//!
//! Neither the store nor the clients remember holds that have ended. A hold is known here if a round has found it, and it
//! counts as ended if the next answer of its client does not have it. A hold that fits between two rounds is therefore
//! missing, and so is everything that happened while nobody watched.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use lock_runtime::LockMode;
use serde::Serialize;

use crate::clients::{EndedHold, milliseconds};
use crate::locks::LockRow;

/// The most holds of a key that are remembered.
const MOST_OF_A_KEY: usize = 10;

/// The most keys that are remembered.
const MOST_KEYS: usize = 1000;

/// For how long a hold is remembered, in ms.
const REMEMBERED: u64 = 3_600_000;

/// The most by which two reports of one hold differ in when it began, in ms: a question takes some time.
const TOLERANCE: u64 = 3000;

/// A hold that has ended, as the page shows it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct PastHold {
    /// When its client has last reported it, as Unix time in ms.
    at: u64,
    /// How long it had lasted then, in ms.
    held: u64,
    client: Arc<str>,
    holder: Arc<str>,
    function: Option<String>,
    mode: Option<&'static str>,
    permits: Option<(u32, u32)>,
    fence: Option<u64>,
}

impl PastHold {
    fn began(&self) -> u64 {
        self.at.saturating_sub(self.held)
    }

    /// Whether a hold of its client that began at this Unix time in ms is this one. A client that did not receive a
    /// question may report it again later.
    fn is_hold_since(&self, began: u64) -> bool {
        began.abs_diff(self.began()) < TOLERANCE.min(self.held / 2 + 1)
    }

    /// Whether its client reports it in this row, as of this Unix time in ms.
    fn is_in(&self, row: &LockRow, as_of: u64) -> bool {
        let began = row.held.map(|held| as_of.saturating_sub(held));
        row.client.as_ref() == Some(&self.client)
            && began.is_some_and(|began| self.is_hold_since(began))
    }
}

/// The holds of each key that have ended, the last ones at the end.
#[derive(Debug, Default)]
pub(crate) struct LastHolders(HashMap<String, VecDeque<PastHold>>);

impl LastHolders {
    /// Adds what has ended before this Unix time in ms, and forgets what is old.
    pub(crate) fn add(&mut self, ended: Vec<EndedHold>, now: u64) {
        for EndedHold { client, holder, age, hold } in ended {
            let past = PastHold {
                at: now.saturating_sub(milliseconds(age)),
                held: milliseconds(hold.held_for),
                client,
                holder,
                function: hold.function,
                mode: hold.mode.map(LockMode::as_str),
                permits: hold.permits.map(|permits| (permits.count(), permits.limit())),
                fence: hold.fencing_token,
            };
            let known = self.0.entry(hold.key).or_default();
            known.retain(|earlier| {
                earlier.client != past.client || !earlier.is_hold_since(past.began())
            });
            known.push_back(past);
            if known.len() > MOST_OF_A_KEY {
                known.pop_front();
            }
        }
        self.0.retain(|_, known| last_of(known) + REMEMBERED > now);
        self.forget_keys();
    }

    /// Forgets the keys whose last holds have ended first, if there are too many.
    fn forget_keys(&mut self) {
        if self.0.len() <= MOST_KEYS {
            return;
        }
        let mut ends: Vec<u64> = self.0.values().map(last_of).collect();
        ends.sort_unstable();
        let first = ends[ends.len() - MOST_KEYS];
        self.0.retain(|_, known| last_of(known) >= first);
        // Those that have ended at the same time.
        let surplus = self.0.len().saturating_sub(MOST_KEYS);
        let at_first = self.0.iter().filter(|(_, known)| last_of(known) == first);
        let keys: Vec<_> = at_first.map(|(key, _)| key.clone()).take(surplus).collect();
        for key in keys {
            self.0.remove(&key);
        }
    }

    /// The last holds of a key, without those that its holders have reported again at this Unix time in ms; the latest
    /// first.
    pub(crate) fn of(&self, key: &str, holders: &[&LockRow], as_of: u64) -> Vec<PastHold> {
        let known = self.0.get(key).into_iter().flatten().rev();
        let has_ended = |past: &&PastHold| {
            past.at + REMEMBERED > as_of && !holders.iter().any(|row| past.is_in(row, as_of))
        };
        known.filter(has_ended).cloned().collect()
    }
}

/// When the last of these holds was last reported.
fn last_of(known: &VecDeque<PastHold>) -> u64 {
    known.back().map_or(0, |past| past.at)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lock_runtime::LockClient;
    use lock_runtime::admin::LockAdmin;

    use super::*;
    use crate::asked::AskedRound;
    use crate::clients::ClientBook;

    const HOUR: Duration = Duration::from_secs(3600);

    /// What a client reports in two rounds, with something between them.
    async fn seen(client: &LockClient, between: impl AsyncFnOnce()) -> Vec<EndedHold> {
        let (admin, mut book) = (LockAdmin::new(client), ClientBook::default());
        let mut ended = Vec::new();
        let mut round = async || {
            let mut asked = AskedRound::ask(&admin, true, |_| false).await.expect("up");
            ended = book.add(&mut asked).ended;
        };
        round().await;
        between().await;
        round().await;
        ended
    }

    fn keys(ended: &[EndedHold]) -> Vec<&str> {
        ended.iter().map(|ended| &*ended.hold.key).collect()
    }

    #[tokio::test]
    async fn a_hold_has_ended_if_the_next_round_does_not_have_it() {
        let client = LockClient::memory();
        let acquire = async |key: &str| client.lock(key).lease(HOUR).acquire().await.expect("free");
        let (_kept, ends) = (acquire("kept").await, acquire("ends").await);
        let mut next = None;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let ended = seen(&client, async || {
            ends.release().await.expect("held");
            next = Some(acquire("new").await);
        });
        assert_eq!(keys(&ended.await), ["ends"]);
        // The next hold of a key is another one, although its client is the same.
        let again = seen(&client, async || {
            next.take().expect("held").release().await.expect("held");
            next = Some(acquire("new").await);
        });
        assert_eq!(keys(&again.await), ["new"]);
    }

    #[tokio::test]
    async fn each_permit_is_a_hold_of_its_own() {
        let client = LockClient::memory();
        let pool = client.semaphore("pool", 3);
        let acquire = async || {
            let permit = pool.acquire().await.expect("free");
            tokio::time::sleep(Duration::from_millis(300)).await;
            permit
        };
        let (_first, second, third) = (acquire().await, acquire().await, acquire().await);
        let (least, mut most) = (third.held_for(), Duration::ZERO);
        let ended = seen(&client, async || {
            most = second.held_for();
            second.release().await.expect("held");
        });
        let ended = ended.await;
        let [ended] = &ended[..] else { panic!("{ended:?}") };
        let held = ended.hold.held_for + Duration::from_millis(1);
        assert!(held > least && held < most + Duration::from_millis(2), "{ended:?}");
    }

    async fn ended(count: usize, key: impl Fn(usize) -> String) -> Vec<EndedHold> {
        let client = LockClient::memory();
        let mut guards = Vec::new();
        let name = |n| format!("{n}");
        for n in 0..count {
            let lock = client.lock(name(n)).lease(HOUR);
            guards.push(lock.acquire().await.expect("free"));
        }
        let ended = seen(&client, async || {
            for guard in guards {
                guard.release().await.expect("held");
            }
        });
        let mut ended = ended.await;
        for (n, ended) in ended.iter_mut().enumerate() {
            ended.hold.key = key(n);
        }
        ended
    }

    #[tokio::test]
    async fn few_holds_and_few_keys_are_remembered_for_an_hour() {
        let mut last = LastHolders::default();
        let many = ended(MOST_OF_A_KEY * 3, |_| "k".to_owned()).await;
        for (n, ended) in many.into_iter().enumerate() {
            last.add(vec![ended], (n as u64) * 10_000);
        }
        let now = 10_000 * 29;
        let of = |last: &LastHolders, now| last.of("k", &[], now).len();
        assert_eq!(of(&last, now), MOST_OF_A_KEY);
        let first = last.of("k", &[], now)[0].at;
        assert!(first.abs_diff(now) < 10_000, "the latest comes first: {first}");
        assert_eq!(of(&last, now + REMEMBERED), 0);
        last.add(ended(MOST_KEYS + 5, |n| format!("other:{n}")).await, now + 20_000);
        assert_eq!((last.0.len(), of(&last, now)), (MOST_KEYS, 0));
        last.add(Vec::new(), now + 30_000 + REMEMBERED);
        assert!(last.0.is_empty());
    }

    #[tokio::test]
    async fn a_hold_that_is_reported_again_has_not_ended() {
        let mut last = LastHolders::default();
        let one = ended(1, |_| "k".to_owned()).await.remove(0);
        let row = LockRow::of_client(&one.client, 20_000);
        last.add(vec![one.clone()], 1_000_000);
        assert_eq!(last.of("k", &[], 1_000_000).len(), 1);
        // 15 seconds later, a hold of 20 seconds began before.
        assert_eq!(last.of("k", &[&row], 1_015_000).len(), 1);
        let began = 1_000_000 - milliseconds(one.age) - milliseconds(one.hold.held_for);
        assert_eq!(last.of("k", &[&row], began + 20_000).len(), 0);
        // It ends once.
        last.add(vec![one], 1_000_000);
        assert_eq!(last.of("k", &[], 1_000_000).len(), 1);
    }
}
