//! Actions of rules on objects at rest, that is, objects without a current request: pin, promote, spill,
//! evict, compress, delete.
//!
//! Pure. The owner of the objects scans them periodically, one pass at a time, and reports the due actions of
//! each object ([`rule_matches`]). An action on a whole dataset, checkpoint or prefix applies to all objects
//! in it ([`AreaRuleMatches`]). [`ResolvedActions`] are the resolved actions on one object: one answer per
//! question, that of the strongest rule. [`PinSelection`] chooses which of the requested pins fit in the
//! available room. [`PendingDeletions`] schedules the deletion of checkpoints.

mod areas;
mod pending_deletions;
mod pins;
mod resolved_actions;

pub use areas::{AreaRuleMatches, RuleArea};
pub use pending_deletions::{ExpiredCheckpoint, PendingDeletion, PendingDeletions};
pub use pins::{InactivePins, PinCandidate, PinSelection};
pub use resolved_actions::{CompressAction, MoveAction, PinAction, ResolvedActions};

use crate::language::{Action, ActionKind, ActionRequest, DueAction, EffectiveRule, Program, Stance, Target};
use std::sync::Arc;

/// Name of the setting that no rule can override, used in place of a rule's id.
pub const CHECKPOINT_KEEP: &str = "checkpoint_keep";

/// Rule (or setting) that an action comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleSource {
    /// Position in order of priority; a smaller rank is stronger.
    pub rank: usize,
    /// The rule's id.
    pub rule: Arc<str>,
}

impl RuleSource {
    /// Returns the source for a rule of the program.
    fn of_rule(program: &Program, rule: &EffectiveRule) -> Self {
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
pub struct RuleMatch {
    /// The rule.
    pub by: RuleSource,
    /// The requested action and its parameters.
    pub request: ActionRequest,
}

/// True if an action applies to objects at rest.
#[must_use]
pub const fn is_at_rest(kind: ActionKind) -> bool {
    match kind {
        ActionKind::Promote
        | ActionKind::Pin
        | ActionKind::Unpin
        | ActionKind::Spill
        | ActionKind::Evict
        | ActionKind::Retain
        | ActionKind::Compress => true,
        ActionKind::Cache
        | ActionKind::IntelligentCache
        | ActionKind::Prefetch
        | ActionKind::Stream
        | ActionKind::Coordinate
        | ActionKind::Prioritize => false,
    }
}

/// Returns the ids of rules that delete checkpoints and do not merely observe.
pub fn deleting_rules(program: &Program) -> impl Iterator<Item = &str> {
    let deletes = |(action, request): (&Action, &ActionRequest)| {
        action.stance == Some(Stance::Act)
            && matches!(request, ActionRequest::Retain(retain) if retain.delete)
    };
    let rules = program.rules().iter().filter(move |rule| rule.actions().any(deletes));
    rules.map(|rule| &*rule.rule.id)
}

/// Kinds of objects at rest that a program acts on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramScope {
    /// True if a rule acts on objects other than checkpoints.
    pub objects: bool,
    /// True if a rule acts on checkpoints as a whole. Unpin does not count, because alone it releases
    /// nothing.
    pub checkpoints: bool,
}

impl ProgramScope {
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
pub fn is_inactive_pin(inactive: &InactivePins, bucket: u64, key: &str, due: &DueAction<'_>) -> bool {
    matches!(due.request, ActionRequest::Pin { .. }) && inactive.contains(bucket, key, &due.rule.rule.id)
}

/// Returns the due actions of one object with their targets: the object or the area that contains it. Rules
/// that only observe are left out.
pub fn rule_matches<'p>(
    program: &'p Program,
    due: impl Iterator<Item = &'p DueAction<'p>>,
) -> impl Iterator<Item = (&'p Target, RuleMatch)> {
    due.filter(|due| due.stance == Stance::Act)
        .filter_map(|due| Some((&due.action.target, RuleMatch::of(program, due)?)))
}

impl RuleMatch {
    /// Returns the due action if it applies to objects at rest, whatever its stance.
    #[must_use]
    pub fn of(program: &Program, due: &DueAction<'_>) -> Option<Self> {
        let rule_match = || Self { by: RuleSource::of_rule(program, due.rule), request: due.request.clone() };
        is_at_rest(due.action.kind).then(rule_match)
    }

    /// True if this rule match prevents a rule match of a weaker rule from being applied to the same object.
    #[must_use]
    pub fn overrides(&self, weaker: &Self) -> bool {
        let aspect = |claim: &Self| claim.action().map(ActionKind::aspect);
        self.by.rank < weaker.by.rank
            && (aspect(self) == aspect(weaker) || self.request.contradicts(&weaker.request))
    }

    /// Returns the kind of action that is requested; `None` if it does not apply to objects at rest.
    #[must_use]
    pub const fn action(&self) -> Option<ActionKind> {
        Some(match self.request {
            ActionRequest::Promote { .. } => ActionKind::Promote,
            ActionRequest::Pin { .. } => ActionKind::Pin,
            ActionRequest::Unpin => ActionKind::Unpin,
            ActionRequest::Spill { .. } => ActionKind::Spill,
            ActionRequest::Evict { .. } => ActionKind::Evict,
            ActionRequest::Retain(_) => ActionKind::Retain,
            ActionRequest::Compress { .. } => ActionKind::Compress,
            ActionRequest::Copy { .. }
            | ActionRequest::Prefetch { .. }
            | ActionRequest::Stream { .. }
            | ActionRequest::Coordinate { .. }
            | ActionRequest::Prioritize { .. } => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{ProgramScope, deleting_rules, rule_matches};
    use crate::language::{
        ActionRequest, BuiltInLayers, FactList, Layers, NoFacts, ParsedPolicy, Program, Target, resolve,
    };

    fn program(rules: &str) -> Program {
        let built_in = BuiltInLayers::load().unwrap();
        let file = ParsedPolicy::parse("p.yaml", &format!("version: 1\nrules:\n{rules}")).unwrap();
        let custom = &[file];
        let layers =
            Layers { custom, frameworks: &[], environment: None, machine: &NoFacts, built_in: &built_in };
        Program::compile(&layers).unwrap()
    }

    const ALWAYS: &str =
        "match: all, conditions: [{type: file_context, property: size, operator: exists, value: false}]";

    #[test]
    fn observing_and_request_time_rules_need_no_scan_of_objects() {
        let of = |rest: &str| ProgramScope::of(&program(&format!("- {{id: a, {ALWAYS}, {rest}}}\n")));
        let none = ProgramScope { objects: false, checkpoints: true };
        assert_eq!(
            ProgramScope::of(&Program::compile_built_in().unwrap()),
            none,
            "the newest checkpoint is pinned"
        );
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
             - {{id: says, {ALWAYS}, stance: observe, actions: [{{type: retain, \
             parameters: {{delete: true}}}}]}}\n\
             - {{id: thins, {ALWAYS}, actions: [{{type: retain}}]}}\n"
        ));
        assert_eq!(deleting_rules(&program).collect::<Vec<_>>(), ["deletes"]);
    }

    #[test]
    fn claims_are_acting_rules_on_objects_at_rest_ranked_by_priority() {
        let program = program(&format!(
            "- {{id: low, priority: 1, {ALWAYS}, actions: [{{type: pin, target: dataset}}, \
             {{type: cache}}]}}\n\
             - {{id: high, priority: 2, {ALWAYS}, actions: [{{type: promote}}, {{type: evict, \
             stance: observe}}]}}\n"
        ));
        let facts = FactList::default();
        let resolved = resolve(program.due(&facts));
        let claims: Vec<_> = rule_matches(&program, resolved.done.iter()).collect();
        let rules_by_target: Vec<_> =
            claims.iter().map(|(target, claim)| (*target, &*claim.by.rule)).collect();
        assert_eq!(rules_by_target, [(&Target::Object, "high"), (&Target::Dataset, "low")]);
        assert!(claims[0].1.by.rank < claims[1].1.by.rank);
        assert!(matches!(claims[0].1.request, ActionRequest::Promote { .. }));
    }
}
