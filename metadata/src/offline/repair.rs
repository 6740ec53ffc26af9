//! Small repairs of a closed catalogue that need no checkpoint.

use super::rebuild::{RebuildError, failed, set_aside};
use super::scratch::Scratch;
use super::{logs, rows, stores};
use crate::durability::Durability;
use crate::identity::{StateFacts, StatesByGroup, judge_fit};
use crate::store::saved_log::SavedLog;
use crate::store::state::StateDb;
use crate::store::{links, options, wal};
use crate::store_error::StoreError;
use mlgw_common::regular;
use mlgw_formats::manifest::torn_record_offset;
use mlgw_formats::{store_files, wal_frames};
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Block cache and memtable while counting.
const CACHE_BYTES: usize = 16 << 20;
const MEMTABLE_BYTES: usize = 16 << 20;

/// Directories of the stores of the catalogue in `dir`.
fn store_dirs(dir: &Path) -> Vec<PathBuf> {
    let states = stores::newest_states(dir, &mut Vec::new()).into_iter().map(|(_, path)| path);
    states.chain([dir.join("log")]).collect()
}

/// Repairs each store whose `CURRENT` names no readable MANIFEST: makes `CURRENT` name the newest readable
/// one. Returns a message per repair.
///
/// # Errors
/// If a directory cannot be read or written.
pub fn repair_current_files(dir: &Path) -> io::Result<Vec<String>> {
    let mut mended = Vec::new();
    for store in store_dirs(dir) {
        if stores::check_description(&store, &mut Vec::new()) {
            continue;
        }
        let Some(manifest) = newest_manifest(&store)? else { continue };
        let (current, new) = (store.join("CURRENT"), store.join("CURRENT.new"));
        let mut options = fs::OpenOptions::new();
        let mut file = regular::open_with(options.write(true).create(true).truncate(true), &new)?;
        writeln!(file, "{manifest}")?;
        file.sync_all()?;
        fs::rename(&new, &current)?;
        store_files::sync_dir(&store)?;
        mended.push(format!("{} names {manifest} again", current.display()));
    }
    Ok(mended)
}

/// The MANIFEST with the highest number among the complete ones.
fn newest_manifest(store: &Path) -> io::Result<Option<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(store)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(number) = name.strip_prefix("MANIFEST-").and_then(|n| n.parse::<u64>().ok()) else {
            continue;
        };
        let bytes = regular::read(&entry.path())?;
        let frames = wal_frames::read_records(&bytes);
        if !frames.records.is_empty()
            && (frames.first_record_after_defect().is_none() || torn_record_offset(&bytes).is_some())
        {
            found.push((number, name));
        }
    }
    Ok(found.into_iter().max().map(|(_, name)| name))
}

/// Makes the log anew if its damaged part carried no entry, and returns a message about it. The old log is
/// set aside. `scratch` is an empty directory; it is removed.
///
/// # Errors
/// If a file cannot be read or written; the log is unchanged then.
pub fn repair_log(dir: &Path, scratch: &Path) -> Result<Option<String>, RebuildError> {
    let _scratch = Scratch(scratch.to_owned());
    let (log, new) = (dir.join("log"), dir.join("log.new"));
    let bad = wal::first_bad(&log).map_err(failed(&log))?;
    if bad.is_none_or(|bad| bad.damage.is_none()) {
        return Ok(None);
    }
    let copy = scratch.join("log");
    links::link_store(&log, &copy).map_err(failed(&copy))?;
    store_files::remove_dir(&new).map_err(failed(&new))?;
    store_files::make_dir(&new).map_err(failed(&new))?;
    let later = wal::records_after_bad(&log).map_err(failed(&log))?;
    SavedLog::open(&copy)?.rewrite(&new, &later)?;
    for (group, state) in stores::newest_states(dir, &mut Vec::new()) {
        let copy = scratch.join(format!("group-{group}"));
        links::link_store(&state, &copy).map_err(failed(&copy))?;
        // A state that does not open needs every entry.
        let opened = stores::open_state(&state, &copy, &mut Vec::new());
        let reach = opened.map(|state| logs::reach(&state)).transpose()?.unwrap_or(0);
        if let Some(missing) = logs::first_missing(&SavedLog::open(&new)?, group, reach)? {
            store_files::remove_dir(&new).map_err(failed(&new))?;
            return Err(RebuildError::Log(format!("the entry {missing} of group {group} is lost")));
        }
    }
    let aside = exchange_log(dir, &new, &log)?;
    Ok(Some(format!(
        "the log was rewritten without the damaged records; the old log is in {}",
        aside.display()
    )))
}

/// Makes a log anew that ends before the state, from all tables and write-ahead logs in its directory, and
/// returns a message about it. A MANIFEST whose end was cut off names fewer tables than exist. The old log is
/// set aside. `scratch` is an empty directory; it is removed.
///
/// # Errors
/// If a needed entry is in no file, or a file cannot be read or written; the log is unchanged then.
pub fn rebuild_log(dir: &Path, scratch: &Path) -> Result<String, RebuildError> {
    let _scratch = Scratch(scratch.to_owned());
    let (log, new, copy) = (dir.join("log"), dir.join("log.new"), scratch.join("log"));
    links::link_store(&log, &copy).map_err(failed(&copy))?;
    let found = SavedLog::open_all_files(&copy)?;
    let mut facts = StatesByGroup::new();
    for (group, state) in stores::newest_states(dir, &mut Vec::new()) {
        let copy = scratch.join(format!("group-{group}"));
        links::link_store(&state, &copy).map_err(failed(&copy))?;
        let state = stores::open_state(&state, &copy, &mut Vec::new());
        let state = state.map(|state| StateFacts::read(&state)).transpose()?;
        let state =
            state.ok_or_else(|| RebuildError::Log(format!("the state of group {group} cannot be opened")))?;
        if let Some(missing) = logs::first_missing(&found, group, state.reach)? {
            return Err(RebuildError::Log(format!("the entry {missing} of group {group} is lost")));
        }
        facts.insert(group, state);
    }
    let log_facts = found.facts()?;
    judge_fit(&log_facts, &facts, Durability::Full)
        .map_err(|what| RebuildError::Log(format!("even with all of its files, {what}")))?;
    store_files::remove_dir(&new).map_err(failed(&new))?;
    store_files::make_dir(&new).map_err(failed(&new))?;
    found.rewrite(&new, &[])?;
    let aside = exchange_log(dir, &new, &log)?;
    Ok(format!("the log was rewritten from all of its files; the old log is in {}", aside.display()))
}

/// Exchanges the old log with a new one, which is complete, and returns the path of the directory that holds
/// the old one.
pub(super) fn exchange_log(dir: &Path, new: &Path, log: &Path) -> Result<PathBuf, RebuildError> {
    store_files::sync_dir(new).map_err(failed(new))?;
    let aside = set_aside(dir)?;
    store_files::exchange_dirs(new, log).map_err(failed(log))?;
    store_files::rename_dir(new, &aside.join("log")).map_err(failed(new))?;
    Ok(aside)
}

/// Recomputes all counters and returns a message about the wrong ones.
///
/// The state is counted as it is, without the log beyond it: replaying the log keeps correct counters
/// correct.
///
/// # Errors
/// If a state cannot be read or written.
pub fn recount(dir: &Path) -> Result<Vec<String>, StoreError> {
    let mut mended = Vec::new();
    for (group, path) in stores::newest_states(dir, &mut Vec::new()) {
        let state = StateDb::open(&path, &options::cache(CACHE_BYTES), MEMTABLE_BYTES)?;
        let right = rows::correct_counters(group, &state)?;
        if !right.is_empty() {
            state.write(&right)?;
            state.flush()?;
            mended.push(format!("{} counters of group {group} were recounted", right.len()));
        }
    }
    Ok(mended)
}
