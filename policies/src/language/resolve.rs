//! Conflict resolution: for each aspect of a target one action is carried out, that of the matching rule with
//! the highest priority.

use super::actions::Aspect;
use super::verdict::Due;
use super::words::{Stance, words};

words! {
    /// Reason why an action is not carried out.
    Why {
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
pub struct Resolved<'p> {
    /// Actions that are carried out, in the order in which they run: one for an aspect of a target, except
    /// that a rule's own actions do not exclude each other.
    pub done: Vec<Due<'p>>,
    /// Actions of rules that only observe. They do not displace actions that are carried out.
    pub observed: Vec<Due<'p>>,
    /// Actions that are not carried out.
    pub lost: Vec<Lost<'p>>,
}

/// An action that another action displaced.
#[derive(Clone, Copy, Debug)]
pub struct Lost<'p> {
    /// The displaced action.
    pub due: Due<'p>,
    /// The action that is carried out instead.
    pub to: Due<'p>,
    /// Reason of the displacement.
    pub why: Why,
}

impl<'p> Resolved<'p> {
    /// Returns the action that decides `aspect`.
    #[must_use]
    pub fn of(&self, aspect: Aspect) -> Option<&Due<'p>> {
        self.done.iter().find(|due| due.action.kind.aspect() == aspect)
    }
}

/// Resolves conflicts between actions, given those of the strongest rule first.
pub fn resolve<'p>(due: impl Iterator<Item = Due<'p>>) -> Resolved<'p> {
    let mut resolved = Resolved::default();
    for one in due {
        if one.stance == Stance::Observe {
            resolved.observed.push(one);
            continue;
        }
        match resolved.done.iter().find_map(|stronger| Some((*stronger, against(stronger, &one)?))) {
            Some((to, why)) => resolved.lost.push(Lost { due: one, to, why }),
            None => resolved.done.push(one),
        }
    }
    resolved
}

/// Returns the reason why `weaker` is displaced by `stronger`; none if both are carried out. Actions of one
/// rule never displace each other.
fn against(stronger: &Due<'_>, weaker: &Due<'_>) -> Option<Why> {
    if std::ptr::eq(stronger.rule, weaker.rule) {
        return None;
    }
    let same_question = stronger.action.kind.aspect() == weaker.action.kind.aspect()
        && stronger.action.target == weaker.action.target;
    if same_question && stronger.wish == weaker.wish {
        Some(Why::Same)
    } else if same_question {
        Some(Why::Weaker)
    } else {
        stronger.wish.contradicts(weaker.wish).then_some(Why::Contradicts)
    }
}
