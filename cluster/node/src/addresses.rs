//! Addresses of nodes that do not answer, asked from a node that does.
//!
//! After a restart of all nodes with new addresses, the configuration may name one of them only. The others
//! dial it, and state their addresses there. From it they learn each other's, before any of them leads and
//! records the addresses in the rows. An address is a hint: the handshake verifies the node that answers
//! there. Nothing is stored.

use crate::numbers::ADDRESSES;
use crate::peers::RunningTransport;
use crate::probes::Probes;
use crate::refusals::{MALFORMED, refusal};
use bytes::Bytes;
use mlgw_common::NodeId;
use mlgw_common::limits::{ADDRESSES_MAX, PEER_ADDRESS_BYTES_MAX};
use mlgw_common::time::{Instant, sleep};
use mlgw_metadata::Catalogue;
use mlgw_transport::{Channel, PeerAddress, ServiceRefusal};
use prost::Message;
use std::sync::Arc;
use std::time::Duration;

const INTERVAL: Duration = Duration::from_secs(3);

/// Longest time until the answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Longest question and answer.
const MESSAGE_BYTES_MAX: usize = ADDRESSES_MAX * (PEER_ADDRESS_BYTES_MAX + 24);

/// The nodes whose addresses are asked.
#[derive(Clone, PartialEq, prost::Message)]
struct AddressQuestion {
    #[prost(uint64, repeated, tag = "1")]
    nodes: Vec<u64>,
}

/// Those of the addresses that are known.
#[derive(Clone, PartialEq, prost::Message)]
struct AddressAnswer {
    #[prost(message, repeated, tag = "1")]
    known: Vec<KnownAddress>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct KnownAddress {
    #[prost(uint64, tag = "1")]
    node: u64,
    #[prost(string, tag = "2")]
    address: String,
}

/// Answers a question for addresses. `stated` returns the one that a node stated.
///
/// # Errors
/// If the question is too long or malformed.
pub(crate) fn answer_addresses(
    question: &[u8],
    stated: impl Fn(NodeId) -> Option<PeerAddress>,
) -> Result<Bytes, ServiceRefusal> {
    let malformed = || refusal(MALFORMED, "a question for addresses names a few nodes");
    if question.len() > MESSAGE_BYTES_MAX {
        return Err(malformed());
    }
    let AddressQuestion { nodes } = AddressQuestion::decode(question).map_err(|_| malformed())?;
    if nodes.len() > ADDRESSES_MAX {
        return Err(malformed());
    }
    let known = |node: u64| {
        let address = stated(NodeId(node))?.to_string();
        Some(KnownAddress { node, address })
    };
    let answer = AddressAnswer { known: nodes.into_iter().filter_map(known).collect() };
    Ok(answer.encode_to_vec().into())
}

/// Returns the addresses in an answer, those of the nodes that were asked for alone.
///
/// # Errors
/// If the answer is too long or malformed.
fn addresses_of(answer: &[u8], asked: &[NodeId]) -> Result<Vec<(NodeId, PeerAddress)>, String> {
    if answer.len() > MESSAGE_BYTES_MAX {
        return Err(format!("{} bytes of addresses are too many", answer.len()));
    }
    let answer = AddressAnswer::decode(answer).map_err(|error| error.to_string())?;
    let asked_for = answer.known.into_iter().filter(|known| asked.contains(&NodeId(known.node)));
    let parse = |known: KnownAddress| {
        let address = known.address.parse().map_err(|bad| format!("node {}: {bad}", known.node))?;
        Ok((NodeId(known.node), address))
    };
    asked_for.map(parse).collect()
}

/// Asks for the addresses of nodes that do not answer.
pub(crate) struct AddressFinder {
    pub(crate) own: NodeId,
    pub(crate) catalogue: Catalogue,
    pub(crate) probes: Arc<Probes>,
    pub(crate) transport: Arc<RunningTransport>,
}

impl AddressFinder {
    /// Asks until the future is dropped.
    pub(crate) async fn run(self) {
        for turn in 0_usize.. {
            sleep(INTERVAL).await;
            let (answering, silent) = self.others();
            if silent.is_empty() || answering.is_empty() {
                continue;
            }
            // Another one each time, since each of them knows the nodes that connected to it.
            self.ask(answering[turn % answering.len()], &silent).await;
        }
    }

    /// The other nodes that answer, and the first of those that do not.
    fn others(&self) -> (Vec<NodeId>, Vec<NodeId>) {
        let nodes = self.catalogue.nodes();
        let others = nodes.iter().filter(|node| !node.is_removed() && node.node_id() != self.own);
        let others = others.map(|node| node.node_id());
        let (answering, mut silent): (Vec<_>, Vec<_>) =
            others.partition(|node| self.probes.answers(*node) == Some(true));
        silent.truncate(ADDRESSES_MAX);
        (answering, silent)
    }

    async fn ask(&self, node: NodeId, silent: &[NodeId]) {
        let Some(transport) = self.transport.get() else { return };
        let question = AddressQuestion { nodes: silent.iter().map(|node| node.get()).collect() };
        let (question, deadline) = (Bytes::from(question.encode_to_vec()), Instant::now() + ANSWER_MAX);
        let answer = match transport.call(node, Channel::Control, ADDRESSES, question, deadline).await {
            Ok(answer) => answer,
            Err(error) => return tracing::debug!(%node, %error, "a node states no addresses of others"),
        };
        match addresses_of(&answer, silent) {
            Ok(known) => {
                for (of, address) in known {
                    transport.book().set_learned(of, address);
                }
            }
            Err(error) => tracing::debug!(%node, error, "an answer with addresses is malformed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AddressQuestion, MESSAGE_BYTES_MAX, addresses_of, answer_addresses};
    use mlgw_common::NodeId;
    use mlgw_common::limits::ADDRESSES_MAX;
    use mlgw_transport::PeerAddress;
    use prost::Message as _;

    fn question(nodes: impl Iterator<Item = u64>) -> Vec<u8> {
        AddressQuestion { nodes: nodes.collect() }.encode_to_vec()
    }

    fn stated(node: NodeId) -> Option<PeerAddress> {
        (node != NodeId(3)).then(|| format!("10.0.0.{node}:9002").parse().unwrap())
    }

    #[test]
    fn known_addresses_of_the_nodes_that_are_asked_for_are_stated() {
        let answer = answer_addresses(&question([2, 3, 4].into_iter()), stated).unwrap();
        let address = |node| (NodeId(node), stated(NodeId(node)).unwrap());
        assert_eq!(addresses_of(&answer, &[2, 3, 4].map(NodeId)), Ok(vec![address(2), address(4)]));
        assert_eq!(addresses_of(&answer, &[NodeId(4)]), Ok(vec![address(4)]), "only what was asked for");
        assert_eq!(addresses_of(&[], &[NodeId(4)]), Ok(vec![]));
    }

    #[test]
    fn long_and_malformed_messages_are_refused() {
        let most = question(1..=ADDRESSES_MAX as u64);
        assert!(answer_addresses(&most, |_| None).is_ok());
        assert!(answer_addresses(&question(1..=ADDRESSES_MAX as u64 + 1), |_| None).is_err());
        assert!(answer_addresses(&[0xff], |_| None).is_err());
        assert!(answer_addresses(&vec![0; MESSAGE_BYTES_MAX + 1], |_| None).is_err());
        assert!(addresses_of(&[0xff], &[NodeId(2)]).is_err());
        assert!(addresses_of(&vec![0; MESSAGE_BYTES_MAX + 1], &[NodeId(2)]).is_err());
        // An entry with the address "x".
        assert!(addresses_of(&[10, 5, 8, 2, 18, 1, b'x'], &[NodeId(2)]).is_err(), "no port");
    }

    #[test]
    fn the_longest_answer_is_within_the_limit() {
        let longest = |_| Some(format!("{}:65535", "h".repeat(253)).parse().unwrap());
        let asked: Vec<NodeId> = (1..=ADDRESSES_MAX as u64).map(|id| NodeId(u64::MAX - id)).collect();
        let answer = answer_addresses(&question(asked.iter().map(|node| node.get())), longest).unwrap();
        assert_eq!(addresses_of(&answer, &asked).unwrap().len(), ADDRESSES_MAX);
    }
}
