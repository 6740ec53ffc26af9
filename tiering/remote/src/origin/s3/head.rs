//! Object metadata in the headers of a response.

use crate::origin::{Etag, OriginError};
use crate::upstream::EtagTrust;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::{HeaderMap, StatusCode};
use mlgw_common::header_text::{decode_text, metadata_from_wire};
use mlgw_common::limits::OBJECT_BYTES_MAX;
use mlgw_formats::schema::{Checksum, ChecksumAlgorithm, ChecksumKind, ObjectVersion, Pair};
use std::ops::Range;
use std::time::{Duration, UNIX_EPOCH};

/// System headers that are stored with an object and repeated by a response.
const SYSTEM_HEADERS: [&str; 7] = [
    "content-type",
    "content-encoding",
    "content-language",
    "content-disposition",
    "cache-control",
    "expires",
    "x-amz-website-redirect-location",
];
const METADATA: &str = "x-amz-meta-";
const CHECKSUMS: [(&str, ChecksumAlgorithm); 5] = [
    ("x-amz-checksum-crc32", ChecksumAlgorithm::Crc32),
    ("x-amz-checksum-crc32c", ChecksumAlgorithm::Crc32C),
    ("x-amz-checksum-crc64nvme", ChecksumAlgorithm::Crc64Nvme),
    ("x-amz-checksum-sha1", ChecksumAlgorithm::Sha1),
    ("x-amz-checksum-sha256", ChecksumAlgorithm::Sha256),
];

/// Returns the object that a response describes, and the byte range of it that the response carries.
pub(super) fn object_and_range(
    status: StatusCode,
    headers: &HeaderMap,
    trust: EtagTrust,
) -> Result<(ObjectVersion, Range<u64>), OriginError> {
    let invalid = |what: &str| OriginError::InvalidResponse(what.to_owned());
    let etag = Etag::from_headers(headers, trust);
    let etag =
        etag.ok_or_else(|| invalid("the response has no ETag, so versions cannot be distinguished"))?;
    let length = text(headers, "content-length").and_then(|length| length.parse().ok());
    let (range, size) = match status {
        StatusCode::PARTIAL_CONTENT => {
            let range = text(headers, "content-range").and_then(content_range);
            range.ok_or_else(|| invalid("a partial response without a Content-Range"))?
        }
        _ => {
            let length: u64 = length.ok_or_else(|| invalid("the response has no valid Content-Length"))?;
            (0..length, length)
        }
    };
    if length.is_some_and(|length| length != range.end - range.start) {
        return Err(invalid("Content-Length and Content-Range of the response differ"));
    }
    check_size(size)?;
    let mut object = ObjectVersion {
        size,
        modified_ms: modified(headers).unwrap_or(0),
        part_count: part_count(&etag.text),
        etag: etag.text,
        etag_kind: etag.kind.into(),
        tag_count: tag_count(headers),
        headers: system_headers(headers),
        metadata: metadata(headers),
        storage_class: text(headers, "x-amz-storage-class").unwrap_or_default().to_owned(),
        ..ObjectVersion::default()
    };
    if status != StatusCode::PARTIAL_CONTENT {
        object.checksums = checksums(headers);
    }
    Ok((object, range))
}

/// Checks that an object may have this size.
pub(super) fn check_size(size: u64) -> Result<(), OriginError> {
    match size <= OBJECT_BYTES_MAX {
        true => Ok(()),
        false => {
            Err(OriginError::InvalidResponse(format!("the object has {size} bytes; the limit is 50 TiB")))
        }
    }
}

/// Returns the number of tags that a response states; 1 if the header is not a number, because there may be
/// tags.
fn tag_count(headers: &HeaderMap) -> u32 {
    text(headers, "x-amz-tagging-count").map_or(0, |count| count.trim().parse().unwrap_or(1))
}

/// Returns an ETag without its quotes.
pub(super) fn unquoted(etag: &str) -> String {
    crate::origin::etag::unquoted(etag).to_owned()
}

/// Returns the number of parts of an object, as its ETag states it; 0 if it was not uploaded in parts.
pub(super) fn part_count(etag: &str) -> u32 {
    etag.rsplit_once('-').and_then(|(_, parts)| parts.parse().ok()).unwrap_or(0)
}

/// Returns the size of an object from the response to a range that lies beyond its end.
pub(super) fn size_beyond(headers: &HeaderMap) -> Option<u64> {
    text(headers, "content-range")?.strip_prefix("bytes */")?.parse().ok()
}

/// Returns the headers of a write's response that S3 clients understand: ETag, checksums, version and the
/// like, but nothing about the transfer of the response.
pub(super) fn client_headers(headers: &HeaderMap) -> HeaderMap {
    let is_known = |name: &str| {
        matches!(
            name,
            "etag" | "last-modified" | "x-amz-version-id" | "x-amz-delete-marker" | "x-amz-expiration"
        ) || name.starts_with("x-amz-checksum-")
            || name == "x-amz-copy-source-version-id"
    };
    let known = headers.iter().filter(|(name, _)| is_known(name.as_str()));
    known.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Returns the time of the last write in milliseconds since 1970.
pub(super) fn modified(headers: &HeaderMap) -> Option<i64> {
    text(headers, "last-modified").and_then(date_ms)
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// Parses the range and the object size in `bytes 0-9/100`.
fn content_range(text: &str) -> Option<(Range<u64>, u64)> {
    let (range, size) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last, size): (u64, u64, u64) = (first.parse().ok()?, last.parse().ok()?, size.parse().ok()?);
    (first <= last && last < size).then_some((first..last + 1, size))
}

fn date_ms(text: &str) -> Option<i64> {
    let since = httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since.as_millis()).ok()
}

fn system_headers(headers: &HeaderMap) -> Vec<Pair> {
    let value = |name: &&str| {
        let value = headers.get(*name)?;
        Some(Pair::new(*name, decode_text(value.as_bytes())))
    };
    // The transfer encoding of the response is not a property of the object.
    SYSTEM_HEADERS.iter().filter_map(value).filter(|pair| !pair.value.is_empty()).collect()
}

fn metadata(headers: &HeaderMap) -> Vec<Pair> {
    let mut found: Vec<Pair> = headers
        .iter()
        .filter_map(|(name, value)| {
            let short = name.as_str().strip_prefix(METADATA)?;
            Some(Pair::new(short, metadata_from_wire(value.as_bytes())))
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

fn checksums(headers: &HeaderMap) -> Vec<Checksum> {
    let is_composite = text(headers, "x-amz-checksum-type") == Some("COMPOSITE");
    let found = CHECKSUMS.iter().filter_map(|(name, algorithm)| {
        let value = text(headers, name)?;
        let (value, parts) = value.split_once('-').map_or((value, false), |(value, _)| (value, true));
        let kind = if parts || is_composite { ChecksumKind::Composite } else { ChecksumKind::FullObject };
        let value = BASE64.decode(value).ok()?;
        Some(Checksum { algorithm: *algorithm as i32, kind: kind as i32, value })
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::{content_range, size_beyond};
    use crate::origin::OriginError;
    use crate::upstream::EtagTrust;
    use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
    use mlgw_formats::schema::{ChecksumKind, ObjectVersion, Pair};
    use std::ops::Range;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let line = |(name, value): &(&str, &str)| {
            (name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap())
        };
        lines.iter().map(line).collect()
    }

    fn described(
        status: StatusCode,
        headers: &HeaderMap,
    ) -> Result<(ObjectVersion, Range<u64>), OriginError> {
        super::object_and_range(status, headers, EtagTrust::Auto)
    }

    #[test]
    fn an_object_of_more_than_fifty_tib_is_invalid() {
        let limit = 50_u64 << 40;
        for (size, is_good) in [(limit, true), (limit + 1, false), (1 << 63, false), (u64::MAX, false)] {
            let length = size.to_string();
            let whole = headers(&[("etag", "e"), ("content-length", &length)]);
            assert_eq!(described(StatusCode::OK, &whole).is_ok(), is_good, "{size}");
            let range = format!("bytes 0-0/{size}");
            let part = headers(&[("etag", "e"), ("content-length", "1"), ("content-range", &range)]);
            assert_eq!(described(StatusCode::PARTIAL_CONTENT, &part).is_ok(), is_good, "{size}");
        }
    }

    #[test]
    fn tags_are_counted() {
        for (text, count) in [("3", 3), (" 2 ", 2), ("0", 0), ("", 1), ("many", 1)] {
            let lines = [("etag", "e"), ("content-length", "1"), ("x-amz-tagging-count", text)];
            assert_eq!(described(StatusCode::OK, &headers(&lines)).unwrap().0.tag_count, count, "{text}");
        }
        let none = headers(&[("etag", "e"), ("content-length", "1")]);
        assert_eq!(described(StatusCode::OK, &none).unwrap().0.tag_count, 0);
    }

    #[test]
    fn an_object_has_the_metadata_of_its_headers() {
        let headers = headers(&[
            ("etag", "\"abc-3\""),
            ("content-length", "10"),
            ("last-modified", "Wed, 12 Oct 2022 17:50:00 GMT"),
            ("content-type", "image/png"),
            ("x-amz-meta-b", "2"),
            ("x-amz-meta-a", "1"),
            ("x-amz-checksum-crc32", "AAAAAA==-3"),
            ("x-amz-storage-class", "GLACIER_IR"),
        ]);
        let (object, range) = described(StatusCode::OK, &headers).unwrap();
        assert_eq!((object.size, range, object.part_count), (10, 0..10, 3));
        assert_eq!((object.etag.as_str(), object.modified_ms), ("abc-3", 1_665_597_000_000));
        assert_eq!(object.headers, [Pair::new("content-type", "image/png")]);
        assert_eq!(object.metadata, [Pair::new("a", "1"), Pair::new("b", "2")]);
        assert_eq!(
            (object.checksums[0].kind(), object.checksums[0].value.len()),
            (ChecksumKind::Composite, 4)
        );
        assert_eq!(object.storage_class, "GLACIER_IR");
    }

    #[test]
    fn a_part_states_its_range_and_the_size_of_the_object() {
        let part = |range, length| {
            let lines = [("etag", "\"e\""), ("content-range", range), ("content-length", length)];
            described(StatusCode::PARTIAL_CONTENT, &headers(&lines)).ok().map(|(o, range)| (o.size, range))
        };
        assert_eq!(part("bytes 5-9/100", "5"), Some((100, 5..10)));
        for (range, length) in
            [("bytes 5-9/100", "6"), ("bytes 5-9/*", "5"), ("bytes 9-5/100", "5"), ("x", "5")]
        {
            assert_eq!(part(range, length), None, "{range}");
        }
        assert_eq!(content_range("bytes 0-100/100"), None);
        assert_eq!(size_beyond(&headers(&[("content-range", "bytes */7")])), Some(7));
    }

    #[test]
    fn a_response_without_etag_or_length_is_invalid() {
        for lines in [&[("etag", "e")][..], &[("content-length", "5")]] {
            assert!(described(StatusCode::OK, &headers(lines)).is_err());
        }
    }
}
