//! Group 0: sets of storage nodes, and the sets of object groups.
//!
//! Both rows change by compare and set. The members of groups and the replicas of segments follow them later,
//! so a set never loses a node by itself: another one takes its place first. A set may keep nodes that leave.
//!
//! A group ceases to be a guest of a set when it has released all segments of the set. A release is final, so
//! the proposer checks the group before the command, and only later segments of the set are searched here.

use super::malformed;
use crate::store_error::StoreError;
use crate::view::{ApplyError, View};
use mlgw_common::limits::{
    GROUP_ID_MAX, GUEST_END_SEGMENTS_MAX, GUEST_SETS_MAX, NODE_GROUPS_MAX, SET_NODES_MAX, SETS_MAX,
};
use mlgw_common::{NodeId, SegmentId};
use mlgw_formats::command::{AssignGroup, EndGuest, PutSet, Reject, Reply};
use mlgw_formats::key::Family;
use mlgw_formats::schema::set::{FIRST_SET, group_row, row};
use mlgw_formats::schema::{
    GroupSet, Node, NodeRole, NodeSet, NodeState, SegmentRecord, decode, node, segment,
};
use std::collections::BTreeSet;

pub(super) fn put(view: &mut View<'_>, command: &PutSet) -> Result<Reply, ApplyError> {
    let PutSet { set, nodes, changes } = command;
    let distinct: BTreeSet<&u64> = nodes.iter().collect();
    if *set >= SETS_MAX || distinct.len() != nodes.len() || !(1..=SET_NODES_MAX).contains(&nodes.len()) {
        return Err(malformed(
            "the set has no nodes, too many, one of them twice, or an ID that is too large",
        ));
    }
    let known: Option<NodeSet> = view.get(&row(*set))?;
    if known.is_none() && *set != FIRST_SET && !view.has(&row(FIRST_SET))? {
        return Err(malformed("the first set is created before all others"));
    }
    let known = known.unwrap_or_default();
    if known.changes == changes.saturating_add(1) && known.nodes == *nodes {
        return Ok(Reply::Done);
    }
    if known.changes != *changes {
        return Err(Reject::SetChanged { set: *set }.into());
    }
    for id in nodes.iter().filter(|id| !known.nodes.contains(id)) {
        check_serves(view, *id)?;
    }
    if known.nodes != *nodes {
        view.put(row(*set), &NodeSet { id: *set, nodes: nodes.clone(), changes: changes + 1 });
    }
    Ok(Reply::Done)
}

/// Checks that a node stores data and serves.
fn check_serves(view: &View<'_>, id: u64) -> Result<(), ApplyError> {
    let node: Node = view.get(&node::row(NodeId(id)))?.ok_or(Reject::NoSuchNode { node: id })?;
    if node.role() != NodeRole::Storage {
        return Err(malformed("a node of a set stores data"));
    }
    match node.state() {
        NodeState::Active => Ok(()),
        state @ (NodeState::Joining | NodeState::Draining | NodeState::Leaving | NodeState::Removed) => {
            Err(Reject::WrongNodeState { node: id, state }.into())
        }
    }
}

pub(super) fn assign(view: &mut View<'_>, command: AssignGroup) -> Result<Reply, ApplyError> {
    let AssignGroup { group, set, changes } = command;
    if group == 0 || group > GROUP_ID_MAX {
        return Err(malformed("the system group, or a group with an ID that is too large, is in no set"));
    }
    if !view.has(&row(set))? {
        return Err(Reject::NoSuchSet { set }.into());
    }
    let known: Option<GroupSet> = view.get(&group_row(group))?;
    let is_new = known.is_none();
    let known = known.unwrap_or(GroupSet::first(group));
    if known.changes == changes.saturating_add(1) && known.set == set {
        return Ok(Reply::Done);
    }
    if known.changes != changes {
        return Err(Reject::GroupAssigned { group }.into());
    }
    if known.set == set {
        return Ok(Reply::Done);
    }
    let assigned = known.assigned_to(set);
    if assigned.guest_of.len() > GUEST_SETS_MAX {
        return Err(Reject::TooManyGuestSets { group }.into());
    }
    if is_new && assigned_groups(view)? >= NODE_GROUPS_MAX {
        return Err(malformed("more groups than a node can have would be assigned to sets"));
    }
    view.put(group_row(group), &assigned);
    Ok(Reply::Done)
}

/// Ends that a group is a guest of a set, whose segments before `next_segment` it has released.
pub(super) fn end_guest(view: &mut View<'_>, command: EndGuest) -> Result<Reply, ApplyError> {
    let EndGuest { group, set, changes, next_segment } = command;
    let known = of_group(view, group)?;
    let is_guest = known.guest_of.contains(&set);
    if known.changes == changes.saturating_add(1) && !is_guest {
        return Ok(Reply::Done);
    }
    if known.changes != changes {
        return Err(Reject::GroupAssigned { group }.into());
    }
    if !is_guest {
        return Err(malformed("the group is no guest of the set"));
    }
    if has_segment_from(view, set, SegmentId(next_segment))? {
        return Err(Reject::SegmentInUse.into());
    }
    view.put(group_row(group), &known.without_guest(set));
    Ok(Reply::Done)
}

/// True if a set has a segment with this id or a later one, or if there are too many segments to read.
fn has_segment_from(view: &View<'_>, set: u32, first: SegmentId) -> Result<bool, StoreError> {
    let rows = view.range(&segment::row(first), &Family::Segment.end(), GUEST_END_SEGMENTS_MAX + 1)?;
    if rows.len() > GUEST_END_SEGMENTS_MAX {
        return Ok(true);
    }
    for (_, value) in rows {
        if decode::<SegmentRecord>(&value)?.set == set {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Checks that segments and groups can be in a set. The first one needs no row.
pub(super) fn check_exists(view: &View<'_>, set: u32) -> Result<(), ApplyError> {
    if set == FIRST_SET || view.has(&row(set))? { Ok(()) } else { Err(Reject::NoSuchSet { set }.into()) }
}

/// The set of a group.
pub(super) fn of_group(view: &View<'_>, group: u32) -> Result<GroupSet, StoreError> {
    Ok(view.get(&group_row(group))?.unwrap_or(GroupSet::first(group)))
}

/// Number of groups with a row.
fn assigned_groups(view: &View<'_>) -> Result<usize, StoreError> {
    Ok(view.range(&Family::GroupSet.start(), &Family::GroupSet.end(), NODE_GROUPS_MAX)?.len())
}

/// Returns a set that has the node, if there is one.
pub(super) fn set_with(view: &View<'_>, id: u64) -> Result<Option<u32>, StoreError> {
    let rows = view.range(&Family::Set.start(), &Family::Set.end(), usize::MAX)?;
    for (_, value) in rows {
        let set: NodeSet = decode(&value)?;
        if set.contains(NodeId(id)) {
            return Ok(Some(set.id));
        }
    }
    Ok(None)
}
