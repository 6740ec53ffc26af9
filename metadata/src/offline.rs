//! A catalogue that is not being served: read, check, repair, rebuild.
//!
//! [`Offline::open`] never writes to the directory that it is given. It works on a scratch copy, in which
//! RocksDB's tables are links to the real ones and everything else is copied, and replays the log into that
//! copy. So it gets the same state as a start of the server. Every problem becomes a [`CheckFinding`]; the
//! search continues as long as the stores can be read at all.
//!
//! A power loss leaves only the scratch copy in the directory for temporary files.

pub(crate) mod bodies;
mod cluster_rows;
mod divide;
mod finding;
pub(crate) mod group_rows;
pub(crate) mod logs;
mod problem;
mod rebuild;
mod recover;
mod repair;
#[cfg(test)]
mod row_tests;
mod rows;
mod scratch;
mod stored_sets;
mod stores;
mod tail;
#[cfg(test)]
pub(crate) mod tests;

pub use bodies::{ExtentPosition, ReferencedExtent};
pub use divide::{DivideError, Division, DivisionReport, make_first_checkpoint};
pub use finding::{CheckFinding, FindingKind, ProgressCallback, Severity, ignore_progress};
pub use group_rows::GroupRows;
pub(crate) use logs::reach;
pub use logs::{log_entries, log_identity};
pub use rebuild::{
    CheckpointDir, RebuildError, RebuildLog, RebuildReport, check_checkpoint, copy_closed,
    foreign_checkpoint, rebuild, remove_checkpoint, unexpected_checkpoint,
};
pub use recover::{CatalogueRecovery, OldRows, RecoveredCatalogue, recover_catalogue};
pub use repair::{rebuild_log, recount, repair_current_files, repair_log};

pub(crate) use tail::{AppliedPosition, starting_rows};
pub use tail::{LogTail, check_tail, restart_log};

use crate::durability::Durability;
use crate::identity::{ExpectedServer, Mismatch, StateFacts, judge};
use crate::store::saved_log::SavedLog;
use crate::store::{behind, links};
use crate::store_error::StoreError;
use crate::view::{Row, RowReader as _};
use mlgw_common::NodeId;
use mlgw_formats::key::Family;
use mlgw_formats::schema::meta::{MembershipRecord, MetaRow};
use mlgw_formats::schema::set::SYSTEM_GROUP;
use mlgw_formats::schema::{
    Bucket, Credential, Partition, PolicyFiles, PolicyVersion, SegmentRecord, SegmentUsage, decode, policy,
};
use scratch::{Scratch, ScratchState};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use stored_sets::{StoredSets, left_note};

/// True if nothing was ever written to the catalogue in `dir`, because its first start was interrupted. Any
/// of its parts may be missing then, since a start creates them.
///
/// # Errors
/// If a directory cannot be read.
pub fn is_never_written(dir: &Path, checkpoints: &Path) -> std::io::Result<bool> {
    let log = dir.join("log");
    // An unreadable log may have entries.
    let entries = log.is_dir() && crate::store::wal::has_entries(&log).unwrap_or(true);
    let numbers = crate::catalogue::checkpoints::checkpoint_numbers(checkpoints).unwrap_or_default();
    Ok(!entries && numbers.is_empty() && !has_tables(dir)?)
}

/// True if there are tables in `dir` or below it.
fn has_tables(dir: &Path) -> std::io::Result<bool> {
    if !dir.is_dir() {
        return Ok(false);
    }
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if links::is_table(&path.to_string_lossy()) || (path.is_dir() && has_tables(&path)?) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Facts that a check of the rows collects.
#[derive(Debug, Default)]
pub struct CatalogueFacts {
    /// Buckets by id.
    pub buckets: BTreeMap<u64, Bucket>,
    /// Ids of buckets that any group mirrors.
    pub mirrored: BTreeSet<u64>,
    /// Access keys.
    pub credentials: Vec<Credential>,
    /// Segments by id.
    pub segments: BTreeMap<u64, SegmentRecord>,
    /// References of the rows to each segment.
    pub usage: BTreeMap<u64, SegmentUsage>,
    /// The segment id that is allocated next.
    pub next_segment: u64,
    /// The body id that is allocated next.
    pub next_body: u64,
    /// Number of rows, over all groups.
    pub rows: u64,
    /// The rows of each group.
    pub groups: Vec<GroupRows>,
    /// Number of objects.
    pub objects: u64,
}

/// A catalogue as a start of the server would find it.
pub struct Offline {
    states: Vec<ScratchState>,
    /// Facts from the rows.
    pub facts: CatalogueFacts,
    /// The node whose catalogue it is.
    pub node: NodeId,
    /// Groups in which the node has recorded that it may lack changes.
    behind: BTreeSet<u32>,
    /// Owns the scratch copy; dropped last.
    _scratch: Scratch,
}

/// Mismatch between the expected server and the log and states, if there is one.
fn mismatch(
    expected: &ExpectedServer,
    log: &SavedLog,
    states: &[ScratchState],
) -> Result<Option<Mismatch>, StoreError> {
    let facts = log.facts()?;
    let states = states.iter().map(|opened| Ok((opened.group, StateFacts::read(&opened.state)?)));
    let states = states.collect::<Result<_, StoreError>>()?;
    Ok(judge(expected, &facts, &states, Durability::Full).err())
}

/// Replays the log into the states of the groups that the node has, and leaves out those that it left. `None`
/// if that is impossible without a gap.
fn replayed(
    states: Vec<ScratchState>,
    node: NodeId,
    log: &SavedLog,
    log_dir: &Path,
    findings: &mut Vec<CheckFinding>,
    watch: ProgressCallback<'_>,
) -> Option<Vec<ScratchState>> {
    let (mut sets, mut current) = (None, Vec::new());
    for opened in states {
        if sets.as_ref().is_some_and(|sets: &StoredSets| sets.has_left(node, opened.group)) {
            findings.push(left_note(opened.group, opened.from.display()));
            continue;
        }
        if !logs::replay(&opened, log, log_dir, findings, watch) {
            return None;
        }
        // The first one is the system group.
        sets.get_or_insert_with(|| StoredSets::read(&opened.state));
        current.push(opened);
    }
    Some(current)
}

impl Offline {
    /// Opens the catalogue of `node` in `dir`, which no server may be using, on a copy in `scratch` (an empty
    /// directory, removed when this is dropped). It has the groups of the node; for each that the node left,
    /// `findings` gets a note. Returns `None` if the catalogue cannot be read or does not match `expected`;
    /// `findings` has the reason then.
    ///
    /// # Errors
    /// If `scratch` cannot be created or written.
    pub fn open(
        dir: &Path,
        scratch: &Path,
        node: NodeId,
        expected: Option<&ExpectedServer>,
        findings: &mut Vec<CheckFinding>,
        watch: ProgressCallback<'_>,
    ) -> Result<Option<Self>, StoreError> {
        let owner = Scratch(scratch.to_owned());
        let failed = |error: std::io::Error| StoreError(format!("{}: {error}", scratch.display()));
        let groups = stores::newest_states(dir, findings);
        if groups.is_empty() {
            return Ok(None);
        }
        let unreadable = |error: std::io::Error| StoreError(format!("{}: {error}", dir.display()));
        let behind = behind::groups_behind(dir).map_err(unreadable)?;
        let log_dir = dir.join("log");
        let log = logs::open(&log_dir, &scratch.join("log"), findings).map_err(failed)?;
        let Some(log) = log else { return Ok(None) };
        let mut states = Vec::new();
        for (group, from) in groups {
            let to = scratch.join(format!("group-{group}"));
            links::link_store(&from, &to).map_err(failed)?;
            let Some(state) = stores::open_state(&from, &to, findings) else { return Ok(None) };
            states.push(ScratchState { group, state, from, to });
        }
        match expected.map(|expected| mismatch(expected, &log, &states)).transpose() {
            Ok(found) => {
                if let Some(mismatch) = found.flatten() {
                    findings.push(mismatch.finding(dir.display()));
                    return Ok(None);
                }
            }
            // The replay or the check of the rows reports the reason for this damage better, if it gets that
            // far.
            Err(error) => tracing::debug!(%error, "did not compare log and state"),
        }
        let Some(states) = replayed(states, node, &log, &log_dir, findings, watch) else { return Ok(None) };
        let known = rows::check(states.iter(), dir, findings, watch);
        Ok(known.map(|known| Self { states, facts: known, node, behind, _scratch: owner }))
    }

    /// Calls `each` with every referenced extent and its owner, in the order of buckets and keys.
    ///
    /// # Errors
    /// Those of `each`, or if the store cannot be read.
    pub fn each_extent(
        &self,
        each: &mut dyn FnMut(&ReferencedExtent<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.states.iter().try_for_each(|opened| bodies::each_extent(&opened.state, each))
    }

    /// Returns the end of the last referenced byte of each segment.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn referenced_ends(&self) -> Result<BTreeMap<u64, u64>, StoreError> {
        let mut ends = BTreeMap::new();
        self.each_extent(&mut |of: &ReferencedExtent<'_>| {
            let end = ends.entry(of.extent.segment).or_insert(0);
            *end = of.end().max(*end);
            Ok(())
        })?;
        Ok(ends)
    }

    /// The user-written files of the running policy; empty if there are none.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn policy_files(&self) -> Result<PolicyFiles, StoreError> {
        let Some(system) = self.states.first() else { return Ok(PolicyFiles::default()) };
        let mut versions = system.state.rows(&Family::Policy.start(), &Family::Policy.end());
        versions.seek_for_prev(&Family::Policy.end());
        let Some((_, newest)) = versions.next()? else { return Ok(PolicyFiles::default()) };
        let files = system.state.get(&policy::files_row(decode::<PolicyVersion>(newest)?.files))?;
        Ok(files.as_deref().map(decode).transpose()?.unwrap_or_default())
    }

    /// Ids of the groups, in order. A node of a cluster has some of them.
    #[must_use]
    pub fn groups(&self) -> Vec<u32> {
        self.states.iter().map(|opened| opened.group).collect()
    }

    /// Ids of the groups that own ranges and have no rows here: the node has no member of them, or left them,
    /// or has not received their rows yet.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn missing_groups(&self) -> Result<Vec<u32>, StoreError> {
        let (mut owners, mut filled) = (BTreeSet::new(), BTreeSet::new());
        for ScratchState { group, state, .. } in &self.states {
            filled.extend((logs::reach(state)? > 0).then_some(*group));
            if *group == SYSTEM_GROUP {
                let rows = state.range(&Family::Partition.start(), &Family::Partition.end(), usize::MAX)?;
                for (_, value) in rows {
                    owners.insert(decode::<Partition>(&value)?.group);
                }
            }
        }
        Ok(owners.difference(&filled).copied().collect())
    }

    /// Ids of the groups here whose rows may lack acknowledged changes: the node left them or was added to
    /// them, and has not confirmed since that it has all of their rows; or it is no member of them by its own
    /// rows.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn old_groups(&self) -> Result<Vec<u32>, StoreError> {
        let mut old = Vec::new();
        for ScratchState { group, state, .. } in &self.states {
            let known = state.get(&MetaRow::Membership.row())?;
            let known: Option<MembershipRecord> = known.as_deref().map(decode).transpose()?;
            let is_member = |known: &MembershipRecord| {
                known.position.is_none() || known.members.iter().any(|of| of.node == self.node.get())
            };
            if self.behind.contains(group) || !known.as_ref().is_none_or(is_member) {
                old.push(*group);
            }
        }
        Ok(old)
    }

    /// The nodes that have the rows of all groups; none if there are no sets.
    #[must_use]
    pub fn home_nodes(&self) -> Vec<NodeId> {
        self.states.first().map_or_else(Vec::new, |system| StoredSets::read(&system.state).home_nodes())
    }

    /// All rows of a group, in order; none if it is not here.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn dump(&self, group: u32) -> Result<Vec<Row>, StoreError> {
        let mut rows = Vec::new();
        let Some(opened) = self.states.iter().find(|opened| opened.group == group) else { return Ok(rows) };
        let mut iter = opened.state.rows(&[0], &[u8::MAX]);
        while let Some((key, value)) = iter.next()? {
            rows.push((key.to_vec(), value.to_vec()));
        }
        Ok(rows)
    }
}
