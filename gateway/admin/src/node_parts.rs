//! Parts of the other nodes of a cluster, for answers that cover the whole cluster.
//!
//! Every node has the routes `/node/…` for the other nodes, which no listener serves. They answer with the
//! part of that node alone, so a question is never passed on. A node that does not answer within two seconds
//! is listed with the reason.

use super::signed::AdminCaller;
use axum::Extension;
use http::Method;
use mlgw_api::SilentNode;
use mlgw_node::{AdminCall, ClusterNode, NodePart, PartError};
use serde::de::DeserializeOwned;

/// Route of the status of a node.
pub(super) const STATUS_PART: &str = "/node/status";
/// Route of the decisions of a node.
pub(super) const DECISIONS_PART: &str = "/node/decisions";

/// Part of another node, parsed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ParsedPart<T> {
    pub(super) node: u64,
    pub(super) name: String,
    pub(super) part: Result<T, PartError>,
}

impl<T: DeserializeOwned> ParsedPart<T> {
    fn parse(NodePart { node, name, answer }: NodePart) -> Self {
        let malformed = |error: serde_json::Error| {
            PartError::Failed(format!("its answer cannot be read: it may run another version ({error})"))
        };
        let part = answer.and_then(|answer| serde_json::from_slice(&answer).map_err(malformed));
        Self { node: node.get(), name, part }
    }
}

impl<T> ParsedPart<T> {
    /// Returns the part, or the node without one.
    pub(super) fn answered(self) -> Result<T, SilentNode> {
        let (node, name) = (self.node, self.name);
        self.part.map_err(|why| SilentNode { node, name, reason: why.to_string() })
    }
}

/// Asks all other nodes for the document at `target`, of at most `bytes_max` bytes each. Returns their parts
/// by id; none on a server without peers.
pub(super) async fn parts_of_others<T: DeserializeOwned>(
    cluster: Option<&ClusterNode>,
    Extension(caller): &Extension<AdminCaller>,
    target: String,
    bytes_max: usize,
) -> Vec<ParsedPart<T>> {
    let Some(cluster) = cluster else { return Vec::new() };
    let AdminCaller { access_key, from } = caller.clone();
    let call = AdminCall { method: Method::GET.to_string(), target, access_key, from };
    cluster.ask_nodes(&call, bytes_max).await.into_iter().map(ParsedPart::parse).collect()
}
