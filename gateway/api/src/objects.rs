//! A single object and the location of its bytes.
//!
//! Field names and their order are a stable interface for programs.

use crate::words::words;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An object and the location of its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ObjectInfo {
    /// Bucket of the object.
    pub bucket: String,
    /// Key of the object.
    pub key: String,
    /// Bytes of the object as clients see them.
    pub size: u64,
    /// `ETag`, without quotes.
    pub etag: String,
    /// Time of the write.
    pub modified: String,
    /// Storage class.
    pub storage_class: String,
    /// Id of the body, unique to this object and never reused.
    pub body_id: u64,
    /// Number of parts of a multipart upload; else 0.
    pub parts: u32,
    /// Totals by tier.
    pub tiers: Vec<ObjectTierInfo>,
    /// Totals by node and tier. In a cluster every byte is on several nodes. Empty on a server without peers,
    /// and for bytes that are at the origin alone.
    pub nodes: Vec<ObjectNodeInfo>,
    /// Location of each extent.
    pub extents: Vec<ExtentInfo>,
    /// True if `extents` cover the whole object. A very large object has more extents than are shown, and of
    /// an object in a remote-backed bucket only a part may be stored here.
    pub whole: bool,
    /// Object at the origin; remote-backed buckets only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OriginObjectInfo")]
    pub origin: Option<OriginObjectInfo>,
}

/// An object of a remote-backed bucket as known at its origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OriginObjectInfo {
    /// Name of the upstream.
    pub upstream: String,
    /// Key at the origin.
    pub key: String,
    /// True if the object was written here and has not reached the origin yet.
    pub dirty: bool,
    /// True if another client wrote the key at the origin meanwhile, so that an operator has to decide.
    pub contested: bool,
    /// Age in milliseconds of the origin's response on which this is based; absent for dirty objects.
    pub validated_ms_ago: Option<u64>,
    /// Time of the last read here, if recorded.
    pub read: Option<String>,
}

/// Part of an object that one tier holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ObjectTierInfo {
    /// Location of the bytes.
    pub tier: ObjectLocation,
    /// Bytes of the object.
    pub bytes: u64,
    /// Bytes on disk, including checksums and record heads.
    pub stored_bytes: u64,
    /// Number of segments that hold them.
    pub segments: u64,
}

/// Part of an object that one node of a cluster holds in one tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ObjectNodeInfo {
    /// Id of the node.
    pub node: u64,
    /// Tier of the node.
    pub tier: ObjectLocation,
    /// Bytes of the object.
    pub bytes: u64,
    /// Those of them in copies of segments in which damage was found. They are read where they are intact.
    pub suspect_bytes: u64,
}

/// Extent of an object, stored as one chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExtentInfo {
    /// Offset of the first byte in the object.
    pub first: u64,
    /// Bytes of the object.
    pub bytes: u64,
    /// Bytes on disk.
    pub stored_bytes: u64,
    /// Encoding of the chunk.
    pub encoding: String,
    /// Location of the extent, as the responding node reads it.
    pub tier: ObjectLocation,
    /// Nodes with a copy of the segment; empty on a server without peers.
    pub nodes: Vec<u64>,
    /// Id of the segment.
    pub segment: u64,
    /// State of the segment.
    pub segment_state: ExtentState,
    /// Offset in the segment.
    pub offset: u64,
}

words! {
    /// Location of bytes of an object.
    ObjectLocation {
        /// Segments on the local disk.
        Hot = "hot",
        /// Segments on slower disks.
        Cold = "cold",
        /// Segments in upstreams.
        Upstream = "upstream",
        /// Clean copies of a remote-backed bucket.
        Copies = "copies",
        /// The origin of a remote-backed bucket.
        Origin = "origin",
        /// The segment is being freed.
        Unknown = "unknown",
    }
}

words! {
    /// State of the segment that holds an extent.
    ExtentState {
        /// Data is appended to the segment.
        Open = "open",
        /// The segment is complete.
        Sealed = "sealed",
        /// The extent is a clean copy.
        Clean = "clean",
        /// The segment is being freed.
        Unknown = "unknown",
    }
}
