//! `/v1/status`: the status of the server in one document.

use super::Admin;
use super::cluster::cluster_findings;
use super::health::{findings, upstream_findings};
use super::words::write_durability;
use axum::Json;
use axum::extract::State;
use mlgw_api::{
    CatalogueStatus, Health, JobStatus, OperationStatus, ProcessStatus, RecentStatus, S3Status, ServerState,
    Shortage, Status, SyncStatus, TierStatus,
};
use mlgw_common::histogram::Durations;
use mlgw_common::{SegmentTier, Tier};
use mlgw_objects::ResourceShortage as Kind;
use mlgw_telemetry::OperationTotals;
use mlgw_telemetry::process::ProcessUsage;
use mlgw_telemetry::recent::{CounterGrowth, CounterSnapshot};
use mlgw_wire::error::S3Error;
use mlgw_wire::operation::Operation;
use std::sync::Arc;

/// Converts the totals of an operation to their API type.
fn operation_status(operation: Operation, done: &OperationTotals) -> OperationStatus {
    OperationStatus {
        operation: operation.name().to_owned(),
        requests: done.requests,
        errors: done.errors,
        refused: done.refused,
        bytes_in: done.bytes_in,
        bytes_out: done.bytes_out,
        p50_seconds: quantile(&done.duration, 0.5),
        p99_seconds: quantile(&done.duration, 0.99),
        duration_buckets: done.duration.buckets.to_vec(),
    }
}

fn quantile(durations: &Durations, quantile: f64) -> Option<f64> {
    durations.quantile(quantile).map(|duration| duration.as_secs_f64())
}

/// Converts the activity of the last minute to its API type.
fn recent_status(growth: &CounterGrowth) -> RecentStatus {
    let operations = growth.totals.iter().map(|(operation, done)| operation_status(*operation, done));
    let throttled = Kind::ALL.iter().zip(growth.shortages);
    let throttled = throttled.map(|(kind, count)| Shortage { reason: kind.name().to_owned(), count });
    RecentStatus {
        seconds: (growth.over.as_secs_f64() * 10.0).round() / 10.0,
        operations: operations.collect(),
        throttled: throttled.collect(),
        syncs: growth.syncs.count(),
        sync_p99_seconds: quantile(&growth.syncs, 0.99),
    }
}

fn process_status(process: ProcessUsage) -> ProcessStatus {
    let ProcessUsage { cpu_seconds, resident_bytes, open_files, open_files_max } = process;
    ProcessStatus { cpu_seconds, resident_bytes, open_files, open_files_max }
}

pub(super) async fn show(State(admin): State<Arc<Admin>>) -> Result<Json<Status>, super::ApiError> {
    // Counting the contents of buckets reads the catalogue, which would block an async worker thread too
    // long.
    let status = tokio::task::spawn_blocking(move || admin.status()).await;
    let status = status.map_err(S3Error::internal)?;
    Ok(Json(status.map_err(S3Error::from)?))
}

impl Admin {
    /// Returns the current counters.
    #[must_use]
    pub fn sample(&self) -> CounterSnapshot {
        let mut syncs = self.stored.catalogue.metrics().log_syncs;
        self.stored.tiers.hot.metrics().syncs.iter().for_each(|(_, durations)| syncs.add(durations));
        CounterSnapshot::take(&self.metrics, syncs)
    }

    fn status(&self) -> Result<Status, mlgw_metadata::ReadError> {
        let loaded = self.loaded.load();
        let config = &loaded.config;
        let age_ms = self.clock.now().as_millis().saturating_sub(self.started.as_millis());
        let mut status = Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: self.node.clone(),
            state: if self.is_ready() { ServerState::Ready } else { ServerState::Draining },
            health: Health::Ok,
            findings: Vec::new(),
            started: self.started.to_string(),
            uptime_seconds: u64::try_from(age_ms / 1000).unwrap_or(0),
            data_dir: config.data_dir.display().to_string(),
            durability: write_durability(config.durability),
            s3: self.s3_status(),
            recent: recent_status(&self.recent.growth_until(&self.sample())),
            catalogue: self.catalogue_status(),
            tiers: self.tier_statuses()?,
            syncs: self.sync_status(),
            jobs: vec![JobStatus {
                job: "release".to_owned(),
                waiting: self.stored.catalogue.metrics().releases_waiting,
            }],
            policy: self.policy_status(),
            process: process_status(ProcessUsage::now()),
        };
        status.findings = findings(&status);
        status.findings.extend(upstream_findings(&self.upstreams));
        if let Some(cluster) = &self.cluster {
            status.findings.extend(cluster_findings(&cluster.status(), self.clock.now()));
        }
        status.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        status.health = status.findings.first().map_or(Health::Ok, |worst| worst.severity);
        Ok(status)
    }

    fn s3_status(&self) -> S3Status {
        let done = self.metrics.totals();
        S3Status {
            endpoint: self.endpoint.clone(),
            connections: u64::try_from(self.metrics.open_connections()).unwrap_or(0),
            connections_limit: self.connections_max,
            inflight_requests: u64::try_from(self.metrics.inflight_requests()).unwrap_or(0),
            operations: done.iter().map(|(operation, done)| operation_status(*operation, done)).collect(),
        }
    }

    fn catalogue_status(&self) -> CatalogueStatus {
        let figures = self.stored.catalogue.metrics();
        CatalogueStatus {
            buckets: self.stored.catalogue.buckets(None, None, usize::MAX).len() as u64,
            access_keys: self.keyring.count() as u64,
            entries_applied: figures.entries_applied,
            commands_applied: figures.commands_applied,
            commands_rejected: figures.commands_rejected,
            queued_commands: figures.queued,
            log_bytes: figures.log_bytes,
            log_bytes_max: self.loaded.load().config.catalogue_log_bytes_max(&self.machine),
            snapshots: figures.snapshots,
        }
    }

    fn tier_statuses(&self) -> Result<Vec<TierStatus>, mlgw_metadata::ReadError> {
        let mut tiers = vec![self.memory_status(), self.hot_status()?];
        if self.has_cold_tier() {
            tiers.push(self.cold_status());
        }
        if self.has_upstreams() {
            tiers.push(self.upstream_status()?);
        }
        Ok(tiers)
    }

    fn upstream_status(&self) -> Result<TierStatus, mlgw_metadata::ReadError> {
        Ok(TierStatus {
            tier: Tier::Upstream,
            objects: 0,
            capacity_bytes: 0,
            used_bytes: self.upstream_bytes()?,
            room_bytes: 0,
            garbage_bytes: 0,
            quarantined_blocks: 0,
        })
    }

    /// Returns the bytes of segments in upstreams.
    pub(super) fn upstream_bytes(&self) -> Result<u64, mlgw_metadata::ReadError> {
        let segments = self.stored.catalogue.segments()?;
        let node = self.stored.catalogue.node();
        let there = segments.iter().filter(|segment| segment.tier_for(node) == Ok(SegmentTier::Upstream));
        Ok(there.map(|segment| segment.length).sum())
    }

    fn cold_status(&self) -> TierStatus {
        let figures = self.stored.tiers.hot.metrics();
        TierStatus {
            tier: Tier::Cold,
            objects: 0,
            capacity_bytes: figures.cold_used_bytes + figures.cold_room_bytes,
            used_bytes: figures.cold_used_bytes,
            room_bytes: figures.cold_room_bytes,
            garbage_bytes: 0,
            quarantined_blocks: 0,
        }
    }

    fn memory_status(&self) -> TierStatus {
        let figures = self.stored.tiers.memory.metrics();
        TierStatus {
            tier: Tier::Memory,
            objects: figures.chunks,
            capacity_bytes: figures.limit_bytes,
            used_bytes: figures.used_bytes,
            room_bytes: figures.limit_bytes.saturating_sub(figures.used_bytes),
            garbage_bytes: 0,
            quarantined_blocks: 0,
        }
    }

    fn hot_status(&self) -> Result<TierStatus, mlgw_metadata::ReadError> {
        let figures = self.stored.tiers.hot.metrics();
        Ok(TierStatus {
            tier: Tier::Hot,
            objects: self.bucket_usages()?.iter().map(|(_, usage)| usage.objects).sum(),
            capacity_bytes: self.loaded.load().config.hot_capacity_bytes(&self.machine),
            used_bytes: figures.used_bytes,
            room_bytes: figures.room_bytes,
            garbage_bytes: self.garbage_bytes()?,
            quarantined_blocks: self.scrub.quarantined_blocks(),
        })
    }

    fn sync_status(&self) -> Vec<SyncStatus> {
        let log = ("log", self.stored.catalogue.metrics().log_syncs);
        let all = std::iter::once(log).chain(self.stored.tiers.hot.metrics().syncs);
        let status = all.map(|(file, durations)| SyncStatus {
            file: file.to_owned(),
            count: durations.count(),
            p50_seconds: quantile(&durations, 0.5),
            p99_seconds: quantile(&durations, 0.99),
        });
        status.collect()
    }
}
