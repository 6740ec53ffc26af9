//! Checks of references between files: to frameworks, and to rules that are switched off.

use super::{Compiler, LayerSection};
use crate::language::actions::Parameter;
use crate::language::diagnostic::{Diagnostic, TextPosition, nearest, one_of};
use crate::language::file::ParsedPolicy;
use crate::language::framework::Framework;
use crate::language::notes::{DefinitionIds, RuleSwitch};
use crate::language::rule::Rule;
use std::collections::HashSet;
use std::sync::Arc;

impl Compiler<'_> {
    pub(super) fn check_ids(&mut self, file: &Arc<str>, rules: &[Rule]) {
        let mut seen = HashSet::new();
        for rule in rules {
            if !seen.insert(&*rule.id) {
                let found = format!("duplicate id {:?}", rule.id);
                self.report(file, rule.line.0, found, "each id once".to_owned());
            }
        }
    }

    /// Reports a framework that does not exist. Returns true if it exists or may exist.
    pub(super) fn check_framework(
        &mut self,
        file: &str,
        name: &str,
        spot: TextPosition,
        path: String,
    ) -> bool {
        let names = || self.frameworks.iter().map(|one| &*one.name).filter(|name| !name.is_empty());
        let is_there = names().any(|one| one == name) || self.doubts.frameworks.may_contain(name);
        if is_there || self.is_full() {
            return is_there;
        }
        let (nearest, expected) = (nearest(name, names()), one_of(names()));
        if self.doubts.frameworks.may_be_unreadable(nearest.as_deref()) {
            return true;
        }
        let (file, found) = (file.into(), format!("unknown framework {name:?}"));
        let TextPosition { line, column } = spot;
        self.diagnostics.push(Diagnostic { file, line, column, path, expected, found, nearest });
        false
    }

    pub(super) fn check_framework_of(&mut self, file: &str, rule: &Rule) {
        let Some(name) = &rule.framework else { return };
        // A rule of an instance has no position of its own for the field.
        let at = rule.framework_at.0.clone();
        let (path, spot) = at
            .unwrap_or_else(|| (format!("rule {}", rule.id), TextPosition { line: rule.line.0, column: 1 }));
        self.check_framework(file, name, spot, path);
    }

    /// Checks the frameworks of rules that are not effective because of a duplicate or unreadable id.
    pub(super) fn check_ineffective_rules(&mut self) {
        let of_files = self.layers.custom.iter().map(|file| (&file.file, &file.notes));
        let of_plugins = self.layers.frameworks.iter().map(|one| (&one.file, &one.notes));
        for (file, notes) in of_files.chain(of_plugins).filter(|(_, notes)| !notes.is_stored()) {
            notes.ineffective_rules.iter().for_each(|rule| self.check_framework_of(file, rule));
        }
    }

    /// Reports instances in a plugin that request deletions, which have no effect there, as in a plugin's own
    /// rules.
    pub(super) fn check_deletions(&mut self, framework: &Framework, rules: &[Rule]) {
        for one in &framework.instances {
            let is_of =
                |rule: &&Rule| rule.id.strip_prefix(&*one.id).is_some_and(|rest| rest.starts_with('.'));
            let mut actions = rules.iter().filter(is_of).flat_map(|rule| &rule.actions);
            if actions.any(|action| action.flag(Parameter::Delete)) {
                let found = format!(
                    "delete has no effect in {:?}, which a plugin defines: only a user's policy deletes \
                        checkpoints",
                    one.id
                );
                self.report(&framework.file, one.line(), found, "an instance in a policy".to_owned());
            }
        }
    }

    /// Checks the frameworks of rules in sections that do not apply to this server.
    pub(super) fn check_inactive_sections(&mut self) {
        for file in self.layers.custom.iter().filter(|file| !file.notes.is_stored()) {
            for rule in file.sections().flat_map(|overrides| &overrides.rules) {
                self.check_framework_of(&file.file, rule);
            }
        }
    }

    /// Reports switches of rules that do not exist: neither built in, nor in a plugin, nor in another section
    /// of the policy.
    pub(super) fn check_switches(&mut self, parts: &[LayerSection<'_>]) {
        const EXPECTED: &str = "the id of a built-in rule, of a rule in a plugin given with the policy, or \
            of another rule in the policy";
        let known = self.rule_ids(parts);
        let of_files = self.layers.custom.iter().map(|file| (&file.file, &file.notes));
        let of_plugins = self.layers.frameworks.iter().map(|one| (&one.file, &one.notes));
        for (file, notes) in of_files.chain(of_plugins).filter(|(_, notes)| !notes.is_stored()) {
            for RuleSwitch { id, spot: TextPosition { line, column }, path } in &notes.switches {
                // The search for the nearest id is expensive, so it is done only for errors that are
                // reported.
                if self.is_full() {
                    return;
                }
                if known.may_contain(id) || self.doubts.rules.may_contain(id) {
                    continue;
                }
                let nearest = nearest(id, known.all());
                if self.doubts.rules.may_be_unreadable(nearest.as_deref()) {
                    continue;
                }
                self.diagnostics.push(Diagnostic {
                    file: Arc::clone(file),
                    line: *line,
                    column: *column,
                    path: path.clone(),
                    expected: EXPECTED.to_owned(),
                    found: format!("there is no rule {id:?} to disable"),
                    nearest,
                });
            }
        }
    }

    /// Returns the ids of all rules that are more than a switch, in every section.
    fn rule_ids(&self, parts: &[LayerSection<'_>]) -> DefinitionIds {
        let mut ids = DefinitionIds::default();
        let in_parts = parts.iter().flat_map(|part| &part.rules);
        let idle =
            self.layers.custom.iter().flat_map(ParsedPolicy::sections).flat_map(|overrides| &overrides.rules);
        let of_plugins = self.frameworks.iter().flat_map(|one| &one.rules);
        for rule in in_parts.chain(idle).chain(of_plugins).filter(|rule| !rule.is_switch()) {
            ids.add(Some(&rule.id));
        }
        // The rules of plugins that are disabled exist as well.
        let instances =
            self.frameworks.iter().filter(|one| !self.is_enabled(one)).flat_map(|one| &one.instances);
        instances.for_each(|one| ids.add_prefix(&one.id));
        ids
    }
}
