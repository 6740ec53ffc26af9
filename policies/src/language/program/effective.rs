//! Compiled rules: conditions ordered by cost, and typed actions.

use super::LayerSource;
use crate::language::action_request::ActionRequest;
use crate::language::actions::Aspects;
use crate::language::facts::{Fact, Facts};
use crate::language::limits::CONDITIONS_MAX;
use crate::language::properties::Property;
use crate::language::rule::{Action, Condition, Match, Rule};
use crate::language::words::Stance;

/// A rule of a program, with its source.
#[derive(Clone, Debug)]
pub struct EffectiveRule {
    /// The rule. Each of its actions has a stance.
    pub rule: Rule,
    /// Location of its definition.
    pub source: LayerSource,
    /// Indices of the conditions, the cheapest first.
    conditions_by_cost: Box<[u8]>,
    requests: Box<[ActionRequest]>,
    weight_sum: f64,
    /// Aspects of the actions that the rule carries out, not only reports.
    acts_on: Aspects,
}

/// Compares rules, wherever they are defined.
impl PartialEq for EffectiveRule {
    fn eq(&self, other: &Self) -> bool {
        self.rule == other.rule
    }
}

const _: () = assert!(CONDITIONS_MAX <= 1 << u8::BITS, "a condition is a number of eight bits");

/// Tolerance of comparisons of weight sums, so that 0.3 and 0.3 reach 0.6.
const WEIGHT_TOLERANCE: f64 = 1e-9;

impl EffectiveRule {
    pub(super) fn new(rule: Rule, source: LayerSource) -> Self {
        let mut order: Vec<u8> = (0..=u8::MAX).take(rule.conditions.len()).collect();
        order.sort_by_key(|index| rule.conditions[usize::from(*index)].comparison.cost());
        let wishes = rule.actions.iter().map(ActionRequest::from_action).collect();
        let weights = rule.conditions.iter().map(|one| one.weight).sum();
        let acting = rule.actions.iter().filter(|action| action.stance == Some(Stance::Act));
        let acting: Vec<_> = acting.map(|action| action.kind.aspect()).collect();
        let acts_on = Aspects::new(&acting);
        Self {
            rule,
            source,
            conditions_by_cost: order.into(),
            requests: wishes,
            weight_sum: weights,
            acts_on,
        }
    }

    /// Returns the actions with their typed requests.
    pub fn actions(&self) -> impl Iterator<Item = (&Action, &ActionRequest)> {
        self.rule.actions.iter().zip(&self.requests)
    }

    /// Returns the aspects of the actions that the rule carries out, not only reports.
    #[must_use]
    pub fn acts_on(&self) -> Aspects {
        self.acts_on
    }

    /// True if the rule is for no framework, or for a detected one.
    #[must_use]
    pub fn is_for(&self, facts: &dyn Facts) -> bool {
        let Some(framework) = &self.rule.framework else { return true };
        match facts.fact(Property::Framework, "") {
            Some(Fact::List(names)) => names.contains(&&**framework),
            _ => false,
        }
    }

    /// True if the rule matches. Allocates nothing.
    #[must_use]
    pub fn matches(&self, facts: &dyn Facts) -> bool {
        let mut by_cost =
            self.conditions_by_cost.iter().map(|index| &self.rule.conditions[usize::from(*index)]);
        let holds = |condition: &Condition| condition.holds(facts).1;
        self.is_for(facts)
            && match self.rule.matching {
                Match::All => by_cost.all(holds),
                Match::Any => by_cost.any(holds),
                Match::Threshold(_) => {
                    let held = by_cost.filter(|one| holds(one)).map(|one| one.weight).sum();
                    self.has_enough_weight(held)
                }
            }
    }

    /// True if conditions with the weight sum `held` reach the threshold. False for rules without a
    /// threshold.
    pub(in crate::language) fn has_enough_weight(&self, held: f64) -> bool {
        let Match::Threshold(share) = self.rule.matching else { return false };
        held >= share * self.weight_sum - WEIGHT_TOLERANCE
    }

    /// Returns the share of `held` in the sum of all weights.
    pub(in crate::language) fn score(&self, held: f64) -> f64 {
        if self.weight_sum > 0.0 { held / self.weight_sum } else { 0.0 }
    }
}

impl Condition {
    /// Returns the fact that the condition inspects, and true if the condition holds.
    pub(in crate::language) fn holds<'f>(&self, facts: &'f dyn Facts) -> (Option<Fact<'f>>, bool) {
        let fact = facts.fact(self.property, &self.name);
        (fact, self.comparison.holds(fact))
    }
}
