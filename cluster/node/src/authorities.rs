//! Authorities that sign and trust the certificates of the nodes, and what is left of a replacement.
//!
//! Everything follows from the rows of authorities and nodes, and from the certificate of this node. Nothing
//! is stored here, so after a power loss it is computed again.

use mlgw_common::NodeId;
use mlgw_formats::schema::{AuthorityRecord, Node};
use mlgw_trust::NodeCredentials;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::Notify;

/// Replacement of the authority that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorityChange {
    /// Number of the new authority.
    pub authority: u64,
    /// Nodes that have not reported that they trust it, by id. Nothing is signed by it before.
    pub without_trust: Vec<NodeId>,
    /// Nodes that have not reported a certificate that it signed, by id. The old one is not removed before.
    pub without_certificate: Vec<NodeId>,
}

/// Numbers of the authorities of a node's certificate; 0 for one without a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldAuthorities {
    /// The one that signed it.
    pub(crate) signer: u64,
    /// The newest one that the node trusts.
    pub(crate) trusted: u64,
}

/// Returns the numbers of the authorities of `held`.
pub(crate) fn held_authorities(held: &NodeCredentials, records: &[AuthorityRecord]) -> HeldAuthorities {
    let signer = records.iter().find(|record| has_signed(record, held));
    let is_trusted = |record: &&AuthorityRecord| {
        held.authorities().iter().any(|authority| authority[..] == record.certificate[..])
    };
    let number = |record: Option<&AuthorityRecord>| record.map_or(0, |record| record.number);
    HeldAuthorities { signer: number(signer), trusted: number(records.iter().rev().find(is_trusted)) }
}

/// True if the authority of the record signed the certificate.
pub(crate) fn has_signed(record: &AuthorityRecord, held: &NodeCredentials) -> bool {
    held.authorities().first().is_some_and(|signer| signer[..] == record.certificate[..])
}

/// Returns the replacement that is under way; `None` while there is one authority.
pub(crate) fn authority_change(records: &[AuthorityRecord], nodes: &[Arc<Node>]) -> Option<AuthorityChange> {
    let newest = records.last().filter(|_| records.len() > 1)?.number;
    let that = |lacks: fn(&Node, u64) -> bool| -> Vec<NodeId> {
        let staying = nodes.iter().filter(|node| node.is_staying());
        staying.filter(|node| lacks(node, newest)).map(|node| node.node_id()).collect()
    };
    Some(AuthorityChange {
        authority: newest,
        without_trust: that(|node, newest| node.trusted_authority < newest),
        without_certificate: that(|node, newest| node.authority < newest),
    })
}

/// Authorities of this node's certificate, for its reports, and the signal of a change.
#[derive(Debug, Default)]
pub(crate) struct AuthorityState {
    held: Mutex<HeldAuthorities>,
    changed: Notify,
}

impl AuthorityState {
    /// Records the authorities of the certificate that is in use.
    pub(crate) fn set(&self, held: HeldAuthorities) {
        if std::mem::replace(&mut *self.held.lock(), held) != held {
            self.changed.notify_one();
        }
    }

    pub(crate) fn get(&self) -> HeldAuthorities {
        *self.held.lock()
    }

    /// Completes after a change.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::authority_change;
    use crate::authority::signing_record;
    use mlgw_common::NodeId;
    use mlgw_formats::schema::{AuthorityRecord, Node, NodeState};
    use std::sync::Arc;

    fn records(numbers: &[u64]) -> Vec<AuthorityRecord> {
        let record = |number: &u64| AuthorityRecord { number: *number, ..AuthorityRecord::default() };
        numbers.iter().map(record).collect()
    }

    /// A node that has a certificate of `authority` and trusts `trusted`.
    fn node(id: u64, authority: u64, trusted: u64) -> Arc<Node> {
        Arc::new(Node { id, authority, trusted_authority: trusted, ..Node::default() })
    }

    fn in_state(node: &Arc<Node>, state: NodeState) -> Arc<Node> {
        Arc::new(Node { state: state as i32, ..Node::clone(node) })
    }

    fn signer(records: &[AuthorityRecord], nodes: &[Arc<Node>], id: u64) -> Option<u64> {
        signing_record(records, nodes, NodeId(id)).map(|record| record.number)
    }

    #[test]
    fn the_newest_authority_signs_when_every_other_node_trusts_it() {
        let both = records(&[1, 2]);
        let mut nodes = vec![node(1, 1, 2), node(2, 1, 1), node(3, 1, 2)];
        assert_eq!([1, 2, 3, 4].map(|id| signer(&both, &nodes, id)), [1, 2, 1, 1].map(Some));
        nodes[1] = node(2, 1, 2);
        assert_eq!([1, 2, 3, 4].map(|id| signer(&both, &nodes, id)), [Some(2); 4]);
        nodes.push(in_state(&node(4, 0, 0), NodeState::Joining));
        assert_eq!(signer(&both, &nodes, 1), Some(1), "it has joined and reported nothing");
        assert_eq!(signer(&both, &nodes, 4), Some(2), "its own certificate");
        nodes[3] = in_state(&nodes[3], NodeState::Removed);
        assert_eq!(signer(&both, &nodes, 1), Some(2));
        assert_eq!(signer(&records(&[2]), &[node(1, 0, 0)], 2), Some(2), "there is no other one");
        assert_eq!(signer(&[], &nodes, 1), None);
    }

    #[test]
    fn a_change_names_the_nodes_that_it_waits_for() {
        let nodes = [
            node(1, 2, 2),
            node(2, 1, 2),
            in_state(&node(3, 1, 1), NodeState::Draining),
            in_state(&node(4, 0, 0), NodeState::Joining),
            in_state(&node(5, 1, 1), NodeState::Leaving),
            in_state(&node(6, 1, 1), NodeState::Removed),
        ];
        let change = authority_change(&records(&[1, 2]), &nodes).unwrap();
        assert_eq!(change.authority, 2);
        assert_eq!(change.without_trust, [3, 4].map(NodeId));
        assert_eq!(change.without_certificate, [2, 3, 4].map(NodeId));
        assert_eq!(authority_change(&records(&[2]), &nodes), None);
        let done = authority_change(&records(&[1, 2]), &nodes[..1]).unwrap();
        assert!(done.without_trust.is_empty() && done.without_certificate.is_empty());
    }
}
