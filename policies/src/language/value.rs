//! Values with units. Each has exactly one text form, which this module alone parses and prints.

use super::limits::NUMBER_MAX;
use super::tree::Scalar;
use std::fmt;
use std::time::Duration;

/// Kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// Any text.
    Text,
    /// A word of this list.
    Word(&'static [&'static str]),
    /// A number without a unit.
    Number,
    /// A whole number, not less than 0.
    Count,
    /// Percent, 0 to 100.
    Percent,
    /// Bytes.
    Bytes,
    /// Bytes per second.
    Rate,
    /// A time span.
    Duration,
    /// A boolean.
    Flag,
    /// A list of texts.
    List,
}

impl ValueKind {
    /// Returns the name of the kind.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Word(_) => "word",
            Self::Number => "number",
            Self::Count => "count",
            Self::Percent => "percent",
            Self::Bytes => "bytes",
            Self::Rate => "rate",
            Self::Duration => "duration",
            Self::Flag => "boolean",
            Self::List => "list",
        }
    }

    /// Returns the kind with the name `name`. [`ValueKind::Word`] cannot be found by name, because its words
    /// belong to a table.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::PARAMETERS.iter().copied().find(|kind| kind.name() == name)
    }

    /// Kinds that a parameter of a template can have.
    pub const PARAMETERS: &[Self] = &[
        Self::Text,
        Self::Number,
        Self::Count,
        Self::Percent,
        Self::Bytes,
        Self::Rate,
        Self::Duration,
        Self::Flag,
        Self::List,
    ];

    /// Returns a description of the expected value, for messages.
    #[must_use]
    pub fn expected_form(self) -> String {
        match self {
            Self::Text => "a text".to_owned(),
            Self::Word(words) => super::diagnostic::one_of(words.iter().copied()),
            Self::Number => "a number such as 8 or 0.5, without a unit".to_owned(),
            Self::Count => "a whole number such as 8".to_owned(),
            Self::Percent => "percent from 0% to 100%, such as 85%".to_owned(),
            Self::Bytes => "bytes with a unit, such as 64MiB or 1.5GB".to_owned(),
            Self::Rate => "bytes per second, such as 100MB/s".to_owned(),
            Self::Duration => "a time with a unit, such as 30s, 15m, 2h or 7d".to_owned(),
            Self::Flag => "true or false".to_owned(),
            Self::List => "a list of texts".to_owned(),
        }
    }

    /// True if values of the kind can be ordered by size.
    #[must_use]
    pub fn is_ordered(self) -> bool {
        matches!(self, Self::Number | Self::Count | Self::Percent | Self::Bytes | Self::Rate | Self::Duration)
    }

    /// Parses a scalar; none if it is not of this kind. Numbers and booleans must not be quoted.
    pub(super) fn parse_scalar(self, scalar: &Scalar) -> Option<Value> {
        if scalar.is_null() {
            return None;
        }
        self.parse(&scalar.text)
            .filter(|_| scalar.is_plain || !matches!(self, Self::Number | Self::Count | Self::Flag))
    }

    /// Parses `text`; none if it is not of this kind.
    #[must_use]
    pub fn parse(self, text: &str) -> Option<Value> {
        match self {
            Self::Text => Some(Value::Text(text.into())),
            Self::Word(words) => words.contains(&text).then(|| Value::Text(text.into())),
            Self::Number => parse_decimal(text).map(Value::Number),
            Self::Count => parse_decimal(text).filter(|n| *n >= 0.0 && n.fract() == 0.0).map(Value::Number),
            Self::Percent => {
                let number = parse_decimal(text.strip_suffix('%')?.trim_end())?;
                (0.0..=100.0).contains(&number).then_some(Value::Percent(number))
            }
            Self::Bytes => parse_with_unit(text, BYTE_UNITS).map(Value::Bytes),
            Self::Rate => parse_with_unit(text.strip_suffix("/s")?, BYTE_UNITS).map(Value::Rate),
            Self::Duration => {
                parse_with_unit(text, TIME_UNITS).map(|us| Value::Duration(Duration::from_micros(us)))
            }
            Self::Flag => match text {
                "true" => Some(Value::Flag(true)),
                "false" => Some(Value::Flag(false)),
                _ => None,
            },
            Self::List => None,
        }
    }
}

/// A value in a file.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A text or word.
    Text(Box<str>),
    /// A number without a unit; finite.
    Number(f64),
    /// Percent, 0 to 100.
    Percent(f64),
    /// Bytes.
    Bytes(u64),
    /// Bytes per second.
    Rate(u64),
    /// A time span, in whole microseconds.
    Duration(Duration),
    /// A boolean.
    Flag(bool),
    /// A list of values.
    List(Box<[Value]>),
}

impl Value {
    /// Returns the size by which values of one kind are compared: the number, percent, bytes, bytes per
    /// second, or seconds. None for texts, booleans and lists.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "sizes stay below 2^53")]
    pub fn size(&self) -> Option<f64> {
        match self {
            Self::Number(number) | Self::Percent(number) => Some(*number),
            Self::Bytes(bytes) | Self::Rate(bytes) => Some(*bytes as f64),
            Self::Duration(time) => Some(time.as_secs_f64()),
            Self::Text(_) | Self::Flag(_) | Self::List(_) => None,
        }
    }

    /// Returns the text of a text or word.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// Converts to JSON: numbers and booleans as such, values with a unit as text.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Text(text) => (&**text).into(),
            Self::Number(number) => json_number(*number),
            Self::Flag(flag) => (*flag).into(),
            Self::List(items) => items.iter().map(Self::to_json).collect::<Vec<_>>().into(),
            _ => self.to_string().into(),
        }
    }
}

/// Converts a number to JSON; whole numbers are written without a decimal point.
pub(super) fn json_number(number: f64) -> serde_json::Value {
    #[expect(clippy::cast_possible_truncation, reason = "numbers stay below 2^53")]
    let whole = number as i64;
    if number.fract() == 0.0 { whole.into() } else { number.into() }
}

/// Writes the value as in a policy file, texts without quotes.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => write!(f, "{number}"),
            Self::Percent(number) => write!(f, "{number}%"),
            Self::Bytes(bytes) => write_with_unit(f, *bytes, BYTE_UNITS),
            Self::Rate(bytes) => write_with_unit(f, *bytes, BYTE_UNITS).and_then(|()| f.write_str("/s")),
            Self::Duration(time) => {
                write_with_unit(f, u64::try_from(time.as_micros()).unwrap_or(u64::MAX), TIME_UNITS)
            }
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::List(items) => {
                f.write_str("[")?;
                for (index, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if index == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
        }
    }
}

/// Units of bytes, in the order in which printing tries them: binary before decimal, large before small.
const BYTE_UNITS: &[(&str, u64)] = &[
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

/// Units of time, in microseconds.
const TIME_UNITS: &[(&str, u64)] = &[
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

fn write_with_unit(f: &mut fmt::Formatter<'_>, amount: u64, units: &[(&str, u64)]) -> fmt::Result {
    // Zero fits every unit, so it is written in the base unit.
    let base_unit = if units == BYTE_UNITS { "B" } else { "s" };
    let unit = units.iter().find(|(_, size)| amount != 0 && amount.is_multiple_of(*size));
    let (name, size) = unit.copied().unwrap_or((base_unit, 1));
    write!(f, "{}{name}", amount / size)
}

/// Parses a number in the syntax of JSON. None for infinity and for magnitudes above [`NUMBER_MAX`], where a
/// double is no longer exact to the last whole digit.
pub(super) fn parse_decimal(text: &str) -> Option<f64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let (digits, exponent) = digits.split_once(['e', 'E']).unwrap_or((digits, "0"));
    let (whole, part) = digits.split_once('.').unwrap_or((digits, "0"));
    let all_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !all_digits(whole) || !all_digits(part) || !all_digits(exponent.trim_start_matches(['+', '-'])) {
        return None;
    }
    let number: f64 = text.parse().ok()?;
    // Normalises -0, which would be printed differently than it was parsed.
    (number.abs() <= NUMBER_MAX).then_some(if number == 0.0 { 0.0 } else { number })
}

/// Parses `1.5GB` to a whole number of the smallest unit.
fn parse_with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let split = text.find(|c: char| c != '.' && !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(split);
    let unit = unit.trim_start();
    // Byte units are matched ignoring case (kB, mb). Time units are not, because m and M would be ambiguous.
    let same = |name: &str| name == unit || (units == BYTE_UNITS && name.eq_ignore_ascii_case(unit));
    let size = units.iter().find(|(name, _)| same(name))?.1;
    #[expect(clippy::cast_precision_loss, reason = "units are far below 2^53")]
    let amount = (parse_decimal(number)? * size as f64).round();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be in range")]
    (0.0..=NUMBER_MAX).contains(&amount).then_some(amount as u64)
}

#[cfg(test)]
mod tests {
    use super::{Value, ValueKind};
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn values_with_units_are_parsed() {
        for (kind, text, value) in [
            (ValueKind::Bytes, "64MiB", Value::Bytes(64 << 20)),
            (ValueKind::Bytes, "1.5GB", Value::Bytes(1_500_000_000)),
            (ValueKind::Bytes, "0B", Value::Bytes(0)),
            (ValueKind::Bytes, "10 kb", Value::Bytes(10_000)),
            (ValueKind::Rate, "100MB/s", Value::Rate(100_000_000)),
            (ValueKind::Duration, "15m", Value::Duration(Duration::from_secs(900))),
            (ValueKind::Duration, "1.5ms", Value::Duration(Duration::from_micros(1500))),
            (ValueKind::Duration, "7d", Value::Duration(Duration::from_secs(7 * 86400))),
            (ValueKind::Percent, "85%", Value::Percent(85.0)),
            (ValueKind::Number, "-0.5", Value::Number(-0.5)),
            (ValueKind::Number, "1e-7", Value::Number(1e-7)),
            (ValueKind::Flag, "true", Value::Flag(true)),
        ] {
            assert_eq!(kind.parse(text), Some(value), "{text}");
        }
    }

    #[test]
    fn missing_and_unknown_units_are_refused() {
        for (kind, text) in [
            (ValueKind::Bytes, "64"),
            (ValueKind::Bytes, "-1KiB"),
            (ValueKind::Bytes, "1.KiB"),
            (ValueKind::Bytes, "99999999TiB"),
            (ValueKind::Bytes, "64 furlongs"),
            (ValueKind::Rate, "100MB"),
            (ValueKind::Duration, "15"),
            (ValueKind::Duration, "1e3s"),
            (ValueKind::Percent, "101%"),
            (ValueKind::Percent, "85"),
            (ValueKind::Number, "8MiB"),
            (ValueKind::Number, "NaN"),
            (ValueKind::Number, "inf"),
            (ValueKind::Number, "1e400"),
            (ValueKind::Number, "1e"),
            (ValueKind::Duration, "15M"),
            (ValueKind::Count, "1.5"),
            (ValueKind::Count, "-1"),
            (ValueKind::Flag, "yes"),
        ] {
            assert_eq!(kind.parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn printed_values_parse_to_the_same_value(whole in 0..1_u64 << 53, number in -1e12..1e12_f64) {
            for (kind, value) in [
                (ValueKind::Bytes, Value::Bytes(whole)),
                (ValueKind::Rate, Value::Rate(whole)),
                (ValueKind::Duration, Value::Duration(Duration::from_micros(whole))),
                (ValueKind::Number, Value::Number(number)),
                (ValueKind::Percent, Value::Percent(number.abs() / 1e10)),
                (ValueKind::Count, Value::Number(number.abs().floor())),
            ] {
                prop_assert_eq!(kind.parse(&value.to_string()), Some(value));
            }
        }
    }
}
