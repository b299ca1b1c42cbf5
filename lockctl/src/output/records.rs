//! The parts of the output for programs: seconds are numbers, and times RFC 3339 in UTC.

use std::time::{Duration, SystemTime};

use lock_runtime::ClientInfo;
use serde::{Serialize, Serializer};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A client, as it describes itself.
#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
pub(crate) struct ClientRecord {
    pub(crate) id: Option<String>,
    name: Option<String>,
    pid: Option<u32>,
    service: Option<String>,
    version: Option<String>,
    started: Option<String>,
    library: Option<String>,
    /// For people.
    #[serde(skip)]
    pub(crate) shown: String,
}

impl From<&ClientInfo> for ClientRecord {
    fn from(info: &ClientInfo) -> Self {
        Self {
            id: info.id.clone(),
            name: info.name.clone(),
            pid: info.process,
            service: info.service.clone(),
            version: info.version.clone(),
            started: info.started.map(rfc3339),
            library: info.library.clone(),
            shown: info.to_string(),
        }
    }
}

impl ClientRecord {
    /// When it was started, for people.
    pub(crate) fn started(&self) -> String {
        self.started.clone().unwrap_or_else(unknown)
    }

    /// The version of the library, for people.
    pub(crate) fn library(&self) -> String {
        self.library.clone().unwrap_or_else(unknown)
    }
}

/// A cell without a value.
pub(crate) fn unknown() -> String {
    "-".to_owned()
}

/// The value of a cell.
pub(crate) fn cell<T: ToString>(value: Option<&T>) -> String {
    value.map_or_else(unknown, ToString::to_string)
}

/// A duration as a number of seconds, to the microsecond.
pub(crate) fn seconds<S: Serializer>(span: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(number_of_seconds(*span))
}

/// The number that is nearest to whole microseconds, so that it is written with six digits at most.
fn number_of_seconds(span: Duration) -> f64 {
    let seconds = u32::try_from(span.as_secs()).unwrap_or(u32::MAX);
    (f64::from(seconds) * 1e6 + f64::from(span.subsec_micros())) / 1e6
}

/// The same, or `null`.
#[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
pub(crate) fn optional_seconds<S: Serializer>(
    span: &Option<Duration>,
    to: S,
) -> Result<S::Ok, S::Error> {
    match span {
        Some(span) => seconds(span, to),
        None => to.serialize_none(),
    }
}

/// A time to the millisecond, such as `2026-01-31T12:00:00.5Z`. Empty for times that have no such form.
pub(crate) fn rfc3339(at: SystemTime) -> String {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let milliseconds = i128::try_from(since.as_millis()).unwrap_or(i128::MAX);
    let nanoseconds = milliseconds.saturating_mul(1_000_000);
    let at = OffsetDateTime::from_unix_timestamp_nanos(nanoseconds).ok();
    at.and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_have_six_digits_at_most() {
        for (micros, text) in [(1_723_000, "1.723"), (29_239_001, "29.239001"), (0, "0")] {
            assert_eq!(number_of_seconds(Duration::from_micros(micros)).to_string(), text);
        }
    }

    #[test]
    fn times_are_in_utc() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_769_860_800_500);
        assert_eq!(rfc3339(at), "2026-01-31T12:00:00.5Z");
        let far = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(1 << 60));
        assert_eq!(far.map(rfc3339).unwrap_or_default(), "");
    }
}
