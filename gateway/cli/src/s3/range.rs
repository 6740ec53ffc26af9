//! Byte ranges as arguments: `0-99`, `100-`, `-100`, as in the HTTP header `Range`. Pure.

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

/// Parses the header `Content-Range` of a response: the offset of the first byte, and of the end.
pub(super) fn parse_content_range(text: &str) -> Option<std::ops::Range<u64>> {
    let (range, _size) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    Some(first..last.checked_add(1)?).filter(|range| !range.is_empty())
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
        assert_eq!(parse_content_range("bytes 5-7/10"), Some(5..8));
        for text in ["", "bytes */10", "bytes 7-5/10", "bytes 0-18446744073709551615/1", "items 0-1/2"] {
            assert_eq!(parse_content_range(text), None, "{text}");
        }
    }
}
