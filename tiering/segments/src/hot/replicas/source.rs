//! Serves the bytes of a replica to other nodes.
//!
//! The bytes are sent as they are on the disk: the receiver verifies them, and reads what is damaged from
//! another node. They are read in pieces in the background lane, dropped from the page cache, which is left
//! to data that clients read, and sent through a short channel. Few reads run at a time; others are refused
//! and repeated by their nodes. An error of the disk ends the bytes, and so does the stop of the tier: they
//! never end as if they were complete. A replica that the disk fails to read becomes suspect.
//!
//! Bytes for which a client waits are read whole, in the lane of reads of clients and with permits of their
//! own, which are given back when the bytes are sent. A read waits for its permit until the node of the
//! client drops the stream: a refusal would end the answer to the client. The segment may be open, and the
//! replica may be suspect: the node of the client verifies the bytes.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::task::{Poll, ready};

use bytes::Bytes;
use futures_util::stream;
use mlgw_common::SegmentTier;
use mlgw_common::ids::SegmentId;
use mlgw_formats::format_error::FormatError;
use mlgw_formats::schema::SegmentState;
use mlgw_formats::segment_calls::ReadReplica;
use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::{REPLICA_READS_MAX, ReplicaBytes, Replication};
use crate::fair::{DiskQueue, Lane};
use crate::hot::compaction::Compaction;
use crate::hot::dirs::SegmentDirs;
use crate::hot::map::SegmentLocation;
use crate::hot::scan::{SHARED_READ_BYTES, disable_readahead};
use crate::hot::{HotTier, HotTierInner};

/// Bytes per read and per piece.
const PIECE_BYTES: u64 = SHARED_READ_BYTES as u64;
/// Pieces that are read ahead of their receiver.
const PIECES_AHEAD: usize = 4;

/// Reason for which the bytes of a replica are not served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaReadRefused {
    /// The request is malformed.
    #[error("{0}")]
    Malformed(#[from] FormatError),
    /// The store has no catalogue of segments.
    #[error("this store has no replicas")]
    NoCatalogue,
    /// The catalogue cannot be read.
    #[error("the record of the segment cannot be read: {0}")]
    Unreadable(String),
    /// The node has no replica of the segment: the record changed, or this node has not applied its change.
    #[error("segment {0} has no replica on this node")]
    NotHere(SegmentId),
    /// The segment has another seed than the request names.
    #[error("segment {0} is another one than the request names")]
    OtherSegment(SegmentId),
    /// The segment is open.
    #[error("segment {0} is still written")]
    Open(SegmentId),
    /// The range ends after the segment.
    #[error("segment {segment} has {length} bytes, and the request ends at {end}")]
    BeyondEnd {
        /// The segment.
        segment: SegmentId,
        /// Its sealed length.
        length: u64,
        /// End of the requested range.
        end: u64,
    },
    /// Too many reads for copies are in progress; retry later.
    #[error("{REPLICA_READS_MAX} other reads of replicas are in progress")]
    Busy,
}

impl HotTier {
    /// Opens bytes of a local replica for another node; `request` is an encoded [`ReadReplica`]. Must be
    /// called within a tokio runtime.
    ///
    /// # Errors
    /// See [`ReplicaReadRefused`].
    pub fn read_replica(&self, request: &[u8]) -> Result<ReplicaBytes, ReplicaReadRefused> {
        let request = ReadReplica::decode_request(request)?;
        let place = self.inner.local_replica(&request)?;
        if request.is_foreground {
            return Ok(self.inner.read_for_client(&request, place));
        }
        let permit = self.inner.replicas.read_permits().try_acquire_owned();
        let permit = permit.map_err(|_| ReplicaReadRefused::Busy)?;
        let reading = ReplicaReading {
            dirs: self.inner.volumes.dirs().clone(),
            queue: self.inner.shared.queues.for_tier(place.tier).clone(),
            compaction: self.inner.compaction.clone(),
            replication: self.inner.replicas.replication(),
            segment: request.segment_id(),
            place,
            range: request.range(),
        };
        let (sender, pieces) = mpsc::channel(PIECES_AHEAD);
        self.inner.shared.runtime.spawn(reading.send(sender, permit));
        Ok(received(pieces, request.to - request.from))
    }
}

impl HotTierInner {
    /// Returns the location of the local replica that a request names, if its bytes can be served.
    fn local_replica(&self, request: &ReadReplica) -> Result<SegmentLocation, ReplicaReadRefused> {
        let segment = request.segment_id();
        let catalogue = self.catalogue.as_ref().ok_or(ReplicaReadRefused::NoCatalogue)?;
        let record = catalogue.segment_record(segment);
        let record = record.map_err(|error| ReplicaReadRefused::Unreadable(error.to_string()))?;
        let record = record.ok_or(ReplicaReadRefused::NotHere(segment))?;
        if record.seed() != request.seed() {
            return Err(ReplicaReadRefused::OtherSegment(segment));
        }
        let tier = record.replica_of(self.node).and_then(|replica| replica.tier().ok());
        let tier = tier.filter(|tier| *tier != SegmentTier::Upstream);
        let tier = tier.ok_or(ReplicaReadRefused::NotHere(segment))?;
        match record.state() {
            SegmentState::Open if !request.is_foreground => Err(ReplicaReadRefused::Open(segment)),
            SegmentState::Sealed if request.to > record.length => {
                let (length, end) = (record.length, request.to);
                Err(ReplicaReadRefused::BeyondEnd { segment, length, end })
            }
            SegmentState::Open | SegmentState::Sealed => Ok(SegmentLocation::of(&record, tier)),
        }
    }

    /// Opens bytes of a local replica for a client of another node. They wait for a permit.
    fn read_for_client(&self, request: &ReadReplica, place: SegmentLocation) -> ReplicaBytes {
        let permits = self.replicas.client_read_permits();
        let queue = self.shared.queues.for_tier(place.tier).clone();
        let dirs = self.volumes.dirs().clone();
        let (segment, replication) = (request.segment_id(), self.replicas.replication());
        let read = self.reader.raw(dirs, segment, place, request.range());
        Box::pin(stream::once(async move {
            let permit = permits.acquire_owned().await.map_err(io::Error::other)?;
            let read = read.run(queue, permit).await;
            read.inspect_err(|error| record_unreadable(replication.as_deref(), segment, error))
        }))
    }
}

/// A read in progress. It holds no reference to the tier, which can be dropped meanwhile.
struct ReplicaReading {
    dirs: SegmentDirs,
    queue: DiskQueue,
    compaction: Arc<Compaction>,
    replication: Option<Arc<Replication>>,
    segment: SegmentId,
    place: SegmentLocation,
    range: Range<u64>,
}

impl ReplicaReading {
    /// Sends the bytes in pieces, until the receiver is dropped or a read fails. The permit is given back
    /// before the last piece, so that a receiver that goes on with another range finds it, and not before a
    /// read has returned: a disk that does not respond takes few threads.
    async fn send(self, sender: mpsc::Sender<io::Result<Bytes>>, permit: OwnedSemaphorePermit) {
        let mut permit = Some(permit);
        let (dirs, segment, place) = (self.dirs, self.segment, self.place);
        let failed = |error: &io::Error| record_unreadable(self.replication.as_deref(), segment, error);
        let opened = tokio::task::spawn_blocking(move || dirs.open_verified(segment, &place)).await;
        let file = match opened.unwrap_or_else(|stopped| Err(io::Error::other(stopped))) {
            Ok(file) => {
                disable_readahead(&file);
                Arc::new(file)
            }
            // A failure to send means that the receiver was dropped.
            Err(error) => {
                failed(&error);
                return drop(sender.send(Err(error)).await);
            }
        };
        let mut at = self.range.start;
        while at < self.range.end && !self.compaction.is_stopped() {
            let Ok(slot) = sender.reserve().await else { return };
            let piece = at..self.range.end.min(at + PIECE_BYTES);
            at = piece.end;
            let (file, queue) = (file.clone(), self.queue.clone());
            let read = tokio::task::spawn_blocking(move || read_piece(&file, &queue, piece)).await;
            let read = read.unwrap_or_else(|stopped| Err(io::Error::other(stopped))).inspect_err(failed);
            let has_failed = read.is_err();
            if at >= self.range.end {
                permit = None;
            }
            slot.send(read);
            if has_failed {
                break;
            }
        }
        drop(permit);
    }
}

/// Records that the disk failed to read the replica of a segment, if it did.
fn record_unreadable(replication: Option<&Replication>, segment: SegmentId, error: &io::Error) {
    let replication = replication.filter(|_| error.raw_os_error() == Some(Errno::IO.raw_os_error()));
    if let Some(replication) = replication {
        replication.add_suspects([segment]);
        replication.start_pass();
    }
}

/// Reads a piece of a file and drops it from the page cache.
fn read_piece(file: &File, queue: &DiskQueue, piece: Range<u64>) -> io::Result<Bytes> {
    let size = piece.end - piece.start;
    let mut bytes = vec![0; size as usize];
    {
        let _slot = queue.acquire_blocking(Lane::Background, size);
        file.read_exact_at(&mut bytes, piece.start)?;
    }
    fadvise(file, piece.start, NonZeroU64::new(size), Advice::DontNeed)?;
    Ok(bytes.into())
}

/// The pieces as a stream of `length` bytes, which ends with an error if they end early.
fn received(mut pieces: mpsc::Receiver<io::Result<Bytes>>, length: u64) -> ReplicaBytes {
    let mut missing = Some(length);
    Box::pin(stream::poll_fn(move |cx| {
        let Some(bytes) = missing.filter(|bytes| *bytes > 0) else { return Poll::Ready(None) };
        let piece = ready!(pieces.poll_recv(cx));
        let piece = piece.unwrap_or_else(|| Err(io::Error::other("the node stopped reading the replica")));
        missing = piece.as_ref().ok().map(|piece| bytes - piece.len() as u64);
        Poll::Ready(Some(piece))
    }))
}
