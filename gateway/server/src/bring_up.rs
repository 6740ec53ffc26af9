//! Opens the engine from a configuration: directory, catalogue, tiers, keys.
//!
//! Parts are opened in the order of their dependencies, and listeners open after all of them, so a request
//! never sees a catalogue that has not replayed its log. Closing uses the reverse order.

use super::ServeError;
use super::files::FileBudget;
use super::object_keys::ObjectKeys;
use mlgw_background::access_journal::AccessJournal;
use mlgw_background::proofs::StoredProofs;
use mlgw_background::reconciler::{RetentionState, watch_pending_deletions};
use mlgw_background::writeback::{Sender, SenderContext};
use mlgw_cache::copies::{Copies, CopiesOptions};
use mlgw_cache::policy_driver::PolicyDriver;
use mlgw_cache::remote_backed::{Freshness, RemoteBackedBuckets};
use mlgw_cache::writeback::{WriteBack, WriteBackParts};
use mlgw_common::ByteSize;
use mlgw_common::Secret;
use mlgw_common::limits::HUGE_PAGES_MEMORY_MIN;
use mlgw_common::{Clock, Lineage, SystemClock};
use mlgw_config::{Config, Durability, EtagKind, MachineSizes};
use mlgw_credentials::{Keyring, RootCredentials, Sealer};
use mlgw_metadata::identity::ExpectedServer;
use mlgw_metadata::{Catalogue, CatalogueOptions, CheckpointOptions};
use mlgw_objects::ObjectLayer;
use mlgw_objects::etag::EtagSource;
use mlgw_policy_runtime::{self, Policies, WatchedPolicyFiles, learning, system};
use mlgw_protocol::upload_ids::UploadIds;
use mlgw_remote::origin::Origin;
use mlgw_remote::origin::s3::S3Origin;
use mlgw_remote::upstream::{Upstream, UpstreamKind, UpstreamSettings};
use mlgw_segments::decisions::Decisions;
use mlgw_segments::flash::FlashBudget;
use mlgw_segments::hot::{CompactionSettings, HotOptions, HotTier, PlacingSettings};
use mlgw_segments::hot::{RemoteTierOptions, Scrub, ScrubOptions, Upstreams, log_floor};
use mlgw_segments::memory::MemoryTier;
use mlgw_segments::tiers::Tiers;
use mlgw_store::data_dir::{self, DataDir};
use mlgw_store::start_reserve;
use mlgw_store::{StoreLocation, checkpoint_dir};
use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::task::AbortOnDropHandle;

/// Interval between scrub scans. Reading a catalogue of ten million objects takes ten seconds of one core.
const SCRUB_SCAN_INTERVAL: Duration = Duration::from_secs(60);

/// The open parts of a server that requests use.
pub(super) struct ServerEngine {
    pub(super) dir: DataDir,
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
    pub(super) async fn open(config: &Config, files: FileBudget) -> Result<Self, ServeError> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let StartResources { mut dir, sealer, segments, machine, files } =
            StartResources::take(config, files, &*clock)?;
        let catalogue = Catalogue::open(catalogue_options(config, &dir, &machine, &clock)?).await?;
        // Opened first, because it records which body ids were assigned before there was a key.
        let upload_ids = UploadIds::open(&catalogue).await?;
        let upstreams = upstreams(config, &dir)?;
        let decisions = Decisions::open(dir.path(), Arc::clone(&clock))?;
        let mut options = hot_options(config, &dir, &machine, &clock);
        options.open_files_max = files.segment_files;
        (options.decisions, options.flash) = (decisions.clone(), flash(config, &dir, &clock)?);
        options.remote_tier = Some(remote_tier_options(config, &dir, &sealer, &upstreams));
        let hot = HotTier::open(options, catalogue.clone()).await?;
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
        let root = root_from_environment()?;
        let keyring = Keyring::open(catalogue.clone(), sealer, clock.clone(), root).await?;
        Ok(Self {
            dir,
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
        self.catalogue.shutdown().await;
        self.decisions.write();
        tracing::info!(data_dir = %self.dir.path().display(), "stopped");
    }
}

/// Removes catalogues that the one that was just opened replaced, and unfinished ones.
fn remove_leftovers(dir: &DataDir, place: &StoreLocation) {
    match mlgw_store::remove_leftovers(dir, place) {
        Ok(removed) => removed.iter().for_each(|path| {
            tracing::info!(path = %path.display(), "removed a catalogue that is not in use");
        }),
        Err(error) => tracing::warn!(%error, "cannot remove a catalogue that is not in use"),
    }
}

/// The locked directories and the machine of a start, checked before any file in them is opened.
struct StartResources {
    dir: DataDir,
    sealer: Sealer,
    /// Locks of the directories of segments outside of the data directory.
    segments: Vec<File>,
    machine: MachineSizes,
    files: FileBudget,
}

impl StartResources {
    fn take(config: &Config, files: FileBudget, clock: &dyn Clock) -> Result<Self, ServeError> {
        let (dir, sealer) = DataDir::open(&config.data_dir, clock.now())?;
        if let Some(unfit) = mlgw_store::unfit_files(dir.path()).into_iter().next() {
            return Err(ServeError::Unfit(unfit));
        }
        let hot = config.hot.dir.as_deref().map(data_dir::lock_segment_dir).transpose()?;
        let cold = config
            .cold
            .dirs
            .iter()
            .map(|dir| data_dir::lock_existing_segment_dir(dir))
            .collect::<Result<Vec<_>, _>>()?;
        let segments = hot.into_iter().chain(cold).collect();
        let machine = MachineSizes::detect(&config.segments_dir());
        check_memory(config, &machine)?;
        disable_huge_pages_where_memory_is_small(&machine);
        let files =
            FileBudget { connections: files.connections.min(config.connections_max(&machine)), ..files };
        if !config.catalogue.checkpoint_interval.is_zero() {
            let place = dir.location(config);
            checkpoint_dir::admit(&place, &dir.lineage())?;
        }
        Ok(Self { dir, sealer, segments, machine, files })
    }
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
        let retention = retention.map_err(super::io_error("pending deletions"))?;
        watch_pending_deletions(&retention, &policy_driver, &[]);
        let access_journal =
            AccessJournal::open(dir.path(), policy_driver.clone(), config.policy.remember_bytes.0);
        let access_journal = access_journal.map_err(super::io_error("access journal"))?;
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

/// Refuses a configuration that cannot work, and warns of one that may make the kernel kill the process.
fn check_memory(config: &Config, machine: &MachineSizes) -> Result<(), ServeError> {
    config.check_memory(machine)?;
    let (requests, left) = (config.memory_bytes(machine), config.left_to_requests(machine));
    if requests > left {
        let human = |bytes| ByteSize(bytes).human();
        tracing::warn!(
            requests = human(requests),
            left = human(left),
            "limits.memory_bytes exceeds the memory that the other settings leave"
        );
    }
    Ok(())
}

/// Disables huge pages on a small machine. The heap grows in pages of 4 KiB from then on. Existing pages
/// stay.
fn disable_huge_pages_where_memory_is_small(machine: &MachineSizes) {
    if machine.memory_bytes < HUGE_PAGES_MEMORY_MIN
        && let Err(error) = rustix::thread::disable_transparent_huge_pages(true)
    {
        tracing::warn!(%error, "cannot disable transparent huge pages; the server may run out of memory");
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
    Scrub::start(options, catalogue.clone(), tiers.hot.clone()).map_err(super::io_error("scrubbing"))
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
    opened.map_err(super::io_error(path.display().to_string()))
}

/// Opens the clients of other object stores. No request is sent yet.
fn upstreams(config: &Config, dir: &DataDir) -> Result<Upstreams, ServeError> {
    let open = |settings: &UpstreamSettings| {
        let upstream = Upstream::open(settings).map_err(|error| ServeError::Upstream(error.to_string()))?;
        let owned = upstream.owned_by(dir.lineage());
        let owned =
            owned.map_err(|error| ServeError::Upstream(format!("cannot read random bytes: {error}")))?;
        Ok((settings.name.clone(), owned))
    };
    Ok(Arc::new(config.upstreams.iter().map(open).collect::<Result<_, ServeError>>()?))
}

/// Parts of the engine that remote-backed buckets use.
struct RemoteBackedParts<'a> {
    machine: &'a MachineSizes,
    files: FileBudget,
    tiers: &'a Tiers,
    upstreams: &'a Upstreams,
    decisions: &'a Decisions,
    policy_driver: &'a PolicyDriver,
}

/// Opens the origins of remote-backed buckets and the copies of their objects. Returns an empty value if no
/// upstream is configured.
async fn open_remote_backed(
    config: &Config,
    lineage: Lineage,
    parts: RemoteBackedParts<'_>,
) -> Result<RemoteBackedBuckets, ServeError> {
    let RemoteBackedParts { machine, files, tiers, upstreams, decisions, policy_driver } = parts;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let mut origins = HashMap::new();
    for settings in config.upstreams.iter().filter(|upstream| upstream.kind == UpstreamKind::S3) {
        // All users of a store share its budget.
        let budget = upstreams.get(&settings.name).map(Upstream::budget).unwrap_or_default();
        let origin = S3Origin::new(settings, budget, clock.clone()).map_err(ServeError::Upstream)?;
        origins.insert(settings.name.clone(), Arc::new(origin) as Arc<dyn Origin>);
    }
    if origins.is_empty() {
        return Ok(RemoteBackedBuckets::default());
    }
    let options = CopiesOptions {
        dir: config.copies_dir(),
        lineage,
        capacity_bytes: config.copies_capacity_bytes(machine),
        // Copies never take the room that the hot tier needs.
        reserve_bytes: 2 * config.hot_reserve_bytes(machine),
        memory_bytes: usize::try_from(config.catalogue_cache_bytes(machine) / 2).unwrap_or(usize::MAX),
        clock: clock.clone(),
        decisions: decisions.clone(),
        // Copies and the hot tier are usually on the same disk.
        queues: tiers.hot.queues().clone(),
        flash: tiers.hot.flash().clone(),
        open_files_max: files.segment_files,
        listener: Some(policy_driver.lost_block_listener()),
    };
    let copies = Copies::open(options, tiers.memory.clone()).await?;
    policy_driver.start(&copies);
    let remote_backed =
        RemoteBackedBuckets::new(origins, copies, Some(policy_driver.clone()), freshness_of(config), clock);
    remote_backed.limit_fetches(config.fetch_blocks_max(machine));
    Ok(remote_backed)
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

/// Returns the budget of write-back in bytes per second, by upstream.
fn persist_budgets(config: &Config) -> HashMap<String, u64> {
    config.upstreams.iter().map(|of| (of.name.clone(), of.persist_bytes_per_second)).collect()
}

/// Opens the queues of dirty writes and starts the task that sends them to the origins.
fn start_write_back(
    parts: WriteBackParts,
    tiers: &Tiers,
    decisions: &Decisions,
) -> Result<(WriteBack, Sender), ServeError> {
    let catalogue = parts.catalogue.clone();
    let (writeback, new_queues) = WriteBack::open(parts).map_err(write_back_error)?;
    let (tiers, decisions) = (tiers.clone(), decisions.clone());
    let context = SenderContext { writeback: writeback.clone(), catalogue, tiers, decisions };
    Ok((writeback, Sender::start(context, new_queues)))
}

fn write_back_error(error: mlgw_metadata::ReadError) -> ServeError {
    super::io_error("write-back records")(std::io::Error::other(error))
}

/// Returns the time for which answers of origins stay valid.
pub(super) fn freshness_of(config: &Config) -> Freshness {
    Freshness {
        positive: config.bound.ttl,
        negative: config.bound.negative_ttl,
        stale: config.bound.stale_max,
    }
}

fn catalogue_options(
    config: &Config,
    dir: &DataDir,
    machine: &MachineSizes,
    clock: &Arc<dyn Clock>,
) -> Result<CatalogueOptions, ServeError> {
    let place = dir.location(config);
    let mut options = CatalogueOptions::new(place.catalogue(), Arc::clone(clock));
    options.node = dir.lineage().node;
    options.durability = match config.durability {
        Durability::Full => mlgw_metadata::Durability::Full,
        Durability::Os => mlgw_metadata::Durability::Os,
    };
    options.log_bytes_max = config.catalogue_log_bytes_max(machine);
    let every = config.catalogue.checkpoint_interval;
    options.checkpoints =
        (!every.is_zero()).then(|| CheckpointOptions { dir: place.checkpoints.clone(), every });
    options.memtable_bytes = usize::try_from(config.memtable_bytes(machine)).unwrap_or(usize::MAX);
    options.groups = u32::try_from(config.catalogue.object_groups).unwrap_or(u32::MAX);
    options.cache_bytes = usize::try_from(config.catalogue_cache_bytes(machine)).unwrap_or(usize::MAX);
    options.expected = Some(expected(config, dir, &options.dir)?);
    Ok(options)
}

/// Returns the server that `catalogue` must belong to, and the minimum position of its log.
fn expected(config: &Config, dir: &DataDir, catalogue: &Path) -> Result<ExpectedServer, ServeError> {
    let (segments, lineage) = (StoreLocation::of(config).segments, dir.lineage());
    let floor = log_floor(&segments, lineage.own.incarnation)
        .map_err(super::io_error(segments.hot().display().to_string()))?;
    ExpectedServer::read(catalogue, lineage, floor)
        .map_err(|error| super::io_error("the floor of the log")(std::io::Error::other(error)))
}

fn hot_options(config: &Config, dir: &DataDir, machine: &MachineSizes, clock: &Arc<dyn Clock>) -> HotOptions {
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
    options
}

/// Returns the root credentials of the environment. Both variables must be set, or neither.
fn root_from_environment() -> Result<Option<RootCredentials>, ServeError> {
    let given = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    match (given("MLGW_ROOT_ACCESS_KEY_ID"), given("MLGW_ROOT_SECRET_ACCESS_KEY")) {
        (Some(access_key), Some(secret)) => {
            Ok(Some(RootCredentials { access_key, secret: Secret::new(secret) }))
        }
        (None, None) => Ok(None),
        _ => Err(ServeError::IncompleteRootCredentials),
    }
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
