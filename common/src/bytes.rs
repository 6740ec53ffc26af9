//! Human-readable numbers of bytes: formatting and parsing. Pure.

use std::fmt;
use std::str::FromStr;

/// Formats `bytes` with three digits and a unit.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A number of bytes: `64MiB`, `1GB` or plain `65536`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// The expected form of a size, for error messages.
    pub const EXPECTS: &str = "a size such as \"64MiB\", \"10GB\" or 65536";

    /// Formats the size with three digits and a unit.
    #[must_use]
    pub fn human(self) -> String {
        human(self.0)
    }
}

/// Units, the largest first and binary before decimal, so that the first that divides gives the shortest
/// spelling.
const BYTE_UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = BYTE_UNITS.iter().find(|(_, unit)| self.0 != 0 && self.0.is_multiple_of(*unit));
        match whole {
            Some(("B", _)) | None => write!(f, "{}", self.0),
            Some((name, unit)) => write!(f, "{}{name}", self.0 / unit),
        }
    }
}

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = number_and_unit(text)?;
        let scale = match unit {
            "" => 1,
            _ => BYTE_UNITS
                .iter()
                .find(|(name, _)| name.eq_ignore_ascii_case(unit))
                .map(|(_, scale)| *scale)
                .ok_or_else(|| format!("unknown unit {unit:?}"))?,
        };
        number.checked_mul(scale).map(Self).ok_or_else(|| "too large".to_owned())
    }
}

/// Splits a quantity into its whole number, in which `_` may group digits, and its unit.
///
/// # Errors
/// If it does not begin with a number that fits 64 bits.
pub fn number_and_unit(text: &str) -> Result<(u64, &str), String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number = number.replace('_', "");
    let number = number.parse().map_err(|_| "it does not start with a whole number".to_owned())?;
    Ok((number, unit.trim()))
}
