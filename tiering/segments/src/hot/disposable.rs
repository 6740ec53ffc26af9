//! Operations of a tier without compaction, whose owner decides which chunks are dropped, which are appended
//! again, and when a segment is released.
//!
//! Invariants: a segment that the map does not contain any more is released once, as a whole; holes are
//! punched only under unreferenced records. After a power loss, files of segments that the map does not
//! contain are removed by the next start.

use super::{AppendError, AppendedChunk, HotTier, HotTierInner, RecordOwner, SegmentChunk, scan};
use crate::fair::Lane;
use crate::hot::location::RecordLocation;
use mlgw_common::ids::{BodyId, SegmentId};
use mlgw_formats::schema::Extent;
use mlgw_formats::segment_header::SEGMENT_HEADER_BYTES;
use std::io;

impl HotTier {
    /// Appends a chunk of a tier without compaction again, to the segment of moved chunks.
    ///
    /// # Errors
    /// When the chunk was not stored.
    pub async fn append_moved(&self, extent: &Extent, body: BodyId) -> Result<AppendedChunk, AppendError> {
        let read = self.inner.reader.chunk(extent, body, Lane::Background).await;
        let (owner, data) = read.map_err(|error| {
            tracing::warn!(%error, "cannot read a chunk; not moved");
            AppendError::Io
        })?;
        self.inner.append_moved(&owner, &data).await
    }

    /// Returns the chunks in a segment, including unreferenced ones whose record headers are not in holes.
    ///
    /// # Errors
    /// When the segment's file cannot be read.
    pub async fn chunks_in(&self, segment: SegmentId) -> io::Result<Vec<SegmentChunk>> {
        let inner = self.inner.clone();
        let read = tokio::task::spawn_blocking(move || chunks_in(&inner, segment)).await;
        read.unwrap_or_else(|stopped| Err(io::Error::other(stopped)))
    }

    /// Frees the disk blocks under chunks that nothing refers to or ever will; each chunk is passed once.
    /// Blocks that are shared with live records stay, and so do all blocks if the file system has no holes.
    /// Returns the freed bytes.
    pub async fn punch(&self, dead: Vec<Extent>) -> u64 {
        if dead.is_empty() || !self.inner.shared.is_disposable {
            return 0;
        }
        let inner = self.inner.clone();
        let punched = tokio::task::spawn_blocking(move || {
            let bytes = inner.holes.punch(&inner.volumes.hot, dead.iter().filter_map(RecordLocation::of));
            inner.shared.space.record_freed(bytes);
            bytes
        });
        punched.await.unwrap_or(0)
    }

    /// True unless the file system turned out not to support holes.
    #[must_use]
    pub fn has_holes(&self) -> bool {
        !self.inner.holes.is_unsupported()
    }

    /// Bytes of holes in a segment.
    #[must_use]
    pub fn holes_in(&self, segment: SegmentId) -> u64 {
        self.inner.holes.bytes_in(segment)
    }

    /// True if an unfinished request appended to a segment or may do so.
    #[must_use]
    pub fn is_held(&self, segment: SegmentId) -> bool {
        self.inner.shared.segments.holds.is_held(segment)
    }

    /// True if a moved chunk whose record has `bytes` would be accepted.
    #[must_use]
    pub fn has_room_for_moved(&self, bytes: u64) -> bool {
        self.inner.shared.space.moved_room_bytes() >= bytes
    }

    /// Removes the file of a segment that the map does not contain any more. Reads in progress are not
    /// affected. Returns the bytes that the file occupied.
    ///
    /// # Errors
    /// When the disk fails; the next start removes the file.
    pub async fn release(&self, segment: SegmentId) -> io::Result<u64> {
        self.inner.reader.invalidate(segment);
        let inner = self.inner.clone();
        let removed = tokio::task::spawn_blocking(move || {
            let bytes = inner.holes.remove(&inner.volumes.hot, segment)?;
            let bytes = bytes.saturating_sub(SEGMENT_HEADER_BYTES);
            inner.shared.space.record_freed(bytes);
            Ok(bytes)
        });
        removed.await.unwrap_or_else(|stopped| Err(io::Error::other(stopped)))
    }
}

fn chunks_in(inner: &HotTierInner, segment: SegmentId) -> io::Result<Vec<SegmentChunk>> {
    let mut found = Vec::new();
    let Some(place) = inner.shared.segments.map.location(segment) else { return Ok(found) };
    let file = inner.volumes.dirs().open_verified(segment, &place)?;
    let places = inner.shared.queues.for_tier(place.tier).clone();
    let mut scan = scan::SegmentScan::new(file, segment, place.seed, 0)?.with_disk_queue(places);
    while let Some(record) = scan.next()? {
        let Some(owner) = record.head.and_then(|head| head.owner()) else { continue };
        let RecordOwner { bucket, key, body, offset: first, .. } = owner;
        found.push(SegmentChunk { bucket, key, body, first, offset: record.offset });
    }
    Ok(found)
}
