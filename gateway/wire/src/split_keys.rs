//! Keys at which a new bucket is split: `x-mlgw-split-keys` of CreateBucket. Pure.

use super::error::S3Error;
use super::tags::is_percent_encoded;
use http::{HeaderMap, HeaderValue};
use mlgw_common::SplitKeys;
use percent_encoding::percent_decode;

const HEADER: &str = "x-mlgw-split-keys";

/// Returns the split keys of a CreateBucket; none without the header. They are URL-encoded, separated by
/// commas, and ascend by their bytes. A raw `+` is a plus. Spaces beside a comma belong to no key. Several
/// lines are one list, as in HTTP.
///
/// # Errors
/// `InvalidArgument` that names the first defect.
pub fn parse_split_keys(headers: &HeaderMap) -> Result<SplitKeys, S3Error> {
    let lines: Vec<&[u8]> = headers.get_all(HEADER).iter().map(HeaderValue::as_bytes).collect();
    if lines.is_empty() {
        return Ok(SplitKeys::default());
    }
    let list = lines.join(&b',');
    let refused = |why: String| S3Error::invalid_argument(why, HEADER, String::from_utf8_lossy(&list));
    let encoded: Vec<&[u8]> = list.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).collect();
    if let Some(at) = encoded.iter().position(|key| !is_percent_encoded(key)) {
        return Err(refused(format!("The split keys are invalid: split key {} is not URL-encoded.", at + 1)));
    }
    let keys: Vec<Vec<u8>> = encoded.into_iter().map(|key| percent_decode(key).collect()).collect();
    SplitKeys::new(&keys).map_err(|why| refused(format!("The split keys are invalid: {why}.")))
}

#[cfg(test)]
mod tests {
    use super::parse_split_keys;
    use crate::error::Code;
    use http::{HeaderMap, HeaderValue};
    use mlgw_common::{ObjectKey, SplitKeys};

    fn headers(lines: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append("x-mlgw-split-keys", HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        headers
    }

    #[test]
    fn split_keys_are_a_list_of_encoded_keys() {
        for (lines, keys) in [
            (&["g"][..], &["g"][..]),
            (&["a/,b%2Cc, d+e ,%C3%BC"], &["a/", "b,c", "d+e", "\u{fc}"]),
            (&["%20x,y", "z"], &[" x", "y", "z"]),
            (&["a,\u{fc}"], &["a", "\u{fc}"]),
        ] {
            let parsed = parse_split_keys(&headers(lines)).unwrap();
            assert!(parsed.as_slice().iter().map(ObjectKey::as_str).eq(keys.iter().copied()), "{lines:?}");
        }
        assert_eq!(parse_split_keys(&HeaderMap::new()), Ok(SplitKeys::default()));
    }

    #[test]
    fn the_error_names_the_defect_of_split_keys() {
        let many: Vec<String> = (10..74).map(|i| i.to_string()).collect();
        for (line, why) in [
            ("", "split key 1: an object key must not be empty"),
            ("a,", "split key 2: an object key must not be empty"),
            ("a,,b", "split key 2: an object key must not be empty"),
            ("b,a", "split key 2 is not after the one before it in the order of bytes"),
            ("a,b,b", "split key 3 is not after the one before it in the order of bytes"),
            ("a,%zz", "split key 2 is not URL-encoded"),
            ("%ff", "split key 1: an object key must be UTF-8"),
            (&*"k".repeat(1025), "split key 1: an object key may have at most 1024 bytes"),
            (&*many.join(","), "a bucket may have at most 63 split keys, not 64"),
        ] {
            let error = parse_split_keys(&headers(&[line])).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument);
            assert_eq!(error.get("ArgumentName"), Some("x-mlgw-split-keys"));
            assert_eq!(error.text(), format!("The split keys are invalid: {why}."), "{line}");
        }
    }
}
