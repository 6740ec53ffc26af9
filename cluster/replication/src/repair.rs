//! Decisions about copies of sealed segments: the work that this node does next. Each node pulls its own
//! copies, so a decision needs no agreement.
//!
//! - A segment with fewer good replicas than `copies`, or than there are storage nodes, gets a copy. The
//!   nodes that make it are chosen by rendezvous hashing among the reachable storage nodes without a replica:
//!   nodes that see the same facts choose alike. Where their facts differ, a segment may get a copy too many,
//!   which is dropped again.
//! - Suspicion is a mark: a marked replica is a source as long as no better one is reachable.
//! - The last replica is never dropped. A marked one is dropped only while `copies` verified others exist and
//!   can be reached, a good one only while it is one too many, and never the owner's.
//! - Every task names the change counter of the record that it was decided on. The command that records its
//!   result compares the counter, so that two nodes cannot both act on the same facts.
//!
//! A replica at an unreachable storage node counts as good, since the node may return with it. A replica at a
//! node that is no storage node any more does not count. Nothing is kept between calls; after a power loss
//! the next call decides anew.

use crate::rules::{ReplicationRule, ReplicationRules};
use mlgw_common::{NodeId, SegmentId};
use std::collections::BTreeSet;

/// Default number of copies of each segment.
pub const COPIES: usize = 3;

/// A replica of a sealed segment, as recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaFacts {
    /// The node that holds the replica.
    pub node: NodeId,
    /// True if the replica is marked: some of its bytes may be bad.
    pub is_suspect: bool,
}

/// A sealed segment, as recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentFacts {
    /// Id of the segment.
    pub segment: SegmentId,
    /// Length of the segment.
    pub bytes: u64,
    /// Change counter of the record.
    pub changes: u64,
    /// The replicas, the owner's first.
    pub replicas: Vec<ReplicaFacts>,
    /// True if an upstream holds the segment: it needs no copies.
    pub is_at_upstream: bool,
}

/// A node that stores segments. The node that decides is one of them, and reachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageNode {
    /// Id of the node.
    pub node: NodeId,
    /// True if the node answers.
    pub is_reachable: bool,
}

/// Kind of work on this node's replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RepairKind {
    /// This node heals its marked replica in place, record by record, from the sources.
    Heal,
    /// This node makes a replica from the sources and adds itself to the record.
    Copy,
    /// This node removes itself from the record, and then its file.
    Drop,
}

/// Work on this node's replica of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairTask {
    /// Id of the segment.
    pub segment: SegmentId,
    /// Change counter of the record that the task was decided on.
    pub changes: u64,
    /// Kind of work.
    pub kind: RepairKind,
    /// Nodes to read from, the best first; empty for [`RepairKind::Drop`].
    pub sources: Vec<NodeId>,
}

/// Facts from which the next tasks of a node follow.
#[derive(Clone, Copy, Debug)]
pub struct RepairInput<'a> {
    /// The node that decides.
    pub own: NodeId,
    /// Number of copies that each segment is to have.
    pub copies: usize,
    /// All storage nodes.
    pub nodes: &'a [StorageNode],
    /// All sealed segments.
    pub segments: &'a [SegmentFacts],
    /// Segments that this node works on already.
    pub busy: &'a BTreeSet<SegmentId>,
    /// Maximum number of tasks returned.
    pub tasks_max: usize,
}

/// Numbers of sealed segments by the state of their copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyCounts {
    /// Sealed segments.
    pub segments: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Segments with fewer good replicas than they are to have.
    pub below_segments: u64,
    /// Bytes in those.
    pub below_bytes: u64,
    /// Segments with a marked replica.
    pub suspect_segments: u64,
}

/// Returns the tasks that the node begins next: those whose segments have the fewest good replicas first,
/// then heals before copies, then the lowest id. Tasks without a good source follow, and then drops.
#[must_use]
pub fn next_tasks(input: &RepairInput<'_>) -> Vec<RepairTask> {
    next_tasks_by(input, ReplicationRules::ALL)
}

pub(crate) fn next_tasks_by(input: &RepairInput<'_>, rules: ReplicationRules) -> Vec<RepairTask> {
    let decided = input.segments.iter().filter(|facts| !input.busy.contains(&facts.segment));
    let mut found: Vec<(TaskRank, RepairTask)> =
        decided.filter_map(|facts| Choice::new(input, facts, rules).task()).collect();
    found.sort_by_key(|(rank, _)| *rank);
    found.truncate(input.tasks_max);
    found.into_iter().map(|(_, task)| task).collect()
}

/// Returns the numbers of segments by the state of their copies. Segments at an upstream need no copies.
#[must_use]
pub fn count_copies(copies: usize, nodes: &[StorageNode], segments: &[SegmentFacts]) -> CopyCounts {
    let wanted = wanted_copies(copies, nodes);
    let mut counts = CopyCounts::default();
    for facts in segments {
        counts.segments += 1;
        counts.bytes += facts.bytes;
        if !facts.is_at_upstream && good_nodes(facts, nodes).count() < wanted {
            counts.below_segments += 1;
            counts.below_bytes += facts.bytes;
        }
        counts.suspect_segments += u64::from(facts.replicas.iter().any(|replica| replica.is_suspect));
    }
    counts
}

/// Place of a task in the order of work, the first first.
type TaskRank = (TaskUrgency, usize, RepairKind, SegmentId);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TaskUrgency {
    /// A good source is reachable.
    GoodSource,
    /// Only marked sources are reachable: the task may fail.
    MarkedSource,
    /// Nothing becomes safer by it.
    Removal,
}

/// Decision about one segment.
struct Choice<'a> {
    input: &'a RepairInput<'a>,
    facts: &'a SegmentFacts,
    rules: ReplicationRules,
    /// Good replicas at storage nodes.
    good: usize,
    /// Other nodes with a good replica that are reachable.
    good_sources: Vec<NodeId>,
    /// Other nodes with a marked replica that are reachable.
    marked_sources: Vec<NodeId>,
}

impl<'a> Choice<'a> {
    fn new(input: &'a RepairInput<'a>, facts: &'a SegmentFacts, rules: ReplicationRules) -> Self {
        let sources = |is_suspect: bool| -> Vec<NodeId> {
            let marked = facts.replicas.iter().filter(|replica| replica.is_suspect == is_suspect);
            let others = marked.map(|replica| replica.node).filter(|node| *node != input.own);
            ranked(facts.segment, others.filter(|node| is_reachable(*node, input.nodes)))
        };
        let (good_sources, mut marked_sources) = (sources(false), sources(true));
        if !rules.has(ReplicationRule::SuspectIsSource) {
            marked_sources.clear();
        }
        let good = good_nodes(facts, input.nodes).count();
        Self { input, facts, rules, good, good_sources, marked_sources }
    }

    fn task(&self) -> Option<(TaskRank, RepairTask)> {
        let own = self.facts.replicas.iter().find(|replica| replica.node == self.input.own);
        let kind = match own {
            _ if self.facts.is_at_upstream => None,
            Some(own) if own.is_suspect => self.kind_for_marked(),
            Some(_) => self.is_surplus().then_some(RepairKind::Drop),
            None => self.is_chosen().then_some(RepairKind::Copy),
        }?;
        let mut sources = Vec::new();
        if kind != RepairKind::Drop {
            sources.extend(self.good_sources.iter().chain(&self.marked_sources));
            if sources.is_empty() {
                return None;
            }
        }
        let urgency = match kind {
            RepairKind::Drop => TaskUrgency::Removal,
            _ if self.good_sources.is_empty() => TaskUrgency::MarkedSource,
            _ => TaskUrgency::GoodSource,
        };
        let SegmentFacts { segment, changes, .. } = *self.facts;
        Some(((urgency, self.good, kind, segment), RepairTask { segment, changes, kind, sources }))
    }

    fn copies(&self) -> usize {
        self.input.copies.max(1)
    }

    /// Work on this node's marked replica.
    fn kind_for_marked(&self) -> Option<RepairKind> {
        let is_last = self.facts.replicas.len() == 1;
        let others = if self.rules.has(ReplicationRule::DropAfterEnough) { self.copies() } else { 1 };
        match self.good_sources.len() >= others {
            true => Some(RepairKind::Drop),
            false if is_last && !self.rules.has(ReplicationRule::LastStays) => Some(RepairKind::Drop),
            false => Some(RepairKind::Heal),
        }
    }

    /// True if this node's good replica is the one that is dropped, because there are more than enough.
    fn is_surplus(&self) -> bool {
        let owner = self.facts.replicas.first().map(|replica| replica.node);
        if self.good_sources.len() < self.copies() || owner == Some(self.input.own) {
            return false;
        }
        let others = self.good_sources.iter().copied().filter(|node| Some(*node) != owner);
        let candidates = ranked(self.facts.segment, others.chain([self.input.own]));
        candidates.last() == Some(&self.input.own)
    }

    /// True if this node is among those that make a copy.
    fn is_chosen(&self) -> bool {
        let RepairInput { own, nodes, .. } = *self.input;
        let missing = wanted_copies(self.copies(), nodes).saturating_sub(self.good);
        let is_free = |node: &&StorageNode| {
            node.is_reachable && !self.facts.replicas.iter().any(|replica| replica.node == node.node)
        };
        let candidates = nodes.iter().filter(is_free).map(|node| node.node);
        ranked(self.facts.segment, candidates).into_iter().take(missing).any(|node| node == own)
    }
}

/// Number of copies that a segment can have.
fn wanted_copies(copies: usize, nodes: &[StorageNode]) -> usize {
    copies.max(1).min(nodes.len())
}

fn is_reachable(node: NodeId, nodes: &[StorageNode]) -> bool {
    nodes.iter().any(|other| other.node == node && other.is_reachable)
}

/// Storage nodes with a good replica.
fn good_nodes<'a>(facts: &'a SegmentFacts, nodes: &'a [StorageNode]) -> impl Iterator<Item = NodeId> + 'a {
    let good = facts.replicas.iter().filter(|replica| !replica.is_suspect).map(|replica| replica.node);
    good.filter(|node| nodes.iter().any(|other| other.node == *node))
}

/// The nodes in the order in which rendezvous hashing prefers them for a segment.
fn ranked(segment: SegmentId, nodes: impl Iterator<Item = NodeId>) -> Vec<NodeId> {
    let mut nodes: Vec<NodeId> = nodes.collect();
    nodes.sort_by_key(|node| (std::cmp::Reverse(weight(segment, *node)), *node));
    nodes
}

/// Weight of a node for a segment. All versions of the program must agree on it.
fn weight(segment: SegmentId, node: NodeId) -> u64 {
    mix(mix(segment.0) ^ node.0)
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014): a bijection in which every bit of the input
/// changes about half of the bits of the result.
const fn mix(input: u64) -> u64 {
    let mixed = input.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests;
