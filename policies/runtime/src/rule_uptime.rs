//! Uptime of each rule that deletes checkpoints: the time since which it has run without interruption.
//!
//! A deletion waits for a grace period, in which a person can remove the rule. A rule that was removed,
//! even for a moment that no reconciler pass observed, starts anew when it runs again; a rollback restarts
//! all rules. After a restart or a power loss, rules count as running since the newest version that brought
//! files, because the state between versions is not stored.

use mlgw_formats::schema::{PolicyKind, PolicyVersion};
use mlgw_policies::at_rest::deleting_rules;
use mlgw_policies::language::Program;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Start times of rules that delete, by rule id, in milliseconds since 1970.
pub(super) struct RuleUptime(Mutex<BTreeMap<Box<str>, i64>>);

impl RuleUptime {
    /// Rules of the program that runs at the start of the server, after these versions.
    pub(super) fn new<'v>(program: &Program, versions: impl Iterator<Item = &'v PolicyVersion>) -> Self {
        let given = versions.filter(|version| brings_files(version.kind));
        let since_ms = given.map(|version| version.at_ms).max().unwrap_or(i64::MIN);
        Self(Mutex::new(deleting_rules(program).map(|rule| (rule.into(), since_ms)).collect()))
    }

    /// Replaces the program by that of another version.
    pub(super) fn replace(&self, program: &Program, version: Option<&PolicyVersion>, now_ms: i64) {
        let mut held = self.0.lock();
        if version.is_some_and(|version| version.kind == PolicyKind::Rollback as i32) {
            held.clear();
        }
        *held = deleting_rules(program)
            .map(|rule| (rule.into(), held.get(rule).copied().unwrap_or(now_ms)))
            .collect();
    }

    /// Start time of a rule in milliseconds since 1970; `i64::MAX` if it does not run.
    pub(super) fn since_ms(&self, rule: &str) -> i64 {
        self.0.lock().get(rule).copied().unwrap_or(i64::MAX)
    }
}

/// True if versions of this kind bring files.
const fn brings_files(kind: i32) -> bool {
    kind == PolicyKind::Apply as i32
        || kind == PolicyKind::Rollback as i32
        || kind == PolicyKind::Reload as i32
}
