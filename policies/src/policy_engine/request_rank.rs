//! Queueing of requests for a disk, as set by rules.
//!
//! Invariant: the lookup changes no later decision.

use super::PolicyEngine;
use crate::access::Access;
use crate::engine::ObservedAccess;
use crate::language::{ActionKind, ActionRequest, Aspect, Aspects, Facts, Lane, Priority};

/// Queue position of a request, as set by a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestRank {
    /// Lane of the request; `None` if it stays in the lane that it is in.
    pub lane: Option<Lane>,
    /// Priority within the lane.
    pub priority: Priority,
}

impl PolicyEngine {
    /// Returns the rank set by the strongest acting rule that ranks requests.
    #[must_use]
    pub fn rank(&self, seen: ObservedAccess, access: &Access<'_>, rest: &dyn Facts) -> Option<RequestRank> {
        if !self.program.has_acting(ActionKind::Prioritize) {
            return None;
        }
        self.with_facts(seen, access, rest, |facts| {
            let mut ranking = self.program.acting(Aspects::new(&[Aspect::Lane]), facts);
            ranking.find_map(|due| match *due.request {
                ActionRequest::Prioritize { lane, priority } => Some(RequestRank { lane, priority }),
                _ => None,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::RequestRank;
    use crate::access::{Access, Caller, Op};
    use crate::engine::Options;
    use crate::language::{ActionKind, Lane, NoFacts, ParsedPolicy, Priority, Program};
    use crate::policy_engine::PolicyEngine;
    use crate::workloads::WorkloadIdentity;
    use std::sync::Arc;

    const RULES: &str = "
version: 1
rules:
  - id: serving
    priority: 20
    conditions: [{type: file_pattern, property: key, operator: matches, value: 'serve/*'}]
    actions: [{type: prioritize, parameters: {lane: inference, priority: urgent}}]
  - id: large
    priority: 10
    conditions: [{type: file_context, property: size, operator: greater_than, value: 1MiB}]
    actions: [{type: prioritize, parameters: {priority: low}}]
  - id: said-only
    priority: 30
    conditions: [{type: file_pattern, property: key, operator: matches, value: 'logs/*'}]
    actions: [{type: prioritize, stance: observe, parameters: {priority: urgent}}]
";

    #[test]
    fn the_strongest_rule_that_acts_says_where_a_read_waits() {
        let program =
            Program::compile_above_built_in(&[ParsedPolicy::parse("p.yaml", RULES).unwrap()]).unwrap();
        assert!(program.has_acting(ActionKind::Prioritize));
        let options = Options { capacity_bytes: 1 << 30, blocks_max: 100, block_bytes: 8 << 20, seed: 7 };
        let mut decider = PolicyEngine::new(options, Arc::new(program));
        let caller = Caller::of("key", b"agent", None, b"address");
        let mut rank = |key: &str, size: u64| {
            let access = Access { at_us: 1, caller, bucket: 1, key, op: Op::Read, size, range: 0..size };
            let seen = decider.observe(&access, WorkloadIdentity::default);
            decider.rank(seen, &access, &NoFacts)
        };
        let urgent = RequestRank { lane: Some(Lane::Inference), priority: Priority::Urgent };
        let low = RequestRank { lane: None, priority: Priority::Low };
        assert_eq!(rank("serve/m", 10 << 20), Some(urgent), "the rule with the higher priority wins");
        assert_eq!(rank("train/a", 10 << 20), Some(low));
        assert_eq!(rank("logs/a", 10 << 20), Some(low), "an observing rule is skipped");
        assert_eq!(rank("train/b", 10), None);
    }
}
