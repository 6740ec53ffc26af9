//! A node of a cluster that stores no objects: it forwards every S3 request to a storage node.
//!
//! It is a member of the system group, so it has the access keys of its admin API. Its start waits until it
//! has received the rows of the system group. It opens no store besides the catalogue, and proposes nothing
//! besides the report of the node. A power loss at any time loses nothing that the other nodes do not have,
//! or that this node has not synced before it acknowledged it to them.

use super::ServeError;
use super::files::FileBudget;
use super::member;
use super::start::{StartResources, remove_leftovers};
use mlgw_common::Clock;
use mlgw_config::{Config, MachineSizes};
use mlgw_credentials::Keyring;
use mlgw_metadata::Catalogue;
use mlgw_node::ClusterNode;
use mlgw_store::data_dir::DataDir;
use mlgw_store::start_reserve;
use std::sync::Arc;
use tokio_util::task::AbortOnDropHandle;

/// The open parts of a node that forwards.
pub(super) struct GatewayNode {
    pub(super) dir: DataDir,
    _start_reserve: AbortOnDropHandle<()>,
    pub(super) machine: MachineSizes,
    pub(super) files: FileBudget,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) catalogue: Catalogue,
    pub(super) cluster: ClusterNode,
    pub(super) keyring: Keyring,
}

impl GatewayNode {
    pub(super) async fn open(config: &Config, start: StartResources) -> Result<Self, ServeError> {
        let (catalogue, cluster) = member::open_catalogue(config, &start).await?;
        member::unless_superseded(&cluster, member::until_member(&cluster)).await?;
        let StartResources { mut dir, sealer, machine, files, clock, .. } = start;
        // The log has carried the identity since it was opened, and the rows that have arrived carry the
        // timeline of the cluster.
        dir.finish_marking()?;
        remove_leftovers(&dir, &dir.location(config));
        let reserve = start_reserve::maintain(dir.path().to_owned(), config.hot_reserve_bytes(&machine));
        let keyring = member::open_keyring(&catalogue, sealer, Arc::clone(&clock)).await?;
        Ok(Self {
            dir,
            _start_reserve: AbortOnDropHandle::new(tokio::spawn(reserve)),
            machine,
            files,
            clock,
            catalogue,
            cluster,
            keyring,
        })
    }

    /// Leaves the cluster, makes all state durable and closes the catalogue.
    pub(super) async fn close(self) {
        member::leave(self.cluster, &self.catalogue).await;
        self.catalogue.shutdown().await;
        tracing::info!(data_dir = %self.dir.path().display(), "stopped");
    }
}
