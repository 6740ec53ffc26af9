//! Byte ranges as arguments: `0-99`, `100-`, `-100`, as in the HTTP header `Range`. Pure.

use std::ops::Range;

/// A byte range of an object of unknown size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ByteRange {
    /// Offset of the first byte. `None` if `last` counts bytes from the end.
    first: Option<u64>,
    /// Offset of the last byte, or the number of bytes at the end. `None` for all bytes from `first` on.
    last: Option<u64>,
}

impl ByteRange {
    /// Returns the range of the bytes from `first` to before `end`.
    pub(super) const fn between(first: u64, end: u64) -> Self {
        assert!(first < end, "a range has at least one byte");
        Self { first: Some(first), last: Some(end - 1) }
    }

    /// Returns the value of the header `Range`.
    pub(super) fn header(self) -> String {
        let text = |bound: Option<u64>| bound.map(|bound| bound.to_string()).unwrap_or_default();
        format!("bytes={}-{}", text(self.first), text(self.last))
    }

    /// True if a response holds exactly these bytes, as far as the object has them. Without the size of the
    /// object only a range of known offsets can be compared.
    pub(super) fn is_held_by(self, content: &ContentRange) -> bool {
        let expected = match (self.first, self.last, content.size) {
            (Some(first), Some(last), size) => first..last.saturating_add(1).min(size.unwrap_or(u64::MAX)),
            (Some(first), None, Some(size)) => first..size,
            (None, Some(count), Some(size)) => size.saturating_sub(count)..size,
            (_, None, None) | (None, ..) => return false,
        };
        expected == content.bytes
    }
}

/// Parses a range.
pub(super) fn parse_range(text: &str) -> Result<ByteRange, String> {
    let expected = || "expected A-B, A- or -N, such as 0-99 for the first 100 bytes".to_owned();
    let bound = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true if text.is_empty() => Ok(None),
        true => text.parse().map(Some).map_err(|_| expected()),
        false => Err(expected()),
    };
    let (first, last) = text.split_once('-').ok_or_else(expected)?;
    match (bound(first)?, bound(last)?) {
        (None, None | Some(0)) => Err(expected()),
        (Some(first), Some(last)) if first > last => Err("the range ends before it begins".to_owned()),
        (first, last) => Ok(ByteRange { first, last }),
    }
}

/// The bytes that a response holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ContentRange {
    /// Offsets of the first byte and of the end; never empty.
    pub(super) bytes: Range<u64>,
    /// Size of the object, if the response has it.
    size: Option<u64>,
}

impl ContentRange {
    /// True if the response holds the whole object.
    pub(super) fn is_whole(&self) -> bool {
        Some(&self.bytes) == self.size.map(|size| 0..size).as_ref()
    }
}

/// Parses the header `Content-Range` of a response.
pub(super) fn parse_content_range(text: &str) -> Option<ContentRange> {
    let (range, size) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    let bytes = first..last.checked_add(1)?;
    let size = if size == "*" { None } else { Some(size.parse().ok()?) };
    let is_valid = !bytes.is_empty() && size.is_none_or(|size| bytes.end <= size);
    is_valid.then_some(ContentRange { bytes, size })
}

#[cfg(test)]
mod tests {
    use super::{ByteRange, parse_content_range, parse_range};

    #[test]
    fn ranges_are_those_of_http() {
        for text in ["0-99", "100-", "-100", "5-5"] {
            assert_eq!(parse_range(text).unwrap().header(), format!("bytes={text}"));
        }
        for text in ["", "-", "7", "-0", "9-8", "a-b", "1-2,4-5", "+1-2", "18446744073709551616-"] {
            assert!(parse_range(text).is_err(), "{text}");
        }
        assert_eq!(ByteRange::between(5, 8).header(), "bytes=5-7");
    }

    #[test]
    fn the_range_of_a_response_is_absolute() {
        let parsed = parse_content_range("bytes 5-7/10").unwrap();
        assert!(parsed.bytes == (5..8) && !parsed.is_whole());
        assert!(parse_content_range("bytes 0-9/10").unwrap().is_whole());
        assert!(!parse_content_range("bytes 0-9/*").unwrap().is_whole());
        let huge = "bytes 0-18446744073709551615/1";
        for text in ["", "bytes */10", "bytes 7-5/10", huge, "items 0-1/2", "bytes 0-9/5", "bytes 0-9/x"] {
            assert_eq!(parse_content_range(text), None, "{text}");
        }
    }

    #[test]
    fn a_response_must_hold_the_requested_bytes() {
        for (range, content, is_held) in [
            ("0-9", "bytes 0-9/100", true),
            ("0-9", "bytes 0-9/*", true),
            ("0-9", "bytes 0-4/5", true),
            ("0-9", "bytes 0-4/100", false),
            ("0-9", "bytes 0-99/100", false),
            ("0-9", "bytes 5-9/100", false),
            ("90-", "bytes 90-99/100", true),
            ("90-", "bytes 90-95/100", false),
            ("90-", "bytes 90-99/*", false),
            ("-5", "bytes 95-99/100", true),
            ("-200", "bytes 0-99/100", true),
            ("-5", "bytes 0-99/100", false),
            ("-5", "bytes 95-99/*", false),
        ] {
            let parsed = parse_content_range(content).unwrap();
            assert_eq!(parse_range(range).unwrap().is_held_by(&parsed), is_held, "{range} {content}");
        }
    }
}
