//! Reads of compressed chunks: the record header has the positions of the requested blocks, which are read,
//! verified as stored, and decompressed.
//!
//! A single block in the page cache is decompressed on the caller's thread. Everything else is done in one
//! step by a thread of the blocking pool, within the slot of the read at the disk: so slots bound the memory
//! and the threads of decompression, and lanes share it as they share the disk. Nothing is written, so a
//! power loss has no effect.

use mlgw_common::time::Instant;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use mlgw_common::ids::SegmentId;
use mlgw_common::limits::{BLOCK_BYTES, INLINE_DECOMPRESS_BYTES_MAX};

use super::error::{ReadFault, SegmentReadError};
use super::{PageCacheRead, ReadMode, ReadPlan, SegmentReaderInner};
use crate::fair::ServiceClass;
use crate::hot::files::OpenSegmentFile;
use crate::hot::metrics::add;
use crate::hot::remote_tier::RemoteSegment;
use mlgw_formats::segment_record::{RecordAddress, RecordHead};
use mlgw_formats::segment_zstd::BlockDecompressor;

const BLOCK: usize = BLOCK_BYTES as usize;

impl SegmentReaderInner {
    pub(super) async fn read_compressed(
        self: &Arc<Self>,
        plan: ReadPlan,
        turn: ServiceClass,
    ) -> Result<Bytes, SegmentReadError> {
        let segment = plan.location.segment;
        if plan.is_small()
            && let Some(opened) = self.files.get(segment)
            && opened.can_read_nowait()
            && let PageCacheRead::Bytes(bytes) =
                self.or_by_pool(self.fetch_compressed(&plan, &opened, ReadMode::Cached))?
        {
            opened.count_read();
            add(&self.metrics.reads_inline, 1);
            return Ok(bytes);
        }
        if let Some(remote) = self.find_remote(segment)? {
            return self.compressed_from_remote(plan, &remote, turn).await;
        }
        if let Some(others) = &self.others {
            return Box::pin(self.read_replicated(others, &plan, turn)).await;
        }
        let arrived = Instant::now();
        let (inner, bytes) = (self.clone(), plan.bytes());
        let read = move || inner.bytes_from_disk(&plan, arrived);
        self.reads.run(segment, self.queue_of(segment), turn, bytes, read).await
    }

    pub(super) fn compressed_from_disk(&self, plan: &ReadPlan) -> Result<Bytes, SegmentReadError> {
        let segment = plan.location.segment;
        let opened = self.files.open(segment).map_err(|source| SegmentReadError::Io { segment, source })?;
        let opened = opened.ok_or(SegmentReadError::Gone { segment })?;
        opened.count_read();
        match self.fetch_compressed(plan, &opened, ReadMode::Disk)? {
            PageCacheRead::Bytes(bytes) => Ok(bytes),
            PageCacheRead::NotCached => Err(plan.corrupt(plan.location.offset, ReadFault::Truncated)),
        }
    }

    /// Reads the header and the requested blocks, in one read if that is little or the whole record.
    fn fetch_compressed(
        &self,
        plan: &ReadPlan,
        opened: &OpenSegmentFile,
        how: ReadMode,
    ) -> Result<PageCacheRead, SegmentReadError> {
        let (location, place) = (plan.location, plan.place(opened.seed));
        let (head_bytes, stored_bytes) = (location.head_bytes as usize, location.payload_bytes as usize);
        if plan.has_all_blocks() || stored_bytes <= BLOCK {
            let mut record = vec![0; head_bytes + stored_bytes];
            if !self.fill(plan, opened, &mut record, location.offset, how)? {
                return Ok(PageCacheRead::NotCached);
            }
            let (head, payload) = record.split_at(head_bytes);
            return plan.decompress_record(place, head, payload).map(PageCacheRead::Bytes);
        }
        let mut head = vec![0; head_bytes];
        if !self.fill(plan, opened, &mut head, location.offset, how)? {
            return Ok(PageCacheRead::NotCached);
        }
        let wanted = plan.stored_blocks(&plan.verify_head(place, &head)?);
        let mut payload = vec![0; wanted.len()];
        let payload_at = location.offset + (head_bytes + wanted.start) as u64;
        if !self.fill(plan, opened, &mut payload, payload_at, how)? {
            return Ok(PageCacheRead::NotCached);
        }
        plan.decompress_blocks(place, &head, &payload).map(PageCacheRead::Bytes)
    }

    /// Fetches the record, shared with other readers as far as there is space for that.
    async fn compressed_from_remote(
        &self,
        plan: ReadPlan,
        remote: &RemoteSegment,
        turn: ServiceClass,
    ) -> Result<Bytes, SegmentReadError> {
        let record = match self.whole_record_from_remote(&plan, remote).await? {
            Some(record) => record,
            None => self.remote_tier.read(remote, plan.record()).await?,
        };
        let (place, segment) = (plan.place(remote.seed), plan.location.segment);
        let is_small = plan.is_small();
        let unpack = move || {
            let (head, payload) = record.split_at(plan.location.head_bytes as usize);
            plan.decompress_record(place, head, payload)
        };
        if is_small {
            return unpack();
        }
        let _place = self.queues.hot.acquire(turn, 0).await;
        blocking(segment, unpack).await
    }
}

/// Runs `read` on the blocking pool.
pub(super) async fn blocking<T: Send + 'static>(
    segment: SegmentId,
    read: impl FnOnce() -> Result<T, SegmentReadError> + Send + 'static,
) -> Result<T, SegmentReadError> {
    let read = tokio::task::spawn_blocking(read).await;
    read.unwrap_or_else(|stopped| Err(SegmentReadError::Io { segment, source: io::Error::other(stopped) }))
}

impl ReadPlan {
    /// True if the blocks are decompressed on the caller's thread.
    pub(super) fn is_small(&self) -> bool {
        self.blocks.len() as u64 * BLOCK_BYTES <= INLINE_DECOMPRESS_BYTES_MAX
    }

    /// True if all blocks are requested.
    fn has_all_blocks(&self) -> bool {
        self.blocks.len() == self.location.blocks()
    }

    /// Range of the requested blocks in the stored payload.
    fn stored_blocks(&self, head: &RecordHead<'_>) -> Range<usize> {
        head.block(self.blocks.start).start..head.block(self.blocks.end - 1).end
    }

    /// Returns the requested bytes, from the record's header and whole payload.
    pub(super) fn decompress_record(
        &self,
        place: RecordAddress,
        head: &[u8],
        payload: &[u8],
    ) -> Result<Bytes, SegmentReadError> {
        let wanted = payload.get(self.stored_blocks(&self.verify_head(place, head)?));
        self.decompress_blocks(
            place,
            head,
            wanted.ok_or_else(|| self.corrupt(self.location.offset, ReadFault::Truncated))?,
        )
    }

    /// Verifies and then decompresses the stored blocks with the requested bytes.
    fn decompress_blocks(
        &self,
        place: RecordAddress,
        head: &[u8],
        payload: &[u8],
    ) -> Result<Bytes, SegmentReadError> {
        let record = self.verify(place, head, payload)?;
        let (begin, first) = (self.stored_blocks(&record).start, self.blocks.start * BLOCK);
        let end = (self.blocks.end * BLOCK).min(record.logical_bytes);
        let (mut bytes, mut unpacker) = (vec![0; end - first], BlockDecompressor::take());
        for (index, out) in self.blocks.clone().zip(bytes.chunks_mut(BLOCK)) {
            let Range { start, end } = record.block(index);
            let at = self.location.offset + (record.head_bytes + start) as u64;
            let unpacked = unpacker.decompress(&payload[start - begin..end - begin], out);
            unpacked.map_err(|_| self.corrupt(at, ReadFault::Undecompressible(index as u32)))?;
        }
        Ok(self.requested_part(bytes, first))
    }
}
