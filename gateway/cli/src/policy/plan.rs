//! The command `mlgw policy plan`: the effect of a policy, requested in pages until all objects were visited.

use super::apply::{FilesArgs, PolicyTexts};
use crate::client::Client;
use crate::output::{Out, columns, text_line};
use crate::progress::CommandProgress;
use crate::{CliError, Global, discover};
use clap::Args;
use http::Method;
use mlgw_api::{PlanPage, PlanRequest, PlannedActionInfo, PlannedSettingInfo};
use mlgw_common::ByteSize;
use mlgw_config::SettingType as _;
use std::collections::BTreeSet;
use std::time::Duration;

#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    files: FilesArgs,
}

pub(super) async fn run(args: PlanArgs, global: &Global, out: Out) -> Result<(), CliError> {
    // Without files the plan is that of the running policy: pending deletions.
    let PolicyTexts { files, frameworks } = args.files.read_any()?;
    let mut request = PlanRequest { files, frameworks, plan: None, limit: None };
    let client = Client::new(discover::target(global)?)?;
    let progress = CommandProgress::new(out.quiet);
    loop {
        let page: PlanPage = client.call(Method::POST, "/v1/policy/plan", Some(&request)).await?;
        if page.next.is_none() {
            progress.done();
            return out.document(&page, table);
        }
        request = PlanRequest { plan: page.next, ..PlanRequest::default() };
        progress.count("planning", page.collected + page.objects, 0);
    }
}

fn table(plan: &PlanPage) -> String {
    let mut text = String::new();
    if !plan.actions.is_empty() {
        let rows: Vec<_> = plan.actions.iter().map(row).collect();
        text += &columns(&["CHANGE", "STANCE", "ACTION", "RULE", "OBJECTS", "BYTES", "TO MOVE"], &rows);
        text += "\n";
    }
    let mut printed = BTreeSet::new();
    for action in &plan.actions {
        for example in &action.examples {
            // Actions of one rule have one reason.
            let line = text_line(&format!("{} {}: {}", action.change, example.object, example.reason));
            if printed.insert(line.clone()) {
                text += &line;
            }
        }
    }
    if !plan.actions.is_empty() {
        text += "\n";
    }
    for PlannedSettingInfo { setting, before, after } in &plan.settings {
        let or_unset = |value: &Option<String>| value.clone().unwrap_or_else(|| "unset".to_owned());
        text += &format!("Setting {setting}: {} instead of {}.\n", or_unset(after), or_unset(before));
    }
    if !plan.not_judged.is_empty() {
        let rule = |one: &mlgw_api::UndeterminedRule| format!("{} ({})", one.rule, one.asks.join(", "));
        let rules: Vec<_> = plan.not_judged.iter().map(rule).collect();
        text += &format!("Undetermined until objects are read: {}.\n", rules.join(", "));
    }
    for one in &plan.deletions {
        let (files, size) = (one.files, ByteSize(one.bytes).human());
        let what = format!("{} ({files} objects, {size})", one.objects);
        text += &text_line(&match &one.guard {
            None => format!("{what} is deleted at {}: rule {} retains others.", one.due, one.rule),
            Some(why) => format!("{what} is due for deletion at {} and is kept: {why}.", one.due),
        });
    }
    for one in &plan.expired {
        let (files, size, rule) = (one.files, ByteSize(one.bytes).human(), &one.rule);
        let then = match (one.is_deleted, &one.guard) {
            (true, None) => {
                let grace = Duration::from_secs(one.grace_seconds);
                format!(" and be deleted after {}: rule {rule} retains others", grace.to_text())
            }
            (true, Some(why)) => {
                format!(": rule {rule} retains others; not deleted: {why}")
            }
            (false, _) => format!(": rule {rule} retains others"),
        };
        text += &text_line(&format!("{} ({files} objects, {size}) would be spilled{then}.", one.objects));
    }
    for one in &plan.impossible {
        text += &text_line(one);
    }
    let (objects, changed) = (plan.objects, plan.changed);
    text + &format!("{changed} of {objects} objects would be treated differently.\n")
}

fn row(action: &PlannedActionInfo) -> Vec<String> {
    let size = |bytes| ByteSize(bytes).human();
    vec![
        action.change.to_string(),
        action.stance.to_string(),
        action.action.clone(),
        action.rule.clone(),
        action.objects.to_string(),
        size(action.bytes),
        size(action.moved_bytes),
    ]
}

#[cfg(test)]
mod tests {
    use super::table;
    use mlgw_api::{
        PendingDeletionInfo, PlanExample, PlanPage, PlannedActionInfo, PlannedChange, PlannedSettingInfo,
        RuleStance, UndeterminedRule,
    };

    fn page(rule: &str, objects: u64) -> PlanPage {
        let example = PlanExample { object: "s3://b/k".into(), reason: "it is so".into() };
        let action = PlannedActionInfo {
            change: PlannedChange::Starts,
            stance: RuleStance::Act,
            action: "promote".into(),
            rule: rule.into(),
            objects,
            bytes: objects << 20,
            moved_bytes: 0,
            examples: vec![example; 2],
        };
        PlanPage { objects: 10, changed: objects, actions: vec![action], ..PlanPage::default() }
    }

    #[test]
    fn a_plan_shows_actions_with_their_rules_and_objects() {
        let mut plan = page("a", 5);
        let deletion = |guard: Option<&str>| PendingDeletionInfo {
            objects: "s3://b/run/1/".into(),
            rule: "few".into(),
            due: "noon".into(),
            guard: guard.map(str::to_owned),
            ..PendingDeletionInfo::default()
        };
        plan.deletions = vec![deletion(None), deletion(Some("latest names it"))];
        plan.settings =
            vec![PlannedSettingInfo { setting: "cache".into(), before: None, after: Some("lru".into()) }];
        plan.not_judged = vec![UndeterminedRule { rule: "c".into(), asks: vec!["reads".into()] }];
        let text = table(&plan);
        assert!(text.contains("starts  act     promote  a     5        5.0 MiB  0 B"), "{text}");
        assert_eq!(text.matches("starts s3://b/k: it is so\n").count(), 1, "{text}");
        assert!(text.contains("Setting cache: lru instead of unset.\n"), "{text}");
        assert!(text.contains("Undetermined until objects are read: c (reads).\n"), "{text}");
        let group = "s3://b/run/1/ (0 objects, 0 B)";
        assert!(text.contains(&format!("{group} is deleted at noon: rule few retains others.\n")), "{text}");
        assert!(
            text.contains(&format!("{group} is due for deletion at noon and is kept: latest names it.\n")),
            "{text}"
        );
        assert!(text.ends_with("5 of 10 objects would be treated differently.\n"), "{text}");
    }
}
