//! Records of what lock holders did, and when.
//!
//! All timestamps are on the clock of the lease deadlines (`CLOCK_BOOTTIME`), so that the records
//! of several processes on one machine can be merged. A process that may be killed records to a
//! file.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::time::{ClockId, clock_gettime};

use crate::History;

/// The current time in nanoseconds, on the clock of the lease deadlines.
#[must_use]
pub fn boot_nanos() -> u64 {
    #[cfg(target_os = "linux")]
    const CLOCK: ClockId = ClockId::Boottime;
    // On other systems, this clock includes the time for which the machine is suspended.
    #[cfg(not(target_os = "linux"))]
    const CLOCK: ClockId = ClockId::Monotonic;

    let now = clock_gettime(CLOCK);
    let whole = u64::try_from(now.tv_sec).expect("after boot") * 1_000_000_000;
    whole + u64::try_from(now.tv_nsec).expect("a fraction")
}

/// One recorded event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldEvent {
    /// The time of the event; see [`boot_nanos`].
    pub at: u64,
    /// The process id of the holder.
    pub process: u32,
    /// The key of the lock, without white space.
    pub key: String,
    /// The number of the hold among all holds of the process.
    pub hold: u64,
    /// What happened.
    pub kind: EventKind,
}

/// What happened to a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// The hold began.
    Acquired {
        /// The deadline unless the lease is renewed; see [`boot_nanos`].
        deadline: u64,
    },
    /// The hold was still valid.
    Held {
        /// The deadline unless the lease is renewed; see [`boot_nanos`].
        deadline: u64,
    },
    /// The hold is that of a reader, which excludes writers only.
    Reads,
    /// The hold is that of some permits of a semaphore.
    HasPermits {
        /// How many.
        count: u64,
        /// How many all holders together may have.
        limit: u64,
    },
    /// A poll of the body began.
    Poll {
        /// The deadline that the holder knew; see [`boot_nanos`].
        deadline: u64,
    },
    /// The holder got its fencing token.
    Fenced {
        /// The token.
        token: u64,
    },
    /// The register without a fence took a write of this holder.
    Wrote {
        /// The position of the write among all writes to the register.
        order: u64,
    },
    /// The register that compares fencing tokens accepted a write of this holder.
    Accepted {
        /// The position of the write among all writes that the register accepted.
        order: u64,
        /// The token that was sent with the write.
        token: u64,
    },
    /// The hold ended: it was released, lost or cancelled, or its body panicked.
    Ended,
    /// The process was killed. Ends all its holds.
    Killed,
}

impl fmt::Display for HoldEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, process, key, hold, kind } = self;
        write!(f, "{at} {process} {key} {hold} ")?;
        match kind {
            EventKind::Acquired { deadline } => write!(f, "acquired {deadline} 0"),
            EventKind::Held { deadline } => write!(f, "held {deadline} 0"),
            EventKind::Poll { deadline } => write!(f, "poll {deadline} 0"),
            EventKind::Fenced { token } => write!(f, "fenced {token} 0"),
            EventKind::Wrote { order } => write!(f, "wrote {order} 0"),
            EventKind::Accepted { order, token } => write!(f, "accepted {order} {token}"),
            EventKind::Reads => f.write_str("reads 0 0"),
            EventKind::HasPermits { count, limit } => write!(f, "permits {count} {limit}"),
            EventKind::Ended => f.write_str("ended 0 0"),
            EventKind::Killed => f.write_str("killed 0 0"),
        }
    }
}

impl FromStr for HoldEvent {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let bad = || format!("not an event: {line}");
        let parts: Vec<&str> = line.split(' ').collect();
        let [at, process, key, hold, kind, one, two] = parts[..] else { return Err(bad()) };
        let number = |text: &str| text.parse::<u64>().map_err(|_| bad());
        let (one, two) = (number(one)?, number(two)?);
        let kind = match kind {
            "acquired" => EventKind::Acquired { deadline: one },
            "held" => EventKind::Held { deadline: one },
            "poll" => EventKind::Poll { deadline: one },
            "fenced" => EventKind::Fenced { token: one },
            "wrote" => EventKind::Wrote { order: one },
            "accepted" => EventKind::Accepted { order: one, token: two },
            "reads" => EventKind::Reads,
            "permits" => EventKind::HasPermits { count: one, limit: two },
            "ended" => EventKind::Ended,
            "killed" => EventKind::Killed,
            _ => return Err(bad()),
        };
        let process = process.parse().map_err(|_| bad())?;
        Ok(Self { at: number(at)?, process, key: key.to_owned(), hold: number(hold)?, kind })
    }
}

/// Records the events of lock holders. Clones share one storage.
#[derive(Debug, Clone, Default)]
pub struct Recorder {
    storage: Arc<Mutex<Storage>>,
}

#[derive(Debug, Default)]
struct Storage {
    events: Vec<HoldEvent>,
    /// Used instead of `events` by a process that may be killed.
    file: Option<File>,
}

impl Recorder {
    /// Records to a file, so that the events outlive the process.
    pub fn in_file(path: &Path) -> io::Result<Self> {
        let file = Some(File::options().create(true).append(true).open(path)?);
        Ok(Self { storage: Arc::new(Mutex::new(Storage { events: Vec::new(), file })) })
    }

    /// Records an event of this process with the current time.
    pub fn record(&self, key: &str, hold: u64, kind: EventKind) {
        let (process, key) = (std::process::id(), key.to_owned());
        self.add(HoldEvent { at: boot_nanos(), process, key, hold, kind });
    }

    /// Records any event, for example one of another process.
    pub fn add(&self, event: HoldEvent) {
        let mut storage = self.storage();
        match &mut storage.file {
            // One write per line, so that a killed process leaves no incomplete line.
            Some(file) => {
                file.write_all(format!("{event}\n").as_bytes()).expect("the record is writable");
            }
            None => storage.events.push(event),
        }
    }

    /// All events so far, except those in a file.
    #[must_use]
    pub fn history(&self) -> History {
        History::new(self.storage().events.clone())
    }

    /// All events so far, and those in these files.
    pub fn history_with<P: AsRef<Path>>(
        &self,
        files: impl IntoIterator<Item = P>,
    ) -> io::Result<History> {
        let mut events = self.storage().events.clone();
        for file in files {
            for line in std::fs::read_to_string(file)?.lines() {
                let event = line.parse().map_err(io::Error::other)?;
                events.push(event);
            }
        }
        Ok(History::new(events))
    }

    fn storage(&self) -> MutexGuard<'_, Storage> {
        self.storage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_can_be_written_and_parsed() {
        for kind in [
            EventKind::Acquired { deadline: 5 },
            EventKind::Held { deadline: 7 },
            EventKind::Poll { deadline: 6 },
            EventKind::Fenced { token: u64::MAX },
            EventKind::Wrote { order: 1 },
            EventKind::Accepted { order: 2, token: 3 },
            EventKind::Ended,
            EventKind::Killed,
        ] {
            let event = HoldEvent { at: 1, process: 2, key: "k".into(), hold: 3, kind };
            assert_eq!(event.to_string().parse(), Ok(event));
        }
        for line in ["", "1 2 k 3", "1 2 k 3 nonsense 0 0", "x 2 k 3 ended 0 0"] {
            assert!(line.parse::<HoldEvent>().is_err(), "{line}");
        }
    }
}
