//! Chunks that are stored otherwise than they were: read and verified, appended elsewhere in the hot tier,
//! and renamed by compare and set.
//!
//! Always: a chunk is named where it was until what replaces it is durable, and one that was replaced,
//! deleted or moved meanwhile keeps its new fate. So when power fails the one or the other is there; what
//! nothing names is dead, and compaction frees it.

use bytes::Bytes;
use mlgw_common::ids::BodyId;
use mlgw_formats::schema::{Encoding, Extent};
use mlgw_metadata::Catalogue;

use super::compaction::{Live, StepError, To, blocking, chunk_owner, move_one};
use super::{HotTier, ReadError};
use crate::fair::Lane;
use mlgw_formats::segment_payload::Payload;
use mlgw_formats::segment_record::Owner;

/// A chunk as it is stored.
#[derive(Debug)]
pub struct StoredChunk {
    owner: Owner,
    extent: Extent,
    data: Payload,
}

impl StoredChunk {
    /// Its bytes, when they are stored as they came.
    #[must_use]
    pub fn raw(&self) -> Option<&Bytes> {
        (self.data.encoding == Encoding::Raw).then_some(&self.data.stored)
    }

    /// Whether it is the first of its body, or of its part.
    #[must_use]
    pub const fn is_first(&self) -> bool {
        self.owner.offset == 0
    }
}

impl HotTier {
    /// The chunk of `body` that `extent` names, verified.
    ///
    /// # Errors
    /// [`ReadError::Gone`] when its segment is; whatever else keeps it from being read.
    pub async fn stored(&self, extent: &Extent, body: BodyId) -> Result<StoredChunk, ReadError> {
        let (owner, data) = self.inner.reader.chunk(extent, body, Lane::Background).await?;
        Ok(StoredChunk { owner, extent: extent.clone(), data })
    }

    /// Has `data` take the place of a chunk. Says whether it did: not when nothing names the chunk there any
    /// more.
    ///
    /// # Errors
    /// When nothing was stored, or the catalogue does not take it; the chunk is where it was.
    ///
    /// # Panics
    /// When it stands for another number of bytes.
    pub async fn replace(
        &self,
        catalogue: &Catalogue,
        chunk: StoredChunk,
        data: Payload,
    ) -> Result<bool, StepError> {
        assert!(data.logical_bytes == chunk.data.logical_bytes, "it is the same chunk");
        let StoredChunk { owner, extent, .. } = chunk;
        let (named, reads) = (chunk_owner(&owner), catalogue.clone());
        let found =
            blocking(move || Ok(reads.reference(&named, extent.segment_id(), extent.offset)?)).await?;
        let Some(reference) = found else { return Ok(false) };
        move_one(&self.inner, catalogue, Live { owner, reference, data }, To::Others).await
    }
}
