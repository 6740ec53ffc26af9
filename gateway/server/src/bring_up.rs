//! Opens the engine of a server that has objects: catalogue, tiers, keys.
//!
//! Parts are opened in the order of their dependencies, and listeners open after all of them, so a request
//! never sees a catalogue that has not replayed its log. Closing uses the reverse order. A node of a cluster
//! connects to its peers between the catalogue and everything else, which may propose commands.

use super::ServeError;
use super::error::io_error;
use super::files::FileBudget;
use super::member;
use super::remote_backed::{
    RemoteBackedParts, open_remote_backed, persist_budgets, start_write_back, write_back_elsewhere,
    write_back_stopped,
};
use super::segment_store::{OpenSegments, start_scrub};
use super::start::{ClusterPart, StartResources, remove_leftovers, root_from_environment};
use mlgw_background::access_journal::AccessJournal;
use mlgw_background::proofs::StoredProofs;
use mlgw_background::reconciler::{RetentionState, watch_pending_deletions};
use mlgw_background::writeback::Sender;
use mlgw_cache::policy_driver::PolicyDriver;
use mlgw_cache::remote_backed::RemoteBackedBuckets;
use mlgw_cache::writeback::{WriteBack, WriteBackParts};
use mlgw_common::{CheckedClock, Clock};
use mlgw_config::{Config, EtagKind, MachineSizes};
use mlgw_credentials::{Keyring, Sealer};
use mlgw_metadata::Catalogue;
use mlgw_node::ClusterNode;
use mlgw_objects::ObjectLayer;
use mlgw_objects::etag::EtagSource;
use mlgw_policy_runtime::{self, Policies, WatchedPolicyFiles, following, learning, system};
use mlgw_protocol::upload_ids::UploadIds;
use mlgw_segments::decisions::Decisions;
use mlgw_segments::hot::{ObjectVerifier, Scrub, Upstreams};
use mlgw_segments::memory::MemoryTier;
use mlgw_segments::tiers::Tiers;
use mlgw_store::data_dir::DataDir;
use mlgw_store::start_reserve;
use std::fs::File;
use std::sync::Arc;
use tokio_util::task::AbortOnDropHandle;

/// The open parts of a server that requests use.
pub(super) struct ServerEngine {
    pub(super) dir: DataDir,
    /// The node's handle on its cluster; `None` for a server without peers.
    pub(super) cluster: Option<ClusterNode>,
    /// Its part in the cluster.
    pub(super) part: ClusterPart,
    _start_reserve: AbortOnDropHandle<()>,
    /// Locks of segment directories outside the data directory, which has its own lock.
    _segments: Vec<File>,
    pub(super) machine: MachineSizes,
    pub(super) files: FileBudget,
    pub(super) clock: Arc<dyn Clock>,
    /// The same clock, compared with those of other nodes.
    pub(super) checked_clock: CheckedClock,
    pub(super) catalogue: Catalogue,
    pub(super) tiers: Tiers,
    pub(super) remote_backed: RemoteBackedBuckets,
    pub(super) policy_driver: PolicyDriver,
    pub(super) retention: Arc<RetentionState>,
    access_journal: AccessJournal,
    pub(super) writeback: WriteBack,
    /// Sends dirty writes; `None` on a member, which has none, and on a recovered server.
    sender: Option<Sender>,
    pub(super) upstreams: Upstreams,
    pub(super) decisions: Decisions,
    pub(super) policies: Arc<Policies>,
    pub(super) objects: Arc<ObjectLayer>,
    pub(super) scrub: Arc<Scrub>,
    pub(super) keyring: Keyring,
    pub(super) upload_ids: UploadIds,
}

impl ServerEngine {
    /// Opens the parts over a catalogue whose rows are current.
    pub(super) async fn open(
        config: &Config,
        start: StartResources,
        OpenedCatalogue { catalogue, cluster }: OpenedCatalogue,
    ) -> Result<Self, ServeError> {
        // Opened first, because it records which body ids were assigned before there was a key.
        let upload_ids = UploadIds::open(&catalogue).await?;
        let segments = OpenSegments::open(config, &start, &catalogue, cluster.as_ref()).await?;
        let OpenSegments { hot, upstreams, decisions } = segments;
        let StartResources { mut dir, part, sealer, segments, machine, files, clock } = start;
        // The log, the state and the directories now carry the identity.
        dir.finish_marking()?;
        remove_leftovers(&dir, &dir.location(config));
        let checked_clock = checked_clock(cluster.as_ref(), &clock);
        let tiers = Tiers::new(MemoryTier::new(config.memory_capacity_bytes(&machine)), hot);
        let proofs = proofs_of(part, &catalogue, &tiers);
        let scrub = start_scrub(config, &dir, &clock, proofs, &catalogue, &tiers.hot)?;
        let policies = policies(config, part, &machine, &clock, &catalogue).await?;
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
        let remote_backed = open_remote_backed(config, part, dir.lineage(), parts).await?;
        let objects = Arc::new(ObjectLayer::new(catalogue.clone(), tiers.clone(), etag_source(config)));
        start_policy_tasks(config, part, &policies, &policy_driver, &checked_clock);
        start_facts(&policies, &tiers, &remote_backed, &clock);
        let parts = WriteBackParts {
            catalogue: catalogue.clone(),
            remote_backed: remote_backed.clone(),
            clock: clock.clone(),
            bytes_max: config.dirty_bytes_max(&machine),
            budgets: persist_budgets(config),
        };
        let (writeback, sender) = write_back(part, parts, &tiers, &decisions)?;
        let reserve = start_reserve::maintain(dir.path().to_owned(), config.hot_reserve_bytes(&machine));
        let keyring = open_keyring(cluster.as_ref(), &catalogue, sealer, &clock).await?;
        Ok(Self {
            dir,
            cluster,
            part,
            _start_reserve: AbortOnDropHandle::new(tokio::spawn(reserve)),
            _segments: segments,
            machine,
            files,
            clock,
            checked_clock,
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
            scrub: Arc::new(scrub),
            keyring,
            upload_ids,
        })
    }

    /// Makes all state durable and closes the engine.
    pub(super) async fn close(self) {
        if let Some(cluster) = &self.cluster {
            cluster.stop_segments();
        }
        self.scrub.stop();
        if let Some(sender) = self.sender {
            sender.stop().await;
        }
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

/// Returns the clock of a server, which the other nodes of its cluster confirm if there are any.
fn checked_clock(cluster: Option<&ClusterNode>, clock: &Arc<dyn Clock>) -> CheckedClock {
    cluster.map_or_else(|| CheckedClock::alone(Arc::clone(clock)), ClusterNode::clock)
}

/// Opens the queues of write-back, and starts their sender on the node that has them.
fn write_back(
    part: ClusterPart,
    parts: WriteBackParts,
    tiers: &Tiers,
    decisions: &Decisions,
) -> Result<(WriteBack, Option<Sender>), ServeError> {
    match part {
        ClusterPart::Alone | ClusterPart::First => start_write_back(parts, tiers, decisions),
        ClusterPart::Recovered => write_back_stopped(parts),
        ClusterPart::Member | ClusterPart::Gateway => write_back_elsewhere(parts),
    }
}

/// The open catalogue of a server.
pub(super) struct OpenedCatalogue {
    pub(super) catalogue: Catalogue,
    /// The node's handle on its cluster; `None` for a server without peers.
    pub(super) cluster: Option<ClusterNode>,
}

/// Opens the catalogue. A node of a cluster also connects to its peers, and waits until it is a member. Its
/// rows may be old.
pub(super) async fn open_catalogue(
    config: &Config,
    start: &StartResources,
) -> Result<OpenedCatalogue, ServeError> {
    if start.part.is_alone() {
        let catalogue = Catalogue::open(start.catalogue_options(config)?).await?;
        return Ok(OpenedCatalogue { catalogue, cluster: None });
    }
    let (catalogue, cluster) = member::open_catalogue(config, start).await?;
    member::unless_superseded(&cluster, member::until_member(&cluster)).await?;
    Ok(OpenedCatalogue { catalogue, cluster: Some(cluster) })
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

/// Returns the source of the ETags of new objects.
const fn etag_source(config: &Config) -> EtagSource {
    match config.s3.etag {
        EtagKind::Md5 => EtagSource::Md5,
        EtagKind::Fast => EtagSource::Random,
    }
}

/// Returns the number of blocks that the policy engine tracks: one per cent of the memory, at 32 bytes each.
fn policy_driver_blocks_max(machine: &MachineSizes) -> usize {
    let blocks = machine.memory_bytes / 100 / 32;
    usize::try_from(blocks).unwrap_or(usize::MAX).clamp(1 << 16, 1 << 24)
}

/// Returns what compares objects with their checksums. One node of a cluster does so; each one verifies its
/// own segments.
fn proofs_of(part: ClusterPart, catalogue: &Catalogue, tiers: &Tiers) -> Option<Arc<dyn ObjectVerifier>> {
    part.is_first()
        .then(|| Arc::new(StoredProofs::new(catalogue.clone(), tiers.clone())) as Arc<dyn ObjectVerifier>)
}

/// Starts to learn bounds of the policy. A member follows the policy of the first node, which learns.
fn start_policy_tasks(
    config: &Config,
    part: ClusterPart,
    policies: &Arc<Policies>,
    policy_driver: &PolicyDriver,
    clock: &CheckedClock,
) {
    let policy = Arc::downgrade(policies);
    if part.is_first() {
        let every = config.policy.learn_every;
        tokio::spawn(learning::run(policy, policy_driver.clone(), clock.clone(), every));
    } else {
        tokio::spawn(following::run(policy));
    }
}

/// Starts to collect the facts about this server that rules use.
fn start_facts(
    policies: &Arc<Policies>,
    tiers: &Tiers,
    remote_backed: &RemoteBackedBuckets,
    clock: &Arc<dyn Clock>,
) {
    let policy = Arc::downgrade(policies);
    tokio::spawn(system::run(policy, tiers.clone(), remote_backed.clone(), Arc::clone(clock)));
}

async fn open_keyring(
    cluster: Option<&ClusterNode>,
    catalogue: &Catalogue,
    sealer: Sealer,
    clock: &Arc<dyn Clock>,
) -> Result<Keyring, ServeError> {
    let clock = Arc::clone(clock);
    match cluster {
        None => Ok(Keyring::open(catalogue.clone(), sealer, clock, root_from_environment()?).await?),
        Some(_) => member::open_keyring(catalogue, sealer, clock).await,
    }
}

/// Opens the running policy, including watched files. Those of one node of a cluster count.
async fn policies(
    config: &Config,
    part: ClusterPart,
    machine: &MachineSizes,
    clock: &Arc<dyn Clock>,
    catalogue: &Catalogue,
) -> Result<Arc<Policies>, ServeError> {
    let place = mlgw_policy_runtime::ServerProfile {
        environment: config.policy.environment,
        gpu_count: (config.policy.gpu_count > 0).then_some(config.policy.gpu_count),
        memory_bytes: machine.memory_bytes,
    };
    let watched = match part.is_first() {
        true => WatchedPolicyFiles {
            files: config.policy.files.clone(),
            frameworks: config.policy.frameworks.clone(),
        },
        false => WatchedPolicyFiles::default(),
    };
    Ok(Policies::open(catalogue.clone(), Arc::clone(clock), place, watched).await?)
}
