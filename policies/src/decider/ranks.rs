//! Queueing of requests for a disk, as set by rules.
//!
//! Always: the lookup changes no later decision.

use super::Decider;
use crate::access::Access;
use crate::engine::Seen;
use crate::language::{ActionKind, Aspect, Aspects, Facts, Lane, Priority, Wish};

/// Queue position of a request, as set by a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Lane of the request; `None` if it stays in the lane that it is in.
    pub lane: Option<Lane>,
    /// Priority within the lane.
    pub priority: Priority,
}

impl Decider {
    /// Returns the rank set by the strongest acting rule that ranks requests.
    #[must_use]
    pub fn rank(&self, seen: Seen, access: &Access<'_>, rest: &dyn Facts) -> Option<Rank> {
        if !self.program.acts(ActionKind::Prioritize) {
            return None;
        }
        self.with_facts(seen, access, rest, |facts| {
            let mut ranking = self.program.acting(Aspects::of(&[Aspect::Lane]), facts);
            ranking.find_map(|due| match *due.wish {
                Wish::Prioritize { lane, priority } => Some(Rank { lane, priority }),
                _ => None,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Rank;
    use crate::access::{Access, Caller, Op};
    use crate::decider::Decider;
    use crate::engine::Options;
    use crate::language::{ActionKind, Lane, NoFacts, PolicyFile, Priority, Program};
    use crate::workloads::Identity;
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
        let program = Program::above_built_in(&[PolicyFile::parse("p.yaml", RULES).unwrap()]).unwrap();
        assert!(program.acts(ActionKind::Prioritize));
        let options = Options { capacity_bytes: 1 << 30, blocks_max: 100, block_bytes: 8 << 20, seed: 7 };
        let mut decider = Decider::new(options, Arc::new(program));
        let caller = Caller::of("key", b"agent", None, b"address");
        let mut rank = |key: &str, size: u64| {
            let access = Access { at_us: 1, caller, bucket: 1, key, op: Op::Read, size, range: 0..size };
            let seen = decider.observe(&access, Identity::default);
            decider.rank(seen, &access, &NoFacts)
        };
        let urgent = Rank { lane: Some(Lane::Inference), priority: Priority::Urgent };
        let low = Rank { lane: None, priority: Priority::Low };
        assert_eq!(rank("serve/m", 10 << 20), Some(urgent), "of two rules the stronger one");
        assert_eq!(rank("train/a", 10 << 20), Some(low));
        assert_eq!(rank("logs/a", 10 << 20), Some(low), "what a rule only says is passed over");
        assert_eq!(rank("train/b", 10), None);
    }
}
