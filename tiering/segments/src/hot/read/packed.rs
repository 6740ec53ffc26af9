//! Reads of compressed chunks: the record header has the positions of the requested blocks, which are read,
//! verified as stored, and decompressed.
//!
//! A single block in the page cache is decompressed on the caller's thread. Everything else is done in one
//! step by a thread of the blocking pool, within the slot of the read at the disk: so slots bound the memory
//! and the threads of decompression, and lanes share it as they share the disk. Nothing is written, so a
//! power loss has no effect.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use mlgw_common::ids::SegmentId;
use mlgw_common::limits::{BLOCK_BYTES, INLINE_UNPACK_BYTES_MAX};

use super::{Fault, Fetched, How, Inner, Plan, ReadError};
use crate::fair::Turn;
use crate::hot::away::Remote;
use crate::hot::files::Opened;
use crate::hot::metrics::add;
use mlgw_formats::segment_record::{Head, Place};
use mlgw_formats::segment_zstd::Unpacker;

const BLOCK: usize = BLOCK_BYTES as usize;

impl Inner {
    pub(super) async fn run_packed(self: &Arc<Self>, plan: Plan, turn: Turn) -> Result<Bytes, ReadError> {
        let segment = plan.location.segment;
        if plan.is_small()
            && let Some(opened) = self.files.get(segment)
            && opened.takes_nowait()
            && let Fetched::Bytes(bytes) = self.fetch_packed(&plan, &opened, How::Cached)?
        {
            opened.was_read();
            add(&self.metrics.reads_inline, 1);
            return Ok(bytes);
        }
        if let Some(remote) = self.find_away(segment)? {
            return self.packed_from_away(plan, &remote, turn).await;
        }
        let arrived = Instant::now();
        let inner = self.clone();
        let read = self.reads.run(segment, (self.places(segment), turn, plan.bytes()), move || {
            add(&inner.metrics.reads_disk, 1);
            inner.metrics.disk_read_wait.record(arrived.elapsed());
            inner.packed_from_disk(&plan)
        });
        read.await
    }

    fn packed_from_disk(&self, plan: &Plan) -> Result<Bytes, ReadError> {
        let segment = plan.location.segment;
        let opened = self.files.open(segment).map_err(|source| ReadError::Io { segment, source })?;
        let opened = opened.ok_or(ReadError::Gone { segment })?;
        opened.was_read();
        match self.fetch_packed(plan, &opened, How::Disk)? {
            Fetched::Bytes(bytes) => Ok(bytes),
            Fetched::NotCached => Err(plan.corrupt(plan.location.offset, Fault::Truncated)),
        }
    }

    /// Reads the header and the requested blocks, in one read if that is little or the whole record.
    fn fetch_packed(&self, plan: &Plan, opened: &Opened, how: How) -> Result<Fetched, ReadError> {
        let (location, place) = (plan.location, plan.place(opened.seed));
        let (head_bytes, stored_bytes) = (location.head_bytes as usize, location.payload_bytes as usize);
        if plan.wants_all() || stored_bytes <= BLOCK {
            let mut record = vec![0; head_bytes + stored_bytes];
            if !self.fill(plan, opened, &mut record, location.offset, how)? {
                return Ok(Fetched::NotCached);
            }
            let (head, payload) = record.split_at(head_bytes);
            return plan.unpack_whole(place, head, payload).map(Fetched::Bytes);
        }
        let mut head = vec![0; head_bytes];
        if !self.fill(plan, opened, &mut head, location.offset, how)? {
            return Ok(Fetched::NotCached);
        }
        let wanted = plan.stored_blocks(&plan.head(place, &head)?);
        let mut payload = vec![0; wanted.len()];
        let payload_at = location.offset + (head_bytes + wanted.start) as u64;
        if !self.fill(plan, opened, &mut payload, payload_at, how)? {
            return Ok(Fetched::NotCached);
        }
        plan.unpack(place, &head, &payload).map(Fetched::Bytes)
    }

    /// Fetches the record, shared with other readers as far as there is space for that.
    async fn packed_from_away(&self, plan: Plan, remote: &Remote, turn: Turn) -> Result<Bytes, ReadError> {
        let record = match self.whole_from_away(&plan, remote).await? {
            Some(record) => record,
            None => self.away.read(remote, plan.record()).await?,
        };
        let (place, segment) = (plan.place(remote.seed), plan.location.segment);
        let is_small = plan.is_small();
        let unpack = move || {
            let (head, payload) = record.split_at(plan.location.head_bytes as usize);
            plan.unpack_whole(place, head, payload)
        };
        if is_small {
            return unpack();
        }
        let _place = self.queues.hot.enter(turn, 0).await;
        blocking(segment, unpack).await
    }
}

/// Runs `read` on the blocking pool.
async fn blocking(
    segment: SegmentId,
    read: impl FnOnce() -> Result<Bytes, ReadError> + Send + 'static,
) -> Result<Bytes, ReadError> {
    let read = tokio::task::spawn_blocking(read).await;
    read.unwrap_or_else(|stopped| Err(ReadError::Io { segment, source: io::Error::other(stopped) }))
}

impl Plan {
    /// True if the blocks are decompressed on the caller's thread.
    fn is_small(&self) -> bool {
        self.blocks.len() as u64 * BLOCK_BYTES <= INLINE_UNPACK_BYTES_MAX
    }

    /// True if all blocks are requested.
    fn wants_all(&self) -> bool {
        self.blocks.len() == self.location.blocks()
    }

    /// Range of the requested blocks in the stored payload.
    fn stored_blocks(&self, head: &Head<'_>) -> Range<usize> {
        head.block(self.blocks.start).start..head.block(self.blocks.end - 1).end
    }

    /// Returns the requested bytes, from the record's header and whole payload.
    fn unpack_whole(&self, place: Place, head: &[u8], payload: &[u8]) -> Result<Bytes, ReadError> {
        let wanted = payload.get(self.stored_blocks(&self.head(place, head)?));
        self.unpack(place, head, wanted.ok_or_else(|| self.corrupt(self.location.offset, Fault::Truncated))?)
    }

    /// Verifies and then decompresses the stored blocks with the requested bytes.
    fn unpack(&self, place: Place, head: &[u8], payload: &[u8]) -> Result<Bytes, ReadError> {
        let record = self.verify(place, head, payload)?;
        let (begin, first) = (self.stored_blocks(&record).start, self.blocks.start * BLOCK);
        let end = (self.blocks.end * BLOCK).min(record.logical_bytes);
        let (mut bytes, mut unpacker) = (vec![0; end - first], Unpacker::take());
        for (index, out) in self.blocks.clone().zip(bytes.chunks_mut(BLOCK)) {
            let Range { start, end } = record.block(index);
            let at = self.location.offset + (record.head_bytes + start) as u64;
            let unpacked = unpacker.unpack(&payload[start - begin..end - begin], out);
            unpacked.map_err(|_| self.corrupt(at, Fault::Packed(index as u32)))?;
        }
        Ok(self.cut(bytes, first))
    }
}
