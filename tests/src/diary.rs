//! The diaries of those who hold locks: what they did, and when.
//!
//! All of them are on one clock, that of the deadlines (`CLOCK_BOOTTIME`), also those of several
//! processes of a machine. A process that may be killed keeps its diary in a file.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::time::{ClockId, clock_gettime};

use crate::History;

/// Nanoseconds on the clock of the deadlines.
#[must_use]
pub fn boot_nanos() -> u64 {
    #[cfg(target_os = "linux")]
    const CLOCK: ClockId = ClockId::Boottime;
    // Which counts the time of suspend there.
    #[cfg(not(target_os = "linux"))]
    const CLOCK: ClockId = ClockId::Monotonic;

    let now = clock_gettime(CLOCK);
    let whole = u64::try_from(now.tv_sec).expect("after boot") * 1_000_000_000;
    whole + u64::try_from(now.tv_nsec).expect("a fraction")
}

/// One entry in a diary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// See [`boot_nanos`].
    pub at: u64,
    /// The process.
    pub process: u32,
    /// The lock's key; without white space.
    pub key: String,
    /// Which hold, of all that the process had.
    pub hold: u64,
    /// What happened.
    pub what: What,
}

/// What happened to a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// It began, to end at the deadline unless it was renewed.
    Acquired {
        /// See [`boot_nanos`].
        deadline: u64,
    },
    /// It was still held, to end at the deadline unless it was renewed.
    Held {
        /// See [`boot_nanos`].
        deadline: u64,
    },
    /// A poll of the body began, with this deadline known.
    Poll {
        /// See [`boot_nanos`].
        deadline: u64,
    },
    /// It was given its fencing token.
    Fenced {
        /// The token.
        token: u64,
    },
    /// The guarded register took a write of this holder as its so-many-th.
    Wrote {
        /// From the register.
        order: u64,
    },
    /// The register that looks at fencing tokens accepted a write as its so-many-th.
    Accepted {
        /// From the register.
        order: u64,
        /// The token that was sent along.
        token: u64,
    },
    /// It ended: released, lost, cancelled or unwound.
    Ended,
    /// Its process was killed; of all its holds.
    Killed,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, process, key, hold, what } = self;
        write!(f, "{at} {process} {key} {hold} ")?;
        match what {
            What::Acquired { deadline } => write!(f, "acquired {deadline} 0"),
            What::Held { deadline } => write!(f, "held {deadline} 0"),
            What::Poll { deadline } => write!(f, "poll {deadline} 0"),
            What::Fenced { token } => write!(f, "fenced {token} 0"),
            What::Wrote { order } => write!(f, "wrote {order} 0"),
            What::Accepted { order, token } => write!(f, "accepted {order} {token}"),
            What::Ended => f.write_str("ended 0 0"),
            What::Killed => f.write_str("killed 0 0"),
        }
    }
}

impl FromStr for Event {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let bad = || format!("no event: {line}");
        let parts: Vec<&str> = line.split(' ').collect();
        let [at, process, key, hold, what, one, two] = parts[..] else { return Err(bad()) };
        let number = |text: &str| text.parse::<u64>().map_err(|_| bad());
        let (one, two) = (number(one)?, number(two)?);
        let what = match what {
            "acquired" => What::Acquired { deadline: one },
            "held" => What::Held { deadline: one },
            "poll" => What::Poll { deadline: one },
            "fenced" => What::Fenced { token: one },
            "wrote" => What::Wrote { order: one },
            "accepted" => What::Accepted { order: one, token: two },
            "ended" => What::Ended,
            "killed" => What::Killed,
            _ => return Err(bad()),
        };
        let process = process.parse().map_err(|_| bad())?;
        Ok(Self { at: number(at)?, process, key: key.to_owned(), hold: number(hold)?, what })
    }
}

/// Where holders write down what they do; clones write into one book.
#[derive(Debug, Clone, Default)]
pub struct Diary {
    book: Arc<Mutex<Book>>,
}

#[derive(Debug, Default)]
struct Book {
    events: Vec<Event>,
    /// Written to instead, by a process that may be killed.
    file: Option<File>,
}

impl Diary {
    /// One that is kept in a file, so that it outlives its process.
    pub fn in_file(path: &Path) -> io::Result<Self> {
        let file = Some(File::options().create(true).append(true).open(path)?);
        Ok(Self { book: Arc::new(Mutex::new(Book { events: Vec::new(), file })) })
    }

    /// Writes something down as of now.
    pub fn note(&self, key: &str, hold: u64, what: What) {
        let (process, key) = (std::process::id(), key.to_owned());
        self.add(Event { at: boot_nanos(), process, key, hold, what });
    }

    /// Writes something down that somebody else has seen.
    pub fn add(&self, event: Event) {
        let mut book = self.book();
        match &mut book.file {
            // One line is one write, so that nothing of it is missing when the process is killed.
            Some(file) => {
                file.write_all(format!("{event}\n").as_bytes()).expect("room for a diary");
            }
            None => book.events.push(event),
        }
    }

    /// All of it so far, unless it is kept in a file.
    #[must_use]
    pub fn history(&self) -> History {
        History::new(self.book().events.clone())
    }

    /// All of it so far, and what is kept in these files.
    pub fn history_with<P: AsRef<Path>>(
        &self,
        files: impl IntoIterator<Item = P>,
    ) -> io::Result<History> {
        let mut events = self.book().events.clone();
        for file in files {
            for line in std::fs::read_to_string(file)?.lines() {
                let event = line.parse().map_err(io::Error::other)?;
                events.push(event);
            }
        }
        Ok(History::new(events))
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_being_written_down() {
        for what in [
            What::Acquired { deadline: 5 },
            What::Held { deadline: 7 },
            What::Poll { deadline: 6 },
            What::Fenced { token: u64::MAX },
            What::Wrote { order: 1 },
            What::Accepted { order: 2, token: 3 },
            What::Ended,
            What::Killed,
        ] {
            let event = Event { at: 1, process: 2, key: "k".into(), hold: 3, what };
            assert_eq!(event.to_string().parse(), Ok(event));
        }
        for line in ["", "1 2 k 3", "1 2 k 3 nonsense 0 0", "x 2 k 3 ended 0 0"] {
            assert!(line.parse::<Event>().is_err(), "{line}");
        }
    }
}
