//! Learned values of bounds: plain data, whose history is kept by the component that stores them.

use std::collections::BTreeMap;

/// A bound that has moved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearnedBound {
    /// Current value.
    pub value: f64,
    /// Written value it started from: if this changes, the bound starts again.
    pub written: f64,
    /// Start of the day in which it last moved, in milliseconds since 1970.
    pub day_ms: i64,
    /// Value at the start of that day.
    pub day_value: f64,
}

/// Learned values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LearnedBounds {
    /// Maximum blocks that are read ahead of one stream.
    pub prefetch_depth: Option<LearnedBound>,
    /// By id of a rule with `intelligent_cache`: number of reads from which it keeps a copy.
    pub min_reads: BTreeMap<Box<str>, LearnedBound>,
}
