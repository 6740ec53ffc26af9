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
        "Requests answered, by S3 operation and status; 499 is a client that went away"
    REQUEST_ERRORS: Counter "mlgw_request_errors_total" []
        "Requests that failed because of the server: 5xx, but for 501, which says that it has no such operation, and 503 and 507, which say that it is short of something"
    REQUEST_ERROR_CODES: Counter "mlgw_request_error_codes_total" ["code"]
        "Requests answered with an error, by its S3 code"
    REQUEST_DURATION: Histogram "mlgw_request_duration_seconds" ["op"]
        "From the head of a request to the last byte handed to the connection"
    FIRST_BYTE: Histogram "mlgw_first_byte_seconds" ["op" "tier"]
        "From the head of a request to the head of its answer, by the tier that the bytes came from"
    REQUEST_BYTES: Counter "mlgw_request_bytes_total" ["op" "direction"]
        "Bytes of bodies, in as announced and out as sent"
    INFLIGHT_REQUESTS: Gauge "mlgw_inflight_requests" []
        "Requests begun and not yet answered whole"
    CONNECTIONS: Gauge "mlgw_connections" []
        "Open connections to the S3 endpoint"
    CONNECTIONS_LIMIT: Gauge "mlgw_connections_limit" []
        "Connections that may be open"
    THROTTLED: Counter "mlgw_throttled_total" ["reason"]
        "Times a client was made to wait or refused because something was short: connections, dirty (what is not at its upstream yet), disk (room in the hot tier), memory (for bodies), queue (of the catalogue)"
    QUOTA_REFUSED: Counter "mlgw_quota_refused_total" ["quota"]
        "Writes that a quota refused: of a bucket, or of an access key"
    QUEUE_WAIT: Histogram "mlgw_queue_wait_seconds" ["queue"]
        "Wait in a queue before the work began: append (for the next write to a segment), commit (for the next log entry), disk_read (for a place at the disk and a thread); and for a place at a disk alone, by lane: checkpoint, inference, training, background"
    DISK_PLACES: Gauge "mlgw_disk_places_taken" ["tier"]
        "Requests that a tier's disks have in hand; from 64 on others wait"
    DISK_WAITING: Gauge "mlgw_disk_waiting_requests" ["lane"]
        "Requests that wait for a place at a disk: checkpoint (writes), inference and training (reads), background (what the server does by itself)"
    SYNC: Counter "mlgw_sync_total" ["file"]
        "Syncs to stable storage, by kind of file: log (of the catalogue), segment, segment_new, segment_directory, segment_recovery"
    SYNC_DURATION: Histogram "mlgw_sync_duration_seconds" ["file"]
        "Duration of syncs, by kind of file; of the log's with the write before it"
    CORRUPT_BLOCKS: Counter "mlgw_corrupt_blocks_total" []
        "Stored blocks that did not match their checksum"
    QUARANTINED: Gauge "mlgw_quarantined_blocks" ["tier"]
        "Stored blocks of objects that are known to be bad; reads of them fail"
    TIER_OBJECTS: Gauge "mlgw_tier_objects" ["tier"]
        "Objects whose bytes a tier holds; of the memory tier stored pieces of objects"
    TIER_USED: Gauge "mlgw_tier_used_bytes" ["tier"]
        "Bytes that a tier holds; `copies` are those of what bound buckets front"
    TIER_LIMIT: Gauge "mlgw_tier_limit_bytes" ["tier"]
        "Bytes that a tier may hold"
    TIER_ROOM: Gauge "mlgw_tier_room_bytes" ["tier"]
        "Bytes that a tier can still take: within its limit, and without the disk's reserve"
    TIER_READS: Counter "mlgw_tier_reads_total" ["tier" "result"]
        "Reads of a tier: hit and miss (of the memory tier), cached (from the page cache), disk, error, range (of a segment in an upstream)"
    TIER_READ_BYTES: Counter "mlgw_tier_read_bytes_total" ["tier"]
        "Bytes of objects read from a tier, verified"
    TIER_WRITTEN_BYTES: Counter "mlgw_tier_written_bytes_total" ["tier"]
        "Bytes of chunk records written to a tier"
    COMPRESSION_BYTES: Counter "mlgw_compression_bytes_total" ["of"]
        "Bytes of chunks that rules had compressed and that became smaller: logical (as clients see them) and stored"
    COMPRESSION_CHUNKS: Counter "mlgw_compression_chunks_total" ["result"]
        "Chunks, of 1 MiB at most, that rules wanted compressed: compressed, incompressible (stored as they came, for they gain nothing, or as a sample too little), no_memory (the same, for want of memory)"
    FLASH_WRITTEN: Counter "mlgw_flash_written_bytes_total" ["cause"]
        "Bytes written to the hot tier's disk: client (also what a sync imports), copies (clean copies), promote, compaction (also what is compressed at rest)"
    FLASH_LEFT: Gauge "mlgw_flash_budget_left_bytes" []
        "What is left of the flash budget now, an hour's worth at most; below 0 the server writes nothing by itself that can wait; absent without a budget"
    COPY_ANSWERS: Counter "mlgw_bound_reads_total" ["result"]
        "GETs of bound buckets: hit (from a copy), shared (from memory, fetched for another), miss (from the origin), stale (from a copy that holds no more, because the origin cannot be asked)"
    COPY_BYTES: Counter "mlgw_bound_copy_bytes_total" ["result"]
        "Bytes of origins' objects: kept, evicted (to make room), cleaned (appended again so that the rest of their segment could go), refused (not kept, for want of room)"
    DIRTY_BYTES: Gauge "mlgw_dirty_bytes" []
        "Bytes of objects that were written back and are not at their origins yet"
    DIRTY_OLDEST: Gauge "mlgw_dirty_oldest_seconds" []
        "For how long the oldest write has been acknowledged that is not at its origin yet"
    UPSTREAM_REQUESTS: Counter "mlgw_upstream_requests_total" ["upstream" "op" "status"]
        "Requests to an upstream, each repetition by itself, by what came of them: ok, or in a word why not"
    UPSTREAM_SECONDS: Histogram "mlgw_upstream_duration_seconds" ["upstream" "op"]
        "Requests to an upstream, each repetition by itself: from the moment it may be sent until its answer begins; of segments, until it ends"
    UPSTREAM_BYTES: Counter "mlgw_upstream_bytes_total" ["upstream" "op"]
        "Bytes of bodies that came from an upstream, and that objects and segments were sent with"
    GARBAGE: Gauge "mlgw_garbage_bytes" []
        "Bytes of segments that nothing refers to: of deletes, overwrites and bodies given up, and of writes under way"
    MOVED_BYTES: Counter "mlgw_moved_bytes_total" ["from" "to" "reason"]
        "Bytes that were moved, kept or let go of, in the words of `mlgw policy decisions`: `-` is nowhere"
    UPSTREAM_LEFTOVERS: Gauge "mlgw_upstream_leftover_objects" []
        "Objects in upstreams that nothing names and that could not be removed yet"
    UPSTREAM_NOT_OWNED: Gauge "mlgw_upstream_not_owned" ["upstream"]
        "1 where nothing is deleted in an upstream because its mark is not this server's, else 0: `mlgw upstream show` tells why"
    FREED_BYTES: Counter "mlgw_freed_bytes_total" ["tier"]
        "Bytes of segment files that were removed"
    SEGMENTS_HELD_BACK: Gauge "mlgw_segments_held_back" ["tier"]
        "Segments with dead bytes that cannot be emptied, because what lives in them does not verify"
    BUCKET_OBJECTS: Gauge "mlgw_bucket_objects" ["bucket"]
        "Objects of a bucket; the 200 largest buckets, and other"
    BUCKET_BYTES: Gauge "mlgw_bucket_bytes" ["bucket"]
        "Bytes of a bucket's objects, as clients see them; the 200 largest buckets, and other"
    QUOTA_BYTES: Gauge "mlgw_bucket_quota_bytes" ["bucket"]
        "Bytes that a bucket may hold, where it has such a quota; the 200 of them that hold most"
    QUOTA_USED_BYTES: Gauge "mlgw_bucket_quota_used_bytes" ["bucket"]
        "Bytes that are held against such a quota: objects, and parts of uploads in progress"
    QUOTA_OBJECTS: Gauge "mlgw_bucket_quota_objects" ["bucket"]
        "Objects that a bucket may hold, where it has such a quota; the 200 of them that hold most"
    QUOTA_USED_OBJECTS: Gauge "mlgw_bucket_quota_used_objects" ["bucket"]
        "Objects that are held against such a quota"
    RAFT_ENTRIES: Counter "mlgw_raft_applied_entries_total" []
        "Log entries applied by the catalogue"
    RAFT_COMMANDS: Counter "mlgw_raft_commands_total" ["result"]
        "Commands of those entries: applied, or rejected because the state did not allow them"
    RAFT_QUEUED: Gauge "mlgw_raft_queued_commands" []
        "Commands that wait to be proposed"
    RAFT_LOG: Gauge "mlgw_raft_log_bytes" []
        "Bytes of the catalogue's log that are not purged yet"
    RAFT_LOG_LIMIT: Gauge "mlgw_raft_log_limit_bytes" []
        "Bytes of log after which the state is flushed and the log purged"
    RAFT_SNAPSHOTS: Counter "mlgw_raft_snapshots_total" []
        "Times the catalogue's state was flushed and its log purged"
    OBJECT_CACHE: Gauge "mlgw_catalogue_object_cache_bytes" []
        "Memory of the catalogue's records of objects that were read last"
    OBJECT_CACHE_MISSES: Counter "mlgw_catalogue_object_cache_misses_total" []
        "Records of objects that were looked up in the catalogue's store, because they were not in that memory"
    JOB_WAITING: Gauge "mlgw_job_waiting" ["kind"]
        "Things that a background job has still to do: release (bodies whose map is to be freed)"
    JOB_ACTIVE: Gauge "mlgw_job_active" ["kind" "state"]
        "Jobs of datasets that have not ended, by what they do: queued, running"
    JOB_ENDED: Counter "mlgw_job_ended_total" ["kind" "result"]
        "Jobs of datasets that have ended, by what came of them: done, failed, cancelled"
    JOB_OBJECTS: Counter "mlgw_job_objects_total" ["kind"]
        "Objects of which jobs fetched, imported, promoted or let go of something"
    JOB_BYTES: Counter "mlgw_job_bytes_total" ["kind"]
        "Bytes that jobs fetched, imported, promoted or let go of"
    JOB_PROGRESS: Gauge "mlgw_job_progress_percent" ["dataset"]
        "How far the job is that is at work on a dataset, by bytes that are counted"
    DATASET_BYTES: Gauge "mlgw_dataset_bytes" ["dataset"]
        "Bytes of a dataset, as far as they are known; the 200 largest datasets, and other"
    DATASET_RESIDENT_BYTES: Gauge "mlgw_dataset_resident_bytes" ["dataset" "node" "tier"]
        "Bytes of a dataset that a node has in a tier: hot, cold, copies (of a bound bucket); counted once a minute"
    DATASET_READY: Gauge "mlgw_dataset_ready" ["dataset" "node"]
        "Whether all of a dataset can be read on a node without asking an origin and without a slow disk: 1 or 0"
    POLICY_VERSION: Gauge "mlgw_policy_version" []
        "The version of the policy that runs; 0 when none was ever applied"
    POLICY_RULES: Gauge "mlgw_policy_rules" ["stance"]
        "Rules of all layers of the running policy: act, or observe, which only say what they would do"
    POLICY_REFUSED: Counter "mlgw_policy_refused_total" ["source"]
        "How often a policy was refused because it is wrong: of a watched file, or applied by a person"
    POLICY_FAULTS: Gauge "mlgw_policy_faults" ["what"]
        "1 while the stored policy does not hold and the built-in defaults run (stored), or a watched file is refused (file)"
    POLICY_LEARNING: Gauge "mlgw_policy_learning" []
        "Whether bounds may move by measured outcomes: 1 or 0"
    POLICY_ACCESSES: Counter "mlgw_policy_accesses_total" []
        "Requests for objects that the policy engine has heard of"
    POLICY_BLOCKS: Counter "mlgw_policy_blocks_total" ["decision"]
        "Blocks of bound buckets by what the engine said: hit (they were here), keep, bypass, evict"
    POLICY_AHEAD: Counter "mlgw_policy_ahead_blocks_total" ["outcome"]
        "Blocks that were to be read ahead, by what became of them: used, late, wasted, declined, absent"
    POLICY_OUTCOMES: Counter "mlgw_policy_copies_bytes_total" ["outcome"]
        "Bytes of copies that were decided on by what became of them: kept, used (read again), wasted (went unread), missed (asked for after they went); and passed_again, which passed by and were asked for again"
    POLICY_KEPT: Gauge "mlgw_policy_engine_bytes" ["what"]
        "Bytes that the engine keeps (kept), may not evict (pinned), may keep (capacity), and takes of memory (memory)"
    POLICY_SHADOW: Gauge "mlgw_policy_shadow_hit_percent" ["cache"]
        "Percent of the bytes that were read lately that were here, and that other caches of the same size would have had, estimated on a sample"
    POLICY_ACTIONS: Counter "mlgw_policy_actions_total" ["action" "outcome"]
        "What rules had done with objects at rest: objects pinned, unpinned, evicted, compressed or deleted (retain), segments promoted or spilled; done, no_room (also when the flash budget is used up) or failed"
    WORKLOADS: Gauge "mlgw_workload_count" ["phase"]
        "Workloads that have asked for something in the last ten minutes, by what they do; unknown as long as nobody can tell"
    WORKLOAD_EPOCHS: Counter "mlgw_workload_epochs_total" []
        "Epochs that all workloads have completed over what they train with"
    WORKLOAD_BATCHES: Counter "mlgw_workload_batches_total" []
        "Batches that all workloads have read: as many as they say, or bursts of reads with pauses between them"
    ACCESS_LOG_LINES: Counter "mlgw_access_log_lines_total" ["result"]
        "Lines of the access log: written, or dropped because the queue was full or the disk refused them"
    BUILD_INFO: Gauge "mlgw_build_info" ["version"]
        "Always 1; the label says which version runs"
    START_TIME: Gauge "mlgw_start_time_seconds" []
        "When the server started, in seconds since 1970"
    CPU: Counter "mlgw_process_cpu_seconds_total" []
        "CPU time of the process, user and system"
    RESIDENT: Gauge "mlgw_process_resident_bytes" []
        "Memory of the process in RAM"
    OPEN_FILES: Gauge "mlgw_process_open_files" []
        "Open files and connections of the process"
    OPEN_FILES_LIMIT: Gauge "mlgw_process_open_files_limit" []
        "Files and connections that the process may have open"
}

/// Returns the text of docs/METRICS.md.
#[must_use]
pub fn documentation() -> String {
    let mut out = String::from(
        "# Metrics\n\n\
         Printed from the table of metrics (`gateway/telemetry/src/table.rs`); a test keeps it true.\n\n\
         `/metrics` on `admin.listen` (or `metrics.listen`) serves them in the OpenMetrics text format, without\n\
         authentication. Labels are bounded: no value of one comes from a request; of buckets the 200 largest have\n\
         their own, and `other` is the rest. Units are in the names. [OPERATIONS.md](OPERATIONS.md) says which to watch.\n\n\
         | metric | kind | labels | what it says |\n| --- | --- | --- | --- |\n",
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
        assert!(!series.is_empty() || query.starts_with("up{"), "{query} asks for nothing of ours");
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
