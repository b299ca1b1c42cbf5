//! Durations on the command line, such as `250ms` and `1m30s`: those of the attribute, and fractions of seconds.

use std::time::Duration;

/// The units and their lengths in milliseconds.
const UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// The shortest pause between two readings.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

const EXPECTED: &str = "expected a number and a unit, such as `250ms`, `10s`, `1.5s` or `1m30s`";

/// Parses a duration, up to a year.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let mut rest = text.trim();
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return Err(EXPECTED.to_owned());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| !c.is_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        rest = after.trim_start();
        if number.is_empty() {
            return Err(EXPECTED.to_owned());
        }
        if unit.is_empty() {
            return Err(format!("`{number}` has no unit; write `{number}s` or `{number}ms`"));
        }
        let Some((_, scale)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(format!("unknown unit `{unit}`, expected one of `ms`, `s`, `m`, `h`, `d`"));
        };
        total = part(number, *scale).and_then(|part| total.checked_add(part)).ok_or(EXPECTED)?;
    }
    if total > Duration::from_secs(366 * 24 * 60 * 60) {
        return Err("the duration is longer than a year".to_owned());
    }
    Ok(total)
}

/// Parses durations from one length to another.
pub(crate) fn between(
    least: Duration,
    most: Duration,
) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| {
        let span = parse(text)?;
        if (least..=most).contains(&span) {
            return Ok(span);
        }
        Err(format!("it must be from {} to {}", exactly(least), exactly(most)))
    }
}

/// The number of the longest unit of which the duration is a multiple.
fn exactly(span: Duration) -> String {
    let milliseconds = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let fits = |unit: &&(&str, u64)| milliseconds != 0 && milliseconds.is_multiple_of(unit.1);
    let (unit, length) = UNITS.iter().rev().find(fits).unwrap_or(&UNITS[1]);
    format!("{}{unit}", milliseconds / length)
}

/// Parses the pause between two readings of the store, which must not be kept busy.
pub(crate) fn parse_pause(text: &str) -> Result<Duration, String> {
    let pause = parse(text)?;
    if pause < SHORTEST_PAUSE {
        return Err(format!("the pause is shorter than {}", show(SHORTEST_PAUSE)));
    }
    Ok(pause)
}

/// So many units of this length, rounded down to nanoseconds.
fn part(number: &str, milliseconds: u64) -> Option<Duration> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let whole = whole.parse::<u64>().ok()?.checked_mul(milliseconds)?;
    // More digits are less than a nanosecond of any unit but days.
    let fraction = fraction.get(..9).unwrap_or(fraction);
    let digits = u32::try_from(fraction.len()).ok()?;
    let scale = 10_u64.pow(digits);
    let fraction = fraction.parse::<u64>().ok()?;
    let nanos = u128::from(fraction) * u128::from(milliseconds) * 1_000_000 / u128::from(scale);
    Some(Duration::from_millis(whole) + Duration::from_nanos(u64::try_from(nanos).ok()?))
}

/// A duration for people, with two units at most: `850ms`, `12.3s`, `5m12s`, `3h05m`, `2d04h`.
pub(crate) fn show(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0 => format!("{}ms", span.as_millis()),
        1..60 => format!("{seconds}.{}s", span.subsec_millis() / 100),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_units_are_durations() {
        for (text, milliseconds) in [
            ("0s", 0),
            ("250ms", 250),
            ("1.5s", 1500),
            ("0.25m", 15_000),
            ("1m30s", 90_000),
            (" 1m 30s ", 90_000),
            ("7d", 604_800_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        assert_eq!(parse("0.0000000019s"), Ok(Duration::from_nanos(1)));
    }

    #[test]
    fn other_texts_are_errors() {
        for text in [
            "",
            " ",
            "s",
            "-1s",
            "10",
            "1x",
            "1.2.3s",
            "1s2",
            ".s",
            "1.s",
            "99999999999999999999s",
            "400d",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(parse("10"), Err("`10` has no unit; write `10s` or `10ms`".to_owned()));
    }

    #[test]
    fn pauses_are_not_too_short() {
        assert_eq!(parse_pause("100ms"), Ok(SHORTEST_PAUSE));
        assert!(parse_pause("0s").is_err() && parse_pause("99ms").is_err());
    }

    #[test]
    fn durations_outside_of_their_range_are_errors() {
        let (least, most) = (Duration::from_millis(10), Duration::from_secs(24 * 60 * 60));
        let parse = between(least, most);
        assert_eq!((parse("10ms"), parse("24h")), (Ok(least), Ok(most)));
        for text in ["9ms", "24h1ms"] {
            assert_eq!(parse(text), Err("it must be from 10ms to 1d".to_owned()));
        }
        assert_eq!(exactly(Duration::ZERO), "0s");
        assert_eq!(exactly(Duration::from_millis(1500)), "1500ms");
    }

    #[test]
    fn durations_are_shown_with_two_units() {
        let shown =
            [850, 12_345, 312_000, 11_100_000, 187_200_000].map(Duration::from_millis).map(show);
        assert_eq!(shown, ["850ms", "12.3s", "5m12s", "3h05m", "2d04h"]);
    }
}
