//! Source of a copy: `x-amz-copy-source` and `x-amz-copy-source-range`.

use super::error::S3Error;
use super::target::{check_version, decode_key};
use mlgw_common::ObjectKey;
use percent_encoding::percent_decode_str;
use std::borrow::Cow;
use std::ops::Range;

/// Object that `x-amz-copy-source` names.
pub struct CopySource {
    /// The bucket.
    pub bucket: String,
    /// The key.
    pub key: ObjectKey,
}

impl CopySource {
    /// Parses `bucket/key`, with or without a leading `/`, encoded like a query (a raw `+` is a space, as at
    /// AWS), and optionally with a version.
    ///
    /// # Errors
    /// `InvalidArgument`, or the errors of keys and versions.
    pub fn parse(header: &str) -> Result<Self, S3Error> {
        let invalid = |why: &'static str| S3Error::invalid_argument(why, "x-amz-copy-source", header);
        let (path, query) = header.split_once('?').unwrap_or((header, ""));
        let version = query.split('&').find_map(|pair| pair.strip_prefix("versionId="));
        check_version(version)?;
        let spaced = path.replace('+', " ");
        let path = percent_decode_slash(&spaced);
        let path = path.strip_prefix('/').unwrap_or(&path);
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        let bucket =
            percent_decode_str(bucket).decode_utf8().map_err(|_| invalid("Invalid copy source encoding."))?;
        let key = decode_key(key)?.ok_or_else(|| invalid("Invalid copy source object key"))?;
        Ok(Self { bucket: bucket.into_owned(), key })
    }
}

/// Decodes the slash between bucket and key, which some clients encode too.
fn percent_decode_slash(path: &str) -> Cow<'_, str> {
    let encoded = !path.trim_start_matches('/').contains('/');
    if encoded { path.replacen("%2F", "/", 2).replacen("%2f", "/", 2).into() } else { path.into() }
}

/// Parses `bytes=first-last`. Both numbers are required and must lie within the source; no other form is
/// allowed.
///
/// # Errors
/// `InvalidArgument`, `InvalidRange`.
pub fn source_range(header: &str, size: u64) -> Result<Range<u64>, S3Error> {
    let invalid = || {
        let why = "The x-amz-copy-source-range value must be of the form bytes=first-last where first and \
                   last are the zero-based offsets of the first and last bytes to copy";
        S3Error::invalid_argument(why, "x-amz-copy-source-range", header)
    };
    let (first, last) = header.strip_prefix("bytes=").and_then(|r| r.split_once('-')).ok_or_else(invalid)?;
    let first: u64 = first.parse().map_err(|_| invalid())?;
    let last: u64 = last.parse().map_err(|_| invalid())?;
    if first > last {
        return Err(invalid());
    }
    if last >= size {
        return Err(S3Error::invalid_range(header, size));
    }
    Ok(first..last + 1)
}

#[cfg(test)]
mod tests {
    use super::{CopySource, source_range};

    #[test]
    fn a_source_comes_encoded_and_with_or_without_a_slash() {
        for header in [
            "b/k%2Bx/%C3%BC",
            "/b/k%2Bx/%C3%BC",
            "b%2Fk%2Bx%2F%C3%BC",
            "%2Fb%2fk%2Bx%2F%C3%BC",
            "b/k%2Bx/ü",
            "b/k%2bx/ü?versionId=null",
        ] {
            let source = CopySource::parse(header).unwrap();
            assert_eq!((source.bucket.as_str(), source.key.as_str()), ("b", "k+x/ü"), "{header}");
        }
        for header in ["", "b", "b/", "b/k?versionId=7"] {
            assert!(CopySource::parse(header).is_err(), "{header}");
        }
    }

    #[test]
    fn a_raw_plus_is_a_space_as_in_a_query() {
        for header in ["b/a+b%2Bc", "/b/a%20b%2Bc", "b%2Fa+b%2bc", "b/a b%2Bc", "b/a+b%2Bc?versionId=null"] {
            let source = CopySource::parse(header).unwrap();
            assert_eq!((source.bucket.as_str(), source.key.as_str()), ("b", "a b+c"), "{header}");
        }
    }

    #[test]
    fn a_source_range_is_strict() {
        assert_eq!(source_range("bytes=1-3", 10).unwrap(), 1..4);
        for header in ["bytes=1-10", "bytes=3-1", "bytes=1-", "bytes=-3", "1-3", "bytes=a-b"] {
            assert!(source_range(header, 10).is_err(), "{header}");
        }
    }
}
