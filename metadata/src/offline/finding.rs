//! Findings of a check, and its progress reports.

use serde::Serialize;
use std::fmt;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Worth knowing: remains that a crash or power loss normally leaves.
    #[serde(rename = "note")]
    Info,
    /// Acknowledged data is damaged, missing or cannot be trusted.
    Damage,
}

/// Kind of the damaged thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FindingKind {
    /// `node.json`.
    NodeDescription,
    /// `secrets.key`.
    SecretsKey,
    /// A foreign file type in the place of a small file or a directory of the server's own.
    OwnFile,
    /// A secret that cannot be decrypted.
    SealedSecret,
    /// A store's directory is missing or holds no store.
    Store,
    /// A store's `CURRENT`.
    Current,
    /// A store's `MANIFEST`.
    Manifest,
    /// A store's table.
    Table,
    /// The log: a file of it, or an entry.
    Log,
    /// Data of another server, or of another timeline of this one.
    Foreign,
    /// The log ends before the last entry that is known to be synced.
    LostTail,
    /// The log ends before the state.
    StaleLog,
    /// The state ends before the log begins.
    StaleState,
    /// A state of a group that this node left.
    LeftGroup,
    /// A row that does not decode, or contradicts others.
    Row,
    /// A counter that differs from the sum of the records it counts.
    Counter,
    /// The catalogue is older than the segments.
    StaleCatalogue,
    /// A segment's file is missing.
    SegmentMissing,
    /// A segment is at an upstream or on other nodes, where its bytes are not checked.
    RemoteSegment,
    /// The replica of this node is missing, short or damaged, or marked as such. Other nodes have replicas of
    /// its segment.
    Replica,
    /// A segment's file is shorter than its sealed length.
    SegmentShort,
    /// A segment's header.
    SegmentHeader,
    /// The header of a referenced record.
    RecordHead,
    /// A referenced block.
    Block,
    /// A file that is not ours, or belongs to nothing known.
    Stray,
    /// A catalogue checkpoint or another copy.
    Copy,
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::NodeDescription => "node-description",
            Self::SecretsKey => "secrets-key",
            Self::OwnFile => "own-file",
            Self::SealedSecret => "sealed-secret",
            Self::Store => "store",
            Self::Current => "current",
            Self::Manifest => "manifest",
            Self::Table => "table",
            Self::Log => "log",
            Self::Foreign => "foreign",
            Self::LostTail => "lost-tail",
            Self::StaleLog => "stale-log",
            Self::StaleState => "stale-state",
            Self::LeftGroup => "left-group",
            Self::Row => "row",
            Self::Counter => "counter",
            Self::StaleCatalogue => "stale-catalogue",
            Self::SegmentMissing => "segment-missing",
            Self::RemoteSegment => "remote-segment",
            Self::Replica => "replica",
            Self::SegmentShort => "segment-short",
            Self::SegmentHeader => "segment-header",
            Self::RecordHead => "record-head",
            Self::Block => "block",
            Self::Stray => "stray",
            Self::Copy => "copy",
        };
        f.write_str(name)
    }
}

/// A finding of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckFinding {
    /// Severity of the finding.
    pub severity: Severity,
    /// Kind of the damaged thing.
    pub kind: FindingKind,
    /// The file, row or object.
    pub place: String,
    /// Description of the problem.
    pub what: String,
}

impl CheckFinding {
    /// A finding of damage.
    pub fn damage(kind: FindingKind, place: impl fmt::Display, what: impl fmt::Display) -> Self {
        Self { severity: Severity::Damage, kind, place: place.to_string(), what: what.to_string() }
    }

    /// A finding that is only a note.
    pub fn note(kind: FindingKind, place: impl fmt::Display, what: impl fmt::Display) -> Self {
        Self { severity: Severity::Info, kind, place: place.to_string(), what: what.to_string() }
    }

    /// True if the finding is damage.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        self.severity == Severity::Damage
    }
}

/// Callback for the progress of long work: the stage, the work done and the total (0 if unknown).
pub type ProgressCallback<'w> = &'w dyn Fn(&'static str, u64, u64);

/// Ignores progress.
pub fn ignore_progress(_: &'static str, _: u64, _: u64) {}
