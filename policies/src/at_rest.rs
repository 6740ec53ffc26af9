//! What rules want done with objects that nobody asks for just now: which are pinned, go up, go down, are let
//! go of, compressed, or deleted.
//!
//! Pure. Whoever has the objects walks over them now and then, a round each, and tells of each what is due
//! ([`claims_of`]); what a rule says of a whole dataset, checkpoint or prefix holds for what belongs to it
//! ([`Areas`]). [`Deeds`] are what is to be done with one object then, one answer for each question, the
//! strongest rule's; [`Pins`] chooses what of all that is to be pinned has room; [`Doomed`] says which
//! checkpoints are to be deleted and when.

mod areas;
mod deeds;
mod doomed;
mod pins;

pub use areas::{Area, Areas};
pub use deeds::{Compress, Deeds, Move, Pin};
pub use doomed::{Doomed, Note, Superfluous};
pub use pins::{Candidate, Pins, Unheld};

use crate::language::{Action, ActionKind, Due, EffectiveRule, Program, Stance, Target, Wish};
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
            | ActionKind::Compress
    )
}

/// The ids of rules that delete checkpoints, and do not only observe.
pub fn deleting(program: &Program) -> impl Iterator<Item = &str> {
    let deletes = |(action, wish): (&Action, &Wish)| {
        action.stance == Some(Stance::Act) && matches!(wish, Wish::Retain(retain) if retain.delete)
    };
    let rules = program.rules().iter().filter(move |rule| rule.actions().any(deletes));
    rules.map(|rule| &*rule.rule.id)
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

/// Whether what is due is a pin on an object that does not hold.
#[must_use]
pub fn is_unheld(unheld: &Unheld, bucket: u64, key: &str, due: &Due<'_>) -> bool {
    matches!(due.wish, Wish::Pin { .. }) && unheld.contains(bucket, key, &due.rule.rule.id)
}

/// What is due of one object, as claims on it or on what it belongs to: the target says which.
pub fn claims_of<'p>(
    program: &'p Program,
    due: impl Iterator<Item = &'p Due<'p>>,
) -> impl Iterator<Item = (&'p Target, Claim)> {
    due.filter(|due| due.stance == Stance::Act)
        .filter_map(|due| Some((&due.action.target, Claim::of(program, due)?)))
}

impl Claim {
    /// What is due, if it is about objects at rest; whatever its stance.
    #[must_use]
    pub fn of(program: &Program, due: &Due<'_>) -> Option<Self> {
        let claim = || Self { by: By::rule(program, due.rule), wish: due.wish.clone() };
        is_at_rest(due.action.kind).then(claim)
    }

    /// Whether it keeps another one, of a weaker rule, from being done to the same object.
    #[must_use]
    pub fn beats(&self, weaker: &Self) -> bool {
        let aspect = |claim: &Self| claim.action().map(ActionKind::aspect);
        self.by.rank < weaker.by.rank
            && (aspect(self) == aspect(weaker) || self.wish.contradicts(&weaker.wish))
    }

    /// The action that wishes so.
    #[must_use]
    pub const fn action(&self) -> Option<ActionKind> {
        Some(match self.wish {
            Wish::Promote { .. } => ActionKind::Promote,
            Wish::Pin { .. } => ActionKind::Pin,
            Wish::Unpin => ActionKind::Unpin,
            Wish::Spill { .. } => ActionKind::Spill,
            Wish::Evict { .. } => ActionKind::Evict,
            Wish::Retain(_) => ActionKind::Retain,
            Wish::Compress { .. } => ActionKind::Compress,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Scope, claims_of, deleting};
    use crate::language::{BuiltIn, FactList, Layers, NoFacts, PolicyFile, Program, Target, Wish, resolve};

    fn program(rules: &str) -> Program {
        let built_in = BuiltIn::load().unwrap();
        let file = PolicyFile::parse("p.yaml", &format!("version: 1\nrules:\n{rules}")).unwrap();
        let custom = &[file];
        let layers =
            Layers { custom, frameworks: &[], environment: None, machine: &NoFacts, built_in: &built_in };
        Program::compile(&layers).unwrap()
    }

    const ALWAYS: &str =
        "match: all, conditions: [{type: file_context, property: size, operator: exists, value: false}]";

    #[test]
    fn what_only_observes_or_is_for_requests_asks_for_no_look_at_objects() {
        let of = |rest: &str| Scope::of(&program(&format!("- {{id: a, {ALWAYS}, {rest}}}\n")));
        let none = Scope { objects: false, checkpoints: true };
        assert_eq!(Scope::of(&Program::built_in().unwrap()), none, "it pins the newest checkpoint");
        assert_eq!(of("actions: [{type: cache}]"), none);
        assert_eq!(of("stance: observe, actions: [{type: spill}]"), none);
        assert_eq!(of("actions: [{type: unpin}]"), none);
        assert!(of("actions: [{type: spill}]").objects && of("actions: [{type: evict}]").objects);
        assert!(of("actions: [{type: compress}]").objects);
        assert_eq!(of("actions: [{type: retain}]"), none);
    }

    #[test]
    fn rules_that_delete_are_those_that_do_and_not_only_say_so() {
        let program = program(&format!(
            "- {{id: deletes, {ALWAYS}, actions: [{{type: retain, parameters: {{delete: true}}}}]}}\n\
             - {{id: says, {ALWAYS}, stance: observe, actions: [{{type: retain, parameters: {{delete: true}}}}]}}\n\
             - {{id: thins, {ALWAYS}, actions: [{{type: retain}}]}}\n"
        ));
        assert_eq!(deleting(&program).collect::<Vec<_>>(), ["deletes"]);
    }

    #[test]
    fn claims_are_what_acts_on_objects_at_rest_ranked_by_priority() {
        let program = program(&format!(
            "- {{id: low, priority: 1, {ALWAYS}, actions: [{{type: pin, target: dataset}}, {{type: cache}}]}}\n\
             - {{id: high, priority: 2, {ALWAYS}, actions: [{{type: promote}}, {{type: evict, stance: observe}}]}}\n"
        ));
        let facts = FactList::default();
        let resolved = resolve(program.due(&facts));
        let claims: Vec<_> = claims_of(&program, resolved.done.iter()).collect();
        let told: Vec<_> = claims.iter().map(|(target, claim)| (*target, &*claim.by.rule)).collect();
        assert_eq!(told, [(&Target::Object, "high"), (&Target::Dataset, "low")]);
        assert!(claims[0].1.by.rank < claims[1].1.by.rank);
        assert!(matches!(claims[0].1.wish, Wish::Promote { .. }));
    }
}
