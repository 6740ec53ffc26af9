//! Conflict resolution: for each aspect of a target one action is carried out, that of the matching rule with
//! the highest priority.

use super::actions::Aspect;
use super::evaluation::DueAction;
use super::words::{Stance, words};

words! {
    /// Reason why an action is not carried out.
    DisplacementReason {
        /// A stronger rule requests the same.
        Same = "same",
        /// A stronger rule requests something else for the same aspect.
        Weaker = "weaker",
        /// The action is incompatible with that of a stronger rule.
        Contradicts = "contradicts",
    }
}

/// Actions for one object: those that are carried out, and those that are not.
#[derive(Clone, Debug, Default)]
pub struct ConflictResolution<'p> {
    /// Actions that are carried out, in the order in which they run: one for an aspect of a target, except
    /// that a rule's own actions do not exclude each other.
    pub done: Vec<DueAction<'p>>,
    /// Actions of rules that only observe. They do not displace actions that are carried out.
    pub observed: Vec<DueAction<'p>>,
    /// Actions that are not carried out.
    pub displaced: Vec<DisplacedAction<'p>>,
}

/// An action that another action displaced.
#[derive(Clone, Copy, Debug)]
pub struct DisplacedAction<'p> {
    /// The displaced action.
    pub due: DueAction<'p>,
    /// The action that is carried out instead.
    pub stronger: DueAction<'p>,
    /// Reason of the displacement.
    pub reason: DisplacementReason,
}

impl<'p> ConflictResolution<'p> {
    /// Returns the action that decides `aspect`.
    #[must_use]
    pub fn deciding(&self, aspect: Aspect) -> Option<&DueAction<'p>> {
        self.done.iter().find(|due| due.action.kind.aspect() == aspect)
    }
}

/// Resolves conflicts between actions, given those of the strongest rule first.
pub fn resolve<'p>(due: impl Iterator<Item = DueAction<'p>>) -> ConflictResolution<'p> {
    let mut resolved = ConflictResolution::default();
    for one in due {
        if one.stance == Stance::Observe {
            resolved.observed.push(one);
            continue;
        }
        match resolved
            .done
            .iter()
            .find_map(|stronger| Some((*stronger, displacement_reason(stronger, &one)?)))
        {
            Some((to, why)) => {
                resolved.displaced.push(DisplacedAction { due: one, stronger: to, reason: why })
            }
            None => resolved.done.push(one),
        }
    }
    resolved
}

/// Returns the reason why `weaker` is displaced by `stronger`; none if both are carried out. Actions of one
/// rule never displace each other.
fn displacement_reason(stronger: &DueAction<'_>, weaker: &DueAction<'_>) -> Option<DisplacementReason> {
    if std::ptr::eq(stronger.rule, weaker.rule) {
        return None;
    }
    let same_question = stronger.action.kind.aspect() == weaker.action.kind.aspect()
        && stronger.action.target == weaker.action.target;
    if same_question && stronger.request == weaker.request {
        Some(DisplacementReason::Same)
    } else if same_question {
        Some(DisplacementReason::Weaker)
    } else {
        stronger.request.contradicts(weaker.request).then_some(DisplacementReason::Contradicts)
    }
}
