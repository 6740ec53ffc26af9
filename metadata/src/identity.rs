//! Decides before a start whether log and state belong to this server and fit each other.
//!
//! The functions are pure: they compare facts that were read from the log and the states. Nothing of a
//! refused log is applied and nothing is written, so a refusal leaves the evidence untouched. The offline
//! checks decide with the same functions, so they and the start agree.

use crate::durability::Durability;
use crate::offline::{CheckFinding, FindingKind, reach};
use crate::store::log_facts::{GroupFacts, LogFacts};
use crate::store::state::StateDb;
use crate::store_error::{ReadError, StoreError};
use crate::view::RowReader as _;
use mlgw_common::{ClusterId, Identity, Incarnation, Kinship, Lineage, NodeId};
use mlgw_formats::schema::meta::{MembershipRecord, MetaRow, Timeline};
use mlgw_formats::schema::set::SYSTEM_GROUP;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

/// Conditions that a catalogue must meet to be opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpectedServer {
    /// The server that the catalogue must belong to.
    pub lineage: Lineage,
    /// Minimum number of log entries over all groups: they were synced, so the log must not end before them.
    pub floor: u64,
}

impl ExpectedServer {
    /// The conditions for the catalogue in `dir`. `floor` is the highest floor that was found elsewhere.
    ///
    /// # Errors
    /// If the floor in `dir` cannot be read.
    pub fn read(dir: &Path, lineage: Lineage, floor: u64) -> Result<Self, ReadError> {
        let floor = floor.max(crate::store::floor::read(dir, lineage.own.incarnation)?);
        Ok(Self { lineage, floor })
    }
}

/// Facts of one group's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StateFacts {
    /// The timeline in its rows; `None` in a new state or in one of an earlier version.
    pub(crate) timeline: Option<Timeline>,
    /// Index of the entry after the last applied one.
    pub(crate) reach: u64,
    /// The voters of its group.
    pub(crate) voters: KnownVoters,
}

/// Facts of the states by group. A node of a cluster may have states of some groups only.
pub(crate) type StatesByGroup = BTreeMap<u32, StateFacts>;

/// Voters of a group, as its state names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum KnownVoters {
    /// The state names none: it is new.
    #[default]
    Unknown,
    /// One: its log is the only one that must have every acknowledged entry.
    One(NodeId),
    /// Several, or only another node: entries that were applied here are in the logs of others.
    Others,
}

/// Reason to refuse a catalogue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Another server, or another timeline of this one, wrote the log.
    #[error("the log belongs to {found}, this server is {own}")]
    ForeignLog {
        /// The identity in the log.
        found: Identity,
        /// The identity of this server.
        own: Identity,
    },
    /// The log has no identity, although this server has already marked its own log.
    #[error("the log names no server, but the log of this server does: it is another log, or was emptied")]
    UnmarkedLog,
    /// Another server, or another timeline of this one, wrote a part of the log.
    #[error(
        "the log has entries of the incarnation {0}, which this server did not write: one of its \
         write-ahead logs belongs to another server or timeline"
    )]
    ForeignEntries(Incarnation),
    /// A part of the log names no writer, although this server's log does.
    #[error(
        "the log has entries that name no writer, but those of this server do: some of its files belong to \
         another log"
    )]
    UnnamedEntries,
    /// Another server, or another timeline of this one, wrote the state.
    #[error("the state belongs to cluster {0} and incarnation {1}, not to this server")]
    ForeignState(ClusterId, Incarnation),
    /// The state has no timeline, although this server has already marked its own state.
    #[error(
        "the state names no timeline, but the state of this server does: it is another state, or an older \
         one"
    )]
    UnmarkedState,
    /// The log has entries of a group without a state.
    #[error("group {group}: the log has entries of it, but its state is missing")]
    LostState {
        /// The group.
        group: u32,
    },
    /// The log begins after the end of the state.
    #[error("group {group}: the state ends before entry {reach}, and the log begins at entry {begin}")]
    StaleState {
        /// The group.
        group: u32,
        /// The first entry that the state lacks.
        reach: u64,
        /// The first entry of the log.
        begin: u64,
    },
    /// The log ends before the last entry that is known to be acknowledged.
    #[error("group {group}: the log ends before entry {end}, but entries up to {known} were acknowledged")]
    StaleLog {
        /// The group.
        group: u32,
        /// The first entry that the log lacks.
        end: u64,
        /// The first entry that is not known to be acknowledged.
        known: u64,
    },
    /// The log ends below the floor.
    #[error(
        "the log has {end} entries, but {floor} were synced: its end was emptied, removed or replaced; \
         `mlgw store repair --accept-lost-tail` lists the missing entries and continues without them"
    )]
    LostTail {
        /// Number of entries of the log.
        end: u64,
        /// Number of entries that were synced.
        floor: u64,
    },
}

impl StateFacts {
    /// Reads the facts of a state.
    pub(crate) fn read(state: &StateDb) -> Result<Self, StoreError> {
        let row = state.get(&MetaRow::Incarnation.row())?;
        let timeline = row.map(|bytes| mlgw_formats::schema::decode(&bytes)).transpose()?;
        let row = state.get(&MetaRow::Membership.row())?;
        let membership: Option<MembershipRecord> =
            row.map(|bytes| mlgw_formats::schema::decode(&bytes)).transpose()?;
        let voters = membership.map_or(KnownVoters::Unknown, |membership| KnownVoters::of(&membership));
        Ok(Self { timeline, reach: reach(state)?, voters })
    }

    /// The same facts for the node that has the state. Its log may end before the state if others vote.
    pub(crate) fn seen_by(mut self, node: NodeId) -> Self {
        if matches!(self.voters, KnownVoters::One(voter) if voter != node) {
            self.voters = KnownVoters::Others;
        }
        self
    }
}

impl KnownVoters {
    fn of(membership: &MembershipRecord) -> Self {
        let voters: BTreeSet<u64> =
            membership.configs.iter().flat_map(|config| config.nodes.iter().copied()).collect();
        match (voters.first(), voters.len()) {
            (None, _) => Self::Unknown,
            (Some(voter), 1) => Self::One(NodeId(*voter)),
            _ => Self::Others,
        }
    }
}

impl Mismatch {
    /// The kind of finding under which a check reports the mismatch.
    #[must_use]
    pub const fn kind(&self) -> FindingKind {
        match self {
            Self::ForeignLog { .. }
            | Self::UnmarkedLog
            | Self::ForeignEntries(_)
            | Self::UnnamedEntries
            | Self::ForeignState(..)
            | Self::UnmarkedState => FindingKind::Foreign,
            Self::LostState { .. } => FindingKind::Store,
            Self::StaleState { .. } => FindingKind::StaleState,
            Self::StaleLog { .. } => FindingKind::StaleLog,
            Self::LostTail { .. } => FindingKind::LostTail,
        }
    }

    /// The mismatch as a finding of a check, at `place`.
    pub(crate) fn finding(&self, place: impl fmt::Display) -> CheckFinding {
        CheckFinding::damage(self.kind(), place, self)
    }
}

/// Checks that log and states are this server's and fit each other. With [`Durability::Os`] a power loss may
/// leave a log that ends before the state.
pub(crate) fn judge(
    expected: &ExpectedServer,
    log: &LogFacts,
    states: &StatesByGroup,
    durability: Durability,
) -> Result<(), Mismatch> {
    let ExpectedServer { lineage, floor } = expected;
    judge_writers(lineage, log)?;
    if log.identity.is_none() && !lineage.marking {
        // A log that lost a part may have lost its identity with it; the missing part is the better reason.
        return Err(judge_fit(log, states, durability).err().unwrap_or(Mismatch::UnmarkedLog));
    }
    if let Some(state) = states.get(&SYSTEM_GROUP) {
        judge_timeline(lineage, state)?;
    }
    judge_fit(log, states, durability)?;
    let end = log.entries();
    if durability == Durability::Full && end < *floor {
        return Err(Mismatch::LostTail { end, floor: *floor });
    }
    Ok(())
}

/// Checks that every writer named in the log is this server, and that the log reaches the floor. For a log
/// whose state is to be rebuilt.
pub(crate) fn judge_log(expected: &ExpectedServer, log: &LogFacts) -> Result<(), Mismatch> {
    judge_writers(&expected.lineage, log)?;
    if log.identity.is_none() && !expected.lineage.marking {
        return Err(Mismatch::UnmarkedLog);
    }
    let (end, floor) = (log.entries(), expected.floor);
    if end < floor { Err(Mismatch::LostTail { end, floor }) } else { Ok(()) }
}

/// Checks that every writer named in the log is this server.
fn judge_writers(lineage: &Lineage, log: &LogFacts) -> Result<(), Mismatch> {
    let of = |incarnation| Identity { incarnation, ..lineage.own };
    let foreign = |found: &Incarnation| lineage.kinship(&of(*found)) == Kinship::Foreign;
    if let Some(found) = log.writers.named.iter().find(|found| foreign(found)) {
        return Err(Mismatch::ForeignEntries(*found));
    }
    // Files of an earlier timeline may still exist, but the newest write must be this timeline's.
    if let Some(found) = log.writer {
        check_kinship(lineage, &of(found), || Mismatch::ForeignEntries(found))?;
    }
    if log.writers.unnamed && !lineage.marking {
        return Err(Mismatch::UnnamedEntries);
    }
    match &log.identity {
        Some(found) => {
            check_kinship(lineage, found, || Mismatch::ForeignLog { found: *found, own: lineage.own })
        }
        None => Ok(()),
    }
}

/// Checks that log and states fit each other, without regard to their owner.
pub(crate) fn judge_fit(
    log: &LogFacts,
    states: &StatesByGroup,
    durability: Durability,
) -> Result<(), Mismatch> {
    // A new group has no rows in the log yet. A node may have files of some groups only.
    let mut logs = (0..).zip(&log.groups);
    if let Some((group, _)) = logs.find(|(group, log)| log.end > 0 && !states.contains_key(group)) {
        return Err(Mismatch::LostState { group });
    }
    states.iter().try_for_each(|(group, state)| judge_ends(*group, state, &log.group(*group), durability))
}

/// Checks the timeline, which is a row of group 0. A start with `lineage.marking` flushes that row before it
/// ends.
fn judge_timeline(lineage: &Lineage, state: &StateFacts) -> Result<(), Mismatch> {
    let Some(Timeline { cluster, incarnation }) = state.timeline else {
        let may_be_missing = lineage.marking || state.reach == 0;
        return if may_be_missing { Ok(()) } else { Err(Mismatch::UnmarkedState) };
    };
    let (cluster, incarnation) = (ClusterId(cluster), Incarnation(incarnation));
    let found = Identity { cluster, node: lineage.own.node, incarnation };
    check_kinship(lineage, &found, || Mismatch::ForeignState(cluster, incarnation))
}

/// Accepts an earlier timeline only at the first start after a restore.
fn check_kinship(
    lineage: &Lineage,
    found: &Identity,
    refused: impl Fn() -> Mismatch,
) -> Result<(), Mismatch> {
    match lineage.kinship(found) {
        Kinship::Own => Ok(()),
        Kinship::Earlier if lineage.marking => Ok(()),
        Kinship::Earlier | Kinship::Foreign => Err(refused()),
    }
}

fn judge_ends(
    group: u32,
    state: &StateFacts,
    log: &GroupFacts,
    durability: Durability,
) -> Result<(), Mismatch> {
    let reach = state.reach;
    let begin = log.first.unwrap_or(log.purged).max(log.purged);
    if begin > reach {
        return Err(Mismatch::StaleState { group, reach, begin });
    }
    let known = reach.max(log.committed);
    // A member may apply entries, or install a snapshot, before its own log is synced. A leader counts the
    // entries of a member once they are synced.
    let is_needed = durability == Durability::Full && state.voters != KnownVoters::Others;
    if is_needed && log.end < known {
        return Err(Mismatch::StaleLog { group, end: log.end, known });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
