//! Groups that the node of a closed catalogue left, by the rows of sets in its system group.
//!
//! A node keeps the files of a group that it left, and their rows are old. A check would find contradictions
//! in them, and a recovery would undo acknowledged changes. The directories do not show which groups it left,
//! so every tool that reads rows asks here first.

use super::finding::{CheckFinding, FindingKind};
use crate::view::RowReader;
use mlgw_common::NodeId;
use mlgw_formats::key::Family;
use mlgw_formats::schema::set::{FIRST_SET, MemberPlace};
use mlgw_formats::schema::{GroupSet, NodeSet, decode};
use prost::Message;
use std::collections::BTreeMap;
use std::fmt;

/// The rows of sets, and of the sets of groups.
pub(super) struct StoredSets {
    sets: BTreeMap<u32, NodeSet>,
    groups: BTreeMap<u32, GroupSet>,
}

impl StoredSets {
    /// Reads the rows of the system group. Those that cannot be read are left out, because the check of the
    /// rows reports them.
    pub(super) fn read(system: &impl RowReader) -> Self {
        Self {
            sets: records(system, Family::Set).map(|set: NodeSet| (set.id, set)).collect(),
            groups: records(system, Family::GroupSet).map(|of: GroupSet| (of.group, of)).collect(),
        }
    }

    /// True if the node has no place in the group any more.
    pub(super) fn has_left(&self, node: NodeId, group: u32) -> bool {
        let of_group = self.groups.get(&group).cloned().unwrap_or_else(|| GroupSet::first(group));
        of_group.place(node, |set| self.sets.get(&set)) == MemberPlace::Leaves
    }

    /// The nodes of the first set, which have the rows of all groups; none if there are no sets.
    pub(super) fn home_nodes(&self) -> Vec<NodeId> {
        let first = self.sets.get(&FIRST_SET);
        first.into_iter().flat_map(|set| set.nodes.iter().copied().map(NodeId)).collect()
    }
}

fn records<M: Message + Default>(system: &impl RowReader, family: Family) -> impl Iterator<Item = M> {
    let rows = system.range(&family.start(), &family.end(), usize::MAX).unwrap_or_default();
    rows.into_iter().filter_map(|(_, value)| decode(&value).ok())
}

/// Note about a group that the node left, whose state is at `place`.
pub(super) fn left_note(group: u32, place: impl fmt::Display) -> CheckFinding {
    let what = format!("this node left group {group}: the rows are old, and they are not checked");
    CheckFinding::note(FindingKind::LeftGroup, place, what)
}
