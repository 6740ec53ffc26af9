//! Evaluation of a program for one access: the rules that match, the facts they match on, and the resulting
//! actions.

use super::action_request::ActionRequest;
use super::actions::{Aspect, Aspects};
use super::facts::Facts;
use super::program::{EffectiveRule, Program};
use super::rule::{Action, Condition};
use super::value::Value;
use super::words::{Evaluation, Stance};
use std::fmt::Write;

/// Complete evaluation of one access, for explanations.
#[derive(Clone, Debug)]
pub struct PolicyEvaluation<'p> {
    /// The rules that were tried, in that order.
    pub tried: Vec<TriedRule<'p>>,
    /// The resulting actions, in the order in which they run.
    pub due: Vec<DueAction<'p>>,
}

/// A rule that was tried.
#[derive(Clone, Debug)]
pub struct TriedRule<'p> {
    /// The rule.
    pub rule: &'p EffectiveRule,
    /// True if the rule matched.
    pub matched: bool,
    /// Share of the conditions that held in the sum of all weights, 0 to 1.
    pub score: f64,
    /// True if the framework of the rule is detected or the rule is for no framework.
    pub is_applicable: bool,
    /// Its conditions; empty if the rule does not apply.
    pub conditions: Vec<ConditionResult<'p>>,
}

/// A condition and its result.
#[derive(Clone, Debug)]
pub struct ConditionResult<'p> {
    /// The condition.
    pub condition: &'p Condition,
    /// Value of the fact; none if it is not known.
    pub fact: Option<Value>,
    /// True if the condition held.
    pub held: bool,
}

/// An action of a rule that matched.
#[derive(Clone, Copy, Debug)]
pub struct DueAction<'p> {
    /// The rule.
    pub rule: &'p EffectiveRule,
    /// The action.
    pub action: &'p Action,
    /// The typed request.
    pub request: &'p ActionRequest,
    /// Effect of the action: carried out, or reported alone.
    pub stance: Stance,
}

impl DueAction<'_> {
    /// True if the action decides whether copies are kept: a copy action, or a stream action whose rule has
    /// no copy action with the same stance.
    #[must_use]
    pub fn is_copy_decision(&self) -> bool {
        match self.action.kind.aspect() {
            Aspect::Copy => true,
            Aspect::Stream => {
                let mut others = self.rule.actions();
                !others.any(|(other, _)| {
                    other.kind.aspect() == Aspect::Copy && other.stance == Some(self.stance)
                })
            }
            _ => false,
        }
    }
}

impl Program {
    /// Returns the matching rules in order; only the first one if the settings require it. Allocates nothing.
    pub fn matching<'p>(&'p self, facts: &dyn Facts) -> impl Iterator<Item = &'p EffectiveRule> {
        let most = if self.is_first_match_only() { 1 } else { usize::MAX };
        self.rules().iter().filter(move |rule| rule.matches(facts)).take(most)
    }

    fn is_first_match_only(&self) -> bool {
        self.settings().evaluation() == Evaluation::First
    }

    /// Returns the actions of the matching rules, in order. Allocates nothing.
    pub fn due<'p>(&'p self, facts: &dyn Facts) -> impl Iterator<Item = DueAction<'p>> {
        self.matching(facts).flat_map(due_of)
    }

    /// Returns the actions of the matching rules that are carried out and decide one of `aspects`, in order.
    /// Rules without such actions are not tried, unless only the first matching rule counts. Allocates
    /// nothing, because it runs for every access.
    pub fn acting<'p>(&'p self, aspects: Aspects, facts: &dyn Facts) -> impl Iterator<Item = DueAction<'p>> {
        let is_first_alone = self.is_first_match_only();
        let tried =
            self.rules().iter().filter(move |rule| is_first_alone || rule.acts_on().intersects(aspects));
        let matching = tried.filter(move |rule| rule.matches(facts));
        let matching = matching.take(if is_first_alone { 1 } else { usize::MAX });
        let is_requested = move |due: &DueAction<'_>| {
            due.stance == Stance::Act && aspects.contains(due.action.kind.aspect())
        };
        matching.flat_map(due_of).filter(is_requested)
    }

    /// Evaluates all rules and records all facts on the way. For explanations, not for every access.
    #[must_use]
    pub fn evaluate(&self, facts: &dyn Facts) -> PolicyEvaluation<'_> {
        let mut verdict = PolicyEvaluation { tried: Vec::new(), due: Vec::new() };
        for rule in self.rules() {
            let tried = TriedRule::new(rule, facts);
            let matched = tried.matched;
            verdict.tried.push(tried);
            if matched {
                verdict.due.extend(due_of(rule));
                if self.is_first_match_only() {
                    break;
                }
            }
        }
        verdict
    }
}

fn due_of(rule: &EffectiveRule) -> impl Iterator<Item = DueAction<'_>> {
    rule.actions().map(move |(action, request)| {
        let stance = action.stance.unwrap_or(Stance::Observe);
        DueAction { rule, action, request, stance }
    })
}

impl<'p> TriedRule<'p> {
    fn new(rule: &'p EffectiveRule, facts: &dyn Facts) -> Self {
        let applies = rule.is_for(facts);
        let seen = |condition: &'p Condition| {
            let (fact, held) = condition.holds(facts);
            ConditionResult { condition, fact: fact.and_then(|fact| fact.to_value()), held }
        };
        let conditions: Vec<_> =
            if applies { rule.rule.conditions.iter().map(seen).collect() } else { Vec::new() };
        let held = conditions.iter().filter(|one| one.held).map(|one| one.condition.weight).sum();
        Self {
            rule,
            matched: rule.matches(facts),
            score: rule.score(held),
            is_applicable: applies,
            conditions,
        }
    }
}

impl ConditionResult<'_> {
    /// Formats the result as `size is more than 64MiB (3GiB)`.
    #[must_use]
    pub fn sentence(&self) -> String {
        let Condition { operator, value, .. } = self.condition;
        let fact = self.fact.as_ref().map_or_else(|| "not known".to_owned(), ToString::to_string);
        format!("{} {} {value} ({fact})", self.condition.word(), operator.phrase())
    }
}

impl PolicyEvaluation<'_> {
    /// Explains in one sentence which rule matched first and why, or why no rule matched.
    #[must_use]
    pub fn reason(&self) -> String {
        let mut matched = self.tried.iter().filter(|one| one.matched);
        let Some(first) = matched.next() else { return self.explain_no_match() };
        let mut text = self.explain_match(first);
        let others = matched.count();
        if others > 0 {
            // Writing to a String cannot fail.
            let _ = write!(text, "; {others} more matched after it");
        }
        text
    }

    /// Explains in one sentence why a rule matched; none if it did not match.
    #[must_use]
    pub fn reason_of(&self, rule: &EffectiveRule) -> Option<String> {
        let tried = self.tried.iter().find(|one| one.matched && std::ptr::eq(one.rule, rule));
        tried.map(|one| self.explain_match(one))
    }

    fn explain_match(&self, tried: &TriedRule<'_>) -> String {
        let of_rule = self.due.iter().filter(|due| std::ptr::eq(due.rule, tried.rule));
        let verbs: Vec<_> = of_rule.map(action_phrase).collect();
        let held = tried.conditions.iter().filter(|one| one.held).map(ConditionResult::sentence);
        format!(
            "{} because rule {} (priority {}, {}) matched: {}",
            verbs.join(", "),
            tried.rule.rule.id,
            tried.rule.rule.priority,
            tried.rule.source,
            held.collect::<Vec<_>>().join(", "),
        )
    }

    fn explain_no_match(&self) -> String {
        let text = format!("no action is due because 0 of {} rules matched", self.tried.len());
        let applying = self.tried.iter().filter(|one| one.is_applicable && one.score > 0.0);
        // Of rules with equal scores the first one has the highest priority.
        let nearest = applying.reduce(|best, one| if one.score > best.score { one } else { best });
        let Some(nearest) = nearest else { return text };
        let missed = nearest.conditions.iter().find(|one| !one.held).map(ConditionResult::sentence);
        let missed = missed.map(|missed| format!(": condition not met: {missed}")).unwrap_or_default();
        format!("{text}; the closest was {}{missed}", nearest.rule.rule.id)
    }
}

fn action_phrase(due: &DueAction<'_>) -> String {
    let would = if due.stance == Stance::Observe { "would " } else { "" };
    let target = match &due.action.target {
        super::rule::Target::Object => String::new(),
        other => format!(" {other}"),
    };
    format!("{would}{}{target}", due.action.kind)
}
