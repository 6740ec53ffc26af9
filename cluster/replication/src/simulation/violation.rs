//! Violations of the simulation's invariants.

use std::fmt;

/// Kind of a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ViolationKind {
    /// Acknowledged records are lost, or have fewer copies than is recorded.
    Loss,
    /// A follower trails by too much.
    Trail,
    /// Writes stand still.
    Pause,
    /// Segments are open or lack copies although nothing fails any more.
    Unfinished,
}

/// The first violation of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Violation {
    pub(super) kind: ViolationKind,
    pub(super) what: String,
}

impl Violation {
    pub(super) fn new(kind: ViolationKind, what: impl fmt::Display) -> Self {
        Self { kind, what: what.to_string() }
    }
}
