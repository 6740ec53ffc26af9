//! Reads from segments. Every byte returned was verified against the checksum of its block.
//!
//! A small read is first tried on the caller's thread with one `preadv2(RWF_NOWAIT)` of the record header and
//! the requested blocks; if the page cache does not have all of it, or for larger reads, a bounded pool of
//! blocking threads executes it; for a segment at an upstream the same ranges are fetched from there. On a
//! node with peers, another replica answers what the local disk cannot. The record header must verify at the
//! extent's location and match the extent and the body before its checksum table is used. No lock is held
//! across an await, and the bytes are returned in the buffer they were read into; compressed chunks are
//! decompressed first.

mod compressed;
pub(super) mod error;
pub(super) mod other_replica;
mod raw;
mod replicated;
mod slow_reads;
mod source_health;

use mlgw_common::time::Instant;
use std::collections::BTreeSet;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use mlgw_common::ids::{BodyId, SegmentId, SegmentSeed};
use mlgw_common::limits::{BLOCK_BYTES, INLINE_READ_BYTES_MAX, SUSPECTS_MAX};
use mlgw_formats::schema::{Encoding, Extent};
use parking_lot::Mutex;
use rustix::io::{Errno, ReadWriteFlags};

use super::files::{OpenSegmentFile, SegmentFileCache};
use super::holes::Holes;
use super::location::RecordLocation;
use super::metrics::{HotCounters, add};
use super::remote_tier::{RemoteSegment, RemoteTier};
use crate::fair::{DiskQueue, DiskQueues, Lane, ServiceClass};
use error::{ReadFault, SegmentReadError};
use mlgw_formats::segment_payload::Payload;
use mlgw_formats::segment_record::{RecordAddress, RecordHead, RecordOwner};
use other_replica::OtherReplicas;
use slow_reads::FileReadTracker;

/// A record at an upstream is fetched whole if at least this fraction (1/n) of it is requested.
const WHOLE_RECORD_FRACTION: usize = 8;

pub(super) struct SegmentReader {
    inner: Arc<SegmentReaderInner>,
}

struct SegmentReaderInner {
    files: SegmentFileCache,
    remote_tier: Arc<RemoteTier>,
    holes: Arc<Holes>,
    metrics: Arc<HotCounters>,
    queues: DiskQueues,
    reads: Arc<FileReadTracker>,
    /// `None` for a node without peers.
    others: Option<Arc<OtherReplicas>>,
    /// Locations at which reads found damage, for the scrub.
    suspects: Mutex<BTreeSet<(SegmentId, u64)>>,
    /// Segments that the disk failed to read.
    unreadable: Mutex<BTreeSet<SegmentId>>,
}

/// The bytes that one read fetches.
#[derive(Clone, Debug)]
struct ReadPlan {
    location: RecordLocation,
    body: BodyId,
    /// Requested bytes, as a range of the uncompressed payload.
    range: Range<usize>,
    /// Blocks that contain the requested bytes, and their range in the stored payload; the whole payload if
    /// compressed, since only its header has the positions of blocks.
    blocks: Range<usize>,
    payload: Range<usize>,
}

enum PageCacheRead {
    Bytes(Bytes),
    /// The page cache does not have all bytes.
    NotCached,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadMode {
    Cached,
    Disk,
}

impl SegmentReader {
    pub(super) fn new(
        files: SegmentFileCache,
        remote_tier: Arc<RemoteTier>,
        holes: Arc<Holes>,
        queues: DiskQueues,
        metrics: Arc<HotCounters>,
        others: Option<Arc<OtherReplicas>>,
    ) -> Self {
        let (reads, suspects, unreadable) = (Arc::default(), Mutex::default(), Mutex::default());
        Self {
            inner: Arc::new(SegmentReaderInner {
                files,
                remote_tier,
                holes,
                metrics,
                queues,
                reads,
                others,
                suspects,
                unreadable,
            }),
        }
    }

    /// Returns and clears the locations (segment and offset) at which reads found damage.
    pub(super) fn take_suspects(&self) -> BTreeSet<(SegmentId, u64)> {
        std::mem::take(&mut *self.inner.suspects.lock())
    }

    /// Returns and clears the segments that the disk failed to read.
    pub(super) fn take_unreadable(&self) -> BTreeSet<SegmentId> {
        std::mem::take(&mut *self.inner.unreadable.lock())
    }

    /// Returns and resets the number of reads of each segment.
    pub(super) fn take_reads(&self) -> Vec<(SegmentId, u64)> {
        self.inner.files.take_reads()
    }

    pub(super) fn open_files(&self) -> usize {
        self.inner.files.len()
    }

    /// Drops cached state of a segment that was released or moved, and closes its file.
    pub(super) fn invalidate(&self, segment: SegmentId) {
        self.inner.files.invalidate(segment);
        self.inner.remote_tier.invalidate(segment);
    }

    /// Closes all files.
    pub(super) fn invalidate_all(&self) {
        self.inner.files.invalidate_all();
    }

    /// Returns the whole chunk of `body` at `extent`, as stored, with its owner.
    pub(super) async fn chunk(
        &self,
        extent: &Extent,
        body: BodyId,
        lane: Lane,
    ) -> Result<(RecordOwner, Payload), SegmentReadError> {
        let segment = extent.segment_id();
        let plan = ReadPlan::new(extent, body, 0..extent.logical_bytes)
            .ok_or_else(|| invalid_extent_error(extent))?;
        if let Some(remote) = self.inner.find_remote(segment)? {
            return Box::pin(self.inner.chunk_from_remote(&plan, &remote)).await;
        }
        if let Some(others) = &self.inner.others {
            return Box::pin(self.inner.read_replicated(others, &plan, lane.into())).await;
        }
        let inner = self.inner.clone();
        let (disk, bytes) = (self.inner.queue_of(segment), plan.bytes());
        self.inner.reads.run(segment, disk, lane.into(), bytes, move || inner.chunk_from_disk(&plan)).await
    }

    /// Starts to fetch extents that will be read next, as far as they are at an upstream.
    pub(super) fn read_ahead<'e>(&self, extents: impl Iterator<Item = &'e Extent>) {
        for location in extents.filter_map(RecordLocation::of) {
            if let Ok(Some(remote)) = self.inner.remote_tier.find(location.segment) {
                self.inner.remote_tier.read_ahead(remote, location.record());
            }
        }
    }

    pub(super) async fn read(
        &self,
        extent: &Extent,
        body: BodyId,
        range: Range<u64>,
        turn: ServiceClass,
    ) -> Result<Bytes, SegmentReadError> {
        let inner = &self.inner;
        let read = match ReadPlan::new(extent, body, range) {
            Some(plan) => inner.run(plan, turn).await,
            None => Err(invalid_extent_error(extent)),
        };
        match &read {
            Ok(bytes) => add(&inner.metrics.read_bytes, bytes.len() as u64),
            Err(error) => inner.count_error(error),
        }
        read
    }
}

impl SegmentReaderInner {
    async fn run(self: &Arc<Self>, plan: ReadPlan, turn: ServiceClass) -> Result<Bytes, SegmentReadError> {
        if plan.location.is_compressed() {
            // Boxed because the future is larger than that of an uncompressed read, and rarer.
            return Box::pin(self.read_compressed(plan, turn)).await;
        }
        if plan.payload.len() as u64 <= INLINE_READ_BYTES_MAX
            && let Some(opened) = self.files.get(plan.location.segment)
            && opened.can_read_nowait()
            && let PageCacheRead::Bytes(bytes) =
                self.or_by_pool(self.fetch(&plan, &opened, ReadMode::Cached))?
        {
            opened.count_read();
            add(&self.metrics.reads_inline, 1);
            return Ok(bytes);
        }
        let segment = plan.location.segment;
        if let Some(remote) = self.find_remote(segment)? {
            // Boxed because the future is kilobytes large and would be moved with every read from a disk.
            return Box::pin(self.read_from_remote(&plan, &remote)).await;
        }
        if let Some(others) = &self.others {
            return Box::pin(self.read_replicated(others, &plan, turn)).await;
        }
        let arrived = Instant::now();
        let (inner, bytes) = (self.clone(), plan.bytes());
        let read = move || inner.bytes_from_disk(&plan, arrived);
        self.reads.run(segment, self.queue_of(segment), turn, bytes, read).await
    }

    /// Returns the result of a read from the page cache. On a node with peers the pool repeats one that
    /// failed, and reads another replica.
    fn or_by_pool(
        &self,
        read: Result<PageCacheRead, SegmentReadError>,
    ) -> Result<PageCacheRead, SegmentReadError> {
        match read {
            Err(_) if self.others.is_some() => Ok(PageCacheRead::NotCached),
            read => read,
        }
    }

    /// Reads the requested bytes, for a request that arrived at this time. Blocks the calling thread.
    fn bytes_from_disk(&self, plan: &ReadPlan, arrived: Instant) -> Result<Bytes, SegmentReadError> {
        add(&self.metrics.reads_disk, 1);
        self.metrics.disk_read_wait.record(arrived.elapsed());
        if plan.location.is_compressed() {
            self.compressed_from_disk(plan)
        } else {
            self.read_from_disk(plan)
        }
    }

    /// Returns the queue of the disk that holds a segment.
    fn queue_of(&self, segment: SegmentId) -> &DiskQueue {
        self.queues.for_tier(self.remote_tier.tier(segment))
    }

    fn read_from_disk(&self, plan: &ReadPlan) -> Result<Bytes, SegmentReadError> {
        let segment = plan.location.segment;
        let opened = self.files.open(segment).map_err(|source| SegmentReadError::Io { segment, source })?;
        let opened = opened.ok_or(SegmentReadError::Gone { segment })?;
        opened.count_read();
        match self.fetch(plan, &opened, ReadMode::Disk)? {
            PageCacheRead::Bytes(bytes) => Ok(bytes),
            PageCacheRead::NotCached => Err(plan.corrupt(plan.location.offset, ReadFault::Truncated)),
        }
    }

    fn chunk_from_disk(&self, plan: &ReadPlan) -> Result<(RecordOwner, Payload), SegmentReadError> {
        let RecordLocation { segment, offset, head_bytes, .. } = plan.location;
        let opened = self.files.open(segment).map_err(|source| SegmentReadError::Io { segment, source })?;
        let opened = opened.ok_or(SegmentReadError::Gone { segment })?;
        let mut record = vec![0; head_bytes as usize + plan.payload.end];
        self.fill(plan, &opened, &mut record, offset, ReadMode::Disk)?;
        let place = RecordAddress { segment, seed: opened.seed, offset };
        let mut head = Bytes::from(record);
        let payload = head.split_off(head_bytes as usize);
        plan.verify_whole(place, &head, payload)
    }

    fn find_remote(&self, segment: SegmentId) -> Result<Option<Arc<RemoteSegment>>, SegmentReadError> {
        self.remote_tier.find(segment).map_err(|source| SegmentReadError::Io { segment, source })
    }

    async fn chunk_from_remote(
        &self,
        plan: &ReadPlan,
        remote: &RemoteSegment,
    ) -> Result<(RecordOwner, Payload), SegmentReadError> {
        let mut head = self.remote_tier.read(remote, plan.record()).await?;
        let payload = head.split_off(plan.location.head_bytes as usize);
        plan.verify_whole(plan.place(remote.seed), &head, payload)
    }

    /// Returns the whole record if much of it is requested: the rest and other readers' requests are then
    /// likely to follow.
    async fn whole_record_from_remote(
        &self,
        plan: &ReadPlan,
        remote: &RemoteSegment,
    ) -> Result<Option<Bytes>, SegmentReadError> {
        let stored = plan.location.payload_bytes as usize;
        if plan.payload.len() * WHOLE_RECORD_FRACTION < stored {
            return Ok(None);
        }
        let record = plan.location.record();
        let begin = record.start;
        let whole = self.remote_tier.read_whole(remote, record).await?;
        let is_last_read = plan.blocks.end == plan.location.blocks();
        if whole.is_some() && is_last_read {
            self.remote_tier.drop_read_ahead(remote, begin);
        }
        Ok(whole)
    }

    /// Reads the requested bytes from an upstream: in one request, or, from the middle of a long record, in
    /// two parallel ones.
    async fn read_from_remote(
        &self,
        plan: &ReadPlan,
        remote: &RemoteSegment,
    ) -> Result<Bytes, SegmentReadError> {
        let (place, head_bytes) = (plan.place(remote.seed), plan.location.head_bytes as usize);
        if let Some(record) = self.whole_record_from_remote(plan, remote).await? {
            let (head, payload) = record.split_at(head_bytes);
            plan.verify(place, head, &payload[plan.payload.clone()])?;
            // Copied, since a slice would keep the whole record in memory until its client has read the
            // piece.
            let part = payload.len() > plan.range.len();
            let wanted = || Bytes::copy_from_slice(&payload[plan.range.clone()]);
            return Ok(if part { wanted() } else { record.slice(head_bytes..) });
        }
        if plan.is_one_read() {
            let mut record = self.remote_tier.read(remote, plan.record()).await?;
            let (head, payload) = record.split_at(head_bytes);
            plan.verify(place, head, &payload[plan.payload.start..])?;
            bytes::Buf::advance(&mut record, head_bytes);
            return Ok(plan.narrow_to_request(record, 0));
        }
        let [head, blocks] = plan.head_and_blocks();
        let (head, payload) =
            tokio::try_join!(self.remote_tier.read(remote, head), self.remote_tier.read(remote, blocks))?;
        plan.verify(place, &head, &payload)?;
        Ok(plan.narrow_to_request(payload, plan.payload.start))
    }

    fn fetch(
        &self,
        plan: &ReadPlan,
        opened: &OpenSegmentFile,
        how: ReadMode,
    ) -> Result<PageCacheRead, SegmentReadError> {
        let RecordLocation { segment, offset, head_bytes, .. } = plan.location;
        let place = RecordAddress { segment, seed: opened.seed, offset };
        let payload_at = offset + u64::from(head_bytes);
        let head_bytes = head_bytes as usize;
        if !plan.is_one_read() {
            let mut head = vec![0; head_bytes];
            let mut payload = vec![0; plan.payload.len()];
            let blocks_at = payload_at + plan.payload.start as u64;
            if !self.fill(plan, opened, &mut head, offset, how)?
                || !self.fill(plan, opened, &mut payload, blocks_at, how)?
            {
                return Ok(PageCacheRead::NotCached);
            }
            plan.verify(place, &head, &payload)?;
            return Ok(PageCacheRead::Bytes(plan.requested_part(payload, plan.payload.start)));
        }
        let mut record = vec![0; head_bytes + plan.payload.end];
        if !self.fill(plan, opened, &mut record, offset, how)? {
            return Ok(PageCacheRead::NotCached);
        }
        let (head, payload) = record.split_at(head_bytes);
        plan.verify(place, head, &payload[plan.payload.start..])?;
        let mut bytes = Bytes::from(record);
        bytes::Buf::advance(&mut bytes, head_bytes);
        Ok(PageCacheRead::Bytes(plan.narrow_to_request(bytes, 0)))
    }

    /// Fills `out` from the file. Returns false if the page cache does not have all of it.
    fn fill(
        &self,
        plan: &ReadPlan,
        opened: &OpenSegmentFile,
        out: &mut [u8],
        offset: u64,
        how: ReadMode,
    ) -> Result<bool, SegmentReadError> {
        let (segment, file) = (plan.location.segment, &opened.file);
        match how {
            ReadMode::Cached => {
                let wanted = out.len();
                let flags = ReadWriteFlags::NOWAIT;
                match rustix::io::preadv2(file, &mut [IoSliceMut::new(out)], offset, flags) {
                    Ok(got) => Ok(got == wanted),
                    Err(Errno::OPNOTSUPP) => {
                        opened.disable_nowait();
                        Ok(false)
                    }
                    // The pool retries and reports the error, if it persists.
                    Err(_) => Ok(false),
                }
            }
            ReadMode::Disk => match std::os::unix::fs::FileExt::read_exact_at(file, out, offset) {
                Ok(()) => Ok(true),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    Err(plan.corrupt(plan.location.offset, ReadFault::Truncated))
                }
                Err(source) => Err(SegmentReadError::Io { segment, source }),
            },
        }
    }

    fn count_error(&self, error: &SegmentReadError) {
        add(&self.metrics.read_errors, 1);
        self.record_damage(error);
    }

    /// Records damage for the scrub and for the driver of replicas. What a partial replica of a segment of
    /// another node lacks is no damage.
    fn record_damage(&self, error: &SegmentReadError) {
        let (SegmentReadError::Io { segment, .. } | SegmentReadError::Corrupt { segment, .. }) = error else {
            return;
        };
        if self.others.as_ref().is_some_and(|others| !others.is_damage(*segment)) {
            return tracing::debug!(%error, "the replica of this node is not complete, or is marked");
        }
        if let SegmentReadError::Io { segment, source } = error
            && source.raw_os_error() == Some(Errno::IO.raw_os_error())
        {
            let mut unreadable = self.unreadable.lock();
            if unreadable.len() < SUSPECTS_MAX {
                unreadable.insert(*segment);
            }
        }
        if let SegmentReadError::Corrupt { segment, offset, .. } = error {
            if self.holes.bytes_in(*segment) > 0 {
                // The chunk was evicted during the read; the caller gets it from elsewhere.
                return tracing::debug!(%error, "a chunk of a segment with holes failed verification");
            }
            let mut suspects = self.suspects.lock();
            if suspects.len() < SUSPECTS_MAX {
                suspects.insert((*segment, *offset));
            }
            drop(suspects);
            add(&self.metrics.corrupt_blocks, 1);
            tracing::error!(%error, "a read failed verification");
        }
    }
}

impl ReadPlan {
    fn new(extent: &Extent, body: BodyId, range: Range<u64>) -> Option<Self> {
        let location = RecordLocation::of(extent)?;
        if range.start >= range.end || range.end > u64::from(location.logical_bytes) {
            return None;
        }
        let blocks = (range.start / BLOCK_BYTES) as usize..range.end.div_ceil(BLOCK_BYTES) as usize;
        let stored = location.payload_bytes as usize;
        let payload = match location.encoding {
            Encoding::Raw => {
                blocks.start * BLOCK_BYTES as usize..stored.min(blocks.end * BLOCK_BYTES as usize)
            }
            Encoding::Zstd => 0..stored,
        };
        let range = range.start as usize..range.end as usize;
        Some(Self { location, body, range, blocks, payload })
    }

    /// True if header and blocks are fetched in one read, including blocks that were not requested.
    fn is_one_read(&self) -> bool {
        self.payload.start == 0 || self.payload.end as u64 <= INLINE_READ_BYTES_MAX
    }

    /// Number of bytes to read.
    fn bytes(&self) -> u64 {
        (self.location.head_bytes as usize + self.payload.len()) as u64
    }

    /// The range in the segment's file from the record's first byte to the last requested block.
    fn record(&self) -> Range<u64> {
        let RecordLocation { offset, head_bytes, .. } = self.location;
        offset..offset + u64::from(head_bytes) + self.payload.end as u64
    }

    /// The ranges of the record's header and of the requested blocks in the segment's file.
    fn head_and_blocks(&self) -> [Range<u64>; 2] {
        let RecordLocation { offset, head_bytes, .. } = self.location;
        let payload_at = offset + u64::from(head_bytes);
        let Range { start, end } = self.payload;
        [offset..payload_at, payload_at + start as u64..payload_at + end as u64]
    }

    /// Returns the place of the record in a segment with this seed.
    fn place(&self, seed: SegmentSeed) -> RecordAddress {
        RecordAddress { segment: self.location.segment, seed, offset: self.location.offset }
    }

    /// Verifies a whole record and returns its owner and its payload.
    fn verify_whole(
        &self,
        place: RecordAddress,
        head: &[u8],
        payload: Bytes,
    ) -> Result<(RecordOwner, Payload), SegmentReadError> {
        let head = self.verify(place, head, &payload)?;
        let owner = head.owner().ok_or_else(|| self.corrupt(self.location.offset, ReadFault::Mismatch))?;
        Ok((owner, Payload::from_record(&head, payload)))
    }

    /// Verifies the record header and compares it with the extent.
    fn verify_head<'h>(
        &self,
        place: RecordAddress,
        head: &'h [u8],
    ) -> Result<RecordHead<'h>, SegmentReadError> {
        let record = RecordHead::decode(place, head)
            .map_err(|fault| self.corrupt(self.location.offset, ReadFault::Head(fault)))?;
        let same = record.body == self.body
            && record.encoding == self.location.encoding
            && record.head_bytes == self.location.head_bytes as usize
            && record.stored_bytes == self.location.payload_bytes as usize
            && record.logical_bytes == self.location.logical_bytes as usize;
        if same { Ok(record) } else { Err(self.corrupt(self.location.offset, ReadFault::Mismatch)) }
    }

    /// Verifies the record header and then every fetched block; `payload` holds those blocks.
    fn verify<'h>(
        &self,
        place: RecordAddress,
        head: &'h [u8],
        payload: &[u8],
    ) -> Result<RecordHead<'h>, SegmentReadError> {
        let record = self.verify_head(place, head)?;
        let begin = record.block(self.blocks.start).start;
        for index in self.blocks.clone() {
            let Range { start, end } = record.block(index);
            let is_good = payload
                .get(start - begin..end - begin)
                .is_some_and(|block| record.is_block_intact(index, block));
            if !is_good {
                let at = (record.head_bytes + start) as u64;
                return Err(self.corrupt(self.location.offset + at, ReadFault::Block(index as u32)));
            }
        }
        Ok(record)
    }

    fn requested_part(&self, payload: Vec<u8>, from: usize) -> Bytes {
        self.narrow_to_request(Bytes::from(payload), from)
    }

    /// Returns the requested part of payload bytes that begin at offset `from` of the payload.
    fn narrow_to_request(&self, mut bytes: Bytes, from: usize) -> Bytes {
        bytes::Buf::advance(&mut bytes, self.range.start - from);
        if bytes.len() > self.range.len() {
            bytes.truncate(self.range.len());
        }
        bytes
    }

    fn corrupt(&self, offset: u64, fault: ReadFault) -> SegmentReadError {
        SegmentReadError::Corrupt { segment: self.location.segment, offset, fault }
    }
}

/// Returns the error for an extent that no record can have, or for a range outside of it.
fn invalid_extent_error(extent: &Extent) -> SegmentReadError {
    let encoding = Encoding::try_from(extent.encoding);
    let fault = encoding.map_or(ReadFault::Encoding(extent.encoding), |_| ReadFault::Extent);
    SegmentReadError::Corrupt { segment: extent.segment_id(), offset: extent.offset, fault }
}
