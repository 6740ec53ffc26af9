//! Selects the fault for a request: rules are evaluated in order, and the first that fires decides.
//!
//! The decision is pure: it depends on the request's head and on the earlier requests, and its only
//! randomness is a rule's own seed. A rule counts the requests that reach it and match; requests taken by an
//! earlier rule do not reach it.

use super::head::MessageHead;
use super::rule::{Fault, Rule, RuleError};
use crate::seed::Rng;

/// A rule and its counters.
#[derive(Debug)]
struct CountedRule {
    rule: Rule,
    matched: u64,
    fired: u64,
    rng: Rng,
}

impl CountedRule {
    /// Counts a matching request, and returns true if the rule fires.
    fn fires(&mut self) -> bool {
        self.matched += 1;
        let is_its_turn = self.rule.nth.is_none_or(|nth| self.matched == nth)
            && self.rule.times.is_none_or(|times| self.fired < times);
        let fires = is_its_turn && self.rule.probability.is_none_or(|p| chance(&mut self.rng) < p);
        self.fired += u64::from(fires);
        fires
    }
}

/// A random number in [0, 1), evenly distributed.
fn chance(rng: &mut Rng) -> f64 {
    // 32 bits of precision are sufficient, and exact in this type.
    let bits = u32::try_from(rng.next() >> 32).unwrap_or(u32::MAX);
    f64::from(bits) / (f64::from(u32::MAX) + 1.0)
}

/// The rule that fired: its index in the list, and its fault.
pub(super) type FiredRule = (usize, Fault);

/// All rules of a proxy.
#[derive(Debug, Default)]
pub(super) struct Rules {
    rules: Vec<CountedRule>,
}

impl Rules {
    /// # Errors
    /// One of the rules is invalid.
    pub(super) fn new(rules: Vec<Rule>) -> Result<Self, RuleError> {
        rules.iter().try_for_each(Rule::check)?;
        let counted = |rule: Rule| CountedRule { matched: 0, fired: 0, rng: Rng::new(rule.seed), rule };
        Ok(Self { rules: rules.into_iter().map(counted).collect() })
    }

    /// The fault for this request, if a rule fires.
    pub(super) fn for_request(&mut self, request: &MessageHead) -> Option<FiredRule> {
        self.first(|rule| !rule.is_for_connections() && rule.matches(request))
    }

    /// True if a connection that was just accepted is to be refused.
    pub(super) fn refuse_connection(&mut self) -> bool {
        self.first(Rule::is_for_connections).is_some()
    }

    fn first(&mut self, matches: impl Fn(&Rule) -> bool) -> Option<FiredRule> {
        // Evaluated in this order: a rule counts its matches, and the rules after the one that fires count
        // nothing.
        let at = self.rules.iter_mut().position(|counted| matches(&counted.rule) && counted.fires())?;
        Some((at, self.rules[at].rule.fault.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn head(line: &str) -> MessageHead {
        MessageHead::new(format!("{line} HTTP/1.1\r\nRange: bytes=0-1\r\n\r\n").into_bytes()).unwrap()
    }

    /// The index of the rule that fires for each of these requests.
    fn fired(rules: Vec<Rule>, requests: &[&str]) -> Vec<Option<usize>> {
        let mut rules = Rules::new(rules).unwrap();
        requests.iter().map(|line| rules.for_request(&head(line)).map(|(at, _)| at)).collect()
    }

    fn rule() -> Rule {
        Rule::new(Fault::CutBeforeAnswer)
    }

    #[test]
    fn a_rule_applies_to_requests_that_meet_all_its_conditions() {
        let asks = rule().method("GET").path("/b/k").query("part=2").header("range");
        let requests =
            ["GET /b/key?part=2", "PUT /b/key?part=2", "GET /c/key?part=2", "GET /b/key", "GET /?/b/key"];
        assert_eq!(fired(vec![asks], &requests), [Some(0), None, None, None, None]);
        assert_eq!(fired(vec![rule().header("if-match")], &["GET /"]), [None]);
        assert_eq!(fired(vec![rule()], &["GET /"]), [Some(0)]);
    }

    #[test]
    fn the_first_rule_that_fires_decides_and_later_ones_do_not_count() {
        let rules = vec![rule().path("/a").times(1), rule().nth(2), rule().method("PUT")];
        let requests = ["GET /a", "GET /a", "GET /a", "GET /b", "PUT /b"];
        assert_eq!(fired(rules, &requests), [Some(0), None, Some(1), None, Some(2)]);
    }

    #[test]
    fn a_seed_determines_all_random_decisions() {
        let draw = |p, seed| fired(vec![rule().probability(p, seed)], &["GET /"; 1000]);
        let hits = |p, seed| draw(p, seed).iter().flatten().count();
        assert_eq!(draw(0.3, 7), draw(0.3, 7));
        assert_ne!(draw(0.3, 7), draw(0.3, 8));
        assert!((250..350).contains(&hits(0.3, 7)), "{}", hits(0.3, 7));
        assert_eq!((hits(0.0, 7), hits(1.0, 7)), (0, 1000));
    }

    #[test]
    fn only_a_refusal_without_conditions_applies_to_connections() {
        let mut rules =
            Rules::new(vec![Rule::new(Fault::Refuse).method("PUT"), Rule::new(Fault::Refuse).nth(2), rule()])
                .unwrap();
        assert!(!rules.refuse_connection() && rules.refuse_connection() && !rules.refuse_connection());
        assert_eq!(rules.for_request(&head("PUT /")).unwrap(), (0, Fault::Refuse));
        assert_eq!(rules.for_request(&head("GET /")).unwrap(), (2, Fault::CutBeforeAnswer));
    }

    #[test]
    fn rules_are_read_from_json_and_invalid_ones_are_rejected() {
        let json = r#"[{"method": "GET", "nth": 2, "fault": {"stall": {"after": 9, "pause": "2s"}}},
            {"probability": 0.5, "seed": 3, "fault": "cut_before_answer"},
            {"fault": {"status": {"status": 503, "code": "SlowDown"}}}]"#;
        let stall = Fault::Stall { after: 9, pause: Duration::from_secs(2) };
        let status = Fault::Status { status: 503, code: "SlowDown".to_owned() };
        let rules: Vec<Rule> = serde_json::from_str(json).unwrap();
        let expected = [Rule::new(stall).method("GET").nth(2), rule().probability(0.5, 3), Rule::new(status)];
        assert_eq!(rules, expected);
        for wrong in [
            r#"{"fault": "refuse", "paths": "x"}"#,
            r#"{"fault": {"delay": {"by": "20"}}}"#,
            r#"{"fault": {"delay": {"by": "2s", "at": 1}}}"#,
            r#"{"method": "GET"}"#,
        ] {
            assert!(serde_json::from_str::<Rule>(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Rules::new(vec![rule().nth(0)]).unwrap_err(), RuleError::Nth);
        assert_eq!(Rules::new(vec![rule().probability(1.1, 0)]).unwrap_err(), RuleError::Probability);
        let interim = Fault::Status { status: 100, code: String::new() };
        assert_eq!(Rules::new(vec![Rule::new(interim)]).unwrap_err(), RuleError::Status(100));
    }
}
