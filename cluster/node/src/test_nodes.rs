//! Rows of nodes for tests.

use mlgw_formats::schema::{Node, NodeRole, NodeState};
use std::sync::Arc;

pub(crate) fn node(id: u64, role: NodeRole, state: NodeState) -> Arc<Node> {
    Arc::new(Node { id, role: role as i32, state: state as i32, ..Node::default() })
}

/// A storage node in each state, the active one first, and node 3, a gateway.
pub(crate) fn in_every_state() -> [Arc<Node>; 6] {
    [
        storage(1),
        node(2, NodeRole::Storage, NodeState::Joining),
        node(3, NodeRole::Gateway, NodeState::Active),
        node(4, NodeRole::Storage, NodeState::Draining),
        node(5, NodeRole::Storage, NodeState::Leaving),
        node(6, NodeRole::Storage, NodeState::Removed),
    ]
}

/// An active storage node.
pub(crate) fn storage(id: u64) -> Arc<Node> {
    node(id, NodeRole::Storage, NodeState::Active)
}
