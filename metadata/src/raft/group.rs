//! A Raft group on this node: open, propose, purge, shut down.
//!
//! A group opens as a lone voter without a network, or as a member with peers. A member does not wait for the
//! others: it may open while they are down.

use super::answering_voters::AnsweringVoters;
use super::barrier::Barriers;
use super::error::GroupError;
use super::heartbeats::Heartbeats;
use super::held_commits::NeededCommits;
use super::last_append::LastAppend;
use super::lease::MemberLease;
use super::limiter::CommandLimiter;
use super::log::GroupLog;
use super::lone_voter::LoneVoter;
use super::machine::{Figures, GroupStateMachine, Watcher};
use super::network::NoNetwork;
use super::outcomes::AppliedOutcomes;
use super::peers::MemberPeers;
use super::queue::{self, AppliedReply, BatchNumbers, BatchTurn, CommandQueue, InFlightBatch, OutgoingBatch};
use super::recency::LastConfirmation;
use super::remote::{MemberNetwork, RemoteNetwork};
use super::row_digests::{DigestPace, RowDigests};
use super::snapshot::{GroupSnapshotBuilder, SnapshotDir, SnapshotsSent};
use super::snapshot_receiver::SnapshotsReceived;
use super::vote_pause::VotePause;
use crate::catalogue::options::FatalHandler;
use crate::store::log::LogStore;
use crate::store::state::{StateDb, StateStore};
use crate::store_error::StoreError;
use futures_util::FutureExt;
use mlgw_common::histogram::DurationHistogram;
use mlgw_common::limits::APPEND_ENTRIES_MAX;
use mlgw_common::time::Instant;
use mlgw_formats::command::Command;
use mlgw_formats::log_types::{Leadership, LogId, OutcomeCallback, RaftTypes};
use openraft::async_runtime::WatchReceiver;
use openraft::network::{NetSnapshot, RaftNetworkFactory};
use openraft::raft::ClientWriteResult;
use openraft::storage::RaftLogReader as _;
use openraft::{BasicNode, Config, LogIdOptionExt, Raft, SnapshotPolicy};
use prost::Message as _;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Longest time that a lone voter may take to become leader after its log was replayed, or that a purge may
/// take.
pub(super) const STEP_MAX: Duration = Duration::from_secs(60);

/// Maximum number of times that a gathering batch yields to other ready tasks while fewer commands are queued
/// than expected.
const GATHER_YIELDS_MAX: usize = 16;

/// Longest time that a command of a group with several voters waits for its outcome: a leader that lost its
/// followers replicates it for as long as they are gone.
pub(super) const OUTCOME_WAIT: Duration = Duration::from_secs(10);

/// Longest time that a command that is not in the log waits for a leader. A request has waited at a barrier
/// before, which takes as long as an election.
const LEADER_WAIT: Duration = Duration::from_secs(2);

/// Time after which a command whose batch was discarded is not proposed again.
const PROPOSE_AGAIN_MAX: Duration = Duration::from_secs(15);

/// Pause before a command that is not in the log is proposed again.
const PROPOSE_PAUSE: Duration = Duration::from_millis(20);

/// Shortest time between the begins of two confirmations of a leader if the first one had several readers.
/// One costs three nodes about as much as three reads of small objects.
const SHARED_BARRIER_INTERVAL: Duration = Duration::from_millis(1);

/// Entries that a learner may lack when openraft counts it as up to date; bytes are checked as well.
const LAG_ENTRIES_MAX: u64 = 64;

/// Parts from which a group is opened.
pub(crate) struct GroupParts {
    pub(crate) id: u32,
    pub(crate) node: u64,
    pub(crate) log: LogStore,
    pub(crate) store: StateStore,
    pub(crate) watcher: Arc<dyn Watcher>,
    /// The newest cluster version that this build knows.
    pub(crate) cluster_version: u32,
    pub(crate) fatal: FatalHandler,
    /// The other nodes; `None` for a lone voter.
    pub(crate) peers: Option<Arc<dyn MemberPeers>>,
    /// The heartbeats of all groups of the node; `None` if each group sends its own.
    pub(crate) heartbeats: Option<Arc<Heartbeats>>,
    /// Rate at which the rows of all groups of the node are digested.
    pub(crate) digest_pace: Arc<DigestPace>,
}

/// A group. Clones share it.
#[derive(Clone)]
pub(crate) struct Group {
    pub(crate) id: u32,
    pub(crate) raft: Raft<RaftTypes, GroupStateMachine>,
    pub(super) node: u64,
    /// The newest cluster version that this build knows.
    pub(super) known_version: u32,
    pub(super) fatal: FatalHandler,
    pub(super) network: Option<RemoteNetwork>,
    pub(super) outcomes: Arc<AppliedOutcomes>,
    pub(super) received: Arc<SnapshotsReceived>,
    pub(super) row_digests: Arc<RowDigests>,
    queue: Arc<CommandQueue>,
    pub(super) limiter: Arc<CommandLimiter>,
    store: Arc<StateStore>,
    pub(super) log: GroupLog,
    snapshots_taken: Arc<AtomicU64>,
    figures: Arc<Figures>,
    pub(super) barriers: Arc<Barriers<()>>,
    /// The last barrier that has passed.
    pub(super) confirmation: Arc<LastConfirmation>,
    /// Confirmations of the leadership of this member, for the readers of all nodes.
    pub(super) read_indexes: Arc<Barriers<LogId>>,
    pub(super) answering_voters: Arc<AnsweringVoters>,
    pub(super) lone_voter: Arc<LoneVoter>,
    pub(super) member_lease: Arc<MemberLease>,
    pub(super) needed_commits: NeededCommits,
    pub(super) vote_pause: VotePause,
    pub(super) last_append: Arc<LastAppend>,
    pub(super) watcher: Arc<dyn Watcher>,
    pub(super) batch_numbers: Arc<BatchNumbers>,
    sent: SnapshotsSent,
}

/// openraft's settings of a member with peers. Snapshots are made, and the log is purged, only on request.
pub(crate) fn member_config() -> Config {
    Config {
        cluster_name: "mlgw".into(),
        heartbeat_interval: 250,
        election_timeout_min: 1000,
        election_timeout_max: 2000,
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        purge_batch_size: 1,
        // A slow follower needs as much as a call may have. Its bytes are limited by the reader of the log.
        max_payload_entries: APPEND_ENTRIES_MAX as u64,
        replication_lag_threshold: LAG_ENTRIES_MAX,
        enable_pre_vote: Some(true),
        // A leader that restarts may have lost its followers' newer entries to a vote that it forgot.
        enable_leader_restore: Some(false),
        ..Config::default()
    }
}

/// openraft's settings of a member whose heartbeats the catalogue starts, with those of all groups of the
/// node. openraft's clock then finds elections that are due, and nothing else
/// ([`super::election_clock`]). It ticks about five times in an interval of heartbeats.
pub(crate) fn gathered_config() -> Config {
    Config { heartbeat_interval: 900, enable_heartbeat: false, ..member_config() }
}

/// openraft's settings of a lone voter, which needs no ticks and leads at once after a restart.
pub(crate) fn lone_voter_config() -> Config {
    Config {
        enable_tick: false,
        enable_heartbeat: false,
        enable_elect: false,
        enable_pre_vote: None,
        enable_leader_restore: None,
        ..member_config()
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
    let lone_voter = Arc::new(LoneVoter::new(parts.node));
    let sent = SnapshotsSent::default();
    let outcomes = Arc::<AppliedOutcomes>::default();
    // A server without peers has nothing to compare with.
    let row_digests = Arc::new(RowDigests::new(parts.id, parts.digest_pace, parts.peers.is_some()));
    let machine = GroupStateMachine {
        group: parts.id,
        store: Arc::clone(&store),
        log: log.clone(),
        builder: GroupSnapshotBuilder {
            store: Arc::clone(&store),
            snapshots_taken: Arc::clone(&taken),
            sent: sent.clone(),
            space: Arc::clone(log.space()),
        },
        watcher: Arc::clone(&parts.watcher),
        figures: Arc::clone(&figures),
        lone_voter: Arc::clone(&lone_voter),
        cluster_version: parts.cluster_version,
        outcomes: Arc::clone(&outcomes),
        row_digests: Arc::clone(&row_digests),
        fatal: Arc::clone(&parts.fatal),
        running: Arc::default(),
    };
    let (fatal, watcher) = (parts.fatal, parts.watcher);
    let (id, node, known_version, shared) = (parts.id, parts.node, parts.cluster_version, log.clone());
    let network = parts.peers.map(|peers| RemoteNetwork { peers, group: id });
    let group = move |raft: Raft<RaftTypes, GroupStateMachine>| Group {
        id,
        node,
        known_version,
        fatal,
        network,
        outcomes,
        received: Arc::default(),
        row_digests,
        queue: Arc::default(),
        limiter: Arc::default(),
        store,
        log: shared,
        snapshots_taken: taken,
        figures,
        barriers: Arc::new(Barriers::new(SHARED_BARRIER_INTERVAL)),
        confirmation: Arc::default(),
        read_indexes: Arc::new(Barriers::new(Duration::ZERO)),
        answering_voters: Arc::default(),
        lone_voter,
        member_lease: Arc::new(MemberLease::new(raft.config().election_timeout_max)),
        needed_commits: NeededCommits::default(),
        vote_pause: VotePause::default(),
        last_append: Arc::default(),
        watcher,
        batch_numbers: Arc::default(),
        sent,
        raft,
    };
    (log, machine, group)
}

impl Group {
    /// Opens a group whose only voter is this node. When this returns, every entry of its log has been
    /// applied.
    pub(crate) async fn open(parts: GroupParts) -> Result<Self, StoreError> {
        let node = parts.node;
        let group = Self::start(parts, NoNetwork, lone_voter_config()).await?;
        let initialized = group.raft.is_initialized().await.map_err(|e| StoreError(e.to_string()))?;
        if initialized {
            group.check_alone().await?;
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
        group.replay_log().await?;
        Ok(group)
    }

    /// Opens a group as a member with peers. A group that has no log and no state yet stays empty until the
    /// leader sends it something. The only voter leads, and has applied its log, when this returns.
    pub(crate) async fn open_member(parts: GroupParts, config: Config) -> Result<Self, StoreError> {
        let peers = parts.peers.clone().ok_or_else(|| StoreError("a member has peers".into()))?;
        let stored = GroupLog::new(parts.log.clone(), parts.id).read_vote().await;
        let stored = stored.map_err(|error| StoreError(error.to_string()))?;
        let vote_pause = VotePause::after_start(parts.node, stored, config.election_timeout_max);
        let heartbeats = parts.heartbeats.clone();
        let network = RemoteNetwork { peers, group: parts.id };
        let member_lease = Arc::new(MemberLease::new(config.election_timeout_max));
        let lease = Arc::clone(&member_lease);
        let needed_commits = NeededCommits::default();
        let needed = needed_commits.clone();
        let network =
            MemberNetwork { network, vote_pause, member_lease: lease, heartbeats, needed_commits: needed };
        let group = Self::start(parts, network, config).await?;
        let group = Self { vote_pause, member_lease, needed_commits, ..group };
        if group.effective_voters().await? == [group.node] {
            group.raft.trigger().elect(false).await.map_err(|e| StoreError(e.to_string()))?;
            group.replay_log().await?;
        }
        Ok(group)
    }

    /// Node ids of the voters that the log or the state names last.
    async fn effective_voters(&self) -> Result<Vec<u64>, StoreError> {
        let voters = self.raft.with_raft_state(|state| {
            let membership = state.membership_state.effective();
            membership.voter_ids().collect::<Vec<u64>>()
        });
        voters.await.map_err(|error| StoreError(error.to_string()))
    }

    /// Refuses a group with other voters: without a network it would wait for them, or lead alone.
    async fn check_alone(&self) -> Result<(), StoreError> {
        let voters = self.effective_voters().await?;
        if voters == [self.node] {
            return Ok(());
        }
        let _ = self.raft.shutdown().await;
        Err(StoreError(format!(
            "group {} has the voters {voters:?}: start this node with the settings of its cluster",
            self.id
        )))
    }

    /// Waits until this member, the only voter, leads and has applied its log.
    async fn replay_log(&self) -> Result<(), StoreError> {
        let (group, node, last) = (self, self.node, self.log.last()?);
        let leads = group.raft.wait(Some(STEP_MAX));
        let replayed = leads
            .metrics(
                // The vote in the metrics is the one on disk, without which this member proposes nothing.
                |m| {
                    let leads = m.current_leader == Some(node) && m.vote.committed;
                    let applied = m.last_applied.index();
                    leads && applied >= last.index() && applied >= m.last_log_index
                },
                "the log was replayed",
            )
            .await;
        let metrics = replayed.map_err(|error| StoreError(error.to_string()))?;
        group.lone_voter.replayed(metrics.membership_config.voter_ids());
        Ok(())
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

    /// Proposes a command and waits for its reply, which this member has then applied.
    pub(crate) async fn propose(&self, command: Arc<Command>) -> Result<AppliedReply, GroupError> {
        let _room = self.limiter.acquire(command.encoded_len()).await.map_err(|_| GroupError::Overloaded)?;
        if self.lone_voter.is_sure() {
            self.propose_under(self.leadership()?, command).await
        } else {
            self.propose_among_members(command).await
        }
    }

    /// Proposes a command under the leadership that this member knows. A command that will never be
    /// applied is proposed again for a while, under a later leadership. Any other one is not.
    async fn propose_among_members(&self, command: Arc<Command>) -> Result<AppliedReply, GroupError> {
        let begun = Instant::now();
        let mut deadline = begun + LEADER_WAIT;
        loop {
            let error = match self.known_leadership() {
                Ok(leadership) => match self.propose_under(leadership, Arc::clone(&command)).await {
                    Err(error @ GroupError::NotLeader { .. }) => error,
                    // The time until a later leadership began is no wait for a leader.
                    Err(error @ GroupError::Discarded) => {
                        deadline = (Instant::now() + LEADER_WAIT).min(begun + PROPOSE_AGAIN_MAX);
                        error
                    }
                    outcome => return outcome,
                },
                Err(error) => error,
            };
            if self.network.is_none() || Instant::now() >= deadline {
                return Err(error);
            }
            mlgw_common::time::sleep(PROPOSE_PAUSE).await;
        }
    }

    /// Proposes a command under one leadership, and under no later one.
    pub(crate) async fn propose_under(
        &self,
        leadership: Leadership,
        command: Arc<Command>,
    ) -> Result<AppliedReply, GroupError> {
        let answer = self.queue.push(command, leadership)?;
        self.take_turn();
        let answered = if self.lone_voter.is_sure() {
            answer.await
        } else {
            let waited = mlgw_common::time::timeout(OUTCOME_WAIT, answer).await;
            waited.map_err(|_| GroupError::UnknownOutcome)?
        };
        answered.unwrap_or(Err(GroupError::UnknownOutcome))
    }

    /// Sends the queued commands, now or when others had the chance to join.
    pub(super) fn take_turn(&self) {
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
        while let Some(outgoing) = self.queue.next_batch() {
            let in_flight = InFlightBatch::new(&self.queue);
            if let Some(network) = &self.network
                && outgoing.leadership.node_id != self.node
            {
                tokio::spawn(self.clone().send_to_leader(network.clone(), outgoing, in_flight));
                continue;
            }
            let OutgoingBatch { batch, leadership, answers } = outgoing;
            let group = self.clone();
            let route = OutcomeCallback(Box::new(move |result: ClientWriteResult<RaftTypes>| {
                match result {
                    Ok(response) => queue::send_outcomes(answers, response.log_id.index, response.data),
                    Err(error) => {
                        tracing::info!(group = group.id, %error, "a batch of commands was not replicated");
                        queue::send_failure(answers, &GroupError::of_write(error));
                    }
                }
                in_flight.done();
                group.take_turn();
            }));
            self.hand_over(batch, leadership, route);
        }
    }

    /// Hands a batch to the Raft core. Its channel has room for far more batches than are ever in flight, so
    /// this does not wait; if it had to, a separate task waits.
    fn hand_over(
        &self,
        batch: mlgw_formats::log_batch::Batch,
        leadership: Leadership,
        route: OutcomeCallback<ClientWriteResult<RaftTypes>>,
    ) {
        let (raft, queue) = (self.raft.clone(), Arc::clone(&self.queue));
        let handed = async move {
            if raft.write(batch).responder(route).with_leader(leadership).await.is_err() {
                queue.stop();
            }
        };
        let mut handed = Box::pin(tokio::task::unconstrained(handed));
        if handed.as_mut().now_or_never().is_none() {
            tokio::spawn(handed);
        }
    }

    /// Bytes of the state's memtable.
    pub(crate) fn memtable_bytes(&self) -> usize {
        self.store.memtable_bytes()
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

    /// Index of the last purged entry.
    #[cfg(test)]
    pub(crate) fn purged(&self) -> Option<u64> {
        self.raft.metrics().borrow_watched().purged.index()
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

    /// True while a snapshot is being sent to another member, which needs the log after it.
    pub(super) fn is_sending_snapshot(&self) -> bool {
        self.sent.is_sending()
    }

    /// Number of snapshots taken.
    pub(crate) fn snapshots(&self) -> &AtomicU64 {
        &self.snapshots_taken
    }

    /// Waits for commands in flight, stops, and flushes. Without a majority of the voters a command may never
    /// get its outcome, so a member with peers does not wait long.
    pub(crate) async fn shutdown(&self) -> Result<(), StoreError> {
        let idle = async {
            while !self.queue.is_idle() {
                mlgw_common::time::sleep(Duration::from_millis(1)).await;
            }
        };
        match self.is_alone() {
            true => idle.await,
            // What is still in flight then is a command with an unknown outcome, as after a crash.
            false => drop(mlgw_common::time::timeout(OUTCOME_WAIT, idle).await),
        }
        self.queue.stop();
        self.outcomes.stop();
        let stopped = self.raft.shutdown().await;
        // No entry begins one any more. A digest keeps the state open.
        self.row_digests.end().await;
        stopped.map_err(|error| StoreError(error.to_string()))?;
        self.write_committed().await;
        let state = self.state();
        let flushed = tokio::task::spawn_blocking(move || state.flush());
        flushed.await.map_err(|error| StoreError(error.to_string()))?
    }

    /// Enqueues a write of the newest committed position: after the next sync of the log, every start and
    /// every check of the store applies all that this member has applied.
    pub(crate) fn enqueue_committed(&self) {
        drop(self.log.enqueue_committed());
    }

    /// Writes the newest committed position without waiting for the next entries. A start without it waits
    /// for the leader before it applies the last entries.
    pub(crate) async fn write_committed(&self) {
        if let Err(error) = self.log.write_committed().await {
            tracing::info!(group = self.id, %error, "the last committed position was not written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::suite_tests::parts;
    use super::{Group, GroupError, GroupLog, GroupParts, gathered_config, lone_voter_config, member_config};
    use mlgw_formats::cluster_version::CLUSTER_VERSION;
    use mlgw_formats::command::{Change, Command, LeaseBodies, SetClusterVersion};
    use mlgw_formats::log_types::Leadership;
    use openraft::storage::RaftLogStorage as _;
    use std::sync::Arc;

    #[test]
    fn only_a_lone_voter_leads_after_a_restart_without_an_election() {
        for config in [member_config(), gathered_config()] {
            assert_eq!(config.enable_leader_restore, Some(false));
            assert_eq!(config.enable_pre_vote, Some(true));
        }
        // openraft restores a leader by default.
        assert_eq!(lone_voter_config().enable_leader_restore, None);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_command_does_not_enter_the_log_of_a_later_term() {
        let dir = tempfile::tempdir().unwrap();
        let group = Group::open(parts(dir.path(), 1)).await.unwrap();
        let current = group.leadership().unwrap();
        let earlier = Leadership { term: current.term - 1, ..current };
        let command = || Arc::new(Command::from(Change::LeaseBodies(LeaseBodies { count: 1 })));
        let late = group.queue.push(command(), earlier).unwrap();
        let next = group.queue.push(command(), current).unwrap();
        group.take_turn();
        assert!(matches!(late.await.unwrap(), Err(GroupError::NotLeader { .. })));
        assert!(next.await.unwrap().is_ok(), "the queue goes on");
        group.shutdown().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_committed_position_is_written_with_the_next_append_and_at_a_stop() {
        let dir = tempfile::tempdir().unwrap();
        let parts = parts(dir.path(), 1);
        let store = parts.log.clone();
        let written = async || GroupLog::new(store.clone(), 0).read_committed().await.unwrap();
        let group = Group::open(parts).await.unwrap();
        let command = || Arc::new(Command::from(Change::LeaseBodies(LeaseBodies { count: 1 })));
        group.propose(command()).await.unwrap();
        let first = group.log.last().unwrap();
        group.propose(command()).await.unwrap();
        let second = group.log.last().unwrap();
        assert_eq!(written().await, first);
        assert_eq!(group.log.clone().read_committed().await.unwrap(), second, "also before it is written");
        group.enqueue_committed();
        store.sync().unwrap();
        assert_eq!(written().await, second);
        group.propose(command()).await.unwrap();
        let third = group.log.last().unwrap();
        group.shutdown().await.unwrap();
        assert_eq!(written().await, third);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_member_stops_at_a_command_of_a_later_cluster_version() {
        let dir = tempfile::tempdir().unwrap();
        let (reason, stopped) = std::sync::mpsc::channel();
        let fatal = Arc::new(move |why: &str| reason.send(why.to_owned()).unwrap());
        let group = Group::open(GroupParts { fatal, ..parts(dir.path(), 1) }).await.unwrap();
        let version = CLUSTER_VERSION + 1;
        let later = Command::from(Change::SetClusterVersion(SetClusterVersion { version }));
        assert!(group.propose(Arc::new(later)).await.is_err());
        let why = stopped.recv().unwrap();
        assert!(why.contains("cluster version"), "{why}");
    }
}
