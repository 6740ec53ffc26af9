//! Paths of buckets and objects as arguments of commands. Pure.
//!
//! A key is used as it is written: it is neither decoded nor normalized.

use std::fmt;

/// Scheme of the paths of buckets and objects.
pub(super) const SCHEME: &str = "s3://";

/// A bucket, and a key or a prefix of keys in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemotePath {
    /// Name of the bucket. Empty if all buckets are meant.
    pub(super) bucket: String,
    /// Key or prefix; may be empty.
    pub(super) key: String,
}

impl RemotePath {
    pub(super) fn new(bucket: impl Into<String>, key: impl Into<String>) -> Self {
        Self { bucket: bucket.into(), key: key.into() }
    }

    /// Returns the path of another key of the same bucket.
    pub(super) fn with_key(&self, key: impl Into<String>) -> Self {
        Self::new(&self.bucket, key)
    }

    /// True if the path ends where the name of an object may follow.
    pub(super) fn is_prefix(&self) -> bool {
        self.key.is_empty() || self.key.ends_with('/')
    }

    /// Returns the prefix of the objects below this path: with a final `/`, unless it is the whole bucket.
    pub(super) fn as_prefix(&self) -> Self {
        let slash = if self.is_prefix() { "" } else { "/" };
        self.with_key(format!("{}{slash}", self.key))
    }
}

impl fmt::Display for RemotePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slash = if self.key.is_empty() { "" } else { "/" };
        write!(f, "{SCHEME}{}{slash}{}", self.bucket, self.key)
    }
}

/// Parses a path that may name all buckets: `s3://`, `s3://BUCKET/PREFIX` or `BUCKET/PREFIX`.
pub(super) fn parse_listed(text: &str) -> Result<RemotePath, String> {
    let path = text.strip_prefix(SCHEME).unwrap_or(text);
    let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
    let is_other_url = !text.starts_with(SCHEME) && text.contains("://");
    if is_other_url || (bucket.is_empty() && text != SCHEME) {
        return Err("expected s3://BUCKET/KEY".to_owned());
    }
    Ok(RemotePath::new(bucket, key))
}

/// Parses a bucket, or a prefix in it.
pub(super) fn parse_prefix(text: &str) -> Result<RemotePath, String> {
    parse_listed(text).and_then(|path| match path.bucket.is_empty() {
        true => Err("expected s3://BUCKET/PREFIX".to_owned()),
        false => Ok(path),
    })
}

/// Parses an object.
pub(super) fn parse_object(text: &str) -> Result<RemotePath, String> {
    parse_listed(text).and_then(|path| match path.key.is_empty() {
        true => Err("expected s3://BUCKET/KEY".to_owned()),
        false => Ok(path),
    })
}

#[cfg(test)]
mod tests {
    use super::{RemotePath, parse_listed, parse_object, parse_prefix};

    #[test]
    fn a_path_has_a_bucket_and_a_key_of_any_form() {
        for (text, bucket, key) in [
            ("s3://b", "b", ""),
            ("s3://b/", "b", ""),
            ("b", "b", ""),
            ("b/k", "b", "k"),
            ("s3://b//k/ ?#%2F/", "b", "/k/ ?#%2F/"),
            ("s3://b/s3://k", "b", "s3://k"),
            ("s3://", "", ""),
        ] {
            assert_eq!(parse_listed(text), Ok(RemotePath::new(bucket, key)), "{text}");
        }
        for text in ["", "/b/k", "s3:///k", "http://b/k", "gs://b"] {
            assert!(parse_listed(text).is_err(), "{text}");
        }
        assert!(parse_prefix("s3://").is_err() && parse_prefix("b").is_ok());
        assert!(parse_object("s3://b/").is_err() && parse_object("b/k").is_ok());
    }

    #[test]
    fn a_prefix_of_objects_ends_with_a_slash() {
        let prefix = |key: &str| RemotePath::new("b", key).as_prefix().key;
        assert_eq!([prefix(""), prefix("a"), prefix("a/")], ["", "a/", "a/"]);
        assert_eq!(RemotePath::new("b", "a").to_string(), "s3://b/a");
        assert_eq!(RemotePath::new("b", "").to_string(), "s3://b");
    }
}
