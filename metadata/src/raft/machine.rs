//! State machine for openraft: applies batches to the state and sends the replies.
//!
//! The changes of a run of entries reach the store in one write together with the last entry's id. After that
//! the names, access keys and segments in memory change, and only then are the commands answered. While the
//! disk is full, a write waits. One that fails otherwise stops the group, because the state is unusable from
//! then on. An entry that requests a comparison of rows ends its run, so that every member digests the same
//! rows.

use super::log::{GroupLog, io_error};
use super::lone_voter::LoneVoter;
use super::outcomes::AppliedOutcomes;
use super::row_digests::RowDigests;
use super::snapshot::{GroupSnapshotBuilder, Snapshot, SnapshotDir, position_of};
use crate::apply::{apply, seq_of};
use crate::catalogue::options::FatalHandler;
use crate::store::state::{StateDb, StateStore};
use crate::store_error::StoreError;
use crate::view::{FreedChunk, RowChanges, RowReader, View};
use futures_util::{Stream, TryStreamExt};
use mlgw_formats::cluster_version::check_known;
use mlgw_formats::command::{Change, TagBatch};
use mlgw_formats::log_batch::Outcomes;
use mlgw_formats::log_entry;
use mlgw_formats::log_types::{LogId, RaftLogEntry, RaftTypes, SnapshotMeta, StoredMembership};
use mlgw_formats::schema::meta::MetaRow;
use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use openraft::storage::{ApplyResponder, EntryResponder, RaftStateMachine};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Changed rows after which a run of entries is written.
const RUN_ROWS_MAX: usize = 4096;

/// Observer of every change of a group's state; it is called before commands are answered.
pub(crate) trait Watcher: Send + Sync + 'static {
    /// The version of the cluster, as this node knows it.
    fn cluster_version(&self) -> u32;
    /// Called before these rows are changed in the store.
    fn changing(&self, changes: &RowChanges);
    /// Called after these rows were changed in the store, with the chunks that the change freed.
    fn changed(&self, group: u32, changes: &RowChanges, freed: &[FreedChunk]) -> Result<(), StoreError>;
    /// Called when all rows may have changed.
    fn replaced(&self, group: u32, rows: &dyn RowReader) -> Result<(), StoreError>;
}

/// Counters of a group.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) entries: AtomicU64,
    pub(crate) commands: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) tagged: AtomicU64,
    pub(crate) installed: AtomicU64,
}

/// A group's state machine.
pub(crate) struct GroupStateMachine {
    pub(crate) group: u32,
    pub(crate) store: Arc<StateStore>,
    pub(crate) log: GroupLog,
    pub(crate) builder: GroupSnapshotBuilder,
    pub(crate) watcher: Arc<dyn Watcher>,
    pub(crate) figures: Arc<Figures>,
    pub(crate) lone_voter: Arc<LoneVoter>,
    /// The newest cluster version that this build knows.
    pub(crate) cluster_version: u32,
    /// Outcomes that proposals to another leader wait for.
    pub(crate) outcomes: Arc<AppliedOutcomes>,
    /// Digests of the rows, for comparisons with other members.
    pub(crate) row_digests: Arc<RowDigests>,
    pub(crate) fatal: FatalHandler,
    /// Set once the group runs: a snapshot requested from then on is one to send to another member.
    pub(crate) running: Arc<AtomicBool>,
}

/// The outcomes of an applied entry on the way to its proposer.
struct PendingReply {
    responder: Option<ApplyResponder<RaftTypes>>,
    id: LogId,
    tag: Option<TagBatch>,
    outcomes: Outcomes,
}

/// The effects of a run of entries, before they are written.
struct RunEffects {
    changes: RowChanges,
    freed: Vec<FreedChunk>,
    waiting: Vec<PendingReply>,
    last: LogId,
    /// The voters of a changed membership, and its entry.
    voters: Option<(Vec<u64>, LogId)>,
}

/// True if the rows are digested after an entry.
fn is_compared(entry: &RaftLogEntry) -> bool {
    let EntryPayload::Normal(batch) = &entry.payload else { return false };
    batch.commands.iter().any(|command| matches!(command.change, Some(Change::CompareRows(_))))
}

fn tag_of(entry: &RaftLogEntry) -> Option<TagBatch> {
    let EntryPayload::Normal(batch) = &entry.payload else { return None };
    batch.tag()
}

impl GroupStateMachine {
    /// Applies entries. After `is_compared` ones the rows are digested: the last one requests that.
    async fn run(
        &mut self,
        run: Vec<EntryResponder<RaftTypes>>,
        is_compared: bool,
    ) -> Result<(), StoreError> {
        let state = self.store.current();
        let Some(effects) = self.effects(&state, run)? else { return Ok(()) };
        let RunEffects { changes, freed, waiting, last, voters } = effects;
        self.watcher.changing(&changes);
        let bytes = self.store.memtable_bytes();
        let write = || state.write(&changes);
        self.log.space().repeat_async("a state of the catalogue", bytes, write).await?;
        if is_compared {
            self.row_digests.begin(state, last.index).await;
        }
        self.watcher.changed(self.group, &changes, &freed)?;
        self.log.record_applied(last.index);
        if let Some((voters, log_id)) = voters {
            self.lone_voter.applied(voters.into_iter(), log_id.leader_id.node_id);
        }
        for PendingReply { responder, id, tag, outcomes } in waiting {
            match responder {
                Some(responder) => responder.send(outcomes),
                None if self.outcomes.are_expected() => self.outcomes.record(id, tag, outcomes),
                None => {}
            }
        }
        self.outcomes.reached(last.leader_id);
        Ok(())
    }

    /// The effects of entries on the state; `None` without entries.
    fn effects(
        &self,
        state: &StateDb,
        run: Vec<EntryResponder<RaftTypes>>,
    ) -> Result<Option<RunEffects>, StoreError> {
        let mut view = View::new(state);
        let mut waiting: Vec<PendingReply> = Vec::with_capacity(run.len());
        let mut last: Option<LogId> = None;
        let mut voters = None;
        for (entry, responder) in run {
            let is_next = last.is_none_or(|last| last.index + 1 == entry.index());
            assert!(is_next, "committed entries have no gaps");
            let outcomes = self.entry(&mut view, &entry)?;
            waiting.push(PendingReply { responder, id: entry.log_id, tag: tag_of(&entry), outcomes });
            last = Some(entry.log_id);
            if let EntryPayload::Membership(changed) = entry.payload {
                voters = Some((changed.voter_ids().collect(), entry.log_id));
            }
        }
        let Some(last) = last else { return Ok(None) };
        let (changes, freed) = view.into_changes();
        Ok(Some(RunEffects { changes, freed, waiting, last, voters }))
    }

    fn entry(&self, view: &mut View<'_>, entry: &RaftLogEntry) -> Result<Outcomes, StoreError> {
        let mut outcomes = Outcomes::default();
        match &entry.payload {
            EntryPayload::Blank => {}
            EntryPayload::Normal(batch) => {
                outcomes.0.reserve(batch.commands.len());
                for (position, command) in batch.commands.iter().enumerate() {
                    check_known(command, self.cluster_version).map_err(|why| StoreError(why.to_string()))?;
                    outcomes.0.push(apply(view, command, seq_of(entry.index(), position))?);
                }
            }
            EntryPayload::Membership(membership) => {
                let stored = StoredMembership::new(Some(entry.log_id), membership.clone());
                view.put(MetaRow::Membership.row(), &log_entry::record_of_membership(&stored));
            }
        }
        view.put(MetaRow::Applied.row(), &log_entry::log_position(&entry.log_id));
        view.keep_changes();
        let rejected = outcomes.0.iter().filter(|outcome| outcome.is_err()).count() as u64;
        self.figures.entries.fetch_add(1, Ordering::Relaxed);
        self.figures.commands.fetch_add(outcomes.0.len() as u64, Ordering::Relaxed);
        self.figures.rejected.fetch_add(rejected, Ordering::Relaxed);
        self.figures.tagged.fetch_add(u64::from(tag_of(entry).is_some()), Ordering::Relaxed);
        Ok(outcomes)
    }

    fn failed(&self, error: &StoreError) -> io::Error {
        // A stop does not wait for space. The next start applies these entries again.
        if !(self.log.space().is_ended() && error.is_disk_full()) {
            (self.fatal)(&format!("failed to write the catalogue's state: {error}"));
        }
        io_error(error)
    }

    async fn install(&mut self, snapshot: SnapshotDir) -> Result<(), StoreError> {
        let dir = snapshot.dir.ok_or_else(|| StoreError("a snapshot without a directory".into()))?;
        // A digest keeps the former state open, whose directory is removed.
        self.row_digests.end().await;
        let (store, space) = (Arc::clone(&self.store), Arc::clone(self.log.space()));
        let replaced = tokio::task::spawn_blocking(move || store.replace(dir.path(), &space));
        replaced.await.map_err(|error| StoreError(error.to_string()))??;
        let state = self.store.current();
        self.figures.installed.fetch_add(1, Ordering::Relaxed);
        self.lone_voter.replaced();
        if let Some(applied) = position_of(|key| state.get(key))?.0 {
            self.log.record_applied(applied.index);
            self.outcomes.replaced(applied.index);
        }
        self.watcher.replaced(self.group, &*state)
    }
}

impl RaftStateMachine<RaftTypes> for GroupStateMachine {
    type SnapshotData = SnapshotDir;
    type SnapshotBuilder = GroupSnapshotBuilder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let state = self.store.current();
        position_of(|key| state.get(key)).map_err(io_error)
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<RaftTypes>>> + Unpin + Send,
    {
        let mut run = Vec::new();
        let mut commands = 0;
        while let Some(next) = entries.try_next().await? {
            if let EntryPayload::Normal(batch) = &next.0.payload {
                commands += batch.commands.len();
            }
            let ends_run = is_compared(&next.0);
            run.push(next);
            // A put changes about four rows.
            if ends_run || commands * 4 >= RUN_ROWS_MAX {
                self.run(std::mem::take(&mut run), ends_run).await.map_err(|error| self.failed(&error))?;
                commands = 0;
            }
        }
        self.run(run, false).await.map_err(|error| self.failed(&error))
    }

    async fn get_snapshot_builder(&mut self) -> GroupSnapshotBuilder {
        self.builder.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: SnapshotDir) -> io::Result<()> {
        tracing::info!(group = self.group, %meta, "installing another member's state");
        self.install(snapshot).await.map_err(|error| self.failed(&error))
    }

    /// Makes a snapshot directory if one is to be sent.
    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        let state = self.store.current();
        let (applied, membership) = position_of(|key| state.get(key)).map_err(io_error)?;
        let is_wanted = self.running.load(Ordering::Acquire) || membership.nodes().count() > 1;
        if applied.is_none() || !is_wanted {
            return Ok(None);
        }
        let builder = self.builder.clone();
        let made = tokio::task::spawn_blocking(move || builder.checkpoint_or_wait());
        Ok(Some(made.await.map_err(io_error)?.map_err(io_error)?))
    }
}
