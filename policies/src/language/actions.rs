//! Tables of the actions of rules and of the parameters of each action.

use super::value::{Value, ValueKind};
use super::words::{CachePolicy, Lane, Priority, Strategy, Word, words};

words! {
    /// Kind of an action.
    ActionKind {
        /// Keeps a clean copy of what is read; with `keep: false` keeps none.
        Cache = "cache",
        /// Keeps a clean copy after enough reads; scans leave no copies.
        IntelligentCache = "intelligent_cache",
        /// Reads ahead.
        Prefetch = "prefetch",
        /// Passes bytes through in chunks.
        Stream = "stream",
        /// Shares one read among workers that read the same bytes at the same time.
        Coordinate = "coordinate",
        /// Compresses samples in segments, where it saves space.
        Compress = "compress",
        /// Assigns requests to a lane and a rank.
        Prioritize = "prioritize",
        /// Moves the authoritative copy to a faster tier.
        Promote = "promote",
        /// Keeps the object in its tier, whatever else needs the space.
        Pin = "pin",
        /// Removes a pin that a rule has set.
        Unpin = "unpin",
        /// Moves the authoritative copy to a slower tier.
        Spill = "spill",
        /// Evicts clean copies.
        Evict = "evict",
        /// Keeps some of many checkpoints; unpins and spills the others.
        Retain = "retain",
    }
}

words! {
    /// Aspect of an object that an action decides. For each aspect the strongest matching rule decides.
    Aspect {
        /// Keeping of a clean copy, and its priority.
        Copy = "copy",
        /// Eviction of clean copies.
        Eviction = "eviction",
        /// Tier of the authoritative copy.
        Tier = "tier",
        /// Pinning.
        Pin = "pin",
        /// Order of requests.
        Lane = "lane",
        /// Encoding in segments.
        Compression = "compression",
        /// Read-ahead depth.
        Prefetch = "prefetch",
        /// Passing through of bytes.
        Stream = "stream",
        /// Sharing of reads.
        Coordination = "coordination",
        /// Retention of checkpoints.
        Retention = "retention",
    }
}

/// A set of aspects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aspects(u16);

const _: () = assert!(Aspect::ALL.len() <= u16::BITS as usize);

impl Aspects {
    /// Returns the set of `these` aspects.
    #[must_use]
    pub const fn new(these: &[Aspect]) -> Self {
        let (mut bits, mut at) = (0, 0);
        while at < these.len() {
            bits |= 1 << these[at] as u16;
            at += 1;
        }
        Self(bits)
    }

    /// True if the set contains `aspect`.
    #[must_use]
    pub const fn contains(self, aspect: Aspect) -> bool {
        self.0 & 1 << aspect as u16 != 0
    }

    /// True if the sets have an aspect in common.
    #[must_use]
    pub const fn intersects(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }
}

/// Alternative words of actions.
pub(super) const ALIASES: &[(&str, ActionKind)] = &[("chunked_streaming", ActionKind::Stream)];

/// A reserved word, which is refused until clusters are supported.
pub(super) const RESERVED_ACTION: &str = "replicate";

/// Buckets whose objects an action has an effect on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ActionScope {
    All,
    Local,
    RemoteBacked,
}

/// Removed parameters, which had no effect, each with its action. In stored policies they are accepted with
/// any value.
const REMOVED_PARAMETERS: &[(ActionKind, &str)] = &[(ActionKind::IntelligentCache, "bypass_one_pass")];

/// Forms of a target, for messages.
pub(super) const TARGETS: &[&str] = &["object", "dataset", "checkpoint_group", "prefix:PREFIX"];

/// A row of a parameter table.
#[derive(Debug)]
pub struct ParameterRow {
    /// The parameter.
    pub parameter: Parameter,
    /// Kind of its values.
    pub kind: ValueKind,
    /// Default in text form; none if the parameter then has no value.
    pub default: Option<&'static str>,
    /// Smallest and largest value, in text form.
    pub range: Option<(&'static str, &'static str)>,
    /// Description.
    pub doc: &'static str,
}

impl ParameterRow {
    /// Returns the parsed default.
    #[must_use]
    pub fn default_value(&self) -> Option<Value> {
        self.kind.parse(self.default?)
    }
}

/// Converts a range to base units; none if there is no range. The ranges of all tables can be parsed.
pub(super) fn range_sizes(kind: ValueKind, range: Option<(&str, &str)>) -> Option<(f64, f64)> {
    let size = |text| kind.parse(text).and_then(|value| value.size());
    range.and_then(|(low, high)| Some((size(low)?, size(high)?)))
}

words! {
    /// A parameter of an action.
    Parameter {
        /// True if copies are kept.
        Keep = "keep",
        /// Cache policy of the copies.
        Policy = "policy",
        /// Importance of the copy, or rank of the request.
        Priority = "priority",
        /// Minimum number of reads.
        MinReads = "min_reads",
        /// Blocks, shards or keys of read-ahead.
        Depth = "depth",
        /// Limit in bytes.
        Bytes = "bytes",
        /// Read-ahead strategy.
        Strategy = "strategy",
        /// Source of the next bytes to read ahead.
        Next = "next",
        /// Bytes of a chunk.
        Chunk = "chunk",
        /// Chunks ahead of the reader.
        Ahead = "ahead",
        /// Time to wait for other readers.
        Window = "window",
        /// Compression method.
        Codec = "codec",
        /// Compression level.
        Level = "level",
        /// Minimum compression ratio.
        MinRatio = "min_ratio",
        /// Lane of the request.
        Lane = "lane",
        /// Target tier.
        To = "to",
        /// Time span of a pin.
        For = "for",
        /// Minimum time since the last read.
        After = "after",
        /// Number of the newest checkpoints to keep.
        KeepLast = "keep_last",
        /// Number of the best checkpoints to keep.
        KeepBest = "keep_best",
        /// User metadata with the measure of a checkpoint.
        BestBy = "best_by",
        /// Direction in which the measure is better.
        BestIs = "best_is",
        /// Interval of the checkpoints to keep.
        KeepEvery = "keep_every",
        /// True if the other checkpoints are deleted.
        Delete = "delete",
        /// Time during which a deletion can be cancelled.
        Grace = "grace",
    }
}

macro_rules! rows {
    ($(
        $(#[doc = $doc:literal])+
        $Name:ident: $kind:expr $(, default $default:literal)? $(, from $low:literal to $high:literal)?;
    )*) => {
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
    /// `true` keeps a copy; `false` keeps none, and drops an existing one when space is needed.
    Keep: ValueKind::Flag, default "true";
    /// Cache policy: with `lru` every read is copied and the least recently read copy is evicted first,
    /// whatever its priority; `none` equals `keep: false`, and `learned` equals `training-aware`. By default
    /// the setting `cache` applies.
    Policy: ValueKind::Word(CachePolicy::WORDS);
    /// Priority of the copy when space is needed.
    Priority: ValueKind::Word(Priority::WORDS), default "normal";
};
const INTELLIGENT_CACHE: &[ParameterRow] = rows! {
    /// Number of reads from which on a copy is kept.
    MinReads: ValueKind::Count, default "2", from "1" to "1000";
    /// Priority of the copy when space is needed.
    Priority: ValueKind::Word(Priority::WORDS), default "normal";
};
const PREFETCH: &[ParameterRow] = rows! {
    /// Number of blocks, shards or keys to read ahead.
    Depth: ValueKind::Count, default "8", from "1" to "1024";
    /// Maximum bytes of read-ahead.
    Bytes: ValueKind::Bytes, default "256MiB", from "64KiB" to "1TiB";
    /// Read-ahead strategy.
    Strategy: ValueKind::Word(Strategy::WORDS), default "adaptive";
    /// Source after the next blocks of the object: none (`blocks`), the shards with the next numbers, the
    /// keys of an access plan, or the best fit (`auto`).
    Next: ValueKind::Word(&["auto", "blocks", "shards", "planned"]), default "auto";
};
const STREAM: &[ParameterRow] = rows! {
    /// Bytes of a chunk.
    Chunk: ValueKind::Bytes, default "8MiB", from "64KiB" to "256MiB";
    /// Number of chunks fetched ahead of the reader.
    Ahead: ValueKind::Count, default "2", from "0" to "64";
    /// `true` keeps copies of the chunks.
    Keep: ValueKind::Flag, default "false";
};
const COORDINATE: &[ParameterRow] = rows! {
    /// Time for which bytes are held for workers that have not read them yet.
    Window: ValueKind::Duration, default "30s", from "0s" to "1h";
    /// Maximum bytes held for all workers together; further bytes are not held.
    Bytes: ValueKind::Bytes, default "1GiB", from "1MiB" to "1TiB";
};
const COMPRESS: &[ParameterRow] = rows! {
    /// Compression method.
    Codec: ValueKind::Word(&["zstd"]), default "zstd";
    /// Compression level: a higher level takes longer and compresses better.
    Level: ValueKind::Count, default "3", from "1" to "19";
    /// Minimum compression ratio of a sample; otherwise the object is stored uncompressed.
    MinRatio: ValueKind::Number, default "1.2", from "1" to "100";
};
const PRIORITIZE: &[ParameterRow] = rows! {
    /// Lane; by default that of the workload.
    Lane: ValueKind::Word(Lane::WORDS);
    /// Rank within the lane.
    Priority: ValueKind::Word(Priority::WORDS), default "normal";
};
const PROMOTE: &[ParameterRow] = rows! {
    /// Target tier.
    To: ValueKind::Word(&["hot", "memory"]), default "hot";
};
const PIN: &[ParameterRow] = rows! {
    /// Time span from the first match of the rule; by default as long as the rule matches.
    For: ValueKind::Duration, from "1s" to "3650d";
    /// Maximum bytes that the rule pins; the newest are unpinned first.
    Bytes: ValueKind::Bytes, from "1B" to "1024TiB";
};
const SPILL: &[ParameterRow] = rows! {
    /// Target tier.
    To: ValueKind::Word(&["cold", "upstream"]), default "cold";
    /// Minimum time since the last read.
    After: ValueKind::Duration, default "0s", from "0s" to "3650d";
};
const EVICT: &[ParameterRow] = rows! {
    /// Minimum time since the last read.
    After: ValueKind::Duration, default "0s", from "0s" to "3650d";
};
const RETAIN: &[ParameterRow] = rows! {
    /// Number of the newest complete checkpoints to keep.
    KeepLast: ValueKind::Count, default "3", from "1" to "10000";
    /// Number of the best checkpoints to keep besides. 0: the best one by each measure in the names, as in
    /// `val_loss=0.25`.
    KeepBest: ValueKind::Count, default "0", from "0" to "10000";
    /// The user metadata of a checkpoint that holds its measure.
    BestBy: ValueKind::Text, default "metric";
    /// Direction in which the measure is better.
    BestIs: ValueKind::Word(&["lowest", "highest"]), default "lowest";
    /// Interval of checkpoints to keep besides, beginning with the first; 0 for none.
    KeepEvery: ValueKind::Count, default "0", from "0" to "1000000";
    /// `true` deletes the others; `false` unpins and spills them.
    Delete: ValueKind::Flag, default "false";
    /// Time during which a deletion can be cancelled.
    Grace: ValueKind::Duration, default "1d", from "0s" to "3650d";
};

impl ActionKind {
    /// Returns the table of its parameters.
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

    const fn scope(self) -> ActionScope {
        match self {
            Self::Prioritize | Self::Pin | Self::Unpin => ActionScope::All,
            Self::Promote | Self::Spill | Self::Compress | Self::Retain => ActionScope::Local,
            Self::Cache
            | Self::IntelligentCache
            | Self::Prefetch
            | Self::Stream
            | Self::Coordinate
            | Self::Evict => ActionScope::RemoteBacked,
        }
    }

    /// True if the action has an effect on objects of local buckets.
    #[must_use]
    pub const fn has_effect_on_local(self) -> bool {
        !matches!(self.scope(), ActionScope::RemoteBacked)
    }

    /// True if the action has an effect on objects of remote-backed buckets.
    #[must_use]
    pub const fn has_effect_on_remote_backed(self) -> bool {
        !matches!(self.scope(), ActionScope::Local)
    }

    /// Returns the removed parameters of the action.
    pub(super) fn removed_parameters(self) -> impl Iterator<Item = &'static str> {
        REMOVED_PARAMETERS.iter().filter(move |(action, _)| *action == self).map(|(_, parameter)| *parameter)
    }

    /// Returns the aspect that the action decides.
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

    /// True if a built-in rule only reports the action. Actions that move bytes down or rewrite them must be
    /// requested by a person.
    #[must_use]
    pub fn is_person_only(self) -> bool {
        matches!(self, Self::Spill | Self::Evict | Self::Retain | Self::Compress)
    }
}

#[cfg(test)]
mod tests {
    use super::{ActionKind, range_sizes};
    use crate::language::words::Word;

    #[test]
    fn defaults_are_of_their_kind_and_within_their_range() {
        for row in ActionKind::ALL.iter().flat_map(|action| action.rows()) {
            let value = row.default_value();
            assert_eq!(value.is_some(), row.default.is_some(), "{}", row.parameter);
            assert_eq!(range_sizes(row.kind, row.range).is_some(), row.range.is_some(), "{}", row.parameter);
            let within = range_sizes(row.kind, row.range)
                .zip(value.and_then(|value| value.size()))
                .is_none_or(|((low, high), size)| (low..=high).contains(&size));
            assert!(within, "{}", row.parameter);
        }
    }

    #[test]
    fn each_action_has_a_parameter_once_at_most() {
        for action in ActionKind::ALL {
            let mut names: Vec<_> = action.rows().iter().map(|row| row.parameter).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), action.rows().len(), "{action}");
        }
    }
}
