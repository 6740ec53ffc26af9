//! Requests to the admin API that this node sends to other nodes: one request to the duty node, or the same
//! question to all nodes.
//!
//! The sending node has authenticated the caller, because the key of the commands on its host is known to it
//! alone. A node never forwards such a request. A node that does not answer in time is reported as such, so
//! an answer of the whole cluster never waits for it. Nothing is stored here.

use crate::admin_calls::{AdminAnswer, AdminCall, AdminServer};
use crate::node::ClusterNode;
use crate::numbers::ADMIN;
use crate::peers::RunningTransport;
use crate::streams::{member_body, peer_body};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use http_body_util::{BodyExt as _, Collected, Full, LengthLimitError, Limited};
use mlgw_common::NodeId;
use mlgw_common::limits::{NODE_PART_MS, NODES_ASKED_MAX};
use mlgw_common::time::{Instant, timeout};
use mlgw_formats::schema::{Node, NodeState};
use mlgw_forwarding::MemberBody;
use mlgw_transport::{CallError, StreamClass};
use std::sync::Arc;
use std::time::Duration;

/// Longest time until a node has answered a question to all nodes.
const PART_MAX: Duration = Duration::from_millis(NODE_PART_MS);

/// Longest time until a node accepts a request. It carries it out after that.
const ACCEPT_MAX: Duration = PART_MAX;

/// Longest time until the head of the answer of the duty node. A request may list keys for nine minutes.
const FORWARDED_MAX: Duration = Duration::from_mins(10);

/// Status of an answer that has the part of a node.
const OK: u16 = 200;

/// Answer of one node to a question to all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePart {
    /// The node.
    pub node: NodeId,
    /// Its name; may be empty.
    pub name: String,
    /// Its answer, or the reason for which there is none.
    pub answer: Result<Bytes, PartError>,
}

/// Reason for which a node gives no answer to a question to all nodes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    /// It does not answer the probes of this node, so it was not asked.
    #[error("it does not answer")]
    Silent,
    /// It was asked, and its answer is late, refused or incomplete.
    #[error("{0}")]
    Failed(String),
}

/// Error of a request to another node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdminCallError {
    /// The node did not get the request.
    #[error("{0}")]
    NotSent(String),
    /// The node may have carried out the request.
    #[error("{0}")]
    Unknown(String),
}

impl ClusterNode {
    /// Serves requests to the admin API that other nodes send. Before this call they get a refusal.
    pub fn serve_admin(&self, server: Arc<dyn AdminServer>) {
        self.shared.services.serve_admin(Some(server));
    }

    /// Refuses requests to the admin API that other nodes send from now on.
    pub fn stop_admin(&self) {
        self.shared.services.serve_admin(None);
    }

    /// Sends a request to the admin API of a node, such as the duty node.
    ///
    /// # Errors
    /// See [`AdminCallError`].
    pub async fn send_admin(
        &self,
        node: NodeId,
        call: &AdminCall,
        body: Bytes,
    ) -> Result<AdminAnswer, AdminCallError> {
        if self.shared.probes.is_silent(node) {
            return Err(AdminCallError::NotSent(PartError::Silent.to_string()));
        }
        open(&self.shared.transport, node, call, body, FORWARDED_MAX).await
    }

    /// Asks all other nodes that have ever served, several at once, and returns their answers by id. A node
    /// has two seconds, and its answer at most `bytes_max` bytes.
    pub async fn ask_nodes(&self, call: &AdminCall, bytes_max: usize) -> Vec<NodePart> {
        let nodes = self.shared.catalogue.nodes();
        let asked: Vec<Arc<Node>> = nodes.iter().filter(|node| self.is_asked(node)).cloned().collect();
        let part = |node: Arc<Node>| {
            let (transport, call) = (Arc::clone(&self.shared.transport), call.clone());
            let is_silent = self.shared.probes.answers(node.node_id()) != Some(true);
            async move {
                let id = node.node_id();
                let answer = match is_silent {
                    true => Err(PartError::Silent),
                    false => part_of(&transport, id, &call, bytes_max).await.map_err(PartError::Failed),
                };
                NodePart { node: id, name: node.name.clone(), answer }
            }
            .boxed()
        };
        let asking = stream::iter(asked.into_iter().map(part)).buffer_unordered(NODES_ASKED_MAX);
        let mut parts: Vec<NodePart> = asking.collect().await;
        parts.sort_by_key(|part| part.node);
        parts
    }

    fn is_asked(&self, node: &Node) -> bool {
        !node.is_removed() && node.state() != NodeState::Joining && node.node_id() != self.shared.own
    }
}

/// Asks a node for its part.
async fn part_of(
    transport: &RunningTransport,
    node: NodeId,
    call: &AdminCall,
    bytes_max: usize,
) -> Result<Bytes, String> {
    let asking = async {
        let opened = open(transport, node, call, Bytes::new(), PART_MAX).await;
        let AdminAnswer { status, body, .. } = opened.map_err(|error| error.to_string())?;
        if status != OK {
            return Err(format!("it answered with status {status}"));
        }
        collect(body, bytes_max).await
    };
    let late = |_| format!("it gave no answer within {} s", PART_MAX.as_secs());
    timeout(PART_MAX, asking).await.map_err(late)?
}

/// Reads a body of at most `bytes_max` bytes.
fn collect(body: MemberBody, bytes_max: usize) -> BoxFuture<'static, Result<Bytes, String>> {
    let collecting = Limited::new(body, bytes_max).collect();
    let collected = collecting.map(move |collected| {
        collected.map(Collected::to_bytes).map_err(|error| match error.is::<LengthLimitError>() {
            true => format!("its answer has more than {bytes_max} bytes"),
            false => format!("its answer failed: {error}"),
        })
    });
    collected.boxed()
}

/// Sends a request, and waits for the head of the answer.
async fn open(
    transport: &RunningTransport,
    node: NodeId,
    call: &AdminCall,
    body: Bytes,
    wait: Duration,
) -> Result<AdminAnswer, AdminCallError> {
    let stopped = || AdminCallError::NotSent("the transport of this node does not run".to_owned());
    let transport = transport.get().ok_or_else(stopped)?;
    let body = MemberBody::new(Full::new(body).map_err(|never| match never {}));
    let (head, deadline) = (call.encode(), Instant::now() + ACCEPT_MAX);
    let opened = transport.stream(node, StreamClass::Request, ADMIN, head, peer_body(body), deadline).await;
    let opened = opened.map_err(|error| call_error(&error))?;
    let answer = timeout(wait, AdminAnswer::read(member_body(opened.body))).await;
    let late = || format!("it gave no answer within {} s", wait.as_secs());
    answer.unwrap_or_else(|_| Err(late())).map_err(AdminCallError::Unknown)
}

fn call_error(error: &CallError) -> AdminCallError {
    match error {
        CallError::NotSent { .. } | CallError::PeerRefused { .. } | CallError::Refused { .. } => {
            AdminCallError::NotSent(error.to_string())
        }
        CallError::Unknown { .. } => AdminCallError::Unknown(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::{AdminAnswer, AdminCallError, call_error, collect};
    use crate::peers::tests::call_errors;
    use bytes::Bytes;
    use http_body_util::{BodyExt as _, Full};
    use mlgw_transport::CallError;

    #[tokio::test]
    async fn an_answer_that_is_too_long_is_refused() {
        let answer = || {
            let body = Full::new(Bytes::from_static(b"0123456789"));
            AdminAnswer::new(200, String::new(), body.map_err(|never| -> std::io::Error { match never {} }))
                .body
        };
        assert_eq!(collect(answer(), 10).await, Ok(Bytes::from_static(b"0123456789")));
        assert!(collect(answer(), 9).await.unwrap_err().contains("more than 9 bytes"));
    }

    #[test]
    fn only_an_unknown_outcome_may_have_changed_something() {
        for error in call_errors() {
            let is_unknown = matches!(call_error(&error), AdminCallError::Unknown(_));
            assert_eq!(is_unknown, matches!(error, CallError::Unknown { .. }), "{error}");
        }
    }
}
