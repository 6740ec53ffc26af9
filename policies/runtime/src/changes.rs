//! Summary of the differences between two policies, in a sentence for the history.
//!
//! The functions are pure.

use mlgw_policies::language::{EffectiveRule, Program};
use std::collections::BTreeMap;

/// Maximum number of ids of each kind that are listed; the others are only counted.
const LISTED_IDS_MAX: usize = 4;

/// Summary such as `1 rule added (a), 2 changed (b, c); 1 setting changed (prefetch)`.
#[must_use]
pub fn change_summary(before: &Program, after: &Program) -> String {
    let (old, new) = (rules(before), rules(after));
    let added = new.keys().filter(|id| !old.contains_key(*id));
    let removed = old.keys().filter(|id| !new.contains_key(*id));
    let changed = new.iter().filter(|(id, rule)| old.get(*id).is_some_and(|before| before != *rule));
    let mut parts = Vec::new();
    parts.extend(counted("rule", "added", added.copied()));
    parts.extend(counted("rule", "changed", changed.map(|(id, _)| *id)));
    parts.extend(counted("rule", "removed", removed.copied()));
    let settings = settings_changed(before, after);
    parts.extend(counted("setting", "changed", settings.iter().map(|one| one.word.as_str())));
    let (old, new) = (frameworks(before), frameworks(after));
    parts.extend(counted("framework", "added", new.iter().copied().filter(|name| !old.contains(name))));
    parts.extend(counted("framework", "removed", old.iter().copied().filter(|name| !new.contains(name))));
    if parts.is_empty() { "no changes".to_owned() } else { parts.join(", ") }
}

fn rules(program: &Program) -> BTreeMap<&str, &EffectiveRule> {
    program.rules().iter().map(|one| (&*one.rule.id, one)).collect()
}

/// A setting with different values in two policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingChanged {
    /// Name of the setting.
    pub word: String,
    /// Value in the first policy; `None` if it falls back to the setting that it is a part of.
    pub before: Option<String>,
    /// Value in the second policy; `None` like `before`.
    pub after: Option<String>,
}

/// Settings whose values differ between two policies, including those that the second policy does not set.
#[must_use]
pub fn settings_changed(before: &Program, after: &Program) -> Vec<SettingChanged> {
    let (mut old, new) = (settings(before), settings(after));
    let mut all: BTreeMap<String, SettingChanged> = BTreeMap::new();
    for (word, value) in new {
        let before = old.remove(&word);
        all.insert(word.clone(), SettingChanged { word, before, after: Some(value) });
    }
    let gone = old.into_iter().map(|(word, value)| SettingChanged { word, before: Some(value), after: None });
    all.extend(gone.map(|one| (one.word.clone(), one)));
    all.into_values().filter(|one| one.before != one.after).collect()
}

fn settings(program: &Program) -> BTreeMap<String, String> {
    let word = |one: &mlgw_policies::language::EffectiveSetting| {
        let of = one.member.map(|member| format!(".{member}")).unwrap_or_default();
        (format!("{}{of}", one.setting.row().word), one.value.to_string())
    };
    program.settings().all().iter().map(word).collect()
}

fn frameworks(program: &Program) -> Vec<&str> {
    program.frameworks().iter().map(|one| &*one.name).collect()
}

fn counted<'a>(what: &str, how: &str, ids: impl Iterator<Item = &'a str>) -> Option<String> {
    let ids: Vec<_> = ids.collect();
    let more = if ids.len() > LISTED_IDS_MAX { ", …" } else { "" };
    let s = if ids.len() == 1 { "" } else { "s" };
    let named = ids.iter().take(LISTED_IDS_MAX).copied().collect::<Vec<_>>().join(", ");
    (!ids.is_empty()).then(|| format!("{} {what}{s} {how} ({named}{more})", ids.len()))
}

#[cfg(test)]
mod tests {
    use super::change_summary;
    use mlgw_policies::language::{ParsedPolicy, Program};

    fn program(text: &str) -> Program {
        let file = ParsedPolicy::parse("p.yaml", text).unwrap();
        Program::compile_above_built_in(&[file]).unwrap()
    }

    fn rule(id: &str, action: &str) -> String {
        format!(
            "- {{id: {id}, conditions: [{{type: file_pattern, property: name, operator: matches, \
             value: '*.a'}}], actions: [{{type: {action}}}]}}\n"
        )
    }

    #[test]
    fn added_changed_and_removed_items_are_listed() {
        let before = format!("version: 1\nrules:\n{}{}", rule("a", "pin"), rule("b", "pin"));
        let after = format!(
            "version: 1\nsettings: {{pin_max: 10%}}\nframeworks: {{mosaicml: {{enabled: false}}}}\nrules:\n\
             {}{}",
            rule("a", "promote"),
            rule("c", "pin")
        );
        let summary = change_summary(&program(&before), &program(&after));
        assert!(summary.starts_with("1 rule added (c), 1 rule changed (a), "), "{summary}");
        assert!(summary.contains("1 setting changed (pin_max), 1 framework removed (mosaicml)"), "{summary}");
        assert_eq!(change_summary(&program(&before), &program(&before)), "no changes");
        let settings = |text: &str| program(&format!("version: 1\nsettings: {{{text}}}"));
        let (general, one) = (settings("prefetch: balanced"), settings("cache.evaluation: none"));
        assert_eq!(change_summary(&one, &program("version: 1")), "1 setting changed (cache.evaluation)");
        let summary = change_summary(&program("version: 1"), &general);
        assert!(
            summary.contains("prefetch, prefetch.checkpoint_save"),
            "the built-in settings are removed: {summary}"
        );
        assert_eq!(
            summary,
            change_summary(&general, &program("version: 1")),
            "the built-in settings are restored"
        );
        let many: String = (0..6).map(|n| rule(&format!("m{n}"), "pin")).collect();
        let summary =
            change_summary(&program("version: 1"), &program(&format!("version: 1\nrules:\n{many}")));
        assert_eq!(summary, "6 rules added (m0, m1, m2, m3, …)");
    }
}
