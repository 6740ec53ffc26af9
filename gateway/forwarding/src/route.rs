//! The range map as a node knows it, and the order in which members are tried. Pure.
//!
//! A table maps each key to the members of the group that owns it. Requests without a bucket, and requests
//! for a bucket that the table does not have, belong to the system group, whose members know all buckets.
//! Requests for a whole bucket belong to the group of its first range. If it has several ranges, they belong
//! to the nodes that have all groups, once some nodes do not.

use crate::verdict::RoutingVerdict;
use mlgw_common::NodeId;
use mlgw_common::limits::FORWARD_ATTEMPTS_MAX;
use std::collections::{HashMap, VecDeque};

/// Number of changes of the range map. The map of a cluster has only one epoch, because each member checks a
/// request by its own rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MapEpoch(pub u64);

/// Members of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeMembers {
    /// All members that store the group.
    pub members: Vec<NodeId>,
    /// Its leader, if it is known.
    pub leader: Option<NodeId>,
    /// Nodes that have its rows as well, and serve it when no member does.
    pub others: Vec<NodeId>,
}

impl RangeMembers {
    /// Returns the members of a group whose rows no other node has.
    #[must_use]
    pub const fn new(members: Vec<NodeId>, leader: Option<NodeId>) -> Self {
        Self { members, leader, others: Vec::new() }
    }

    /// Returns true if a node has the rows of the group.
    #[must_use]
    pub fn has_node(&self, node: NodeId) -> bool {
        self.members.contains(&node) || self.others.contains(&node)
    }
}

/// A range of keys of a bucket, up to the beginning of the next range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeRoute {
    /// First key of the range; empty for the first range.
    pub begin: String,
    /// Its group.
    pub group: RangeMembers,
}

/// Bucket and key of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteTarget<'a> {
    /// Name of the bucket.
    pub bucket: Option<&'a str>,
    /// The key.
    pub key: Option<&'a str>,
}

/// The ranges of a bucket do not cover all keys in ascending order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ranges of the bucket {0:?} do not cover all keys in ascending order")]
pub struct BadRanges(String);

/// The range map of one epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteTable {
    /// The epoch.
    pub epoch: MapEpoch,
    system: RangeMembers,
    /// Members of all groups; none while every member is one of all groups.
    all_groups: RangeMembers,
    buckets: HashMap<String, Vec<RangeRoute>>,
}

impl RouteTable {
    /// Returns a table without buckets.
    #[must_use]
    pub fn new(epoch: MapEpoch, system: RangeMembers) -> Self {
        Self { epoch, system, all_groups: RangeMembers::default(), buckets: HashMap::new() }
    }

    /// Sets the members of all groups, in a cluster in which some nodes have only some groups.
    pub fn set_all_groups(&mut self, members: RangeMembers) {
        self.all_groups = members;
    }

    /// Returns the members of all groups, unless every member is one.
    #[must_use]
    pub fn members_of_all(&self) -> Option<&RangeMembers> {
        Some(&self.all_groups).filter(|all| !all.members.is_empty())
    }

    /// Adds a bucket whose keys belong to one group.
    pub fn add_whole_bucket(&mut self, name: &str, group: RangeMembers) {
        let whole = RangeRoute { begin: String::new(), group };
        self.buckets.insert(name.to_owned(), vec![whole]);
    }

    /// Adds the ranges of a bucket.
    ///
    /// # Errors
    /// [`BadRanges`].
    pub fn add_bucket(&mut self, name: &str, ranges: Vec<RangeRoute>) -> Result<(), BadRanges> {
        let covers = ranges.first().is_some_and(|first| first.begin.is_empty());
        if !covers || !ranges.is_sorted_by(|a, b| a.begin < b.begin) {
            return Err(BadRanges(name.to_owned()));
        }
        self.buckets.insert(name.to_owned(), ranges);
        Ok(())
    }

    /// Returns the members of the group that owns `target`.
    #[must_use]
    pub fn members_of(&self, target: RouteTarget<'_>) -> &RangeMembers {
        let Some(ranges) = target.bucket.and_then(|bucket| self.buckets.get(bucket)) else {
            return &self.system;
        };
        if let (None, Some(all)) = (target.key, self.members_of_all().filter(|_| ranges.len() > 1)) {
            return all;
        }
        let key = target.key.unwrap_or_default();
        // Keys are ordered by their bytes, and so are strings.
        let after = ranges.partition_point(|range| range.begin.as_str() <= key);
        assert!(after > 0, "the first range begins before every key");
        &ranges[after - 1].group
    }

    /// Returns true if this map has nodes for buckets of all kinds, and not this one, as while it is drained.
    /// A map without any node has not arrived yet.
    #[must_use]
    pub fn is_left_out(&self, node: NodeId) -> bool {
        !self.system.members.is_empty() && !self.system.members.contains(&node)
    }

    /// Returns the verdict of `node` about a request that was routed by the map of `epoch`, as far as the map
    /// of the node decides it: one that is older, or that leaves the node out, refuses the request. The rows
    /// of the node decide if it has those of `target`. During a move of a group the map names its new nodes,
    /// and the former ones have the rows.
    #[must_use]
    pub fn judge(&self, node: NodeId, epoch: MapEpoch, target: RouteTarget<'_>) -> RoutingVerdict {
        if self.epoch < epoch {
            return RoutingVerdict::NotMine { leader: None, epoch: self.epoch };
        }
        match self.is_left_out(node) {
            false => RoutingVerdict::Accepted { epoch: self.epoch },
            true => RoutingVerdict::NotMine { leader: self.members_of(target).leader, epoch: self.epoch },
        }
    }
}

/// Member that is tried first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutePreference {
    /// The leader of the group, which takes commands without a further hop.
    Leader,
    /// Any member.
    Any,
}

/// The members that are tried for one request, in this order. None is tried twice.
#[derive(Clone, Debug)]
pub struct CandidateQueue {
    queue: VecDeque<NodeId>,
    /// Members at the front that are not suspects.
    healthy: usize,
    excluded: Vec<NodeId>,
    left: usize,
}

impl CandidateQueue {
    /// Returns the order for a request: the leader or that of the number `turn` first, then the other members
    /// in turn, the other nodes that have the rows, and at last suspects. `own` is the node that forwards.
    #[must_use]
    pub fn new(
        group: &RangeMembers,
        preference: RoutePreference,
        turn: u64,
        own: NodeId,
        is_suspect: impl Fn(NodeId) -> bool,
    ) -> Self {
        let count = group.members.len();
        let first = usize::try_from(turn % count.max(1) as u64).unwrap_or(0);
        let turned = (0..count).map(|at| group.members[(first + at) % count]);
        let leader = group.leader.filter(|_| preference == RoutePreference::Leader);
        let others = turned.filter(|member| leader != Some(*member));
        let ordered: Vec<NodeId> = leader.into_iter().chain(others).filter(|member| *member != own).collect();
        let rest = group.others.iter().copied().filter(|other| *other != own && !ordered.contains(other));
        let ordered = ordered.iter().copied().chain(rest);
        let (suspects, healthy): (Vec<_>, Vec<_>) = ordered.partition(|member| is_suspect(*member));
        let members = healthy.iter().filter(|node| group.members.contains(node)).count();
        let queue = healthy.into_iter().chain(suspects).collect();
        Self { queue, healthy: members, excluded: vec![own], left: FORWARD_ATTEMPTS_MAX }
    }

    /// Tries the first healthy member with less than `enough` requests first, or that with the fewest.
    pub fn prefer_below(&mut self, enough: usize, requests: impl Fn(NodeId) -> usize) {
        let counts = || self.queue.iter().take(self.healthy).map(|member| requests(*member)).enumerate();
        let chosen = counts().find(|(_, count)| *count < enough);
        if let Some((at, _)) = chosen.or_else(|| counts().min_by_key(|(_, count)| *count)) {
            let member = self.queue.remove(at);
            member.into_iter().for_each(|member| self.queue.push_front(member));
        }
    }

    /// Adds a node that the group does not have: it is tried first, or last if it is a suspect.
    pub fn add(&mut self, node: NodeId, is_suspect: bool) {
        if !is_suspect {
            self.prefer(node);
        } else if !self.excluded.contains(&node) && !self.queue.contains(&node) {
            self.queue.push_back(node);
        }
    }

    /// Tries `hint` next, a leader that another member has named.
    pub fn prefer(&mut self, hint: NodeId) {
        if !self.excluded.contains(&hint) {
            self.queue.retain(|member| *member != hint);
            self.queue.push_front(hint);
        }
    }
}

impl Iterator for CandidateQueue {
    type Item = NodeId;

    fn next(&mut self) -> Option<NodeId> {
        self.left = self.left.checked_sub(1)?;
        let member = self.queue.pop_front()?;
        assert!(!self.excluded.contains(&member), "no member is tried twice");
        self.excluded.push(member);
        Some(member)
    }
}
