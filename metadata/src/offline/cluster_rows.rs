//! Checks the rows of nodes, join tokens, authorities and sets for contradictions.

use mlgw_common::limits::{NODE_HASH_BYTES, SET_NODES_MAX};
use mlgw_formats::key::{Family, parse_number_key};
use mlgw_formats::schema::{
    AuthorityRecord, GroupSet, JoinTokenRecord, Node, NodeRole, NodeSet, NodeState, decode,
};
use prost::Message;
use std::collections::BTreeSet;

/// Checks the row of a node. `next_node` is the next node's id, if a node ever joined.
pub(super) fn check_node(key: &[u8], value: &[u8], next_node: Option<u64>) -> Result<(), String> {
    let node: Node = record(value)?;
    check_number(Family::Node, key, node.id)?;
    if NodeRole::try_from(node.role).is_err() || NodeState::try_from(node.state).is_err() {
        return Err(format!("node {} has an unknown role or state", node.id));
    }
    if next_node.is_some_and(|next| node.id >= next) {
        return Err(format!("node {} has an ID that would be allocated again", node.id));
    }
    Ok(())
}

/// Checks the row of a join token.
pub(super) fn check_join_token(key: &[u8], value: &[u8]) -> Result<(), String> {
    let token: JoinTokenRecord = record(value)?;
    check_number(Family::JoinToken, key, token.id)?;
    if token.secret_hash.len() != NODE_HASH_BYTES {
        return Err("the hash of the join token's secret has the wrong length".to_owned());
    }
    Ok(())
}

/// Checks the row of an authority.
pub(super) fn check_authority(key: &[u8], value: &[u8]) -> Result<(), String> {
    let authority: AuthorityRecord = record(value)?;
    check_number(Family::Authority, key, authority.number)
}

/// Checks the row of a set.
pub(super) fn check_set(key: &[u8], value: &[u8]) -> Result<(), String> {
    let set: NodeSet = record(value)?;
    check_number(Family::Set, key, set.id.into())?;
    let distinct: BTreeSet<&u64> = set.nodes.iter().collect();
    if distinct.len() != set.nodes.len() || !(1..=SET_NODES_MAX).contains(&set.nodes.len()) {
        return Err(format!("set {} has no nodes, too many, or one of them twice", set.id));
    }
    Ok(())
}

/// Checks the row of the set of a group.
pub(super) fn check_group_set(key: &[u8], value: &[u8]) -> Result<(), String> {
    let of: GroupSet = record(value)?;
    check_number(Family::GroupSet, key, of.group.into())?;
    if of.guest_of.contains(&of.set) {
        return Err(format!("group {} is a guest of its own set", of.group));
    }
    Ok(())
}

fn record<M: Message + Default>(value: &[u8]) -> Result<M, String> {
    decode(value).map_err(|bad| bad.to_string())
}

fn check_number(family: Family, key: &[u8], number: u64) -> Result<(), String> {
    let of_key = parse_number_key(family, key).map_err(|bad| bad.to_string())?;
    if of_key == number { Ok(()) } else { Err(format!("the record is that of number {number}")) }
}
