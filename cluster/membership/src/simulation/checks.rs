//! Invariants of each step, and the goal of a healthy cluster, as one would state them without the code that
//! decides.

use super::world::{ENTRY_BYTES, LIMITS, World};
use crate::decision::{MemberStep, VoterChange};
use crate::facts::SystemMembership;
use mlgw_common::NodeId;
use mlgw_formats::schema::{NodeRole, NodeState};
use std::collections::BTreeSet;

fn require(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

/// Checks a step before it is carried out.
pub(super) fn step_is_allowed(world: &World, step: &MemberStep) -> Result<(), String> {
    let membership = world.raft.membership().unwrap_or_default();
    let is_free = !world.raft.is_changing() && membership.outgoing.is_none();
    match step {
        MemberStep::Idle | MemberStep::Wait(_) => Ok(()),
        MemberStep::AddLearner(node) => {
            require(is_free, "a learner is added during a change")?;
            require(!is_leaving(world, *node), "a node that leaves is added")
        }
        MemberStep::RemoveLearner(node) => {
            require(is_free, "a learner is removed during a change")?;
            require(membership.learners.contains(node), "it is no learner")
        }
        MemberStep::ChangeVoters(change) => change_is_allowed(world, &membership, change),
        MemberStep::TransferLeader { to } => {
            require(is_free, "the leadership is transferred during a change")?;
            require(membership.voters.contains(to) && world.raft.is_up(*to), "the node cannot lead")
        }
        MemberStep::RecordRemoval(node) => {
            require(is_leaving(world, *node), "the node stays")?;
            require(!membership.contains(*node), "a member is recorded as removed")
        }
    }
}

fn change_is_allowed(world: &World, before: &SystemMembership, change: &VoterChange) -> Result<(), String> {
    let after = &change.voters;
    require(!world.raft.is_changing(), "a change begins during another one")?;
    let up = after.iter().filter(|node| world.raft.is_up(**node)).count();
    require(up > after.len() / 2, "too few of the voters afterwards are reachable")?;
    if before.outgoing.is_some() {
        return require(*after == before.voters, "a change begins during a joint change");
    }
    require([1, 3, 5].contains(&after.len()), "the number of voters is wrong")?;
    for node in after - &before.voters {
        promotion_is_allowed(world, before, node)?;
    }
    let leader = world.raft.leader.ok_or("there is no leader")?;
    require(after.contains(&leader), "the leader leaves without a transfer")?;
    gateways_are_allowed(world, before, after)?;
    let enough = after.len() >= before.voters.len() || after.len() >= possible_soon(world, before);
    require(enough, "voters become fewer although a replacement is on its way")
}

fn promotion_is_allowed(world: &World, before: &SystemMembership, node: NodeId) -> Result<(), String> {
    let replica = &world.raft.replicas[&node];
    let steady = world.now_ms - replica.changed_ms >= LIMITS.promote_after_ms;
    require(before.learners.contains(&node), "a node that does not learn is promoted")?;
    require(world.records[&node].state == NodeState::Active, "a node that is not active is promoted")?;
    require(replica.is_up && steady, "a node that just returned is promoted")?;
    require(lacks_little(world, node), "a node that lacks bytes is promoted")
}

fn lacks_little(world: &World, node: NodeId) -> bool {
    world.raft.lag(node) as u64 * ENTRY_BYTES <= LIMITS.promote_lag_bytes
}

/// Gateways vote only beside exactly two storage nodes, while no third one could.
fn gateways_are_allowed(
    world: &World,
    before: &SystemMembership,
    after: &BTreeSet<NodeId>,
) -> Result<(), String> {
    let gateways = after.iter().filter(|node| world.records[node].role == NodeRole::Gateway);
    // A leader stays until it has transferred its leadership.
    let gateways = gateways.filter(|node| world.raft.leader != Some(**node)).count();
    if gateways == 0 {
        return Ok(());
    }
    let could_vote = |node: &&NodeId| {
        let record = world.records[node];
        let is_ready = before.voters.contains(node) && !is_leaving(world, **node)
            || promotion_is_allowed(world, before, **node).is_ok();
        record.role == NodeRole::Storage && is_ready && world.raft.known_lag(**node).is_some()
    };
    let storage = before.members().iter().filter(could_vote).count();
    require(gateways == 1 && after.len() == 3, "gateways vote beside too few storage nodes")?;
    // A leader that has just been elected does not know for how long others have been reachable.
    let knows = world.now_ms - world.raft.led_since_ms >= LIMITS.promote_after_ms;
    require(storage < 3 || !knows, "a gateway votes in place of a storage node")
}

/// Voters that there could be soon, with all storage nodes that are up.
fn possible_soon(world: &World, before: &SystemMembership) -> usize {
    let is_coming = |(node, _): &(&NodeId, _)| {
        let record = world.records[node];
        let is_serving = matches!(record.state, NodeState::Active | NodeState::Joining);
        let is_kept = before.voters.contains(node) && !is_leaving(world, **node);
        record.role == NodeRole::Storage && (is_kept || is_serving && world.raft.is_up(**node))
    };
    odd(world.records.iter().filter(is_coming).count())
}

fn odd(nodes: usize) -> usize {
    match nodes {
        0..=2 => 1,
        3 | 4 => 3,
        _ => 5,
    }
}

fn is_leaving(world: &World, node: NodeId) -> bool {
    matches!(world.records[&node].state, NodeState::Leaving | NodeState::Removed)
}

/// Checks the membership after a long calm.
pub(super) fn goal_is_reached(world: &World) -> Result<(), String> {
    if let Some(violation) = &world.violation {
        return Err(violation.clone());
    }
    let membership = world.raft.membership().ok_or("there is no leader")?;
    let described =
        |what: &str| format!("{what}: {membership:?}, {:?}, lost {:?}", world.records, world.lost);
    let is_over = membership.outgoing.is_none() && !world.raft.is_changing();
    require(is_over, &described("a change is unfinished"))?;
    let is_bound = is_lone_voter_bound(world, &membership);
    for (node, record) in &world.records {
        let is_in = membership.contains(*node);
        match record.state {
            NodeState::Leaving if is_bound && membership.voters.contains(node) => {}
            NodeState::Leaving => return Err(described("a removal is not recorded")),
            NodeState::Removed => require(!is_in, &described("a removed node is a member"))?,
            _ => require(is_in || world.lost == Some(*node), &described("a node is no member"))?,
        }
    }
    if is_bound {
        return Ok(());
    }
    voters_are_best(world, &membership).map_err(|what| described(&what))
}

/// True if the only voter should not vote and stays, because there are no two others that could beside it.
fn is_lone_voter_bound(world: &World, membership: &SystemMembership) -> bool {
    let could_vote = |(node, record): &(&NodeId, &super::world::SimRecord)| {
        record.state == NodeState::Active && !membership.voters.contains(node)
    };
    let is_unfit = |node: &NodeId| {
        let record = world.records[node];
        record.state != NodeState::Active || record.role == NodeRole::Gateway
    };
    membership.voters.len() == 1
        && membership.voters.iter().all(is_unfit)
        && world.records.iter().filter(could_vote).count() < 2
}

fn voters_are_best(world: &World, membership: &SystemMembership) -> Result<(), String> {
    let voters = &membership.voters;
    let count = |role, state, in_voters: bool| {
        let counts = |(node, record): &(&NodeId, &super::world::SimRecord)| {
            let is_counted = !in_voters || voters.contains(node);
            record.role == role && record.state == state && is_counted && world.lost != Some(**node)
        };
        world.records.iter().filter(counts).count()
    };
    let (storage, gateway) = (NodeRole::Storage, NodeRole::Gateway);
    let healthy = count(storage, NodeState::Active, false);
    let draining = count(storage, NodeState::Draining, true);
    let lost = usize::from(world.lost.is_some_and(|lost| voters.contains(&lost)));
    let gateways = count(gateway, NodeState::Active, true) + count(gateway, NodeState::Draining, true);

    let storage_voters = healthy + draining;
    let fills = storage_voters + lost == 2 && gateways + count(gateway, NodeState::Active, false) > 0;
    let expected = if fills { 3 } else { odd(storage_voters + lost) };
    require(voters.len() == expected, "the number of voters is not the best one")?;
    require(draining <= voters.len().saturating_sub(healthy), "a draining node has a vote too many")?;
    require(
        lost == 0 || healthy + draining < voters.len(),
        "a lost node has a vote that another could have",
    )?;
    require(gateways == 0 || storage_voters + lost <= 2, "a gateway votes in place of a storage node")?;
    let leader = world.raft.leader.ok_or("there is no leader")?;
    let is_fit = |node: NodeId| {
        world.records[&node].role == storage && world.records[&node].state == NodeState::Active
    };
    let could_be = voters.iter().any(|node| is_fit(*node) && world.lost != Some(*node));
    require(is_fit(leader) || !could_be, "the leader is draining or a gateway")
}
