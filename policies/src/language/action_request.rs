//! Typed action requests: the parameters of an action with their defaults, read once when a program is
//! compiled.

use super::actions::{ActionKind, Parameter};
use super::rule::Action;
use super::words::{CachePolicy, Lane, Priority, Strategy, words};
use std::time::Duration;

words! {
    /// Source of the bytes that are read ahead.
    PrefetchSource {
        /// The best fit.
        Auto = "auto",
        /// Blocks of the object.
        Blocks = "blocks",
        /// Shards of the dataset.
        Shards = "shards",
        /// Keys of the access plan.
        Planned = "planned",
    }
}

/// A typed action request.
#[derive(Clone, Debug, PartialEq)]
pub enum ActionRequest {
    /// Keep a clean copy.
    Copy {
        /// False if no copy is kept.
        keep: bool,
        /// Cache policy of the copy; none leaves it to the setting.
        policy: Option<CachePolicy>,
        /// Priority of the copy when space is needed.
        priority: Priority,
        /// Number of reads from which on a copy is kept.
        min_reads: u32,
    },
    /// Read ahead.
    Prefetch {
        /// Number of blocks, shards or keys.
        depth: u32,
        /// Maximum bytes.
        bytes_max: u64,
        /// Read-ahead strategy.
        strategy: Strategy,
        /// Source of the bytes.
        next: PrefetchSource,
    },
    /// Pass bytes through in chunks.
    Stream {
        /// Bytes of a chunk.
        chunk_bytes: u64,
        /// Chunks fetched ahead of the reader.
        ahead: u32,
        /// True if copies of the chunks are kept.
        keep: bool,
    },
    /// Hold bytes for other workers that read them too.
    Coordinate {
        /// Time for which bytes are held.
        window: Duration,
        /// Maximum bytes held.
        bytes_max: u64,
    },
    /// Compress segments with zstd.
    Compress {
        /// Compression level.
        level: u32,
        /// Minimum compression ratio of a sample.
        min_ratio: f64,
    },
    /// Assign requests to a lane.
    Prioritize {
        /// The lane; none leaves it to the workload.
        lane: Option<Lane>,
        /// The rank within the lane.
        priority: Priority,
    },
    /// Move the authoritative copy up.
    Promote {
        /// True for the memory tier, besides the hot tier.
        memory: bool,
    },
    /// Pin the object.
    Pin {
        /// Time span of the pin; none for no limit.
        period: Option<Duration>,
        /// Maximum bytes that the rule pins.
        bytes_max: Option<u64>,
    },
    /// Remove a pin of a rule.
    Unpin,
    /// Move the authoritative copy down.
    Spill {
        /// True for the upstream, false for the cold tier.
        upstream: bool,
        /// Minimum time since the last read.
        after: Duration,
    },
    /// Evict clean copies.
    Evict {
        /// Minimum time since the last read.
        after: Duration,
    },
    /// Keep some checkpoints.
    Retain(RetentionRequest),
}

/// Retention of checkpoints: those that stay, and the fate of the others.
#[derive(Clone, Debug, PartialEq)]
pub struct RetentionRequest {
    /// Number of the newest complete checkpoints that stay.
    pub keep_last: u32,
    /// Number of the best checkpoints that stay besides; 0 keeps the best one by each measure in the names.
    pub keep_best: u32,
    /// Key of the user metadata that holds the measure.
    pub best_by: Box<str>,
    /// True if higher measures are better.
    pub highest: bool,
    /// Interval: one of every `keep_every` checkpoints stays besides, beginning with the first; 0 for none.
    pub keep_every: u32,
    /// True if the others are deleted. The newest complete checkpoint is never deleted.
    pub delete: bool,
    /// Time during which a deletion can be cancelled.
    pub grace: Duration,
}

impl ActionRequest {
    /// Converts an action to a typed request.
    pub(super) fn from_action(action: &Action) -> Self {
        let word = |parameter| action.value(parameter).and_then(|value| value.text().map(str::to_owned));
        let priority = || action.word(Parameter::Priority).unwrap_or(Priority::Normal);
        let time = |parameter| action.time(parameter).unwrap_or_default();
        let bytes = |parameter| action.bytes(parameter).unwrap_or_default();
        let policy = action.word(Parameter::Policy);
        match action.kind {
            ActionKind::Cache => Self::Copy {
                keep: action.flag(Parameter::Keep) && policy != Some(CachePolicy::None),
                policy,
                priority: priority(),
                min_reads: 1,
            },
            ActionKind::IntelligentCache => Self::Copy {
                keep: true,
                policy: Some(CachePolicy::TrainingAware),
                priority: priority(),
                min_reads: count_parameter(action, Parameter::MinReads),
            },
            ActionKind::Prefetch => Self::Prefetch {
                depth: count_parameter(action, Parameter::Depth),
                bytes_max: bytes(Parameter::Bytes),
                strategy: action.word(Parameter::Strategy).unwrap_or(Strategy::Adaptive),
                next: action.word(Parameter::Next).unwrap_or(PrefetchSource::Auto),
            },
            ActionKind::Stream => Self::Stream {
                chunk_bytes: bytes(Parameter::Chunk),
                ahead: count_parameter(action, Parameter::Ahead),
                keep: action.flag(Parameter::Keep),
            },
            ActionKind::Coordinate => {
                Self::Coordinate { window: time(Parameter::Window), bytes_max: bytes(Parameter::Bytes) }
            }
            ActionKind::Compress => Self::Compress {
                level: count_parameter(action, Parameter::Level),
                min_ratio: action.size(Parameter::MinRatio).unwrap_or(1.0),
            },
            ActionKind::Prioritize => {
                Self::Prioritize { lane: action.word(Parameter::Lane), priority: priority() }
            }
            ActionKind::Promote => Self::Promote { memory: word(Parameter::To).as_deref() == Some("memory") },
            ActionKind::Pin => {
                Self::Pin { period: action.time(Parameter::For), bytes_max: action.bytes(Parameter::Bytes) }
            }
            ActionKind::Unpin => Self::Unpin,
            ActionKind::Spill => Self::Spill {
                upstream: word(Parameter::To).as_deref() == Some("upstream"),
                after: time(Parameter::After),
            },
            ActionKind::Evict => Self::Evict { after: time(Parameter::After) },
            ActionKind::Retain => Self::Retain(RetentionRequest {
                keep_last: count_parameter(action, Parameter::KeepLast),
                keep_best: count_parameter(action, Parameter::KeepBest),
                best_by: word(Parameter::BestBy).unwrap_or_default().into(),
                highest: word(Parameter::BestIs).as_deref() == Some("highest"),
                keep_every: count_parameter(action, Parameter::KeepEvery),
                delete: action.flag(Parameter::Delete),
                grace: time(Parameter::Grace),
            }),
        }
    }

    /// True if both requests cannot be fulfilled for one object.
    pub(crate) fn contradicts(&self, other: &Self) -> bool {
        let is_demotion = |request: &Self| match request {
            Self::Spill { .. } | Self::Evict { .. } => true,
            Self::Copy { keep, .. } => !keep,
            _ => false,
        };
        let is_pin = |request: &Self| matches!(request, Self::Pin { .. });
        let keeps_copy = |request: &Self| {
            matches!(request, Self::Copy { keep: true, .. } | Self::Stream { keep: true, .. })
        };
        let drops_copy = |request: &Self| match request {
            Self::Evict { after } => after.is_zero(),
            Self::Copy { keep, .. } => !keep,
            _ => false,
        };
        let either = |a: &dyn Fn(&Self) -> bool, b: &dyn Fn(&Self) -> bool| {
            (a(self) && b(other)) || (a(other) && b(self))
        };
        either(&is_pin, &is_demotion) || either(&keeps_copy, &drops_copy)
    }
}

/// Returns a count parameter, which has a default and is within its range.
fn count_parameter(action: &Action, parameter: Parameter) -> u32 {
    let size = action.size(parameter).unwrap_or_default();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts are whole and small")]
    let count = size as u32;
    count
}

#[cfg(test)]
mod tests {
    use super::{ActionKind, ActionRequest, PrefetchSource};
    use crate::language::rule::{Action, Target};
    use crate::language::words::{Strategy, Word};

    fn request(kind: ActionKind) -> ActionRequest {
        ActionRequest::from_action(&Action {
            kind,
            target: Target::Object,
            stance: None,
            parameters: Vec::new(),
        })
    }

    #[test]
    fn requests_have_the_defaults_of_the_table() {
        let prefetch = ActionRequest::Prefetch {
            depth: 8,
            bytes_max: 256 << 20,
            strategy: Strategy::Adaptive,
            next: PrefetchSource::Auto,
        };
        assert_eq!(request(ActionKind::Prefetch), prefetch);
        let ActionRequest::Retain(retain) = request(ActionKind::Retain) else { panic!() };
        assert!(!retain.delete && retain.keep_last == 3 && retain.grace.as_secs() == 86400);
        assert_eq!(request(ActionKind::Pin), ActionRequest::Pin { period: None, bytes_max: None });
    }

    #[test]
    fn contradictions_are_symmetric() {
        let pairs = [
            (ActionKind::Pin, ActionKind::Spill, true),
            (ActionKind::Pin, ActionKind::Evict, true),
            (ActionKind::Cache, ActionKind::Evict, true),
            (ActionKind::Pin, ActionKind::Promote, false),
            (ActionKind::Promote, ActionKind::Evict, false),
        ];
        for (a, b, expected) in pairs {
            assert_eq!(request(a).contradicts(&request(b)), expected, "{a} {b}");
            assert_eq!(request(b).contradicts(&request(a)), expected, "{b} {a}");
        }
        assert!(ActionKind::ALL.iter().all(|kind| !request(*kind).contradicts(&request(*kind))));
    }
}
