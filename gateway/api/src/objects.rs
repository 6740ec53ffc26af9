//! One object and where its bytes are.
//!
//! Always: names and order of fields are a promise to programs. Nothing is stored, so a power failure changes
//! nothing.

use serde::{Deserialize, Serialize};

/// An object and where its bytes are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectInfo {
    /// Its bucket.
    pub bucket: String,
    /// Its key.
    pub key: String,
    /// Bytes as clients see them.
    pub size: u64,
    /// Its `ETag`, without quotes.
    pub etag: String,
    /// When it was written.
    pub modified: String,
    /// Its storage class.
    pub storage_class: String,
    /// Id of its body, which no other object ever has.
    pub body_id: u64,
    /// Parts, when it was uploaded in several; else 0.
    pub parts: u32,
    /// Where its bytes are, in sum.
    pub tiers: Vec<InTier>,
    /// Where each stretch of it is.
    pub extents: Vec<ExtentInfo>,
    /// Whether `extents` are all of it; a very large object has more than are shown, and of one that is bound
    /// only some may be here.
    pub whole: bool,
    /// Of an object of a bound bucket: what is there, and how it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<AtOrigin>,
}

/// An object of a bound bucket, at its origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AtOrigin {
    /// The upstream's name.
    pub upstream: String,
    /// The key there.
    pub key: String,
    /// Whether this was written here and is not there yet.
    pub dirty: bool,
    /// Whether somebody else wrote the key there meanwhile, so that somebody has to decide.
    pub contested: bool,
    /// How long ago the origin said what is shown, in milliseconds; nothing of what is dirty.
    pub said_ms_ago: Option<u64>,
    /// When it was read here last, as far as that was noted.
    pub read: Option<String>,
}

/// What of an object a tier holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InTier {
    /// The tier.
    pub tier: String,
    /// Bytes of the object.
    pub bytes: u64,
    /// Bytes that they take, with checksums and heads.
    pub stored_bytes: u64,
    /// Segments that they are in.
    pub segments: u64,
}

/// A stretch of an object, stored as one chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtentInfo {
    /// Its first byte in the object.
    pub first: u64,
    /// Bytes of the object.
    pub bytes: u64,
    /// Bytes that they take.
    pub stored_bytes: u64,
    /// How they are encoded.
    pub encoding: String,
    /// The tier.
    pub tier: String,
    /// The segment.
    pub segment: u64,
    /// Whether that is `open` or `sealed`; `unknown` while it is being freed, `clean` of a clean copy.
    pub segment_state: String,
    /// Where in the segment.
    pub offset: u64,
}
