//! The model of a key, a register with conditional writes and deletes, and the operations on it that clients
//! record.
//!
//! A GET, a HEAD and the row of a LIST are reads. A PUT, the target of a copy and a CompleteMultipartUpload
//! are writes. The source of a copy is a read with a condition. An operation without a certain outcome, such
//! as one with a 5xx response, takes effect at any time after its begin, or never.

use std::fmt;
use std::time::Duration;

/// Identity of the content that a write stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ValueId(pub(super) u64);

/// State of a key: its value, or `None` without an object.
pub(super) type KeyState = Option<ValueId>;

/// Condition of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyCondition {
    Always,
    /// `If-None-Match: *`.
    IsAbsent,
    /// `If-Match` with the ETag of this value.
    Is(ValueId),
}

/// The action of an operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyAction {
    Read(KeyCondition),
    Write(ValueId, KeyCondition),
    Delete,
}

/// The outcome of an operation, from its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyOutcome {
    /// A read returned this value.
    Present(ValueId),
    /// There was no object.
    Absent,
    /// The write or the delete was done.
    Done,
    /// The condition did not hold, although there was an object: 412.
    Refused,
    /// The change takes effect at any time after its begin, or never.
    Unknown,
}

/// A moment of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KeyMoment {
    /// Position among all moments: an operation that ended before another one began has the lower number.
    pub(super) order: u64,
    /// Time since the begin of the round, for reports.
    pub(super) at: Duration,
}

/// An operation on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyOperation {
    /// Name of the request, for reports.
    pub(super) request: &'static str,
    /// The client that sent it.
    pub(super) client: usize,
    /// The node to which it was sent.
    pub(super) node: usize,
    pub(super) action: KeyAction,
    pub(super) outcome: KeyOutcome,
    pub(super) begun: KeyMoment,
    /// `None` if the outcome is unknown, or if the operation ended after the part of a history that counts.
    pub(super) ended: Option<KeyMoment>,
}

impl KeyCondition {
    const fn holds(self, state: KeyState) -> bool {
        match (self, state) {
            (Self::Always, _) | (Self::IsAbsent, None) => true,
            (Self::IsAbsent, Some(_)) | (Self::Is(_), None) => false,
            (Self::Is(ValueId(wanted)), Some(ValueId(value))) => wanted == value,
        }
    }
}

impl KeyOperation {
    /// Returns the state that follows if the operation takes effect in this state, or `None` if its outcome
    /// is impossible there.
    pub(super) fn applied_to(&self, state: KeyState) -> Option<KeyState> {
        let (is_possible, next) = match (self.action, self.outcome) {
            (KeyAction::Read(_), KeyOutcome::Present(value)) => (state == Some(value), state),
            (KeyAction::Read(_) | KeyAction::Write(..), KeyOutcome::Absent) => (state.is_none(), state),
            (KeyAction::Read(condition) | KeyAction::Write(_, condition), KeyOutcome::Refused) => {
                (state.is_some() && !condition.holds(state), state)
            }
            (KeyAction::Write(value, condition), KeyOutcome::Done | KeyOutcome::Unknown) => {
                (condition.holds(state), Some(value))
            }
            (KeyAction::Delete, KeyOutcome::Done | KeyOutcome::Unknown) => (true, None),
            (KeyAction::Read(_), KeyOutcome::Done | KeyOutcome::Unknown)
            | (KeyAction::Write(..), KeyOutcome::Present(_))
            | (KeyAction::Delete, KeyOutcome::Present(_) | KeyOutcome::Absent | KeyOutcome::Refused) => {
                (false, state)
            }
        };
        is_possible.then_some(next)
    }

    /// True if the operation changes the key when it takes effect.
    pub(super) const fn is_change(&self) -> bool {
        matches!(self.action, KeyAction::Write(..) | KeyAction::Delete)
            && matches!(self.outcome, KeyOutcome::Done | KeyOutcome::Unknown)
    }

    /// True if the operation may never take effect.
    pub(super) const fn is_unknown(&self) -> bool {
        matches!(self.outcome, KeyOutcome::Unknown)
    }

    /// True if the operation writes, reads or requires this value.
    pub(super) fn has_value(&self, value: ValueId) -> bool {
        let of_condition = match self.action {
            KeyAction::Read(condition) => condition == KeyCondition::Is(value),
            KeyAction::Write(written, condition) => written == value || condition == KeyCondition::Is(value),
            KeyAction::Delete => false,
        };
        of_condition || self.outcome == KeyOutcome::Present(value)
    }

    /// True if the operation requires that there is no object.
    pub(super) fn is_of_absence(&self) -> bool {
        self.outcome == KeyOutcome::Absent
            || matches!(self.action, KeyAction::Write(_, KeyCondition::IsAbsent)) && self.is_change()
    }
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Display for KeyCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => Ok(()),
            Self::IsAbsent => write!(f, " if absent"),
            Self::Is(value) => write!(f, " if {value}"),
        }
    }
}

impl fmt::Display for KeyOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |moment: KeyMoment| moment.at.as_secs_f64();
        write!(f, "{:9.4} ", seconds(self.begun))?;
        match self.ended {
            Some(ended) => write!(f, "to {:9.4}", seconds(ended))?,
            None => write!(f, "to         ?")?,
        }
        write!(f, " s  client {:>2}, node {}: {}", self.client, self.node, self.request)?;
        match self.action {
            KeyAction::Read(condition) => write!(f, "{condition}")?,
            KeyAction::Write(value, condition) => write!(f, " {value}{condition}")?,
            KeyAction::Delete => {}
        }
        match self.outcome {
            KeyOutcome::Present(value) => write!(f, " -> {value}"),
            KeyOutcome::Absent => write!(f, " -> no object"),
            KeyOutcome::Done => write!(f, " -> done"),
            KeyOutcome::Refused => write!(f, " -> the condition did not hold"),
            KeyOutcome::Unknown => write!(f, " -> unknown"),
        }
    }
}
