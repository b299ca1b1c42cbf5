//! Parses the attribute's durations, such as `"250ms"` and `"1m 30s"`.

use std::time::Duration;

/// The units and their lengths in milliseconds.
const UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

const EXPECTED: &str =
    "expected a whole number and a unit, such as \"250ms\", \"10s\" or \"1m 30s\"";

/// Parses a duration. The error says what was expected.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(format!("the duration is empty; {EXPECTED}"));
    }
    if rest.starts_with('-') {
        return Err(format!("a duration cannot be negative; {EXPECTED}"));
    }
    let mut total = 0_u64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let after = after.trim_start();
        let letters = after.find(|c: char| !c.is_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        rest = after.trim_start();

        if number.is_empty() {
            return Err(EXPECTED.to_owned());
        }
        if unit.is_empty() {
            return Err(if rest.is_empty() {
                format!("`{number}` has no unit; write \"{number}s\" or \"{number}ms\"")
            } else {
                EXPECTED.to_owned()
            });
        }
        let Some((_, scale)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(format!("unknown unit `{unit}`, expected one of `ms`, `s`, `m`, `h`, `d`"));
        };
        let part = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*scale));
        let sum = part.and_then(|part| total.checked_add(part));
        total = sum.ok_or_else(|| format!("`{text}` is too long; use at most \"7d\""))?;
    }
    Ok(Duration::from_millis(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_units_are_durations() {
        for (text, milliseconds) in [
            ("0s", 0),
            ("250ms", 250),
            ("10s", 10_000),
            (" 1m 30s ", 90_000),
            ("1h30m", 5_400_000),
            ("2 d", 172_800_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
    }

    #[test]
    fn everything_else_is_an_error_that_says_what_was_expected() {
        for (text, problem) in [
            ("", "empty"),
            ("10", "`10` has no unit; write \"10s\""),
            ("10 parsecs", "unknown unit `parsecs`"),
            ("-1s", "negative"),
            ("s", "expected a whole number"),
            ("1.5s", "expected a whole number"),
            ("10s!", "expected a whole number"),
            ("99999999999999999999s", "too long"),
            ("9999999999999999999d", "too long"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
