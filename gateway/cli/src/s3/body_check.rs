//! Check of a received body against the checksum or the ETag of its object. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::HeaderMap;
use md5::{Digest as _, Md5};
use mlgw_formats::checksum::{Algorithm, ChecksumHasher};

/// Running check of a whole body.
pub(super) enum BodyCheck {
    /// Only the length is known.
    None,
    Checksum {
        hasher: Box<ChecksumHasher>,
        /// Expected value in base64.
        expected: String,
    },
    Md5 {
        hasher: Md5,
        /// Expected value in hexadecimal digits.
        expected: String,
    },
}

impl BodyCheck {
    /// Returns the check that the headers of an object allow: by a checksum of the full object if there is
    /// one, else by an ETag that is an MD5.
    ///
    /// S3 promises an MD5 only with the encryption `AES256`. Without it, an ETag of 32 digits may be any name
    /// of a version: mlgw passes on the ETags of origins, and has a checksum of every object of its own.
    pub(super) fn of_headers(headers: &HeaderMap) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let is_composite = text("x-amz-checksum-type") == Some("COMPOSITE");
        let checksum = Algorithm::ALL.iter().find_map(|algorithm| {
            let expected = text(algorithm.header()).filter(|value| !is_composite && !value.contains('-'))?;
            let hasher = Box::new(ChecksumHasher::new(*algorithm));
            Some(Self::Checksum { hasher, expected: expected.to_owned() })
        });
        let promises_md5 = text("x-amz-server-side-encryption") == Some("AES256");
        let md5 = || {
            let etag = text("etag")?.trim_matches('"').to_ascii_lowercase();
            let is_md5 = etag.len() == 32 && etag.bytes().all(|digit| digit.is_ascii_hexdigit());
            (is_md5 && promises_md5).then(|| Self::Md5 { hasher: Md5::new(), expected: etag })
        };
        checksum.or_else(md5).unwrap_or(Self::None)
    }

    /// Adds the next bytes.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::None => {}
            Self::Checksum { hasher, .. } => hasher.update(bytes),
            Self::Md5 { hasher, .. } => hasher.update(bytes),
        }
    }

    /// Compares the whole body.
    ///
    /// # Errors
    /// The name of the value that differs.
    pub(super) fn finish(self) -> Result<(), &'static str> {
        let (is_equal, name) = match self {
            Self::None => (true, ""),
            Self::Checksum { hasher, expected } => {
                let name = hasher.algorithm().name();
                (BASE64.encode(hasher.finish()) == expected, name)
            }
            Self::Md5 { hasher, expected } => {
                (format!("{:032x}", u128::from_be_bytes(hasher.finalize().into())) == expected, "ETag")
            }
        };
        if is_equal { Ok(()) } else { Err(name) }
    }
}

#[cfg(test)]
mod tests {
    use super::BodyCheck;
    use http::{HeaderMap, HeaderName, HeaderValue};

    const MD5: &str = "\"25f9e794323b453885f5181f1b624d0b\"";
    const CRC64: &str = "rosUhgp5mIg=";
    const SSE: (&str, &str) = ("x-amz-server-side-encryption", "AES256");

    fn check(pairs: &[(&'static str, &'static str)], body: &[u8]) -> Result<(), &'static str> {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        let mut check = BodyCheck::of_headers(&HeaderMap::from_iter(pairs.iter().map(pair)));
        body.chunks(4).for_each(|piece| check.update(piece));
        check.finish()
    }

    #[test]
    fn a_body_is_compared_with_the_best_value_known() {
        let (good, bad) = (b"123456789", b"123456780");
        for (pairs, name) in [
            (&[("etag", MD5), SSE][..], "ETag"),
            (&[("x-amz-checksum-crc64nvme", CRC64), ("etag", "\"random-1\"")], "CRC64NVME"),
            (&[("x-amz-checksum-crc32", "y/Q5Jg=="), ("x-amz-checksum-type", "FULL_OBJECT")], "CRC32"),
        ] {
            assert_eq!((check(pairs, good), check(pairs, bad)), (Ok(()), Err(name)));
        }
        for unknown in [
            &[("etag", "\"25f9e794323b453885f5181f1b624d0b-2\""), SSE][..],
            &[("etag", MD5)],
            &[("etag", MD5), ("x-amz-server-side-encryption", "aws:kms")],
            &[("etag", MD5), ("x-amz-server-side-encryption-customer-algorithm", "AES256")],
            &[("x-amz-checksum-crc32", "AAAAAA==-3"), ("x-amz-checksum-type", "COMPOSITE")],
            &[],
        ] {
            assert_eq!(check(unknown, bad), Ok(()), "{unknown:?}");
        }
    }
}
