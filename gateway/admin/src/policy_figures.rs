//! The running policy in status and metrics.

use super::Admin;
use mlgw_api::PolicyStatus;
use mlgw_telemetry::exposition::{MetricFamily, MetricValue};
use mlgw_telemetry::table::{
    POLICY_ACTIONS, POLICY_FAULTS, POLICY_LEARNING, POLICY_REFUSED, POLICY_RULES, POLICY_VERSION,
};

impl Admin {
    pub(super) fn policy_status(&self) -> PolicyStatus {
        let running = self.policies.running();
        let [(_, rules_act), (_, rules_observe)] = self.policies.rules_by_stance();
        PolicyStatus {
            version: running.number(),
            rules_act,
            rules_observe,
            learning: *self.policies.learning().borrow(),
            fault: running.fault.clone(),
            refused: self.policies.refused().map(|refused| refused.why),
        }
    }

    pub(super) fn policy_families(&self) -> Vec<MetricFamily> {
        let status = self.policy_status();
        let level = |number: u64| MetricValue::Level(i64::try_from(number).unwrap_or(i64::MAX));
        let (mut rules, mut refused) = (MetricFamily::new(POLICY_RULES), MetricFamily::new(POLICY_REFUSED));
        for (stance, count) in self.policies.rules_by_stance() {
            rules.push(&[stance], level(count));
        }
        for (source, count) in self.policies.refusals() {
            refused.push(&[source], MetricValue::Count(count));
        }
        let faults = MetricFamily::new(POLICY_FAULTS)
            .with(&["stored"], level(status.fault.is_some().into()))
            .with(&["file"], level(status.refused.is_some().into()));
        let version = MetricFamily::single(POLICY_VERSION, level(status.version));
        let learning = MetricFamily::single(POLICY_LEARNING, level(status.learning.into()));
        let mut actions = MetricFamily::new(POLICY_ACTIONS);
        for (action, outcome, count) in self.retention.counts() {
            actions.push(&[action, outcome], MetricValue::Count(count));
        }
        vec![version, rules, refused, faults, learning, actions]
    }
}
