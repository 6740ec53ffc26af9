//! Divides group 0 of a stopped catalogue into the system group and an object group.
//!
//! A node without peers keeps everything in group 0. In a cluster, group 0 has only the rows of the whole
//! cluster, and every node is a member of it; objects are in other groups. The division applies the whole
//! log, links the tables of group 0 into a new directory for each new group, removes from each copy the rows
//! of the others, and begins a log after the last entry. Groups that hold objects already are linked as they
//! are.
//!
//! Invariants: nothing in the old directory is changed. The new catalogue has exactly the planned rows: the
//! digests of all rows are compared, and the new catalogue is checked as a start would check it. After a
//! power loss the old directory is intact, and the new one is complete if the division had returned; the
//! caller decides which of them counts.

mod build;
mod digests;
mod plan;

use super::Offline;
use super::finding::{CheckFinding, ProgressCallback};
use super::rebuild::copy_closed;
use super::scratch::Scratch;
use crate::catalogue::checkpoints::checkpoint_dir;
use crate::copy::{Copier, CopyError};
use crate::identity::ExpectedServer;
use crate::store_error::StoreError;
pub(super) use build::{ClosedGroups, NewGroup, link_states, open_log, sync_new, write_log};
use digests::{RowDigests, RowSums};
use mlgw_common::{NodeId, Timestamp};
use mlgw_formats::store_files;
use plan::DivisionPlan;
use std::io;
use std::path::{Path, PathBuf};

/// Result of a division.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DivisionReport {
    /// Id of the group that has the objects of group 0 now.
    pub object_group: u32,
    /// Number of log entries that were applied.
    pub entries: u64,
    /// Number of rows of the new catalogue.
    pub rows: u64,
    /// Number of objects.
    pub objects: u64,
}

/// Reason that a catalogue was not divided. The old one is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum DivideError {
    /// The catalogue is damaged.
    #[error("the catalogue is damaged: {0}; run `mlgw store check`")]
    Damaged(String),
    /// Keys belong to groups whose current rows this node lacks.
    #[error("{}", missing_text(.groups, .homes))]
    MissingGroups {
        /// The groups.
        groups: Vec<u32>,
        /// The nodes that have the rows of all groups; empty if that is not known.
        homes: Vec<NodeId>,
    },
    /// The rows of groups may lack acknowledged changes.
    #[error("{}", old_text(.groups, .homes))]
    OldGroups {
        /// The groups.
        groups: Vec<u32>,
        /// The nodes that have the rows of all groups; empty if that is not known.
        homes: Vec<NodeId>,
    },
    /// The new catalogue has other rows than it must have.
    #[error("the divided catalogue is not equal to the old one ({0}); nothing was changed")]
    Differs(String),
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
    Store(#[from] StoreError),
}

fn missing_text(groups: &[u32], homes: &[NodeId]) -> String {
    let (groups, advice) = (listed(groups), other_node(homes));
    format!(
        "keys belong to groups whose current rows this node lacks ({groups}); {advice}; nothing was changed"
    )
}

fn old_text(groups: &[u32], homes: &[NodeId]) -> String {
    let (groups, advice) = (listed(groups), other_node(homes));
    format!(
        "the rows of groups may be old ({groups}): this node left them or was added to them, and has not \
         confirmed since that it has every acknowledged change; {advice}; if there is none, accept the loss \
         of changes with --old-rows; nothing was changed"
    )
}

fn listed(ids: &[impl ToString]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Advice to recover another node.
fn other_node(homes: &[NodeId]) -> String {
    match homes {
        [] => "recover another node".to_owned(),
        homes => format!(
            "recover a home node, which has the rows of all groups: one of the nodes {}",
            listed(homes)
        ),
    }
}

pub(super) fn failed(path: &Path) -> impl Fn(io::Error) -> DivideError {
    let path = path.to_owned();
    move |source| DivideError::Io { path: path.clone(), source }
}

fn damage_of(findings: &[CheckFinding]) -> DivideError {
    let damage = findings.iter().filter(|finding| finding.is_damage());
    let texts: Vec<String> = damage.map(|finding| format!("{}: {}", finding.place, finding.what)).collect();
    DivideError::Damaged(if texts.is_empty() { "it cannot be read".to_owned() } else { texts.join("; ") })
}

/// A stopped catalogue that is complete and undamaged, with the plan of its division.
pub struct Division {
    dir: PathBuf,
    node: NodeId,
    expected: Option<ExpectedServer>,
    before: Offline,
    scratch: Scratch,
    /// Minimum number of groups of objects.
    object_groups: u32,
}

impl Division {
    /// Checks the catalogue of `node` in `dir`, which no server may be using. `scratch` is an empty
    /// directory; it is removed with the division.
    ///
    /// # Errors
    /// See [`DivideError`].
    pub fn plan(
        dir: &Path,
        node: NodeId,
        expected: Option<ExpectedServer>,
        scratch: &Path,
        watch: ProgressCallback<'_>,
    ) -> Result<Self, DivideError> {
        let owner = Scratch(scratch.to_owned());
        let before = open_sound(dir, &scratch.join("before"), node, expected.as_ref(), watch)?;
        Ok(Self { dir: dir.to_owned(), node, expected, before, scratch: owner, object_groups: 0 })
    }

    /// Returns the division into at least `groups` groups of objects. Those that are added have no objects
    /// yet; new buckets are placed in them.
    #[must_use]
    pub fn with_object_groups(mut self, groups: u32) -> Self {
        self.object_groups = groups;
        self
    }

    /// The catalogue before its division.
    #[must_use]
    pub const fn catalogue(&self) -> &Offline {
        &self.before
    }

    /// Writes the divided catalogue to `new`, which must be empty or absent, and verifies it. It is durable
    /// when this returns.
    ///
    /// # Errors
    /// See [`DivideError`]. An incomplete `new` may be left.
    pub fn build(self, new: &Path, watch: ProgressCallback<'_>) -> Result<DivisionReport, DivideError> {
        let Self { dir, node, expected, before, scratch, object_groups } = self;
        let groups = before.groups();
        let object_group = groups.last().map_or(0, |last| last + 1);
        // All groups but group 0 have objects, and one more gets those of group 0.
        let has_objects = u32::try_from(groups.len()).unwrap_or(u32::MAX);
        let empty_groups = object_groups.saturating_sub(has_objects);
        let plan = DivisionPlan { object_group, empty_groups };
        let planned = planned_digests(plan, &before)?;
        drop(before);
        let (scratch, old) = (&scratch.0, ClosedGroups { dir: &dir, groups: &groups });
        let entries = build::build(&old, new, plan, expected.as_ref(), &scratch.join("building"), watch)?;
        let expected = expected.map(|of| ExpectedServer::read(new, of.lineage, of.floor));
        let expected = expected.transpose().map_err(|error| StoreError(error.to_string()))?;
        let after = open_sound(new, &scratch.join("after"), node, expected.as_ref(), watch)?;
        watch("comparing the rows", 0, 0);
        let mut sums = RowSums::default();
        for opened in &after.states {
            sums.add_state(opened.group, &opened.state)?;
        }
        let found = sums.finish();
        if let Some(difference) = planned.difference(&found) {
            return Err(DivideError::Differs(difference));
        }
        let (rows, objects) = (found.rows(), after.facts.objects);
        Ok(DivisionReport { object_group: plan.object_group, entries, rows, objects })
    }
}

/// Opens a closed catalogue without any damage.
pub(super) fn open_sound(
    dir: &Path,
    scratch: &Path,
    node: NodeId,
    expected: Option<&ExpectedServer>,
    watch: ProgressCallback<'_>,
) -> Result<Offline, DivideError> {
    let mut findings = Vec::new();
    let opened = Offline::open(dir, scratch, node, expected, &mut findings, watch)?;
    opened.filter(|_| !findings.iter().any(CheckFinding::is_damage)).ok_or_else(|| damage_of(&findings))
}

/// The digests that the new catalogue must have.
fn planned_digests(plan: DivisionPlan, before: &Offline) -> Result<RowDigests, StoreError> {
    let mut sums = RowSums::default();
    for opened in &before.states {
        match opened.group {
            0 => sums.add_divided(plan, &opened.state)?,
            group => sums.add_state(group, &opened.state)?,
        }
    }
    Ok(sums.finish())
}

/// Makes the first checkpoint of the closed catalogue `dir` in `checkpoints`. It is durable when this
/// returns; after a power loss before, it is missing, or has no list and does not count.
///
/// # Errors
/// If the catalogue cannot be read or the checkpoint cannot be written.
pub fn make_first_checkpoint(dir: &Path, checkpoints: &Path, now: Timestamp) -> Result<(), CopyError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| CopyError::Io { path, source }
    };
    let first = checkpoint_dir(checkpoints, 1);
    let new = first.with_extension("new");
    store_files::remove_dir(&new).map_err(io(&new))?;
    let mut copier = Copier::new(&new, None)?;
    copy_closed(dir, &mut copier, "")?;
    copier.finish(now)?;
    store_files::rename_dir(&new, &first).map_err(io(&first))
}
