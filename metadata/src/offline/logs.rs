//! The log of a closed catalogue: checks whether it is readable and complete, and replays it.
//!
//! With one voter every entry of the log is committed; a start of the server assumes the same.

use super::finding::{CheckFinding, FindingKind, ProgressCallback};
use super::scratch::{Scratch, ScratchState};
use super::{problem, stores};
use crate::raft::replay::Replay;
use crate::store::log_rows::LogRowKind;
use crate::store::saved_log::SavedLog;
use crate::store::state::StateDb;
use crate::store::{links, wal};
use crate::store_error::StoreError;
use crate::view::RowReader as _;
use mlgw_common::Identity;
use mlgw_formats::schema::meta::{LogPosition, MetaRow};
use std::path::Path;

/// Opens a copy at `to` of the log in `from`; `None` if it cannot be read.
pub(super) fn open(
    from: &Path,
    to: &Path,
    findings: &mut Vec<CheckFinding>,
) -> std::io::Result<Option<SavedLog>> {
    if !from.is_dir() {
        findings.push(CheckFinding::damage(FindingKind::Log, from.display(), "the log is missing"));
        return Ok(None);
    }
    if !stores::check_description(from, findings) {
        return Ok(None);
    }
    write_ahead_logs(from, findings)?;
    links::link_store(from, to)?;
    match SavedLog::open(to) {
        Ok(log) => Ok(Some(log)),
        Err(error) => {
            findings.push(problem::finding_of(&error.0, from, to));
            Ok(None)
        }
    }
}

/// The identity in the log of the closed catalogue in `dir`; `None` if it cannot be read or has none.
/// `scratch` is an empty directory; it is removed.
#[must_use]
pub fn log_identity(dir: &Path, scratch: &Path) -> Option<Identity> {
    let _scratch = Scratch(scratch.to_owned());
    let copy = scratch.join("log");
    links::link_store(&dir.join("log"), &copy).ok()?;
    SavedLog::open(&copy).ok()?.facts().ok()?.identity
}

/// Number of entries that the log of the closed catalogue in `dir` ever had, over all groups. `scratch` is an
/// empty directory; it is removed.
///
/// # Errors
/// If the log cannot be read.
pub fn log_entries(dir: &Path, scratch: &Path) -> Result<u64, StoreError> {
    let _scratch = Scratch(scratch.to_owned());
    let copy = scratch.join("log");
    let failed = |error: std::io::Error| StoreError(format!("{}: {error}", scratch.display()));
    links::link_store(&dir.join("log"), &copy).map_err(failed)?;
    Ok(SavedLog::open(&copy)?.facts()?.entries())
}

/// Checks the write-ahead logs of the log store.
fn write_ahead_logs(dir: &Path, findings: &mut Vec<CheckFinding>) -> std::io::Result<()> {
    let Some(wal::BadWalRecord { file, at, damage }) = wal::first_bad(dir)? else { return Ok(()) };
    findings.push(match damage {
        Some(why) => {
            CheckFinding::damage(FindingKind::Log, file.display(), format!("damaged at byte {at}: {why}"))
        }
        None => {
            let what = format!("its end is torn at byte {at}, as after a power loss");
            CheckFinding::note(FindingKind::Log, file.display(), what)
        }
    });
    Ok(())
}

/// Applies the entries of the log beyond a state to that state. False if that is impossible without a gap.
pub(super) fn replay(
    opened: &ScratchState,
    saved: &SavedLog,
    dir: &Path,
    findings: &mut Vec<CheckFinding>,
    watch: ProgressCallback<'_>,
) -> bool {
    let before = findings.len();
    if let Err(error) = replay_entries(&opened.state, saved, opened.group, dir, findings, watch) {
        findings.push(problem::finding_of(&error.0, &opened.from, &opened.to));
    }
    findings[before..].iter().all(|finding| !finding.is_damage())
}

fn replay_entries(
    state: &StateDb,
    saved: &SavedLog,
    group: u32,
    dir: &Path,
    findings: &mut Vec<CheckFinding>,
    watch: ProgressCallback<'_>,
) -> Result<(), StoreError> {
    let reach = reach(state)?;
    let end = |position: Option<LogPosition>| position.map_or(0, |position| position.index + 1);
    let purged = end(saved.position(group, LogRowKind::Purged)?);
    let committed = end(saved.position(group, LogRowKind::Committed)?);
    let mut replay = Replay::new(state, reach);
    // Damage elsewhere must not suppress entries: the check would miss rows that exist.
    let before = findings.len();
    let mut log_end = None;
    saved.each_entry(group, 0, &mut |index, bytes| {
        let expected = log_end.unwrap_or(reach);
        if index > expected {
            let missing = format!("{expected} to {} of group {group}", index - 1);
            findings.push(match log_end {
                Some(_) => CheckFinding::damage(
                    FindingKind::Log,
                    dir.display(),
                    format!("the entries {missing} are missing"),
                ),
                None => CheckFinding::damage(
                    FindingKind::StaleState,
                    dir.display(),
                    format!("the state lacks the entries {missing}, and the log no longer has them"),
                ),
            });
        }
        log_end = Some(index + 1);
        if index >= reach && !findings[before..].iter().any(CheckFinding::is_damage) {
            replay.entry(index, bytes)?;
            watch("replaying the log", index - reach, 0);
        }
        Ok(())
    })?;
    replay.finish()?;
    if log_end.is_none() && purged > reach {
        let what = format!(
            "the state of group {group} ends before entry {reach}, but its log was purged before entry \
             {purged}"
        );
        findings.push(CheckFinding::damage(FindingKind::StaleState, dir.display(), what));
    }
    let end = log_end.unwrap_or(purged).max(purged);
    if let Some(what) = describe_stale_log(group, end, reach.max(committed)) {
        findings.push(CheckFinding::damage(FindingKind::StaleLog, dir.display(), what));
    }
    Ok(())
}

/// Description of a log of a group that ends before the entry `end`, although the entries before `known` were
/// acknowledged; `None` if it is long enough.
fn describe_stale_log(group: u32, end: u64, known: u64) -> Option<String> {
    let what = || {
        format!(
            "the log of group {group} ends before entry {end}, but entries up to {known} were acknowledged"
        )
    };
    (end < known).then(what)
}

/// The first entry of `group` that the log lacks: between others, or after the entries of a state that
/// reaches to `reach` and before the last acknowledged one.
pub(super) fn first_missing(saved: &SavedLog, group: u32, reach: u64) -> Result<Option<u64>, StoreError> {
    let (mut next, mut missing) = (None, None);
    saved.each_entry(group, 0, &mut |index, _| {
        let expected = next.unwrap_or(reach.min(index));
        if index != expected {
            missing.get_or_insert(expected);
        }
        next = Some(index + 1);
        Ok(())
    })?;
    let end =
        |kind| Ok::<_, StoreError>(saved.position(group, kind)?.map_or(0, |position| position.index + 1));
    let known = end(LogRowKind::Purged)?.max(end(LogRowKind::Committed)?);
    let have = next.unwrap_or(0).max(reach);
    Ok(missing.or((have < known).then_some(have)))
}

/// Index of the entry after the last one that the state contains.
pub(crate) fn reach(state: &StateDb) -> Result<u64, StoreError> {
    let row = state.get(&MetaRow::Applied.row())?;
    let position: Option<LogPosition> = row.map(|bytes| mlgw_formats::schema::decode(&bytes)).transpose()?;
    Ok(position.map_or(0, |position| position.index + 1))
}
