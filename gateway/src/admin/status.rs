//! `/v1/status` and the figures of catalogue and tiers for `/metrics`.

use super::Admin;
use crate::metrics::exposition::{Family, Value};
use crate::metrics::histogram::{Snapshot, seconds_of_micros};
use crate::metrics::table::{
    CORRUPT_BLOCKS, QUEUE_WAIT, RAFT_COMMANDS, RAFT_ENTRIES, RAFT_LOG, RAFT_QUEUED, RAFT_SNAPSHOTS, SYNC,
    SYNC_DURATION, TIER_LIMIT, TIER_READS, TIER_USED,
};
use axum::Json;
use axum::extract::State;
use mlgw_tiering::hot::{DURATION_BOUNDS_MICROS, Durations};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How the server is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the binary.
    pub version: String,
    /// This node's name.
    pub node: String,
    /// `ready` or `draining`.
    pub state: String,
    /// When it started.
    pub started: String,
    /// Seconds since then.
    pub uptime_seconds: u64,
    /// Its data directory.
    pub data_dir: String,
    /// What an answer of success promises: `full` or `os`.
    pub durability: String,
    /// The S3 endpoint.
    pub s3: S3Status,
    /// The catalogue.
    pub catalogue: CatalogueStatus,
    /// The hot tier.
    pub hot: HotStatus,
}

/// The S3 endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct S3Status {
    /// Its URL.
    pub endpoint: String,
    /// Open connections.
    pub connections: u64,
    /// Requests in flight.
    pub inflight_requests: u64,
}

/// The catalogue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogueStatus {
    /// Buckets.
    pub buckets: u64,
    /// Access keys, the root's included.
    pub access_keys: u64,
    /// Log entries applied since the start.
    pub entries_applied: u64,
    /// Bytes of log that are not purged yet.
    pub log_bytes: u64,
}

/// The hot tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HotStatus {
    /// Bytes it may hold.
    pub capacity_bytes: u64,
    /// Bytes of its segments.
    pub used_bytes: u64,
    /// Bytes it can still take.
    pub room_bytes: u64,
    /// Stored blocks that did not match their checksum since the start.
    pub corrupt_blocks: u64,
}

pub(super) async fn show(State(admin): State<Arc<Admin>>) -> Json<Status> {
    Json(admin.status())
}

impl Admin {
    fn status(&self) -> Status {
        let loaded = self.loaded.load();
        let config = &loaded.config;
        let catalogue = self.catalogue.metrics();
        let hot = self.hot.metrics();
        let age_ms = self.clock.now().as_millis().saturating_sub(self.started.as_millis());
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: self.node.clone(),
            state: if self.is_ready() { "ready" } else { "draining" }.to_owned(),
            started: self.started.to_string(),
            uptime_seconds: u64::try_from(age_ms / 1000).unwrap_or(0),
            data_dir: config.data_dir.display().to_string(),
            durability: crate::config::Value::to_text(&config.durability),
            s3: S3Status {
                endpoint: self.endpoint.clone(),
                connections: u64::try_from(self.metrics.open_connections()).unwrap_or(0),
                inflight_requests: u64::try_from(self.metrics.inflight_requests()).unwrap_or(0),
            },
            catalogue: CatalogueStatus {
                buckets: self.catalogue.buckets(None, None, usize::MAX).len() as u64,
                access_keys: self.keyring.list().len() as u64,
                entries_applied: catalogue.entries_applied,
                log_bytes: catalogue.log_bytes,
            },
            hot: HotStatus {
                capacity_bytes: config.hot_capacity_bytes(&self.machine),
                used_bytes: hot.used_bytes,
                room_bytes: hot.room_bytes,
                corrupt_blocks: hot.corrupt_blocks,
            },
        }
    }

    /// What the catalogue and the tiers count.
    pub(super) fn engine_families(&self) -> Vec<Family> {
        let catalogue = self.catalogue.metrics();
        let hot = self.hot.metrics();
        let mut syncs = Family::new(SYNC).with(&["log"], Value::Count(catalogue.log_syncs));
        let mut sync_duration = Family::new(SYNC_DURATION);
        for (file, durations) in &hot.syncs {
            syncs.push(&[file], Value::Count(durations.count()));
            sync_duration.push(&[file], Value::Sizes(sizes(durations)));
        }
        let reads = Family::new(TIER_READS)
            .with(&["hot", "cached"], Value::Count(hot.reads_inline))
            .with(&["hot", "disk"], Value::Count(hot.reads_disk))
            .with(&["hot", "error"], Value::Count(hot.read_errors));
        let capacity = self.loaded.load().config.hot_capacity_bytes(&self.machine);
        vec![
            syncs,
            sync_duration,
            Family::new(QUEUE_WAIT).with(&["append"], Value::Sizes(sizes(&hot.queue_wait))),
            Family::single(CORRUPT_BLOCKS, Value::Count(hot.corrupt_blocks)),
            Family::new(TIER_USED).with(&["hot"], level(hot.used_bytes)),
            Family::new(TIER_LIMIT).with(&["hot"], level(capacity)),
            reads,
            Family::single(RAFT_ENTRIES, Value::Count(catalogue.entries_applied)),
            Family::new(RAFT_COMMANDS)
                .with(&["applied"], Value::Count(catalogue.commands_applied))
                .with(&["rejected"], Value::Count(catalogue.commands_rejected)),
            Family::single(RAFT_QUEUED, level(catalogue.queued)),
            Family::single(RAFT_LOG, level(catalogue.log_bytes)),
            Family::single(RAFT_SNAPSHOTS, Value::Count(catalogue.snapshots)),
        ]
    }
}

fn level(value: u64) -> Value {
    Value::Level(i64::try_from(value).unwrap_or(i64::MAX))
}

fn sizes(durations: &Durations) -> Snapshot {
    let bounds = DURATION_BOUNDS_MICROS.iter().map(|&bound| seconds_of_micros(bound)).chain([f64::INFINITY]);
    Snapshot { buckets: bounds.zip(durations.buckets).collect(), sum_seconds: durations.nanos as f64 / 1e9 }
}
