//! Errors of reads from segments.

use std::io;

use mlgw_common::ids::SegmentId;
use mlgw_formats::segment_record::RecordFault;
use mlgw_remote::upstream::UpstreamError;

/// Bytes could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SegmentReadError {
    /// The stored bytes are not those that were written: another copy is needed.
    #[error("segment {segment} is damaged at offset {offset}: {fault}")]
    Corrupt {
        /// The segment.
        segment: SegmentId,
        /// Offset of the record, or of the block.
        offset: u64,
        /// The fault.
        fault: ReadFault,
    },
    /// The segment does not exist (any more): the object must be looked up again.
    #[error("segment {segment} does not exist")]
    Gone {
        /// The segment.
        segment: SegmentId,
    },
    /// The segment is at an upstream that does not respond or refuses: retry later.
    #[error("segment {segment} cannot be read: {source}")]
    Unreachable {
        /// The segment.
        segment: SegmentId,
        /// The error of the request.
        source: Box<UpstreamError>,
    },
    /// No node with a replica of the segment can be read: retry later.
    #[error("no node with a replica of segment {segment} can be read now: retry later")]
    NoReplica {
        /// The segment.
        segment: SegmentId,
    },
    /// The disk failed: another copy is needed, or a retry.
    #[error("cannot read segment {segment}: {source}")]
    Io {
        /// The segment.
        segment: SegmentId,
        /// The error of the disk.
        source: io::Error,
    },
}

/// Fault of stored bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadFault {
    /// The encoding is unknown: a newer program wrote the record.
    #[error("the record has encoding {0}, which this version of mlgw cannot read; a newer one wrote it")]
    Encoding(i32),
    /// The extent is invalid, or the range is not in it.
    #[error("the extent does not describe a record, or does not contain the range")]
    Extent,
    /// The file ends before the extent does.
    #[error("the file is too short")]
    Truncated,
    /// The record header is not intact.
    #[error("{0}")]
    Head(RecordFault),
    /// The object at the upstream is not the one that was stored.
    #[error("the object in the upstream is not the stored one")]
    Object,
    /// The record is intact, but of something else.
    #[error("the record is not the one that the extent describes")]
    Mismatch,
    /// A block does not match its checksum.
    #[error("block {0} does not match its checksum")]
    Block(u32),
    /// A block matches its checksum and does not decompress to its logical bytes.
    #[error("block {0} does not decompress to its original length")]
    Undecompressible(u32),
}
