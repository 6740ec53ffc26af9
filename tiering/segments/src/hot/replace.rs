//! Replacement of chunks by another encoding: the chunk is read and verified, the new one appended elsewhere
//! in the hot tier, and the reference changed by compare and set.
//!
//! Invariants: the catalogue names the old chunk until the new one is durable; if the chunk was replaced,
//! deleted or moved in the meantime, that change wins. So at a power loss one of the two is named; the other
//! is dead, and compaction frees it.

use bytes::Bytes;
use mlgw_common::ids::BodyId;
use mlgw_formats::schema::{Encoding, Extent};
use mlgw_metadata::Catalogue;

use super::compaction::{LiveChunk, MoveStepError, RelocationTarget, blocking, chunk_owner, move_chunk};
use super::{HotTier, SegmentReadError};
use crate::fair::Lane;
use mlgw_formats::segment_payload::Payload;
use mlgw_formats::segment_record::RecordOwner;

/// A chunk as it is stored.
#[derive(Debug)]
pub struct StoredChunk {
    owner: RecordOwner,
    extent: Extent,
    data: Payload,
}

impl StoredChunk {
    /// Returns the bytes if they are stored uncompressed.
    #[must_use]
    pub fn uncompressed(&self) -> Option<&Bytes> {
        (self.data.encoding == Encoding::Raw).then_some(&self.data.stored)
    }

    /// True for the first chunk of a body or of a part.
    #[must_use]
    pub const fn is_first(&self) -> bool {
        self.owner.offset == 0
    }
}

impl HotTier {
    /// Returns the chunk of `body` at `extent`, verified.
    ///
    /// # Errors
    /// [`SegmentReadError::Gone`] if its segment does not exist any more; any other error of the read.
    pub async fn read_stored(&self, extent: &Extent, body: BodyId) -> Result<StoredChunk, SegmentReadError> {
        let (owner, data) = self.inner.reader.chunk(extent, body, Lane::Background).await?;
        Ok(StoredChunk { owner, extent: extent.clone(), data })
    }

    /// Replaces a chunk by `data`. Returns false if the catalogue does not name the chunk at that location
    /// any more.
    ///
    /// # Errors
    /// When nothing was stored, or the catalogue does not accept the change; the chunk stays where it was.
    ///
    /// # Panics
    /// When `data` has another number of logical bytes.
    pub async fn replace(
        &self,
        catalogue: &Catalogue,
        chunk: StoredChunk,
        data: Payload,
    ) -> Result<bool, MoveStepError> {
        assert!(data.logical_bytes == chunk.data.logical_bytes, "it is the same chunk");
        let StoredChunk { owner, extent, .. } = chunk;
        let (named, reads) = (chunk_owner(&owner), catalogue.clone());
        let found =
            blocking(move || Ok(reads.reference(&named, extent.segment_id(), extent.offset)?)).await?;
        let Some(reference) = found else { return Ok(false) };
        move_chunk(&self.inner, catalogue, LiveChunk { owner, reference, data }, RelocationTarget::Moved)
            .await
    }
}
