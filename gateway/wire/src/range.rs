//! The `Range` header of reads.
//!
//! A single range is honored. Several ranges, or a header that is not of the form `bytes=…`, are ignored and
//! the whole object is sent, as AWS does.

use super::error::S3Error;
use std::ops::Range;

/// Returns the bytes that `header` selects of an object of `size` bytes, or `None` if the header is to be
/// ignored.
///
/// # Errors
/// `InvalidRange` if no byte of the object is in the range; an empty object has no bytes.
pub fn parse(header: &str, size: u64) -> Result<Option<Range<u64>>, S3Error> {
    let Some(spec) = header.trim().strip_prefix("bytes=") else { return Ok(None) };
    let Some((first, last)) = spec.split_once('-') else { return Ok(None) };
    let (first, last) = (first.trim(), last.trim());
    let range = match (number(first), number(last)) {
        (None, Some(suffix)) if first.is_empty() => size.saturating_sub(suffix)..size,
        (Some(first), None) if last.is_empty() => first..size,
        (Some(first), Some(last)) if first <= last => first..last.saturating_add(1).min(size),
        _ => return Ok(None),
    };
    if range.start >= range.end {
        return Err(S3Error::invalid_range(header.trim(), size));
    }
    assert!(range.end <= size, "a range lies within its object");
    Ok(Some(range))
}

fn number(digits: &str) -> Option<u64> {
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    // A number beyond 64 bits is also beyond the end of every object.
    plain.then(|| digits.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::parse;
    use proptest::prelude::*;

    fn of(header: &str, size: u64) -> Option<Option<std::ops::Range<u64>>> {
        parse(header, size).ok()
    }

    #[test]
    fn the_forms_of_a_range() {
        assert_eq!(of("bytes=0-3", 10), Some(Some(0..4)));
        assert_eq!(of("bytes=0-99", 10), Some(Some(0..10)));
        assert_eq!(of("bytes=4-", 10), Some(Some(4..10)));
        assert_eq!(of("bytes=-4", 10), Some(Some(6..10)));
        assert_eq!(of("bytes=-40", 10), Some(Some(0..10)));
        assert_eq!(of("bytes=9-99999999999999999999999", 10), Some(Some(9..10)));
    }

    #[test]
    fn an_unsatisfiable_range_is_an_error() {
        for (header, size) in [("bytes=10-", 10), ("bytes=-0", 10), ("bytes=0-0", 0), ("bytes=-1", 0)] {
            assert_eq!(of(header, size), None, "{header} of {size}");
        }
    }

    #[test]
    fn anything_but_a_single_range_is_ignored() {
        for header in
            ["items=0-1", "bytes=3-1", "bytes=", "bytes=-", "bytes=0-1,3-4", "bytes=a-b", "bytes=+1-2"]
        {
            assert_eq!(of(header, 10), Some(None), "{header}");
        }
    }

    proptest! {
        #[test]
        fn a_range_lies_within_the_object(header in "bytes=[0-9,-]{0,24}", size in 0u64..1000) {
            if let Ok(Some(range)) = parse(&header, size) {
                prop_assert!(range.start < range.end && range.end <= size);
            }
        }
    }
}
