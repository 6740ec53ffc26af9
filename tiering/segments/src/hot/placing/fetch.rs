//! Fetches a segment from an upstream to the hot tier.
//!
//! Parts are fetched in parallel and written in order, with syncs in between so that the kernel never has
//! many dirty bytes to write at once. Then the file is read through from the disk: every record must be
//! intact, as it was when the segment was stored.

use mlgw_common::time::Instant;
use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use mlgw_common::limits::MIB;
use mlgw_formats::schema::SegmentRecord;

use super::reservation::CopyReservation;
use super::stoppable_wait::wait;
use super::store::verify_file;
use crate::fair::Lane;
use crate::flash::FlashWriteCause;
use crate::hot::HotTierInner;
use crate::hot::compaction::{MoveStepError, blocking};
use crate::hot::pace::ByteRateLimiter;
use crate::hot::remote_tier::RemoteSegment;

/// Bytes per request.
const PART_BYTES: u64 = 8 * MIB;
/// Number of parallel requests; including the part that is being written, 40 MiB of memory.
const PARTS_AT_ONCE: usize = 4;
/// Bytes between syncs.
const PIECE_BYTES: u64 = 32 * MIB;

const _: () = assert!(PIECE_BYTES.is_multiple_of(PART_BYTES), "a part ends where a sync is due");

/// Fetches the segment of `record` to the hot tier; the file is durable and has its final name when the call
/// returns.
pub(super) async fn fetch(
    inner: &Arc<HotTierInner>,
    record: &SegmentRecord,
    pace: &ByteRateLimiter,
) -> Result<(), MoveStepError> {
    let room = CopyReservation::reserve(&inner.shared.space, "hot", record)?;
    let copy = FetchedCopy::begin(inner, record)?;
    copy.fill(pace).await?;
    copy.finish().await?;
    room.keep();
    Ok(())
}

/// The file being fetched; discarded on drop unless it is finished.
struct FetchedCopy {
    inner: Arc<HotTierInner>,
    record: SegmentRecord,
    file: Option<Arc<File>>,
}

impl FetchedCopy {
    fn begin(inner: &Arc<HotTierInner>, record: &SegmentRecord) -> io::Result<Self> {
        let file = inner.volumes.hot.begin_copy(record.segment_id())?;
        Ok(Self { inner: inner.clone(), record: record.clone(), file: Some(Arc::new(file)) })
    }

    /// Fetches all parts and writes them.
    async fn fill(&self, pace: &ByteRateLimiter) -> Result<(), MoveStepError> {
        let remote = self.inner.remote_tier.find(self.record.segment_id())?;
        let remote: Arc<RemoteSegment> = remote.ok_or_else(|| io::Error::other("it is in no upstream"))?;
        let (length, rate) = (self.record.length, self.inner.placing.settings().bytes_per_second);
        let ranges =
            (0..length.div_ceil(PART_BYTES)).map(|n| n * PART_BYTES..length.min((n + 1) * PART_BYTES));
        let remote_tier = &self.inner.remote_tier;
        let parts = ranges.map(|range: Range<u64>| {
            let remote = remote.clone();
            async move { remote_tier.read(&remote, range.clone()).await.map(|bytes| (range.start, bytes)) }
        });
        let mut parts = stream::iter(parts).buffered(PARTS_AT_ONCE);
        while let Some(part) = parts.next().await {
            let (at, bytes) = part.map_err(io::Error::other)?;
            let due = pace.due_at(Instant::now(), bytes.len() as u64, rate);
            self.write(at, bytes, due).await?;
        }
        Ok(())
    }

    async fn write(&self, at: u64, bytes: Bytes, due: Instant) -> Result<(), MoveStepError> {
        let (inner, file, segment) = (self.inner.clone(), self.file.clone(), self.record.segment_id());
        blocking(move || {
            let Some(file) = file else { return Ok(()) };
            wait(&inner, due)?;
            let disk = &inner.volumes.hot;
            let _place = inner.shared.queues.hot.acquire_blocking(Lane::Background, bytes.len() as u64);
            disk.write(&file, segment, &mut [IoSlice::new(&bytes)], at)?;
            inner.shared.flash.record_write(FlashWriteCause::Promote, bytes.len() as u64);
            let end = at + bytes.len() as u64;
            if end.is_multiple_of(PIECE_BYTES) {
                disk.sync_always(&file, segment)?;
            }
            Ok(())
        })
        .await
    }

    /// Verifies the file and gives it its final name.
    async fn finish(mut self) -> Result<(), MoveStepError> {
        let (inner, record) = (self.inner.clone(), self.record.clone());
        let Some(file) = self.file.clone() else { return Ok(()) };
        blocking(move || {
            inner.volumes.hot.sync_always(&file, record.segment_id())?;
            inner.volumes.hot.drop_cache(&file, record.segment_id(), 0..record.length)?;
            verify_file(file.try_clone()?, &record, inner.shared.queues.hot.clone(), None)?;
            Ok(inner.volumes.hot.finish_copy(&file, record.segment_id())?)
        })
        .await?;
        self.file = None;
        Ok(())
    }
}

impl Drop for FetchedCopy {
    fn drop(&mut self) {
        if self.file.is_some() {
            self.inner.volumes.hot.discard_copy(self.record.segment_id());
        }
    }
}
