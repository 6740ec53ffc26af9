//! Makes the copy of a segment on this node: a new one, one in place of what an interrupted task left, and
//! one in place of a damaged replica.
//!
//! The copy is written to a file of its own at the same offsets: first the bytes of the local file, if there
//! is one, then those of other nodes, in order. After each source the copy is verified on the disk; the next
//! source is read only where bytes belong to no intact record. What is damaged in every replica stays as the
//! first source has it. It is no reason for having no copy, but a replica that cannot be read is: the caller
//! repeats the task.
//!
//! A local file that is intact already is kept as it is. One with damage is replaced only by a copy with
//! fewer damaged bytes. At a power loss one of the two is there.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use mlgw_common::ids::NodeId;
use mlgw_common::time::Instant;
use mlgw_formats::schema::SegmentRecord;
use mlgw_formats::segment_calls::{ReadReplica, SEGMENT_READ_BYTES_MAX};

use super::copy_file::{CopyFile, ExaminedFile, WINDOW_BYTES};
use super::home::{ReplicaHome, new_home};
use super::progress::count;
use super::{ReplicaBytes, Replication};
use crate::hot::HotTierInner;
use crate::hot::compaction::{MoveStepError, wait_until};
use crate::hot::placing::reservation::CopyReservation;

/// Bytes after which an unreadable place of a source is passed over.
const UNREADABLE_BYTES: u64 = 16 << 10;
/// Bytes after an unreadable place that are requested in small parts. A source reads as many at a time.
const NARROW_BYTES: u64 = 256 << 10;
/// Reads in a row that deliver nothing, after which the source counts as unreadable there.
const FRUITLESS_READS_MAX: u32 = 2;
/// Attempts to open a range at a node, and the pause between them.
const OPEN_ATTEMPTS: u32 = 3;
const OPEN_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of damaged ranges that are logged for a copy.
const LOGGED_RANGES_MAX: usize = 20;

const _: () = assert!(UNREADABLE_BYTES <= NARROW_BYTES);

/// A copy to make.
pub(in crate::hot) struct CopyPlan<'a> {
    pub(in crate::hot) record: &'a SegmentRecord,
    /// Nodes to read from, the best first.
    pub(in crate::hot) sources: &'a [NodeId],
    /// All other storage nodes with a replica.
    pub(in crate::hot) holders: Vec<NodeId>,
    /// True if places that a reachable source fails to read count as damaged there.
    pub(in crate::hot) accepts_unreadable: bool,
}

/// The result: a durable file under the segment's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) struct ReplicaCopy {
    pub(in crate::hot) home: ReplicaHome,
    /// Bytes up to the sealed length that belong to no intact record, in any replica.
    pub(in crate::hot) damaged_bytes: u64,
    /// True if a replica could not be read where bytes are damaged: it may have them.
    pub(in crate::hot) is_partial: bool,
}

/// Makes the copy.
///
/// # Errors
/// When there is no space, a disk fails, or bytes are missing that a replica may have which was not read.
pub(in crate::hot) async fn copy_replica(
    inner: &Arc<HotTierInner>,
    replication: &Replication,
    plan: &CopyPlan<'_>,
) -> Result<ReplicaCopy, MoveStepError> {
    let own = ExaminedFile::examine(inner, plan.record).await?;
    let home = own.as_ref().map_or_else(|| new_home(inner, plan.record.length), |own| own.home);
    if own.as_ref().is_some_and(|own| own.damaged_bytes() == 0) {
        return Ok(ReplicaCopy { home, damaged_bytes: 0, is_partial: false });
    }
    let room = CopyReservation::reserve(home.space(inner), home.tier().name(), plan.record)?;
    let copy = CopyFile::begin(inner, plan.record, home, own)?;
    let mut fetch = ReplicaFetch { copy, replication, plan, has_unread: false };
    fetch.fill().await?;
    let (copy, has_unread) = (fetch.copy, fetch.has_unread);
    let damaged_bytes = copy.damaged_bytes();
    let is_partial = has_unread && damaged_bytes > 0;
    if copy.is_own_unreadable() && damaged_bytes > 0 {
        return Err(io::Error::other("the disk does not read the local file, and no copy is complete").into());
    }
    if let Some(own_bytes) = copy.own_damaged_bytes().filter(|own_bytes| *own_bytes <= damaged_bytes) {
        return Ok(ReplicaCopy { home, damaged_bytes: own_bytes, is_partial });
    }
    if damaged_bytes >= plan.record.length {
        return Err(io::Error::other("no record of the segment could be read").into());
    }
    copy.finish().await?;
    room.keep();
    Ok(ReplicaCopy { home, damaged_bytes, is_partial })
}

/// A copy that is being filled.
struct ReplicaFetch<'a> {
    copy: CopyFile,
    replication: &'a Replication,
    plan: &'a CopyPlan<'a>,
    /// True if bytes were passed over that a source failed to read.
    has_unread: bool,
}

impl ReplicaFetch<'_> {
    /// Reads the sources until everything is verified, or damaged in all of them.
    async fn fill(&mut self) -> Result<(), MoveStepError> {
        if self.copy.has_own() {
            self.copy.copy_own().await?;
            self.copy.verify().await?;
        }
        let unreachable = self.plan.holders.iter().map(|node| (*node, "it is not reachable".to_owned()));
        let mut unread: BTreeMap<NodeId, String> = unreachable.collect();
        for &node in self.plan.sources {
            if self.copy.damaged.is_empty() {
                return Ok(());
            }
            match self.read_peer(node).await? {
                None => drop(unread.remove(&node)),
                Some(fault) => drop(unread.insert(node, fault.to_string())),
            }
            self.copy.verify().await?;
        }
        if self.copy.damaged.is_empty() {
            return Ok(());
        }
        if let Some((node, why)) = unread.into_iter().next() {
            return Err(io::Error::other(format!("the replica on node {node} was not read: {why}")).into());
        }
        self.restore_first().await?;
        self.copy.check_written().await?;
        for Range { start, end } in self.copy.damaged.iter().take(LOGGED_RANGES_MAX) {
            tracing::error!(segment = %self.plan.record.segment_id(), start, end,
                "bytes of a segment are intact in no replica that was read");
        }
        Ok(())
    }

    /// Writes what is damaged everywhere as the first source has it: blocks that can be read there can be
    /// read here.
    async fn restore_first(&mut self) -> Result<(), MoveStepError> {
        if self.copy.has_own() {
            self.copy.restore_own().await?;
        } else {
            let [first, _, ..] = self.plan.sources else { return Ok(()) };
            if let Some(fault) = self.read_peer(*first).await? {
                return Err(fault.into());
            }
        }
        self.copy.verify().await
    }

    /// Reads the ranges that are not verified from a node, when no other copy receives bytes. Returns the
    /// fault that ended it, if any.
    async fn read_peer(&mut self, node: NodeId) -> Result<Option<io::Error>, MoveStepError> {
        // Each copy receives at the whole rate. Two at half the rate would end, and be verified, together.
        let _turn = self.replication.receiving.lock().await;
        for range in self.copy.damaged.clone() {
            if let Some(fault) = self.read_range(node, range).await? {
                tracing::debug!(segment = %self.plan.record.segment_id(), %node, %fault, "reading a replica");
                return Ok(Some(fault));
            }
        }
        Ok(None)
    }

    /// Reads a range from a node, in as many requests as it takes: a stream that breaks off is continued.
    async fn read_range(
        &mut self,
        node: NodeId,
        range: Range<u64>,
    ) -> Result<Option<io::Error>, MoveStepError> {
        let (mut at, mut narrow_until, mut fruitless) = (range.start, range.start, 0);
        while at < range.end {
            let bytes_max = if at < narrow_until { UNREADABLE_BYTES } else { SEGMENT_READ_BYTES_MAX };
            let part = at..range.end.min(at + bytes_max);
            let record = self.plan.record;
            let request = ReadReplica::new(record.segment_id(), record.seed(), part.clone());
            let bytes = match self.open(node, &request).await? {
                Ok(bytes) => bytes,
                Err(fault) => return Ok(Some(fault)),
            };
            let received = self.receive(bytes, part.clone()).await?;
            let is_progress = received.end >= part.end.min(at + UNREADABLE_BYTES);
            fruitless = if is_progress { 0 } else { fruitless + 1 };
            at = received.end;
            let Some(fault) = received.fault.filter(|_| fruitless >= FRUITLESS_READS_MAX) else { continue };
            if !self.plan.accepts_unreadable {
                return Ok(Some(fault));
            }
            fruitless = 0;
            self.has_unread = true;
            if at < narrow_until {
                at = part.end;
            } else {
                narrow_until = at + NARROW_BYTES;
            }
        }
        Ok(None)
    }

    /// Opens a range at a node. A node that serves too many reads is asked again after a pause.
    async fn open(
        &self,
        node: NodeId,
        request: &ReadReplica,
    ) -> Result<io::Result<ReplicaBytes>, MoveStepError> {
        let mut attempt = 1;
        loop {
            let opened = self.replication.options.peers.read(node, request.encode_request()).await;
            if opened.is_ok() || attempt == OPEN_ATTEMPTS {
                return Ok(opened);
            }
            attempt += 1;
            wait_until(&self.copy.inner, Instant::now() + OPEN_PAUSE).await?;
        }
    }

    /// Writes the bytes of a stream that is to deliver `range`, at the configured rate.
    async fn receive(
        &mut self,
        mut bytes: ReplicaBytes,
        range: Range<u64>,
    ) -> Result<ReceivedBytes, MoveStepError> {
        let (mut at, mut window, mut fault) = (range.start, Vec::new(), None);
        while at < range.end && fault.is_none() {
            let missing = range.end - at - window.len() as u64;
            match bytes.next().await {
                Some(Ok(piece)) if piece.len() as u64 <= missing => window.extend_from_slice(&piece),
                Some(Ok(_)) => fault = Some(io::Error::other("more bytes than requested arrived")),
                Some(Err(error)) => fault = Some(error),
                None => fault = Some(io::ErrorKind::UnexpectedEof.into()),
            }
            let size = window.len() as u64;
            let is_full = size >= WINDOW_BYTES || at + size == range.end;
            if size > 0 && (is_full || fault.is_some()) {
                self.copy.write(at, std::mem::take(&mut window)).await?;
                at += size;
                count(&self.replication.counters.copied_bytes, size);
                wait_until(&self.copy.inner, self.replication.due_at(size)).await?;
            }
        }
        Ok(ReceivedBytes { end: at, fault })
    }
}

/// The part of a stream that arrived and was written.
struct ReceivedBytes {
    end: u64,
    fault: Option<io::Error>,
}
