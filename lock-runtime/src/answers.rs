//! What a client answers to questions about it.

use std::time::SystemTime;

use tracing::Level;

use crate::connected::Connected;
use crate::engine::background::loss_record::LossRecord;
use crate::engine::inspection::HeldLock;
use crate::events;
use crate::lock_mode::LockMode;
use crate::questions::answer::{AnswerHead, AnswerPages};
use crate::questions::question::{Question, QuestionKind, RevocationRequest};
use crate::questions::record::RecordWriter;
use crate::questions::{Answerer, HOLD, LOSS, REVOCATION, SITE, TOTALS, WAIT};
use crate::store::contract::Mode;
use crate::telemetry::{AcquisitionOutcome, SiteSnapshot, Snapshot};

impl Answerer for Connected {
    fn answer(&self, question: &Question, id: &str) -> AnswerPages {
        let mut client = self.told.clone().unwrap_or_default();
        client.id = Some(id.to_owned());
        let is_known = question.kind != QuestionKind::Unknown;
        let (number, is_revocable) = (question.number, self.is_revocable);
        let head = AnswerHead { number, from: id, client: &client, is_revocable, is_known };
        let engine = &self.engine;
        match &question.kind {
            QuestionKind::Client | QuestionKind::Unknown => head.pages([]),
            QuestionKind::Holds(key) => {
                let locks = engine.held_locks(key.as_deref());
                let calls = engine.waiting_calls(key.as_deref());
                let waiting = |lock: &HeldLock| calls.get(&lock.key).copied().unwrap_or_default();
                head.pages(locks.iter().map(|lock| hold(lock, waiting(lock))))
            }
            QuestionKind::Queue => {
                let of_key = |(key, calls)| {
                    RecordWriter::about(WAIT).field("key", key).field("waiting", calls)
                };
                head.pages(engine.waiting_calls(None).into_iter().map(of_key))
            }
            QuestionKind::Snapshot => {
                let snapshot = engine.snapshot();
                let sites = snapshot.sites.iter().map(site);
                head.pages([totals(&snapshot)].into_iter().chain(sites))
            }
            QuestionKind::Losses => head.pages(engine.losses().iter().map(loss)),
            QuestionKind::Revoke(request) => {
                let count = self.revoke(request, id);
                head.pages([RecordWriter::about(REVOCATION).field("locks", count)])
            }
        }
    }

    fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl Connected {
    /// Gives up the locks that a request names, if the client is revocable. Returns their number, or the number of
    /// those that it keeps.
    fn revoke(&self, request: &RevocationRequest, own: &str) -> usize {
        let RevocationRequest { key, from, by } = request;
        if from.as_ref().is_some_and(|from| from != own) {
            return 0;
        }
        if !self.is_revocable {
            return self.engine.held_locks(Some(key)).len();
        }
        let count = self.engine.revoke(key);
        if count > 0 {
            let (key, by) = (key.clone(), by.clone());
            events::emit(Level::WARN, move || {
                tracing::warn!(key, by, count, "lock revoked");
            });
        }
        count
    }
}

fn hold(lock: &HeldLock, waiting: usize) -> RecordWriter {
    let (label, fence) = (lock.site.label(), lock.fence);
    let record = RecordWriter::about(HOLD)
        .field("key", &lock.key)
        .field("template", label.template)
        .optional("function", label.function)
        .field("held", lock.held_for.as_millis())
        .field("left", lock.left.as_millis())
        .field("lease", lock.term.as_millis())
        .field("renewed", u8::from(lock.is_renewed))
        .field("waiting", waiting)
        .optional("max_hold", lock.max_hold.map(|max_hold| max_hold.as_millis()))
        .optional("fence", fence);
    match lock.mode {
        Mode::Exclusive => record,
        Mode::Read => record.field("mode", LockMode::Read.as_str()),
        Mode::Write => record.field("mode", LockMode::Write.as_str()),
        Mode::Permits(permits) => {
            record.field("permits", permits.count()).field("limit", permits.limit())
        }
    }
}

fn loss(loss: &LossRecord) -> RecordWriter {
    let at = loss.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    RecordWriter::about(LOSS)
        .field("key", &loss.key)
        .field("at", at.as_millis())
        .field("reason", loss.reason.as_str())
        .optional("template", loss.label.map(|label| label.template))
        .optional("function", loss.label.and_then(|label| label.function))
        .optional("held", loss.held_for.map(|held_for| held_for.as_millis()))
}

fn totals(snapshot: &Snapshot) -> RecordWriter {
    RecordWriter::about(TOTALS)
        .field("held", snapshot.stats.held)
        .field("queued", snapshot.stats.queued)
        .field("releasing", snapshot.stats.releasing)
        .field("lost", snapshot.stats.lost)
        .field("up", u8::from(snapshot.store_up))
}

fn site(site: &SiteSnapshot) -> RecordWriter {
    let mut record = RecordWriter::about(SITE)
        .field("template", site.template)
        .optional("function", site.function)
        .field("held", site.held)
        .field("waiting", site.waiting)
        .optional("oldest", site.oldest_hold.map(|age| age.as_millis()))
        .field("hold", site.hold.to_text());
    for outcome in AcquisitionOutcome::ALL {
        let count = site.acquisitions(outcome);
        record = match site.wait(outcome) {
            _ if count == 0 => record,
            Some(waits) => record.field(outcome.as_str(), waits.to_text()),
            None => record.field(outcome.as_str(), count),
        };
    }
    for (reason, count) in site.losses.iter().filter(|(_, count)| *count > 0) {
        record = record.field(&format!("lost.{}", reason.as_str()), count);
    }
    record
}
