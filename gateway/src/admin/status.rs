//! `/v1/status`: how the server is, in one document.

use super::Admin;
use super::health::{Finding, Health, findings, of_upstreams};
use super::policy_figures::PolicyStatus;
use super::tiers::UPSTREAM;
use crate::metrics::Done;
use crate::metrics::process::Process;
use crate::metrics::recent::{Growth, Sample};
use crate::s3::error::S3Error;
use crate::s3::operation::Operation;
use axum::Json;
use axum::extract::State;
use mlgw_common::histogram::Durations;
use mlgw_objects::Shortage as Kind;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How the server is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the binary.
    pub version: String,
    /// This node's name.
    pub node: String,
    /// `ready` or `draining`.
    pub state: String,
    /// The severity of the worst finding.
    pub health: Health,
    /// What is wrong and what to do about it, the worst first.
    pub findings: Vec<Finding>,
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
    /// What happened in the last minute.
    pub recent: RecentStatus,
    /// The catalogue.
    pub catalogue: CatalogueStatus,
    /// The tiers.
    pub tiers: Vec<TierStatus>,
    /// Syncs since the start, by kind of file.
    pub syncs: Vec<SyncStatus>,
    /// Background jobs.
    pub jobs: Vec<JobStatus>,
    /// The running policy.
    pub policy: PolicyStatus,
    /// What the process takes of the machine.
    pub process: ProcessStatus,
}

/// The S3 endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct S3Status {
    /// Its URL.
    pub endpoint: String,
    /// Open connections.
    pub connections: u64,
    /// Connections that may be open.
    pub connections_limit: u64,
    /// Requests in flight.
    pub inflight_requests: u64,
    /// What was done since the start, by operation.
    pub operations: Vec<OperationStatus>,
}

/// What was done of one operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperationStatus {
    /// Its name.
    pub operation: String,
    /// Requests answered or given up.
    pub requests: u64,
    /// Those that failed because of the server.
    pub errors: u64,
    /// Those refused because the server was short of something.
    pub refused: u64,
    /// Bytes of bodies that came in.
    pub bytes_in: u64,
    /// Bytes of bodies that went out.
    pub bytes_out: u64,
    /// Half of them took no longer, from head to last byte.
    pub p50_seconds: Option<f64>,
    /// 99 in a hundred took no longer.
    pub p99_seconds: Option<f64>,
    /// Their durations: how many fell under each bound of the duration metrics but not under the one
    /// before, and above the last.
    pub duration_buckets: Vec<u64>,
}

impl OperationStatus {
    fn new(operation: Operation, done: &Done) -> Self {
        Self {
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
}

fn quantile(durations: &Durations, quantile: f64) -> Option<f64> {
    durations.quantile(quantile).map(|duration| duration.as_secs_f64())
}

/// What happened in the last minute, or since the start if that is less.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecentStatus {
    /// How long that is.
    pub seconds: f64,
    /// What was done, by operation.
    pub operations: Vec<OperationStatus>,
    /// What was short.
    pub throttled: Vec<Shortage>,
    /// Syncs of all files.
    pub syncs: u64,
    /// 99 in a hundred syncs took no longer.
    pub sync_p99_seconds: Option<f64>,
}

impl RecentStatus {
    fn new(growth: &Growth) -> Self {
        let operations = growth.done.iter().map(|(operation, done)| OperationStatus::new(*operation, done));
        let throttled = Kind::ALL.iter().zip(growth.shortages);
        Self {
            seconds: (growth.over.as_secs_f64() * 10.0).round() / 10.0,
            operations: operations.collect(),
            throttled: throttled
                .map(|(kind, count)| Shortage { reason: kind.name().to_owned(), count })
                .collect(),
            syncs: growth.syncs.count(),
            sync_p99_seconds: quantile(&growth.syncs, 0.99),
        }
    }
}

/// How often a client was made to wait or refused because something was short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shortage {
    /// What was short.
    pub reason: String,
    /// How often.
    pub count: u64,
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
    /// Commands of those entries that changed something.
    pub commands_applied: u64,
    /// Commands that the state did not allow.
    pub commands_rejected: u64,
    /// Commands that wait to be proposed.
    pub queued_commands: u64,
    /// Bytes of log that are not purged yet.
    pub log_bytes: u64,
    /// Bytes of log after which it is purged.
    pub log_bytes_max: u64,
    /// Times the state was flushed and the log purged since the start.
    pub snapshots: u64,
}

/// A tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierStatus {
    /// Its name.
    pub tier: String,
    /// Objects whose bytes it holds; the memory tier counts a long object's stored pieces.
    pub objects: u64,
    /// Bytes it may hold.
    pub capacity_bytes: u64,
    /// Bytes that it holds.
    pub used_bytes: u64,
    /// Bytes it can still take.
    pub room_bytes: u64,
    /// Bytes of its segments that nothing refers to.
    pub garbage_bytes: u64,
    /// Stored blocks of objects that are known to be bad.
    pub quarantined_blocks: u64,
}

/// Syncs of one kind of file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SyncStatus {
    /// Which kind.
    pub file: String,
    /// How many.
    pub count: u64,
    /// Half of them took no longer.
    pub p50_seconds: Option<f64>,
    /// 99 in a hundred took no longer.
    pub p99_seconds: Option<f64>,
}

/// A background job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Its name.
    pub job: String,
    /// What it has still to do.
    pub waiting: u64,
}

/// What the process takes of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// CPU time since the start, user and system.
    pub cpu_seconds: f64,
    /// Memory in RAM.
    pub resident_bytes: u64,
    /// Open files and connections.
    pub open_files: u64,
    /// How many it may have open.
    pub open_files_max: u64,
}

impl From<Process> for ProcessStatus {
    fn from(process: Process) -> Self {
        let Process { cpu_seconds, resident_bytes, open_files, open_files_max } = process;
        Self { cpu_seconds, resident_bytes, open_files, open_files_max }
    }
}

pub(super) async fn show(State(admin): State<Arc<Admin>>) -> Result<Json<Status>, super::ApiError> {
    // Counting what buckets hold reads the catalogue, too long for a thread that answers others.
    let status = tokio::task::spawn_blocking(move || admin.status()).await;
    let status = status.map_err(S3Error::internal)?;
    Ok(Json(status.map_err(S3Error::from)?))
}

impl TierStatus {
    /// Whether what it holds may be the only copy: such a tier must not be full, a tier of copies always is.
    #[must_use]
    pub fn holds_the_truth(&self) -> bool {
        self.tier != "memory"
    }

    /// Whether it can be full. The upstream is an object store: it takes what it is given.
    #[must_use]
    pub fn has_an_end(&self) -> bool {
        self.tier != UPSTREAM
    }
}

impl Admin {
    /// The counters of now.
    #[must_use]
    pub fn sample(&self) -> Sample {
        let mut syncs = self.catalogue.metrics().log_syncs;
        self.tiers.hot.metrics().syncs.iter().for_each(|(_, durations)| syncs.add(durations));
        Sample::take(&self.metrics, syncs)
    }

    fn status(&self) -> Result<Status, mlgw_metadata::ReadError> {
        let loaded = self.loaded.load();
        let config = &loaded.config;
        let age_ms = self.clock.now().as_millis().saturating_sub(self.started.as_millis());
        let mut status = Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: self.node.clone(),
            state: if self.is_ready() { "ready" } else { "draining" }.to_owned(),
            health: Health::Ok,
            findings: Vec::new(),
            started: self.started.to_string(),
            uptime_seconds: u64::try_from(age_ms / 1000).unwrap_or(0),
            data_dir: config.data_dir.display().to_string(),
            durability: crate::config::Value::to_text(&config.durability),
            s3: self.s3_status(),
            recent: RecentStatus::new(&self.recent.until(&self.sample())),
            catalogue: self.catalogue_status(),
            tiers: self.tier_statuses()?,
            syncs: self.sync_status(),
            jobs: vec![JobStatus {
                job: "release".to_owned(),
                waiting: self.catalogue.metrics().releases_waiting,
            }],
            policy: self.policy_status(),
            process: Process::now().into(),
        };
        status.findings = findings(&status);
        status.findings.extend(of_upstreams(&self.upstreams));
        status.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        status.health = status.findings.first().map_or(Health::Ok, |worst| worst.severity);
        Ok(status)
    }

    fn s3_status(&self) -> S3Status {
        let done = self.metrics.done();
        S3Status {
            endpoint: self.endpoint.clone(),
            connections: u64::try_from(self.metrics.open_connections()).unwrap_or(0),
            connections_limit: self.connections_max,
            inflight_requests: u64::try_from(self.metrics.inflight_requests()).unwrap_or(0),
            operations: done.iter().map(|(operation, done)| OperationStatus::new(*operation, done)).collect(),
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
            tier: UPSTREAM.to_owned(),
            objects: 0,
            capacity_bytes: 0,
            used_bytes: self.upstream_bytes()?,
            room_bytes: 0,
            garbage_bytes: 0,
            quarantined_blocks: 0,
        })
    }

    /// Bytes of segments in upstreams.
    pub(super) fn upstream_bytes(&self) -> Result<u64, mlgw_metadata::ReadError> {
        let segments = self.catalogue.segments()?;
        let there =
            segments.iter().filter(|segment| segment.summary().tier == mlgw_tiering::hot::UPSTREAM_TIER);
        Ok(there.map(|segment| segment.length).sum())
    }

    fn cold_status(&self) -> TierStatus {
        let figures = self.tiers.hot.metrics();
        TierStatus {
            tier: "cold".to_owned(),
            objects: 0,
            capacity_bytes: figures.cold_used_bytes + figures.cold_room_bytes,
            used_bytes: figures.cold_used_bytes,
            room_bytes: figures.cold_room_bytes,
            garbage_bytes: 0,
            quarantined_blocks: 0,
        }
    }

    fn memory_status(&self) -> TierStatus {
        let figures = self.tiers.memory.metrics();
        TierStatus {
            tier: "memory".to_owned(),
            objects: figures.chunks,
            capacity_bytes: figures.limit_bytes,
            used_bytes: figures.used_bytes,
            room_bytes: figures.limit_bytes.saturating_sub(figures.used_bytes),
            garbage_bytes: 0,
            quarantined_blocks: 0,
        }
    }

    fn hot_status(&self) -> Result<TierStatus, mlgw_metadata::ReadError> {
        let figures = self.tiers.hot.metrics();
        Ok(TierStatus {
            tier: "hot".to_owned(),
            objects: self.bucket_usages()?.iter().map(|(_, usage)| usage.objects).sum(),
            capacity_bytes: self.loaded.load().config.hot_capacity_bytes(&self.machine),
            used_bytes: figures.used_bytes,
            room_bytes: figures.room_bytes,
            garbage_bytes: self.garbage_bytes()?,
            quarantined_blocks: self.scrub.quarantined(),
        })
    }

    fn sync_status(&self) -> Vec<SyncStatus> {
        let log = ("log", self.catalogue.metrics().log_syncs);
        let all = std::iter::once(log).chain(self.tiers.hot.metrics().syncs);
        let status = all.map(|(file, durations)| SyncStatus {
            file: file.to_owned(),
            count: durations.count(),
            p50_seconds: quantile(&durations, 0.5),
            p99_seconds: quantile(&durations, 0.99),
        });
        status.collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{
        CatalogueStatus, Health, JobStatus, OperationStatus, PolicyStatus, ProcessStatus, RecentStatus,
        S3Status, Shortage, Status, SyncStatus, TierStatus,
    };
    use mlgw_common::histogram::BUCKETS;
    use mlgw_objects::Shortage as Kind;

    pub(crate) fn operation(name: &str, requests: u64) -> OperationStatus {
        let mut duration_buckets = vec![0; BUCKETS];
        duration_buckets[1] = requests;
        OperationStatus {
            operation: name.into(),
            requests,
            errors: 0,
            refused: 0,
            bytes_in: 0,
            bytes_out: requests * 4096,
            p50_seconds: Some(0.000_075),
            p99_seconds: Some(0.000_1),
            duration_buckets,
        }
    }

    /// The status of a server with nothing wrong.
    pub(crate) fn healthy() -> Status {
        Status {
            version: "0.1.0".into(),
            node: "n".into(),
            state: "ready".into(),
            health: Health::Ok,
            findings: vec![],
            started: "2026-11-20T00:00:00.000Z".into(),
            uptime_seconds: 93_784,
            data_dir: "/data".into(),
            durability: "full".into(),
            s3: S3Status {
                endpoint: "http://127.0.0.1:9000".into(),
                connections: 32,
                connections_limit: 10_000,
                inflight_requests: 3,
                operations: vec![operation("GetObject", 1_000_000)],
            },
            recent: RecentStatus {
                seconds: 60.0,
                operations: vec![operation("GetObject", 60_000)],
                throttled: Kind::ALL.map(|kind| Shortage { reason: kind.name().into(), count: 0 }).to_vec(),
                syncs: 10,
                sync_p99_seconds: Some(0.002),
            },
            catalogue: CatalogueStatus {
                buckets: 2,
                access_keys: 1,
                entries_applied: 5,
                commands_applied: 100,
                commands_rejected: 0,
                queued_commands: 0,
                log_bytes: 1 << 20,
                log_bytes_max: 1 << 28,
                snapshots: 1,
            },
            tiers: vec![TierStatus {
                tier: "hot".into(),
                objects: 1000,
                capacity_bytes: 100 << 30,
                used_bytes: 10 << 30,
                room_bytes: 90 << 30,
                garbage_bytes: 1 << 20,
                quarantined_blocks: 0,
            }],
            syncs: vec![SyncStatus {
                file: "log".into(),
                count: 10,
                p50_seconds: Some(0.001),
                p99_seconds: Some(0.002),
            }],
            jobs: vec![JobStatus { job: "release".into(), waiting: 0 }],
            policy: PolicyStatus {
                version: 3,
                rules_act: 20,
                rules_observe: 4,
                learning: true,
                ..PolicyStatus::default()
            },
            process: ProcessStatus {
                cpu_seconds: 12.5,
                resident_bytes: 72 << 20,
                open_files: 50,
                open_files_max: 1 << 20,
            },
        }
    }
}
