//! The segments of a storage node that serves no requests: replicas of the segments of other nodes.
//!
//! The node follows open segments of their owner, pulls copies of sealed ones itself, verifies them by its
//! scrub and serves them to other nodes. It owns, compacts and places nothing. Its start removes files and
//! sets files aside by the rows of the catalogue, so it first waits until a majority of the voters of each
//! group has confirmed that these rows are current. After a power loss a copy that was not recorded is
//! verified and recorded, or made again.

use super::ServeError;
use super::member;
use super::segment_store::{OpenSegments, start_scrub};
use super::start::StartResources;
use mlgw_config::Config;
use mlgw_metadata::Catalogue;
use mlgw_node::ClusterNode;
use mlgw_segments::decisions::Decisions;
use mlgw_segments::hot::{HotTier, Scrub};

/// The open copies of a storage node.
pub(super) struct ReplicaStore {
    hot: HotTier,
    scrub: Scrub,
    decisions: Decisions,
}

impl ReplicaStore {
    /// Waits until the rows are current, opens the segments and serves them to other nodes. The node is a
    /// member already.
    pub(super) async fn open(
        config: &Config,
        start: &StartResources,
        catalogue: &Catalogue,
        cluster: &ClusterNode,
    ) -> Result<Self, ServeError> {
        member::unless_superseded(cluster, member::until_current(catalogue)).await?;
        let segments = OpenSegments::open(config, start, catalogue, Some(cluster)).await?;
        let OpenSegments { hot, decisions, .. } = segments;
        // Objects are compared with their checksums on the store, which has the bytes of open segments too.
        let scrub = start_scrub(config, &start.dir, &start.clock, None, catalogue, &hot)?;
        Ok(Self { hot, scrub, decisions })
    }

    pub(super) const fn hot(&self) -> &HotTier {
        &self.hot
    }

    /// Serves no replicas any more, ends the copies in progress and makes all state durable. The node is
    /// still in the cluster, and its catalogue open.
    pub(super) async fn close(self, cluster: &ClusterNode) {
        cluster.stop_segments();
        self.scrub.stop();
        let flash = self.hot.flash().clone();
        self.hot.shutdown().await;
        flash.save();
        self.decisions.write();
    }
}
