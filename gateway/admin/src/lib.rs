//! Admin API: the HTTP interface through which operators and scripts administer the server.
//!
//! Everything under `/v1` needs a SigV4 signature (service `mlgw`) by an unrestricted key with the role
//! admin; probes and metrics need none. Each call that changes something runs to completion even if its
//! client disconnects, and appends one line to the audit log, synced before the response. docs/openapi.json
//! describes the whole API and is served at `/v1/openapi.json`; it is generated from the table of routes and
//! from the types of mlgw-api.

mod bindings;
mod buckets;
mod change;
mod cluster;
mod cluster_authority;
mod cluster_leaving;
mod cluster_rebalance;
mod connection_figures;
mod context;
mod dataset_figures;
mod datasets;
mod decisions;
mod dirty;
mod disks;
mod drain;
mod error;
mod extract;
mod figures;
mod forwarded;
mod health;
mod jobs;
mod keys;
mod member;
mod migrations;
mod node_figures;
mod node_parts;
mod node_status;
mod objects;
mod openapi;
mod policy;
mod policy_explain;
mod policy_figures;
mod policy_outcomes;
mod policy_plan;
mod policy_trials;
mod probes;
mod process_figures;
mod remote_backed_object;
mod replica_figures;
pub mod routes;
mod segment_rows;
pub mod serve;
mod settings;
mod signed;
mod status;
mod storage_figures;
mod store;
mod tiers;
mod traces;
mod upstreams;
mod whole_status;
mod words;
mod workload_plans;
mod workloads;

pub use context::Backups;
pub use error::ApiError;
pub use member::{MemberAdmin, MemberStorage, member_node_router, member_router};
pub use policy_plan::PolicyPlans;

use arc_swap::ArcSwap;
use mlgw_api::SERVICE;
use mlgw_auth::AuthRules;
use mlgw_background::access_plans::AccessPlans;
use mlgw_background::access_traces::AccessTraces;
use mlgw_background::jobs::Jobs;
use mlgw_background::reconciler::RetentionState;
use mlgw_background::stored_objects::StoredObjects;
use mlgw_cache::policy_driver::PolicyDriver;
use mlgw_cache::writeback::WriteBack;
use mlgw_common::{Clock, Timestamp};
use mlgw_config::{LoadedConfig, MachineSizes};
use mlgw_credentials::Keyring;
use mlgw_node::ClusterNode;
use mlgw_objects::compressor::Compressor;
use mlgw_policy_runtime::Policies;
use mlgw_segments::decisions::Decisions;
use mlgw_segments::hot::{Scrub, Upstreams};
use mlgw_telemetry::GatewayMetrics;
use mlgw_telemetry::audit::AuditLog;
use mlgw_telemetry::recent::RecentCounters;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::sync::Mutex;

/// Shared state of the admin API handlers.
pub struct Admin {
    /// Objects and the location of their bytes.
    pub stored: StoredObjects,
    /// Dirty writes of write-back buckets, which have not reached their origin yet.
    pub writeback: WriteBack,
    /// Upstreams by name.
    pub upstreams: Upstreams,
    /// Log of moves, retentions and evictions, with their reasons.
    pub decisions: Decisions,
    /// The running policy.
    pub policies: Arc<Policies>,
    /// Compressor of stored objects, where rules demand it.
    pub compressor: Arc<Compressor>,
    /// Background jobs on datasets.
    pub jobs: Arc<Jobs>,
    /// Access keys.
    pub keyring: Keyring,
    /// Maximum number of open S3 connections.
    pub connections_max: u64,
    /// Metrics of the server.
    pub metrics: Arc<GatewayMetrics>,
    /// Metrics of the last minute.
    pub recent: Arc<RecentCounters>,
    /// Audit log of all changes.
    pub audit: Arc<AuditLog>,
    /// Clock.
    pub clock: Arc<dyn Clock>,
    /// Configuration and the source of each setting.
    pub loaded: Arc<ArcSwap<LoadedConfig>>,
    /// Resources of the machine.
    pub machine: MachineSizes,
    /// Name of this node.
    pub node: String,
    /// URL of the S3 endpoint.
    pub endpoint: String,
    /// Start time of the server.
    pub started: Timestamp,
    /// Rules of signature verification.
    pub rules: AuthRules,
    /// True while the server accepts requests; reported by `/readyz`.
    pub ready: Arc<AtomicBool>,
    /// State of the newest backup.
    pub backups: Backups,
    /// Scrub, which verifies stored data.
    pub scrub: Arc<Scrub>,
    /// Pending deletions, and the actions of rules on objects at rest.
    pub retention: Arc<RetentionState>,
    /// Dry runs of other policies that are in progress.
    pub policy_plans: PolicyPlans,
    /// Driver of the policy engine.
    pub policy_driver: PolicyDriver,
    /// Recorder of the accesses that the policy engine receives.
    pub traces: AccessTraces,
    /// Access plans: reads that clients announce in advance.
    pub plans: AccessPlans,
    /// Held while a simulation runs: at most one runs at a time.
    pub simulating: Mutex<()>,
    /// This node of the cluster; `None` for a server without peers.
    pub cluster: Option<ClusterNode>,
    /// True for a server that was recovered from a node of a cluster and has not taken over.
    pub is_recovered: bool,
}

impl Admin {
    /// Returns the rules of signature verification for the admin API.
    #[must_use]
    pub fn rules() -> AuthRules {
        let mut rules = AuthRules::new(SERVICE);
        rules.sigv2 = false;
        rules
    }

    /// Returns true if the server accepts requests.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready.load(Relaxed)
    }
}

#[cfg(test)]
mod tests;
