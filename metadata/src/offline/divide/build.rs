//! Builds the catalogue of a division in a new directory beside the old one.
//!
//! Nothing in the old directory is changed. Tables never change, so they are linked; everything else is
//! copied. When this returns, every file and directory of the new catalogue is synced.

use super::plan::{DivisionPlan, Residence, is_position, residence};
use super::{DivideError, damage_of, failed};
use crate::identity::ExpectedServer;
use crate::offline::finding::ProgressCallback;
use crate::offline::rows::FAMILIES;
use crate::offline::scratch::ScratchState;
use crate::offline::{logs, stores};
use crate::store::floor::Floor;
use crate::store::log_rows::{LogRowKind, key};
use crate::store::saved_log::{SavedLog, write_rows};
use crate::store::state::StateDb;
use crate::store::{links, options};
use crate::store_error::StoreError;
use crate::view::{RowChanges, RowReader as _};
use mlgw_common::regular;
use mlgw_formats::key::Family;
use mlgw_formats::schema::meta::MetaRow;
use mlgw_formats::store_files;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Block cache and memtable of the new states.
const CACHE_BYTES: usize = 16 << 20;
const MEMTABLE_BYTES: usize = 32 << 20;
/// Rows that are rewritten in one step.
const STEP_ROWS: usize = 4096;

/// A closed catalogue, and those of its groups that have current rows.
pub(in crate::offline) struct ClosedGroups<'a> {
    pub(in crate::offline) dir: &'a Path,
    pub(in crate::offline) groups: &'a [u32],
}

/// A group of the new catalogue.
pub(in crate::offline) struct NewGroup {
    pub(in crate::offline) group: u32,
    /// The group of the old catalogue whose log it continues.
    origin: u32,
    pub(in crate::offline) state: StateDb,
}

/// Builds the divided catalogue in `new`, which is empty or absent. Returns the number of log entries that
/// the states lacked. `scratch` is an empty directory.
pub(super) fn build(
    old: &ClosedGroups<'_>,
    new: &Path,
    plan: DivisionPlan,
    expected: Option<&ExpectedServer>,
    scratch: &Path,
    watch: ProgressCallback<'_>,
) -> Result<u64, DivideError> {
    store_files::make_dir(new).map_err(failed(new))?;
    let log = open_log(&old.dir.join("log"), scratch)?;
    let (mut groups, entries) = link_states(old, new, &log, watch)?;
    assert!(groups.iter().all(|of| of.group < plan.object_group), "the object group comes after all others");
    let ids = std::iter::once(plan.object_group).chain(plan.empty_group_ids());
    let linked = ids.map(|group| link_new_group(new, group, &groups[0].state));
    let linked = linked.collect::<Result<Vec<_>, DivideError>>()?;
    watch("dividing the rows", 0, 0);
    keep_system_rows(plan, &groups[0].state)?;
    for NewGroup { group, state, .. } in &linked {
        keep_object_rows(state)?;
        if *group != plan.object_group {
            rewrite(plan, state, Family::Payer)?;
            remove_families(state, Residence::Objects)?;
        }
    }
    groups.extend(linked);
    write_log(new, &log, &groups, &[LogRowKind::Identity, LogRowKind::Writer])?;
    drop(groups);
    if let Some(ExpectedServer { lineage, .. }) = expected {
        let entries = SavedLog::open(&new.join("log"))?.facts()?.entries();
        let mut floor = Floor::new(new, lineage.own.incarnation, 0);
        floor.raise(entries).map_err(failed(new))?;
    }
    sync_new(new, watch)?;
    Ok(entries)
}

pub(in crate::offline) fn open_log(log: &Path, scratch: &Path) -> Result<SavedLog, DivideError> {
    let mut findings = Vec::new();
    let opened = logs::open(log, &scratch.join("log"), &mut findings).map_err(failed(log))?;
    opened.ok_or_else(|| damage_of(&findings))
}

/// Links the states of the groups, and applies to each the log that it lacks.
pub(in crate::offline) fn link_states(
    old: &ClosedGroups<'_>,
    new: &Path,
    log: &SavedLog,
    watch: ProgressCallback<'_>,
) -> Result<(Vec<NewGroup>, u64), DivideError> {
    let (mut findings, mut groups, mut entries) = (Vec::new(), Vec::new(), 0);
    let states = stores::newest_states(old.dir, &mut findings);
    for (group, from) in states.into_iter().filter(|(group, _)| old.groups.contains(group)) {
        let to = state_dir(new, group);
        link_state(&from, &to).map_err(failed(&to))?;
        let state = open_new_state(&to)?;
        let before = logs::reach(&state)?;
        let opened = ScratchState { group, state, from, to };
        if !logs::replay(&opened, log, &old.dir.join("log"), &mut findings, watch) {
            return Err(damage_of(&findings));
        }
        let state = opened.state;
        state.flush()?;
        entries += logs::reach(&state)? - before;
        groups.push(NewGroup { group, origin: group, state });
    }
    if groups.is_empty() { Err(damage_of(&findings)) } else { Ok((groups, entries)) }
}

/// Links the state of group 0, with the whole log applied, as that of a new group.
fn link_new_group(new: &Path, group: u32, origin: &StateDb) -> Result<NewGroup, DivideError> {
    let to = state_dir(new, group);
    let parent = store_files::parent_of(&to);
    store_files::make_dir(parent).map_err(failed(parent))?;
    origin.checkpoint(&to)?;
    Ok(NewGroup { group, origin: 0, state: open_new_state(&to)? })
}

fn state_dir(new: &Path, group: u32) -> PathBuf {
    new.join(format!("group-{group}")).join("state-1")
}

/// Opens a state of the new catalogue. Nothing compacts it while rows are removed.
fn open_new_state(dir: &Path) -> Result<StateDb, StoreError> {
    StateDb::open_scratch(dir, &options::cache(CACHE_BYTES), MEMTABLE_BYTES)
}

/// Makes `to` a copy of the closed state in `from` that links its tables.
fn link_state(from: &Path, to: &Path) -> io::Result<()> {
    store_files::make_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        let text = name.to_string_lossy();
        if links::is_process_file(&text) {
            continue;
        }
        regular::check(&entry.path())?;
        let target = to.join(&name);
        // A file system without hard links, or another one, has a copy.
        if !links::is_table(&text) || fs::hard_link(entry.path(), &target).is_err() {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

/// Removes the rows of objects from group 0, and points its ranges at the object group.
fn keep_system_rows(plan: DivisionPlan, state: &StateDb) -> Result<(), StoreError> {
    rewrite(plan, state, Family::Partition)?;
    rewrite(plan, state, Family::Payer)?;
    remove_families(state, Residence::Objects)
}

/// Removes the rows of the system group from a new group.
fn keep_object_rows(state: &StateDb) -> Result<(), StoreError> {
    let meta = state.range(&Family::Meta.start(), &Family::Meta.end(), usize::MAX)?;
    let counters = meta.into_iter().filter(|(key, _)| !is_position(key));
    state.write(&counters.map(|(key, _)| (key, None)).collect())?;
    remove_families(state, Residence::System)
}

/// Gives the rows of a family the values that they have in the system group, step by step.
fn rewrite(plan: DivisionPlan, state: &StateDb, family: Family) -> Result<(), StoreError> {
    let mut from = family.start();
    loop {
        let rows = state.range(&from, &family.end(), STEP_ROWS)?;
        let Some((last, _)) = rows.last() else { return Ok(()) };
        from = [last.as_slice(), &[0]].concat();
        let mut changes = RowChanges::new();
        for (key, value) in &rows {
            let planned = plan.system_value(key, value)?.map(std::borrow::Cow::into_owned);
            changes.insert(key.clone(), planned);
        }
        state.write(&changes)?;
    }
}

/// Removes the families with this residence, and frees their space.
fn remove_families(state: &StateDb, of: Residence) -> Result<(), StoreError> {
    let removed = || FAMILIES.into_iter().filter(|family| residence(*family) == of);
    for family in removed() {
        state.delete_range(&family.start(), &family.end())?;
    }
    state.flush()?;
    for family in removed() {
        state.free_range(&family.start(), &family.end())?;
    }
    Ok(())
}

/// Writes a log in which every entry counts as purged: each group continues after its last one. Rows of the
/// old log that belong to no group stay if their kind is in `kept`.
pub(in crate::offline) fn write_log(
    new: &Path,
    old: &SavedLog,
    groups: &[NewGroup],
    kept: &[LogRowKind],
) -> Result<(), DivideError> {
    let mut rows = Vec::new();
    for kind in kept {
        rows.extend(old.row(&key(0, *kind, 0))?.map(|value| (key(0, *kind, 0), value)));
    }
    for NewGroup { group, origin, state } in groups {
        let vote = old.row(&key(*origin, LogRowKind::Vote, 0))?;
        rows.extend(vote.map(|value| (key(*group, LogRowKind::Vote, 0), value)));
        let Some(applied) = state.get(&MetaRow::Applied.row())? else { continue };
        for kind in [LogRowKind::Purged, LogRowKind::Committed] {
            rows.push((key(*group, kind, 0), applied.clone()));
        }
    }
    let dir = new.join("log");
    store_files::make_dir(&dir).map_err(failed(&dir))?;
    Ok(write_rows(&dir, &rows)?)
}

/// Syncs a new catalogue, and its name.
pub(in crate::offline) fn sync_new(new: &Path, watch: ProgressCallback<'_>) -> Result<(), DivideError> {
    watch("syncing", 0, 0);
    sync_tree(new).and_then(|()| store_files::sync_parent(new)).map_err(failed(new))
}

/// Syncs every file and directory below `dir`, and `dir` itself.
fn sync_tree(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_tree(&entry.path())?;
        } else {
            fs::File::open(entry.path())?.sync_all()?;
        }
    }
    store_files::sync_dir(dir)
}
