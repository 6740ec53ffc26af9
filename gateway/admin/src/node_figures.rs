//! Parts of one node from which its metrics and its status are made, and these metrics.
//!
//! Every node of a cluster has them, and a server without peers. What is counted once per cluster, such as
//! the contents of buckets, is added by the duty node alone. Values are read from their owners at each
//! scrape; nothing is stored here.

use super::connection_figures::connection_families;
use super::process_figures::{level, process_families};
use super::replica_figures::node_families;
use super::segment_rows::SegmentRows;
use super::storage_figures::StorageFigures;
use mlgw_common::Timestamp;
use mlgw_config::{LoadedConfig, MachineSizes};
use mlgw_credentials::Keyring;
use mlgw_formats::schema::{Bucket, BucketUsage};
use mlgw_metadata::{Catalogue, ReadError};
use mlgw_node::ClusterNode;
use mlgw_telemetry::GatewayMetrics;
use mlgw_telemetry::exposition::{MetricFamily, MetricValue};
use mlgw_telemetry::recent::RecentCounters;
use mlgw_telemetry::table::{
    CONNECTIONS_LIMIT, GARBAGE, JOB_WAITING, OBJECT_CACHE, OBJECT_CACHE_MISSES, QUEUE_WAIT, QUOTA_DIVISIONS,
    RAFT_COMMANDS, RAFT_ENTRIES, RAFT_LOG, RAFT_LOG_LIMIT, RAFT_QUEUED, RAFT_SNAPSHOTS,
    RAFT_SNAPSHOTS_INSTALLED, RAFT_TAGGED, SYNC, SYNC_DURATION,
};
use std::sync::Arc;

/// Parts of a node.
pub(super) struct NodeFigures<'a> {
    /// Name of the node.
    pub(super) node: &'a str,
    /// URL of its S3 endpoint.
    pub(super) endpoint: &'a str,
    /// True while it accepts requests.
    pub(super) is_ready: bool,
    /// Start time of the process.
    pub(super) started: Timestamp,
    /// Time of this scrape or status.
    pub(super) now: Timestamp,
    /// Maximum number of open S3 connections.
    pub(super) connections_max: u64,
    /// Access keys.
    pub(super) keyring: &'a Keyring,
    /// Metrics of requests.
    pub(super) metrics: &'a GatewayMetrics,
    /// Metrics of the last minute.
    pub(super) recent: &'a RecentCounters,
    /// Configuration in force.
    pub(super) loaded: Arc<LoadedConfig>,
    /// Resources of the machine.
    pub(super) machine: &'a MachineSizes,
    /// The catalogue; on a gateway that of the system group.
    pub(super) catalogue: &'a Catalogue,
    /// This node of the cluster; `None` for a server without peers.
    pub(super) cluster: Option<&'a ClusterNode>,
    /// Parts of a node that stores objects; `None` on a gateway.
    pub(super) storage: Option<StorageFigures<'a>>,
}

impl NodeFigures<'_> {
    /// Returns the metrics that every node exposes of itself, except those to which the duty node adds
    /// values of its own: [`StorageFigures::memory_objects_family`] and
    /// [`StorageFigures::upstream_families`].
    pub(super) fn families(&self, rows: &SegmentRows) -> Vec<MetricFamily> {
        let mut families = self.metrics.families();
        families.push(MetricFamily::single(CONNECTIONS_LIMIT, level(self.connections_max)));
        families.extend(self.io_families());
        families.extend(self.catalogue_families());
        if let Some(storage) = &self.storage {
            families.extend(self.storage_families(storage, rows));
        }
        families.extend(self.cluster.into_iter().flat_map(|cluster| connection_families(cluster, self.now)));
        families.extend(process_families(self.started));
        families
    }

    /// Returns the metrics of a node that has nothing to add to those of itself: any but the duty node.
    ///
    /// # Errors
    /// If the catalogue cannot be read.
    pub(super) fn member_families(&self) -> Result<Vec<MetricFamily>, ReadError> {
        let mut families = self.families(&self.segment_rows()?);
        if let Some(storage) = &self.storage {
            families.push(storage.memory_objects_family());
            families.extend(storage.upstream_families());
        }
        Ok(families)
    }

    /// Returns syncs and queue waits of catalogue and tiers.
    fn io_families(&self) -> Vec<MetricFamily> {
        let catalogue = self.catalogue.metrics();
        let hot = self.storage.map(|storage| storage.tiers.hot.metrics()).unwrap_or_default();
        let (mut syncs, mut durations) = (MetricFamily::new(SYNC), MetricFamily::new(SYNC_DURATION));
        for (file, of_file) in std::iter::once(("log", catalogue.log_syncs)).chain(hot.syncs) {
            syncs.push(&[file], MetricValue::Count(of_file.count()));
            durations.push(&[file], MetricValue::Durations(of_file));
        }
        let mut waits =
            MetricFamily::new(QUEUE_WAIT).with(&["commit"], MetricValue::Durations(catalogue.commit_wait));
        let mut families = vec![syncs, durations];
        if let Some(storage) = &self.storage {
            waits.push(&["append"], MetricValue::Durations(hot.append_wait));
            waits.push(&["disk_read"], MetricValue::Durations(hot.disk_read_wait));
            families.extend(storage.lane_families(&mut waits));
        }
        families.push(waits);
        families
    }

    fn catalogue_families(&self) -> Vec<MetricFamily> {
        let catalogue = self.catalogue.metrics();
        vec![
            MetricFamily::single(RAFT_ENTRIES, MetricValue::Count(catalogue.entries_applied)),
            MetricFamily::new(RAFT_COMMANDS)
                .with(&["applied"], MetricValue::Count(catalogue.commands_applied))
                .with(&["rejected"], MetricValue::Count(catalogue.commands_rejected)),
            MetricFamily::single(RAFT_TAGGED, MetricValue::Count(catalogue.batches_tagged)),
            MetricFamily::single(RAFT_QUEUED, level(catalogue.queued)),
            MetricFamily::single(RAFT_LOG, level(catalogue.log_bytes)),
            MetricFamily::single(RAFT_LOG_LIMIT, level(self.log_bytes_max())),
            MetricFamily::single(RAFT_SNAPSHOTS, MetricValue::Count(catalogue.snapshots)),
            MetricFamily::single(RAFT_SNAPSHOTS_INSTALLED, MetricValue::Count(catalogue.snapshots_installed)),
            MetricFamily::single(QUOTA_DIVISIONS, MetricValue::Count(catalogue.quota_divisions)),
            MetricFamily::single(OBJECT_CACHE, level(catalogue.object_cache_bytes)),
            MetricFamily::single(OBJECT_CACHE_MISSES, MetricValue::Count(catalogue.object_misses)),
            MetricFamily::new(JOB_WAITING).with(&["release"], level(catalogue.releases_waiting)),
        ]
    }

    fn storage_families(&self, storage: &StorageFigures<'_>, rows: &SegmentRows) -> Vec<MetricFamily> {
        let upstream_bytes = rows.upstream_bytes(self.catalogue.node());
        let mut families = storage.tier_families(self.hot_capacity_bytes(), upstream_bytes);
        families.push(MetricFamily::single(GARBAGE, level(self.garbage_bytes(rows))));
        if self.cluster.is_some() {
            families.extend(node_families(&storage.tiers.hot));
        }
        families
    }

    /// Returns the length of the log at which it is purged.
    pub(super) fn log_bytes_max(&self) -> u64 {
        self.loaded.config.catalogue_log_bytes_max(self.machine)
    }

    /// Returns the maximum bytes of the hot tier.
    pub(super) fn hot_capacity_bytes(&self) -> u64 {
        self.loaded.config.hot_capacity_bytes(self.machine)
    }

    /// Returns the number of objects in the groups on this node: all objects, unless there are sets.
    ///
    /// # Errors
    /// If the catalogue cannot be read.
    pub(super) fn objects_here(&self) -> Result<u64, ReadError> {
        let buckets = self.catalogue.buckets(None, None, usize::MAX);
        let objects = |bucket: &Arc<Bucket>| Ok(self.catalogue.usage_here(bucket.bucket_id())?.objects);
        buckets.iter().map(objects).sum()
    }

    /// Returns the usage of each bucket, on a node with all groups.
    ///
    /// # Errors
    /// If the catalogue cannot be read, or a group has no member on this node.
    pub(super) fn bucket_usages(&self) -> Result<Vec<(String, BucketUsage)>, ReadError> {
        let buckets = self.catalogue.buckets(None, None, usize::MAX);
        let usage =
            |bucket: &Arc<Bucket>| Ok((bucket.name.clone(), self.catalogue.usage(bucket.bucket_id())?));
        buckets.iter().map(usage).collect()
    }

    /// Returns the bytes of segments in the hot tier of this node that nothing refers to; 0 on a node without
    /// tiers.
    pub(super) fn garbage_bytes(&self, rows: &SegmentRows) -> u64 {
        let used_bytes = self.storage.map_or(0, |storage| storage.tiers.hot.metrics().used_bytes);
        used_bytes.saturating_sub(rows.referenced_here(self.catalogue.node()))
    }

    /// Reads the rows of all segments; none on a gateway.
    ///
    /// # Errors
    /// If the catalogue cannot be read.
    pub(super) fn segment_rows(&self) -> Result<SegmentRows, ReadError> {
        match self.storage {
            Some(_) => SegmentRows::read(self.catalogue),
            None => Ok(SegmentRows::default()),
        }
    }
}
