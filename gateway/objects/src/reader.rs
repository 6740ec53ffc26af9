//! Reads the bytes of a body in order, whatever its extents look like.
//!
//! A small body names its extents in its record; a larger one has pages of extents, and a
//! multipart body pages of parts whose rows name the extents. They are fetched as the reading gets
//! there, so an answer holds one page and one piece at a time, however large the object. Every
//! byte that comes out was verified against its checksum. Compaction may move bytes under a reader: it
//! looks its body up again then, and pins the segments first if it will come back for more.

use crate::ObjectError;
use bytes::Bytes;
use mlgw_common::limits::{BLOCK_BYTES, CHUNK_BYTES_MAX, LOOK_AGAIN_MAX, UNPACKED_PIECE_BYTES};
use mlgw_common::{BodyId, BucketId, ObjectKey, PartNumber};
use mlgw_metadata::schema::{Encoding, Extent, ExtentPage, ObjectVersion, PartRange};
use mlgw_metadata::{Catalogue, Pin};
use mlgw_tiering::{SegmentPin, Tiers, Turn};
use std::collections::VecDeque;
use std::ops::Range;

/// Bytes that one read asks of an extent: enough to amortise the call, little enough that a slow
/// client holds little memory.
pub const PIECE_BYTES: u64 = 4 * BLOCK_BYTES;

/// Extents that are fetched ahead of their reading, where that takes long: 8 MiB of a large object, what two connections bring in
/// 50 ms.
const AHEAD_EXTENTS: usize = 8;

const _: () = assert!(PIECE_BYTES <= CHUNK_BYTES_MAX);

/// Why a body could not be read on.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The catalogue could not be read.
    #[error("the catalogue cannot be read: {0}")]
    Catalogue(#[from] mlgw_metadata::ReadError),
    /// The bytes could not be read or did not verify.
    #[error("the bytes of the object cannot be read: {0}")]
    Segment(#[from] mlgw_tiering::ReadError),
    /// The catalogue names no extent for a byte that the object has: the object was replaced
    /// while it was read, or the catalogue is damaged.
    #[error("no extent holds byte {0} of the body")]
    Missing(u64),
}

impl From<ReadError> for ObjectError {
    fn from(error: ReadError) -> Self {
        match &error {
            ReadError::Segment(mlgw_tiering::ReadError::Unreachable { .. }) => {
                Self::Unreachable(error.to_string())
            }
            _ => Self::Unreadable(error.to_string()),
        }
    }
}

/// Reads one body from the front of a range to its end.
pub struct BodyReader {
    catalogue: Catalogue,
    tiers: Tiers,
    bucket: BucketId,
    key: ObjectKey,
    body: BodyId,
    /// Extents at hand, each with the first byte of the body that it holds.
    extents: VecDeque<(u64, Extent)>,
    at: u64,
    end: u64,
    piece_bytes: u64,
    /// A body of many extents is read over minutes; its map stays until then.
    map: Option<Pin>,
    /// Whether that was pinned in time.
    is_sure: bool,
    /// The segments of a body whose record names them all: they stay too. Those of a longer one are
    /// found through its map wherever they are moved.
    segments: Option<SegmentPin>,
    turn: Turn,
    /// Whether it reads from disks of this machine only.
    from_disks: bool,
}

impl BodyReader {
    /// A reader of `range` of the body of `object`.
    #[must_use]
    pub fn new(
        catalogue: &Catalogue,
        tiers: &Tiers,
        bucket: BucketId,
        key: &ObjectKey,
        object: &ObjectVersion,
        range: Range<u64>,
    ) -> Self {
        assert!(range.end <= object.size, "a range lies within its object");
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
            is_sure: false,
            segments: None,
            turn: Turn::default(),
            from_disks: false,
        };
        reader.queue(0, object.extents.iter().cloned());
        reader
    }

    /// The same reader, with pieces of `blocks` blocks at most.
    #[must_use]
    pub fn in_pieces_of(mut self, blocks: usize) -> Self {
        self.piece_bytes = PIECE_BYTES.min(BLOCK_BYTES * blocks.max(1) as u64);
        self
    }

    /// The same reader, which reads from disks of this machine only: past the memory tier, and not from upstreams.
    #[must_use]
    pub fn from_disks(mut self) -> Self {
        self.from_disks = true;
        self
    }

    /// From now on what it reads waits for its turn at the disk there.
    pub fn set_turn(&mut self, turn: impl Into<Turn>) {
        self.turn = turn.into();
    }

    /// The next bytes; nothing at the end of the range.
    ///
    /// # Errors
    /// When they cannot be read or do not verify.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        if self.at == self.end {
            return Ok(None);
        }
        for _ in 0..LOOK_AGAIN_MAX {
            if self.extents.is_empty() {
                self.fetch()?;
            }
            let (first, extent, piece) = self.piece().ok_or(ReadError::Missing(self.at))?;
            let next = self.at + (piece.end - piece.start);
            if next < self.end && !self.pin_segments() {
                self.look_again()?;
                continue;
            }
            self.look_ahead(&extent, &piece);
            let bytes = match self.read(&extent, first, piece.clone()).await {
                Err(mlgw_tiering::ReadError::Gone { .. }) => {
                    self.look_again()?;
                    continue;
                }
                read => read?,
            };
            assert!(bytes.len() as u64 == next - self.at, "a read returns the range it was asked for");
            self.at = next;
            if piece.end == extent.logical_bytes {
                self.extents.pop_front();
            }
            return Ok(Some(bytes));
        }
        Err(ReadError::Missing(self.at))
    }

    async fn read(
        &self,
        extent: &Extent,
        first: u64,
        piece: Range<u64>,
    ) -> Result<Bytes, mlgw_tiering::ReadError> {
        if !self.from_disks {
            return self.tiers.read(extent, self.body, first, piece, self.turn).await;
        }
        let segment = extent.segment_id();
        if self.tiers.hot.is_far(segment) {
            return Err(mlgw_tiering::ReadError::Gone { segment });
        }
        self.tiers.hot.read(extent, self.body, piece, self.turn).await
    }

    /// The extent in front with its first byte in the body, and what of it to read next.
    fn piece(&self) -> Option<(u64, Extent, Range<u64>)> {
        let (first, extent) = self.extents.front()?;
        let from = self.at - first;
        let piece_bytes = match extent.encoding() {
            Encoding::Raw => self.piece_bytes,
            Encoding::Zstd => self.piece_bytes.min(UNPACKED_PIECE_BYTES),
        };
        // Pieces end on block borders, so that no block is read and verified twice.
        let border = (from / piece_bytes + 1) * piece_bytes;
        let to = border.min(extent.logical_bytes).min(self.end - first);
        Some((*first, extent.clone(), from..to))
    }

    /// Says what will be read next, once for each extent, where reads take long.
    fn look_ahead(&self, extent: &Extent, piece: &Range<u64>) {
        let begins = piece.start == 0 && self.extents.len() > 1;
        if begins && self.tiers.hot.is_far(extent.segment_id()) {
            let next = self.extents.iter().skip(1).take(AHEAD_EXTENTS).map(|(_, extent)| extent);
            self.tiers.hot.will_read(next);
        }
    }

    /// Pins what the record names, before the first of several pieces. False when some of it is gone.
    fn pin_segments(&mut self) -> bool {
        if self.map.is_none() && self.segments.is_none() {
            let segments = self.extents.iter().map(|(_, extent)| extent.segment_id()).collect();
            self.segments = self.tiers.hot.pin(segments);
            return self.segments.is_some();
        }
        true
    }

    /// Finds the body again whose bytes are no longer where they were: moved, or replaced.
    fn look_again(&mut self) -> Result<(), ReadError> {
        self.extents.clear();
        self.segments = None;
        if self.map.is_some() {
            return Ok(());
        }
        let object = self.catalogue.object(self.bucket, &self.key)?;
        let object = object.filter(|object| object.body() == self.body).ok_or(ReadError::Missing(self.at))?;
        self.queue(0, object.extents.into_iter());
        Ok(())
    }

    /// Fetches the extents that hold the byte at `self.at`, and perhaps those behind it.
    fn fetch(&mut self) -> Result<(), ReadError> {
        // Once something names it after it was pinned, it stays to the end; else what is fetched first might be all that is left of it.
        if !self.is_sure && self.catalogue.is_given_up(self.bucket, &self.key, self.body)? {
            return Err(ReadError::Missing(self.at));
        }
        self.is_sure = true;
        let reader = self.catalogue.reader();
        let page = reader.extent_pages(self.bucket, &self.key, self.body, self.at).next().transpose()?;
        let (first, page) = page.ok_or(ReadError::Missing(self.at))?;
        if page.parts.is_empty() {
            self.queue(first, page.extents.into_iter());
            return Ok(());
        }
        let (first, number) = part_at(first, &page, self.at).ok_or(ReadError::Missing(self.at))?;
        let part = self.catalogue.part(self.bucket, &self.key, self.body, number)?;
        let part = part.ok_or(ReadError::Missing(self.at))?;
        self.queue(first, part.extents.into_iter());
        Ok(())
    }

    /// Queues those of `extents`, which begin at byte `first`, that reach beyond `self.at`.
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

/// The part of a page that holds byte `at`, with the part's first byte.
fn part_at(mut first: u64, page: &ExtentPage, at: u64) -> Option<(u64, PartNumber)> {
    for part in &page.parts {
        if at < first + part.bytes {
            return Some((first, PartNumber::new(part.number)?));
        }
        first += part.bytes;
    }
    None
}

/// The parts of a multipart object in order, each with its bytes.
///
/// # Errors
/// When the catalogue cannot be read or lacks a page.
pub fn part_ranges(
    catalogue: &Catalogue,
    bucket: BucketId,
    key: &ObjectKey,
    object: &ObjectVersion,
) -> Result<Vec<PartRange>, ReadError> {
    let reader = catalogue.reader();
    let mut parts: Vec<PartRange> = Vec::new();
    for page in reader.extent_pages(bucket, key, BodyId(object.body_id), 0) {
        parts.extend(page?.1.parts);
    }
    assert!(parts.len() == object.part_count as usize, "an index names every part");
    Ok(parts)
}
