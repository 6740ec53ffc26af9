//! What an action wants, typed: its parameters with their defaults, read once when a program is compiled.

use super::actions::{ActionKind, Parameter};
use super::rule::Action;
use super::words::{CachePolicy, Lane, Priority, Strategy, words};
use std::time::Duration;

words! {
    /// What is read ahead.
    Next {
        /// What fits best.
        Auto = "auto",
        /// Blocks of the object.
        Blocks = "blocks",
        /// Shards of the dataset.
        Shards = "shards",
        /// Keys of the access plan.
        Planned = "planned",
    }
}

/// What an action wants.
#[derive(Clone, Debug, PartialEq)]
pub enum Wish {
    /// Whether and from which read on a clean copy is kept.
    Copy {
        /// Whether one is kept at all.
        keep: bool,
        /// What decides how long, if the setting does not.
        policy: Option<CachePolicy>,
        /// How dear it is when room is needed.
        priority: Priority,
        /// Reads from which on.
        min_reads: u32,
    },
    /// How far is read ahead.
    Prefetch {
        /// How many blocks, shards or keys.
        depth: u32,
        /// Bytes at most.
        bytes_max: u64,
        /// How eagerly.
        strategy: Strategy,
        /// Of what.
        next: Next,
    },
    /// How bytes pass through.
    Stream {
        /// Bytes of a chunk.
        chunk_bytes: u64,
        /// Chunks ahead of the reader.
        ahead: u32,
        /// Whether copies are kept.
        keep: bool,
    },
    /// How long bytes wait for others that read them too.
    Coordinate {
        /// How long.
        window: Duration,
        /// How many bytes at most.
        bytes_max: u64,
    },
    /// Segments are compressed with zstd.
    Compress {
        /// The effort.
        level: u32,
        /// How many times smaller a sample has to become.
        min_ratio: f64,
    },
    /// Who goes first.
    Prioritize {
        /// The lane, if it is not the workload's.
        lane: Option<Lane>,
        /// The rank within it.
        priority: Priority,
    },
    /// The truth comes up.
    Promote {
        /// Into memory, too.
        memory: bool,
    },
    /// It stays.
    Pin {
        /// How long; none for ever.
        period: Option<Duration>,
        /// Bytes that the rule may pin at most.
        bytes_max: Option<u64>,
    },
    /// It need not stay.
    Unpin,
    /// The truth goes down.
    Spill {
        /// Below the cold tier.
        upstream: bool,
        /// How long after the last read.
        after: Duration,
    },
    /// Clean copies go.
    Evict {
        /// How long after the last read.
        after: Duration,
    },
    /// Some checkpoints stay.
    Retain(Retain),
}

/// Which checkpoints stay, and what becomes of the others.
#[derive(Clone, Debug, PartialEq)]
pub struct Retain {
    /// How many of the newest complete ones stay.
    pub keep_last: u32,
    /// How many of the best stay besides; with 0 the best one by each measure that names carry.
    pub keep_best: u32,
    /// The user metadata that holds the measure.
    pub best_by: Box<str>,
    /// Whether a high measure is good.
    pub highest: bool,
    /// One of so many stays besides; 0: none does.
    pub keep_every: u32,
    /// Whether the others are deleted. The newest complete one never is.
    pub delete: bool,
    /// How long a deletion waits, and can be called off.
    pub grace: Duration,
}

impl Wish {
    /// What `action` wants.
    pub(super) fn of(action: &Action) -> Self {
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
                min_reads: count(action, Parameter::MinReads),
            },
            ActionKind::Prefetch => Self::Prefetch {
                depth: count(action, Parameter::Depth),
                bytes_max: bytes(Parameter::Bytes),
                strategy: action.word(Parameter::Strategy).unwrap_or(Strategy::Adaptive),
                next: action.word(Parameter::Next).unwrap_or(Next::Auto),
            },
            ActionKind::Stream => Self::Stream {
                chunk_bytes: bytes(Parameter::Chunk),
                ahead: count(action, Parameter::Ahead),
                keep: action.flag(Parameter::Keep),
            },
            ActionKind::Coordinate => {
                Self::Coordinate { window: time(Parameter::Window), bytes_max: bytes(Parameter::Bytes) }
            }
            ActionKind::Compress => Self::Compress {
                level: count(action, Parameter::Level),
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
            ActionKind::Retain => Self::Retain(Retain {
                keep_last: count(action, Parameter::KeepLast),
                keep_best: count(action, Parameter::KeepBest),
                best_by: word(Parameter::BestBy).unwrap_or_default().into(),
                highest: word(Parameter::BestIs).as_deref() == Some("highest"),
                keep_every: count(action, Parameter::KeepEvery),
                delete: action.flag(Parameter::Delete),
                grace: time(Parameter::Grace),
            }),
        }
    }

    /// Whether both cannot be had of one object.
    pub(crate) fn contradicts(&self, other: &Self) -> bool {
        let down = |wish: &Self| match wish {
            Self::Spill { .. } | Self::Evict { .. } => true,
            Self::Copy { keep, .. } => !keep,
            _ => false,
        };
        let pins = |wish: &Self| matches!(wish, Self::Pin { .. });
        let keeps =
            |wish: &Self| matches!(wish, Self::Copy { keep: true, .. } | Self::Stream { keep: true, .. });
        let drops = |wish: &Self| match wish {
            Self::Evict { after } => after.is_zero(),
            Self::Copy { keep, .. } => !keep,
            _ => false,
        };
        let either = |a: &dyn Fn(&Self) -> bool, b: &dyn Fn(&Self) -> bool| {
            (a(self) && b(other)) || (a(other) && b(self))
        };
        either(&pins, &down) || either(&keeps, &drops)
    }
}

/// A count of a row, which has a default and is within its range.
fn count(action: &Action, parameter: Parameter) -> u32 {
    let size = action.size(parameter).unwrap_or_default();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts are whole and small")]
    let count = size as u32;
    count
}

#[cfg(test)]
mod tests {
    use super::{ActionKind, Next, Wish};
    use crate::language::rule::{Action, Target};
    use crate::language::words::{Strategy, Word};

    fn wish(kind: ActionKind) -> Wish {
        Wish::of(&Action { kind, target: Target::Object, stance: None, parameters: Vec::new() })
    }

    #[test]
    fn defaults_of_the_table_are_what_is_wished() {
        let prefetch =
            Wish::Prefetch { depth: 8, bytes_max: 256 << 20, strategy: Strategy::Adaptive, next: Next::Auto };
        assert_eq!(wish(ActionKind::Prefetch), prefetch);
        let Wish::Retain(retain) = wish(ActionKind::Retain) else { panic!() };
        assert!(!retain.delete && retain.keep_last == 3 && retain.grace.as_secs() == 86400);
        assert_eq!(wish(ActionKind::Pin), Wish::Pin { period: None, bytes_max: None });
    }

    #[test]
    fn what_contradicts_does_so_both_ways() {
        let pairs = [
            (ActionKind::Pin, ActionKind::Spill, true),
            (ActionKind::Pin, ActionKind::Evict, true),
            (ActionKind::Cache, ActionKind::Evict, true),
            (ActionKind::Pin, ActionKind::Promote, false),
            (ActionKind::Promote, ActionKind::Evict, false),
        ];
        for (a, b, expected) in pairs {
            assert_eq!(wish(a).contradicts(&wish(b)), expected, "{a} {b}");
            assert_eq!(wish(b).contradicts(&wish(a)), expected, "{b} {a}");
        }
        assert!(ActionKind::ALL.iter().all(|kind| !wish(*kind).contradicts(&wish(*kind))));
    }
}
