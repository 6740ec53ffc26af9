//! What runs on the duty node of a cluster: remote-backed buckets with write-back, jobs, the rules, and the
//! admin API for all of them.
//!
//! They begin with a term of duty and end with it; the listeners and everything else of a storage node go on.
//! A term begins like a start: the queues of dirty writes are read from the catalogue, once its rows have
//! everything that was acknowledged before. Nothing else is kept from one term to the next than clean copies.

use super::ServeError;
use super::bring_up::{StorageParts, watched_of};
use super::edge::gateway_of;
use super::error::io_error;
use super::listeners::DutyAdmin;
use super::remote_backed::{freshness_of, open_remote_backed, start_write_back};
use super::running::{AdminShared, admin_of, jobs_of, reconciler_context};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join3};
use mlgw_admin::Admin;
use mlgw_background::jobs::{JobContext, Jobs};
use mlgw_background::reconciler::PolicyReconciler;
use mlgw_background::writeback::Sender;
use mlgw_cache::copies::Copies;
use mlgw_cache::remote_backed::RemoteBackedBuckets;
use mlgw_cache::writeback::{WriteBack, WriteBackParts, begin_term};
use mlgw_common::time::{Instant, timeout};
use mlgw_config::Config;
use mlgw_metadata::BarrierScope;
use mlgw_node::{DutyBeginError, DutyWork};
use mlgw_objects::{ObjectLayer, TermedChanges};
use mlgw_policy_runtime::{WatchedPolicyFiles, following, watched_files};
use mlgw_protocol::member::MemberGateway;
use mlgw_remote::origin::OriginFence;
use mlgw_remote::upstream::UpstreamKind;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio_util::task::AbortOnDropHandle;

/// Time in which changes of origins that have begun end before they are cut. The next duty node waits longer.
const DRAIN: Duration = Duration::from_secs(5);

/// Longest time in which the other work of a term ends after that. Together this is less than the time after
/// which another node takes over without waiting for the end.
const STOP_MAX: Duration = Duration::from_secs(2);

/// Work of the duty node, on a storage node.
pub(super) struct StorageDuty {
    parts: StorageParts,
    shared: AdminShared,
    gateways: Arc<MemberGateway>,
    /// The gateway without remote-backed buckets.
    base: Arc<mlgw_protocol::Gateway>,
    admin: Arc<DutyAdmin>,
    /// Permission of the present term.
    fence: Mutex<Option<OriginFence>>,
    /// Clean copies of this process, once a term has begun.
    copies: tokio::sync::Mutex<Option<Copies>>,
    running: tokio::sync::Mutex<Option<RunningTerm>>,
    /// Tasks while another node has the duty: following its policy, and collecting facts about this node.
    following: Mutex<Option<[AbortOnDropHandle<()>; 2]>>,
}

/// The running parts of a term.
struct RunningTerm {
    fence: OriginFence,
    sender: Sender,
    jobs: Arc<Jobs>,
    reconciler: Arc<PolicyReconciler>,
    _policy_tasks: [AbortOnDropHandle<()>; 3],
}

impl StorageDuty {
    pub(super) fn new(
        parts: StorageParts,
        shared: AdminShared,
        gateways: Arc<MemberGateway>,
        admin: Arc<DutyAdmin>,
    ) -> Self {
        let base = gateways.load_full();
        let duty = Self {
            parts,
            shared,
            gateways,
            base,
            admin,
            fence: Mutex::default(),
            copies: tokio::sync::Mutex::default(),
            running: tokio::sync::Mutex::default(),
            following: Mutex::default(),
        };
        duty.follow();
        duty
    }

    /// Opens the clean copies that an earlier process left: they give way when objects need the disk, also
    /// while another node has the duty.
    pub(super) async fn adopt_copies(&self) -> Result<(), ServeError> {
        let config = self.shared.loaded.load().config.clone();
        if config.copies_dir().is_dir() {
            // Only the copies stay open.
            self.open_remote_backed(&config, &OriginFence::new()).await?;
        }
        Ok(())
    }

    /// Applies the settings that SIGHUP can change.
    pub(super) fn apply_settings(&self, config: &Config) {
        if let Some(admin) = self.admin.current() {
            admin.stored.remote_backed.set_freshness(freshness_of(config));
        }
    }

    /// Makes the clean copies durable. No term is running any more.
    pub(super) async fn close(&self) {
        if let Some(copies) = self.copies.lock().await.take() {
            copies.shutdown().await;
        }
    }

    /// Follows the policy of another node. Its rules use the facts about this node in the requests that this
    /// node serves.
    fn follow(&self) {
        let following = tokio::spawn(following::run(Arc::downgrade(&self.parts.policies)));
        let facts = tokio::spawn(self.parts.collect_facts());
        *self.following.lock() = Some([following, facts].map(AbortOnDropHandle::new));
    }

    async fn begin_term(&self, term: Option<u64>) -> Result<(), ServeError> {
        let config = self.shared.loaded.load().config.clone();
        let fence = OriginFence::new();
        let remote_backed = self.open_remote_backed(&config, &fence).await?;
        let mut running = self.running.lock().await;
        let objects = ObjectLayer { duty_term: term, ..ObjectLayer::clone(&self.parts.objects) };
        let mut parts = StorageParts { remote_backed, objects: Arc::new(objects), ..self.parts.clone() };
        let means = parts.for_write_back(&config, &parts.remote_backed);
        let (writeback, sender) = read_queues(means, &parts).await?;
        parts.writeback = writeback;
        let jobs = jobs_of(&parts, term);
        let admin = match admin_of(&parts, &self.shared, &jobs) {
            Ok(admin) => Arc::new(admin),
            Err(error) => {
                sender.stop().await;
                return Err(error);
            }
        };
        self.parts.policies.set_duty_term(term);
        let policy_tasks = self.start_policy(&config, &parts);
        *self.fence.lock() = Some(fence.clone());
        let of_jobs = ObjectLayer { termed: TermedChanges::All, ..ObjectLayer::clone(&parts.objects) };
        jobs.start(JobContext {
            objects: Arc::new(of_jobs),
            policies: Arc::clone(&parts.policies),
            writeback: parts.writeback.clone(),
            lease: Some(fence.clone()),
        });
        let reconciler = start_reconciler(&config, &parts, &admin);
        let gateway = gateway_of(&parts, &config, &self.shared.metrics, Some(fence.clone()));
        self.gateways.store(Arc::new(gateway));
        self.admin.set(&admin);
        *running = Some(RunningTerm { fence, sender, jobs, reconciler, _policy_tasks: policy_tasks });
        Ok(())
    }

    /// Waits until every write that a duty node before acknowledged is in the rows of this node. What such a
    /// node sends later to a bucket with a queue is rejected from now on.
    async fn until_queues_are_complete(&self, term: Option<u64>) -> Result<(), String> {
        let catalogue = &self.parts.catalogue;
        if let Some(term) = term {
            catalogue.barrier(BarrierScope::System).await.map_err(|error| error.to_string())?;
            begin_term(catalogue, term).await.map_err(|error| error.to_string())?;
        }
        let groups = self.groups_of_term();
        catalogue.barrier(BarrierScope::Groups(&groups)).await.map_err(|error| error.to_string())
    }

    /// The groups whose rows are awaited: those with keys of remote-backed buckets, and all others that have
    /// a majority. Without sets the voters of one group are those of all.
    fn groups_of_term(&self) -> BTreeSet<u32> {
        let catalogue = &self.parts.catalogue;
        let mut groups = catalogue.object_groups();
        if let Some(cluster) = self.parts.cluster.as_ref().filter(|_| catalogue.has_sets()) {
            let mut needed = BTreeSet::new();
            let buckets = catalogue.buckets(None, None, usize::MAX);
            for bucket in buckets.iter().filter(|bucket| bucket.binding.is_some()) {
                needed
                    .extend(catalogue.bucket_ranges(bucket.bucket_id()).into_iter().map(|(_, group)| group));
            }
            let lost = cluster.lost_groups().borrow().clone();
            groups.retain(|group| needed.contains(group) || !lost.contains(group));
        }
        groups
    }

    async fn open_remote_backed(
        &self,
        config: &Config,
        fence: &OriginFence,
    ) -> Result<RemoteBackedBuckets, ServeError> {
        let (lineage, parts) = (self.parts.lineage.clone(), self.parts.for_remote_backed());
        let mut copies = self.copies.lock().await;
        open_remote_backed(config, lineage, parts, Some(fence), &mut copies).await
    }

    /// Starts to learn, to apply watched files and to collect facts, instead of following another node. The
    /// facts include those about the remote-backed buckets of the term.
    fn start_policy(&self, config: &Config, parts: &StorageParts) -> [AbortOnDropHandle<()>; 3] {
        *self.following.lock() = None;
        parts.policies.set_watched(watched_of(config));
        [
            AbortOnDropHandle::new(tokio::spawn(parts.learn(config))),
            AbortOnDropHandle::new(tokio::spawn(parts.collect_facts())),
            AbortOnDropHandle::new(tokio::spawn(watched_files::watch(Arc::clone(&parts.policies)))),
        ]
    }
}

/// Reads the queues of write-back, and starts to send them. That may take long, so no thread of the runtime
/// waits for it.
async fn read_queues(means: WriteBackParts, parts: &StorageParts) -> Result<(WriteBack, Sender), ServeError> {
    let (tiers, decisions) = (parts.tiers.clone(), parts.decisions.clone());
    let read = spawn_blocking(move || start_write_back(means, &tiers, &decisions)).await;
    read.map_err(|error| io_error("write-back records")(io::Error::other(error)))?
}

/// Starts the reconciler of a term.
fn start_reconciler(config: &Config, parts: &StorageParts, admin: &Admin) -> Arc<PolicyReconciler> {
    let (context, objects) = (reconciler_context(admin, parts), Arc::clone(&parts.objects));
    PolicyReconciler::start(context, objects, config.policy.look_every)
}

impl RunningTerm {
    /// Ends the term. Returns true if the outcome of every change of an origin is known.
    async fn end(self) -> bool {
        // Nothing new begins. What is refused or cut from now on is no failure of a job.
        self.jobs.close();
        self.reconciler.cancel();
        // Before the others, because a sender or a job that stops drops its requests.
        let is_known = self.fence.end(DRAIN).await;
        // All of them before the first wait: one that hangs keeps no other one running.
        self.cancel();
        let others = join3(self.reconciler.stop(), self.jobs.stop(), self.sender.stop());
        if timeout(STOP_MAX, others).await.is_err() {
            tracing::warn!("work of the duty node ends later; it cannot change what another node now does");
        }
        is_known
    }

    fn cancel(&self) {
        self.reconciler.cancel();
        self.jobs.cancel();
        self.sender.cancel();
    }
}

impl Drop for RunningTerm {
    /// Cancels the work of a term whose end was not awaited.
    fn drop(&mut self) {
        self.cancel();
    }
}

impl DutyWork for StorageDuty {
    fn is_fit(&self) -> bool {
        let loaded = self.shared.loaded.load();
        let origins = loaded.config.upstreams.iter().filter(|of| of.kind == UpstreamKind::S3);
        let origins: HashSet<&str> = origins.map(|of| of.name.as_str()).collect();
        self.parts.catalogue.bound_upstreams().iter().all(|upstream| origins.contains(upstream.as_str()))
    }

    fn begin(&self, term: Option<u64>) -> BoxFuture<'_, Result<(), DutyBeginError>> {
        async move {
            self.until_queues_are_complete(term).await.map_err(DutyBeginError::Unconfirmed)?;
            if let Err(error) = self.parts.policies.load_newer().await {
                tracing::warn!(%error, "the newest policy is not loaded; it is checked again");
            }
            self.begin_term(term).await.map_err(|error| DutyBeginError::Failed(error.to_string()))
        }
        .boxed()
    }

    fn extend(&self, lease: Instant) {
        if let Some(fence) = &*self.fence.lock() {
            fence.extend(lease);
        }
    }

    fn allow_acts(&self) {
        if let Some(fence) = &*self.fence.lock() {
            fence.open();
        }
    }

    fn end(&self) -> BoxFuture<'_, bool> {
        async move {
            let Some(term) = self.running.lock().await.take() else { return true };
            self.gateways.store(Arc::clone(&self.base));
            self.admin.clear();
            let is_known = term.end().await;
            *self.fence.lock() = None;
            // Pins of rules end with the reconciler that set them.
            self.parts.tiers.hot.set_pinned(HashSet::new());
            self.parts.policies.set_watched(WatchedPolicyFiles::default());
            self.parts.policies.set_duty_term(None);
            self.follow();
            is_known
        }
        .boxed()
    }
}
