//! Group 0: nodes of the cluster.
//!
//! Ids grow from a counter and are never used again. A removed node is refused for ever: by its row, and
//! by the counter after the row made room for another node. A node is removed only when it is in no
//! membership of this group any more, and in no set; until then it is marked.

use super::bucket::next_id;
use super::{join_token, malformed, set};
use crate::store_error::StoreError;
use crate::view::{ApplyError, View};
use mlgw_common::NodeId;
use mlgw_common::limits::{NODE_HASH_BYTES, NODE_TEXT_BYTES_MAX, NODES_MAX};
use mlgw_formats::cluster_version::FIRST_CLUSTER_VERSION;
use mlgw_formats::command::{
    AdmitNode, DrainNode, PutNode, Reject, RemoveNode, Reply, ReportNode, SetNodeRole,
};
use mlgw_formats::key::Family;
use mlgw_formats::schema::meta::{ClusterVersion, Counter, MembershipRecord, MetaRow, Timeline};
use mlgw_formats::schema::{Node, NodeRole, NodeState, RecordedStart, decode_all, node};

/// Sets the address of a node as a build of cluster version 1 does. All other fields have their own commands.
pub(super) fn put(view: &mut View<'_>, command: &PutNode) -> Result<Reply, ApplyError> {
    let put = &command.node;
    if put.has_membership_fields() {
        return Err(malformed("the membership of a node is changed by other commands"));
    }
    let row = node::row(put.node_id());
    let known = match view.get::<Node>(&row)? {
        Some(known) if known.is_removed() => return Err(Reject::NodeRemoved { node: put.id }.into()),
        Some(known) => known,
        None => {
            reserve_id(view, put.id)?;
            Node::default()
        }
    };
    view.put(row, &Node { id: put.id, address: put.address.clone(), joined_ms: put.joined_ms, ..known });
    Ok(Reply::Done)
}

/// Keeps the counter above an id that it did not allocate. Without a counter the first node that joins
/// considers all rows.
fn reserve_id(view: &mut View<'_>, id: u64) -> Result<(), ApplyError> {
    let row = MetaRow::NextNode.row();
    match view.get::<Counter>(&row)? {
        Some(counter) if id < counter.next => Err(Reject::NodeRemoved { node: id }.into()),
        Some(_) => {
            view.put(row, &Counter { next: id.saturating_add(1) });
            Ok(())
        }
        None => Ok(()),
    }
}

/// Admits a node with a token: a new one, or once more the one that joined with it.
pub(super) fn admit(view: &mut View<'_>, command: &AdmitNode) -> Result<Reply, ApplyError> {
    if command.key_hash.len() != NODE_HASH_BYTES || NodeRole::try_from(command.role).is_err() {
        return Err(malformed("the node has an unknown role, or the hash of its key has the wrong length"));
    }
    check_texts(&[&command.name, &command.address, &command.build])?;
    let token = join_token::presented(view, command)?;
    check_version(view, command.cluster_version)?;
    if token.node != 0 {
        let known = staying(view, token.node)?;
        return Ok(reply(readmit(view, known, command)));
    }
    let nodes = all(view)?;
    let joined = match nodes.iter().find(|node| node.key_hash == command.key_hash) {
        Some(known) if !known.is_staying() => return Err(Reject::NodeRemoved { node: known.id }.into()),
        Some(known) if known.state() == NodeState::Joining => readmit(view, known.clone(), command),
        Some(known) => return Err(Reject::NodeKeyInUse { node: known.id }.into()),
        None => create(view, &nodes, command)?,
    };
    join_token::record_use(view, token, &joined, command.now_ms);
    Ok(reply(joined))
}

/// Admits a known node again. A node that has not served yet may have changed meanwhile.
fn readmit(view: &mut View<'_>, known: Node, command: &AdmitNode) -> Node {
    if known.state() != NodeState::Joining {
        return known;
    }
    let joined = Node { id: known.id, joined_ms: known.joined_ms, ..admitted(command) };
    view.put(node::row(joined.node_id()), &joined);
    joined
}

fn create(view: &mut View<'_>, nodes: &[Node], command: &AdmitNode) -> Result<Node, ApplyError> {
    if nodes.len() >= NODES_MAX {
        let oldest = nodes.iter().find(|node| node.is_removed()).ok_or(Reject::TooManyNodes)?;
        view.delete(node::row(oldest.node_id()));
    }
    let counter = MetaRow::NextNode.row();
    if !view.has(&counter)? {
        let last = nodes.last().map_or(0, |node| node.id);
        view.put(counter, &Counter { next: last.saturating_add(1) });
    }
    let id = next_id(view, MetaRow::NextNode, 1)?;
    assert!(nodes.last().is_none_or(|last| last.id < id), "ids of nodes grow");
    let joined = Node { id, joined_ms: command.now_ms, ..admitted(command) };
    view.put(node::row(NodeId(id)), &joined);
    Ok(joined)
}

/// Returns the record of a node that is being admitted, without its id.
fn admitted(command: &AdmitNode) -> Node {
    Node {
        address: command.address.clone(),
        name: command.name.clone(),
        role: command.role,
        state: NodeState::Joining as i32,
        key_hash: command.key_hash.clone(),
        cluster_version: command.cluster_version,
        build: command.build.clone(),
        ..Node::default()
    }
}

/// Records a node's report about itself.
pub(super) fn report(view: &mut View<'_>, command: &ReportNode) -> Result<Reply, ApplyError> {
    check_texts(&[&command.address, &command.build])?;
    if !command.key_hash.is_empty() && command.key_hash.len() != NODE_HASH_BYTES {
        return Err(malformed("the hash of the node's key has the wrong length"));
    }
    let mut node = known(view, command.node)?;
    check_version(view, command.cluster_version)?;
    check_start(view, &node, command.start)?;
    if !command.key_hash.is_empty() && command.key_hash != node.key_hash {
        let others = all(view)?;
        if let Some(other) = others.iter().find(|other| other.key_hash == command.key_hash) {
            return Err(Reject::NodeKeyInUse { node: other.id }.into());
        }
        node.key_hash.clone_from(&command.key_hash);
    }
    if command.is_serving && node.state() == NodeState::Joining {
        node.set_state(NodeState::Active);
    }
    node.address.clone_from(&command.address);
    node.build.clone_from(&command.build);
    node.cluster_version = command.cluster_version;
    node.start = Some(command.start);
    node.reported_ms = command.now_ms;
    if command.has_authorities() {
        (node.authority, node.trusted_authority) = (command.authority, command.trusted_authority);
    }
    view.put(node::row(node.node_id()), &node);
    Ok(reply(node))
}

/// Refuses the report of an older start, of a copy of a start, and of another timeline than the cluster's:
/// the node's directory was restored or cloned.
fn check_start(view: &View<'_>, node: &Node, start: RecordedStart) -> Result<(), ApplyError> {
    let stale = || Reject::StaleNodeStart { node: node.id, counter: start.counter };
    let timeline = view.get::<Timeline>(&MetaRow::Incarnation.row())?;
    if start.counter == 0 || timeline.is_some_and(|timeline| timeline.incarnation != start.incarnation) {
        return Err(stale().into());
    }
    match node.start {
        // An earlier timeline of the cluster: the starts of this one count anew.
        Some(before) if before.incarnation != start.incarnation && timeline.is_some() => Ok(()),
        Some(before) if before.incarnation != start.incarnation || start.counter < before.counter => {
            Err(stale().into())
        }
        Some(before) if start.counter == before.counter && start.nonce != before.nonce => Err(stale().into()),
        _ => Ok(()),
    }
}

pub(super) fn set_role(view: &mut View<'_>, command: SetNodeRole) -> Result<Reply, ApplyError> {
    let role = NodeRole::try_from(command.role).map_err(|_| malformed("the node's role is unknown"))?;
    let mut node = staying(view, command.node)?;
    if node.role() == role {
        return Ok(reply(node));
    }
    if role == NodeRole::Gateway {
        if node.state() == NodeState::Active {
            return Err(Reject::WrongNodeState { node: node.id, state: NodeState::Active }.into());
        }
        check_not_last(view, &node)?;
        if let Some(set) = set::set_with(view, node.id)? {
            return Err(Reject::NodeInSet { node: node.id, set }.into());
        }
    }
    node.set_role(role);
    view.put(node::row(node.node_id()), &node);
    Ok(reply(node))
}

pub(super) fn drain(view: &mut View<'_>, command: DrainNode) -> Result<Reply, ApplyError> {
    let mut node = staying(view, command.node)?;
    let to = if command.is_draining { NodeState::Draining } else { NodeState::Active };
    if command.replaced_by != 0 {
        check_replacement(view, &command)?;
    }
    match (node.state(), to) {
        (from, to) if from == to && command.replaced_by == 0 => return Ok(reply(node)),
        (from, to) if from == to => {}
        (NodeState::Active, NodeState::Draining) => check_not_last(view, &node)?,
        (NodeState::Draining, NodeState::Active) => {}
        (state, _) => return Err(Reject::WrongNodeState { node: node.id, state }.into()),
    }
    node.set_state(to);
    node.replaced_by = command.replaced_by;
    view.put(node::row(node.node_id()), &node);
    Ok(reply(node))
}

/// Removes a node, or marks it while it is in the membership of this group or in a set.
pub(super) fn remove(view: &mut View<'_>, command: RemoveNode) -> Result<Reply, ApplyError> {
    let row = node::row(NodeId(command.node));
    let mut node = match view.get::<Node>(&row)? {
        Some(node) if node.is_removed() => return Ok(reply(node)),
        Some(node) => node,
        None => known(view, command.node)?,
    };
    if command.is_drained && node.is_staying() && node.state() != NodeState::Draining {
        return Err(Reject::WrongNodeState { node: node.id, state: node.state() }.into());
    }
    if node.is_staying() {
        check_not_last(view, &node)?;
    }
    if is_in_membership(view, node.id)? || set::set_with(view, node.id)?.is_some() {
        node.set_state(NodeState::Leaving);
    } else {
        node.set_state(NodeState::Removed);
        node.removed_ms = command.now_ms;
    }
    view.put(row, &node);
    Ok(reply(node))
}

/// Checks that another active node stores data.
fn check_not_last(view: &View<'_>, node: &Node) -> Result<(), ApplyError> {
    let is_other = |other: &Node| {
        other.id != node.id && other.role() == NodeRole::Storage && other.state() == NodeState::Active
    };
    if node.role() == NodeRole::Storage && !all(view)?.iter().any(is_other) {
        return Err(Reject::LastStorageNode { node: node.id }.into());
    }
    Ok(())
}

fn is_in_membership(view: &View<'_>, id: u64) -> Result<bool, StoreError> {
    let membership = view.get::<MembershipRecord>(&MetaRow::Membership.row())?.unwrap_or_default();
    let is_voter = membership.configs.iter().any(|voters| voters.nodes.contains(&id));
    Ok(is_voter || membership.members.iter().any(|member| member.node == id))
}

/// The cluster's version.
pub(super) fn cluster_version(view: &View<'_>) -> Result<u32, StoreError> {
    let row = view.get::<ClusterVersion>(&MetaRow::ClusterVersion.row())?;
    Ok(row.map_or(FIRST_CLUSTER_VERSION, |of| of.version))
}

/// Checks that every node, those that are down as well, has reported that it knows `version`. The only node
/// of a server that never was in a cluster reports nothing: its own build proposes the version.
pub(super) fn check_all_know(view: &View<'_>, version: u32) -> Result<(), ApplyError> {
    let mut nodes = all(view)?;
    nodes.retain(|node| !node.is_removed());
    let is_alone = nodes.len() == 1;
    let lacks = |node: &&Node| node.cluster_version < version && !(is_alone && node.cluster_version == 0);
    match nodes.iter().find(lacks) {
        Some(node) => {
            Err(Reject::VersionNotReported { node: node.id, knows: node.cluster_version, needs: version }
                .into())
        }
        None => Ok(()),
    }
}

/// Checks that a node that joins or reports knows the cluster's version.
fn check_version(view: &View<'_>, knows: u32) -> Result<(), ApplyError> {
    let needs = cluster_version(view)?;
    if knows < needs { Err(Reject::NodeTooOld { knows, needs }.into()) } else { Ok(()) }
}

fn check_texts(texts: &[&str]) -> Result<(), ApplyError> {
    if texts.iter().any(|text| text.len() > NODE_TEXT_BYTES_MAX) {
        return Err(malformed("the name, the address or the build of the node is too long"));
    }
    Ok(())
}

/// Checks that an active storage node takes the place of a node that is drained.
fn check_replacement(view: &View<'_>, command: &DrainNode) -> Result<(), ApplyError> {
    let new = staying(view, command.replaced_by)?;
    if !command.is_draining || new.id == command.node || new.role() != NodeRole::Storage {
        return Err(malformed("no other storage node takes the place of the node"));
    }
    if new.state() != NodeState::Active {
        return Err(Reject::WrongNodeState { node: new.id, state: new.state() }.into());
    }
    Ok(())
}

/// The node `id`, unless it is being removed or was removed.
fn staying(view: &View<'_>, id: u64) -> Result<Node, ApplyError> {
    let node = known(view, id)?;
    if node.is_staying() { Ok(node) } else { Err(Reject::NodeRemoved { node: id }.into()) }
}

/// The node `id`, unless it was removed.
fn known(view: &View<'_>, id: u64) -> Result<Node, ApplyError> {
    match view.get::<Node>(&node::row(NodeId(id)))? {
        Some(node) if node.is_removed() => Err(Reject::NodeRemoved { node: id }.into()),
        Some(node) => Ok(node),
        None => {
            let next = view.get::<Counter>(&MetaRow::NextNode.row())?.unwrap_or_default().next;
            let was_allocated = (1..next).contains(&id);
            Err(if was_allocated {
                Reject::NodeRemoved { node: id }
            } else {
                Reject::NoSuchNode { node: id }
            }
            .into())
        }
    }
}

/// All nodes, by id, removed ones included.
fn all(view: &View<'_>) -> Result<Vec<Node>, StoreError> {
    let rows = view.range(&Family::Node.start(), &Family::Node.end(), NODES_MAX + 1)?;
    rows.iter().map(|(_, value)| decode_all(value).map_err(StoreError::from)).collect()
}

fn reply(node: Node) -> Reply {
    Reply::Node(Box::new(node))
}
