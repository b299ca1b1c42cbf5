//! What the holders of keys have announced, and the records of runs.

use std::collections::HashMap;
use std::time::Duration;

use super::{FIRST_PURGE, Keys};
use crate::clock::{BootInstant, unix_time};
use crate::store::announcements::{Announced, Announcement};
use crate::store::contract::Left;
use crate::store::owner::OwnerId;
use crate::store::periods::{
    RunEnd, RunEnded, RunLabel, RunRecord, RunStart, RunStarted, rest_of_period,
};

impl Keys {
    pub(super) fn announce(
        &mut self,
        &Announcement { key, owner, text, .. }: &Announcement<'_>,
        now: BootInstant,
    ) -> Announced {
        match self.live(key, now) {
            Some(entry) if entry.is_owned_by(owner) => {}
            Some(_) => return Announced::Taken,
            None => return Announced::Gone,
        }
        self.announcements.insert(key.into(), (owner, text.to_owned()));
        Announced::Done
    }

    pub(super) fn announced(&mut self, key: &str, now: BootInstant) -> Option<(String, Left)> {
        let entry = self.live(key, now)?;
        let (holder, left) = (entry.owner, Left::Time(entry.expires.since(now)));
        let (owner, text) = self.announcements.get(key)?;
        (Some(*owner) == holder).then(|| (text.clone(), left))
    }

    pub(super) fn start_run(
        &mut self,
        &RunStart { key, owner, run, every, counts, .. }: &RunStart<'_>,
        Clocks { now, since_1970 }: Clocks,
    ) -> RunStarted {
        match self.live(key, now) {
            Some(entry) if entry.is_owned_by(owner) => {}
            Some(_) => return RunStarted::Taken,
            None => return RunStarted::Gone,
        }
        if let Some(last) = self.runs.get(key, now) {
            match rest_of_period(every, last.began, since_1970) {
                Some(_) if last.owner == owner => return RunStarted::At(last.began),
                Some(rest) if last.counts => {
                    return RunStarted::Ran(Duration::from_millis(rest));
                }
                _ => {}
            }
        }
        let began = since_1970;
        self.runs.insert(key, now, StoredRun::new(owner, run, (began, None), counts, now));
        RunStarted::At(began)
    }

    pub(super) fn end_run(
        &mut self,
        &RunEnd { key, owner, run, began, counts, failed, .. }: &RunEnd<'_>,
        Clocks { now, since_1970 }: Clocks,
    ) -> RunEnded {
        match self.live(key, now) {
            Some(entry) if entry.is_owned_by(owner) => {}
            Some(_) => return RunEnded::Taken,
            None => return RunEnded::Gone,
        }
        let Some(began) = began else {
            // The body has not begun.
            if let Some(last) = self.runs.get_mut(key).filter(|last| last.owner == owner) {
                last.counts = false;
            }
            return RunEnded::Recorded;
        };
        let times = (began, Some((since_1970, failed)));
        self.runs.insert(key, now, StoredRun::new(owner, run, times, counts, now));
        RunEnded::Recorded
    }

    pub(super) fn last_run(&mut self, key: &str, now: BootInstant) -> Option<RunRecord> {
        let run = self.runs.get(key, now)?;
        let (owner, began, ended) = (run.owner, run.began, run.ended);
        let by = run.by.clone();
        let is_held = self.live(key, now).is_some_and(|entry| entry.is_owned_by(owner));
        Some(RunRecord { began, ended, by, is_held })
    }
}

/// The time by both clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clocks {
    now: BootInstant,
    /// The wall clock, in ms.
    since_1970: u64,
}

impl Clocks {
    pub(super) fn now() -> Self {
        let since_1970 = u64::try_from(unix_time().as_millis()).unwrap_or(u64::MAX);
        Self { now: BootInstant::now(), since_1970 }
    }
}

/// The last runs.
#[derive(Debug, Default)]
pub(super) struct Runs {
    by_key: HashMap<Box<str>, StoredRun>,
    /// The number of records at which those that have expired are removed.
    purge_at: usize,
}

#[derive(Debug)]
struct StoredRun {
    owner: OwnerId,
    by: String,
    began: u64,
    ended: Option<(u64, bool)>,
    counts: bool,
    expires: BootInstant,
}

impl StoredRun {
    fn new(
        owner: OwnerId,
        run: &RunLabel,
        (began, ended): (u64, Option<(u64, bool)>),
        counts: bool,
        now: BootInstant,
    ) -> Self {
        let (by, expires) = (run.by.clone(), now.after(run.kept));
        Self { owner, by, began, ended, counts, expires }
    }
}

impl Runs {
    fn get(&self, key: &str, now: BootInstant) -> Option<&StoredRun> {
        self.by_key.get(key).filter(|run| run.expires > now)
    }

    fn get_mut(&mut self, key: &str) -> Option<&mut StoredRun> {
        self.by_key.get_mut(key)
    }

    fn insert(&mut self, key: &str, now: BootInstant, run: StoredRun) {
        if self.by_key.len() >= self.purge_at {
            self.by_key.retain(|_, run| run.expires > now);
            self.purge_at = FIRST_PURGE.max(2 * self.by_key.len());
        }
        self.by_key.insert(key.into(), run);
    }
}
