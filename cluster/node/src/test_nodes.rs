//! Rows of nodes for tests.

use mlgw_formats::schema::{Node, NodeRole, NodeState};
use std::sync::Arc;

pub(crate) fn node(id: u64, role: NodeRole, state: NodeState) -> Arc<Node> {
    Arc::new(Node { id, role: role as i32, state: state as i32, ..Node::default() })
}

/// An active storage node.
pub(crate) fn storage(id: u64) -> Arc<Node> {
    node(id, NodeRole::Storage, NodeState::Active)
}
