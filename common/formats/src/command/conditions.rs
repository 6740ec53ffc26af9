//! Conditions on the current version of a key, in commands that replace, delete or change it.

/// Conditions on a key's current version, checked when the command is applied.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Conditions {
    /// The version exists and its ETag is listed. Without a version:
    /// [`Reject::NoSuchKey`](super::Reject::NoSuchKey).
    #[prost(message, optional, tag = "1")]
    pub if_match: Option<EtagCondition>,
    /// No version exists, or its ETag is not listed.
    #[prost(message, optional, tag = "2")]
    pub if_none_match: Option<EtagCondition>,
    /// The version exists and has this length.
    #[prost(uint64, optional, tag = "3")]
    pub if_match_size: Option<u64>,
    /// The version exists and was modified in this second.
    #[prost(int64, optional, tag = "4")]
    pub if_match_modified_ms: Option<i64>,
    /// The version exists and has this sequence number.
    #[prost(uint64, optional, tag = "5")]
    pub if_match_seq: Option<u64>,
}

/// ETags to compare with.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct EtagCondition {
    /// True for `*`: any ETag matches.
    #[prost(bool, tag = "1")]
    pub any: bool,
    /// ETags without quotes.
    #[prost(string, repeated, tag = "2")]
    pub etags: Vec<String>,
}

impl EtagCondition {
    /// Returns the condition `*`.
    #[must_use]
    pub const fn any() -> Self {
        Self { any: true, etags: Vec::new() }
    }

    /// Returns a condition that one of `etags` meets.
    #[must_use]
    pub const fn one_of(etags: Vec<String>) -> Self {
        Self { any: false, etags }
    }

    /// True if `etag` meets the condition.
    #[must_use]
    pub fn contains(&self, etag: &str) -> bool {
        self.any || self.etags.iter().any(|e| e == etag)
    }
}
