//! Detects a log that lost its end, or all of it, and starts a new log where the states end.
//!
//! The new log is made beside the old one, synced, and exchanged with it; the old one is set aside. The new
//! log names no server, so no start accepts it until a new timeline was begun. A crash before that is
//! detected, and repeating the operation continues it.

use super::rebuild::{RebuildError, failed};
use super::repair::exchange_log;
use super::scratch::Scratch;
use super::stores;
use crate::durability::Durability;
use crate::identity::{ExpectedServer, Mismatch, StateFacts, judge};
use crate::store::links;
use crate::store::log_rows::{LogRowKind, key};
use crate::store::saved_log::{SavedLog, write_rows};
use crate::store::state::StateDb;
use crate::store_error::StoreError;
use crate::view::RowReader as _;
use mlgw_formats::schema::meta::{LogPosition, MetaRow};
use mlgw_formats::store_files;
use std::path::{Path, PathBuf};

/// Completeness of a closed catalogue's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTail {
    /// The log is complete, as far as is known.
    Complete,
    /// The end of the log, or all of it, is missing.
    Lost,
    /// The log has another problem; the reason.
    Other(String),
}

/// A group and the position of its last applied log entry.
pub(crate) struct AppliedPosition {
    pub(crate) group: u32,
    pub(crate) position: Option<LogPosition>,
}

/// Checks whether the log of the closed catalogue in `dir` has lost its end. `scratch` is an empty directory;
/// it is removed.
///
/// # Errors
/// If a store cannot be read.
pub fn check_tail(dir: &Path, expected: &ExpectedServer, scratch: &Path) -> Result<LogTail, RebuildError> {
    let _scratch = Scratch(scratch.to_owned());
    let states = open_states(dir, scratch)?;
    let Some(log) = open_log_copy(&dir.join("log"), scratch)? else { return Ok(LogTail::Lost) };
    let facts = states.iter().map(|of| Ok((of.group, StateFacts::read(&of.state)?)));
    let facts = facts.collect::<Result<_, StoreError>>()?;
    let log = log.facts()?;
    Ok(match judge(expected, &log, &facts, Durability::Full) {
        Ok(()) => LogTail::Complete,
        Err(Mismatch::LostTail { .. } | Mismatch::StaleLog { .. }) => LogTail::Lost,
        // A log that was started by [`restart_log`].
        Err(Mismatch::UnmarkedLog) if log.groups.iter().any(|group| group.first.is_none()) => LogTail::Lost,
        Err(other) => LogTail::Other(other.to_string()),
    })
}

/// Makes a log that begins where the states end, for every group whose log ends before its state, and returns
/// the path of the old log. Does nothing if every log reaches as far as its state. `scratch` is an empty
/// directory; it is removed.
///
/// # Errors
/// If a file cannot be read or written; the log is unchanged then.
pub fn restart_log(dir: &Path, scratch: &Path) -> Result<Option<PathBuf>, RebuildError> {
    let _scratch = Scratch(scratch.to_owned());
    let (log, new) = (dir.join("log"), dir.join("log.new"));
    let states = open_states(dir, scratch)?;
    let old = open_log_copy(&log, scratch)?;
    let facts = old.as_ref().map(|old| old.facts()).transpose()?;
    let end = |group: u32| facts.as_ref().map_or(0, |of| of.group(group).end);
    let mut short = Vec::new();
    for of in &states {
        let reach = StateFacts::read(&of.state)?.reach;
        if reach > end(of.group) || old.is_none() {
            let row = of.state.get(&MetaRow::Applied.row())?;
            let position = row.map(|bytes| mlgw_formats::schema::decode(&bytes)).transpose();
            let position = position.map_err(StoreError::from)?;
            short.push(AppliedPosition { group: of.group, position });
        }
    }
    if short.is_empty() {
        return Ok(None);
    }
    store_files::remove_dir(&new).map_err(failed(&new))?;
    store_files::make_dir(&new).map_err(failed(&new))?;
    if let Some(old) = &old {
        let is_kept = |row: &[u8]| {
            let is_of = |kind: LogRowKind| row.get(4) == Some(&(kind as u8));
            let is_short = short.iter().any(|of| row.starts_with(&of.group.to_be_bytes()));
            !is_of(LogRowKind::Identity) && !is_of(LogRowKind::Writer) && !is_short
        };
        old.rewrite_rows(&new, &is_kept, &[])?;
    }
    write_rows(&new, &starting_rows(&short))?;
    store_files::make_dir(&log).map_err(failed(&log))?;
    exchange_log(dir, &new, &log).map(Some)
}

/// Rows of logs that begin after these positions: earlier entries count as purged, and the leader is the one
/// that wrote the position.
pub(crate) fn starting_rows(short: &[AppliedPosition]) -> Vec<([u8; 13], Vec<u8>)> {
    let positions = short.iter().filter_map(|of| Some((of.group, of.position?)));
    positions
        .flat_map(|(group, position)| {
            let vote = LogPosition { index: 1, ..position };
            let rows = [(LogRowKind::Purged, position), (LogRowKind::Vote, vote)];
            rows.map(|(kind, value)| (key(group, kind, 0), mlgw_formats::schema::encode(&value)))
        })
        .collect()
}

/// State of a group, on a scratch copy.
struct GroupScratchState {
    group: u32,
    state: StateDb,
}

fn open_states(dir: &Path, scratch: &Path) -> Result<Vec<GroupScratchState>, RebuildError> {
    let mut found = Vec::new();
    let states = stores::newest_states(dir, &mut found);
    let mut opened = Vec::new();
    for (group, from) in states {
        let to = scratch.join(format!("group-{group}"));
        links::link_store(&from, &to).map_err(failed(&from))?;
        let Some(state) = stores::open_state(&from, &to, &mut found) else { break };
        opened.push(GroupScratchState { group, state });
    }
    if let Some(wrong) = found.iter().find(|finding| finding.is_damage()) {
        return Err(RebuildError::Wrong(format!("{}: {}", wrong.place, wrong.what)));
    }
    Ok(opened)
}

/// Copy of the log; `None` if its directory is missing or empty.
fn open_log_copy(log: &Path, scratch: &Path) -> Result<Option<SavedLog>, RebuildError> {
    let is_empty = match std::fs::read_dir(log) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => return Err(failed(log)(error)),
    };
    if is_empty {
        return Ok(None);
    }
    let to = scratch.join("log");
    links::link_store(log, &to).map_err(failed(log))?;
    Ok(Some(SavedLog::open(&to)?))
}
