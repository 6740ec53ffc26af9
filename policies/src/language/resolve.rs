//! One answer for each question: of rules that contradict each other the one with the higher priority is
//! heard.

use super::actions::Aspect;
use super::verdict::Due;
use super::words::{Stance, words};

words! {
    /// Why an action is not done.
    Why {
        /// A stronger rule says the same.
        Same = "same",
        /// A stronger rule says otherwise.
        Weaker = "weaker",
        /// It cannot be had together with what a stronger rule says.
        Contradicts = "contradicts",
    }
}

/// What is done about one object, and what is not.
#[derive(Clone, Debug, Default)]
pub struct Resolved<'p> {
    /// What is done, in the order in which it runs: one answer for an aspect of a target.
    pub done: Vec<Due<'p>>,
    /// What rules that observe would do. It takes nothing from those that act.
    pub observed: Vec<Due<'p>>,
    /// What is not done.
    pub lost: Vec<Lost<'p>>,
}

/// An action that another one has kept from being done.
#[derive(Clone, Copy, Debug)]
pub struct Lost<'p> {
    /// The action.
    pub due: Due<'p>,
    /// The one that is done instead.
    pub to: Due<'p>,
    /// Why.
    pub why: Why,
}

impl<'p> Resolved<'p> {
    /// What is done about an aspect, by the strongest rule that speaks of it.
    #[must_use]
    pub fn of(&self, aspect: Aspect) -> Option<&Due<'p>> {
        self.done.iter().find(|due| due.action.kind.aspect() == aspect)
    }
}

/// Resolves what is due, given the strongest first.
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

/// Why `weaker` is not done beside `stronger`, if it is not. Actions of one rule run in order, whatever they
/// say.
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
