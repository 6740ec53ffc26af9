//! `mlgw policy plan`: page after page of what would be otherwise, added up.

use super::apply::{FilesArgs, Texts};
use crate::admin::{DeedInfo, PlanPage, PlanRequest};
use crate::cli::client::Client;
use crate::cli::output::{Out, columns};
use crate::cli::progress::Progress;
use crate::cli::{CliError, Global, discover};
use crate::config::{ByteSize, Value as _};
use clap::Args;
use http::Method;
use mlgw_common::limits::PLAN_EXAMPLES;
use std::time::Duration;

#[derive(Debug, Args)]
pub(in crate::cli) struct PlanArgs {
    #[command(flatten)]
    files: FilesArgs,
}

pub(super) async fn run(args: PlanArgs, global: &Global, out: Out) -> Result<(), CliError> {
    let Texts { files, frameworks } = args.files.read()?;
    let mut request = PlanRequest { files, frameworks, after: None, limit: None };
    let client = Client::new(discover::target(global)?)?;
    let progress = Progress::new(out.quiet);
    let mut whole: PlanPage = client.call(Method::POST, "/v1/policy/plan", Some(&request)).await?;
    while let Some(next) = whole.next.take() {
        request.after = Some(next);
        let page: PlanPage = client.call(Method::POST, "/v1/policy/plan", Some(&request)).await?;
        if page.version != whole.version {
            let message = "somebody changed the policy meanwhile; ask again".to_owned();
            return Err(CliError::Failed(message));
        }
        add(&mut whole, page);
        progress.line(|| format!("{} objects", whole.objects));
    }
    out.document(&whole, table)
}

/// Adds a page to those before it.
fn add(whole: &mut PlanPage, page: PlanPage) {
    whole.objects += page.objects;
    whole.changed += page.changed;
    whole.next = page.next;
    for deed in page.deeds {
        let key =
            |one: &DeedInfo| (one.change.clone(), one.stance.clone(), one.action.clone(), one.rule.clone());
        match whole.deeds.iter_mut().find(|one| key(one) == key(&deed)) {
            None => whole.deeds.push(deed),
            Some(sum) => {
                sum.objects += deed.objects;
                sum.bytes += deed.bytes;
                sum.moved_bytes += deed.moved_bytes;
                sum.examples.extend(deed.examples);
                sum.examples.truncate(PLAN_EXAMPLES);
            }
        }
    }
}

fn table(plan: &PlanPage) -> String {
    let mut text = String::new();
    if !plan.deeds.is_empty() {
        let rows: Vec<_> = plan.deeds.iter().map(row).collect();
        text += &columns(&["CHANGE", "STANCE", "ACTION", "RULE", "OBJECTS", "BYTES", "TO MOVE"], &rows);
        text += "\n";
    }
    for deed in &plan.deeds {
        for example in &deed.examples {
            text += &format!("{} {}: {}\n", deed.change, example.object, example.reason);
        }
    }
    if !plan.deeds.is_empty() {
        text += "\n";
    }
    if !plan.not_judged.is_empty() {
        let rule = |one: &crate::admin::NotJudged| format!("{} ({})", one.rule, one.asks.join(", "));
        let rules: Vec<_> = plan.not_judged.iter().map(rule).collect();
        text += &format!("Not to be judged before objects are read: {}.\n", rules.join(", "));
    }
    for one in &plan.deletions {
        let (files, size) = (one.files, ByteSize(one.bytes).human());
        text += &format!(
            "{} ({files} objects, {size}) is deleted at {} because rule {} keeps others.\n",
            one.objects, one.due, one.rule
        );
    }
    for one in &plan.superfluous {
        let (files, size, rule) = (one.files, ByteSize(one.bytes).human(), &one.rule);
        let then = match (one.is_deleted, Duration::from_secs(one.grace_seconds)) {
            (true, grace) => {
                format!("would go down, and be deleted after {}", grace.to_text())
            }
            (false, _) => "would go down".to_owned(),
        };
        text +=
            &format!("{} ({files} objects, {size}) {then}, because rule {rule} keeps others.\n", one.objects);
    }
    for one in &plan.impossible {
        text += &format!("{one}\n");
    }
    let (objects, changed) = (plan.objects, plan.changed);
    text + &format!("{changed} of {objects} objects would be treated otherwise.\n")
}

fn row(deed: &DeedInfo) -> Vec<String> {
    let size = |bytes| ByteSize(bytes).human();
    vec![
        deed.change.clone(),
        deed.stance.clone(),
        deed.action.clone(),
        deed.rule.clone(),
        deed.objects.to_string(),
        size(deed.bytes),
        size(deed.moved_bytes),
    ]
}

#[cfg(test)]
mod tests {
    use super::{add, table};
    use crate::admin::{DeedInfo, NotJudged, PlanExample, PlanPage};

    fn page(rule: &str, objects: u64) -> PlanPage {
        let example = PlanExample { object: "s3://b/k".into(), reason: "it is so".into() };
        let deed = DeedInfo {
            change: "starts".into(),
            stance: "act".into(),
            action: "promote".into(),
            rule: rule.into(),
            objects,
            bytes: objects << 20,
            moved_bytes: 0,
            examples: vec![example; 2],
        };
        PlanPage { objects: 10, changed: objects, deeds: vec![deed], ..PlanPage::default() }
    }

    #[test]
    fn pages_add_up_by_rule_and_action() {
        let mut whole = page("a", 2);
        whole.not_judged = vec![NotJudged { rule: "c".into(), asks: vec!["reads".into()] }];
        add(&mut whole, page("a", 3));
        add(&mut whole, page("b", 1));
        assert_eq!((whole.objects, whole.changed, whole.deeds.len()), (30, 6, 2));
        assert_eq!((whole.deeds[0].objects, whole.deeds[0].examples.len()), (5, 3));
        let text = table(&whole);
        assert!(text.contains("starts  act     promote  a     5        5.0 MiB  0 B"), "{text}");
        assert!(text.contains("starts s3://b/k: it is so\n"), "{text}");
        assert!(text.contains("Not to be judged before objects are read: c (reads).\n"), "{text}");
        assert!(text.ends_with("6 of 30 objects would be treated otherwise.\n"), "{text}");
    }
}
