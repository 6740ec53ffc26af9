//! What rules want done with objects that nobody asks for just now: which are pinned, go up, go down, are let go of, or deleted.
//!
//! Pure. Whoever has the objects walks over them now and then, a round each, and tells of each what is due ([`claims_of`]); what a rule says of a whole
//! dataset, checkpoint or prefix holds for what belongs to it ([`Areas`]). [`Deeds`] are what is to be done with one object then, one answer for each question, the
//! strongest rule's; [`Pins`] chooses what of all that is to be pinned has room; [`Doomed`] says which checkpoints are to be deleted and when.

mod areas;
mod deeds;
mod doomed;
mod pins;

pub use areas::{Area, Areas};
pub use deeds::{Deeds, Move, Pin};
pub use doomed::{Doomed, Note, Superfluous};
pub use pins::{Candidate, Pins};

use crate::language::{ActionKind, Due, EffectiveRule, Program, Stance, Target, Wish};
use std::sync::Arc;

/// What a setting says that no rule contradicts, in the place of a rule's id.
pub const CHECKPOINT_KEEP: &str = "checkpoint_keep";

/// Who says something.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct By {
    /// The smaller, the stronger.
    pub rank: usize,
    /// The rule's id.
    pub rule: Arc<str>,
}

impl By {
    /// The rule of a program.
    fn rule(program: &Program, rule: &EffectiveRule) -> Self {
        let at = program.rules().iter().position(|other| std::ptr::eq(other, rule));
        Self { rank: at.unwrap_or(usize::MAX), rule: (*rule.rule.id).into() }
    }

    /// The setting [`CHECKPOINT_KEEP`], weaker than all rules.
    #[must_use]
    pub fn checkpoint_keep() -> Self {
        Self { rank: usize::MAX, rule: CHECKPOINT_KEEP.into() }
    }
}

/// What somebody wants done.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// Who.
    pub by: By,
    /// What.
    pub wish: Wish,
}

/// Whether an action does something to objects that nobody asks for.
#[must_use]
pub const fn is_at_rest(kind: ActionKind) -> bool {
    matches!(
        kind,
        ActionKind::Promote
            | ActionKind::Pin
            | ActionKind::Unpin
            | ActionKind::Spill
            | ActionKind::Evict
            | ActionKind::Retain
    )
}

/// What of a program is about objects at rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Rules that act on other objects than checkpoints.
    pub objects: bool,
    /// Rules that act on checkpoints as a whole. That an unpin is none: there is nothing that it lets go of.
    pub checkpoints: bool,
}

impl Scope {
    /// What `program` is about.
    #[must_use]
    pub fn of(program: &Program) -> Self {
        let mut scope = Self::default();
        for (action, _) in program.rules().iter().flat_map(EffectiveRule::actions) {
            let acts = action.stance == Some(Stance::Act) && action.kind != ActionKind::Unpin;
            if acts && is_at_rest(action.kind) {
                let is_group = action.target == Target::CheckpointGroup || action.kind == ActionKind::Retain;
                scope.checkpoints |= is_group;
                scope.objects |= !is_group;
            }
        }
        scope
    }
}

/// What is due of one object, as claims on it or on what it belongs to: the target says which.
pub fn claims_of<'p>(
    program: &'p Program,
    due: impl Iterator<Item = &'p Due<'p>>,
) -> impl Iterator<Item = (&'p Target, Claim)> {
    due.filter(|due| due.stance == Stance::Act && is_at_rest(due.action.kind)).map(move |due| {
        let claim = Claim { by: By::rule(program, due.rule), wish: due.wish.clone() };
        (&due.action.target, claim)
    })
}
