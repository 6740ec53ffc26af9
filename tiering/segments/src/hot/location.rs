//! Location of a stored chunk: an extent whose fields were validated.

use std::ops::Range;

use mlgw_common::ids::SegmentId;
use mlgw_common::limits::{BLOCK_BYTES, CHUNK_BYTES_MAX};
use mlgw_formats::schema::{Encoding, Extent};

use mlgw_formats::segment_record::{HEAD_BYTES_MAX, HEAD_FIXED_BYTES};

/// Location of a stored chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordLocation {
    pub(super) segment: SegmentId,
    /// Offset of the record in the segment file.
    pub(super) offset: u64,
    /// Bytes of the record header, before the payload.
    pub(super) head_bytes: u32,
    /// Stored length of the payload.
    pub(super) payload_bytes: u32,
    /// Uncompressed length of the payload.
    pub(super) logical_bytes: u32,
    pub(super) encoding: Encoding,
}

impl RecordLocation {
    /// Converts an extent; `None` if no record can have such an extent.
    pub(super) fn of(extent: &Extent) -> Option<Self> {
        let encoding = Encoding::try_from(extent.encoding).ok()?;
        let possible = extent.data_key.is_empty()
            && (HEAD_FIXED_BYTES..=HEAD_BYTES_MAX).contains(&(extent.head_bytes as usize))
            && (1..=CHUNK_BYTES_MAX).contains(&extent.logical_bytes)
            && match encoding {
                Encoding::Raw => extent.stored_bytes == extent.logical_bytes,
                Encoding::Zstd => (1..=extent.logical_bytes).contains(&extent.stored_bytes),
            }
            && extent.offset < i64::MAX as u64 - 2 * CHUNK_BYTES_MAX;
        possible.then_some(Self {
            segment: extent.segment_id(),
            offset: extent.offset,
            head_bytes: extent.head_bytes,
            payload_bytes: extent.stored_bytes as u32,
            logical_bytes: extent.logical_bytes as u32,
            encoding,
        })
    }

    /// Number of blocks of the chunk.
    pub(super) const fn blocks(&self) -> usize {
        (self.logical_bytes as u64).div_ceil(BLOCK_BYTES) as usize
    }

    /// True if the payload is compressed.
    pub(super) const fn is_compressed(&self) -> bool {
        !matches!(self.encoding, Encoding::Raw)
    }

    /// The range of the record in the segment's file.
    pub(super) fn record(&self) -> Range<u64> {
        self.offset..self.offset + u64::from(self.head_bytes) + u64::from(self.payload_bytes)
    }
}

impl From<RecordLocation> for Extent {
    fn from(location: RecordLocation) -> Self {
        Self {
            segment: location.segment.0,
            offset: location.offset,
            head_bytes: location.head_bytes,
            stored_bytes: location.payload_bytes.into(),
            logical_bytes: location.logical_bytes.into(),
            encoding: location.encoding as i32,
            data_key: Vec::new(),
        }
    }
}
