//! What clients answer.

use std::time::{Duration, SystemTime};

use crate::client_info::{ClientInfo, visible};
use crate::error::LostReason;
use crate::lock_mode::LockMode;
use crate::permits::Permits;
use crate::questions::record::TextRecord;
use crate::questions::{HOLD, LOSS, SITE, TOTALS, WAIT};
use crate::telemetry::{AcquisitionOutcome, HistogramSnapshot};

/// The answers of all clients to one question.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientAnswers<T> {
    /// One for each client, in the order of their names and process ids.
    pub answers: Vec<ClientAnswer<T>>,
    /// The number of clients that have received the question and have not answered in time: they are
    /// overloaded or suspended, were asked too often, may not publish, or do not know the question. The number
    /// includes other subscribers of the channel. `None` if the store does not count them, or the connection was lost
    /// while answers were awaited: some may be missing.
    ///
    /// A client whose connection for messages is lost at this moment has not received the question, and is not
    /// counted: `Some(0)` does not prove that nobody else holds a lock. [`inspect`](super::LockAdmin::inspect)
    /// reads that from the store.
    pub unanswered: Option<u64>,
}

impl<T> ClientAnswers<T> {
    pub(super) fn map<U>(self, read: impl Fn(T) -> U) -> ClientAnswers<U> {
        let answers = self.answers.into_iter().map(|answer| {
            let ClientAnswer { client, is_revocable, is_complete, found } = answer;
            ClientAnswer { client, is_revocable, is_complete, found: read(found) }
        });
        ClientAnswers { answers: answers.collect(), unanswered: self.unanswered }
    }
}

/// The answer of one client.
///
/// Answers are those of other clients, and are not authenticated: whoever may publish to the channels of answers can
/// invent some. Keys may contain any characters. The other texts have no control characters, but may contain markup.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientAnswer<T> {
    /// The client that has answered.
    pub client: ClientInfo,
    /// Whether its locks can be [revoked](super::LockAdmin::revoke).
    pub is_revocable: bool,
    /// Whether all of it has fitted into the answer. Otherwise, the oldest locks, or the first keys or
    /// templates, are there.
    pub is_complete: bool,
    /// What was asked for.
    pub found: T,
}

/// A lock that a client holds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HoldInfo {
    /// Its key, with the namespace.
    pub key: String,
    /// The template of its key; `(none)` without one.
    pub template: String,
    /// The path of the annotated function that has acquired it; `None` for other locks.
    pub function: Option<String>,
    /// How long the lock has been held.
    pub held_for: Duration,
    /// What is left until the deadline of the lock. A renewed lock is renewed long before.
    pub lease_left: Duration,
    /// The length of the lease, as it was last granted or renewed; `None` for clients of versions that do not send it.
    pub lease: Option<Duration>,
    /// Whether it is renewed. Otherwise, its lease is fixed.
    pub is_renewed: bool,
    /// The number of calls of the same client that wait for it.
    pub waiting: u64,
    /// The mode of a read-write lock; `None` for other locks. The readers of a client share one lock.
    pub mode: Option<LockMode>,
    /// The permits of a semaphore that the holder has; `None` for other locks.
    pub permits: Option<Permits>,
    /// The fencing token, if the holder has asked for it.
    pub fencing_token: Option<u64>,
}

impl HoldInfo {
    pub(super) fn read(record: &TextRecord<'_>) -> Option<Self> {
        record.is_about(HOLD).then_some(())?;
        let mode = record.get("mode").and_then(|named| {
            [LockMode::Read, LockMode::Write].into_iter().find(|mode| mode.as_str() == named)
        });
        Some(Self {
            key: record.get("key")?,
            template: text(record, "template")?,
            function: text(record, "function"),
            held_for: milliseconds(record, "held")?,
            lease_left: milliseconds(record, "left")?,
            lease: milliseconds(record, "lease"),
            is_renewed: record.number("renewed") == Some(1),
            waiting: record.number("waiting").unwrap_or_default(),
            mode,
            permits: permits(record),
            fencing_token: record.number("fence"),
        })
    }
}

fn permits(record: &TextRecord<'_>) -> Option<Permits> {
    let number = |name| record.number(name)?.try_into().ok();
    Some(Permits::new(number("permits")?, number("limit")?))
}

/// A lock that a client has lost while it was held.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LossInfo {
    /// Its key, with the namespace.
    pub key: String,
    /// When it was lost, by the clock of the client.
    pub at: SystemTime,
    /// Why it was lost.
    pub reason: LostReason,
    /// The template of its key; `None` if it is not known.
    pub template: Option<String>,
    /// The path of the annotated function that had acquired it; `None` for other locks.
    pub function: Option<String>,
    /// How long it had been held; `None` if only a background release has noticed the loss.
    pub held_for: Option<Duration>,
}

impl LossInfo {
    pub(super) fn read(record: &TextRecord<'_>) -> Option<Self> {
        record.is_about(LOSS).then_some(())?;
        let reason = record.get("reason")?;
        Some(Self {
            key: record.get("key")?,
            at: SystemTime::UNIX_EPOCH.checked_add(milliseconds(record, "at")?)?,
            reason: LostReason::ALL.into_iter().find(|known| known.as_str() == reason)?,
            template: text(record, "template"),
            function: text(record, "function"),
            held_for: milliseconds(record, "held"),
        })
    }
}

/// A key for which calls of a client wait.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitInfo {
    /// The key, with the namespace.
    pub key: String,
    /// The number of calls that wait, for another holder or for an answer of the store.
    pub calls: u64,
}

impl WaitInfo {
    pub(super) fn read(record: &TextRecord<'_>) -> Option<Self> {
        record.is_about(WAIT).then_some(())?;
        Some(Self { key: record.get("key")?, calls: record.number("waiting")? })
    }
}

/// What a client has measured since it was created.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ClientSnapshot {
    /// The number of locks that are held now.
    pub held: u64,
    /// The number of calls that wait behind other calls of the client.
    pub queued: u64,
    /// The number of background releases in progress.
    pub releasing: u64,
    /// The number of locks that were lost while they were held.
    pub lost: u64,
    /// Whether the last request to the store was answered.
    pub store_up: bool,
    /// The templates of keys that were used, in their order.
    pub sites: Vec<SiteInfo>,
}

impl ClientSnapshot {
    /// The first function with this template, or the locks without a function; `None` if it was not used.
    #[must_use]
    pub fn site(&self, template: &str) -> Option<&SiteInfo> {
        self.sites.iter().find(|site| site.template == template)
    }

    pub(super) fn read<'a>(records: impl IntoIterator<Item = TextRecord<'a>>) -> Self {
        let mut snapshot = Self::default();
        for record in records {
            snapshot.sites.extend(SiteInfo::read(&record));
            if record.is_about(TOTALS) {
                let number = |name| record.number(name).unwrap_or_default();
                snapshot.held = number("held");
                snapshot.queued = number("queued");
                snapshot.releasing = number("releasing");
                snapshot.lost = number("lost");
                snapshot.store_up = number("up") == 1;
            }
        }
        snapshot
    }
}

/// What a client has measured about one annotated function, or about the locks with one
/// [template](crate::Lock::template).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SiteInfo {
    /// The template of the keys; `(none)` for locks without one.
    pub template: String,
    /// The path of the annotated function; `None` for other locks.
    pub function: Option<String>,
    /// The number of locks that are held now.
    pub held: u64,
    /// The number of calls that wait now.
    pub waiting: u64,
    /// The age of the oldest hold; `None` without one.
    pub oldest_hold: Option<Duration>,
    /// From each grant to the release or the loss.
    pub hold: HistogramSnapshot,
    /// From the beginning of the calls to their outcome, for the outcomes that take time.
    pub waits: Vec<(AcquisitionOutcome, HistogramSnapshot)>,
    /// The number of locks that were lost, by reason. Reasons without a loss are missing.
    pub losses: Vec<(LostReason, u64)>,
    /// The number of calls whose outcome takes no time.
    others: Vec<(AcquisitionOutcome, u64)>,
}

impl SiteInfo {
    /// The number of calls with this outcome.
    #[must_use]
    pub fn acquisitions(&self, outcome: AcquisitionOutcome) -> u64 {
        let waits = self.waits.iter().find(|(known, _)| *known == outcome);
        let other = self.others.iter().find(|(known, _)| *known == outcome);
        let count = waits.map(|(_, waits)| waits.count());
        count.or(other.map(|(_, count)| *count)).unwrap_or_default()
    }

    fn read(record: &TextRecord<'_>) -> Option<Self> {
        record.is_about(SITE).then_some(())?;
        let (template, hold) = (text(record, "template")?, record.get("hold")?);
        let (mut waits, mut others) = (Vec::new(), Vec::new());
        for outcome in AcquisitionOutcome::ALL {
            let is_timed = AcquisitionOutcome::TIMED.contains(&outcome);
            let Some(measured) = record.get(outcome.as_str()) else { continue };
            if is_timed {
                waits.push((outcome, HistogramSnapshot::of_text(&measured)?));
            } else {
                others.push((outcome, measured.parse().ok()?));
            }
        }
        let count = |reason: LostReason| record.number(&format!("lost.{}", reason.as_str()));
        let losses = LostReason::ALL.into_iter();
        Some(Self {
            template,
            function: text(record, "function"),
            held: record.number("held").unwrap_or_default(),
            waiting: record.number("waiting").unwrap_or_default(),
            oldest_hold: milliseconds(record, "oldest"),
            hold: HistogramSnapshot::of_text(&hold)?,
            waits,
            losses: losses.filter_map(|reason| Some((reason, count(reason)?))).collect(),
            others,
        })
    }
}

/// What has become of a request to give up a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Revocation {
    /// The number of holders that lose the lock. Several for readers of different clients, and for permits.
    pub revoked: u64,
    /// The number of holders whose clients are not revocable. They keep the lock.
    pub refused: u64,
    /// See [`ClientAnswers::unanswered`]. These clients may have the lock.
    pub unanswered: Option<u64>,
}

/// A text that is no key.
fn text(record: &TextRecord<'_>, name: &str) -> Option<String> {
    record.get(name).map(|text| visible(&text))
}

fn milliseconds(record: &TextRecord<'_>, name: &str) -> Option<Duration> {
    record.number(name).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_other_kinds_and_garbage_are_no_reports() {
        for text in [
            "",
            "key=a",
            "record=hold\tkey=a\ttemplate=b\theld=x\tleft=1",
            "record=new\tkey=a\ttemplate=b\theld=1\tleft=1\twaiting=1\thold=",
            "garbage",
        ] {
            let record = TextRecord::new(text);
            assert_eq!(HoldInfo::read(&record), None, "{text}");
            assert_eq!(WaitInfo::read(&record), None, "{text}");
            assert_eq!(LossInfo::read(&record), None, "{text}");
            assert_eq!(SiteInfo::read(&record), None, "{text}");
        }
        let texts = [
            "record=totals\theld=7\tup=1",
            "record=site\ttemplate=a\thold=x\theld=9",
            "record=site\ttemplate=a\thold=0:1:1\tgranted=9999:1:1",
            "record=new\theld=9",
            "held=x",
        ];
        let snapshot = ClientSnapshot::read(texts.map(TextRecord::new));
        let expected = ClientSnapshot { held: 7, store_up: true, ..ClientSnapshot::default() };
        assert_eq!(snapshot, expected, "later versions may add records");
    }

    #[test]
    fn texts_have_no_control_characters() {
        let text = "record=hold\tkey=a%1B\ttemplate=b%0A\u{202e}\tfunction=c%07\theld=1\tleft=1";
        let hold = HoldInfo::read(&TextRecord::new(text)).expect("a hold");
        assert_eq!((&*hold.key, &*hold.template), ("a\u{1b}", "b"));
        assert_eq!(hold.function.as_deref(), Some("c"));
    }

    #[test]
    fn numbers_that_are_too_large_are_left_out() {
        let text = format!(
            "record=hold\tkey=a\ttemplate=b\theld={0}\tleft={0}\tpermits={0}\tlimit=1\tfence={0}",
            u64::MAX
        );
        let hold = HoldInfo::read(&TextRecord::new(&text)).expect("a hold");
        assert_eq!((hold.permits, hold.fencing_token), (None, Some(u64::MAX)));
        assert_eq!(hold.lease, None, "older versions do not send it");
    }
}
