//! Status of one node: on every node of a cluster alike.
//!
//! The duty node adds what it has for the whole cluster ([`super::status`]). Values are read from their
//! owners at each request; nothing is stored here.

use super::cluster::{cluster_findings, in_sentence};
use super::disks::disk_findings;
use super::health::findings;
use super::node_figures::NodeFigures;
use super::segment_rows::SegmentRows;
use super::storage_figures::StorageFigures;
use super::words::write_durability;
use mlgw_api::{
    CatalogueStatus, Health, HealthFinding, JobStatus, OperationStatus, ProcessStatus, RecentStatus,
    S3Status, ServerState, Shortage, Status, SyncStatus, TierStatus,
};
use mlgw_common::Tier;
use mlgw_common::histogram::Durations;
use mlgw_metadata::ReadError;
use mlgw_node::ClusterStatus;
use mlgw_objects::ResourceShortage as Kind;
use mlgw_telemetry::OperationTotals;
use mlgw_telemetry::process::ProcessUsage;
use mlgw_telemetry::recent::{CounterGrowth, CounterSnapshot};
use mlgw_wire::operation::Operation;

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

/// Returns the status with its findings, those about it and `more`, worst first.
pub(super) fn with_findings(mut status: Status, more: Vec<HealthFinding>) -> Status {
    status.findings = findings(&status);
    status.findings.extend(more);
    status.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    status.health = status.findings.first().map_or(Health::Ok, |worst| worst.severity);
    status
}

/// Returns the description of the duty node for another node; `None` on the duty node itself.
pub(super) fn duty_node_elsewhere(cluster: &ClusterStatus) -> Option<String> {
    let duty = cluster.nodes.iter().find(|node| node.is_duty && !node.is_own);
    duty.map(in_sentence)
}

impl NodeFigures<'_> {
    /// Returns the current counters.
    pub(super) fn sample(&self) -> CounterSnapshot {
        let mut syncs = self.catalogue.metrics().log_syncs;
        if let Some(storage) = &self.storage {
            storage.tiers.hot.metrics().syncs.iter().for_each(|(_, durations)| syncs.add(durations));
        }
        CounterSnapshot::take(self.metrics, syncs)
    }

    /// Returns the status of the node, without a policy and without findings.
    ///
    /// # Errors
    /// If the catalogue cannot be read.
    pub(super) fn status(&self) -> Result<Status, ReadError> {
        let config = &self.loaded.config;
        let age_ms = self.now.as_millis().saturating_sub(self.started.as_millis());
        Ok(Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: self.node.to_owned(),
            state: if self.is_ready { ServerState::Ready } else { ServerState::Draining },
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
                waiting: self.catalogue.metrics().releases_waiting,
            }],
            policy: None,
            process: process_status(ProcessUsage::now()),
            duty_node: self.cluster.and_then(|cluster| duty_node_elsewhere(&cluster.status())),
            nodes: Vec::new(),
        })
    }

    /// Returns the findings about the cluster, as this node knows it, and about the disks of this node.
    pub(super) fn cluster_findings(&self) -> Vec<HealthFinding> {
        let cluster = self.cluster.map(|cluster| cluster_findings(&cluster.status(), self.now));
        let disks = self.storage.as_ref().map(|storage| disk_findings(&storage.tiers.hot));
        disks.into_iter().chain(cluster).flatten().collect()
    }

    fn s3_status(&self) -> S3Status {
        let done = self.metrics.totals();
        S3Status {
            endpoint: self.endpoint.to_owned(),
            connections: u64::try_from(self.metrics.open_connections()).unwrap_or(0),
            connections_limit: self.connections_max,
            inflight_requests: u64::try_from(self.metrics.inflight_requests()).unwrap_or(0),
            operations: done.iter().map(|(operation, done)| operation_status(*operation, done)).collect(),
        }
    }

    fn catalogue_status(&self) -> CatalogueStatus {
        let figures = self.catalogue.metrics();
        CatalogueStatus {
            buckets: self.catalogue.buckets(None, None, usize::MAX).len() as u64,
            access_keys: self.keyring.count() as u64,
            entries_applied: figures.entries_applied,
            commands_applied: figures.commands_applied,
            commands_rejected: figures.commands_rejected,
            queued_commands: figures.queued,
            log_bytes: figures.log_bytes,
            log_bytes_max: self.log_bytes_max(),
            snapshots: figures.snapshots,
        }
    }

    /// Returns the tiers; none on a gateway.
    fn tier_statuses(&self) -> Result<Vec<TierStatus>, ReadError> {
        let Some(storage) = &self.storage else { return Ok(Vec::new()) };
        let rows = self.segment_rows()?;
        let mut tiers = vec![storage.memory_status(), self.hot_status(storage, &rows)?];
        if !self.loaded.config.cold.dirs.is_empty() {
            tiers.push(storage.cold_status());
        }
        if !storage.upstreams.is_empty() {
            tiers.push(self.upstream_status(&rows));
        }
        Ok(tiers)
    }

    fn hot_status(&self, storage: &StorageFigures<'_>, rows: &SegmentRows) -> Result<TierStatus, ReadError> {
        let figures = storage.tiers.hot.metrics();
        Ok(TierStatus {
            tier: Tier::Hot,
            objects: self.objects_here()?,
            capacity_bytes: self.hot_capacity_bytes(),
            used_bytes: figures.used_bytes,
            room_bytes: figures.room_bytes,
            garbage_bytes: self.garbage_bytes(rows),
            quarantined_blocks: storage.scrub.quarantined_blocks(),
        })
    }

    fn upstream_status(&self, rows: &SegmentRows) -> TierStatus {
        TierStatus {
            tier: Tier::Upstream,
            objects: 0,
            capacity_bytes: 0,
            used_bytes: rows.upstream_bytes(self.catalogue.node()),
            room_bytes: 0,
            garbage_bytes: 0,
            quarantined_blocks: 0,
        }
    }

    fn sync_status(&self) -> Vec<SyncStatus> {
        let log = ("log", self.catalogue.metrics().log_syncs);
        let hot = self.storage.map(|storage| storage.tiers.hot.metrics()).unwrap_or_default();
        let status = std::iter::once(log).chain(hot.syncs).map(|(file, durations)| SyncStatus {
            file: file.to_owned(),
            count: durations.count(),
            p50_seconds: quantile(&durations, 0.5),
            p99_seconds: quantile(&durations, 0.99),
        });
        status.collect()
    }
}

impl StorageFigures<'_> {
    fn memory_status(&self) -> TierStatus {
        let figures = self.tiers.memory.metrics();
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

    fn cold_status(&self) -> TierStatus {
        let figures = self.tiers.hot.metrics();
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
}
