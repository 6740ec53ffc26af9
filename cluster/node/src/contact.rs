//! Contact with a node that does not answer this one: the other nodes are asked if it answers them.
//!
//! Each of them calls the node when it is asked, so the answer is not older than the question. A node that
//! does not answer, or whose version lacks this call, counts as one without contact. Nothing is stored.

use crate::numbers::{CONTACT, PING, YES};
use crate::peers::RunningTransport;
use crate::refusals::{MALFORMED, refusal};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use mlgw_common::NodeId;
use mlgw_common::time::Instant;
use mlgw_formats::node_load::LOAD_REQUEST;
use mlgw_transport::{CallError, Channel, ServiceRefusal};
use std::time::Duration;

/// Longest time until the node answers the one that was asked.
const CONTACT_MAX: Duration = Duration::from_secs(2);
/// Longest time until that one answers.
const ANSWER_MAX: Duration = Duration::from_secs(3);

const _: () = assert!(CONTACT_MAX.as_millis() < ANSWER_MAX.as_millis());

/// Calls the node of a question, and answers if it answered.
///
/// # Errors
/// If the question is malformed.
pub(crate) async fn answer_contact(
    transport: &RunningTransport,
    question: &[u8],
) -> Result<Bytes, ServiceRefusal> {
    let node = node_of(question)?;
    let Some(transport) = transport.get() else { return Ok(Bytes::new()) };
    let deadline = Instant::now() + CONTACT_MAX;
    let ping = Bytes::from_static(LOAD_REQUEST);
    let answer = transport.call(node, Channel::Control, PING, ping, deadline).await;
    Ok(Bytes::from_static(if answer.is_ok() { YES } else { &[] }))
}

/// Returns the node of a question about one node.
///
/// # Errors
/// If the question is malformed.
pub(crate) fn node_of(question: &[u8]) -> Result<NodeId, ServiceRefusal> {
    let id = question.try_into().map(u64::from_be_bytes);
    id.map(NodeId).map_err(|_| refusal(MALFORMED, "the id of a node has 8 bytes"))
}

/// Asks `others` for their contact with a node, and returns one that it answers.
pub(crate) async fn reached_by(
    transport: &RunningTransport,
    node: NodeId,
    others: impl IntoIterator<Item = NodeId>,
) -> Option<NodeId> {
    let transport = transport.get()?;
    let question = Bytes::copy_from_slice(&node.get().to_be_bytes());
    let deadline = Instant::now() + ANSWER_MAX;
    let ask = |other: NodeId| {
        let (transport, question) = (&transport, question.clone());
        async move { (other, transport.call(other, Channel::Control, CONTACT, question, deadline).await) }
    };
    let mut answers: FuturesUnordered<_> = others.into_iter().map(ask).collect();
    while let Some((other, answer)) = answers.next().await {
        if is_contact(&answer) {
            return Some(other);
        }
    }
    None
}

/// True if the node that was asked has contact.
fn is_contact(answer: &Result<Bytes, CallError>) -> bool {
    answer.as_ref().is_ok_and(|answer| answer == YES)
}

#[cfg(test)]
mod tests {
    use super::{answer_contact, is_contact, node_of};
    use crate::numbers::YES;
    use crate::peers::RunningTransport;
    use bytes::Bytes;
    use mlgw_common::NodeId;

    #[tokio::test]
    async fn only_a_clear_answer_means_contact() {
        assert!(is_contact(&Ok(Bytes::from_static(YES))));
        assert!(!is_contact(&Ok(Bytes::new())));
        let none = answer_contact(&RunningTransport::default(), &7_u64.to_be_bytes()).await;
        assert!(none.is_ok_and(|answer| answer.is_empty()), "without a transport there is no contact");
        assert!(node_of(&7_u64.to_be_bytes()).is_ok_and(|node| node == NodeId(7)));
        assert!(node_of(b"").is_err() && node_of(&[0; 9]).is_err());
    }
}
