//! Reads a whole segment from all of its replicas, for a backup: this node has no complete one.
//!
//! The bytes are written to a file of the caller at the same offsets: first those of the local file, if there
//! is one, then those of other nodes, in order. After each source the records are verified, and the next
//! source is read only where bytes belong to no intact record. What is damaged in every replica stays as one
//! of them has it. A replica that cannot be read may have missing bytes, so that is an error.
//!
//! Sealed segments are read in the background lane of the other node, and open ones like a read of a client.
//! The file belongs to the caller: a power loss leaves it incomplete.

use std::fs::File;
use std::io;
use std::iter::once;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use mlgw_common::ids::{NodeId, SegmentId};
use mlgw_common::limits::MIB;
use mlgw_common::time::sleep_until;
use mlgw_formats::schema::{SegmentRecord, SegmentState};
use mlgw_formats::segment_calls::{RECORD_READ_BYTES_MAX, ReadReplica, SEGMENT_READ_BYTES_MAX};

use super::home::own_file;
use super::{ReplicaBytes, Replication};
use crate::hot::read::other_replica::sources;
use crate::hot::scan::SegmentScan;
use crate::hot::{HotTier, HotTierInner};

/// Bytes of a local file that are copied at a time.
const WINDOW_BYTES: u64 = MIB;

/// Reason that a segment was not read whole.
#[derive(Debug, thiserror::Error)]
pub enum WholeSegmentError {
    /// The node has no peers.
    #[error("segment {0} has no complete file on this server")]
    NoPeers(SegmentId),
    /// Bytes are missing that a replica may have which was not read.
    #[error("segment {segment} cannot be read whole: {why}")]
    Unread {
        /// The segment.
        segment: SegmentId,
        /// The last failure.
        why: String,
    },
    /// The target cannot be written, or not be read again.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl HotTier {
    /// Writes the first `end` bytes of the segment of `record` to `file`, which is empty. Returns the number
    /// of those that belong to no intact record, in any replica.
    ///
    /// # Errors
    /// See [`WholeSegmentError`]. Another attempt may succeed, with an empty file and the newest record.
    pub async fn read_whole(
        &self,
        record: &SegmentRecord,
        end: u64,
        file: Arc<File>,
    ) -> Result<u64, WholeSegmentError> {
        let segment = record.segment_id();
        let replication = self.inner.replicas.replication().ok_or(WholeSegmentError::NoPeers(segment))?;
        let nodes = replication.storage_nodes();
        let mut whole = WholeSegment { replication, record, file, damaged: once(0..end).collect(), end };
        whole.add_own(&self.inner).await?;
        // A removed node has no replica any more.
        let mut unread: Vec<NodeId> = nodes.iter().map(|node| node.node).collect();
        unread.retain(|node| *node != self.inner.node && record.replica_of(*node).is_some());
        let mut why = "no node with a replica is known".to_owned();
        for node in sources(record, self.inner.node, &nodes) {
            if whole.damaged.is_empty() {
                break;
            }
            match whole.read_peer(node).await? {
                Ok(()) => unread.retain(|other| *other != node),
                Err(fault) => why = format!("node {node}: {fault}"),
            }
            whole.verify().await?;
        }
        let damaged_bytes = whole.damaged.iter().map(|range| range.end - range.start).sum();
        if damaged_bytes > 0 && (!unread.is_empty() || record.state() == SegmentState::Open) {
            return Err(WholeSegmentError::Unread { segment, why });
        }
        Ok(damaged_bytes)
    }
}

/// Returns true if the first `end` bytes of a file of the segment of `record` are whole records.
///
/// # Errors
/// When the file cannot be read.
pub fn is_whole(file: &File, record: &SegmentRecord, end: u64) -> io::Result<bool> {
    Ok(damaged_ranges(file, record, end)?.is_empty())
}

fn damaged_ranges(file: &File, record: &SegmentRecord, end: u64) -> io::Result<Vec<Range<u64>>> {
    SegmentScan::new(file.try_clone()?, record.segment_id(), record.seed(), 0)?.damaged_ranges(end)
}

/// A segment that is being read.
struct WholeSegment<'a> {
    replication: Arc<Replication>,
    record: &'a SegmentRecord,
    file: Arc<File>,
    end: u64,
    /// Ranges that belong to no intact record.
    damaged: Vec<Range<u64>>,
}

impl WholeSegment<'_> {
    /// Copies what the local file has.
    async fn add_own(&mut self, inner: &Arc<HotTierInner>) -> io::Result<()> {
        let (inner, record) = (inner.clone(), self.record.clone());
        let (to, end) = (self.file.clone(), self.end);
        let has_own = blocking(move || {
            to.set_len(end)?;
            let Some(own) = own_file(&inner, &record) else { return Ok(false) };
            let bytes = own.file.metadata()?.len().min(end);
            for at in (0..bytes).step_by(WINDOW_BYTES as usize) {
                let mut window = vec![0; (bytes - at).min(WINDOW_BYTES) as usize];
                // What the disk does not read is taken from other nodes.
                if own.file.read_exact_at(&mut window, at).is_ok() {
                    to.write_all_at(&window, at)?;
                }
            }
            Ok(true)
        });
        if has_own.await? { self.verify().await } else { Ok(()) }
    }

    /// Reads the ranges that are not verified from a node. The inner error is that of the node.
    async fn read_peer(&self, node: NodeId) -> io::Result<io::Result<()>> {
        let is_open = self.record.state() == SegmentState::Open;
        let part_bytes = if is_open { RECORD_READ_BYTES_MAX } else { SEGMENT_READ_BYTES_MAX };
        for range in &self.damaged {
            for at in range.clone().step_by(part_bytes as usize) {
                let part = at..range.end.min(at + part_bytes);
                let bytes = match self.open(node, part.clone(), is_open).await {
                    Ok(bytes) => bytes,
                    Err(fault) => return Ok(Err(fault)),
                };
                if let Err(fault) = self.receive(bytes, part).await? {
                    return Ok(Err(fault));
                }
            }
        }
        Ok(Ok(()))
    }

    async fn open(&self, node: NodeId, part: Range<u64>, is_open: bool) -> io::Result<ReplicaBytes> {
        let (segment, seed) = (self.record.segment_id(), self.record.seed());
        let peers = &self.replication.options.peers;
        if !is_open {
            return peers.read(node, ReadReplica::new(segment, seed, part).encode_request()).await;
        }
        let request = ReadReplica::for_client(segment, seed, part).encode_request();
        let bytes = peers.read_for_client(node, request).await?;
        Ok(Box::pin(stream::once(async move { Ok(bytes) })))
    }

    /// Writes the bytes of a stream that is to deliver `part`. The inner error is that of the stream.
    async fn receive(&self, mut bytes: ReplicaBytes, part: Range<u64>) -> io::Result<io::Result<()>> {
        let mut at = part.start;
        while at < part.end {
            let piece: Bytes = match bytes.next().await {
                Some(Ok(piece)) if piece.len() as u64 <= part.end - at => piece,
                Some(Ok(_)) => return Ok(Err(io::Error::other("more bytes than requested arrived"))),
                Some(Err(fault)) => return Ok(Err(fault)),
                None => return Ok(Err(io::ErrorKind::UnexpectedEof.into())),
            };
            let (file, size) = (self.file.clone(), piece.len() as u64);
            blocking(move || file.write_all_at(&piece, at)).await?;
            at += size;
            sleep_until(self.replication.due_at(size)).await;
        }
        Ok(Ok(()))
    }

    /// Finds the ranges that are not intact.
    async fn verify(&mut self) -> io::Result<()> {
        let (file, record, end) = (self.file.clone(), self.record.clone(), self.end);
        self.damaged = blocking(move || damaged_ranges(&file, &record, end)).await?;
        Ok(())
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|stopped| Err(io::Error::other(stopped)))
}
