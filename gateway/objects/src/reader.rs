//! Reads the bytes of a body in order.
//!
//! The record of a small body contains its extents. A larger body has pages of extents. A body of parts has
//! pages of parts, whose rows contain the extents. The reader reads a page when it reaches it, so it keeps
//! one page and one piece in memory at a time, for objects of any size.
//!
//! Invariant: every byte is verified against its checksum before it is returned. Compaction may move bytes
//! during a read. The reader then reads the record of the body again. Before the first of several pieces it
//! pins the segments, and waits for their rows if this node does not have them yet. This module only reads,
//! so a power failure changes nothing.

use crate::ObjectError;
use bytes::Bytes;
use mlgw_common::limits::{BLOCK_BYTES, CHUNK_BYTES_MAX, DECOMPRESSED_PIECE_BYTES, LOOKUP_RETRIES_MAX};
use mlgw_common::{BodyId, BucketId, ObjectKey, PartNumber, SegmentId};
use mlgw_formats::schema::{Encoding, Extent, ExtentPage, ObjectVersion, PartRange};
use mlgw_metadata::{BarrierError, BarrierScope, Catalogue, Pin, ReadError};
use mlgw_segments::fair::ServiceClass;
use mlgw_segments::hot::{SegmentPin, SegmentReadError};
use mlgw_segments::tiers::Tiers;
use std::collections::VecDeque;
use std::ops::Range;

/// Bytes of one read: large enough to amortise the call, small enough that a slow client takes little memory.
pub const PIECE_BYTES: u64 = 4 * BLOCK_BYTES;

/// Extents fetched ahead from slow tiers: 8 MiB of a large object, which two connections transfer in 50 ms.
const AHEAD_EXTENTS: usize = 8;

const _: () = assert!(PIECE_BYTES <= CHUNK_BYTES_MAX);

/// Error of reading a body.
#[derive(Debug, thiserror::Error)]
pub enum BodyReadError {
    /// The catalogue cannot be read.
    #[error("the catalogue cannot be read: {0}")]
    Catalogue(#[from] ReadError),
    /// The bytes cannot be read, or do not verify.
    #[error("the bytes of the object cannot be read: {0}")]
    Segment(#[from] SegmentReadError),
    /// The bytes were moved, and no leader confirms that the rows of this node name their new place.
    #[error("the bytes of the object were moved, and their place is unknown: {0}")]
    NotCurrent(#[from] BarrierError),
    /// No extent contains this byte of the body. The object was replaced during the read, or the catalogue is
    /// damaged.
    #[error("no extent contains byte {0} of the body")]
    Missing(u64),
}

impl From<BodyReadError> for ObjectError {
    fn from(error: BodyReadError) -> Self {
        match &error {
            BodyReadError::Segment(SegmentReadError::Unreachable { .. }) => {
                Self::Unreachable(error.to_string())
            }
            BodyReadError::Segment(SegmentReadError::NoReplica { .. }) | BodyReadError::NotCurrent(_) => {
                Self::NoReplica(error.to_string())
            }
            BodyReadError::Catalogue(ReadError::GroupElsewhere { .. }) => Self::NoLeader(error.to_string()),
            _ => Self::Unreadable(error.to_string()),
        }
    }
}

/// Reads a range of one body from front to end.
pub struct BodyReader {
    catalogue: Catalogue,
    tiers: Tiers,
    bucket: BucketId,
    key: ObjectKey,
    body: BodyId,
    /// Extents to read next, each with the offset of its first byte in the body.
    extents: VecDeque<(u64, Extent)>,
    at: u64,
    end: u64,
    piece_bytes: u64,
    /// Pin of the map of a body with many extents. It lasts until the read ends.
    map: Option<Pin>,
    /// True if the map was pinned before it was removed.
    is_map_checked: bool,
    /// Pins of the segments of a body whose record has all its extents. The bytes of a longer body are found
    /// through its map after compaction moves them.
    segments: Option<SegmentPin>,
    turn: ServiceClass,
    /// True if only local disks are read.
    from_disks: bool,
}

impl BodyReader {
    /// Returns a reader of `range` of the body of `object`.
    #[must_use]
    pub fn new(
        catalogue: &Catalogue,
        tiers: &Tiers,
        bucket: BucketId,
        key: &ObjectKey,
        object: &ObjectVersion,
        range: Range<u64>,
    ) -> Self {
        assert!(range.start <= range.end && range.end <= object.size, "a range lies within its object");
        let mut reader = Self {
            catalogue: catalogue.clone(),
            tiers: tiers.clone(),
            bucket,
            key: key.clone(),
            body: BodyId(object.body_id),
            extents: VecDeque::new(),
            at: range.start,
            end: range.end,
            piece_bytes: PIECE_BYTES,
            map: object.is_paged().then(|| catalogue.pin(object.body())),
            is_map_checked: false,
            segments: None,
            turn: ServiceClass::default(),
            from_disks: false,
        };
        reader.queue(0, object.extents.iter().cloned());
        reader
    }

    /// Returns the same reader with pieces of at most `blocks` blocks.
    #[must_use]
    pub fn in_pieces_of(mut self, blocks: usize) -> Self {
        self.piece_bytes = PIECE_BYTES.min(BLOCK_BYTES * blocks.max(1) as u64);
        self
    }

    /// Returns the same reader, bypassing the memory tier and never reading from upstreams.
    #[must_use]
    pub fn from_disks(mut self) -> Self {
        self.from_disks = true;
        self
    }

    /// Sets the lane and priority of further reads in the queue of the disk.
    pub fn set_turn(&mut self, turn: impl Into<ServiceClass>) {
        self.turn = turn.into();
    }

    /// Returns the next bytes, or `None` at the end of the range.
    ///
    /// # Errors
    /// When the bytes cannot be read or do not verify.
    pub async fn next(&mut self) -> Result<Option<Bytes>, BodyReadError> {
        if self.at == self.end {
            return Ok(None);
        }
        for _ in 0..LOOKUP_RETRIES_MAX {
            if self.extents.is_empty() {
                self.load_page()?;
            }
            let (first, extent, piece) = self.piece().ok_or(BodyReadError::Missing(self.at))?;
            let next = self.at + (piece.end - piece.start);
            if next < self.end && !self.pin_segments() {
                // Boxed because it is rare and its future is large.
                Box::pin(self.tiers.hot.await_segments(&self.segment_ids())).await?;
                Box::pin(self.reload_extents()).await?;
                continue;
            }
            self.read_ahead(&extent, &piece);
            let bytes = match self.read(&extent, first, piece.clone()).await {
                Err(SegmentReadError::Gone { .. }) => {
                    Box::pin(self.reload_extents()).await?;
                    continue;
                }
                read => read?,
            };
            assert!(bytes.len() as u64 == next - self.at, "a read returns the requested range");
            self.at = next;
            if piece.end == extent.logical_bytes {
                self.extents.pop_front();
            }
            return Ok(Some(bytes));
        }
        Err(BodyReadError::Missing(self.at))
    }

    async fn read(&self, extent: &Extent, first: u64, piece: Range<u64>) -> Result<Bytes, SegmentReadError> {
        if !self.from_disks {
            return self.tiers.read(extent, self.body, first, piece, self.turn).await;
        }
        let segment = extent.segment_id();
        if self.tiers.hot.is_remote(segment) {
            return Err(SegmentReadError::Gone { segment });
        }
        self.tiers.hot.read(extent, self.body, piece, self.turn).await
    }

    /// Returns the first extent, the offset of its first byte in the body, and the range of it to read next.
    fn piece(&self) -> Option<(u64, Extent, Range<u64>)> {
        let (first, extent) = self.extents.front()?;
        let from = self.at - first;
        let piece_bytes = match extent.encoding() {
            Encoding::Raw => self.piece_bytes,
            Encoding::Zstd => self.piece_bytes.min(DECOMPRESSED_PIECE_BYTES),
        };
        // Pieces end at block boundaries, so that no block is read and verified twice.
        let border = (from / piece_bytes + 1) * piece_bytes;
        let to = border.min(extent.logical_bytes).min(self.end - first);
        Some((*first, extent.clone(), from..to))
    }

    /// Starts to fetch the next extents if `extent` is in a slow tier. Does so once per extent.
    fn read_ahead(&self, extent: &Extent, piece: &Range<u64>) {
        let begins = piece.start == 0 && self.extents.len() > 1;
        if begins && self.tiers.hot.is_remote(extent.segment_id()) {
            let next = self.extents.iter().skip(1).take(AHEAD_EXTENTS).map(|(_, extent)| extent);
            self.tiers.hot.read_ahead(next);
        }
    }

    fn segment_ids(&self) -> Vec<SegmentId> {
        self.extents.iter().map(|(_, extent)| extent.segment_id()).collect()
    }

    /// Pins the segments before the first of several pieces. Returns false if a segment no longer exists.
    fn pin_segments(&mut self) -> bool {
        if self.map.is_none() && self.segments.is_none() {
            self.segments = self.tiers.hot.pin(self.segment_ids());
            return self.segments.is_some();
        }
        true
    }

    /// Reads the record of the body again after its bytes were moved or replaced. The record on this node may
    /// be older than the move, which another node made, so it is read behind a barrier.
    async fn reload_extents(&mut self) -> Result<(), BodyReadError> {
        self.extents.clear();
        self.segments = None;
        self.catalogue.barrier(BarrierScope::Key(self.bucket, &self.key)).await?;
        if self.map.is_some() {
            return Ok(());
        }
        let object = self.catalogue.object(self.bucket, &self.key)?;
        let object =
            object.filter(|object| object.body() == self.body).ok_or(BodyReadError::Missing(self.at))?;
        self.queue(0, object.extents.into_iter());
        Ok(())
    }

    /// Reads the page that contains the byte at `self.at`.
    fn load_page(&mut self) -> Result<(), BodyReadError> {
        // A body that was current when its map was pinned stays readable to its end. Without this check the
        // first page could be the remainder of a body that is being removed.
        if !self.is_map_checked && self.catalogue.is_being_released(self.bucket, &self.key, self.body)? {
            return Err(BodyReadError::Missing(self.at));
        }
        self.is_map_checked = true;
        let reader = self.catalogue.reader();
        let page = reader.extent_pages(self.bucket, &self.key, self.body, self.at).next().transpose()?;
        let (first, page) = page.ok_or(BodyReadError::Missing(self.at))?;
        if page.parts.is_empty() {
            self.queue(first, page.extents.into_iter());
            return Ok(());
        }
        let (first, number) = part_at(first, &page, self.at).ok_or(BodyReadError::Missing(self.at))?;
        let part = self.catalogue.part(self.bucket, &self.key, self.body, number)?;
        let part = part.ok_or(BodyReadError::Missing(self.at))?;
        self.queue(first, part.extents.into_iter());
        Ok(())
    }

    /// Queues each of `extents` that ends after `self.at`. The first of them begins at byte `first`.
    fn queue(&mut self, mut first: u64, extents: impl Iterator<Item = Extent>) {
        for extent in extents {
            let next = first + extent.logical_bytes;
            if next > self.at && first < self.end {
                self.extents.push_back((first, extent));
            }
            first = next;
        }
    }
}

/// Returns the part of a page that contains byte `at`, and the offset of the first byte of that part.
fn part_at(mut first: u64, page: &ExtentPage, at: u64) -> Option<(u64, PartNumber)> {
    for part in &page.parts {
        if at < first + part.bytes {
            return Some((first, PartNumber::new(part.number)?));
        }
        first += part.bytes;
    }
    None
}

/// Returns the parts of an object in order, each with its length. The pages and rows of the parts are freed
/// at once when the object is replaced; `_pin`, a pin of its body that was taken in time, keeps them.
///
/// # Errors
/// When the catalogue cannot be read; [`BodyReadError::Missing`] when it lacks a page, as that of a replaced
/// object.
pub fn part_ranges(
    catalogue: &Catalogue,
    bucket: BucketId,
    key: &ObjectKey,
    object: &ObjectVersion,
    _pin: &Pin,
) -> Result<Vec<PartRange>, BodyReadError> {
    if catalogue.is_being_released(bucket, key, object.body())? {
        return Err(BodyReadError::Missing(0));
    }
    let reader = catalogue.reader();
    let mut parts: Vec<PartRange> = Vec::new();
    for page in reader.extent_pages(bucket, key, BodyId(object.body_id), 0) {
        parts.extend(page?.1.parts);
    }
    if parts.len() != object.part_count as usize {
        return Err(BodyReadError::Missing(parts.iter().map(|part| part.bytes).sum()));
    }
    Ok(parts)
}
