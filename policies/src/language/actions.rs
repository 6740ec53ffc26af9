//! The table of what rules may do: actions, and the parameters that each takes.

use super::value::{Kind, Value};
use super::words::{CachePolicy, Lane, Priority, Strategy, Word, words};

words! {
    /// What a rule does.
    ActionKind {
        /// Keep a clean copy of what is read, or with `keep: false` keep none.
        Cache = "cache",
        /// Keep a copy once it is read often enough, and pass scans by.
        IntelligentCache = "intelligent_cache",
        /// Read ahead.
        Prefetch = "prefetch",
        /// Pass bytes through in chunks as they come.
        Stream = "stream",
        /// Let workers that read the same bytes at the same time share one read.
        Coordinate = "coordinate",
        /// Compress what is written to segments, where it pays.
        Compress = "compress",
        /// Give requests a lane and a rank.
        Prioritize = "prioritize",
        /// Bring the truth up.
        Promote = "promote",
        /// Keep it where it is, whatever else wants the room.
        Pin = "pin",
        /// Let go of a pin that a rule has set.
        Unpin = "unpin",
        /// Move the truth down.
        Spill = "spill",
        /// Drop clean copies.
        Evict = "evict",
        /// Keep some checkpoints of many; unpin and demote the others.
        Retain = "retain",
    }
}

words! {
    /// What an answer is about: a stronger rule's takes the place of a weaker one's.
    Aspect {
        /// Whether a clean copy is kept, and how dear it is.
        Copy = "copy",
        /// When clean copies are dropped.
        Eviction = "eviction",
        /// In which tier the truth should be.
        Tier = "tier",
        /// Whether it is pinned.
        Pin = "pin",
        /// Who goes first.
        Lane = "lane",
        /// How it is encoded.
        Compression = "compression",
        /// How far is read ahead.
        Prefetch = "prefetch",
        /// How it passes through.
        Stream = "stream",
        /// Who shares reads.
        Coordination = "coordination",
        /// Which checkpoints stay.
        Retention = "retention",
    }
}

/// Some aspects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aspects(u16);

const _: () = assert!(Aspect::ALL.len() <= u16::BITS as usize);

impl Aspects {
    /// These.
    #[must_use]
    pub const fn of(these: &[Aspect]) -> Self {
        let (mut bits, mut at) = (0, 0);
        while at < these.len() {
            bits |= 1 << these[at] as u16;
            at += 1;
        }
        Self(bits)
    }

    /// Whether one is among them.
    #[must_use]
    pub const fn has(self, aspect: Aspect) -> bool {
        self.0 & 1 << aspect as u16 != 0
    }

    /// Whether one of them is one of the others.
    #[must_use]
    pub const fn meets(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }
}

/// Another word of an action, and the action.
pub(super) const ALIASES: &[(&str, ActionKind)] = &[("chunked_streaming", ActionKind::Stream)];

/// A word that is known, and refused until there is a cluster to do it.
pub(super) const REPLICATE: &str = "replicate";

/// Parameters that had no effect and are gone, each with its action: in files that were applied before they
/// may stand, with any value.
const RETIRED: &[(ActionKind, &str)] = &[(ActionKind::IntelligentCache, "bypass_one_pass")];

/// What a target may be.
pub(super) const TARGETS: &[&str] = &["object", "dataset", "checkpoint_group", "prefix:PREFIX"];

/// A row of the table of parameters.
#[derive(Debug)]
pub struct ParameterRow {
    /// Which parameter.
    pub parameter: Parameter,
    /// What its values are.
    pub kind: Kind,
    /// The value that it has when none is given, in text form; none when it then has none.
    pub default: Option<&'static str>,
    /// The smallest and the largest value, in text form.
    pub range: Option<(&'static str, &'static str)>,
    /// What it means.
    pub doc: &'static str,
}

impl ParameterRow {
    /// The default, read.
    #[must_use]
    pub fn default_value(&self) -> Option<Value> {
        self.kind.read_text(self.default?)
    }
}

/// The range of a row in base units; every range of a table reads as its kind.
pub(super) fn sizes_of(kind: Kind, range: Option<(&str, &str)>) -> Option<(f64, f64)> {
    let size = |text| kind.read_text(text).and_then(|value| value.size());
    range.and_then(|(low, high)| Some((size(low)?, size(high)?)))
}

words! {
    /// A parameter of an action.
    Parameter {
        /// Whether something is kept.
        Keep = "keep",
        /// What decides which copies stay.
        Policy = "policy",
        /// How much it matters.
        Priority = "priority",
        /// How many reads are needed.
        MinReads = "min_reads",
        /// How many are read ahead.
        Depth = "depth",
        /// How many bytes at most.
        Bytes = "bytes",
        /// How eagerly.
        Strategy = "strategy",
        /// What comes next.
        Next = "next",
        /// Bytes of a chunk.
        Chunk = "chunk",
        /// How many chunks ahead of the reader.
        Ahead = "ahead",
        /// How long to wait for others.
        Window = "window",
        /// The method.
        Codec = "codec",
        /// The effort.
        Level = "level",
        /// What it has to gain.
        MinRatio = "min_ratio",
        /// Which lane.
        Lane = "lane",
        /// Where to.
        To = "to",
        /// How long.
        For = "for",
        /// How long after the last read.
        After = "after",
        /// How many of the newest.
        KeepLast = "keep_last",
        /// How many of the best.
        KeepBest = "keep_best",
        /// Where the measure of a checkpoint stands.
        BestBy = "best_by",
        /// Which end of the measure is good.
        BestIs = "best_is",
        /// One of how many.
        KeepEvery = "keep_every",
        /// Whether others are deleted.
        Delete = "delete",
        /// How long a deletion can be called off.
        Grace = "grace",
    }
}

macro_rules! rows {
    ($($(#[doc = $doc:literal])+ $Name:ident: $kind:expr $(, default $default:literal)? $(, from $low:literal to $high:literal)?;)*) => {
        &[$(ParameterRow {
            parameter: Parameter::$Name,
            kind: $kind,
            default: rows!(@optional $($default)?),
            range: rows!(@optional $(($low, $high))?),
            doc: concat!($($doc),+).trim_ascii(),
        },)*]
    };
    (@optional) => { None };
    (@optional $some:expr) => { Some($some) };
}

const CACHE: &[ParameterRow] = rows! {
    /// Whether a copy is kept; `false` keeps none and drops the one that is there when room is needed.
    Keep: Kind::Flag, default "true";
    /// What decides which copies stay: with `lru` all are made and the least recently read go first, whatever
    /// their priority; `none` is as `keep: false`, `learned` as `training-aware`. Without it the setting
    /// `cache` says it.
    Policy: Kind::Word(CachePolicy::WORDS);
    /// How dear the copy is when room is needed.
    Priority: Kind::Word(Priority::WORDS), default "normal";
};
const INTELLIGENT_CACHE: &[ParameterRow] = rows! {
    /// Reads from which on a copy is kept.
    MinReads: Kind::Count, default "2", from "1" to "1000";
    /// How dear the copy is when room is needed.
    Priority: Kind::Word(Priority::WORDS), default "normal";
};
const PREFETCH: &[ParameterRow] = rows! {
    /// How many blocks, shards or keys are read ahead.
    Depth: Kind::Count, default "8", from "1" to "1024";
    /// Bytes that are read ahead at most.
    Bytes: Kind::Bytes, default "256MiB", from "64KiB" to "1TiB";
    /// How eagerly.
    Strategy: Kind::Word(Strategy::WORDS), default "adaptive";
    /// What comes after the next blocks of the object: nothing, the shards with the next numbers, what an
    /// access plan asks for, or what fits best.
    Next: Kind::Word(&["auto", "blocks", "shards", "planned"]), default "auto";
};
const STREAM: &[ParameterRow] = rows! {
    /// Bytes of a chunk.
    Chunk: Kind::Bytes, default "8MiB", from "64KiB" to "256MiB";
    /// Chunks that are fetched ahead of the reader.
    Ahead: Kind::Count, default "2", from "0" to "64";
    /// Whether copies of the chunks are kept.
    Keep: Kind::Flag, default "false";
};
const COORDINATE: &[ParameterRow] = rows! {
    /// How long bytes are held for workers that have not come to them yet.
    Window: Kind::Duration, default "30s", from "0s" to "1h";
    /// Bytes that are held for all workers at most: with more no others are.
    Bytes: Kind::Bytes, default "1GiB", from "1MiB" to "1TiB";
};
const COMPRESS: &[ParameterRow] = rows! {
    /// The method.
    Codec: Kind::Word(&["zstd"]), default "zstd";
    /// The effort: more takes longer and gains less.
    Level: Kind::Count, default "3", from "1" to "19";
    /// How many times smaller a sample has to become, or it is stored as it is.
    MinRatio: Kind::Number, default "1.2", from "1" to "100";
};
const PRIORITIZE: &[ParameterRow] = rows! {
    /// The lane; without one it stays as the workload says.
    Lane: Kind::Word(Lane::WORDS);
    /// The rank within it.
    Priority: Kind::Word(Priority::WORDS), default "normal";
};
const PROMOTE: &[ParameterRow] = rows! {
    /// How far up.
    To: Kind::Word(&["hot", "memory"]), default "hot";
};
const PIN: &[ParameterRow] = rows! {
    /// How long, from when the rule matched first; without it as long as it matches.
    For: Kind::Duration, from "1s" to "3650d";
    /// Bytes that this rule may pin at most; the newest are let go of first.
    Bytes: Kind::Bytes, from "1B" to "1024TiB";
};
const SPILL: &[ParameterRow] = rows! {
    /// How far down.
    To: Kind::Word(&["cold", "upstream"]), default "cold";
    /// How long after the last read.
    After: Kind::Duration, default "0s", from "0s" to "3650d";
};
const EVICT: &[ParameterRow] = rows! {
    /// How long after the last read.
    After: Kind::Duration, default "0s", from "0s" to "3650d";
};
const RETAIN: &[ParameterRow] = rows! {
    /// How many of the newest complete checkpoints stay.
    KeepLast: Kind::Count, default "3", from "1" to "10000";
    /// How many of the best stay besides. 0: the best one by each measure that names carry, as in
    /// `val_loss=0.25`.
    KeepBest: Kind::Count, default "0", from "0" to "10000";
    /// The user metadata of a checkpoint that holds its measure.
    BestBy: Kind::Text, default "metric";
    /// Whether a low or a high measure is good.
    BestIs: Kind::Word(&["lowest", "highest"]), default "lowest";
    /// One of so many stays besides, the first of them first; 0: none does.
    KeepEvery: Kind::Count, default "0", from "0" to "1000000";
    /// Whether the others are deleted, not only unpinned and demoted.
    Delete: Kind::Flag, default "false";
    /// How long a deletion waits, and can be called off.
    Grace: Kind::Duration, default "1d", from "0s" to "3650d";
};

impl ActionKind {
    /// Its parameters.
    #[must_use]
    pub fn rows(self) -> &'static [ParameterRow] {
        match self {
            Self::Cache => CACHE,
            Self::IntelligentCache => INTELLIGENT_CACHE,
            Self::Prefetch => PREFETCH,
            Self::Stream => STREAM,
            Self::Coordinate => COORDINATE,
            Self::Compress => COMPRESS,
            Self::Prioritize => PRIORITIZE,
            Self::Promote => PROMOTE,
            Self::Pin => PIN,
            Self::Unpin => &[],
            Self::Spill => SPILL,
            Self::Evict => EVICT,
            Self::Retain => RETAIN,
        }
    }

    /// Whether it does anything with objects of our own buckets, or else with those of bound ones.
    #[must_use]
    pub const fn is_done_in(self, is_own: bool) -> bool {
        match self {
            Self::Prioritize | Self::Pin | Self::Unpin => true,
            Self::Promote | Self::Spill | Self::Compress | Self::Retain => is_own,
            Self::Cache
            | Self::IntelligentCache
            | Self::Prefetch
            | Self::Stream
            | Self::Coordinate
            | Self::Evict => !is_own,
        }
    }

    /// Parameters that it had once.
    pub(super) fn retired(self) -> impl Iterator<Item = &'static str> {
        RETIRED.iter().filter(move |(action, _)| *action == self).map(|(_, parameter)| *parameter)
    }

    /// What it answers.
    #[must_use]
    pub fn aspect(self) -> Aspect {
        match self {
            Self::Cache | Self::IntelligentCache => Aspect::Copy,
            Self::Evict => Aspect::Eviction,
            Self::Promote | Self::Spill => Aspect::Tier,
            Self::Pin | Self::Unpin => Aspect::Pin,
            Self::Prioritize => Aspect::Lane,
            Self::Compress => Aspect::Compression,
            Self::Prefetch => Aspect::Prefetch,
            Self::Stream => Aspect::Stream,
            Self::Coordinate => Aspect::Coordination,
            Self::Retain => Aspect::Retention,
        }
    }

    /// Whether a built-in rule only says it: what moves bytes down or rewrites them is for a person to ask
    /// for.
    #[must_use]
    pub fn is_for_a_person(self) -> bool {
        matches!(self, Self::Spill | Self::Evict | Self::Retain | Self::Compress)
    }
}

#[cfg(test)]
mod tests {
    use super::{ActionKind, sizes_of};
    use crate::language::words::Word;

    #[test]
    fn defaults_are_values_of_their_kind_within_their_range() {
        for row in ActionKind::ALL.iter().flat_map(|action| action.rows()) {
            let value = row.default_value();
            assert_eq!(value.is_some(), row.default.is_some(), "{}", row.parameter);
            assert_eq!(sizes_of(row.kind, row.range).is_some(), row.range.is_some(), "{}", row.parameter);
            let within = sizes_of(row.kind, row.range)
                .zip(value.and_then(|value| value.size()))
                .is_none_or(|((low, high), size)| (low..=high).contains(&size));
            assert!(within, "{}", row.parameter);
        }
    }

    #[test]
    fn every_parameter_stands_once_in_an_action() {
        for action in ActionKind::ALL {
            let mut names: Vec<_> = action.rows().iter().map(|row| row.parameter).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), action.rows().len(), "{action}");
        }
    }
}
