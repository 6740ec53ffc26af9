//! The thread that appends to one open segment.
//!
//! It takes all waiting chunks, assigns their offsets, computes the checksums (which are seeded with the
//! offset), writes headers and payloads with one call, syncs once, and replies to all. Chunks that arrive in
//! the meantime form the next batch. No append is acknowledged before its sync has returned.
//!
//! After a failed write or sync the segment is sealed at its last synced length and never written again; the
//! whole batch is written once more, to a new segment. If that fails too, the batch fails, and so do all
//! appends for a second, so that a failing disk does not get a new segment per request. A power loss leaves
//! an open segment whose tail recovery scans.
//!
//! With followers a batch is sent to them between its write and its sync, and acknowledged when enough of
//! them have synced it too. Where a follower is in trouble the segment ends as after a failed sync.

use mlgw_common::poll_woken;
use mlgw_common::time::Instant;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mlgw_formats::schema::SegmentClass;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::AppendError;
use super::file::SegmentDisk;
use super::location::RecordLocation;
use super::metrics::{HotCounters, add};
use super::queue::{
    AppendQueue, AppendReply, GatherLimits, PendingAppend, PendingChunk, QueueClose, WriterTask,
};
use super::replicas::link::encode_frames;
use super::replicas::primary::ReplicatedSegment;
use super::segments::{SegmentLifecycle, WritableSegment};
use super::space::DiskSpace;
use super::stored_batch::{AppendAccounts, BatchError, FailedBatch, StoredBatch, refuse};
use crate::fair::{DiskQueues, Lane};
use crate::flash::{FlashBudget, FlashWriteCause};
use mlgw_formats::segment_header::SEGMENT_HEADER_BYTES;
use mlgw_formats::segment_record::{FLOOR_BYTES, RecordAddress, encode_head};

/// Time for which appends are refused after a batch failed twice.
const REFUSE_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Segments that a batch may find closed, one after the other, before it fails.
const CLOSED_SEGMENTS_MAX: usize = 4;

/// Minimum gather time: on a device with fast syncs, clients need longer than a sync to send their next
/// append.
const GATHER_TIME_MIN: Duration = Duration::from_millis(1);
/// Maximum gather time, so that one hanging sync does not delay the next batch as long again.
const GATHER_TIME_MAX: Duration = Duration::from_millis(20);

/// Largest batch that the writer's thread sends to the followers itself, before it syncs. Workers encrypt and
/// send a larger one during the sync.
const SENT_HERE_BYTES_MAX: usize = 256 << 10;

/// State shared by all writers.
pub(super) struct WriterShared {
    pub(super) segments: Arc<SegmentLifecycle>,
    pub(super) space: Arc<DiskSpace>,
    pub(super) metrics: Arc<HotCounters>,
    pub(super) segment_bytes: u64,
    pub(super) queues: DiskQueues,
    /// Lane of appends other than moved chunks.
    pub(super) append_lane: Lane,
    pub(super) flash: FlashBudget,
    /// Cause under which their writes to flash are counted.
    pub(super) append_cause: FlashWriteCause,
    /// True if chunks can be fetched again from elsewhere.
    pub(super) is_disposable: bool,
    pub(super) runtime: Handle,
    pub(super) accounts: Arc<AppendAccounts>,
}

pub(super) struct SegmentWriter {
    class: SegmentClass,
    /// The set of nodes of its segments.
    set: u32,
    shared: Arc<WriterShared>,
    queue: Arc<AppendQueue>,
    segment: Option<WritableSegment>,
    prepared: Option<PreparedSegment>,
    refused_since: Option<(Instant, AppendError)>,
    /// Duration of the last batch.
    last_batch_duration: Duration,
    /// Number of chunks in the last batch.
    last_batch_chunks: usize,
    heads: Vec<u8>,
}

impl SegmentWriter {
    /// A writer of segments of this class and set.
    pub(super) fn new(
        class: SegmentClass,
        set: u32,
        shared: Arc<WriterShared>,
        queue: Arc<AppendQueue>,
    ) -> Self {
        Self {
            class,
            set,
            shared,
            queue,
            segment: None,
            prepared: None,
            refused_since: None,
            last_batch_duration: Duration::ZERO,
            last_batch_chunks: 0,
            heads: Vec::new(),
        }
    }

    /// Serves the queue until it is closed.
    pub(super) fn run(mut self) {
        loop {
            match self.queue.next_task(self.gather()) {
                WriterTask::Batch(batch) => self.write_chunks(batch),
                WriterTask::Roll => {
                    self.roll();
                    self.roll_prepared();
                }
                WriterTask::Closed(QueueClose::Abandon) => return,
                WriterTask::Closed(QueueClose::Seal) => break,
            }
        }
        self.retire();
        self.retire_prepared();
    }

    /// Returns the limits for gathering the next batch. Requests that write small chunks are short, so it
    /// pays to wait for their ends; a large body holds its segment until it is complete.
    fn gather(&self) -> GatherLimits<impl Fn() -> usize> {
        let segment = self.segment.as_ref().filter(|_| self.class == SegmentClass::Small);
        let unfinished = move || segment.map_or(0, |segment| segment.hold.others());
        GatherLimits {
            patience: gather_time_max(self.class, self.last_batch_duration),
            expected: self.last_batch_chunks,
            unfinished,
        }
    }

    fn write_chunks(&mut self, batch: Vec<PendingAppend>) {
        let taken = Instant::now();
        for pending in &batch {
            self.shared.metrics.append_wait.record(taken.duration_since(pending.chunk.arrived));
        }
        let (mut chunks, mut replies): (Vec<_>, Vec<_>) =
            batch.into_iter().map(|pending| (pending.chunk, pending.reply)).unzip();
        self.roll();
        while !chunks.is_empty() {
            let fitting = self.fitting_chunks(&chunks);
            if fitting == 0 {
                self.retire();
                continue;
            }
            let (later_chunks, later_replies) = (chunks.split_off(fitting), replies.split_off(fitting));
            self.store(&chunks, replies);
            (chunks, replies) = (later_chunks, later_replies);
        }
    }

    /// Number of chunks from the front of the batch that fit into the open segment. An empty segment takes at
    /// least one.
    fn fitting_chunks(&self, batch: &[PendingChunk]) -> usize {
        let begin = self.segment.as_ref().map_or(SEGMENT_HEADER_BYTES, |segment| segment.synced_bytes);
        let mut end = begin;
        let fits = batch.iter().take_while(|pending| {
            end += pending.bytes as u64;
            end <= self.shared.segment_bytes
        });
        let count = fits.count();
        if begin == SEGMENT_HEADER_BYTES { count.max(1) } else { count }
    }

    /// Makes a batch durable, in a new segment if the open one fails, and answers its requests.
    fn store(&mut self, batch: &[PendingChunk], replies: Vec<AppendReply>) {
        let bytes = batch.iter().map(|chunk| chunk.bytes).sum();
        self.refused_since = self.refused_since.filter(|(since, _)| since.elapsed() < REFUSE_AFTER_FAILURE);
        if let Some((_, error)) = self.refused_since {
            return refuse(&self.shared.accounts, &self.queue, bytes, replies, error);
        }
        let mut stored = self.try_store(batch, replies);
        if let Err(FailedBatch { error: BatchError::Disk(_) | BatchError::Followers, replies }) = stored {
            add(&self.shared.metrics.batches_retried, 1);
            stored = self.try_store(batch, replies);
        }
        if let Err(FailedBatch { error, replies }) = stored {
            let error = match error {
                BatchError::Disk(error) => AppendError::from_io(&error),
                BatchError::Followers => AppendError::NoQuorum,
                BatchError::NoSegment(error) => error,
            };
            self.refused_since = Some((Instant::now(), error));
            refuse(&self.shared.accounts, &self.queue, bytes, replies, error);
        }
    }

    /// Begins a write to the open segment, or to a new one if that takes no more appends.
    fn begin_write(&mut self) -> Result<(), AppendError> {
        for _ in 0..CLOSED_SEGMENTS_MAX {
            let segment = match self.segment.take() {
                Some(segment) => segment,
                None => self.next_segment()?,
            };
            let begun = segment.replicated.as_ref().is_none_or(|replicated| replicated.begin_write());
            let is_abandoned =
                segment.replicated.as_ref().is_some_and(|replicated| replicated.is_abandoned());
            self.segment = Some(segment);
            if is_abandoned {
                return Err(AppendError::Stopping);
            }
            if begun {
                return Ok(());
            }
            self.retire();
        }
        Err(AppendError::NoQuorum)
    }

    /// Stores a batch in the open segment. Its requests are answered, unless it fails.
    fn try_store(&mut self, batch: &[PendingChunk], replies: Vec<AppendReply>) -> Result<(), FailedBatch> {
        if let Err(error) = self.begin_write() {
            return Err(FailedBatch { error: BatchError::NoSegment(error), replies });
        }
        let stored = match self.write_and_sync(batch) {
            Ok(written) => self.acknowledge(written, replies),
            Err(error) => Err(FailedBatch { error, replies }),
        };
        match &stored {
            Ok(()) => self.prepare_ahead(),
            Err(failed) => self.end_segment(&failed.error),
        }
        stored
    }

    /// Writes a batch, sends it to the followers, and syncs it.
    fn write_and_sync(&mut self, batch: &[PendingChunk]) -> Result<WrittenBatch, BatchError> {
        let Some(segment) = &mut self.segment else { return Err(BatchError::NoSegment(AppendError::Io)) };
        let shared = self.shared.clone();
        let disk = &shared.segments.disk;
        let lane = if self.class == SegmentClass::Moved { Lane::Background } else { shared.append_lane };
        let bytes: usize = batch.iter().map(|chunk| chunk.bytes).sum();
        let place = shared.queues.hot.acquire_blocking(lane, bytes as u64);
        let begun = Instant::now();
        let (begin, floor) = (segment.synced_bytes, shared.segments.map.synced_entries());
        let mut locations = Vec::with_capacity(batch.len());
        let written = write_batch(disk, segment, batch, floor, &mut self.heads, &mut locations);
        if let (Ok(end), Some(replicated)) = (&written, &segment.replicated) {
            let send = || send_batch(replicated, begin..*end, batch, &self.heads, &locations);
            if bytes <= SENT_HERE_BYTES_MAX { poll_woken(send) } else { send() }
        }
        // Moved chunks may have been durable for years: referring to a copy that is not durable could lose
        // them.
        let always = self.class == SegmentClass::Moved && !shared.is_disposable;
        let sync = if always { SegmentDisk::sync_always } else { SegmentDisk::sync };
        let synced = written.and_then(|end| sync(disk, &segment.file, segment.id).map(|()| end));
        drop(place);
        match synced {
            Ok(end) => Ok(WrittenBatch { begun, end, bytes, floor, locations }),
            Err(error) => {
                if let Some(replicated) = &segment.replicated {
                    replicated.own_failed();
                }
                Err(BatchError::Disk(error))
            }
        }
    }

    /// Answers the requests of a batch that is synced here, when enough followers have synced it too.
    fn acknowledge(&mut self, written: WrittenBatch, replies: Vec<AppendReply>) -> Result<(), FailedBatch> {
        let WrittenBatch { begun, end, bytes, floor, locations } = written;
        let (count, cause) = (replies.len(), self.cause());
        let Some(segment) = &mut self.segment else {
            return Err(FailedBatch { error: BatchError::NoSegment(AppendError::Io), replies });
        };
        let end_of_chunks = segment.synced_bytes + bytes as u64;
        assert!(end >= end_of_chunks, "a batch has at least the queued bytes");
        let stored = StoredBatch {
            accounts: self.shared.accounts.clone(),
            queue: self.queue.clone(),
            hold: segment.hold.clone(),
            end,
            bytes,
            floor_bytes: end - end_of_chunks,
            cause,
            locations,
            replies,
        };
        let acknowledged = match &segment.replicated {
            Some(replicated) => replicated.complete_when_acknowledged(stored),
            None => {
                stored.complete();
                Ok(())
            }
        };
        (self.last_batch_duration, self.last_batch_chunks) = (begun.elapsed(), count);
        acknowledged?;
        self.shared.space.finish(bytes as u64);
        (segment.floor, segment.synced_bytes) = (floor, end);
        self.shared.segments.mark(segment);
        Ok(())
    }

    /// Ends the open segment after a failed batch. Its file is never written again.
    fn end_segment(&mut self, failed: &BatchError) {
        let Some(segment) = &mut self.segment else { return };
        match failed {
            BatchError::Disk(error) => {
                tracing::error!(segment = %segment.id, %error, "a batch failed; closing its segment");
                segment.direct = None;
            }
            BatchError::Followers => {
                tracing::info!(segment = %segment.id, "a batch is stored again in another segment");
            }
            BatchError::NoSegment(_) => {}
        }
        self.retire();
    }

    /// Cause under which the writes of this writer are counted.
    fn cause(&self) -> FlashWriteCause {
        match (self.class, self.shared.append_cause) {
            (SegmentClass::Moved, FlashWriteCause::Client) => FlashWriteCause::Compaction,
            (_, cause) => cause,
        }
    }

    /// Begins another segment if the open one was given up.
    fn roll(&mut self) {
        if self.segment.as_ref().is_some_and(has_ended) {
            self.retire();
        }
    }

    /// Seals the segment that was created ahead if it was given up: without chunks nothing else would.
    fn roll_prepared(&mut self) {
        if self.prepared.as_mut().is_some_and(PreparedSegment::has_ended) {
            self.retire_prepared();
        }
    }

    /// Seals the segment that was created ahead, when it is created.
    fn retire_prepared(&mut self) {
        if let Some(Ok(unused)) = self.prepared.take().map(PreparedSegment::wait) {
            self.shared.segments.retire(unused);
        }
    }

    /// Seals the open segment at its acknowledged length.
    fn retire(&mut self) {
        if let Some(segment) = self.segment.take() {
            self.shared.segments.retire(segment);
        }
    }

    /// Returns the segment prepared ahead, or creates one now.
    fn next_segment(&mut self) -> Result<WritableSegment, AppendError> {
        if let Some(Ok(segment)) = self.prepared.take().map(PreparedSegment::wait) {
            if !has_ended(&segment) {
                return Ok(segment);
            }
            self.shared.segments.retire(segment);
        }
        self.prepare().wait()
    }

    /// Starts the creation of the next segment when three quarters of this one are filled.
    fn prepare_ahead(&mut self) {
        let filled = self.segment.as_ref().map_or(0, |segment| segment.synced_bytes);
        if self.prepared.is_none() && filled >= self.shared.segment_bytes / 4 * 3 {
            self.prepared = Some(self.prepare());
        }
    }

    fn prepare(&self) -> PreparedSegment {
        let creation = self.shared.segments.prepare(self.class, self.set, &self.queue, &self.shared.runtime);
        PreparedSegment { creation, created: None }
    }
}

/// True if nothing is to be appended to a segment any more.
fn has_ended(segment: &WritableSegment) -> bool {
    segment.hold.is_given_up() || !segment.takes_appends()
}

/// A segment that is created in the background.
struct PreparedSegment {
    creation: oneshot::Receiver<Result<WritableSegment, AppendError>>,
    /// The result of the creation, once it was looked at.
    created: Option<Result<WritableSegment, AppendError>>,
}

impl PreparedSegment {
    /// Returns the segment when it is created.
    fn wait(self) -> Result<WritableSegment, AppendError> {
        let Self { creation, created } = self;
        created.unwrap_or_else(|| creation.blocking_recv().unwrap_or(Err(AppendError::Stopping)))
    }

    /// True if the segment is created and was given up, or was not created because of an error.
    fn has_ended(&mut self) -> bool {
        if self.created.is_none() {
            self.created = match self.creation.try_recv() {
                Ok(created) => Some(created),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Closed) => Some(Err(AppendError::Stopping)),
            };
        }
        match &self.created {
            Some(Ok(segment)) => has_ended(segment),
            Some(Err(_)) => true,
            None => false,
        }
    }
}

/// Maximum gather time of a batch, given the duration of the last one. Zero for chunks of large bodies: they
/// arrive at the pace of their client, who sends only a few ahead, so waiting for as many as last time would
/// only delay the client.
fn gather_time_max(class: SegmentClass, took: Duration) -> Duration {
    match class {
        SegmentClass::Small | SegmentClass::Moved => took.clamp(GATHER_TIME_MIN, GATHER_TIME_MAX),
        _ => Duration::ZERO,
    }
}

/// A batch that is written and synced on this node.
struct WrittenBatch {
    begun: Instant,
    /// Offset after the batch in its segment.
    end: u64,
    /// Queued bytes of its chunks.
    bytes: usize,
    /// Highest log floor in the segment's records.
    floor: u64,
    locations: Vec<RecordLocation>,
}

/// Writes the records of a batch after the segment's synced length and returns their end. The first record
/// carries the log floor, if that rose since the segment's last batch: the sync of the batch makes it
/// durable.
fn write_batch(
    disk: &SegmentDisk,
    segment: &mut WritableSegment,
    batch: &[PendingChunk],
    floor: u64,
    heads: &mut Vec<u8>,
    locations: &mut Vec<RecordLocation>,
) -> io::Result<u64> {
    heads.clear();
    let mut offset = segment.synced_bytes;
    let mut floor = Some(floor).filter(|floor| *floor > segment.floor);
    for pending in batch {
        let place = RecordAddress { segment: segment.id, seed: segment.seed, offset };
        let floor = floor.take();
        let floor_bytes = if floor.is_some() { FLOOR_BYTES } else { 0 };
        let head_bytes = encode_head(place, &pending.owner, &pending.data, floor, heads);
        let bytes = head_bytes + pending.data.stored_bytes();
        assert!(bytes == pending.bytes + floor_bytes, "a record has the queued length");
        locations.push(RecordLocation {
            segment: segment.id,
            offset,
            head_bytes: head_bytes as u32,
            payload_bytes: pending.data.stored_bytes() as u32,
            logical_bytes: pending.data.logical_bytes() as u32,
            encoding: pending.data.encoding,
        });
        offset += bytes as u64;
    }
    let WritableSegment { id, file, direct, synced_bytes, .. } = segment;
    disk.append(direct, file, *id, *synced_bytes, pieces(batch, heads, locations))?;
    Ok(offset)
}

/// Sends a batch that was written at `range` of the segment's file to the followers. Payloads are shared.
fn send_batch(
    replicated: &ReplicatedSegment,
    range: Range<u64>,
    batch: &[PendingChunk],
    heads: &[u8],
    locations: &[RecordLocation],
) {
    let mut rest = Bytes::copy_from_slice(heads);
    let records = batch.iter().zip(locations).map(|(pending, location)| {
        (rest.split_to(location.head_bytes as usize), pending.data.stored.clone())
    });
    let frames = encode_frames(range.start, records);
    replicated.send(range.end, &frames);
}

/// Returns the headers and payloads of a batch, alternating.
fn pieces<'a>(
    batch: &'a [PendingChunk],
    heads: &'a [u8],
    locations: &'a [RecordLocation],
) -> impl Iterator<Item = &'a [u8]> + Clone {
    let mut rest = heads;
    batch.iter().zip(locations).flat_map(move |(pending, location)| {
        let (head, behind) = rest.split_at(location.head_bytes as usize);
        rest = behind;
        [head, &pending.data.stored[..]]
    })
}

#[cfg(test)]
mod tests {
    use super::{GATHER_TIME_MAX, GATHER_TIME_MIN, gather_time_max};
    use mlgw_formats::schema::SegmentClass::{Large, Moved, Own, Small};
    use std::time::Duration;

    #[test]
    fn small_chunks_gather_for_about_a_sync_and_large_ones_do_not() {
        let ms = Duration::from_millis;
        for class in [Small, Moved] {
            assert_eq!(gather_time_max(class, Duration::ZERO), GATHER_TIME_MIN);
            assert_eq!(gather_time_max(class, ms(5)), ms(5));
            assert_eq!(gather_time_max(class, ms(9_000)), GATHER_TIME_MAX, "a sync that hung");
        }
        assert_eq!((gather_time_max(Large, ms(5)), gather_time_max(Own, ms(5))), (ms(0), ms(0)));
    }
}
