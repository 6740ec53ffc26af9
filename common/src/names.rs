//! Bucket names and object keys, validated once.
//!
//! A name is never a path on disk: nothing is escaped or normalised, and `..`, `//` and a trailing `/` are
//! ordinary bytes of a key.

use crate::limits::{BUCKET_NAME_LEN_MAX, BUCKET_NAME_LEN_MIN, KEY_LEN_MAX};
use std::fmt;
use std::sync::Arc;

/// Reason that a name was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The length is not 3 to 63 bytes.
    #[error("a bucket name must have {BUCKET_NAME_LEN_MIN} to {BUCKET_NAME_LEN_MAX} characters")]
    BucketLength,
    /// The name has a byte other than a-z, 0-9, `-` and `.`, or its first or last byte is not a-z or 0-9.
    #[error(
        "a bucket name may contain only a-z, 0-9, '-' and '.', and must begin and end with a letter or digit"
    )]
    BucketCharacter,
    /// The name has a dot next to another dot or to a dash.
    #[error("a bucket name must not contain a dot next to another dot or to a '-'")]
    BucketDots,
    /// The name consists of four decimal numbers with dots between.
    #[error("a bucket name must not be an IPv4 address")]
    BucketAddress,
    /// The name has a prefix or suffix that S3 reserves.
    #[error("a bucket name must not begin with 'xn--' or end with '-s3alias' or '--ol-s3'")]
    BucketReserved,
    /// The key is empty.
    #[error("an object key must not be empty")]
    KeyEmpty,
    /// The key has more than 1,024 bytes.
    #[error("an object key may have at most {KEY_LEN_MAX} bytes")]
    KeyTooLong,
    /// The key is not UTF-8.
    #[error("an object key must be UTF-8")]
    KeyNotUtf8,
}

/// A bucket name that follows S3's rules for general purpose buckets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BucketName(Arc<str>);

impl BucketName {
    /// Validates `name`.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn new(name: &str) -> Result<Self, NameError> {
        if !(BUCKET_NAME_LEN_MIN..=BUCKET_NAME_LEN_MAX).contains(&name.len()) {
            return Err(NameError::BucketLength);
        }
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let bytes = name.as_bytes();
        let ends_plain = plain(bytes[0]) && plain(bytes[bytes.len() - 1]);
        if !ends_plain || !bytes.iter().all(|&b| plain(b) || b == b'-' || b == b'.') {
            return Err(NameError::BucketCharacter);
        }
        if ["..", ".-", "-."].iter().any(|pair| name.contains(pair)) {
            return Err(NameError::BucketDots);
        }
        if name.parse::<std::net::Ipv4Addr>().is_ok() {
            return Err(NameError::BucketAddress);
        }
        if name.starts_with("xn--") || name.ends_with("-s3alias") || name.ends_with("--ol-s3") {
            return Err(NameError::BucketReserved);
        }
        Ok(Self(name.into()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BucketName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An object key: 1 to 1,024 bytes of arbitrary UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(Arc<str>);

impl ObjectKey {
    /// Validates `key`.
    ///
    /// # Errors
    /// If it is empty or too long.
    pub fn new(key: &str) -> Result<Self, NameError> {
        match key.len() {
            0 => Err(NameError::KeyEmpty),
            1..=KEY_LEN_MAX => Ok(Self(key.into())),
            _ => Err(NameError::KeyTooLong),
        }
    }

    /// Validates bytes that came from outside.
    ///
    /// # Errors
    /// As [`ObjectKey::new`], and if they are not UTF-8.
    pub fn from_bytes(key: &[u8]) -> Result<Self, NameError> {
        Self::new(std::str::from_utf8(key).map_err(|_| NameError::KeyNotUtf8)?)
    }

    /// The key.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key's bytes, whose order is the order of listings.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::{BucketName, NameError, ObjectKey};

    #[test]
    fn bucket_names_by_s3s_rules() {
        for good in ["abc", "my-bucket.data1", "1.2.3", "a--b", &"x".repeat(63)] {
            assert!(BucketName::new(good).is_ok(), "{good}");
        }
        for (bad, why) in [
            ("ab", NameError::BucketLength),
            (&*"x".repeat(64), NameError::BucketLength),
            ("Abc", NameError::BucketCharacter),
            ("a_b", NameError::BucketCharacter),
            ("-ab", NameError::BucketCharacter),
            ("ab.", NameError::BucketCharacter),
            ("a..b", NameError::BucketDots),
            ("a.-b", NameError::BucketDots),
            ("a-.b", NameError::BucketDots),
            ("10.0.0.1", NameError::BucketAddress),
            ("xn--abc", NameError::BucketReserved),
            ("abc-s3alias", NameError::BucketReserved),
        ] {
            assert_eq!(BucketName::new(bad), Err(why), "{bad}");
        }
    }

    #[test]
    fn keys_keep_every_byte() {
        for key in ["..", "a//b", "dir/", "a+b %25", "\u{1F600}", "nul\0inside"] {
            assert_eq!(ObjectKey::new(key).map(|k| k.as_str().to_owned()), Ok(key.to_owned()));
        }
        assert_eq!(ObjectKey::new(""), Err(NameError::KeyEmpty));
        assert_eq!(ObjectKey::new(&"k".repeat(1025)), Err(NameError::KeyTooLong));
        assert_eq!(ObjectKey::from_bytes(b"\xff"), Err(NameError::KeyNotUtf8));
    }
}
