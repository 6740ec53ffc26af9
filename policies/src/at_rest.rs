//! Actions of rules on objects at rest, that is, objects without a current request: pin, promote, spill,
//! evict, compress, delete.
//!
//! Pure. The owner of the objects scans them periodically, one pass at a time, and reports the due actions of
//! each object ([`claims_of`]). An action on a whole dataset, checkpoint or prefix applies to all objects in
//! it ([`Areas`]). [`Deeds`] are the resolved actions on one object: one answer per question, that of the
//! strongest rule. [`Pins`] chooses which of the requested pins fit in the available room. [`Doomed`]
//! schedules the deletion of checkpoints.

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

/// Name of the setting that no rule can override, used in place of a rule's id.
pub const CHECKPOINT_KEEP: &str = "checkpoint_keep";

/// Rule (or setting) that an action comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct By {
    /// Position in order of priority; a smaller rank is stronger.
    pub rank: usize,
    /// The rule's id.
    pub rule: Arc<str>,
}

impl By {
    /// Returns the source for a rule of the program.
    fn rule(program: &Program, rule: &EffectiveRule) -> Self {
        let at = program.rules().iter().position(|other| std::ptr::eq(other, rule));
        Self { rank: at.unwrap_or(usize::MAX), rule: (*rule.rule.id).into() }
    }

    /// Returns the source for the setting [`CHECKPOINT_KEEP`], which is weaker than all rules.
    #[must_use]
    pub fn checkpoint_keep() -> Self {
        Self { rank: usize::MAX, rule: CHECKPOINT_KEEP.into() }
    }
}

/// An action that a rule requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// The rule.
    pub by: By,
    /// The requested action and its parameters.
    pub wish: Wish,
}

/// True if an action applies to objects at rest.
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

/// Returns the ids of rules that delete checkpoints and do not merely observe.
pub fn deleting(program: &Program) -> impl Iterator<Item = &str> {
    let deletes = |(action, wish): (&Action, &Wish)| {
        action.stance == Some(Stance::Act) && matches!(wish, Wish::Retain(retain) if retain.delete)
    };
    let rules = program.rules().iter().filter(move |rule| rule.actions().any(deletes));
    rules.map(|rule| &*rule.rule.id)
}

/// Kinds of objects at rest that a program acts on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// True if a rule acts on objects other than checkpoints.
    pub objects: bool,
    /// True if a rule acts on checkpoints as a whole. Unpin does not count, because alone it releases
    /// nothing.
    pub checkpoints: bool,
}

impl Scope {
    /// Returns the scope of `program`.
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

/// True if the due action is a pin on an object where the pin is not in force.
#[must_use]
pub fn is_unheld(unheld: &Unheld, bucket: u64, key: &str, due: &Due<'_>) -> bool {
    matches!(due.wish, Wish::Pin { .. }) && unheld.contains(bucket, key, &due.rule.rule.id)
}

/// Returns the due actions of one object with their targets: the object or the area that contains it. Rules
/// that only observe are left out.
pub fn claims_of<'p>(
    program: &'p Program,
    due: impl Iterator<Item = &'p Due<'p>>,
) -> impl Iterator<Item = (&'p Target, Claim)> {
    due.filter(|due| due.stance == Stance::Act)
        .filter_map(|due| Some((&due.action.target, Claim::of(program, due)?)))
}

impl Claim {
    /// Returns the due action if it applies to objects at rest, whatever its stance.
    #[must_use]
    pub fn of(program: &Program, due: &Due<'_>) -> Option<Self> {
        let claim = || Self { by: By::rule(program, due.rule), wish: due.wish.clone() };
        is_at_rest(due.action.kind).then(claim)
    }

    /// True if this rule match prevents a rule match of a weaker rule from being applied to the same object.
    #[must_use]
    pub fn beats(&self, weaker: &Self) -> bool {
        let aspect = |claim: &Self| claim.action().map(ActionKind::aspect);
        self.by.rank < weaker.by.rank
            && (aspect(self) == aspect(weaker) || self.wish.contradicts(&weaker.wish))
    }

    /// Returns the kind of action that is requested; `None` if it does not apply to objects at rest.
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
    fn observing_and_request_time_rules_need_no_scan_of_objects() {
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
    fn deleting_rules_exclude_those_that_only_observe() {
        let program = program(&format!(
            "- {{id: deletes, {ALWAYS}, actions: [{{type: retain, parameters: {{delete: true}}}}]}}\n\
             - {{id: says, {ALWAYS}, stance: observe, actions: [{{type: retain, parameters: {{delete: true}}}}]}}\n\
             - {{id: thins, {ALWAYS}, actions: [{{type: retain}}]}}\n"
        ));
        assert_eq!(deleting(&program).collect::<Vec<_>>(), ["deletes"]);
    }

    #[test]
    fn claims_are_acting_rules_on_objects_at_rest_ranked_by_priority() {
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
