//! The replicas on other nodes, as reads of this node use them when the local disk cannot answer.
//!
//! The record of a segment names the nodes. Those that can be reached are read in turn: intact replicas
//! before suspect ones, and the owner of an open segment first, which alone has all that was written. Nodes
//! that answer late come last. Bytes of another node are verified like those of a disk. Nothing is stored.
//!
//! The local replica is *complete* if its record promises all bytes: what it lacks or has damaged is damage.
//! It is *partial* if the segment is an open one of another node, or has no replica here: what it lacks is on
//! another node, and is no damage.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mlgw_common::SegmentTier;
use mlgw_common::ids::{NodeId, SegmentId};
use mlgw_common::limits::CHUNK_BYTES_MAX;
use mlgw_common::time::timeout;
use mlgw_formats::schema::{Replica, SegmentRecord, SegmentState};
use mlgw_formats::segment_calls::{RECORD_READ_BYTES_MAX, ReadReplica};
use mlgw_formats::segment_record::HEAD_BYTES_MAX;
use mlgw_metadata::{BarrierScope, Catalogue};
use mlgw_replication::StorageNode;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::error::SegmentReadError;
use super::source_health::SourceHealth;
use crate::hot::map::{MapError, SegmentMap};
use crate::hot::options::HotOptions;
use crate::hot::replicas::ReplicationOptions;

/// Time after which another replica is read at the same time as the local disk, and a further one at the same
/// time as another node: longer than reads of a healthy disk take under load, shorter than clients wait.
pub(super) const OTHER_REPLICA_AFTER: Duration = Duration::from_millis(500);
/// Maximum number of other nodes that one read asks.
const SOURCES_MAX: usize = 3;
/// Maximum number of records that are read from other nodes at a time. Each is at most 2 MiB in memory, and
/// as much again for each further node that is asked because one does not answer.
const OTHER_REPLICA_READS_MAX: usize = 64;
/// Longest wait for one of these reads to end, before a further one is refused.
const PERMIT_WAIT_MAX: Duration = Duration::from_secs(2);

// The largest record fits into the answer to one request.
const _: () = assert!(HEAD_BYTES_MAX as u64 + CHUNK_BYTES_MAX <= RECORD_READ_BYTES_MAX);

/// Access to the replicas on other nodes.
pub(in crate::hot) struct OtherReplicas {
    node: NodeId,
    map: Arc<dyn SegmentMap>,
    /// Catalogue of the map; `None` for a map of tests.
    catalogue: Option<Catalogue>,
    replication: ReplicationOptions,
    reads: Semaphore,
    health: SourceHealth,
}

/// The replica of this node, according to the record of its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnReplica {
    Complete,
    Suspect,
    Partial,
}

impl OtherReplicas {
    /// Returns the access; `None` for a node without peers, and for copies of what can be fetched again.
    pub(in crate::hot) fn of(
        options: &HotOptions,
        map: &Arc<dyn SegmentMap>,
        catalogue: Option<&Catalogue>,
    ) -> Option<Arc<Self>> {
        let replication = options.replication.clone().filter(|_| !options.disposable)?;
        let (node, map, catalogue) = (options.lineage.node, map.clone(), catalogue.cloned());
        let reads = Semaphore::new(OTHER_REPLICA_READS_MAX);
        let health = SourceHealth::default();
        Some(Arc::new(Self { node, map, catalogue, replication, reads, health }))
    }

    /// The number of this node.
    pub(super) const fn node(&self) -> NodeId {
        self.node
    }

    /// Returns the record of a segment, as this node knows it now.
    pub(super) fn record(&self, segment: SegmentId) -> Result<Option<SegmentRecord>, MapError> {
        self.map.record(segment)
    }

    /// Returns the record of a segment. Waits for the newest rows if the segment was created after those of
    /// this node. Returns `None` if it was released.
    ///
    /// # Errors
    /// [`SegmentReadError::NoReplica`] if no leader confirms which rows are the newest.
    pub(super) async fn newest_record(
        &self,
        segment: SegmentId,
    ) -> Result<Option<SegmentRecord>, SegmentReadError> {
        let unreadable = |error| SegmentReadError::Io { segment, source: io::Error::other(error) };
        // The ids first: a segment that is created meanwhile has a higher one.
        let was_minted = self.map.was_minted(segment).map_err(unreadable)?;
        let known = self.record(segment).map_err(unreadable)?;
        let Some(catalogue) = self.catalogue.as_ref().filter(|_| known.is_none() && !was_minted) else {
            return Ok(known);
        };
        if let Err(error) = catalogue.barrier(BarrierScope::System).await {
            tracing::debug!(%segment, %error, "waiting for the record of a segment");
            return Err(SegmentReadError::NoReplica { segment });
        }
        self.record(segment).map_err(unreadable)
    }

    /// True if bytes that the local replica of a segment lacks, or has damaged, are damage that is not known
    /// yet.
    pub(super) fn is_damage(&self, segment: SegmentId) -> bool {
        match self.record(segment) {
            Ok(record) => record.is_some_and(|of| own_replica(&of, self.node) == OwnReplica::Complete),
            Err(_) => true,
        }
    }

    /// Returns the nodes to read from, in order.
    pub(super) fn sources(&self, record: &SegmentRecord) -> Vec<NodeId> {
        let mut nodes = sources(record, self.node, &self.replication.nodes.storage_nodes());
        // Stable: the others keep their order.
        nodes.sort_by_key(|node| self.health.is_late(*node));
        nodes.truncate(SOURCES_MAX);
        nodes
    }

    /// Lateness of the other nodes.
    pub(super) const fn health(&self) -> &SourceHealth {
        &self.health
    }

    /// Waits until one more record may be read, at most [`PERMIT_WAIT_MAX`]. Returns `None` if too many reads
    /// are in progress for as long.
    pub(super) async fn permit(&self) -> Option<SemaphorePermit<'_>> {
        timeout(PERMIT_WAIT_MAX, self.reads.acquire()).await.ok()?.ok()
    }

    /// Returns the permit for one more record if there is one.
    #[cfg(test)]
    pub(super) fn try_permit(&self) -> Option<SemaphorePermit<'_>> {
        self.reads.try_acquire().ok()
    }

    /// Reads a range of the file of a replica.
    ///
    /// # Errors
    /// When the node cannot be reached or refuses, or sends another number of bytes.
    pub(super) async fn fetch(
        &self,
        node: NodeId,
        record: &SegmentRecord,
        range: Range<u64>,
    ) -> io::Result<Bytes> {
        let expected = range.end - range.start;
        let request = ReadReplica::for_client(record.segment_id(), record.seed(), range);
        let bytes = self.replication.peers.read_for_client(node, request.encode_request()).await?;
        if bytes.len() as u64 != expected {
            let what = format!("node {node} sent {} bytes instead of {expected}", bytes.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(bytes)
    }

    /// Returns the error of a read that neither the local disk, which failed with `error`, nor another node
    /// answered.
    pub(super) fn unanswered(&self, record: &SegmentRecord, error: SegmentReadError) -> SegmentReadError {
        let segment = record.segment_id();
        if matches!(self.record(segment), Ok(None)) {
            // It was released meanwhile, so its chunks are elsewhere.
            return SegmentReadError::Gone { segment };
        }
        match (&error, own_replica(record, self.node)) {
            (SegmentReadError::Gone { .. }, _) | (SegmentReadError::Corrupt { .. }, OwnReplica::Partial) => {
                SegmentReadError::NoReplica { segment }
            }
            (SegmentReadError::Corrupt { .. }, OwnReplica::Complete | OwnReplica::Suspect)
            | (SegmentReadError::Io { .. }, _)
            | (SegmentReadError::Unreachable { .. } | SegmentReadError::NoReplica { .. }, _) => error,
        }
    }
}

/// The state of the replica of the node `own`. A segment at an upstream counts as complete.
fn own_replica(record: &SegmentRecord, own: NodeId) -> OwnReplica {
    if record.is_at_upstream() {
        return OwnReplica::Complete;
    }
    let Some(replica) = record.replica_of(own) else { return OwnReplica::Partial };
    match record.state() {
        SegmentState::Open if record.is_owned_by(own) => OwnReplica::Complete,
        SegmentState::Open => OwnReplica::Partial,
        SegmentState::Sealed if replica.is_suspect => OwnReplica::Suspect,
        SegmentState::Sealed => OwnReplica::Complete,
    }
}

/// The nodes besides `own` with a file of the segment, the best first. Those that did not answer the last
/// probe come last: they may answer again, and the probes of a node that starts are not answered yet.
pub(in crate::hot) fn sources(record: &SegmentRecord, own: NodeId, nodes: &[StorageNode]) -> Vec<NodeId> {
    let is_source = |replica: &&Replica| {
        let node = NodeId(replica.node);
        let is_known = nodes.iter().any(|one| one.node == node);
        node != own && is_known && replica.tier().is_ok_and(|tier| tier != SegmentTier::Upstream)
    };
    let is_reachable =
        |replica: &Replica| nodes.iter().any(|one| one.node.0 == replica.node && one.is_reachable);
    let mut replicas: Vec<&Replica> = record.replicas.iter().filter(is_source).collect();
    let is_writer =
        |replica: &Replica| record.state() == SegmentState::Open && record.is_owned_by(NodeId(replica.node));
    // The others keep the sequence of the record.
    replicas.sort_by_key(|replica| (!is_reachable(replica), !is_writer(replica), replica.is_suspect));
    replicas.iter().map(|replica| NodeId(replica.node)).collect()
}

#[cfg(test)]
mod tests {
    use super::{OwnReplica, own_replica, sources};
    use mlgw_common::SegmentTier;
    use mlgw_common::ids::NodeId;
    use mlgw_formats::schema::{Replica, SegmentRecord, SegmentState};
    use mlgw_replication::StorageNode;

    /// The record of a segment with replicas on these nodes. Those on `suspects` are suspect.
    fn record(state: SegmentState, nodes: &[u64], suspects: &[u64]) -> SegmentRecord {
        let replica =
            |node: &u64| Replica { node: *node, is_suspect: suspects.contains(node), ..Replica::default() };
        let replicas = nodes.iter().map(replica).collect();
        SegmentRecord { id: 7, state: state as i32, replicas, ..SegmentRecord::default() }
    }

    fn sources_of(record: &SegmentRecord, own: u64, reachable: &[u64]) -> Vec<u64> {
        let node = |node: u64| StorageNode {
            node: NodeId(node),
            is_reachable: reachable.contains(&node),
            is_leaving: false,
            is_full: false,
        };
        let nodes: Vec<StorageNode> = (1..=6).map(node).collect();
        sources(record, NodeId(own), &nodes).into_iter().map(|node| node.0).collect()
    }

    #[test]
    fn reachable_nodes_with_intact_replicas_come_first() {
        let all = [1, 2, 3, 4, 5, 6];
        let sealed = record(SegmentState::Sealed, &[1, 2, 3], &[1]);
        assert_eq!(sources_of(&sealed, 2, &all), [3, 1]);
        assert_eq!(sources_of(&sealed, 2, &[2]), [3, 1], "they may answer again");
        assert_eq!(sources_of(&sealed, 4, &[1, 4]), [1, 2, 3], "a suspect one is better than none");
        let removed = record(SegmentState::Sealed, &[2, 9], &[]);
        assert_eq!(sources_of(&removed, 2, &all), [0; 0], "node 9 was removed");
        let many = record(SegmentState::Sealed, &all, &[2]);
        assert_eq!(sources_of(&many, 1, &all), [3, 4, 5, 6, 2]);
    }

    #[test]
    fn the_owner_of_an_open_segment_comes_first() {
        let open = record(SegmentState::Open, &[3, 2, 1], &[3]);
        assert_eq!(sources_of(&open, 2, &[1, 2, 3]), [3, 1]);
        let sealed = record(SegmentState::Sealed, &[3, 2, 1], &[3]);
        assert_eq!(sources_of(&sealed, 2, &[1, 2, 3]), [1, 3]);
    }

    #[test]
    fn a_segment_at_an_upstream_has_no_sources() {
        let mut spilled = record(SegmentState::Sealed, &[1], &[]);
        spilled.replicas[0].tier = SegmentTier::Upstream.number();
        assert!(sources_of(&spilled, 2, &[1, 2]).is_empty());
        assert_eq!(own_replica(&spilled, NodeId(2)), OwnReplica::Complete);
    }

    #[test]
    fn only_the_owner_and_replicas_of_sealed_segments_are_complete() {
        let open = record(SegmentState::Open, &[1, 2], &[]);
        let sealed = record(SegmentState::Sealed, &[1, 2, 3], &[3]);
        let states = |record| [1, 2, 3, 4].map(|own| own_replica(record, NodeId(own)));
        let (complete, suspect, partial) = (OwnReplica::Complete, OwnReplica::Suspect, OwnReplica::Partial);
        assert_eq!(states(&open), [complete, partial, partial, partial]);
        assert_eq!(states(&sealed), [complete, complete, suspect, partial]);
    }
}
