//! Records of grants, as measured by a contestant.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

/// The length of a record in a file: four 64-bit integers.
const BYTES: usize = 32;

/// One grant. The times are in nanoseconds of `CLOCK_MONOTONIC`, which all processes of a machine
/// share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    /// Just before the request for the lock.
    pub(crate) requested: u64,
    /// Just after the grant.
    pub(crate) granted: u64,
    /// Just before the request for the release.
    pub(crate) released: u64,
    pub(crate) task: u32,
    pub(crate) key: u32,
}

impl Record {
    fn parse(bytes: &[u8]) -> Self {
        let word = |at: usize| {
            let word = bytes[at * 8..at * 8 + 8].try_into().expect("a slice of eight bytes");
            u64::from_le_bytes(word)
        };
        let (task, key) = (word(3) & u64::from(u32::MAX), word(3) >> 32);
        Self {
            requested: word(0),
            granted: word(1),
            released: word(2),
            task: u32::try_from(task).expect("32 bits"),
            key: u32::try_from(key).expect("32 bits"),
        }
    }

    fn append(&self, bytes: &mut Vec<u8>) {
        let holder = u64::from(self.key) << 32 | u64::from(self.task);
        for word in [self.requested, self.granted, self.released, holder] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
    }
}

/// The files into which the processes of contestants write their records.
pub(crate) struct RecordFiles(TempDir);

impl RecordFiles {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(tempfile::tempdir()?))
    }

    /// The file of a process, and its name in a command.
    pub(crate) fn file(&self, process: usize) -> Result<(PathBuf, String)> {
        let path = self.0.path().join(format!("records-{process}"));
        let name =
            path.to_str().context("the path of the temporary directory is not UTF-8")?.to_owned();
        Ok((path, name))
    }
}

/// The current time, on the clock of the records.
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    seconds * 1_000_000_000 + nanos
}

/// Reads the records that a contestant has written.
pub(crate) fn read(file: &Path) -> Result<Vec<Record>> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    ensure!(bytes.len() % BYTES == 0, "{} ends in the middle of a record", file.display());
    Ok(bytes.chunks_exact(BYTES).map(Record::parse).collect())
}

/// Writes records to a file.
pub(crate) fn write(file: &Path, records: &[Record]) -> Result<()> {
    let mut bytes = Vec::with_capacity(records.len() * BYTES);
    for record in records {
        record.append(&mut bytes);
    }
    fs::write(file, bytes).with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("records");
        let record = Record { requested: 1, granted: 2, released: u64::MAX, task: 4, key: 5 };
        write(&file, &[record, record]).unwrap();
        assert_eq!(read(&file).unwrap(), [record, record]);
    }

    #[test]
    fn half_a_record_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("records");
        fs::write(&file, [0; 40]).unwrap();
        assert!(read(&file).is_err());
    }
}
