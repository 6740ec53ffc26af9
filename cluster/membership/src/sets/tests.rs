//! Clusters grow, shrink and lose nodes, and their sets follow.

use super::GroupProgress::{Moving, Settled};
use super::{GroupProgress, SetInput, SetStep, SetWait, next_set_step};
use crate::places::SetRows;
use fastrand::Rng;
use mlgw_common::NodeId;
use mlgw_common::limits::SET_NODES_MAX;
use mlgw_formats::schema::{GroupSet, NodeSet, NodeState};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A cluster whose steps are carried out at once, and whose groups move when the test says so.
struct SetWorld {
    nodes: BTreeMap<NodeId, NodeState>,
    sets: BTreeMap<u32, NodeSet>,
    assigned: BTreeMap<u32, GroupSet>,
    /// Voters of the groups.
    groups: BTreeMap<u32, BTreeSet<NodeId>>,
    silent: BTreeSet<NodeId>,
    lacking: BTreeSet<NodeId>,
    successors: BTreeMap<NodeId, NodeId>,
    is_rebalancing: bool,
}

impl SetWorld {
    fn new(nodes: u64, groups: u32) -> Self {
        Self {
            nodes: (1..=nodes).map(|node| (NodeId(node), NodeState::Active)).collect(),
            sets: BTreeMap::new(),
            assigned: BTreeMap::new(),
            groups: (1..=groups).map(|group| (group, [1, 2, 3].map(NodeId).into())).collect(),
            silent: BTreeSet::new(),
            lacking: BTreeSet::new(),
            successors: BTreeMap::new(),
            is_rebalancing: false,
        }
    }

    fn rows(&self) -> SetRows {
        let groups = self.assigned.values().cloned().map(Arc::new);
        SetRows::new(self.sets.values().cloned().map(Arc::new), groups)
    }

    fn next(&self) -> SetStep {
        let Self { nodes, silent, lacking, successors, is_rebalancing, .. } = self;
        let (rows, groups) = (&self.rows(), &self.progress());
        let is_rebalancing = *is_rebalancing;
        next_set_step(&SetInput { nodes, rows, groups, silent, lacking, successors, is_rebalancing })
    }

    fn progress(&self) -> BTreeMap<u32, GroupProgress> {
        let (rows, active) = (self.rows(), self.active());
        let progress = |(group, voters): (&u32, &BTreeSet<NodeId>)| {
            let nodes = rows.nodes_of_group(*group).into_iter().filter(|node| active.contains(&node.0));
            let is_settled =
                rows.is_empty() || GroupProgress::of(&nodes.collect::<Vec<_>>(), voters) == Settled;
            (*group, if is_settled { Settled } else { Moving })
        };
        self.groups.iter().map(progress).collect()
    }

    /// True if a set or a group has the node.
    fn is_used(&self, node: NodeId) -> bool {
        self.rows().is_in_any_set(node) || self.groups.values().any(|voters| voters.contains(&node))
    }

    /// True for an active node that answers.
    fn answers(&self, node: NodeId) -> bool {
        self.nodes.get(&node) == Some(&NodeState::Active) && !self.silent.contains(&node)
    }

    fn carry_out(&mut self, step: &SetStep) {
        match step {
            SetStep::Idle | SetStep::Wait(_) => {}
            SetStep::Put { set, nodes, changes } => {
                let known = self.sets.entry(*set).or_default();
                assert_eq!(known.changes, *changes, "a step is decided on the present row");
                let nodes = nodes.iter().map(|node| node.0).collect();
                *known = NodeSet { id: *set, nodes, changes: changes + 1 };
            }
            SetStep::Assign { group, set, changes } => {
                let known = self.assigned.get(group).cloned().unwrap_or(GroupSet::first(*group));
                assert_eq!(known.changes, *changes, "a step is decided on the present row");
                assert!(self.sets.contains_key(set) && known.set != *set);
                self.assigned.insert(*group, known.assigned_to(*set));
            }
        }
    }

    /// Votes move to the nodes of the sets that are active and answer. Other voters keep theirs while these
    /// are fewer than three, those that leave last.
    fn complete_moves(&mut self) {
        let rows = self.rows();
        for (group, voters) in self.groups.clone() {
            let set = rows.nodes_of_group(group);
            let ready = set.iter().copied().filter(|node| self.answers(*node));
            let mut others: Vec<NodeId> =
                voters.into_iter().filter(|of| self.nodes.contains_key(of)).collect();
            others.sort_by_key(|node| !self.answers(*node));
            let mut after: Vec<NodeId> = ready.collect();
            others.retain(|node| !after.contains(node));
            after.extend(others);
            after.truncate(if after.len() == 2 { 1 } else { SET_NODES_MAX });
            self.groups.insert(group, after.into_iter().collect());
        }
    }

    /// Carries out steps, and completes the moves after each, until nothing is left to do. Returns the number
    /// of steps.
    fn finish(&mut self) -> usize {
        for steps in 0..1_000 {
            self.complete_moves();
            match self.next() {
                SetStep::Idle => return steps,
                step => self.carry_out(&step),
            }
        }
        panic!("the steps do not end: {:?} {:?}", self.sets, self.assigned);
    }

    fn rebalance(&mut self) -> usize {
        self.is_rebalancing = true;
        let steps = self.finish();
        self.is_rebalancing = false;
        steps
    }

    fn active(&self) -> BTreeSet<u64> {
        let active = self.nodes.iter().filter(|(_, state)| **state == NodeState::Active);
        active.map(|(node, _)| node.0).collect()
    }

    fn nodes_of(&self, set: u32) -> Vec<u64> {
        self.sets[&set].nodes.clone()
    }

    /// Number of groups in which each active node votes.
    fn votes(&self) -> Vec<usize> {
        let rows = self.rows();
        let votes = |node: u64| {
            let has = |group: &&u32| self.sets[&rows.of_group(**group).set].nodes.contains(&node);
            self.groups.keys().filter(has).count()
        };
        self.active().into_iter().map(votes).collect()
    }

    /// Number of sets of each active node.
    fn memberships(&self) -> Vec<usize> {
        let count = |node: u64| self.sets.values().filter(|set| set.nodes.contains(&node)).count();
        self.active().into_iter().map(count).collect()
    }
}

#[test]
fn without_a_request_or_a_fourth_node_there_are_no_sets() {
    let mut world = SetWorld::new(5, 3);
    assert_eq!(world.next(), SetStep::Idle);
    world = SetWorld::new(3, 3);
    world.is_rebalancing = true;
    assert_eq!(world.next(), SetStep::Idle);
}

#[test]
fn five_nodes_get_five_sets_and_each_is_in_three_of_them() {
    let mut world = SetWorld::new(5, 10);
    world.rebalance();
    assert_eq!(world.nodes_of(0), [1, 2, 3]);
    let distinct: BTreeSet<Vec<u64>> = world
        .sets
        .values()
        .map(|set| {
            let mut nodes = set.nodes.clone();
            nodes.sort_unstable();
            nodes
        })
        .collect();
    assert_eq!((world.sets.len(), distinct.len()), (5, 5));
    assert_eq!(world.memberships(), [3; 5]);
    let votes = world.votes();
    // Nodes 1 to 3 learn the groups in which they do not vote, and so vote in fewer.
    assert!(votes[..3].iter().all(|few| votes[3..].iter().all(|many| few <= many)), "{votes:?}");
    assert_eq!(votes.iter().sum::<usize>(), 30);
}

#[test]
fn a_node_that_is_drained_is_replaced_in_one_set_after_the_other() {
    let mut world = SetWorld::new(5, 5);
    world.rebalance();
    world.nodes.insert(NodeId(4), NodeState::Draining);
    world.complete_moves();
    let SetStep::Put { set, nodes, changes } = world.next() else { panic!("{:?}", world.next()) };
    assert!(!nodes.contains(&NodeId(4)) && nodes.len() == SET_NODES_MAX);
    world.carry_out(&SetStep::Put { set, nodes, changes });
    world.groups.insert(2, [NodeId(9)].into());
    assert!(matches!(world.next(), SetStep::Wait(SetWait::GroupMoves { .. })), "{:?}", world.next());
    world.finish();
    assert!(world.sets.values().all(|set| !set.nodes.contains(&4) && set.nodes.len() == SET_NODES_MAX));
}

#[test]
fn a_node_that_is_removed_is_replaced_although_a_group_moves() {
    let mut world = SetWorld::new(5, 5);
    world.rebalance();
    world.groups.insert(1, [NodeId(9)].into());
    world.nodes.insert(NodeId(2), NodeState::Draining);
    assert!(matches!(world.next(), SetStep::Wait(_)), "{:?}", world.next());
    world.nodes.insert(NodeId(2), NodeState::Leaving);
    assert!(matches!(world.next(), SetStep::Put { .. }), "{:?}", world.next());
    world.nodes.remove(&NodeId(2));
    assert!(matches!(world.next(), SetStep::Put { .. }), "{:?}", world.next());
}

#[test]
fn sets_shrink_with_the_cluster_and_grow_again() {
    let mut world = SetWorld::new(5, 6);
    world.rebalance();
    for leaving in [5, 1, 3] {
        world.nodes.insert(NodeId(leaving), NodeState::Draining);
        world.finish();
        assert!(world.sets.values().all(|set| !set.nodes.contains(&leaving)), "{:?}", world.sets);
        world.nodes.remove(&NodeId(leaving));
    }
    assert!(world.sets.values().all(|set| set.nodes.len() == 2), "{:?}", world.sets);
    for coming in 6..=8 {
        world.nodes.insert(NodeId(coming), NodeState::Active);
    }
    world.finish();
    assert!(world.sets.values().all(|set| set.nodes.len() == SET_NODES_MAX), "{:?}", world.sets);
    world.rebalance();
    let memberships = world.memberships();
    assert!(memberships.iter().all(|count| *count > 0), "new nodes get a part: {memberships:?}");
}

#[test]
fn the_only_node_of_a_set_stays_until_another_one_is_active() {
    let mut world = SetWorld::new(1, 1);
    world.sets.insert(0, NodeSet { id: 0, nodes: vec![1], changes: 1 });
    world.nodes.insert(NodeId(1), NodeState::Leaving);
    assert_eq!(world.next(), SetStep::Wait(SetWait::NoReplacement { set: 0, node: NodeId(1) }));
    world.nodes.insert(NodeId(2), NodeState::Active);
    assert_eq!(world.next(), SetStep::Put { set: 0, nodes: vec![NodeId(2)], changes: 1 });
}

/// A cluster of six nodes with two sets; group 1 is in the second one and has these voters.
fn with_two_sets(voters: [u64; 3]) -> SetWorld {
    let mut world = SetWorld::new(6, 1);
    let set = |id, nodes: [u64; 3]| (id, NodeSet { id, nodes: nodes.into(), changes: 1 });
    world.sets = [set(0, [1, 2, 3]), set(1, [3, 4, 5])].into();
    world.assigned.insert(1, GroupSet::first(1).assigned_to(1));
    world.groups.insert(1, voters.map(NodeId).into());
    world
}

#[test]
fn a_node_that_is_drained_while_a_group_moves_to_its_set_is_replaced() {
    let mut world = with_two_sets([1, 3, 4]);
    assert_eq!(world.progress()[&1], Moving);
    world.nodes.insert(NodeId(5), NodeState::Draining);
    assert_eq!(world.progress()[&1], Settled, "node 5 gets no vote any more");
    assert_eq!(world.next(), SetStep::Put { set: 1, nodes: [3, 4, 6].map(NodeId).into(), changes: 1 });
}

#[test]
fn a_set_that_waits_does_not_hide_a_removed_node_in_a_later_one() {
    let mut world = with_two_sets([1, 2, 3]);
    world.nodes.insert(NodeId(1), NodeState::Draining);
    assert!(matches!(world.next(), SetStep::Wait(SetWait::GroupMoves { .. })), "{:?}", world.next());
    world.nodes.insert(NodeId(5), NodeState::Leaving);
    assert_eq!(world.next(), SetStep::Put { set: 1, nodes: [3, 4, 6].map(NodeId).into(), changes: 1 });
    // Also a removed node that nothing can replace yet hides no other one.
    world.nodes.insert(NodeId(1), NodeState::Leaving);
    world.sets.insert(0, NodeSet { id: 0, nodes: [1, 2, 6].into(), changes: 1 });
    world.silent = [3, 4].map(NodeId).into();
    assert_eq!(world.next(), SetStep::Put { set: 1, nodes: [3, 4, 2].map(NodeId).into(), changes: 1 });
}

#[test]
fn a_node_of_the_first_set_is_drained_when_the_others_have_the_rows_of_all_groups() {
    let mut world = with_two_sets([3, 4, 5]);
    world.nodes.insert(NodeId(1), NodeState::Draining);
    world.lacking = [2, 6].map(NodeId).into();
    assert_eq!(world.next(), SetStep::Wait(SetWait::LacksRows { node: NodeId(2) }));
    world.lacking.remove(&NodeId(2));
    assert_eq!(world.next(), SetStep::Put { set: 0, nodes: [2, 3, 6].map(NodeId).into(), changes: 1 });
    // The rows of a lost node are gone, and only nodes of the first set have to have all.
    world.lacking = [2, 3].map(NodeId).into();
    world.nodes.insert(NodeId(1), NodeState::Leaving);
    assert!(matches!(world.next(), SetStep::Put { set: 0, .. }), "{:?}", world.next());
    world.nodes.insert(NodeId(1), NodeState::Active);
    world.nodes.insert(NodeId(4), NodeState::Draining);
    assert!(matches!(world.next(), SetStep::Put { set: 1, .. }), "{:?}", world.next());
}

#[test]
fn the_last_node_with_the_rows_of_all_groups_is_not_drained_out_of_the_first_set() {
    let mut world = SetWorld::new(6, 1);
    world.sets.insert(0, NodeSet { id: 0, nodes: vec![1, 2, 3], changes: 1 });
    for node in 1..=3 {
        world.nodes.insert(NodeId(node), NodeState::Draining);
    }
    world.lacking = (2..=6).map(NodeId).collect();
    assert_eq!(world.next(), SetStep::Wait(SetWait::LacksRows { node: NodeId(2) }));
    world.lacking.remove(&NodeId(3));
    assert_eq!(world.next(), SetStep::Put { set: 0, nodes: [2, 3, 4].map(NodeId).into(), changes: 1 });
}

#[test]
fn a_node_that_does_not_answer_gets_into_no_set() {
    let mut world = SetWorld::new(4, 3);
    world.is_rebalancing = true;
    world.silent = [1, 2].map(NodeId).into();
    assert_eq!(world.next(), SetStep::Wait(SetWait::Silent { node: NodeId(1) }));
    world.silent = [NodeId(1)].into();
    assert_eq!(world.next(), SetStep::Put { set: 0, nodes: [2, 3, 4].map(NodeId).into(), changes: 0 });
    let mut world = with_two_sets([3, 4, 5]);
    world.silent = [NodeId(6)].into();
    world.nodes.insert(NodeId(5), NodeState::Leaving);
    assert_eq!(world.next(), SetStep::Put { set: 1, nodes: [3, 4, 1].map(NodeId).into(), changes: 1 });
    world.silent = [1, 2, 6].map(NodeId).into();
    let waits = SetStep::Wait(SetWait::NoReplacement { set: 1, node: NodeId(5) });
    assert_eq!(world.next(), waits, "the set is not made smaller while nodes could return");
    world.nodes.retain(|node, _| [3, 4, 5].contains(&node.0));
    world.sets.remove(&0);
    assert_eq!(world.next(), SetStep::Put { set: 1, nodes: [3, 4].map(NodeId).into(), changes: 1 });
}

#[test]
fn a_rebalance_waits_for_a_node_that_does_not_answer_instead_of_moving_groups_to_it() {
    let mut world = with_two_sets([3, 4, 5]);
    world.groups = (2..=8).map(|group| (group, [1, 2, 3].map(NodeId).into())).collect();
    let cycle = [[1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6], [5, 6, 1], [6, 1, 2]];
    let sets = (0..).zip(cycle).map(|(id, nodes)| (id, NodeSet { id, nodes: nodes.into(), changes: 1 }));
    world.sets = sets.collect();
    world.silent = [4, 6].map(NodeId).into();
    world.is_rebalancing = true;
    assert_eq!(world.next(), SetStep::Wait(SetWait::Silent { node: NodeId(4) }));
    world.silent.clear();
    assert!(matches!(world.next(), SetStep::Assign { .. }), "{:?}", world.next());
}

#[test]
fn a_rebalance_does_not_end_before_a_node_without_a_place_answers() {
    let mut world = SetWorld::new(6, 3);
    (world.is_rebalancing, world.silent) = (true, [NodeId(6)].into());
    for _ in 0..100 {
        world.complete_moves();
        let step = world.next();
        world.carry_out(&step);
    }
    assert_eq!(world.sets.len(), 6, "the other nodes have theirs");
    assert_eq!(world.next(), SetStep::Wait(SetWait::Silent { node: NodeId(6) }));
    world.silent.clear();
    world.finish();
    let places = world.sets.values().filter(|set| set.nodes.contains(&6)).count();
    assert!(places > 1, "{:?}", world.sets);
}

#[test]
fn the_node_that_replaces_another_one_takes_its_places_in_the_sets() {
    let mut world = with_two_sets([3, 4, 5]);
    world.sets.insert(2, NodeSet { id: 2, nodes: vec![4, 5, 2], changes: 1 });
    world.nodes.insert(NodeId(5), NodeState::Draining);
    world.successors = [(NodeId(5), NodeId(2)), (NodeId(9), NodeId(6))].into();
    assert_eq!(world.next(), SetStep::Put { set: 1, nodes: [3, 4, 2].map(NodeId).into(), changes: 1 });
    world.silent.insert(NodeId(2));
    assert_eq!(world.next(), SetStep::Put { set: 1, nodes: [3, 4, 6].map(NodeId).into(), changes: 1 });
    world.silent.clear();
    world.sets.remove(&1);
    let step = world.next();
    assert_eq!(step, SetStep::Put { set: 2, nodes: [4, 2, 6].map(NodeId).into(), changes: 1 }, "it is there");
}

#[test]
fn a_group_is_settled_when_the_active_nodes_of_its_set_that_can_vote_do() {
    let of = |active: &[u64], voters: &[u64]| {
        let active: Vec<NodeId> = active.iter().copied().map(NodeId).collect();
        GroupProgress::of(&active, &voters.iter().copied().map(NodeId).collect())
    };
    assert_eq!(of(&[1, 2, 4], &[1, 2, 4]), Settled);
    assert_eq!(of(&[1, 2, 4], &[1, 2, 3]), Moving);
    assert_eq!(of(&[1, 2, 4], &[1, 2, 3, 4]), Moving, "inside a joint change");
    assert_eq!(of(&[1, 2, 4], &[1]), Moving);
    assert_eq!(of(&[1, 2, 4], &[]), Moving, "this node has no member of the group");
    assert_eq!(of(&[1, 2], &[1, 2, 3]), Settled, "no other node can take the third vote");
    assert_eq!(of(&[1, 2], &[1, 2, 3, 4]), Moving, "inside a joint change");
    assert_eq!(of(&[1, 2], &[2]), Settled);
    assert_eq!(of(&[1, 2], &[2, 3, 4]), Moving);
    assert_eq!(of(&[1, 2], &[3]), Moving);
    assert_eq!(of(&[1], &[]), Moving);
    assert_eq!((of(&[], &[1, 2, 3]), of(&[], &[])), (Settled, Moving), "all nodes of the set leave");
}

fn require(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

/// Checks one step.
fn check(world: &SetWorld, step: &SetStep) -> Result<(), String> {
    let SetStep::Put { set, nodes, .. } = step else { return Ok(()) };
    let after: BTreeSet<u64> = nodes.iter().map(|node| node.0).collect();
    let has_nodes = !after.is_empty() && after.len() == nodes.len() && nodes.len() <= SET_NODES_MAX;
    require(has_nodes, || format!("a set has up to three nodes, each once: {step:?}"))?;
    let Some(before) = world.sets.get(set) else { return Ok(()) };
    let before: BTreeSet<u64> = before.nodes.iter().copied().collect();
    let (added, removed) = (&after - &before, &before - &after);
    require(added.len() <= 1 && removed.len() <= 1, || format!("one node at a time: {step:?}"))?;
    let can_be_added = added.iter().all(|node| world.answers(NodeId(*node)));
    require(can_be_added, || format!("only active nodes that answer are added: {step:?}"))?;
    let stays = &before & &world.active();
    let keeps_one = stays.is_empty() || !(&after & &stays).is_empty();
    require(keeps_one, || format!("a set keeps a node that stays: {step:?}"))?;
    let is_leaving = |node: &u64| !world.active().contains(node);
    let is_kept = *set != 0 || removed.iter().all(is_leaving);
    require(is_kept, || format!("the first set keeps its nodes: {step:?}"))
}

/// A random event of a cluster.
fn happen(world: &mut SetWorld, rng: &mut Rng, next: &mut u64) {
    let nodes: Vec<NodeId> = world.nodes.keys().copied().collect();
    let node = nodes[rng.usize(..nodes.len())];
    let state = world.nodes[&node];
    let is_last = state == NodeState::Active && world.active().len() < 2;
    match rng.u8(0..10) {
        0 if nodes.len() < 9 => {
            world.nodes.insert(NodeId(*next), NodeState::Active);
            *next += 1;
        }
        1 if !is_last => drop(world.nodes.insert(node, NodeState::Draining)),
        2 if !is_last => drop(world.nodes.insert(node, NodeState::Leaving)),
        3 if state == NodeState::Draining => drop(world.nodes.insert(node, NodeState::Active)),
        4 if state == NodeState::Leaving && !world.is_used(node) => drop(world.nodes.remove(&node)),
        5 => world.is_rebalancing = rng.bool(),
        6 | 7 => world.complete_moves(),
        8 => drop(world.silent.insert(node)),
        9 => drop(world.silent.remove(&node)),
        _ => {}
    }
}

/// Runs a schedule. Returns the first violation.
fn run(seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let (count, groups) = (rng.u64(1..8), rng.u32(1..12));
    let (mut world, mut next) = (SetWorld::new(count, groups), count + 1);
    for _ in 0..rng.usize(20..120) {
        happen(&mut world, &mut rng, &mut next);
        let step = world.next();
        check(&world, &step)?;
        if rng.u8(0..4) > 0 {
            world.carry_out(&step);
        }
    }
    world.silent.clear();
    let steps = world.rebalance();
    require(steps < 400, || format!("{steps} steps"))?;
    let (active, sets) = (world.active(), &world.sets);
    let room = SET_NODES_MAX.min(active.len());
    for set in sets.values() {
        let nodes: BTreeSet<u64> = set.nodes.iter().copied().collect();
        let is_whole = nodes.is_subset(&active) && nodes.len() == room;
        require(is_whole, || format!("{set:?} of {active:?}"))?;
    }
    let has_all = active.len() <= SET_NODES_MAX || sets.len() >= active.len();
    require(has_all, || format!("too few sets: {sets:?}"))?;
    require(world.rebalance() == 0, || "a second rebalance finds something".to_owned())
}

#[test]
fn in_every_schedule_one_node_changes_at_a_time_and_the_sets_are_whole_in_the_end() {
    mlgw_schedules::check_each(run);
}
