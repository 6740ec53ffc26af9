//! The segments of a node: options, start, settings that change while it runs, and replicas for other nodes.
//!
//! All storage nodes keep their segments alike: in the directories of the configuration, within its limits of
//! space and flash writes, with their state files in the data directory. After a power loss the start opens
//! the segments by the rows of the catalogue.

use super::ServeError;
use super::error::io_error;
use super::object_keys::ObjectKeys;
use super::remote_backed::upstreams;
use super::start::{ClusterPart, StartResources};
use bytes::Bytes;
use mlgw_common::limits::{NODE_FULL_BYTES, NODE_ROOMY_BYTES};
use mlgw_common::{Clock, NodeId};
use mlgw_config::{Config, Durability, ReplicaQuorum};
use mlgw_metadata::Catalogue;
use mlgw_node::{ClusterNode, SegmentServer, SegmentSpace};
use mlgw_segments::decisions::Decisions;
use mlgw_segments::flash::FlashBudget;
use mlgw_segments::hot::{
    BoxFuture, CompactionSettings, HotOptions, HotTier, ObjectVerifier, PlacingSettings, RemoteTierOptions,
    ReplicaBytes, ReplicationOptions, Scrub, ScrubOptions, Upstreams, WriteQuorum,
};
use mlgw_store::StoreLocation;
use mlgw_store::data_dir::DataDir;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Interval between scrub scans. Reading a catalogue of ten million objects takes ten seconds of one core.
const SCRUB_SCAN_INTERVAL: Duration = Duration::from_secs(60);

/// The open segments of a node.
pub(super) struct OpenSegments {
    pub(super) hot: HotTier,
    pub(super) upstreams: Upstreams,
    pub(super) decisions: Decisions,
}

impl OpenSegments {
    /// Opens the segments. From then on a node of a cluster copies segments of other nodes, and serves its
    /// replicas to them.
    pub(super) async fn open(
        config: &Config,
        start: &StartResources,
        catalogue: &Catalogue,
        cluster: Option<&ClusterNode>,
    ) -> Result<Self, ServeError> {
        let upstreams = upstreams(config, &start.dir)?;
        let decisions = Decisions::open(start.dir.path(), Arc::clone(&start.clock))?;
        let mut options = hot_options(config, start, &upstreams, &decisions)?;
        options.replication = cluster.map(|cluster| ReplicationOptions {
            peers: cluster.segment_peers(),
            nodes: cluster.storage_nodes(),
            bytes_per_second: config.cluster.repair_bytes_per_second.0,
            write_quorum: match config.cluster.write_quorum {
                ReplicaQuorum::Two => WriteQuorum::Two,
                ReplicaQuorum::All => WriteQuorum::All,
            },
        });
        let hot = HotTier::open(options, catalogue.clone()).await?;
        if let Some(cluster) = cluster {
            let (hot, full) = (hot.clone(), FullMark::default());
            cluster.serve_segments(Arc::new(LocalReplicas { hot, full }));
        }
        Ok(Self { hot, upstreams, decisions })
    }
}

/// The replicas of this node, as other nodes use them.
struct LocalReplicas {
    hot: HotTier,
    full: FullMark,
}

/// The mark of a full node, from the moment at which it is full until it has much more space, so that it does
/// not give up and take its leaderships in turns.
#[derive(Default)]
struct FullMark(AtomicBool);

impl FullMark {
    /// Sets or removes the mark by the present free bytes, and returns true if it is set.
    fn update(&self, free_bytes: u64) -> bool {
        let limit = if self.0.load(Relaxed) { NODE_ROOMY_BYTES } else { NODE_FULL_BYTES };
        let is_full = free_bytes < limit;
        self.0.store(is_full, Relaxed);
        is_full
    }
}

impl SegmentServer for LocalReplicas {
    fn read(&self, _from: NodeId, request: &[u8]) -> Result<ReplicaBytes, String> {
        self.hot.read_replica(request).map_err(|refused| refused.to_string())
    }

    fn append(
        &self,
        from: NodeId,
        head: Bytes,
        frames: ReplicaBytes,
    ) -> BoxFuture<'static, Result<ReplicaBytes, String>> {
        let hot = self.hot.clone();
        Box::pin(async move {
            let opened = hot.open_replica(from, &head, frames).await;
            opened.map_err(|refused| refused.to_string())
        })
    }

    fn close(&self, request: Bytes) -> BoxFuture<'static, Result<Bytes, String>> {
        let hot = self.hot.clone();
        Box::pin(async move { hot.close_replica(&request).await.map_err(|refused| refused.to_string()) })
    }

    fn space(&self) -> SegmentSpace {
        let (used_bytes, free_bytes) = self.hot.fill();
        let free_bytes = if self.hot.can_append() { free_bytes } else { 0 };
        let is_full = self.full.update(free_bytes);
        SegmentSpace { used_bytes, free_bytes, is_full, is_slow: self.hot.is_disk_slow() }
    }
}

fn hot_options(
    config: &Config,
    start: &StartResources,
    upstreams: &Upstreams,
    decisions: &Decisions,
) -> Result<HotOptions, ServeError> {
    let StartResources { dir, machine, files, clock, .. } = start;
    let disk_bytes = machine.disk_bytes.unwrap_or(0);
    let mut options = HotOptions::new(config.segments_dir(), disk_bytes, Arc::clone(clock));
    options.durability = match config.durability {
        Durability::Full => mlgw_metadata::Durability::Full,
        Durability::Os => mlgw_metadata::Durability::Os,
    };
    options.segment_bytes = config.hot_segment_bytes(machine);
    options.direct_writes = config.hot.direct_writes;
    options.compaction = compaction_of(config);
    options.placing = placing_of(config);
    options.cold_dirs.clone_from(&config.cold.dirs);
    options.start_without_missing = config.cold.start_without_missing;
    options.lineage = dir.lineage();
    options.reserve_bytes = config.hot_reserve_bytes(machine);
    options.capacity_bytes = config.hot_capacity_bytes(machine);
    options.own_segments_max = config.own_segments_max(machine);
    options.open_files_max = files.segment_files;
    (options.decisions, options.flash) = (decisions.clone(), flash(config, dir, clock)?);
    options.remote_tier = Some(remote_tier_options(config, start, upstreams));
    Ok(options)
}

/// Returns the locations of segments besides the disks of this machine.
fn remote_tier_options(config: &Config, start: &StartResources, upstreams: &Upstreams) -> RemoteTierOptions {
    RemoteTierOptions {
        upstreams: upstreams.clone(),
        spill_to: match start.part {
            ClusterPart::Alone => config.cold.upstream.clone(),
            // A prefix of an upstream belongs to the first server that claims it: the node on which the
            // cluster began. Segments of other nodes stay on their disks, and those of a recovered server
            // until it takes over.
            ClusterPart::Storage if start.dir.lineage().node == NodeId::SINGLE => {
                config.cold.upstream.clone()
            }
            ClusterPart::Storage | ClusterPart::Gateway | ClusterPart::Recovered => None,
        },
        keys: Arc::new(ObjectKeys(start.sealer.clone())),
        leftovers: start.dir.path().join("upstream-leftovers.json"),
    }
}

/// Opens the accounting and budget of writes to the disk of the hot tier.
fn flash(config: &Config, dir: &DataDir, clock: &Arc<dyn Clock>) -> Result<FlashBudget, ServeError> {
    let path = dir.path().join("flash.json");
    let opened = FlashBudget::open(path.clone(), config.hot.flash_bytes_per_day.0, Arc::clone(clock));
    opened.map_err(io_error(path.display().to_string()))
}

/// Starts the scrub, which verifies stored data: the segments, and with `proofs` some objects.
pub(super) fn start_scrub(
    config: &Config,
    dir: &DataDir,
    clock: &Arc<dyn Clock>,
    proofs: Option<Arc<dyn ObjectVerifier>>,
    catalogue: &Catalogue,
    hot: &HotTier,
) -> Result<Scrub, ServeError> {
    let options = ScrubOptions {
        segments: StoreLocation::of(config).segments,
        state: dir.path().join("scrub.json"),
        bytes_per_second: config.hot.scrub_bytes_per_second.0,
        search_interval: SCRUB_SCAN_INTERVAL,
        clock: Arc::clone(clock),
        proofs,
    };
    Scrub::start(options, catalogue.clone(), hot.clone()).map_err(io_error("scrubbing"))
}

/// Applies the settings of the segments that can change while the server runs.
pub(super) fn apply_settings(config: &Config, hot: &HotTier) {
    hot.set_compaction(compaction_of(config));
    hot.set_placing(placing_of(config));
    hot.flash().set_budget(config.hot.flash_bytes_per_day.0);
}

/// Returns the settings of compaction.
fn compaction_of(config: &Config) -> CompactionSettings {
    CompactionSettings {
        dead_percent: config.hot.compact_dead_percent,
        cold_dead_percent: config.cold.compact_dead_percent,
        bytes_per_second: config.hot.compact_bytes_per_second.0,
        interval: config.hot.compact_interval,
        patience: config.hot.compact_patience,
    }
}

/// Returns the settings of moving segments between tiers.
fn placing_of(config: &Config) -> PlacingSettings {
    PlacingSettings {
        high_percent: config.cold.spill_from_percent,
        low_percent: config.cold.spill_to_percent,
        bytes_per_second: config.cold.move_bytes_per_second.0,
    }
}

#[cfg(test)]
mod tests {
    use super::{FullMark, NODE_FULL_BYTES, NODE_ROOMY_BYTES};

    #[test]
    fn a_full_node_is_full_until_it_has_much_more_space() {
        let full = FullMark::default();
        assert!(!full.update(NODE_FULL_BYTES) && full.update(NODE_FULL_BYTES - 1));
        assert!(full.update(NODE_ROOMY_BYTES - 1) && !full.update(NODE_ROOMY_BYTES));
        assert!(!full.update(NODE_FULL_BYTES));
    }
}
