//! Opens the engine of a server that has objects: catalogue, tiers, keys.
//!
//! Parts are opened in the order of their dependencies, and listeners open after all of them, so a request
//! never sees a catalogue that has not replayed its log. Closing uses the reverse order. A node of a cluster
//! connects to its peers between the catalogue and everything else, which may propose commands.

use super::ServeError;
use super::error::io_error;
use super::files::FileBudget;
use super::member;
use super::object_keys::ObjectKeys;
use super::remote_backed::{
    RemoteBackedParts, open_remote_backed, persist_budgets, start_write_back, upstreams,
};
use super::start::{ClusterPart, StartResources, remove_leftovers, root_from_environment};
use mlgw_background::access_journal::AccessJournal;
use mlgw_background::proofs::StoredProofs;
use mlgw_background::reconciler::{RetentionState, watch_pending_deletions};
use mlgw_background::writeback::Sender;
use mlgw_cache::policy_driver::PolicyDriver;
use mlgw_cache::remote_backed::RemoteBackedBuckets;
use mlgw_cache::writeback::{WriteBack, WriteBackParts};
use mlgw_common::Clock;
use mlgw_config::{Config, Durability, EtagKind, MachineSizes};
use mlgw_credentials::{Keyring, Sealer};
use mlgw_metadata::Catalogue;
use mlgw_node::ClusterNode;
use mlgw_objects::ObjectLayer;
use mlgw_objects::etag::EtagSource;
use mlgw_policy_runtime::{self, Policies, WatchedPolicyFiles, learning, system};
use mlgw_protocol::upload_ids::UploadIds;
use mlgw_segments::decisions::Decisions;
use mlgw_segments::flash::FlashBudget;
use mlgw_segments::hot::{CompactionSettings, HotOptions, HotTier, PlacingSettings};
use mlgw_segments::hot::{RemoteTierOptions, Scrub, ScrubOptions, Upstreams};
use mlgw_segments::memory::MemoryTier;
use mlgw_segments::tiers::Tiers;
use mlgw_store::StoreLocation;
use mlgw_store::data_dir::DataDir;
use mlgw_store::start_reserve;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::task::AbortOnDropHandle;

/// Interval between scrub scans. Reading a catalogue of ten million objects takes ten seconds of one core.
const SCRUB_SCAN_INTERVAL: Duration = Duration::from_secs(60);

/// The open parts of a server that requests use.
pub(super) struct ServerEngine {
    pub(super) dir: DataDir,
    /// The node's handle on its cluster; `None` for a server without peers.
    pub(super) cluster: Option<ClusterNode>,
    _start_reserve: AbortOnDropHandle<()>,
    /// Locks of segment directories outside the data directory, which has its own lock.
    _segments: Vec<File>,
    pub(super) machine: MachineSizes,
    pub(super) files: FileBudget,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) catalogue: Catalogue,
    pub(super) tiers: Tiers,
    pub(super) remote_backed: RemoteBackedBuckets,
    pub(super) policy_driver: PolicyDriver,
    pub(super) retention: Arc<RetentionState>,
    access_journal: AccessJournal,
    pub(super) writeback: WriteBack,
    sender: Sender,
    pub(super) upstreams: Upstreams,
    pub(super) decisions: Decisions,
    pub(super) policies: Arc<Policies>,
    pub(super) objects: Arc<ObjectLayer>,
    pub(super) scrub: Arc<Scrub>,
    pub(super) keyring: Keyring,
    pub(super) upload_ids: UploadIds,
}

impl ServerEngine {
    pub(super) async fn open(config: &Config, start: StartResources) -> Result<Self, ServeError> {
        let (catalogue, cluster) = open_catalogue(config, &start).await?;
        // Opened first, because it records which body ids were assigned before there was a key.
        let upload_ids = UploadIds::open(&catalogue).await?;
        let upstreams = upstreams(config, &start.dir)?;
        let decisions = Decisions::open(start.dir.path(), Arc::clone(&start.clock))?;
        let options = hot_options(config, &start, &upstreams, &decisions)?;
        let hot = HotTier::open(options, catalogue.clone()).await?;
        let StartResources { mut dir, sealer, segments, machine, files, clock, .. } = start;
        // The log, the state and the directories now carry the identity.
        dir.finish_marking()?;
        remove_leftovers(&dir, &dir.location(config));
        let tiers = Tiers::new(MemoryTier::new(config.memory_capacity_bytes(&machine)), hot);
        let scrub = Arc::new(scrub(config, &dir, &clock, &catalogue, &tiers)?);
        let policies = policies(config, &machine, &clock, &catalogue).await?;
        let PolicyStatistics { policy_driver, retention, access_journal } =
            PolicyStatistics::open(config, &dir, &machine, &policies, &*clock)?;
        let parts = RemoteBackedParts {
            machine: &machine,
            files,
            tiers: &tiers,
            upstreams: &upstreams,
            decisions: &decisions,
            policy_driver: &policy_driver,
        };
        let remote_backed = open_remote_backed(config, dir.lineage(), parts).await?;
        let objects = Arc::new(ObjectLayer::new(catalogue.clone(), tiers.clone(), etag_source(config)));
        let (policy, every) = (|| Arc::downgrade(&policies), config.policy.learn_every);
        tokio::spawn(learning::run(policy(), policy_driver.clone(), Arc::clone(&clock), every));
        tokio::spawn(system::run(policy(), tiers.clone(), remote_backed.clone(), Arc::clone(&clock)));
        let parts = WriteBackParts {
            catalogue: catalogue.clone(),
            remote_backed: remote_backed.clone(),
            clock: clock.clone(),
            bytes_max: config.dirty_bytes_max(&machine),
            budgets: persist_budgets(config),
        };
        let (writeback, sender) = start_write_back(parts, &tiers, &decisions)?;
        let reserve = start_reserve::maintain(dir.path().to_owned(), config.hot_reserve_bytes(&machine));
        let keyring = match cluster {
            None => Keyring::open(catalogue.clone(), sealer, clock.clone(), root_from_environment()?).await?,
            Some(_) => member::open_keyring(&catalogue, sealer, clock.clone()).await?,
        };
        Ok(Self {
            dir,
            cluster,
            _start_reserve: AbortOnDropHandle::new(tokio::spawn(reserve)),
            _segments: segments,
            machine,
            files,
            clock,
            catalogue,
            tiers,
            remote_backed,
            policy_driver,
            retention: Arc::new(retention),
            access_journal,
            writeback,
            sender,
            upstreams,
            decisions,
            policies,
            objects,
            scrub,
            keyring,
            upload_ids,
        })
    }

    /// Makes all state durable and closes the engine.
    pub(super) async fn close(self) {
        self.scrub.stop();
        self.sender.stop().await;
        if let Some(copies) = self.remote_backed.copies() {
            copies.shutdown().await;
        }
        self.access_journal.close();
        let flash = self.tiers.hot.flash().clone();
        self.tiers.hot.shutdown().await;
        flash.save();
        if let Some(cluster) = self.cluster {
            member::leave(cluster, &self.catalogue).await;
        }
        self.catalogue.shutdown().await;
        self.decisions.write();
        tracing::info!(data_dir = %self.dir.path().display(), "stopped");
    }
}

/// Opens the catalogue. A node of a cluster also connects to its peers, and waits until its rows are current.
async fn open_catalogue(
    config: &Config,
    start: &StartResources,
) -> Result<(Catalogue, Option<ClusterNode>), ServeError> {
    if start.part == ClusterPart::Alone {
        return Ok((Catalogue::open(start.catalogue_options(config)?).await?, None));
    }
    let (catalogue, cluster) = member::open_catalogue(config, start).await?;
    member::unless_superseded(&cluster, member::until_current(&catalogue)).await?;
    Ok((catalogue, Some(cluster)))
}

/// Statistics of reads, and the decisions that rules have made by them.
struct PolicyStatistics {
    policy_driver: PolicyDriver,
    retention: RetentionState,
    access_journal: AccessJournal,
}

impl PolicyStatistics {
    fn open(
        config: &Config,
        dir: &DataDir,
        machine: &MachineSizes,
        policies: &Policies,
        clock: &dyn Clock,
    ) -> Result<Self, ServeError> {
        let program = policies.program();
        let policy_driver =
            PolicyDriver::new(policy_driver_blocks_max(machine), Arc::clone(&program.borrow()), clock);
        policy_driver.follow_programs(program);
        // Reads of checkpoints with a pending deletion are recorded from now on.
        let retention = RetentionState::open(dir.path(), dir.lineage());
        let retention = retention.map_err(io_error("pending deletions"))?;
        watch_pending_deletions(&retention, &policy_driver, &[]);
        let access_journal =
            AccessJournal::open(dir.path(), policy_driver.clone(), config.policy.remember_bytes.0);
        let access_journal = access_journal.map_err(io_error("access journal"))?;
        Ok(Self { policy_driver, retention, access_journal })
    }
}

/// Returns the locations of segments besides the disks of this machine.
fn remote_tier_options(
    config: &Config,
    dir: &DataDir,
    sealer: &Sealer,
    upstreams: &Upstreams,
) -> RemoteTierOptions {
    RemoteTierOptions {
        upstreams: upstreams.clone(),
        spill_to: config.cold.upstream.clone(),
        keys: Arc::new(ObjectKeys(sealer.clone())),
        leftovers: dir.path().join("upstream-leftovers.json"),
    }
}

/// Starts the scrub, which verifies stored data.
fn scrub(
    config: &Config,
    dir: &DataDir,
    clock: &Arc<dyn Clock>,
    catalogue: &Catalogue,
    tiers: &Tiers,
) -> Result<Scrub, ServeError> {
    let options = ScrubOptions {
        segments: StoreLocation::of(config).segments,
        state: dir.path().join("scrub.json"),
        bytes_per_second: config.hot.scrub_bytes_per_second.0,
        search_interval: SCRUB_SCAN_INTERVAL,
        clock: Arc::clone(clock),
        proofs: Some(Arc::new(StoredProofs::new(catalogue.clone(), tiers.clone()))),
    };
    Scrub::start(options, catalogue.clone(), tiers.hot.clone()).map_err(io_error("scrubbing"))
}

/// Returns the source of the ETags of new objects.
const fn etag_source(config: &Config) -> EtagSource {
    match config.s3.etag {
        EtagKind::Md5 => EtagSource::Md5,
        EtagKind::Fast => EtagSource::Random,
    }
}

/// Opens the accounting and budget of writes to the disk of the hot tier.
fn flash(config: &Config, dir: &DataDir, clock: &Arc<dyn Clock>) -> Result<FlashBudget, ServeError> {
    let path = dir.path().join("flash.json");
    let opened = FlashBudget::open(path.clone(), config.hot.flash_bytes_per_day.0, Arc::clone(clock));
    opened.map_err(io_error(path.display().to_string()))
}

/// Returns the number of blocks that the policy engine tracks: one per cent of the memory, at 32 bytes each.
fn policy_driver_blocks_max(machine: &MachineSizes) -> usize {
    let blocks = machine.memory_bytes / 100 / 32;
    usize::try_from(blocks).unwrap_or(usize::MAX).clamp(1 << 16, 1 << 24)
}

/// Opens the running policy, including watched files.
async fn policies(
    config: &Config,
    machine: &MachineSizes,
    clock: &Arc<dyn Clock>,
    catalogue: &Catalogue,
) -> Result<Arc<Policies>, ServeError> {
    let place = mlgw_policy_runtime::ServerProfile {
        environment: config.policy.environment,
        gpu_count: (config.policy.gpu_count > 0).then_some(config.policy.gpu_count),
        memory_bytes: machine.memory_bytes,
    };
    let (files, frameworks) = (config.policy.files.clone(), config.policy.frameworks.clone());
    let watched = WatchedPolicyFiles { files, frameworks };
    Ok(Policies::open(catalogue.clone(), Arc::clone(clock), place, watched).await?)
}

fn hot_options(
    config: &Config,
    start: &StartResources,
    upstreams: &Upstreams,
    decisions: &Decisions,
) -> Result<HotOptions, ServeError> {
    let StartResources { dir, sealer, machine, files, clock, .. } = start;
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
    options.remote_tier = Some(remote_tier_options(config, dir, sealer, upstreams));
    Ok(options)
}

/// Returns the settings of compaction.
pub(super) fn compaction_of(config: &Config) -> CompactionSettings {
    CompactionSettings {
        dead_percent: config.hot.compact_dead_percent,
        cold_dead_percent: config.cold.compact_dead_percent,
        bytes_per_second: config.hot.compact_bytes_per_second.0,
        interval: config.hot.compact_interval,
        patience: config.hot.compact_patience,
    }
}

/// Returns the settings of moving segments between tiers.
pub(super) fn placing_of(config: &Config) -> PlacingSettings {
    PlacingSettings {
        high_percent: config.cold.spill_from_percent,
        low_percent: config.cold.spill_to_percent,
        bytes_per_second: config.cold.move_bytes_per_second.0,
    }
}
