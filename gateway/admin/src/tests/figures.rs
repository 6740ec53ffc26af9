//! Tests of the metrics and the status of a single node: of a server, of a storage node of a cluster that is
//! not the duty node, and of a gateway.

use super::calls::Api;
use super::document::assert_schema_of;
use crate::node_figures::NodeFigures;
use crate::node_status::{duty_node_elsewhere, with_findings};
use crate::replica_figures::node_families;
use http::Method;
use mlgw_api::{Health, HealthFinding, Status};
use mlgw_common::Tier;
use mlgw_telemetry::exposition::{MetricFamily, text};
use mlgw_telemetry::table::{METRICS, MetricKind};
use serde_json::json;
use std::collections::BTreeSet;

/// Beginnings of the names of metrics that are counted once per cluster.
const ONCE: [&str; 7] = [
    "mlgw_bound_",
    "mlgw_bucket_",
    "mlgw_dataset_",
    "mlgw_dirty_",
    "mlgw_job_",
    "mlgw_policy_",
    "mlgw_workload_",
];

/// Metrics that every storage node exposes from its start.
const OF_STORAGE: [&str; 26] = [
    "mlgw_compression_bytes_total",
    "mlgw_compression_chunks_total",
    "mlgw_connections",
    "mlgw_connections_limit",
    "mlgw_corrupt_blocks_total",
    "mlgw_disk_places_taken",
    "mlgw_disk_waiting_requests",
    "mlgw_flash_written_bytes_total",
    "mlgw_freed_bytes_total",
    "mlgw_garbage_bytes",
    "mlgw_process_cpu_seconds_total",
    "mlgw_quarantined_blocks",
    "mlgw_queue_wait_seconds",
    "mlgw_raft_applied_entries_total",
    "mlgw_raft_log_bytes",
    "mlgw_segment_dirs_refused",
    "mlgw_segments_held_back",
    "mlgw_sync_duration_seconds",
    "mlgw_sync_total",
    "mlgw_tier_limit_bytes",
    "mlgw_tier_objects",
    "mlgw_tier_read_bytes_total",
    "mlgw_tier_reads_total",
    "mlgw_tier_room_bytes",
    "mlgw_tier_used_bytes",
    "mlgw_tier_written_bytes_total",
];

/// Metrics that every gateway exposes from its start.
const OF_GATEWAY: [&str; 5] = [
    "mlgw_connections_limit",
    "mlgw_process_resident_bytes",
    "mlgw_queue_wait_seconds",
    "mlgw_raft_log_bytes",
    "mlgw_sync_total",
];

/// Returns the names of the metrics that have a sample. Panics if a metric is exposed twice.
fn exposed(families: Vec<MetricFamily>) -> (BTreeSet<&'static str>, String) {
    let text = text(families).unwrap();
    let types: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE ")).collect();
    let distinct: BTreeSet<&str> = types.iter().copied().collect();
    assert_eq!(distinct.len(), types.len(), "a metric is exposed twice: {types:?}");
    let has_sample = |name: &str, kind: MetricKind| {
        let end = if kind == MetricKind::Histogram { "_count" } else { "" };
        let begins = [format!("{name}{end}{{"), format!("{name}{end} ")];
        text.lines().any(|line| begins.iter().any(|begin| line.starts_with(begin)))
    };
    let exposed = METRICS.iter().filter(|metric| has_sample(metric.name, metric.kind));
    (exposed.map(|metric| metric.name).collect(), text)
}

/// Returns the parts of a server as a storage node that is not the duty node has them.
fn as_storage_node(api: &Api) -> NodeFigures<'_> {
    let mut node = api.admin.figures();
    node.storage.as_mut().unwrap().copies = None;
    node
}

fn is_once(name: &str) -> bool {
    // The queue of bodies to release is that of the node.
    name != "mlgw_job_waiting" && ONCE.iter().any(|begin| name.starts_with(begin))
}

#[tokio::test]
async fn a_storage_node_exposes_everything_that_is_not_counted_once_per_cluster() {
    let api = Api::open().await;
    api.call(Method::POST, "/v1/buckets", json!({"name": "data"})).await;
    let (of_member, text) = exposed(as_storage_node(&api).member_families().unwrap());
    for name in OF_STORAGE {
        assert!(of_member.contains(name), "{name} is missing in\n{text}");
    }
    for series in ["mlgw_tier_used_bytes{tier=\"copies\"}", "mlgw_tier_objects{tier=\"hot\"}"] {
        assert!(!text.contains(series), "{series} is of the duty node");
    }
    let (of_server, text) = exposed(api.admin.families().unwrap());
    assert!(text.contains("mlgw_tier_objects{tier=\"hot\"} 0"), "{text}");
    let more: Vec<_> = of_server.difference(&of_member).collect();
    assert!(more.contains(&&"mlgw_bucket_objects") && more.contains(&&"mlgw_policy_version"), "{more:?}");
    assert!(more.iter().all(|name| is_once(name)), "exposed by the duty node alone: {more:?}");
    assert!(!of_member.iter().any(|name| is_once(name)), "exposed by every node: {of_member:?}");
    assert!(of_member.is_subset(&of_server));
    api.close().await;
}

#[tokio::test]
async fn a_storage_node_of_a_cluster_exposes_its_copies() {
    let api = Api::open().await;
    let (names, _) = exposed(node_families(&api.admin.stored.tiers.hot));
    let expected = [
        "mlgw_replica_copied_bytes_total",
        "mlgw_replica_copied_segments_total",
        "mlgw_replica_failed_tasks_total",
        "mlgw_replica_healed_segments_total",
        "mlgw_replica_read_bytes_total",
        "mlgw_replica_removed_total",
    ];
    assert_eq!(names, expected.into());
    api.close().await;
}

#[tokio::test]
async fn a_gateway_exposes_its_log_and_no_tiers() {
    let api = Api::open().await;
    let node = NodeFigures { storage: None, ..api.admin.figures() };
    let (names, text) = exposed(node.member_families().unwrap());
    for name in OF_GATEWAY {
        assert!(names.contains(name), "{name} is missing in\n{text}");
    }
    let stored = ["mlgw_tier_", "mlgw_garbage_", "mlgw_disk_", "mlgw_flash_", "mlgw_upstream_"];
    let is_stored = |name: &&str| stored.iter().any(|begin| name.starts_with(begin));
    assert!(!names.iter().any(is_stored), "{names:?}");
    assert!(!text.contains("mlgw_sync_total{file=\"segment\"}"), "{text}");
    api.close().await;
}

#[tokio::test]
async fn every_node_has_a_status_and_the_duty_node_adds_the_policy() {
    let api = Api::open().await;
    let tiers = |status: &Status| status.tiers.iter().map(|tier| tier.tier).collect::<Vec<_>>();
    let storage = as_storage_node(&api).status().unwrap();
    assert_schema_of("Status", &storage);
    assert_eq!((tiers(&storage), storage.policy), (vec![Tier::Memory, Tier::Hot], None));
    assert!(storage.syncs.iter().any(|sync| sync.file == "segment"));
    let gateway = NodeFigures { storage: None, ..api.admin.figures() }.status().unwrap();
    assert_schema_of("Status", &gateway);
    assert_eq!(tiers(&gateway), []);
    assert!(gateway.syncs.iter().all(|sync| sync.file == "log"));
    let (_, duty) = api.call(Method::GET, "/v1/status", json!(null)).await;
    assert!(duty["policy"]["version"].is_u64() && duty["duty_node"].is_null(), "{duty}");
    api.close().await;
}

#[test]
fn the_worst_finding_of_a_node_comes_first() {
    let finding = |severity| HealthFinding { severity, what: "w".into(), advice: "a".into() };
    let mut status = mlgw_testing::sample_status::healthy();
    status.s3.connections = 9_500;
    let status = with_findings(status, vec![finding(Health::Critical)]);
    let severities: Vec<_> = status.findings.iter().map(|found| found.severity).collect();
    assert_eq!(severities, [Health::Critical, Health::Warning]);
    assert_eq!(status.health, Health::Critical);
}

#[test]
fn the_other_nodes_name_the_duty_node() {
    let mut cluster = super::cluster::healthy();
    assert_eq!(duty_node_elsewhere(&cluster).as_deref(), Some("node 1 (n1, 10.0.0.1:9002)"));
    cluster.nodes[0].is_own = true;
    assert_eq!(duty_node_elsewhere(&cluster), None);
}
