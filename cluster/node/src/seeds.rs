//! Addresses of other nodes in the configuration, which are dialed while no other node answers.
//!
//! After a restart of all nodes with new addresses the recorded ones are of no use. A node that is dialed
//! states its address and gets that of this node. The address book of the transport has both from then on.

use crate::probes::Probes;
use mlgw_common::time::{Instant, sleep};
use mlgw_transport::{ClusterTransport, PeerAddress};
use std::sync::Arc;
use std::time::Duration;

const INTERVAL: Duration = Duration::from_secs(5);

/// Longest time of one dial.
const DIAL_MAX: Duration = Duration::from_secs(5);

/// Dials the configured addresses.
pub(crate) struct SeedDialer {
    pub(crate) seeds: Vec<PeerAddress>,
    /// Address of this node, which is not dialed.
    pub(crate) own: PeerAddress,
    pub(crate) probes: Arc<Probes>,
}

impl SeedDialer {
    /// Dials until the future is dropped.
    pub(crate) async fn run(mut self, transport: ClusterTransport) {
        self.seeds.retain(|seed| *seed != self.own);
        while !self.seeds.is_empty() {
            if !self.probes.has_answer() {
                for seed in &self.seeds {
                    dial(&transport, seed).await;
                }
            }
            sleep(INTERVAL).await;
        }
    }
}

async fn dial(transport: &ClusterTransport, seed: &PeerAddress) {
    match transport.probe(seed, Instant::now() + DIAL_MAX).await {
        Ok(node) => tracing::info!(address = %seed, %node, "a node answered at a configured address"),
        Err(error) => tracing::debug!(%error, "no node at a configured address"),
    }
}
