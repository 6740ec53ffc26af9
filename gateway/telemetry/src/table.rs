//! Table of all metrics: name, kind, unit, labels and help text.
//!
//! The exposition takes names and help from here and a test compares docs/METRICS.md with it, so a metric
//! that is not in the table can be neither exposed nor documented. Labels are bounded: their values are names
//! from the code or the settings, except for the 200 largest buckets.

use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use std::fmt::Write as _;

/// A metric.
#[derive(Debug)]
pub struct MetricDefinition {
    /// Name as exposed to Prometheus; for a histogram the name of its family.
    pub name: &'static str,
    /// Counter, gauge or histogram.
    pub kind: MetricKind,
    /// Names of the labels.
    pub labels: &'static [&'static str],
    /// Help text.
    pub doc: &'static str,
}

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows; the name ends in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts of observations by size, their sum and their number.
    Histogram,
}

impl MetricKind {
    pub(super) fn metric_type(self) -> MetricType {
        match self {
            Self::Counter => MetricType::Counter,
            Self::Gauge => MetricType::Gauge,
            Self::Histogram => MetricType::Histogram,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

impl MetricDefinition {
    /// Returns the unit, which is the end of the name.
    #[must_use]
    pub fn unit(&self) -> Option<Unit> {
        let name = self.name.strip_suffix("_total").unwrap_or(self.name);
        match name.rsplit('_').next() {
            Some("seconds") => Some(Unit::Seconds),
            Some("bytes") => Some(Unit::Bytes),
            _ => None,
        }
    }

    /// Returns the name without the parts that the encoder adds: `_total` of a counter, and the unit.
    pub(super) fn stem(&self) -> &'static str {
        let name = self.name.strip_suffix("_total").unwrap_or(self.name);
        match self.unit() {
            Some(_) => name.rsplit_once('_').map_or(name, |(stem, _)| stem),
            None => name,
        }
    }
}

macro_rules! metrics {
    ($($id:ident: $kind:ident $name:literal [$($label:literal)*] $doc:literal)*) => {
        $(#[doc = $doc] pub const $id: &MetricDefinition =
            &MetricDefinition { name: $name, kind: MetricKind::$kind, labels: &[$($label),*], doc: $doc };)*

        /// All metrics.
        pub const METRICS: &[&MetricDefinition] = &[$($id),*];
    };
}

metrics! {
    REQUESTS: Counter "mlgw_requests_total" ["op" "status"]
        "Answered requests by S3 operation and status; 499 means that the client disconnected"
    REQUEST_ERRORS: Counter "mlgw_request_errors_total" []
        "Requests that failed because of the server: status 5xx without 501 (operation not implemented), \
         503 (unavailable or short of a resource) and 507"
    REQUEST_ERROR_CODES: Counter "mlgw_request_error_codes_total" ["code"]
        "Requests answered with an error, by S3 error code"
    REQUEST_DURATION: Histogram "mlgw_request_duration_seconds" ["op"]
        "Time from the head of a request to the last byte handed to the connection"
    FIRST_BYTE: Histogram "mlgw_first_byte_seconds" ["op" "tier"]
        "Time from the head of a request to the head of its response, by the tier that served the data"
    REQUEST_BYTES: Counter "mlgw_request_bytes_total" ["op" "direction"]
        "Bytes of bodies: in as declared by clients, out as sent"
    INFLIGHT_REQUESTS: Gauge "mlgw_inflight_requests" []
        "Requests in progress, until the response is sent completely"
    CONNECTIONS: Gauge "mlgw_connections" []
        "Open connections to the S3 endpoint"
    CONNECTIONS_LIMIT: Gauge "mlgw_connections_limit" []
        "Limit of open connections"
    THROTTLED: Counter "mlgw_throttled_total" ["reason"]
        "Requests delayed or refused because a resource was short: connections, dirty (data not yet at its \
         upstream), disk (space in the hot tier), memory (for bodies), origin (throttles this server), queue \
         (of the catalogue), write_back (attempts: the object was written again during each)"
    QUOTA_REFUSED: Counter "mlgw_quota_refused_total" ["quota"]
        "Writes refused by a quota of a bucket or of an access key"
    QUOTA_DIVISIONS: Counter "mlgw_quota_divisions_total" []
        "Quotas that this node divided among object groups: after a change, or when a group lacked room"
    FORWARDING: Counter "mlgw_forwarding_total" ["outcome"]
        "Requests that this node forwards to members of a cluster: accepted, not_accepted (by any member), \
         lost (accepted, and the answer did not arrive); and attempts at members that did not accept: \
         not_mine (it does not own the key), busy, refused (it runs another version), unreachable"
    CLUSTER_NODES: Gauge "mlgw_cluster_nodes" ["answers"]
        "Other nodes of the cluster that this node calls, by whether they answer it: yes, no"
    CLUSTER_CLOCK_SKEW: Gauge "mlgw_cluster_clock_skew_seconds" []
        "Time of this node less the median of the nodes that answer; with two clocks that differ, the \
         difference of both; without a value while no other node answers"
    DUTY: Gauge "mlgw_duty" []
        "1 on the duty node of a cluster while it has a lease and may write at origins, 0 on the others"
    DUTY_LEASE: Gauge "mlgw_duty_lease" []
        "1 on the duty node of a cluster while it has a lease, also if it may not write at origins yet, 0 on \
         the others"
    CLUSTER_GROUPS: Gauge "mlgw_cluster_groups" ["led"]
        "Raft groups with a member on this node, and all others once there are sets, by whether most voters \
         answer and, if the group has a member here, its leader is known: yes, no"
    CLUSTER_SETS: Gauge "mlgw_cluster_sets" []
        "Sets of storage nodes; 0 while every storage node is a member of every group"
    CLUSTER_MOVING_GROUPS: Gauge "mlgw_cluster_moving_groups" []
        "Groups with a member on this node whose votes are not on the nodes of their set: they are moving"
    CLUSTER_ROWS_COMPARED: Counter "mlgw_cluster_rows_compared_total" ["result"]
        "Comparisons of the rows of a Raft group that this node made as the leader: equal (on all members), \
         different, incomplete (equal, and without those of a member that does not answer or has restarted)"
    CLUSTER_DIFFERING_GROUPS: Gauge "mlgw_cluster_differing_groups" []
        "Raft groups whose last comparison found a member with rows that differ from those of most members. \
         Only groups with a member on this node count"
    CLUSTER_CERTIFICATE: Gauge "mlgw_cluster_certificate_remaining_seconds" []
        "Time until the certificate of this node expires; negative afterwards. It is renewed much earlier"
    CLUSTER_CONNECTIONS: Gauge "mlgw_cluster_connections" ["channel"]
        "Open connections with other nodes of the cluster, in both directions, by channel: control (votes, \
         heartbeats, probes), log (of the catalogue, and appends to segments), bulk (forwarded requests, \
         copies, snapshots)"
    CLUSTER_CONNECTS: Counter "mlgw_cluster_connects_total" ["channel" "result"]
        "Attempts to connect with other nodes: dialed (by this node), accepted (dialed by another node), \
         failed (dials of this node)"
    CLUSTER_CALLS: Gauge "mlgw_cluster_calls" ["channel"]
        "Calls of this node to other nodes that wait for an answer"
    CLUSTER_STREAMS: Gauge "mlgw_cluster_streams" ["channel"]
        "Streams that this node opened to other nodes and whose bodies have not ended"
    CLUSTER_BYTES: Counter "mlgw_cluster_bytes_total" ["channel" "direction"]
        "Bytes exchanged with other nodes, before encryption: in and out"
    QUEUE_WAIT: Histogram "mlgw_queue_wait_seconds" ["queue"]
        "Time spent in a queue before the work began: append (for the next write to a segment), commit (for \
         the next log entry), disk_read (for a slot of the disk and a thread); and for a slot of a disk \
         alone, by lane: checkpoint, inference, training, background"
    DISK_PLACES: Gauge "mlgw_disk_places_taken" ["tier"]
        "Requests that the disks of a tier are serving; from 64 on, further requests wait"
    DISK_WAITING: Gauge "mlgw_disk_waiting_requests" ["lane"]
        "Requests that wait for a slot of a disk, by lane: checkpoint (writes), inference and training \
         (reads), background (work of the server itself)"
    SYNC: Counter "mlgw_sync_total" ["file"]
        "Syncs to stable storage by kind of file: log (of the catalogue), segment, segment_new, \
         segment_directory, segment_recovery"
    SYNC_DURATION: Histogram "mlgw_sync_duration_seconds" ["file"]
        "Duration of syncs by kind of file; for the log it includes the preceding write"
    CORRUPT_BLOCKS: Counter "mlgw_corrupt_blocks_total" []
        "Stored blocks that did not match their checksum"
    QUARANTINED: Gauge "mlgw_quarantined_blocks" ["tier"]
        "Stored blocks of objects that are known to be corrupt; reads of them fail"
    TIER_OBJECTS: Gauge "mlgw_tier_objects" ["tier"]
        "Objects with data in a tier; for the memory tier, cached pieces of objects. The duty node of a \
         cluster alone exposes hot, for all nodes"
    TIER_USED: Gauge "mlgw_tier_used_bytes" ["tier"]
        "Bytes stored in a tier; `copies` are cached data of remote-backed buckets"
    TIER_LIMIT: Gauge "mlgw_tier_limit_bytes" ["tier"]
        "Maximum bytes of a tier"
    TIER_ROOM: Gauge "mlgw_tier_room_bytes" ["tier"]
        "Bytes that a tier can still store within its limit and without the disk's reserve"
    TIER_READS: Counter "mlgw_tier_reads_total" ["tier" "result"]
        "Reads of a tier by result: hit and miss (memory tier), cached (from the page cache), disk, replica \
         (answered by another node, because the local copy is missing, incomplete, damaged or slow), \
         error, range (of a segment in an upstream)"
    TIER_READ_BYTES: Counter "mlgw_tier_read_bytes_total" ["tier"]
        "Verified bytes of objects read from a tier"
    TIER_WRITTEN_BYTES: Counter "mlgw_tier_written_bytes_total" ["tier"]
        "Bytes of chunk records written to a tier"
    COMPRESSION_BYTES: Counter "mlgw_compression_bytes_total" ["of"]
        "Bytes of chunks that compression rules made smaller: logical (as clients see them) and stored"
    COMPRESSION_CHUNKS: Counter "mlgw_compression_chunks_total" ["result"]
        "Chunks of at most 1 MiB to which a compression rule applied: compressed, incompressible (stored \
         uncompressed because they or a sample of them gain too little), no_memory (stored uncompressed \
         because memory was short)"
    FLASH_WRITTEN: Counter "mlgw_flash_written_bytes_total" ["cause"]
        "Bytes written to the disk of the hot tier: client (including sync imports), copies (clean copies), \
         promote, compaction (including compression at rest)"
    FLASH_LEFT: Gauge "mlgw_flash_budget_left_bytes" []
        "Remaining flash budget, at most one hour's worth; below 0 the server postpones its own writes; \
         absent without a budget"
    COPY_ANSWERS: Counter "mlgw_bound_reads_total" ["result"]
        "GETs of remote-backed buckets by result: hit (from a copy), shared (from memory, fetched for \
         another request), miss (from the origin), stale (from an expired copy because the origin is \
         unreachable)"
    COPY_BYTES: Counter "mlgw_bound_copy_bytes_total" ["result"]
        "Bytes of objects of origins: kept (cached), evicted (to free space), cleaned (moved so that the \
         rest of their segment could be freed), refused (not cached because space was short)"
    DIRTY_BYTES: Gauge "mlgw_dirty_bytes" []
        "Bytes of write-back objects that are not at their origins yet"
    DIRTY_OLDEST: Gauge "mlgw_dirty_oldest_seconds" []
        "Time since the oldest acknowledged write that is not at its origin yet"
    UPSTREAM_REQUESTS: Counter "mlgw_upstream_requests_total" ["upstream" "op" "status"]
        "Requests to an upstream, each retry counted separately, by outcome: ok or the kind of failure"
    UPSTREAM_SECONDS: Histogram "mlgw_upstream_duration_seconds" ["upstream" "op"]
        "Duration of requests to an upstream, each retry counted separately: from the permission to send to \
         the start of the response; for segments, to its end"
    UPSTREAM_BYTES: Counter "mlgw_upstream_bytes_total" ["upstream" "op"]
        "Bytes of bodies received from an upstream and sent to it"
    GARBAGE: Gauge "mlgw_garbage_bytes" []
        "Unreferenced bytes of segments: of deleted and overwritten objects, abandoned bodies and writes in \
         progress"
    MOVED_BYTES: Counter "mlgw_moved_bytes_total" ["from" "to" "reason"]
        "Bytes that were moved, kept or evicted, with the terms of `mlgw policy decisions`; `-` means no tier"
    UPSTREAM_LEFTOVERS: Gauge "mlgw_upstream_leftover_objects" []
        "Unreferenced objects in upstreams that could not be removed yet"
    UPSTREAM_NOT_OWNED: Gauge "mlgw_upstream_not_owned" ["upstream"]
        "1 if nothing is deleted in an upstream because its mark is not of this server, else 0; `mlgw \
         upstream show` shows the reason"
    FREED_BYTES: Counter "mlgw_freed_bytes_total" ["tier"]
        "Bytes of removed segment files"
    SEGMENT_DIRS_REFUSED: Gauge "mlgw_segment_dirs_refused" []
        "Segment directories that a running node of a cluster does not use, because they fail or another one \
         is in their place"
    SEGMENTS_HELD_BACK: Gauge "mlgw_segments_held_back" ["tier"]
        "Segments with dead bytes that cannot be compacted because their live data fails verification"
    REPLICA_COPIED_BYTES: Counter "mlgw_replica_copied_bytes_total" []
        "Bytes of segments that this storage node received from other nodes for its copies"
    REPLICA_COPIED: Counter "mlgw_replica_copied_segments_total" []
        "Copies of segments that this storage node made"
    REPLICA_HEALED: Counter "mlgw_replica_healed_segments_total" []
        "Suspect copies of segments on this storage node that were repaired from other nodes, or found intact"
    REPLICA_FAILED: Counter "mlgw_replica_failed_tasks_total" []
        "Attempts to copy or repair a segment that failed and are repeated"
    REPLICA_READ_BYTES: Counter "mlgw_replica_read_bytes_total" []
        "Bytes of records that this storage node read from other nodes for clients, because its own copy is \
         missing, incomplete, damaged or slow"
    REPLICA_REMOVED: Counter "mlgw_replica_removed_total" []
        "Files of copies that this storage node removed, because their segment was removed or enough other \
         nodes have it"
    SEGMENTS_OFF_SET: Gauge "mlgw_segments_off_set" []
        "Sealed segments of the cluster with a copy on a node outside of their set: it is removed when the \
         nodes of the set have all copies; exposed by the duty node alone"
    OFF_SET_BYTES: Gauge "mlgw_off_set_bytes" []
        "Bytes of objects in segments of other sets than that of their group, which the leaders of groups \
         move to the nodes of the set; exposed by the duty node alone, if it can read them"
    SEGMENTS_BELOW_COPIES: Gauge "mlgw_segments_below_copies" []
        "Sealed segments with fewer intact copies than wanted, on 3 nodes or on all storage nodes if there \
         are fewer; exposed by the duty node of a cluster"
    SEGMENTS_SUSPECT: Gauge "mlgw_segments_suspect" []
        "Sealed segments with a copy in which damage was found; exposed by the duty node of a cluster"
    BUCKET_OBJECTS: Gauge "mlgw_bucket_objects" ["bucket"]
        "Objects of a bucket; the 200 largest buckets, and `other` for the rest"
    BUCKET_BYTES: Gauge "mlgw_bucket_bytes" ["bucket"]
        "Bytes of the objects of a bucket, as clients see them; the 200 largest buckets, and `other` for \
         the rest"
    QUOTA_BYTES: Gauge "mlgw_bucket_quota_bytes" ["bucket"]
        "Quota of bytes of a bucket, if it has one; the 200 buckets with the most bytes"
    QUOTA_USED_BYTES: Gauge "mlgw_bucket_quota_used_bytes" ["bucket"]
        "Bytes that count towards the quota of bytes of a bucket: objects, and parts of uploads in progress"
    QUOTA_OBJECTS: Gauge "mlgw_bucket_quota_objects" ["bucket"]
        "Quota of objects of a bucket, if it has one; the 200 buckets with the most bytes"
    QUOTA_USED_OBJECTS: Gauge "mlgw_bucket_quota_used_objects" ["bucket"]
        "Objects that count towards the quota of objects of a bucket"
    RAFT_ENTRIES: Counter "mlgw_raft_applied_entries_total" []
        "Log entries applied by the catalogue"
    RAFT_COMMANDS: Counter "mlgw_raft_commands_total" ["result"]
        "Commands in the applied log entries: applied, or rejected because the state did not allow them"
    RAFT_TAGGED: Counter "mlgw_raft_tagged_batches_total" []
        "Applied log entries with commands that a node sent to the leader on another node. By their tag it \
         finds the outcome if the leader does not answer"
    RAFT_QUEUED: Gauge "mlgw_raft_queued_commands" []
        "Commands that wait to be proposed"
    RAFT_LOG: Gauge "mlgw_raft_log_bytes" []
        "Bytes of the catalogue's log that are not purged yet"
    RAFT_LOG_LIMIT: Gauge "mlgw_raft_log_limit_bytes" []
        "Length of the log in bytes at which the state is flushed and the log purged"
    RAFT_SNAPSHOTS: Counter "mlgw_raft_snapshots_total" []
        "Flushes of the catalogue's state with a purge of its log"
    RAFT_SNAPSHOTS_INSTALLED: Counter "mlgw_raft_installed_snapshots_total" []
        "Snapshots of other nodes that have replaced the state of a Raft group on this node, because it was \
         new or lacked entries that are purged"
    OBJECT_CACHE: Gauge "mlgw_catalogue_object_cache_bytes" []
        "Memory used by the catalogue's cache of recently read object records"
    OBJECT_CACHE_MISSES: Counter "mlgw_catalogue_object_cache_misses_total" []
        "Object records that were not in this cache and were read from the catalogue's store"
    JOB_WAITING: Gauge "mlgw_job_waiting" ["kind"]
        "Pending items of a background job: release (bodies whose map is to be freed)"
    JOB_ACTIVE: Gauge "mlgw_job_active" ["kind" "state"]
        "Dataset jobs that have not ended, by state: queued, running"
    JOB_ENDED: Counter "mlgw_job_ended_total" ["kind" "result"]
        "Dataset jobs that have ended, by outcome: done, failed, cancelled"
    JOB_OBJECTS: Counter "mlgw_job_objects_total" ["kind"]
        "Objects whose data jobs fetched, imported, promoted or evicted"
    JOB_BYTES: Counter "mlgw_job_bytes_total" ["kind"]
        "Bytes that jobs fetched, imported, promoted or evicted"
    JOB_PROGRESS: Gauge "mlgw_job_progress_percent" ["dataset"]
        "Progress of the running job of a dataset, by bytes"
    DATASET_BYTES: Gauge "mlgw_dataset_bytes" ["dataset"]
        "Known bytes of a dataset; the 200 largest datasets, and `other` for the rest"
    DATASET_RESIDENT_BYTES: Gauge "mlgw_dataset_resident_bytes" ["dataset" "node" "tier"]
        "Bytes of a dataset in a tier of a node: hot, cold, copies (of a remote-backed bucket). Bytes with \
         several replicas are counted on each node; updated once a minute"
    DATASET_READY: Gauge "mlgw_dataset_ready" ["dataset" "node"]
        "1 if a node has the whole dataset itself, in its hot tier or its clean copies, else 0"
    POLICY_VERSION: Gauge "mlgw_policy_version" []
        "Version of the running policy; 0 if no policy was ever applied"
    POLICY_RULES: Gauge "mlgw_policy_rules" ["stance"]
        "Rules of all layers of the running policy: act, or observe (only report their decisions)"
    POLICY_REFUSED: Counter "mlgw_policy_refused_total" ["source"]
        "Policies refused because they are invalid: from a watched file, or applied by a person"
    POLICY_FAULTS: Gauge "mlgw_policy_faults" ["what"]
        "1 while the stored policy is invalid and the built-in defaults run (stored), or a watched file is \
         refused (file)"
    POLICY_LEARNING: Gauge "mlgw_policy_learning" []
        "1 if measured outcomes may adjust bounds, else 0"
    POLICY_ACCESSES: Counter "mlgw_policy_accesses_total" []
        "Requests for objects reported to the policy engine"
    POLICY_BLOCKS: Counter "mlgw_policy_blocks_total" ["decision"]
        "Blocks of remote-backed buckets by decision of the policy engine: hit (already cached), keep, \
         bypass, evict"
    POLICY_AHEAD: Counter "mlgw_policy_ahead_blocks_total" ["outcome"]
        "Blocks chosen for read-ahead, by outcome: used, late, wasted, declined, absent"
    POLICY_OUTCOMES: Counter "mlgw_policy_copies_bytes_total" ["outcome"]
        "Bytes of copies by outcome of the decision: kept, used (read again), wasted (evicted unread), \
         missed (requested after eviction), passed_again (bypassed and requested again)"
    POLICY_KEPT: Gauge "mlgw_policy_engine_bytes" ["what"]
        "Bytes of the policy engine: kept (cached), pinned (not evictable), capacity (maximum), memory (its \
         own use of memory)"
    POLICY_SHADOW: Gauge "mlgw_policy_shadow_hit_percent" ["cache"]
        "Byte hit rate of recent reads in percent: of this cache (here) and of simulated caches (lru and \
         s3-fifo of the same size, never-evict), estimated on a sample"
    POLICY_ACTIONS: Counter "mlgw_policy_actions_total" ["action" "outcome"]
        "Actions of rules on objects at rest: objects pinned, unpinned, evicted, compressed or deleted \
         (retain), segments promoted or spilled; done, no_room (also if the flash budget is used up) or \
         failed"
    WORKLOADS: Gauge "mlgw_workload_count" ["phase"]
        "Workloads with requests in the last ten minutes, by activity; unknown until the activity is detected"
    WORKLOAD_EPOCHS: Counter "mlgw_workload_epochs_total" []
        "Epochs that all workloads have completed over their training data"
    WORKLOAD_BATCHES: Counter "mlgw_workload_batches_total" []
        "Batches that all workloads have read: the reported number, or bursts of reads separated by pauses"
    ACCESS_LOG_LINES: Counter "mlgw_access_log_lines_total" ["result"]
        "Lines of the access log: written, or dropped because the queue was full or the write failed"
    BUILD_INFO: Gauge "mlgw_build_info" ["version"]
        "Always 1; the label is the running version"
    START_TIME: Gauge "mlgw_start_time_seconds" []
        "Start time of the server in seconds since 1970"
    CPU: Counter "mlgw_process_cpu_seconds_total" []
        "CPU time of the process, user and system"
    RESIDENT: Gauge "mlgw_process_resident_bytes" []
        "Resident memory of the process"
    OPEN_FILES: Gauge "mlgw_process_open_files" []
        "Open files and connections of the process"
    OPEN_FILES_LIMIT: Gauge "mlgw_process_open_files_limit" []
        "Limit of open files and connections of the process"
}

/// Returns the text of docs/METRICS.md.
#[must_use]
pub fn documentation() -> String {
    let mut out = String::from(
        "# Metrics\n\n\
         Generated from the table of metrics (`gateway/telemetry/src/table.rs`); a test checks that it is\n\
         current.\n\n\
         `/metrics` on `admin.listen` (or `metrics.listen`) serves them in the OpenMetrics text format,\n\
         without authentication. Labels are bounded: no label value comes from a request; the 200 largest\n\
         buckets have their own value, and `other` is the rest. Units are part of the names.\n\
         In a cluster each node counts its own requests, disks and connections. Metrics of buckets,\n\
         datasets, jobs, policies and remote-backed buckets are those of the duty node alone.\n\
         [OPERATIONS.md](OPERATIONS.md) lists the metrics to watch.\n\n\
         | metric | kind | labels | description |\n| --- | --- | --- | --- |\n",
    );
    for metric in METRICS {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {} |",
            metric.name,
            metric.kind.name(),
            labels.join(" "),
            metric.doc
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{METRICS, MetricKind, documentation};
    use mlgw_testing::printed::assert_file_is;

    #[test]
    fn docs_metrics_is_printed_from_the_table() {
        assert_file_is("docs/METRICS.md", &documentation());
    }

    /// Returns the words of a text, split as in PromQL.
    fn words(text: &str) -> impl Iterator<Item = &str> {
        text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
    }

    /// Returns the metric that a series belongs to.
    fn metric_of(series: &str) -> Option<&'static super::MetricDefinition> {
        let parts = ["", "_bucket", "_count", "_sum"];
        METRICS.iter().copied().find(|metric| {
            let histogram = metric.kind == MetricKind::Histogram;
            parts
                .iter()
                .any(|part| series == format!("{}{part}", metric.name) && histogram != part.is_empty())
        })
    }

    /// Asserts that a query uses existing metrics and labels. `up` and the labels of a scrape are
    /// Prometheus's own.
    fn assert_answerable(query: &str) {
        let series: Vec<&str> = words(query).filter(|word| word.starts_with("mlgw_")).collect();
        let mut labels = vec!["job", "instance", "le"];
        for name in &series {
            let metric = metric_of(name).unwrap_or_else(|| panic!("{name} is no series: {query}"));
            labels.extend(metric.labels);
        }
        let selected =
            query.split('{').skip(1).filter_map(|rest| rest.split_once('}')).flat_map(|(all, _)| {
                all.split(',').map(|one| one.split(['=', '!']).next().unwrap_or_default().trim())
            });
        let grouped = query.split("by (").skip(1).filter_map(|rest| rest.split_once(')'));
        let grouped = grouped.flat_map(|(all, _)| all.split(',').map(str::trim));
        for label in selected.chain(grouped) {
            assert!(labels.contains(&label), "no label {label}: {query}");
        }
        assert!(!series.is_empty() || query.starts_with("up{"), "{query} uses no metric of mlgw");
    }

    fn deploy(name: &str) -> String {
        let path = mlgw_testing::printed::root().join("deploy").join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    #[test]
    fn every_query_of_the_dashboard_uses_existing_metrics() {
        let dashboard: serde_json::Value = serde_json::from_str(&deploy("grafana/mlgw.json")).unwrap();
        let panels = dashboard["panels"].as_array().unwrap();
        let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
        let queries: Vec<&str> = targets.map(|target| target["expr"].as_str().unwrap()).collect();
        assert!(queries.len() > 30, "{}", queries.len());
        queries.into_iter().for_each(assert_answerable);
    }

    #[test]
    fn every_alert_uses_existing_metrics() {
        let alerts = deploy("prometheus/alerts.yml");
        let queries: Vec<&str> = alerts
            .split("expr: ")
            .skip(1)
            .map(|rest| {
                rest.split_once("\n        for:").or_else(|| rest.split_once("\n        labels:")).unwrap().0
            })
            .map(|query| query.trim_start_matches(">-").trim())
            .collect();
        assert_eq!(queries.len(), alerts.matches("- alert: ").count());
        queries.into_iter().for_each(assert_answerable);
    }

    #[test]
    fn names_end_in_their_kind_and_unit() {
        for metric in METRICS {
            // A scrape adds these two labels to every series and would rename ours.
            assert!(
                !metric.labels.contains(&"job") && !metric.labels.contains(&"instance"),
                "{}",
                metric.name
            );
            assert!(metric.name.starts_with("mlgw_"), "{}", metric.name);
            assert_eq!(
                metric.name.ends_with("_total"),
                metric.kind == MetricKind::Counter,
                "{}",
                metric.name
            );
            let of_time = metric.name.ends_with("_seconds");
            assert!(metric.kind != MetricKind::Histogram || of_time, "{}", metric.name);
        }
    }
}
