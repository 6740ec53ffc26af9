//! The status of a healthy server, for tests of code that evaluates and shows it. Its values are constant.

use mlgw_api::{
    CatalogueStatus, Health, JobStatus, OperationStatus, PolicyStatus, ProcessStatus, RecentStatus, S3Status,
    ServerState, Shortage, Status, SyncStatus, TierStatus, WriteDurability,
};
use mlgw_common::Tier;
use mlgw_common::histogram::BUCKETS;
use mlgw_objects::ResourceShortage as Kind;

/// Returns the figures of an operation without errors.
#[must_use]
pub fn operation(name: &str, requests: u64) -> OperationStatus {
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

/// Returns the status of a healthy server.
pub fn healthy() -> Status {
    Status {
        version: "0.1.0".into(),
        node: "n".into(),
        state: ServerState::Ready,
        health: Health::Ok,
        findings: vec![],
        started: "2026-11-20T00:00:00.000Z".into(),
        uptime_seconds: 93_784,
        data_dir: "/data".into(),
        durability: WriteDurability::Full,
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
            tier: Tier::Hot,
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
        policy: Some(PolicyStatus {
            version: 3,
            rules_act: 20,
            rules_observe: 4,
            learning: true,
            ..PolicyStatus::default()
        }),
        process: ProcessStatus {
            cpu_seconds: 12.5,
            resident_bytes: 72 << 20,
            open_files: 50,
            open_files_max: 1 << 20,
        },
        duty_node: None,
        nodes: vec![],
    }
}
