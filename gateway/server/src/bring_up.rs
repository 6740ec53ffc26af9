//! Opens the engine of a server that has objects: catalogue, tiers, keys.
//!
//! Parts are opened in the order of their dependencies, and listeners open after all of them, so a request
//! never sees a catalogue that has not replayed its log. Closing uses the reverse order. A node of a cluster
//! connects to its peers between the catalogue and everything else, which may propose commands. What only the
//! duty node of a cluster has begins later, with its term ([`super::duty`]).

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
use mlgw_common::{CheckedClock, Clock, Lineage};
use mlgw_config::{Config, EtagKind, MachineSizes};
use mlgw_credentials::{Keyring, Sealer};
use mlgw_metadata::Catalogue;
use mlgw_node::ClusterNode;
use mlgw_objects::ObjectLayer;
use mlgw_objects::etag::EtagSource;
use mlgw_policy_runtime::{self, Policies, WatchedPolicyFiles, learning, system};
use mlgw_protocol::upload_ids::UploadIds;
use mlgw_segments::decisions::Decisions;
use mlgw_segments::hot::{Scrub, Upstreams};
use mlgw_segments::memory::MemoryTier;
use mlgw_segments::tiers::Tiers;
use mlgw_store::data_dir::DataDir;
use mlgw_store::node_file::NodeDescription;
use mlgw_store::start_reserve;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use tokio_util::task::AbortOnDropHandle;

/// The open parts of a server.
pub(super) struct ServerEngine {
    pub(super) dir: DataDir,
    /// Its part in the cluster.
    pub(super) part: ClusterPart,
    pub(super) parts: StorageParts,
    _start_reserve: AbortOnDropHandle<()>,
    /// Locks of segment directories outside the data directory, which has its own lock.
    _segments: Vec<File>,
    access_journal: AccessJournal,
    /// Sends dirty writes of a server without peers, unless it was recovered. In a cluster the duty node has
    /// a sender.
    sender: Option<Sender>,
}

/// The parts of a server that requests use. Clones share them. In a cluster the duty node has other
/// remote-backed buckets and another write-back in each term; those here are empty then.
#[derive(Clone)]
pub(super) struct StorageParts {
    /// Data directory.
    pub(super) path: PathBuf,
    pub(super) description: NodeDescription,
    pub(super) lineage: Lineage,
    /// The node's handle on its cluster; `None` for a server without peers.
    pub(super) cluster: Option<ClusterNode>,
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
    pub(super) writeback: WriteBack,
    pub(super) upstreams: Upstreams,
    pub(super) decisions: Decisions,
    pub(super) policies: Arc<Policies>,
    pub(super) objects: Arc<ObjectLayer>,
    pub(super) scrub: Arc<Scrub>,
    pub(super) keyring: Keyring,
    pub(super) upload_ids: UploadIds,
}

impl StorageParts {
    /// Returns what remote-backed buckets are opened with.
    pub(super) fn for_remote_backed(&self) -> RemoteBackedParts<'_> {
        RemoteBackedParts {
            machine: &self.machine,
            files: self.files,
            tiers: &self.tiers,
            upstreams: &self.upstreams,
            decisions: &self.decisions,
            policy_driver: &self.policy_driver,
        }
    }

    /// Returns what the write-back of these remote-backed buckets is opened with.
    pub(super) fn for_write_back(
        &self,
        config: &Config,
        remote_backed: &RemoteBackedBuckets,
    ) -> WriteBackParts {
        WriteBackParts {
            catalogue: self.catalogue.clone(),
            remote_backed: remote_backed.clone(),
            clock: Arc::clone(&self.clock),
            bytes_max: config.dirty_bytes_max(&self.machine),
            budgets: persist_budgets(config),
            duty_term: self.objects.duty_term,
        }
    }

    /// Collects the facts about this server that rules use. Ends with the policies.
    pub(super) fn collect_facts(&self) -> impl Future<Output = ()> + Send + use<> {
        let policy = Arc::downgrade(&self.policies);
        system::run(policy, self.tiers.clone(), self.remote_backed.clone(), Arc::clone(&self.clock))
    }

    /// Learns bounds of the policy. Ends with the policies.
    pub(super) fn learn(&self, config: &Config) -> impl Future<Output = ()> + Send + use<> {
        let policy = Arc::downgrade(&self.policies);
        let every = config.policy.learn_every;
        learning::run(policy, self.policy_driver.clone(), self.checked_clock.clone(), every)
    }
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
        let proofs = Arc::new(StoredProofs::new(catalogue.clone(), tiers.clone()));
        let scrub = start_scrub(config, &dir, &clock, Some(proofs), &catalogue, &tiers.hot)?;
        let policies = policies(config, part, &machine, &clock, &catalogue).await?;
        let PolicyStatistics { policy_driver, retention, access_journal } =
            PolicyStatistics::open(config, &dir, &machine, &policies, &*clock)?;
        let objects = Arc::new(ObjectLayer::new(catalogue.clone(), tiers.clone(), etag_source(config)));
        let reserve = start_reserve::maintain(dir.path().to_owned(), config.hot_reserve_bytes(&machine));
        let keyring = open_keyring(cluster.as_ref(), &catalogue, sealer, &clock).await?;
        let nowhere = RemoteBackedBuckets::default();
        let elsewhere = WriteBackParts {
            catalogue: catalogue.clone(),
            remote_backed: nowhere.clone(),
            clock: Arc::clone(&clock),
            bytes_max: config.dirty_bytes_max(&machine),
            budgets: persist_budgets(config),
            duty_term: None,
        };
        let mut parts = StorageParts {
            path: dir.path().to_owned(),
            description: dir.node().clone(),
            lineage: dir.lineage(),
            cluster,
            machine,
            files,
            clock,
            checked_clock,
            catalogue,
            tiers,
            remote_backed: nowhere,
            policy_driver,
            retention: Arc::new(retention),
            writeback: write_back_elsewhere(elsewhere)?,
            upstreams,
            decisions,
            policies,
            objects,
            scrub: Arc::new(scrub),
            keyring,
            upload_ids,
        };
        let sender = match part {
            ClusterPart::Alone | ClusterPart::Recovered => open_alone(config, part, &mut parts).await?,
            ClusterPart::Storage | ClusterPart::Gateway => None,
        };
        Ok(Self {
            dir,
            part,
            parts,
            _start_reserve: AbortOnDropHandle::new(tokio::spawn(reserve)),
            _segments: segments,
            access_journal,
            sender,
        })
    }

    /// Makes all state durable and closes the engine.
    pub(super) async fn close(self) {
        let StorageParts { cluster, scrub, remote_backed, tiers, catalogue, decisions, .. } = self.parts;
        if let Some(cluster) = &cluster {
            cluster.stop_segments();
        }
        scrub.stop();
        if let Some(sender) = self.sender {
            sender.stop().await;
        }
        if let Some(copies) = remote_backed.copies() {
            copies.shutdown().await;
        }
        self.access_journal.close();
        let flash = tiers.hot.flash().clone();
        tiers.hot.shutdown().await;
        flash.save();
        if let Some(cluster) = cluster {
            member::leave(cluster, &catalogue).await;
        }
        catalogue.shutdown().await;
        decisions.write();
        tracing::info!(data_dir = %self.dir.path().display(), "stopped");
    }
}

/// Returns the clock of a server, which the other nodes of its cluster confirm if there are any.
fn checked_clock(cluster: Option<&ClusterNode>, clock: &Arc<dyn Clock>) -> CheckedClock {
    cluster.map_or_else(|| CheckedClock::alone(Arc::clone(clock)), ClusterNode::clock)
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

/// Opens what a server without peers has, and the duty node of a cluster: remote-backed buckets, write-back
/// and the tasks of the policy. A recovered server sends nothing.
async fn open_alone(
    config: &Config,
    part: ClusterPart,
    parts: &mut StorageParts,
) -> Result<Option<Sender>, ServeError> {
    let (lineage, means) = (parts.lineage.clone(), parts.for_remote_backed());
    let remote_backed = open_remote_backed(config, lineage, means, None, &mut None).await?;
    let means = parts.for_write_back(config, &remote_backed);
    let (writeback, sender) = if part == ClusterPart::Recovered {
        (write_back_stopped(means)?, None)
    } else {
        let (writeback, sender) = start_write_back(means, &parts.tiers, &parts.decisions)?;
        (writeback, Some(sender))
    };
    (parts.remote_backed, parts.writeback) = (remote_backed, writeback);
    tokio::spawn(parts.learn(config));
    tokio::spawn(parts.collect_facts());
    Ok(sender)
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

/// Opens the running policy, with the watched files of a server without peers. In a cluster those of the duty
/// node count.
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
    let watched = match part {
        ClusterPart::Alone | ClusterPart::Recovered => watched_of(config),
        ClusterPart::Storage | ClusterPart::Gateway => WatchedPolicyFiles::default(),
    };
    Ok(Policies::open(catalogue.clone(), Arc::clone(clock), place, watched).await?)
}

/// Returns the policy files that the configuration names.
pub(super) fn watched_of(config: &Config) -> WatchedPolicyFiles {
    WatchedPolicyFiles { files: config.policy.files.clone(), frameworks: config.policy.frameworks.clone() }
}
