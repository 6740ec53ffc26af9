//! Decisions about copies of sealed segments: the work that this node does next. Each node pulls its own
//! copies, so a decision needs no agreement.
//!
//! - A segment with fewer good replicas than `copies`, or than there are storage nodes, gets a copy. The
//!   nodes that make it are chosen by rendezvous hashing among the reachable storage nodes without a replica:
//!   nodes that see the same facts choose alike. Where their facts differ, a segment may get a copy too many,
//!   which is dropped again. A full node makes a copy only if too few others can: it may find space in
//!   another tier.
//! - Suspicion is a mark: a marked replica is a source as long as no better one is reachable.
//! - The last replica is never dropped. A marked one is dropped only while `copies` verified others exist and
//!   can be reached, a good one only while it is one too many, and never the owner's.
//! - A node that leaves is a source, and its replicas count as no copies. It drops a replica when the other
//!   nodes have all copies that they can have. If it is the owner, another node with a good replica becomes
//!   the owner first. Only the owner of an open segment may append, so only sealed ones change their owner.
//! - The owner drops the replicas of removed nodes, which are never read again.
//! - For a segment, a node outside of its set is like one that leaves ([`StorageViews`]). The number of
//!   copies is that which all storage nodes can have, so a set that is too small gives up no copy elsewhere.
//! - A segment at an upstream is on no node, and keeps its owner when sets change: only the node to which a
//!   prefix of an upstream belongs may delete below it. A lost owner is replaced by a node of the first set,
//!   which alone can find out that no group refers to a segment.
//! - Every task names the change counter of the record that it was decided on. The command that records its
//!   result compares the counter, so that two nodes cannot both act on the same facts.
//!
//! A replica at an unreachable storage node counts as good, since the node may return with it. A replica at a
//! node that is not listed any more does not count: the node was removed for ever. Nothing is kept between
//! calls; after a power loss the next call decides anew.

use crate::rules::{ReplicationRule, ReplicationRules};
use crate::views::{StorageNode, StorageViews};
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
    /// Id of its set.
    pub set: u32,
    /// Length of the segment.
    pub bytes: u64,
    /// Change counter of the record.
    pub changes: u64,
    /// The replicas, the owner's first.
    pub replicas: Vec<ReplicaFacts>,
    /// True if an upstream holds the segment: it needs no copies.
    pub is_at_upstream: bool,
}

/// Kind of work on this node's replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RepairKind {
    /// This node heals its marked replica in place, record by record, from the sources.
    Heal,
    /// This node makes a replica from the sources and adds itself to the record.
    Copy,
    /// This node becomes the owner: its entry in the record becomes the first one. It adds one if it has
    /// none, which is so for a segment at an upstream and for one without bytes.
    TakeOver,
    /// This node, the owner, removes the entries of removed nodes from the record.
    Forget,
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
    /// Nodes to read from, the best first; empty for kinds that change the record alone.
    pub sources: Vec<NodeId>,
}

/// Facts from which the next tasks of a node follow.
#[derive(Clone, Copy, Debug)]
pub struct RepairInput<'a> {
    /// The node that decides.
    pub own: NodeId,
    /// Number of copies that each segment is to have.
    pub copies: usize,
    /// All storage nodes that are not removed.
    pub nodes: &'a StorageViews,
    /// All sealed segments. Those without bytes need an owner and no copies.
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
/// then heals before copies, then the lowest id. Tasks without a good source follow, and then those that only
/// change a record.
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

/// Progress of a node that leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeavingCounts {
    /// Sealed segments that have a replica on the node, or that it owns.
    pub segments: u64,
    /// Those that no longer need the node: the other nodes have all copies that they can have.
    pub copied_segments: u64,
}

/// Returns the progress of the node `leaving`.
#[must_use]
pub fn count_leaving(
    copies: usize,
    nodes: &StorageViews,
    segments: &[SegmentFacts],
    leaving: NodeId,
) -> LeavingCounts {
    let nodes = nodes.without(leaving);
    let mut counts = LeavingCounts::default();
    let needs = |facts: &&SegmentFacts| {
        let is_owner = facts.replicas.first().is_some_and(|owner| owner.node == leaving);
        is_owner || facts.bytes > 0 && facts.replicas.iter().any(|of| of.node == leaving)
    };
    let wanted = wanted_copies(copies, nodes.all()).max(1);
    for facts in segments.iter().filter(needs) {
        counts.segments += 1;
        let good = || good_nodes(facts, nodes.of(facts.set)).count();
        let has_copies = facts.bytes == 0 || facts.is_at_upstream || good() >= wanted;
        counts.copied_segments += u64::from(has_copies);
    }
    counts
}

/// Returns true if no node has, or could have, bytes of the segment: all its replicas were on removed nodes.
#[must_use]
pub fn is_lost(facts: &SegmentFacts, nodes: &[StorageNode]) -> bool {
    let is_listed = |replica: &ReplicaFacts| nodes.iter().any(|node| node.node == replica.node);
    facts.bytes > 0 && !facts.is_at_upstream && !facts.replicas.iter().any(is_listed)
}

/// Returns the numbers of segments by the state of their copies. Segments at an upstream need no copies.
#[must_use]
pub fn count_copies(copies: usize, nodes: &StorageViews, segments: &[SegmentFacts]) -> CopyCounts {
    let wanted = wanted_copies(copies, nodes.all());
    let mut counts = CopyCounts::default();
    for facts in segments {
        counts.segments += 1;
        counts.bytes += facts.bytes;
        if !facts.is_at_upstream && good_nodes(facts, nodes.of(facts.set)).count() < wanted {
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
    /// No bytes are made safer by it.
    RecordOnly,
}

/// Decision about one segment.
struct Choice<'a> {
    input: &'a RepairInput<'a>,
    facts: &'a SegmentFacts,
    rules: ReplicationRules,
    /// The storage nodes, as the segment sees them.
    nodes: &'a [StorageNode],
    /// Good replicas at storage nodes that stay.
    good: usize,
    /// Other nodes with a good replica that are reachable and stay, in the order of the record.
    good_copies: Vec<NodeId>,
    /// Other nodes with a good replica that are reachable.
    good_sources: Vec<NodeId>,
    /// Other nodes with a marked replica that are reachable.
    marked_sources: Vec<NodeId>,
}

impl<'a> Choice<'a> {
    fn new(input: &'a RepairInput<'a>, facts: &'a SegmentFacts, rules: ReplicationRules) -> Self {
        let nodes = match rules.has(ReplicationRule::SetIsKept) && !facts.is_at_upstream {
            true => input.nodes.of(facts.set),
            false => input.nodes.all(),
        };
        let reachable = |is_suspect: bool| -> Vec<NodeId> {
            let marked = facts.replicas.iter().filter(|replica| replica.is_suspect == is_suspect);
            let others = marked.map(|replica| replica.node).filter(|node| *node != input.own);
            others.filter(|node| is_reachable(*node, nodes)).collect()
        };
        let (good, mut marked) = (reachable(false), reachable(true));
        if !rules.has(ReplicationRule::SuspectIsSource) {
            marked.clear();
        }
        let counts = |node: &NodeId| is_staying(*node, nodes) || !rules.has(ReplicationRule::LeavingIsNoCopy);
        let listed = facts.replicas.iter().filter(|replica| !replica.is_suspect).map(|of| of.node);
        let is_known = |node: &NodeId| nodes.iter().any(|other| other.node == *node);
        Self {
            input,
            facts,
            rules,
            nodes,
            good: listed.filter(is_known).filter(counts).count(),
            good_copies: good.iter().copied().filter(counts).collect(),
            good_sources: ranked(facts.segment, good.into_iter()),
            marked_sources: ranked(facts.segment, marked.into_iter()),
        }
    }

    fn task(&self) -> Option<(TaskRank, RepairTask)> {
        let kind = self.kind()?;
        let mut sources = Vec::new();
        let urgency = match kind {
            RepairKind::TakeOver | RepairKind::Forget | RepairKind::Drop => TaskUrgency::RecordOnly,
            RepairKind::Heal | RepairKind::Copy => {
                sources.extend(self.good_sources.iter().chain(&self.marked_sources));
                match (sources.is_empty(), self.good_sources.is_empty()) {
                    (true, _) => return None,
                    (false, true) => TaskUrgency::MarkedSource,
                    (false, false) => TaskUrgency::GoodSource,
                }
            }
        };
        let SegmentFacts { segment, changes, .. } = *self.facts;
        Some(((urgency, self.good, kind, segment), RepairTask { segment, changes, kind, sources }))
    }

    fn kind(&self) -> Option<RepairKind> {
        let own = self.facts.replicas.iter().find(|replica| replica.node == self.input.own);
        let stays = self.nodes.iter().find(|of| of.node == self.input.own).map(|of| !of.is_leaving)?;
        if self.facts.is_at_upstream || self.facts.bytes == 0 {
            return self.is_heir().then_some(RepairKind::TakeOver);
        }
        match own {
            Some(own) if !stays => self.kind_for_leaving(*own),
            Some(_) if self.is_heir() => Some(RepairKind::TakeOver),
            Some(own) if own.is_suspect => self.kind_for_marked(),
            Some(_) if self.has_removed_replicas() => Some(RepairKind::Forget),
            Some(_) => self.is_surplus().then_some(RepairKind::Drop),
            None => self.is_chosen().then_some(RepairKind::Copy),
        }
    }

    fn copies(&self) -> usize {
        self.input.copies.max(1)
    }

    /// Number of copies that the segment can have, wherever they are.
    fn wanted(&self) -> usize {
        wanted_copies(self.copies(), self.input.nodes.all())
    }

    fn owner(&self) -> Option<NodeId> {
        self.facts.replicas.first().map(|replica| replica.node)
    }

    /// Work on this node's replica while this node leaves.
    fn kind_for_leaving(&self, own: ReplicaFacts) -> Option<RepairKind> {
        let has_enough = match self.rules.has(ReplicationRule::LeavingDropsLast) {
            true => self.good_copies.len() >= self.wanted().max(1),
            false => self.facts.replicas.len() > 1,
        };
        match has_enough {
            true => (self.owner() != Some(self.input.own)).then_some(RepairKind::Drop),
            false => own.is_suspect.then_some(RepairKind::Heal),
        }
    }

    /// Work on this node's marked replica.
    fn kind_for_marked(&self) -> Option<RepairKind> {
        let is_last = self.facts.replicas.len() == 1;
        let others = if self.rules.has(ReplicationRule::DropAfterEnough) { self.copies() } else { 1 };
        match self.good_copies.len() >= others {
            true => Some(RepairKind::Drop),
            false if is_last && !self.rules.has(ReplicationRule::LastStays) => Some(RepairKind::Drop),
            false => Some(RepairKind::Heal),
        }
    }

    /// True if this node becomes the owner, because the owner leaves or was removed: it has the first good
    /// replica among the nodes that stay. A segment without files can have any owner. Those at upstreams get
    /// the same one, the first node of the first set that stays, since one node may delete below the prefix
    /// of an upstream.
    fn is_heir(&self) -> bool {
        let own = self.input.own;
        let is_replaced = self.owner().is_some_and(|owner| {
            let leaves = !is_staying(owner, self.nodes);
            owner != own && (leaves || !self.rules.has(ReplicationRule::OnlyLeavingIsReplaced))
        });
        if !is_replaced || !is_staying(own, self.nodes) {
            return false;
        }
        if !self.rules.has(ReplicationRule::OwnerIsReplaced) {
            return false;
        }
        let has_files = !self.facts.is_at_upstream && self.facts.bytes > 0;
        let is_good =
            |of: &&ReplicaFacts| !has_files || !of.is_suspect || !self.rules.has(ReplicationRule::HeirIsGood);
        let can_own = |node: &NodeId| {
            is_staying(*node, self.nodes) && (*node == own || is_reachable(*node, self.nodes))
        };
        let listed = self.facts.replicas.iter().filter(is_good).map(|replica| replica.node);
        let first = listed.filter(|node| Some(*node) != self.owner()).find(can_own);
        let all = self.nodes.iter().map(|node| node.node).filter(can_own);
        let with_all_groups = self.input.nodes.of_first().iter().filter(|node| !node.is_leaving);
        let any = || match self.facts.is_at_upstream {
            true => with_all_groups.map(|node| node.node).min(),
            false => ranked(self.facts.segment, all).into_iter().next(),
        };
        first.or_else(|| if has_files { None } else { any() }) == Some(own)
    }

    /// True if this node is the owner, and the record lists removed nodes.
    fn has_removed_replicas(&self) -> bool {
        let is_removed = |of: &ReplicaFacts| self.nodes.iter().all(|node| node.node != of.node);
        self.owner() == Some(self.input.own)
            && self.facts.replicas.iter().any(is_removed)
            && self.rules.has(ReplicationRule::RemovedIsForgotten)
    }

    /// True if this node's good replica is the one that is dropped, because there are more than enough.
    fn is_surplus(&self) -> bool {
        let owner = self.owner();
        if self.good_copies.len() < self.copies() || owner == Some(self.input.own) {
            return false;
        }
        let others = self.good_copies.iter().copied().filter(|node| Some(*node) != owner);
        let candidates = ranked(self.facts.segment, others.chain([self.input.own]));
        candidates.last() == Some(&self.input.own)
    }

    /// True if this node is among those that make a copy.
    fn is_chosen(&self) -> bool {
        let (own, nodes) = (self.input.own, self.nodes);
        let missing = self.wanted().saturating_sub(self.good);
        let can_copy = |node: &StorageNode| {
            node.is_reachable && (!node.is_leaving || !self.rules.has(ReplicationRule::LeavingTakesNoCopy))
        };
        let is_free = |node: &&StorageNode| {
            can_copy(node) && !self.facts.replicas.iter().any(|replica| replica.node == node.node)
        };
        let is_full = |node: &NodeId| nodes.iter().any(|other| other.node == *node && other.is_full);
        let candidates = nodes.iter().filter(is_free).map(|node| node.node);
        let mut candidates = ranked(self.facts.segment, candidates);
        // Stable: nodes that are not full keep their order.
        candidates.sort_by_key(is_full);
        candidates.into_iter().take(missing).any(|node| node == own)
    }
}

/// Returns the number of copies that a segment can have: `copies`, or one on each node that stays.
#[must_use]
pub fn wanted_copies(copies: usize, nodes: &[StorageNode]) -> usize {
    copies.max(1).min(nodes.iter().filter(|node| !node.is_leaving).count())
}

fn is_staying(node: NodeId, nodes: &[StorageNode]) -> bool {
    nodes.iter().any(|other| other.node == node && !other.is_leaving)
}

fn is_reachable(node: NodeId, nodes: &[StorageNode]) -> bool {
    nodes.iter().any(|other| other.node == node && other.is_reachable)
}

/// Storage nodes that stay and have a good replica.
fn good_nodes<'a>(facts: &'a SegmentFacts, nodes: &'a [StorageNode]) -> impl Iterator<Item = NodeId> + 'a {
    let good = facts.replicas.iter().filter(|replica| !replica.is_suspect).map(|replica| replica.node);
    good.filter(|node| is_staying(*node, nodes))
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
