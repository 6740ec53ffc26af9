//! A Raft group on this node: open, propose, purge, shut down.

use super::limiter::CommandLimiter;
use super::log::GroupLog;
use super::machine::{Figures, GroupStateMachine, Watcher};
use super::network::NoNetwork;
use super::queue::{
    self, BatchTurn, CommandQueue, CommandResult, EnqueueError, InFlightBatch, OutgoingBatch,
};
use super::snapshot::{GroupSnapshotBuilder, SnapshotDir};
use crate::catalogue::options::FatalHandler;
use crate::store::log::LogStore;
use crate::store::state::{StateDb, StateStore};
use crate::store_error::StoreError;
use futures_util::FutureExt;
use mlgw_common::histogram::DurationHistogram;
use mlgw_formats::command::{Command, Reject, Reply};
use mlgw_formats::log_batch::Outcomes;
use mlgw_formats::log_types::{OutcomeCallback, RaftTypes};
use openraft::async_runtime::WatchReceiver;
use openraft::network::{NetSnapshot, RaftNetworkFactory};
use openraft::raft::ClientWriteResult;
use openraft::{BasicNode, Config, LogIdOptionExt, Raft, SnapshotPolicy};
use prost::Message as _;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;

/// Longest time that a lone voter may take to become leader after its log was replayed, or that a purge may
/// take.
const STEP_MAX: Duration = Duration::from_secs(60);

/// Maximum number of times that a gathering batch yields to other ready tasks while fewer commands are queued
/// than expected.
const GATHER_YIELDS_MAX: usize = 16;

/// Reason that a command has no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GroupError {
    Rejected(Reject),
    Overloaded,
    Stopped,
}

/// Parts from which a group is opened.
pub(crate) struct GroupParts {
    pub(crate) id: u32,
    pub(crate) node: u64,
    pub(crate) log: LogStore,
    pub(crate) store: StateStore,
    pub(crate) watcher: Arc<dyn Watcher>,
    pub(crate) fatal: FatalHandler,
}

/// A group. Clones share it.
#[derive(Clone)]
pub(crate) struct Group {
    pub(crate) id: u32,
    pub(crate) raft: Raft<RaftTypes, GroupStateMachine>,
    queue: Arc<CommandQueue>,
    limiter: Arc<CommandLimiter>,
    store: Arc<StateStore>,
    log: GroupLog,
    snapshots_taken: Arc<AtomicU64>,
    figures: Arc<Figures>,
}

/// openraft's settings of a lone voter, which needs no ticks. Snapshots are made only on request.
pub(crate) fn lone_voter_config() -> Config {
    Config {
        cluster_name: "mlgw".into(),
        heartbeat_interval: 100,
        election_timeout_min: 500,
        election_timeout_max: 1000,
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: 0,
        purge_batch_size: 1,
        max_payload_entries: 64,
        enable_tick: false,
        enable_heartbeat: false,
        enable_elect: false,
        ..Config::default()
    }
}

/// The two stores in the form that openraft requires, and a function that builds the group around them.
pub(crate) fn stores(
    parts: GroupParts,
) -> (GroupLog, GroupStateMachine, impl FnOnce(Raft<RaftTypes, GroupStateMachine>) -> Group) {
    let store = Arc::new(parts.store);
    let log = GroupLog::new(parts.log, parts.id);
    let taken = Arc::<AtomicU64>::default();
    let figures = Arc::<Figures>::default();
    let machine = GroupStateMachine {
        group: parts.id,
        store: Arc::clone(&store),
        log: log.clone(),
        builder: GroupSnapshotBuilder { store: Arc::clone(&store), snapshots_taken: Arc::clone(&taken) },
        watcher: parts.watcher,
        figures: Arc::clone(&figures),
        fatal: parts.fatal,
        snapshot: None,
        running: Arc::default(),
    };
    let (id, shared) = (parts.id, log.clone());
    let group = move |raft| Group {
        id,
        raft,
        queue: Arc::default(),
        limiter: Arc::default(),
        store,
        log: shared,
        snapshots_taken: taken,
        figures,
    };
    (log, machine, group)
}

impl Group {
    /// Opens a group whose only voter is this node. When this returns, every entry of its log has been
    /// applied.
    pub(crate) async fn open(parts: GroupParts) -> Result<Self, StoreError> {
        let node = parts.node;
        let group = Self::start(parts, NoNetwork, lone_voter_config()).await?;
        let last = group.log.last()?;
        let initialized = group.raft.is_initialized().await.map_err(|e| StoreError(e.to_string()))?;
        if initialized {
            // A voter that led before leads at once; one whose first election was interrupted has to start
            // another.
            let leads = group.raft.metrics().borrow_watched().state.is_leader();
            if !leads {
                group.raft.trigger().elect(false).await.map_err(|e| StoreError(e.to_string()))?;
            }
        } else {
            let members = BTreeMap::from([(node, BasicNode { addr: String::new() })]);
            group.raft.initialize(members).await.map_err(|e| StoreError(e.to_string()))?;
        }
        let leads = group.raft.wait(Some(STEP_MAX));
        let replayed = leads
            .metrics(
                |m| m.current_leader == Some(node) && m.last_applied.index() >= last.index(),
                "the log was replayed",
            )
            .await;
        replayed.map_err(|error| StoreError(error.to_string()))?;
        Ok(group)
    }

    /// Starts a member with a network of its own.
    pub(crate) async fn start<N>(parts: GroupParts, network: N, config: Config) -> Result<Self, StoreError>
    where
        N: RaftNetworkFactory<RaftTypes>,
        N::Network: NetSnapshot<RaftTypes, SnapshotData = SnapshotDir>,
    {
        let node = parts.node;
        parts.watcher.replaced(parts.id, &*parts.store.current())?;
        let (log, machine, group) = stores(parts);
        let running = Arc::clone(&machine.running);
        let config = config.validate().map_err(|error| StoreError(error.to_string()))?;
        let raft = Raft::new(node, Arc::new(config), network, log, machine)
            .await
            .map_err(|error| StoreError(error.to_string()))?;
        running.store(true, Ordering::Release);
        Ok(group(raft))
    }

    /// Proposes a command and waits for its reply.
    pub(crate) async fn propose(&self, command: Arc<Command>) -> Result<Reply, GroupError> {
        let _room = self.limiter.acquire(command.encoded_len()).await.map_err(|_| GroupError::Overloaded)?;
        let answer = self.queue.push(command).map_err(|refused| match refused {
            EnqueueError::Full => GroupError::Overloaded,
            EnqueueError::Stopped => GroupError::Stopped,
        })?;
        self.take_turn();
        match answer.await {
            Ok(outcome) => outcome.map_err(GroupError::Rejected),
            Err(_) => Err(GroupError::Stopped),
        }
    }

    /// Sends the queued commands, now or when others had the chance to join.
    fn take_turn(&self) {
        match self.queue.turn() {
            BatchTurn::Now => self.send(),
            BatchTurn::Gather => {
                let group = self.clone();
                tokio::spawn(async move {
                    for _ in 0..GATHER_YIELDS_MAX {
                        tokio::task::yield_now().await;
                        if group.queue.has_gathered() {
                            break;
                        }
                    }
                    group.queue.finish_gathering();
                    group.send();
                });
            }
            BatchTurn::Wait => {}
        }
    }

    /// Sends the queued commands if a batch may be sent now.
    fn send(&self) {
        while let Some(OutgoingBatch { batch, answers }) = self.queue.next_batch() {
            let group = self.clone();
            let under_way = InFlightBatch::new(&self.queue);
            let route = OutcomeCallback(Box::new(move |result: ClientWriteResult<RaftTypes>| match result {
                Ok(response) => group.finish(under_way, answers, response.data),
                Err(error) => tracing::error!(group = group.id, %error, "a batch was rejected"),
            }));
            self.hand_over(batch, route);
        }
    }

    /// Answers a batch and sends the next.
    fn finish(
        &self,
        under_way: InFlightBatch,
        answers: Vec<oneshot::Sender<CommandResult>>,
        outcomes: Outcomes,
    ) {
        queue::send_answers(answers, outcomes);
        under_way.done();
        self.take_turn();
    }

    /// Hands a batch to the Raft core. Its channel has room for far more batches than are ever in flight, so
    /// this does not wait; if it had to, a separate task waits.
    fn hand_over(
        &self,
        batch: mlgw_formats::log_batch::Batch,
        route: OutcomeCallback<ClientWriteResult<RaftTypes>>,
    ) {
        let (raft, queue) = (self.raft.clone(), Arc::clone(&self.queue));
        let handed = async move {
            if raft.client_write_ff(batch, Some(route)).await.is_err() {
                queue.stop();
            }
        };
        let mut handed = Box::pin(tokio::task::unconstrained(handed));
        if handed.as_mut().now_or_never().is_none() {
            tokio::spawn(handed);
        }
    }

    /// The applied state.
    pub(crate) fn state(&self) -> Arc<StateDb> {
        self.store.current()
    }

    /// Path of a directory beside the state that the next start removes.
    pub(crate) fn scratch_dir(&self, name: &str) -> PathBuf {
        self.store.scratch_dir(name)
    }

    /// Bytes of the state's files.
    pub(crate) fn state_bytes(&self) -> u64 {
        self.store.bytes()
    }

    /// Bytes of log since the last purge.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.log.bytes()
    }

    /// Number of queued commands.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Time that commands waited for their batch.
    pub(crate) fn wait_times(&self) -> &DurationHistogram {
        self.queue.wait_times()
    }

    /// Counts of entries and commands.
    pub(crate) fn figures(&self) -> &Figures {
        &self.figures
    }

    /// Number of snapshots taken.
    pub(crate) fn snapshots(&self) -> &AtomicU64 {
        &self.snapshots_taken
    }

    /// Flushes the state and purges the log up to the position that the flushed state contains.
    pub(crate) async fn compact(&self) -> Result<(), StoreError> {
        let failed = |error: &dyn std::fmt::Display| StoreError(error.to_string());
        // Entries appended from here on may be purged too; they still count as unpurged.
        let counted = self.log.bytes();
        let (before, applied) = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            (metrics.snapshot.index(), metrics.last_applied.index())
        };
        // After a crash between snapshot and purge there is no newer position to take a snapshot of.
        let upto = if before >= applied { before } else { self.take_snapshot(before).await? };
        let Some(upto) = upto else { return Ok(()) };
        self.raft.trigger().purge_log(upto).await.map_err(|e| failed(&e))?;
        let purged = self.raft.wait(Some(STEP_MAX));
        purged
            .metrics(|m| m.purged.index() >= Some(upto), "the log is purged")
            .await
            .map_err(|e| failed(&e))?;
        // Also if everything was purged before: the count then came from the size of the store's files at the
        // start.
        self.log.subtract_purged(counted);
        let log = self.log.clone();
        let given_back = tokio::task::spawn_blocking(move || log.free_purged_space(upto + 1));
        given_back.await.map_err(|e| failed(&e))?
    }

    /// Takes a snapshot that reaches beyond `before` and returns its last index. Taking it flushes the state
    /// and reads the flushed position back.
    async fn take_snapshot(&self, before: Option<u64>) -> Result<Option<u64>, StoreError> {
        let failed = |error: &dyn std::fmt::Display| StoreError(error.to_string());
        self.raft.trigger().snapshot().await.map_err(|e| failed(&e))?;
        let taken = self.raft.wait(Some(STEP_MAX));
        let taken = taken.metrics(|m| m.snapshot.index() > before, "a snapshot is taken").await;
        Ok(taken.map_err(|e| failed(&e))?.snapshot.index())
    }

    /// Waits for commands in flight, stops, and flushes.
    pub(crate) async fn shutdown(&self) -> Result<(), StoreError> {
        while !self.queue.is_idle() {
            mlgw_common::time::sleep(Duration::from_millis(1)).await;
        }
        self.queue.stop();
        if let Err(error) = self.raft.shutdown().await {
            return Err(StoreError(error.to_string()));
        }
        let state = self.state();
        let flushed = tokio::task::spawn_blocking(move || state.flush());
        flushed.await.map_err(|error| StoreError(error.to_string()))?
    }
}
