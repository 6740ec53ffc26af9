//! Settings that all nodes should share: the digests of this node, and those of the others.
//!
//! Every node asks the others for their digests. The values never leave a node. What a node stated last is
//! kept while it does not answer. Nothing is stored, so after a start the nodes are asked anew.

use crate::numbers::SETTINGS;
use crate::peers::RunningTransport;
use crate::probes::Probes;
use mlgw_common::time::{Instant, sleep};
use mlgw_common::{ClusterId, NodeId, SharedSetting};
use mlgw_formats::node_settings::SettingDigests;
use mlgw_formats::schema::{Node, NodeRole};
use mlgw_membership::{StatedSettings, differing_settings};
use mlgw_metadata::Catalogue;
use mlgw_transport::{CallError, Channel};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Interval at which the other nodes are asked.
const INTERVAL: Duration = Duration::from_secs(5);

/// Longest time until an answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// The digests of all nodes that have stated them.
#[derive(Debug, Default)]
pub(crate) struct ComparedSettings {
    /// `None` until this node has read its own.
    own: Mutex<Option<SettingDigests>>,
    others: Mutex<BTreeMap<NodeId, SettingDigests>>,
}

impl ComparedSettings {
    /// Sets those of this node.
    pub(crate) fn set_own(&self, cluster: ClusterId, settings: &[SharedSetting]) {
        *self.own.lock() = Some(SettingDigests::of(cluster, settings));
    }

    /// Those of this node, once it has read them.
    pub(crate) fn own(&self) -> Option<SettingDigests> {
        self.own.lock().clone()
    }

    /// Records the answer of a node; `None` of one whose version states none.
    fn record(&self, node: NodeId, settings: Option<SettingDigests>) {
        let mut others = self.others.lock();
        match settings {
            Some(settings) => others.insert(node, settings),
            None => others.remove(&node),
        };
    }

    /// Removes the nodes that are not in `nodes`.
    fn keep(&self, nodes: &[NodeId]) {
        self.others.lock().retain(|node, _| nodes.contains(node));
    }

    /// Names of the settings of each of these nodes that differ from those of most nodes.
    pub(crate) fn differing(&self, own: NodeId, nodes: &[Arc<Node>]) -> BTreeMap<NodeId, Vec<String>> {
        let (own_settings, others) = (self.own(), self.others.lock());
        let stated = nodes.iter().filter(|node| node.is_staying()).filter_map(|node| {
            let id = node.node_id();
            let settings = if id == own { own_settings.clone() } else { others.get(&id).cloned() }?;
            Some(StatedSettings { node: id, is_storage: node.role() == NodeRole::Storage, settings })
        });
        differing_settings(&stated.collect::<Vec<_>>())
    }
}

/// Asks the other nodes for their digests.
pub(crate) struct SettingsCollector {
    pub(crate) own: NodeId,
    pub(crate) catalogue: Catalogue,
    pub(crate) probes: Arc<Probes>,
    pub(crate) transport: Arc<RunningTransport>,
    pub(crate) settings: Arc<ComparedSettings>,
}

impl SettingsCollector {
    /// Asks until the future is dropped.
    pub(crate) async fn run(self) {
        loop {
            let nodes = self.catalogue.nodes();
            let others = nodes.iter().filter(|node| node.is_staying() && node.node_id() != self.own);
            let others: Vec<NodeId> = others.map(|node| node.node_id()).collect();
            self.settings.keep(&others);
            for node in others.into_iter().filter(|node| self.probes.answers(*node) == Some(true)) {
                self.ask(node).await;
            }
            sleep(INTERVAL).await;
        }
    }

    async fn ask(&self, node: NodeId) {
        let Some(transport) = self.transport.get() else { return };
        let deadline = Instant::now() + ANSWER_MAX;
        let called = transport.call(node, Channel::Control, SETTINGS, bytes::Bytes::new(), deadline).await;
        let answer = match called {
            Ok(answer) => answer,
            // It starts, or its version lacks this call.
            Err(CallError::Refused { .. }) => return self.settings.record(node, None),
            Err(error) => return tracing::debug!(%node, %error, "a node does not state its settings"),
        };
        match SettingDigests::decode_answer(&answer) {
            Ok(settings) => self.settings.record(node, Some(settings)),
            Err(error) => tracing::debug!(%node, %error, "an answer with settings is malformed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ComparedSettings;
    use mlgw_common::{ClusterId, NodeId, Secret, SharedSetting};
    use mlgw_formats::node_settings::SettingDigests;
    use mlgw_formats::schema::{Node, NodeState};
    use std::sync::Arc;

    fn region(value: &str) -> [SharedSetting; 1] {
        let value = Secret::new(value);
        [SharedSetting { name: "s3.region".into(), value, is_of_storage: false }]
    }

    #[test]
    fn only_nodes_that_stay_and_have_stated_their_settings_are_compared() {
        let node = |id, state: NodeState| Arc::new(Node { id, state: state as i32, ..Node::default() });
        let nodes = [
            node(1, NodeState::Active),
            node(2, NodeState::Active),
            node(3, NodeState::Removed),
            node(4, NodeState::Joining),
        ];
        let (own, cluster, compared) = (NodeId(1), ClusterId(7), ComparedSettings::default());
        let record = |id, value| {
            compared.record(NodeId(id), Some(SettingDigests::of(cluster, &region(value))));
        };
        record(2, "north");
        record(3, "east");
        assert!(compared.differing(own, &nodes).is_empty(), "this node has not read its own");
        compared.set_own(cluster, &region("north"));
        assert!(compared.differing(own, &nodes).is_empty());
        record(4, "south");
        let differing = compared.differing(own, &nodes);
        assert_eq!(differing.into_iter().collect::<Vec<_>>(), [(NodeId(4), vec!["s3.region".to_owned()])]);
        compared.record(NodeId(4), None);
        assert!(compared.differing(own, &nodes).is_empty());
        record(4, "south");
        compared.keep(&[NodeId(2)]);
        assert!(compared.differing(own, &nodes).is_empty());
    }
}
