//! What a check found, and how it says how far it is.

use serde::Serialize;
use std::fmt;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Worth knowing; what a crash or power loss leaves behind in the normal course.
    Note,
    /// Something that was acknowledged is damaged, missing or cannot be trusted.
    Damage,
}

/// What kind of thing is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// `node.json`.
    NodeDescription,
    /// `secrets.key`.
    SecretsKey,
    /// Something else in the place of a small file or a directory of the server's own.
    OwnFile,
    /// A secret that does not open.
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
    /// Something that belongs to another server, or to another timeline of this one.
    Foreign,
    /// The log ends before what is known to be synced.
    LostTail,
    /// The log is older than the state.
    StaleLog,
    /// The state is older than where the log begins.
    StaleState,
    /// A row that does not decode, or contradicts others.
    Row,
    /// A counter that is not the sum of what it counts.
    Counter,
    /// The catalogue is older than the segments.
    StaleCatalogue,
    /// A segment's file is missing.
    SegmentMissing,
    /// A segment is in an upstream, where it is not looked at.
    SegmentAway,
    /// A segment's file is shorter than was sealed.
    SegmentShort,
    /// A segment's header.
    SegmentHeader,
    /// The head of a record that something refers to.
    RecordHead,
    /// A block that something refers to.
    Block,
    /// A file that is nothing of ours, or of nothing we know.
    Stray,
    /// A catalogue checkpoint or a copy.
    Copy,
}

impl fmt::Display for Kind {
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
            Self::Row => "row",
            Self::Counter => "counter",
            Self::StaleCatalogue => "stale-catalogue",
            Self::SegmentMissing => "segment-missing",
            Self::SegmentAway => "segment-away",
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

/// Something that a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What kind of thing it is.
    pub kind: Kind,
    /// The file, or the row, or the object.
    pub place: String,
    /// What is wrong with it.
    pub what: String,
}

impl Finding {
    /// Damage.
    pub fn damage(kind: Kind, place: impl fmt::Display, what: impl fmt::Display) -> Self {
        Self { severity: Severity::Damage, kind, place: place.to_string(), what: what.to_string() }
    }

    /// Something worth knowing.
    pub fn note(kind: Kind, place: impl fmt::Display, what: impl fmt::Display) -> Self {
        Self { severity: Severity::Note, kind, place: place.to_string(), what: what.to_string() }
    }

    /// Whether it is damage.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        self.severity == Severity::Damage
    }
}

/// Hears how far long work is: the stage, what is done and what there is in all (0: not known).
pub type Watch<'w> = &'w dyn Fn(&'static str, u64, u64);

/// Hears nothing.
pub fn unwatched(_: &'static str, _: u64, _: u64) {}
