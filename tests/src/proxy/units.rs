//! Durations and amounts of bytes in human-readable form: `20ms`, `60MB`, `64KiB`.
//!
//! A duration always has a unit. A number without a unit is an amount of bytes; a rate is in bytes per
//! second, and `0` means no limit.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de::Error as _};

const NANOSECONDS: &[(&str, u64)] = &[("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

const BYTES: &[(&str, u64)] = &[
    ("B", 1),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("", 1),
];

/// An error: text that is not an amount.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {wanted}")]
pub struct AmountError {
    text: String,
    wanted: &'static str,
}

/// Parses a whole number and its unit; the result is in the smallest unit.
fn amount(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (_, factor) = units.iter().find(|(unit, _)| *unit == &text[digits..])?;
    text[..digits].parse::<u64>().ok()?.checked_mul(*factor)
}

/// Parses a duration such as `20ms`.
///
/// # Errors
/// The text is not a duration, or the duration is too long.
pub fn duration(text: &str) -> Result<Duration, AmountError> {
    let wanted = "a duration such as 500us, 20ms or 3s";
    let nanoseconds =
        amount(text, NANOSECONDS).ok_or_else(|| AmountError { text: text.to_owned(), wanted })?;
    Ok(Duration::from_nanos(nanoseconds))
}

/// Parses an amount of bytes such as `60MB`.
///
/// # Errors
/// The text is not an amount of bytes, or the amount is too large.
pub fn bytes(text: &str) -> Result<u64, AmountError> {
    let wanted = "a number of bytes such as 60MB, 64KiB or 0";
    amount(text, BYTES).ok_or_else(|| AmountError { text: text.to_owned(), wanted })
}

pub(super) fn duration_in_json<'de, D: Deserializer<'de>>(json: D) -> Result<Duration, D::Error> {
    duration(&String::deserialize(json)?).map_err(D::Error::custom)
}

pub(super) fn maybe_duration_in_json<'de, D: Deserializer<'de>>(
    json: D,
) -> Result<Option<Duration>, D::Error> {
    duration_in_json(json).map(Some)
}

pub(super) fn maybe_bytes_in_json<'de, D: Deserializer<'de>>(json: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum NumberOrText {
        Number(u64),
        Text(String),
    }
    match NumberOrText::deserialize(json)? {
        NumberOrText::Number(number) => Ok(Some(number)),
        NumberOrText::Text(text) => bytes(&text).map(Some).map_err(D::Error::custom),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_they_are_written() {
        let read = ["0", "7", "60MB", "64KiB", "1GB"].map(|text| bytes(text).unwrap());
        assert_eq!(read, [0, 7, 60_000_000, 65_536, 1_000_000_000]);
        let read = ["0s", "500us", "20ms", "3s"].map(|text| duration(text).unwrap().as_micros());
        assert_eq!(read, [0, 500, 20_000, 3_000_000]);
        for wrong in ["", "MB", "1.5MB", "-1", "1 MB", "99999999999GB", "1mb"] {
            assert!(bytes(wrong).is_err() && duration(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(
            duration("20").unwrap_err().to_string(),
            "\"20\" is not a duration such as 500us, 20ms or 3s"
        );
    }
}
