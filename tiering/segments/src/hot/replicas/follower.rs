//! A follower of an open segment: stores what the segment's writer on another node appends.
//!
//! A stream of the writer creates the file, never over another one, and is the right to append to it. Frames
//! are written in order, all that have arrived with one call, and synced once; the answers are the synced
//! lengths. Meanwhile the next frames are read. A stream has at most [`BUFFERED_BYTES_MAX`] and a piece of
//! the network in memory, with those that are being written. Segments of a single body are written with
//! direct I/O as on the node of their writer, from a buffer that exists during a write.
//!
//! The replica ends with the stream, with a frame that is damaged or continues elsewhere, with an error of
//! the disk, and when it is closed. Nothing is written to it afterwards, and the file stays as it is. Space
//! and flash are accounted for as for appends of this node.
//!
//! At a power loss: acknowledged bytes are on the disk, and later ones may be there in part. The file stays
//! until the record of its segment is sealed, and nothing is appended to it: it exists.

use std::fs::File;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use mlgw_common::ids::{NodeId, SegmentId};
use mlgw_common::{InlinePolls, poll_woken};
use mlgw_formats::append_frames::{
    APPEND_HEAD_BYTES, APPEND_PAYLOAD_BYTES_MAX, AppendDecoder, encode_answer,
};
use mlgw_formats::format_error::FormatError;
use mlgw_formats::schema::{SegmentClass, SegmentState};
use mlgw_formats::segment_calls::OpenReplica;
use mlgw_formats::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use super::ReplicaBytes;
use super::followed::{
    AppendRight, FOLLOWED_MAX, FileCallInProgress, FollowedReplica, FollowedState, NoRight,
};
use crate::fair::{DiskQueue, Lane};
use crate::flash::{FlashBudget, FlashWriteCause};
use crate::hot::admission::AppendReservation;
use crate::hot::compaction::Compaction;
use crate::hot::direct::DirectFile;
use crate::hot::dirs::SegmentDirs;
use crate::hot::file::SegmentDisk;
use crate::hot::file_names::segment_file_name;
use crate::hot::space::DiskSpace;
use crate::hot::{HotTier, HotTierInner};

/// Bytes of a stream that have arrived and are not synced yet, from which nothing more is read. A batch is
/// not larger.
const BUFFERED_BYTES_MAX: usize = 8 << 20;
/// Maximum number of pieces that are taken without a wait: other tasks run in between.
const PIECES_AT_ONCE_MAX: usize = 1024;
/// Space that is required for a new replica: the largest frame.
const ROOM_BYTES_MIN: u64 = APPEND_PAYLOAD_BYTES_MAX as u64;

/// Fault of a stream that ends because the tier stops.
const STOPPED: &str = "the node stops";

// A frame that is not complete never uses up the buffer.
const _: () = assert!(APPEND_HEAD_BYTES + APPEND_PAYLOAD_BYTES_MAX < BUFFERED_BYTES_MAX);

/// Reason for which a replica of an open segment is not opened or closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaRefused {
    /// The request is malformed.
    #[error("{0}")]
    Malformed(#[from] FormatError),
    /// The tier stops.
    #[error("the node stops")]
    Stopping,
    /// The header names another cluster, or another timeline of this one.
    #[error("segment {0} belongs to another cluster, or to another timeline of this one")]
    OtherTimeline(SegmentId),
    /// The record of the segment cannot be read.
    #[error("the record of the segment cannot be read: {0}")]
    Unreadable(String),
    /// The record has another seed or owner, or no replica on this node.
    #[error("the record of segment {0} does not name this replica and its writer")]
    NotFollower(SegmentId),
    /// The segment is sealed or released.
    #[error("segment {0} is not open any more")]
    NotOpen(SegmentId),
    /// There is a file of the segment, which may be empty.
    #[error("segment {0} has a file on this node already")]
    Exists(SegmentId),
    /// The replica was opened or closed before.
    #[error("the replica of segment {0} was opened or closed before")]
    Known(SegmentId),
    /// The replica is being read for an earlier request to close it; repeat the request later.
    #[error("the replica of segment {0} is being read")]
    InClosing(SegmentId),
    /// The disk is full.
    #[error("this node has no space for another segment")]
    NoRoom,
    /// The node has opened too many replicas here.
    #[error("the node appends to {max} replicas here", max = FOLLOWED_MAX)]
    Busy,
    /// The disk failed.
    #[error("the disk failed: {0}")]
    Disk(String),
}

impl From<io::Error> for ReplicaRefused {
    fn from(error: io::Error) -> Self {
        Self::Disk(error.to_string())
    }
}

impl HotTier {
    /// Creates a replica of an open segment for its writer on the node `from`. `head` is an encoded
    /// [`OpenReplica`], `frames` the stream of what is appended. The answer has the synced lengths, the first
    /// one is that of the header. It ends with an error if the replica ends before its stream. Must be called
    /// within a tokio runtime.
    ///
    /// # Errors
    /// See [`ReplicaRefused`].
    pub async fn open_replica(
        &self,
        from: NodeId,
        head: &[u8],
        frames: ReplicaBytes,
    ) -> Result<ReplicaBytes, ReplicaRefused> {
        let (request, header) = OpenReplica::decode_request(head)?;
        let (inner, segment) = (&self.inner, header.id);
        inner.check_writer(from, &header)?;
        let disk = Arc::new(FollowerDisk::new(inner, &request, header));
        let (dirs, checked) = (inner.volumes.dirs().clone(), disk.clone());
        blocking(move || checked.check_room(&dirs)).await?;
        let granted = inner.replicas.followed.open(from, segment);
        let (right, creation) = granted.map_err(|refused| match refused {
            NoRight::Known => ReplicaRefused::Known(segment),
            NoRight::TooMany => ReplicaRefused::Busy,
        })?;
        let created = disk.clone();
        let file = blocking(move || created.create(creation)).await?;
        let replica = right.0.clone();
        let task = FollowTask {
            right,
            disk,
            file,
            frames,
            decoder: AppendDecoder::default(),
            compaction: inner.compaction.clone(),
            wakes: inner.replicas.followed.wakes(),
            end: SEGMENT_HEADER_BYTES,
            batch: Vec::new(),
            bytes: BufferedBytes::default(),
            has_ended: false,
        };
        inner.shared.runtime.spawn(InlinePolls::new(task.run()));
        Ok(answers(replica))
    }
}

impl HotTierInner {
    /// Checks that a node may append to a replica here, as far as this node knows the segment: it may not
    /// have applied the creation yet.
    fn check_writer(&self, from: NodeId, header: &SegmentHeader) -> Result<(), ReplicaRefused> {
        if self.compaction.is_stopped() {
            return Err(ReplicaRefused::Stopping);
        }
        let (segment, own) = (header.id, &self.shared.segments.owner);
        if (header.cluster, header.incarnation) != (own.cluster, own.incarnation) {
            return Err(ReplicaRefused::OtherTimeline(segment));
        }
        let Some(catalogue) = &self.catalogue else { return Ok(()) };
        let unreadable = |error: mlgw_metadata::ReadError| ReplicaRefused::Unreadable(error.to_string());
        // The next id first: a segment that is created meanwhile has a higher one.
        let next = catalogue.next_segment().map_err(unreadable)?;
        let Some(record) = catalogue.segment_record(segment).map_err(unreadable)? else {
            return if segment < next { Err(ReplicaRefused::NotOpen(segment)) } else { Ok(()) };
        };
        if record.state() != SegmentState::Open {
            return Err(ReplicaRefused::NotOpen(segment));
        }
        let is_named = record.seed() == header.seed && record.is_owned_by(from);
        if !is_named || from == self.node || record.replica_of(self.node).is_none() {
            return Err(ReplicaRefused::NotFollower(segment));
        }
        Ok(())
    }
}

/// Runs `work` on a thread that may block.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ReplicaRefused> + Send + 'static,
) -> Result<T, ReplicaRefused> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|stopped| Err(io::Error::other(stopped).into()))
}

/// The parts of the tier with which a replica is written. They hold no reference to the tier, which can be
/// dropped meanwhile.
struct FollowerDisk {
    disk: Arc<SegmentDisk>,
    space: Arc<DiskSpace>,
    queue: DiskQueue,
    lane: Lane,
    flash: FlashBudget,
    cause: FlashWriteCause,
    header: SegmentHeader,
    is_background: bool,
    /// True if appends are synced whatever the durability, as for moved chunks on their own node.
    is_synced_always: bool,
}

impl FollowerDisk {
    fn new(inner: &HotTierInner, request: &OpenReplica, header: SegmentHeader) -> Self {
        let (shared, is_background) = (&inner.shared, request.is_background);
        let cause = match (is_background, shared.append_cause) {
            (true, FlashWriteCause::Client) => FlashWriteCause::Compaction,
            (_, cause) => cause,
        };
        Self {
            disk: inner.volumes.hot.clone(),
            space: shared.space.clone(),
            queue: shared.queues.hot.clone(),
            lane: if is_background { Lane::Background } else { shared.append_lane },
            flash: shared.flash.clone(),
            cause,
            header,
            is_background,
            is_synced_always: header.class == SegmentClass::Moved && !shared.is_disposable,
        }
    }

    /// Checks that there is space, and no file of the segment.
    fn check_room(&self, dirs: &SegmentDirs) -> Result<(), ReplicaRefused> {
        let name = segment_file_name(self.header.id);
        for dir in dirs.all() {
            match dir.join(&name).symlink_metadata() {
                Ok(_) => return Err(ReplicaRefused::Exists(self.header.id)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        // Moved chunks may use the reserve, as on the node that moves them: a full cluster could not compact.
        let has_room = || match self.is_background {
            true => self.space.moved_room_bytes() >= ROOM_BYTES_MIN,
            false => self.space.has_room(ROOM_BYTES_MIN),
        };
        if !has_room() {
            self.space.refresh();
        }
        if has_room() { Ok(()) } else { Err(ReplicaRefused::NoRoom) }
    }

    fn create(&self, creation: FileCallInProgress) -> Result<Arc<FollowedFile>, ReplicaRefused> {
        match self.disk.create(&self.header) {
            Ok(file) => {
                let direct = Mutex::new(self.disk.direct(&self.header));
                creation.succeed(SEGMENT_HEADER_BYTES);
                Ok(Arc::new(FollowedFile { file, direct }))
            }
            Err(error) => {
                creation.fail(&error.to_string());
                if error.kind() == io::ErrorKind::AlreadyExists {
                    return Err(ReplicaRefused::Exists(self.header.id));
                }
                tracing::error!(segment = %self.header.id, %error, "failed to create a replica");
                Err(error.into())
            }
        }
    }

    /// Writes a batch at `at`, and syncs it.
    fn store(&self, file: &FollowedFile, call: FileCallInProgress, at: u64, batch: &[Bytes]) {
        match self.write_and_sync(file, at, batch) {
            Ok(end) => call.succeed(end),
            Err(error) => {
                tracing::error!(segment = %self.header.id, %error, "a batch for a replica failed; it ends");
                call.fail(&error.to_string());
            }
        }
    }

    fn write_and_sync(&self, file: &FollowedFile, at: u64, batch: &[Bytes]) -> io::Result<u64> {
        let (segment, bytes) = (self.header.id, length_of(batch));
        // The primary has accepted these bytes. New segments are refused earlier, while there is more space.
        let reserve = match self.is_background {
            true => AppendReservation::reserve_moved,
            false => AppendReservation::reserve_followed,
        };
        let reserved = reserve(&self.space, bytes).ok_or(io::ErrorKind::StorageFull)?;
        let slot = self.queue.acquire_blocking(self.lane, bytes);
        self.write(file, at, batch)?;
        let sync = if self.is_synced_always { SegmentDisk::sync_always } else { SegmentDisk::sync };
        sync(&self.disk, &file.file, segment)?;
        drop(slot);
        reserved.transfer_to_writer();
        self.space.finish(bytes);
        self.flash.record_write(self.cause, bytes);
        Ok(at + bytes)
    }

    fn write(&self, file: &FollowedFile, at: u64, batch: &[Bytes]) -> io::Result<()> {
        let mut direct = file.direct.lock();
        let pieces = batch.iter().map(|piece| &piece[..]);
        self.disk.append(&mut direct, &file.file, self.header.id, at, pieces)?;
        // There may be more replicas than buffers of this size have room in memory.
        if let Some(direct) = &mut *direct {
            direct.release_buffer();
        }
        Ok(())
    }

    /// Cuts off the padding of the last block after the clean end of a stream.
    fn trim(&self, file: &FollowedFile) {
        if let Some(direct) = &*file.direct.lock() {
            SegmentDisk::trim_padding(&file.file, self.header.id, direct.end());
        }
    }
}

/// The file of a replica. One write at a time uses it.
struct FollowedFile {
    file: File,
    /// The same file for direct I/O, if it is written that way.
    direct: Mutex<Option<DirectFile>>,
}

fn length_of(pieces: &[Bytes]) -> u64 {
    pieces.iter().map(|piece| piece.len() as u64).sum()
}

/// Bytes of a stream in memory.
#[derive(Clone, Copy, Debug, Default)]
struct BufferedBytes {
    /// Of frames that are not complete.
    undecoded: usize,
    /// Of the next batch.
    batch: usize,
    /// Of the batch that is being written.
    writing: usize,
}

impl BufferedBytes {
    const fn total(self) -> usize {
        self.undecoded + self.batch + self.writing
    }
}

/// The task of one stream.
struct FollowTask {
    right: AppendRight,
    disk: Arc<FollowerDisk>,
    file: Arc<FollowedFile>,
    frames: ReplicaBytes,
    decoder: AppendDecoder,
    compaction: Arc<Compaction>,
    wakes: watch::Receiver<()>,
    /// Offset after the frames that were taken.
    end: u64,
    /// Payloads of frames that are not written yet.
    batch: Vec<Bytes>,
    bytes: BufferedBytes,
    /// True after the clean end of the stream.
    has_ended: bool,
}

impl FollowTask {
    async fn run(mut self) {
        let segment = self.right.0.segment;
        match self.follow().await {
            Ok(()) => {
                let (disk, file) = (self.disk.clone(), self.file.clone());
                // Only the space of the padding depends on it.
                let _ = tokio::task::spawn_blocking(move || disk.trim(&file)).await;
                self.right.0.complete();
            }
            Err(fault) => {
                tracing::info!(%segment, fault, "the replica of an open segment ends");
                self.right.0.end(&fault);
            }
        }
    }

    /// Stores frames until the clean end of the stream.
    ///
    /// # Errors
    /// The reason for which the replica ends before.
    async fn follow(&mut self) -> Result<(), String> {
        let (replica, mut call) = (self.right.0.clone(), None);
        loop {
            if self.compaction.is_stopped() {
                return Err(STOPPED.to_owned());
            }
            self.take_arrived()?;
            if call.is_none() {
                if self.has_ended && self.batch.is_empty() {
                    return Ok(());
                }
                call = self.begin_write()?;
            }
            let can_read = self.can_read();
            tokio::select! {
                piece = self.frames.next(), if can_read => self.take(piece)?,
                () = ended(&mut call) => {
                    call = None;
                    self.bytes.writing = 0;
                }
                () = replica.right_ended() => return Err("the right to append has ended".to_owned()),
                woken = self.wakes.changed() => woken.map_err(|_| STOPPED.to_owned())?,
            }
        }
    }

    fn can_read(&self) -> bool {
        !self.has_ended && self.bytes.total() < BUFFERED_BYTES_MAX
    }

    /// Takes what has arrived, without a wait.
    fn take_arrived(&mut self) -> Result<(), String> {
        for _ in 0..PIECES_AT_ONCE_MAX {
            if !self.can_read() {
                break;
            }
            let Some(piece) = self.frames.next().now_or_never() else { break };
            self.take(piece)?;
        }
        Ok(())
    }

    /// Takes a piece of the stream, or its end.
    fn take(&mut self, piece: Option<io::Result<Bytes>>) -> Result<(), String> {
        let Some(piece) = piece else {
            self.has_ended = true;
            let is_whole = self.decoder.is_between_frames();
            return if is_whole { Ok(()) } else { Err("the stream ended within a frame".to_owned()) };
        };
        let piece = piece.map_err(|error| format!("the stream of the writer broke off: {error}"))?;
        self.bytes.undecoded += piece.len();
        self.decoder.push(piece);
        while let Some(frame) = self.decoder.next_frame().map_err(|error| error.to_string())? {
            if frame.offset != self.end {
                return Err(format!("a frame begins at {}, and the file ends at {}", frame.offset, self.end));
            }
            self.end = frame.end();
            let bytes = frame.payload.iter().map(Bytes::len).sum::<usize>();
            self.bytes.undecoded -= APPEND_HEAD_BYTES + bytes;
            self.bytes.batch += bytes;
            self.batch.extend(frame.payload);
        }
        Ok(())
    }

    /// Begins to write what was taken; `None` if there is nothing.
    fn begin_write(&mut self) -> Result<Option<oneshot::Receiver<()>>, String> {
        if self.batch.is_empty() {
            return Ok(None);
        }
        let call = self.right.0.begin_write().ok_or("the right to append has ended")?;
        let batch = std::mem::take(&mut self.batch);
        self.bytes.writing = std::mem::take(&mut self.bytes.batch);
        let at = self.end - self.bytes.writing as u64;
        let (disk, file) = (self.disk.clone(), self.file.clone());
        let (sender, ended) = oneshot::channel();
        // This thread then sends the answer and takes the next frames. It wakes no worker for that.
        tokio::task::spawn_blocking(move || {
            poll_woken(move || {
                disk.store(&file, call, at, &batch);
                // Last: the answer is sent before further frames are read.
                drop((batch, sender));
            });
        });
        Ok(Some(ended))
    }
}

/// Waits for the end of a call, which records its result; for ever without one.
async fn ended(call: &mut Option<oneshot::Receiver<()>>) {
    match call {
        // The sender is dropped at the end, also after a panic: such a call counts as failed.
        Some(call) => drop(call.await),
        None => std::future::pending().await,
    }
}

/// The synced lengths as a stream. A length that was not read in time is replaced by the next one. The right
/// to append ends with this stream as well.
fn answers(replica: Arc<FollowedReplica>) -> ReplicaBytes {
    let states = replica.states();
    let open = LengthStream { states, _right: AppendRight(replica), sent: 0 };
    let lengths = stream::unfold(Some(open), |open| async move {
        let mut open = open?;
        let state = open.next_state().await?;
        if state.synced > open.sent {
            open.sent = state.synced;
            return Some((Ok(encode_answer(state.synced)), Some(open)));
        }
        state.fault.map(|fault| (Err(io::Error::other(fault)), None))
    });
    lengths.boxed()
}

struct LengthStream {
    states: watch::Receiver<FollowedState>,
    _right: AppendRight,
    /// Last length that was sent.
    sent: u64,
}

impl LengthStream {
    /// Waits until another length is synced, or no further one will be.
    async fn next_state(&mut self) -> Option<FollowedState> {
        let sent = self.sent;
        let next = self.states.wait_for(|state| state.synced > sent || state.is_final()).await;
        next.map(|state| state.clone()).ok()
    }
}
