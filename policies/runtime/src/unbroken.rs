//! Since when each rule that deletes checkpoints has run without a break.
//!
//! A deletion waits a grace in which whoever thinks better of it takes the rule back. Always: a rule that was
//! taken back, be it for a moment that no round has seen, begins anew when it runs again, and with a rollback
//! all do. After a restart or a power failure they count as begun with the newest version that came with
//! files of its own, as nothing else is known of what ran between versions.

use mlgw_formats::schema::{PolicyKind, PolicyVersion};
use mlgw_policies::at_rest::deleting;
use mlgw_policies::language::Program;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// See the module.
pub(super) struct Unbroken(Mutex<BTreeMap<Box<str>, i64>>);

impl Unbroken {
    /// Rules of the program that runs when the server starts, after these versions.
    pub(super) fn new<'v>(program: &Program, versions: impl Iterator<Item = &'v PolicyVersion>) -> Self {
        let given = versions.filter(|version| is_given(version.kind));
        let since_ms = given.map(|version| version.at_ms).max().unwrap_or(i64::MIN);
        Self(Mutex::new(deleting(program).map(|rule| (rule.into(), since_ms)).collect()))
    }

    /// Another program runs, of this version.
    pub(super) fn replace(&self, program: &Program, version: Option<&PolicyVersion>, now_ms: i64) {
        let mut held = self.0.lock();
        if version.is_some_and(|version| version.kind == PolicyKind::Rollback as i32) {
            held.clear();
        }
        *held =
            deleting(program).map(|rule| (rule.into(), held.get(rule).copied().unwrap_or(now_ms))).collect();
    }

    /// In milliseconds since 1970; of one that does not run, for ever.
    pub(super) fn since_ms(&self, rule: &str) -> i64 {
        self.0.lock().get(rule).copied().unwrap_or(i64::MAX)
    }
}

/// Whether versions of this kind bring files.
const fn is_given(kind: i32) -> bool {
    kind == PolicyKind::Apply as i32
        || kind == PolicyKind::Rollback as i32
        || kind == PolicyKind::Reload as i32
}
