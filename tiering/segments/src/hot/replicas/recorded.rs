//! The records of all segments, as a pass over the replicas of a node uses them. Pure.

use mlgw_common::SegmentTier;
use mlgw_common::ids::{NodeId, SegmentId};
use mlgw_formats::schema::{Replica, SegmentRecord, SegmentState};
use mlgw_replication::{ReplicaFacts, SegmentFacts};

/// The records of all segments. The lists are ordered by id.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RecordedSegments {
    /// Sealed segments. Those without bytes need no copies.
    pub(super) facts: Vec<SegmentFacts>,
    /// Segments whose record lists a replica in a local tier of this node.
    pub(super) listed: Vec<SegmentId>,
    /// Those that are sealed and have bytes, so that there must be a file.
    pub(super) expected: Vec<SegmentId>,
}

impl RecordedSegments {
    /// Returns what a pass on the node `own` uses of the records, which are ordered by id.
    pub(super) fn of(own: NodeId, records: &[SegmentRecord]) -> Self {
        let mut recorded = Self::default();
        for record in records {
            let segment = record.segment_id();
            let is_listed = record.replica_of(own).is_some_and(is_local);
            let is_sealed = record.state() == SegmentState::Sealed;
            if is_listed {
                recorded.listed.push(segment);
            }
            if is_listed && is_sealed && record.length > 0 {
                recorded.expected.push(segment);
            }
            if is_sealed {
                recorded.facts.push(facts_of(record));
            }
        }
        recorded
    }

    /// True if the segment is sealed.
    pub(super) fn contains(&self, segment: SegmentId) -> bool {
        self.facts.binary_search_by_key(&segment, |facts| facts.segment).is_ok()
    }
}

fn facts_of(record: &SegmentRecord) -> SegmentFacts {
    let replica = |of: &Replica| ReplicaFacts { node: NodeId(of.node), is_suspect: of.is_suspect };
    SegmentFacts {
        segment: record.segment_id(),
        set: record.set,
        bytes: record.length,
        changes: record.changes,
        replicas: record.replicas.iter().map(replica).collect(),
        is_at_upstream: record.is_at_upstream(),
    }
}

/// True if a replica is a file of its node.
pub(in crate::hot) fn is_local(replica: &Replica) -> bool {
    replica.tier() != Ok(SegmentTier::Upstream)
}

/// Returns the replicas of a segment with that of `own` marked; `None` if it is marked already, or cannot be
/// healed because it is the only one.
pub(super) fn marked_replicas(record: &SegmentRecord, own: NodeId) -> Option<Vec<Replica>> {
    let is_healable = record.state() == SegmentState::Sealed && record.replicas.len() > 1;
    let replica = record.replica_of(own).filter(|replica| is_healable && is_local(replica))?;
    if replica.is_suspect {
        return None;
    }
    Some(replicas_with(record, Replica { is_suspect: true, ..replica.clone() }))
}

/// Returns the replicas of a segment with this one in place of the one of its node, or else at the end. The
/// owner's stays the first.
pub(super) fn replicas_with(record: &SegmentRecord, replica: Replica) -> Vec<Replica> {
    let mut replicas = record.replicas.clone();
    match replicas.iter_mut().find(|of| of.node == replica.node) {
        Some(known) => *known = replica,
        None => replicas.push(replica),
    }
    replicas
}

/// Returns the replicas of a segment with this one as that of the owner, before the others.
pub(super) fn replicas_owned_by(record: &SegmentRecord, replica: Replica) -> Vec<Replica> {
    let own = replica.node;
    let others = record.replicas.iter().filter(|of| of.node != own).cloned();
    std::iter::once(replica).chain(others).collect()
}

/// Returns the replicas of a segment without those of nodes that `is_removed` names.
pub(super) fn replicas_without(record: &SegmentRecord, is_removed: impl Fn(NodeId) -> bool) -> Vec<Replica> {
    record.replicas.iter().filter(|of| !is_removed(NodeId(of.node))).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::{RecordedSegments, marked_replicas, replicas_owned_by, replicas_with, replicas_without};
    use mlgw_common::SegmentTier;
    use mlgw_common::ids::{NodeId, SegmentId};
    use mlgw_formats::schema::{Replica, SegmentRecord, SegmentState};

    fn record(id: u64, length: u64, nodes: &[u64]) -> SegmentRecord {
        let replica = |node: &u64| Replica { node: *node, ..Replica::default() };
        let state = SegmentState::Sealed as i32;
        let replicas = nodes.iter().map(replica).collect();
        SegmentRecord { id, length, state, replicas, ..SegmentRecord::default() }
    }

    #[test]
    fn only_sealed_segments_with_bytes_must_have_a_file() {
        let open = SegmentRecord { state: SegmentState::Open as i32, ..record(2, 0, &[2]) };
        let records = [record(1, 100, &[1, 2]), open, record(3, 0, &[2]), record(4, 100, &[1])];
        let recorded = RecordedSegments::of(NodeId(2), &records);
        assert_eq!(recorded.facts.iter().map(|facts| facts.segment.0).collect::<Vec<_>>(), [1, 3, 4]);
        assert_eq!(recorded.listed, [1, 2, 3].map(SegmentId));
        assert_eq!(recorded.expected, [SegmentId(1)]);
        assert!(recorded.contains(SegmentId(4)) && !recorded.contains(SegmentId(2)));
    }

    #[test]
    fn a_mark_never_removes_a_replica_and_the_only_one_is_not_marked() {
        let marked = marked_replicas(&record(1, 100, &[1, 2]), NodeId(2)).unwrap();
        assert_eq!(
            marked.iter().map(|of| (of.node, of.is_suspect)).collect::<Vec<_>>(),
            [(1, false), (2, true)]
        );
        let again = SegmentRecord { replicas: marked, ..record(1, 100, &[]) };
        assert_eq!(marked_replicas(&again, NodeId(2)), None);
        assert_eq!(marked_replicas(&record(1, 100, &[2]), NodeId(2)), None);
        assert_eq!(marked_replicas(&record(1, 100, &[1, 3]), NodeId(2)), None);
    }

    #[test]
    fn a_replica_takes_the_place_of_its_node() {
        let record = record(1, 100, &[1, 2]);
        let listed = |node| {
            let with = replicas_with(&record, Replica { node, is_suspect: true, ..Replica::default() });
            with.iter().map(|of| (of.node, of.is_suspect)).collect::<Vec<_>>()
        };
        assert_eq!(listed(1), [(1, true), (2, false)]);
        assert_eq!(listed(3), [(1, false), (2, false), (3, true)]);
    }

    #[test]
    fn a_new_owner_comes_first_and_removed_nodes_are_left_out() {
        let nodes = |replicas: &[Replica]| replicas.iter().map(|of| of.node).collect::<Vec<_>>();
        let record = record(1, 100, &[1, 2, 3]);
        let replica = |node| Replica { node, ..Replica::default() };
        assert_eq!(nodes(&replicas_owned_by(&record, replica(3))), [3, 1, 2]);
        assert_eq!(nodes(&replicas_owned_by(&record, replica(4))), [4, 1, 2, 3]);
        assert_eq!(nodes(&replicas_without(&record, |node| node == NodeId(1))), [2, 3]);
    }

    #[test]
    fn a_replica_at_an_upstream_is_not_a_file_of_its_node() {
        let tier = SegmentTier::Upstream.number();
        let spilled = Replica { node: 2, tier, ..Replica::default() };
        let records = [SegmentRecord { replicas: vec![spilled], ..record(1, 100, &[]) }];
        let recorded = RecordedSegments::of(NodeId(2), &records);
        assert!(recorded.listed.is_empty() && recorded.facts[0].is_at_upstream);
    }
}
