//! Copies of a catalogue in use: for backups, and as checkpoints to rebuild it from.
//!
//! A copy holds the flushed state of every group and then the log, so its log reaches at least as far as its
//! states. The log is not purged while a copy is made. Checkpoints are directories `checkpoint-N`, made under
//! the name `checkpoint-N.new`; a power loss in between leaves the previous one. A checkpoint is also made
//! before each purge of the log, so that the newest checkpoint and the log together always restore
//! everything. A copy also has the records of the groups in which this node may lack changes.
//!
//! A backup of a cluster has a *cut*: the states of all groups, and a log that begins after them. A node may
//! have applied more of one group than of another, so the system group is copied last, when it has every
//! record to which the copied object groups refer.

use super::checkpoints::{checkpoint_dir, checkpoint_numbers};
use super::groups::SYSTEM_GROUP;
use super::inner::CatalogueInner;
use super::options::{BarrierError, BarrierScope, CheckpointOptions};
use super::stop_signal::StopSignal;
use crate::copy::{Copier, CopyError};
use crate::offline::{AppliedPosition, starting_rows};
use crate::raft::group::Group;
use crate::store::saved_log::write_rows;
use crate::store::state::StateDb;
use crate::store::{behind, links};
use crate::store_error::StoreError;
use crate::view::RowReader as _;
use mlgw_common::{NodeId, Timestamp};
use mlgw_formats::schema::decode;
use mlgw_formats::schema::meta::MetaRow;
use mlgw_formats::schema::set::MemberPlace;
use mlgw_formats::store_files;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// Number of checkpoints that are kept: the newest, and the one before it in case the newest has bad disk
/// blocks.
const CHECKPOINTS_KEPT: usize = 2;

const _: () = assert!(CHECKPOINTS_KEPT > 0, "the checkpoint that was just made is kept");

/// Names of the states and of the log in a copy.
const STATE: &str = "state-1";
const LOG: &str = "log";
/// Directory of hard links within a group's directory while a copy is made; the next start removes a leftover
/// one.
const LINKS: &str = "copying";
/// Minimum free space after a checkpoint, as a multiple of the longest log: it covers what is appended until
/// the next purge and the tables that the purge writes. Deletions must be possible on a full disk.
const LOGS_FREE: u64 = 3;

/// Result of making a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckpointOutcome {
    /// The checkpoint was made.
    Made,
    /// Nothing changed since the newest checkpoint, or checkpoints are disabled.
    NotNeeded,
    /// There is not enough free space.
    NoRoom,
}

/// Reason that a cut of the catalogue was not made.
#[derive(Debug, thiserror::Error)]
pub enum CutError {
    /// This node does not have the rows of all groups.
    #[error("this node does not have the rows of all groups: use {}", with_all_groups(.homes))]
    NotAtHome {
        /// The nodes that have them; empty if that is not known.
        homes: Vec<NodeId>,
    },
    /// This node cannot confirm that it has the newest state.
    #[error("this node cannot confirm that it has the newest state: {0}")]
    Barrier(#[from] BarrierError),
    /// The copy could not be written.
    #[error(transparent)]
    Copy(#[from] CopyError),
}

/// Description of the nodes that have the rows of all groups.
fn with_all_groups(homes: &[NodeId]) -> String {
    match homes {
        [] => "another storage node".to_owned(),
        homes => {
            let ids: Vec<String> = homes.iter().map(NodeId::to_string).collect();
            format!("a home node, one of the nodes {}", ids.join(", "))
        }
    }
}

impl CatalogueInner {
    /// Copies a cut into `copier`, under `prefix`.
    pub(super) async fn copy_cut_into(
        self: &Arc<Self>,
        copier: Copier,
        prefix: String,
    ) -> Result<Copier, CutError> {
        let _copying = self.copying.lock().await;
        self.require_all_groups()?;
        self.barrier(BarrierScope::AllGroups).await?;
        let is_system = |group: &Arc<Group>| group.id == SYSTEM_GROUP;
        let (system, objects): (Vec<_>, Vec<_>) = self.groups.all().into_iter().partition(is_system);
        let cut = CatalogueCut { copier, prefix, positions: Vec::new() };
        let cut = cut.add_groups(objects).await?;
        self.barrier(BarrierScope::System).await?;
        // The copied rows of sets name this node as one that has the copied groups.
        self.require_all_groups()?;
        let cut = cut.add_groups(system).await?;
        let links = self.groups.system().scratch_dir(LINKS);
        let added = tokio::task::spawn_blocking(move || cut.add_log(&links)).await;
        Ok(added.unwrap_or_else(|stopped| Err(failed(Path::new(LINKS), stopped)))?)
    }

    /// Checks that this node has a member of every group that owns a range, and is to keep it.
    fn require_all_groups(&self) -> Result<(), CutError> {
        let is_kept = |group: u32| self.resident.place_in(group) != MemberPlace::Leaves;
        let is_here = |group: u32| self.groups.get(group).is_some() && is_kept(group);
        match self.resident.object_groups().into_iter().all(is_here) {
            true => Ok(()),
            false => Err(CutError::NotAtHome { homes: self.resident.home_nodes() }),
        }
    }

    /// Copies the catalogue into `copier`, under `prefix`.
    pub(super) async fn copy_into(
        self: &Arc<Self>,
        mut copier: Copier,
        prefix: String,
    ) -> Result<Copier, CopyError> {
        let _copying = self.copying.lock().await;
        let inner = Arc::clone(self);
        let copied = tokio::task::spawn_blocking(move || {
            // A record that is removed before the last state is copied concerns the first one, and one that
            // is written meanwhile concerns the last.
            let dir = &inner.opener.dir;
            let mut records = behind::records(dir).map_err(|source| io(dir, source))?;
            for group in inner.groups.all() {
                let links = group.scratch_dir(LINKS);
                let taken = group.state().checkpoint(&links);
                add_links(&mut copier, &links, &state_name(&prefix, &group), taken.map_err(|error| error.0))?;
            }
            let links = inner.groups.system().scratch_dir(LINKS);
            let taken = inner.log.checkpoint(&links);
            add_links(&mut copier, &links, &format!("{prefix}{LOG}"), taken.map_err(|error| error.0))?;
            records.extend(behind::records(dir).map_err(|source| io(dir, source))?);
            for (group, record) in records {
                copier.add_bytes(record.as_bytes(), &format!("{prefix}{}", behind::file_name(group)))?;
            }
            Ok(copier)
        });
        copied.await.unwrap_or_else(|stopped| Err(failed(Path::new(LINKS), stopped)))
    }

    /// Makes a checkpoint if anything changed since the newest one.
    pub(super) async fn checkpoint(self: &Arc<Self>) -> Result<CheckpointOutcome, CopyError> {
        let Some(options) = &self.checkpoints.options else { return Ok(CheckpointOutcome::NotNeeded) };
        let mut made_at = self.checkpoints.made_at.lock().await;
        let groups = self.groups.all();
        let applied = groups.iter().map(|group| group.figures().entries.load(Ordering::Relaxed)).sum();
        if *made_at == Some(applied) {
            return Ok(CheckpointOutcome::NotNeeded);
        }
        let dir = options.dir.clone();
        let found = tokio::task::spawn_blocking({
            let dir = dir.clone();
            move || remove_unfinished(&dir)
        });
        let numbers = found.await.unwrap_or_else(|stopped| Err(failed(&dir, stopped)))?;
        if !self.has_room_for_checkpoint(&dir) {
            return Ok(CheckpointOutcome::NoRoom);
        }
        let earlier = numbers.last().map(|number| checkpoint_dir(&dir, *number));
        let earlier = earlier.and_then(|path| Some((path.clone(), crate::copy::read_contents(&path).ok()?)));
        let number = numbers.last().map_or(1, |number| number + 1);
        let new = dir.join(format!("checkpoint-{number}.new"));
        let copier = self.copy_into(Copier::new(&new, earlier)?, String::new()).await?;
        let (copied_bytes, now) = (copier.copied_bytes, self.clock.now());
        let finished = tokio::task::spawn_blocking(move || finish(copier, &new, &dir, number, now));
        finished.await.unwrap_or_else(|stopped| Err(failed(Path::new(LINKS), stopped)))?;
        tracing::debug!(number, copied_bytes, "catalogue checkpoint made");
        *made_at = Some(applied);
        Ok(CheckpointOutcome::Made)
    }

    /// True if a full copy leaves enough free space.
    fn has_room_for_checkpoint(&self, dir: &Path) -> bool {
        let Ok(stat) = rustix::fs::statvfs(dir) else { return true };
        let states: u64 = self.groups.all().iter().map(|group| group.state_bytes()).sum();
        let left = self.log_bound.bytes_max().saturating_mul(LOGS_FREE);
        stat.f_bavail * stat.f_frsize >= left.saturating_add(states + self.log.bytes())
    }
}

/// A cut that is being copied.
struct CatalogueCut {
    copier: Copier,
    prefix: String,
    positions: Vec<AppliedPosition>,
}

impl CatalogueCut {
    /// Adds the present states of groups.
    async fn add_groups(self, groups: Vec<Arc<Group>>) -> Result<Self, CopyError> {
        let added = tokio::task::spawn_blocking(move || groups.iter().try_fold(self, Self::add_group));
        added.await.unwrap_or_else(|stopped| Err(failed(Path::new(LINKS), stopped)))
    }

    fn add_group(mut self, group: &Arc<Group>) -> Result<Self, CopyError> {
        let links = group.scratch_dir(LINKS);
        let taken = group.state().checkpoint(&links).and_then(|()| applied_position(&links, group.id));
        let added = taken.map(|position| self.positions.push(position)).map_err(|error| error.0);
        add_links(&mut self.copier, &links, &state_name(&self.prefix, group), added)?;
        Ok(self)
    }

    /// Adds a log that begins after the states, made in the directory `links`.
    fn add_log(mut self, links: &Path) -> Result<Copier, CopyError> {
        let made = store_files::make_dir(links).map_err(|error| error.to_string());
        let rows = starting_rows(&self.positions);
        let made = made.and_then(|()| write_rows(links, &rows).map_err(|error| error.0));
        add_links(&mut self.copier, links, &format!("{}{LOG}", self.prefix), made)?;
        Ok(self.copier)
    }
}

/// Name of the state of a group in a copy.
fn state_name(prefix: &str, group: &Group) -> String {
    format!("{prefix}group-{}/{STATE}", group.id)
}

/// Position of the last entry that a copied state contains.
fn applied_position(state: &Path, group: u32) -> Result<AppliedPosition, StoreError> {
    let row = StateDb::open_read_only(state)?.get(&MetaRow::Applied.row())?;
    Ok(AppliedPosition { group, position: row.as_deref().map(decode).transpose()? })
}

/// Makes checkpoints until the catalogue stops.
pub(super) async fn make_checkpoints(
    catalogue: Weak<CatalogueInner>,
    stop: Arc<StopSignal>,
    options: CheckpointOptions,
) {
    loop {
        tokio::select! {
            () = mlgw_common::time::sleep(options.every) => {}
            () = stop.cancelled() => return,
        }
        let Some(inner) = catalogue.upgrade() else { return };
        inner.checkpoint_or_log().await;
    }
}

impl CatalogueInner {
    /// Makes a checkpoint and logs a failure, which does not stop the catalogue.
    pub(crate) async fn checkpoint_or_log(self: &Arc<Self>) {
        match self.checkpoint().await {
            Ok(CheckpointOutcome::Made | CheckpointOutcome::NotNeeded) => {}
            Ok(CheckpointOutcome::NoRoom) => {
                tracing::warn!("no catalogue checkpoint made: the disk is too full")
            }
            Err(error) => tracing::error!(%error, "failed to make a catalogue checkpoint"),
        }
    }
}

/// Adds the hard links in `links` to the copy, then removes them.
fn add_links(
    copier: &mut Copier,
    links: &Path,
    name: &str,
    taken: Result<(), String>,
) -> Result<(), CopyError> {
    let added = taken.map_err(|error| failed(links, error)).and_then(|()| {
        for entry in std::fs::read_dir(links).map_err(|source| io(links, source))? {
            let entry = entry.map_err(|source| io(links, source))?;
            let file = entry.file_name().to_string_lossy().into_owned();
            if !links::is_process_file(&file) {
                copier.add(&entry.path(), &format!("{name}/{file}"))?;
            }
        }
        Ok(())
    });
    store_files::remove_dir(links).map_err(|source| io(links, source))?;
    added
}

fn finish(copier: Copier, new: &Path, dir: &Path, number: u64, now: Timestamp) -> Result<(), CopyError> {
    copier.finish(now)?;
    store_files::rename_dir(new, &checkpoint_dir(dir, number)).map_err(|source| io(new, source))?;
    let numbers = checkpoint_numbers(dir).map_err(|source| io(dir, source))?;
    let old = numbers.len().saturating_sub(CHECKPOINTS_KEPT);
    for number in &numbers[..old] {
        let path = checkpoint_dir(dir, *number);
        store_files::remove_dir(&path).map_err(|source| io(&path, source))?;
    }
    Ok(())
}

/// Removes unfinished checkpoints, and returns the numbers of the finished ones, the oldest first.
fn remove_unfinished(dir: &Path) -> Result<Vec<u64>, CopyError> {
    store_files::make_dir(dir).map_err(|source| io(dir, source))?;
    for entry in std::fs::read_dir(dir).map_err(|source| io(dir, source))?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("checkpoint-") && name.ends_with(".new") {
            store_files::remove_dir(&entry.path()).map_err(|source| io(&entry.path(), source))?;
        }
    }
    checkpoint_numbers(dir).map_err(|source| io(dir, source))
}

fn io(path: &Path, source: std::io::Error) -> CopyError {
    CopyError::Io { path: path.to_owned(), source }
}

fn failed(path: &Path, why: impl ToString) -> CopyError {
    io(path, std::io::Error::other(why.to_string()))
}
