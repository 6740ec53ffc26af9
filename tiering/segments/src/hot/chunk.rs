//! Pieces of bodies as callers store them and find them again.
//!
//! A chunk becomes one record of a segment. It is durable when the append that stored it returns; a chunk
//! whose append failed, or was cut off by a power loss, is named by nothing.

use std::io;

use mlgw_common::ObjectKey;
use mlgw_common::ids::{BodyId, BucketId, PartNumber};
use mlgw_formats::schema::Extent;
use mlgw_formats::segment_payload::Payload;

use super::holds::SegmentHold;

/// A chunk was not stored. No part of it will ever be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The disk is full or down to its reserve; data must be deleted.
    #[error("the disk is full")]
    Full,
    /// Spilling and compaction are freeing space; the append can be retried soon.
    #[error("disk space is being freed")]
    NoRoomYet,
    /// Too few storage nodes answer to store the chunk as often as the cluster wants; the append can be
    /// retried soon.
    #[error("too few storage nodes answer")]
    NoQuorum,
    /// The node is in no set of nodes that stores chunks of the key. Another node stores the chunk.
    #[error("this node does not store objects with this key any more")]
    OtherSet,
    /// The tier is shutting down; the append can be retried after the restart.
    #[error("the tier is stopping")]
    Stopping,
    /// The disk or the catalogue failed, and so did a retry; the append can be retried later.
    #[error("the disk failed")]
    Io,
}

impl AppendError {
    pub(super) fn from_io(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full,
            _ => Self::Io,
        }
    }
}

/// Kind of segment that a chunk is appended to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// A segment shared with other bodies.
    Shared,
    /// A segment of the body's own, if one is available: for bodies of
    /// [`DEDICATED_SEGMENT_BYTES_MIN`](mlgw_common::limits::DEDICATED_SEGMENT_BYTES_MIN) or more.
    Own,
}

/// A piece of a body to store.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The bucket.
    pub bucket: BucketId,
    /// The key.
    pub key: ObjectKey,
    /// The body.
    pub body: BodyId,
    /// The part, if the body is a multipart upload.
    pub part: Option<PartNumber>,
    /// Offset of the first byte in the body, or in the part.
    pub offset: u64,
    /// The bytes as they are stored: at least one, at most
    /// [`CHUNK_BYTES_MAX`](mlgw_common::limits::CHUNK_BYTES_MAX) uncompressed.
    pub data: Payload,
    /// Kind of segment to append to.
    pub placement: Placement,
}

/// A stored chunk.
#[derive(Clone, Debug)]
pub struct AppendedChunk {
    /// Location of the chunk.
    pub extent: Extent,
    /// Prevents changes of the segment; to be dropped when the catalogue names the chunk, or never will.
    pub hold: SegmentHold,
}

/// A chunk in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentChunk {
    /// Bucket of the chunk's owner.
    pub bucket: BucketId,
    /// Key of the owner.
    pub key: ObjectKey,
    /// Body of the owner.
    pub body: BodyId,
    /// Offset of the chunk's first byte in the body.
    pub first: u64,
    /// Offset of the chunk's record in the segment.
    pub offset: u64,
}
