//! Rebuilds the state from the newest checkpoint and the log.
//!
//! The new state is made and checked beside the old one and then renamed to the next number, which is the one
//! that a start opens. The old state is set aside, not removed. A power loss at any point leaves the old
//! state or the new one whole, and repeating the rebuild gives the same result.

use super::finding::{CheckFinding, ProgressCallback};
use super::scratch::{Scratch, ScratchState};
use super::stored_sets::StoredSets;
use super::{CatalogueFacts, logs, rows, stores};
use crate::catalogue::checkpoints::{checkpoint_dir, checkpoint_numbers};
use crate::copy::Copier;
use crate::identity::{ExpectedServer, StateFacts, judge_log};
use crate::store::group_dirs::group_dir;
use crate::store::log_facts::LogFacts;
use crate::store::state::StateDb;
use crate::store::{behind, links, options};
use mlgw_common::{ClusterId, Incarnation, Lineage, NodeId, regular};
use mlgw_formats::backup_contents::BackupContents;
use mlgw_formats::schema::meta::Timeline;
use mlgw_formats::store_files;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Block cache and memtable of the new states.
const CACHE_BYTES: usize = 16 << 20;
const MEMTABLE_BYTES: usize = 32 << 20;
/// Name of a state that is being made; the next start removes a leftover one.
const UNFINISHED_STATE: &str = "rebuilt";

/// The log that is replayed over the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebuildLog {
    /// The catalogue's own log: no acknowledged command is lost.
    Own,
    /// The log in the checkpoint: commands after the checkpoint are lost.
    Checkpoint,
}

/// Directory of checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointDir<'c> {
    /// The directory.
    pub path: &'c Path,
    /// True if the directory has this server's mark. A checkpoint in it that names no server was then made by
    /// an earlier version.
    pub is_marked: bool,
}

/// Result of a rebuild.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuildReport {
    /// The checkpoint that was used.
    pub checkpoint: PathBuf,
    /// Time at which the checkpoint was made.
    pub written: String,
    /// Number of log entries that were replayed over it.
    pub entries: u64,
    /// Number of rows of the new state.
    pub rows: u64,
    /// Path of the old state.
    pub old_state_dir: PathBuf,
}

/// Reason that a catalogue was not rebuilt. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// There is no complete checkpoint.
    #[error(
        "no checkpoint in {0} is complete{1}; restore a backup, or run `mlgw store salvage` to recover \
         objects"
    )]
    NoCheckpoint(PathBuf, String),
    /// The log cannot be used, or there is a gap between checkpoint and log.
    #[error("{0}")]
    Log(String),
    /// The rebuilt state contradicts itself.
    #[error("the rebuilt state is inconsistent: {0}")]
    Wrong(String),
    /// An operation on a file failed.
    #[error("{path}: {source}")]
    Io {
        /// The path.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// RocksDB returned an error.
    #[error("{0}")]
    Store(#[from] crate::store_error::StoreError),
}

pub(super) fn failed(path: &Path) -> impl Fn(io::Error) -> RebuildError {
    let path = path.to_owned();
    move |source| RebuildError::Io { path: path.clone(), source }
}

/// Rebuilds the catalogue in `dir` from the checkpoints in `checkpoints`. If `expected` is known, only that
/// server's checkpoints are used, and the catalogue's own log must be that server's too, and complete.
/// `scratch` is an empty directory; it is removed. Checkpoints that could not be used are added to
/// `findings`.
///
/// # Errors
/// See [`RebuildError`].
pub fn rebuild(
    dir: &Path,
    checkpoints: CheckpointDir<'_>,
    log: RebuildLog,
    expected: Option<&ExpectedServer>,
    scratch: &Path,
    findings: &mut Vec<CheckFinding>,
    watch: ProgressCallback<'_>,
) -> Result<RebuildReport, RebuildError> {
    let lineage = expected.map(|expected| &expected.lineage);
    let (checkpoint, contents) = newest_checkpoint(checkpoints, lineage, findings, watch)?;
    let _scratch = Scratch(scratch.to_owned());
    let log_dir = match log {
        RebuildLog::Own => dir.join("log"),
        RebuildLog::Checkpoint => checkpoint.join("log"),
    };
    let mut wrong = Vec::new();
    let saved = logs::open(&log_dir, &scratch.join("log"), &mut wrong).map_err(failed(&log_dir))?;
    let Some(saved) = saved.filter(|_| !wrong.iter().any(CheckFinding::is_damage)) else {
        return Err(RebuildError::Log(damage_text(&wrong)));
    };
    if let Some(expected) = expected.filter(|_| log == RebuildLog::Own) {
        judge_log(expected, &saved.facts()?).map_err(|why| RebuildError::Log(why.to_string()))?;
    }
    let states: BTreeMap<u32, PathBuf> = stores::newest_states(&checkpoint, &mut wrong).into_iter().collect();
    if states.is_empty() {
        return Err(RebuildError::Wrong(damage_text(&wrong)));
    }
    let mut made = RebuiltStates { dir: dir.to_owned(), states: Vec::new() };
    let node = expected.map_or(NodeId::SINGLE, |of| of.lineage.node);
    let (mut sets, mut entries) = (None, 0);
    for group in groups_to_rebuild(&states, &saved.facts()?) {
        let known = states.get(&group);
        // A member that was stopped is in no checkpoint, and its log may begin later. Its files stay.
        if known.is_none() && sets.as_ref().is_some_and(|sets: &StoredSets| sets.has_left(node, group)) {
            continue;
        }
        let opened = made.begin(group, known)?;
        let before = logs::reach(&opened.state)?;
        if !logs::replay(opened, &saved, &log_dir, &mut wrong, watch) {
            return Err(RebuildError::Log(damage_text(&wrong)));
        }
        opened.state.flush()?;
        let after = logs::reach(&opened.state)?;
        assert!(after >= before, "a replay does not move a state back");
        entries += after - before;
        // The first one is the system group.
        sets.get_or_insert_with(|| StoredSets::read(&opened.state));
    }
    let has_left = |group: u32| sets.as_ref().is_some_and(|sets| sets.has_left(node, group));
    let current = made.states.iter().filter(|opened| !has_left(opened.group));
    let known = rows::check(current, dir, &mut wrong, watch);
    let Some(CatalogueFacts { rows, .. }) = known.filter(|_| !wrong.iter().any(CheckFinding::is_damage))
    else {
        return Err(RebuildError::Wrong(damage_text(&wrong)));
    };
    let aside = made.install((log == RebuildLog::Checkpoint).then_some(log_dir.as_path()))?;
    Ok(RebuildReport { checkpoint, written: contents.written, entries, rows, old_state_dir: aside })
}

/// Ids of the groups to rebuild, in order: those of the checkpoint, and those that are younger and have
/// entries.
fn groups_to_rebuild(checkpoint: &BTreeMap<u32, PathBuf>, log: &LogFacts) -> BTreeSet<u32> {
    let with_entries = (0..).zip(&log.groups).filter(|(_, of)| of.end > 0).map(|(group, _)| group);
    checkpoint.keys().copied().chain(with_entries).collect()
}

/// States that are being made. Until they are installed, they are removed when this is dropped.
struct RebuiltStates {
    dir: PathBuf,
    states: Vec<ScratchState>,
}

impl RebuiltStates {
    /// Begins the state of a group with a copy of the one in a checkpoint, or empty.
    fn begin(&mut self, group: u32, known: Option<&PathBuf>) -> Result<&ScratchState, RebuildError> {
        let to = unfinished_state(&self.dir, group);
        store_files::remove_dir(&to).map_err(failed(&to))?;
        store_files::make_dir(&to).map_err(failed(&to))?;
        if let Some(from) = known {
            copy_dir(from, &to).map_err(failed(&to))?;
        }
        let from = known.unwrap_or(&to).clone();
        let state = StateDb::open(&to, &options::cache(CACHE_BYTES), MEMTABLE_BYTES)?;
        self.states.push(ScratchState { group, state, from, to });
        Ok(&self.states[self.states.len() - 1])
    }

    /// Closes the states and moves them, and the log if one is given, to the names that a start opens.
    /// Returns the directory of the old ones.
    fn install(mut self, log: Option<&Path>) -> Result<PathBuf, RebuildError> {
        let made: Vec<PathBuf> = self.states.drain(..).map(|opened| opened.to).collect();
        install_states(&self.dir, &made, log)
    }
}

impl Drop for RebuiltStates {
    fn drop(&mut self) {
        for ScratchState { state, to, .. } in self.states.drain(..) {
            drop(state);
            if let Err(error) = store_files::remove_dir(&to) {
                tracing::warn!(dir = %to.display(), %error, "failed to remove an unfinished state");
            }
            // A group without a state must not have a directory. If it has one, this fails.
            let _ = fs::remove_dir(store_files::parent_of(&to));
        }
    }
}

/// Directory of a state that is being made.
fn unfinished_state(dir: &Path, group: u32) -> PathBuf {
    group_dir(dir, group).join(UNFINISHED_STATE)
}

/// The newest checkpoint that is complete and of this server.
fn newest_checkpoint(
    checkpoints: CheckpointDir<'_>,
    lineage: Option<&Lineage>,
    findings: &mut Vec<CheckFinding>,
    watch: ProgressCallback<'_>,
) -> Result<(PathBuf, BackupContents), RebuildError> {
    for number in checkpoint_numbers(checkpoints.path).unwrap_or_default().into_iter().rev() {
        let path = checkpoint_dir(checkpoints.path, number);
        let before = findings.len();
        match crate::copy::read_contents(&path) {
            Ok(contents) => {
                crate::copy::verify_contents(&contents, &path, "", findings, watch);
                findings.extend(lineage.and_then(|lineage| foreign_finding(&path, lineage, checkpoints)));
                if findings.len() == before {
                    return Ok((path, contents));
                }
            }
            Err(error) => {
                findings.push(CheckFinding::damage(super::FindingKind::Copy, path.display(), error))
            }
        }
    }
    let why = if findings.is_empty() { String::new() } else { format!(": {}", damage_text(findings)) };
    Err(RebuildError::NoCheckpoint(checkpoints.path.to_owned(), why))
}

/// Finding for a checkpoint in `checkpoints` of another server, or of a timeline that this one does not
/// descend from. A checkpoint that names no timeline was made before this server had an identity, or
/// elsewhere.
fn foreign_finding(
    checkpoint: &Path,
    lineage: &Lineage,
    checkpoints: CheckpointDir<'_>,
) -> Option<CheckFinding> {
    let state = stores::newest_state(&checkpoint.join("group-0"))?;
    let facts = StateDb::open_read_only(&state).and_then(|state| StateFacts::read(&state));
    let what = match facts {
        Ok(StateFacts { timeline: Some(Timeline { cluster, incarnation }), .. }) => {
            let (cluster, incarnation) = (ClusterId(cluster), Incarnation(incarnation));
            if lineage.has_written(cluster, incarnation) {
                return None;
            }
            format!("it belongs to cluster {cluster} and incarnation {incarnation}, not to this server")
        }
        Ok(_) if lineage.marking || checkpoints.is_marked => return None,
        Ok(_) => "it names no server, but the checkpoints of this server do".to_owned(),
        Err(error) => error.0,
    };
    Some(CheckFinding::damage(super::FindingKind::Foreign, checkpoint.display(), what))
}

/// Checkpoints in a directory, the oldest first; none if the directory does not exist.
fn existing_checkpoints(checkpoints: &Path) -> io::Result<Vec<PathBuf>> {
    let numbers = match checkpoint_numbers(checkpoints) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        numbers => numbers?,
    };
    Ok(numbers.into_iter().map(|number| checkpoint_dir(checkpoints, number)).collect())
}

/// Name of a checkpoint's directory.
fn checkpoint_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Reason that the checkpoints in `checkpoints` are not of a server that has never run; `None` if there are
/// none.
///
/// # Errors
/// If the directory cannot be read.
pub fn unexpected_checkpoint(checkpoints: &Path) -> io::Result<Option<String>> {
    let first = existing_checkpoints(checkpoints)?.into_iter().next();
    Ok(first.map(|path| format!("it contains {}, but this server has never run", checkpoint_name(&path))))
}

/// Reason that a checkpoint in `checkpoints` is not of exactly this timeline; `None` if all are, or name
/// none. Damage is not checked.
///
/// # Errors
/// If the directory cannot be read.
pub fn foreign_checkpoint(checkpoints: &Path, lineage: &Lineage) -> io::Result<Option<String>> {
    for path in existing_checkpoints(checkpoints)? {
        let name = checkpoint_name(&path);
        let Some(state) = stores::newest_state(&path.join("group-0")) else { continue };
        let facts = StateDb::open_read_only(&state).and_then(|state| StateFacts::read(&state));
        let why = match facts {
            Ok(StateFacts { timeline: Some(Timeline { cluster, incarnation }), .. }) => {
                let (cluster, incarnation) = (ClusterId(cluster), Incarnation(incarnation));
                let is_own = (cluster, incarnation) == (lineage.own.cluster, lineage.own.incarnation);
                (!is_own)
                    .then(|| format!("{name} belongs to cluster {cluster} and incarnation {incarnation}"))
            }
            Ok(_) => (!lineage.marking).then(|| format!("{name} names no server")),
            Err(_) => None,
        };
        if why.is_some() {
            return Ok(why);
        }
    }
    Ok(None)
}

/// Checks the newest checkpoint in `checkpoints`, if there is any.
pub fn check_checkpoint(
    checkpoints: CheckpointDir<'_>,
    lineage: Option<&Lineage>,
    findings: &mut Vec<CheckFinding>,
    watch: ProgressCallback<'_>,
) {
    let numbers = checkpoint_numbers(checkpoints.path).unwrap_or_default();
    let newest = numbers.last().map(|number| checkpoint_dir(checkpoints.path, *number));
    let Some(path) = newest else { return };
    match crate::copy::read_contents(&path) {
        Ok(contents) => {
            crate::copy::verify_contents(&contents, &path, "", findings, watch);
            findings.extend(lineage.and_then(|lineage| foreign_finding(&path, lineage, checkpoints)));
        }
        Err(error) => findings.push(CheckFinding::damage(super::FindingKind::Copy, path.display(), error)),
    }
}

/// Removes the newest checkpoint, which is damaged; a running server makes another one. Returns a message
/// about it.
///
/// # Errors
/// If it cannot be removed.
pub fn remove_checkpoint(checkpoints: &Path) -> io::Result<Option<String>> {
    let numbers = checkpoint_numbers(checkpoints)?;
    let Some(path) = numbers.last().map(|number| checkpoint_dir(checkpoints, *number)) else {
        return Ok(None);
    };
    store_files::remove_dir(&path)?;
    Ok(Some(format!("{} was removed; the server makes a new one", path.display())))
}

/// Moves the new states (and the log, if given) to the names that a start opens, and sets the old ones aside.
fn install_states(dir: &Path, made: &[PathBuf], log: Option<&Path>) -> Result<PathBuf, RebuildError> {
    let aside = set_aside(dir)?;
    for to in made {
        store_files::sync_dir(to).map_err(failed(to))?;
        let group = to.parent().unwrap_or(dir);
        let old = stores::newest_state(group);
        let number =
            old.as_deref().and_then(|path| path.file_name()?.to_str()?.strip_prefix("state-")?.parse().ok());
        let next = group.join(format!("state-{}", number.unwrap_or(0u64) + 1));
        store_files::rename_dir(to, &next).map_err(failed(&next))?;
        if let Some(old) = old {
            let name =
                [group, &old].map(|path| path.file_name().unwrap_or_default().to_string_lossy().into_owned());
            store_files::rename_dir(&old, &aside.join(name.join("-"))).map_err(failed(&old))?;
        }
    }
    if let Some(from) = log {
        let (own, new) = (dir.join("log"), dir.join("log.new"));
        store_files::remove_dir(&new).map_err(failed(&new))?;
        store_files::make_dir(&new).map_err(failed(&new))?;
        copy_dir(from, &new).map_err(failed(&new))?;
        if own.exists() {
            store_files::exchange_dirs(&new, &own).map_err(failed(&own))?;
            store_files::rename_dir(&new, &aside.join("log")).map_err(failed(&new))?;
        } else {
            store_files::rename_dir(&new, &own).map_err(failed(&own))?;
        }
    }
    Ok(aside)
}

/// Creates a directory for the replaced files.
pub(super) fn set_aside(dir: &Path) -> Result<PathBuf, RebuildError> {
    let free = (1..).map(|number: u64| dir.join(format!("set-aside-{number}"))).find(|path| !path.exists());
    let aside = free.unwrap_or_else(|| dir.join("set-aside"));
    store_files::make_dir(&aside).map_err(failed(&aside))?;
    Ok(aside)
}

/// Copies the files of a store and syncs them.
fn copy_dir(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        regular::check(&entry.path())?;
        fs::copy(entry.path(), &target)?;
        fs::File::open(&target)?.sync_all()?;
    }
    store_files::sync_dir(to)
}

fn damage_text(wrong: &[CheckFinding]) -> String {
    let damage = wrong.iter().filter(|finding| finding.is_damage());
    damage.map(|finding| format!("{}: {}", finding.place, finding.what)).collect::<Vec<_>>().join("; ")
}

/// Adds a closed catalogue, under `prefix`, to the copy that `copier` makes.
///
/// # Errors
/// If the catalogue cannot be read or the copy cannot be written.
pub fn copy_closed(dir: &Path, copier: &mut Copier, prefix: &str) -> Result<(), crate::copy::CopyError> {
    let mut findings = Vec::new();
    let states = stores::newest_states(dir, &mut findings);
    let stores = states.into_iter().map(|(group, path)| (path, format!("{prefix}group-{group}/state-1")));
    for (from, name) in stores.chain([(dir.join("log"), format!("{prefix}log"))]) {
        let entries = fs::read_dir(&from)
            .map_err(|source| crate::copy::CopyError::Io { path: from.clone(), source })?;
        for entry in entries.flatten() {
            let file = entry.file_name().to_string_lossy().into_owned();
            if !links::is_process_file(&file) {
                copier.add(&entry.path(), &format!("{name}/{file}"))?;
            }
        }
    }
    // A server that is made from the copy is to know as well which rows may be old.
    let behind = behind::groups_behind(dir)
        .map_err(|source| crate::copy::CopyError::Io { path: dir.to_owned(), source })?;
    for group in behind {
        copier.add(&behind::behind_file(dir, group), &format!("{prefix}{}", behind::file_name(group)))?;
    }
    Ok(())
}
