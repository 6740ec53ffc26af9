//! Parts of the state that the admin APIs of all nodes use: of a node with an engine and of one that only
//! forwards requests.

use super::{Admin, ApiError};
use arc_swap::ArcSwap;
use axum::extract::FromRef;
use http::StatusCode;
use mlgw_api::BackupStatus;
use mlgw_auth::AuthRules;
use mlgw_common::Clock;
use mlgw_config::LoadedConfig;
use mlgw_credentials::Keyring;
use mlgw_metadata::Catalogue;
use mlgw_node::ClusterNode;
use mlgw_segments::hot::HotTier;
use mlgw_telemetry::audit::AuditLog;
use parking_lot::Mutex;
use std::sync::Arc;

/// State of the newest backup, shared with the task that makes it.
pub type Backups = Arc<Mutex<BackupStatus>>;

/// What signatures are verified with, where changes are recorded, the cluster, and what backups are made of.
/// Clones share the parts.
#[derive(Clone)]
pub(super) struct AdminContext {
    pub(super) keyring: Keyring,
    pub(super) rules: AuthRules,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) audit: Arc<AuditLog>,
    pub(super) cluster: Option<ClusterNode>,
    /// The segments; `None` on a gateway.
    pub(super) segments: Option<HotTier>,
    pub(super) catalogue: Catalogue,
    pub(super) loaded: Arc<ArcSwap<LoadedConfig>>,
    pub(super) backups: Backups,
}

impl FromRef<Arc<Admin>> for AdminContext {
    fn from_ref(admin: &Arc<Admin>) -> Self {
        Self {
            keyring: admin.keyring.clone(),
            rules: admin.rules.clone(),
            clock: Arc::clone(&admin.clock),
            audit: Arc::clone(&admin.audit),
            cluster: admin.cluster.clone(),
            segments: Some(admin.stored.tiers.hot.clone()),
            catalogue: admin.stored.catalogue.clone(),
            loaded: Arc::clone(&admin.loaded),
            backups: Arc::clone(&admin.backups),
        }
    }
}

impl AdminContext {
    /// Returns the node of the cluster.
    ///
    /// # Errors
    /// If the server is not in a cluster.
    pub(super) fn cluster(&self) -> Result<&ClusterNode, ApiError> {
        self.cluster.as_ref().ok_or_else(|| {
            let message = "This server is not in a cluster. Stop it, and make it the first node of one with \
                           `mlgw cluster init`.";
            ApiError::new(StatusCode::NOT_FOUND, "NotClustered", message)
        })
    }

    /// Returns the segments of this node.
    ///
    /// # Errors
    /// If it is a gateway.
    pub(super) fn segments(&self) -> Result<&HotTier, ApiError> {
        self.segments.as_ref().ok_or_else(|| {
            let message = "This node stores no segments: send the request to the storage node with the disk.";
            ApiError::new(StatusCode::NOT_FOUND, "NoSuchDisk", message)
        })
    }
}
