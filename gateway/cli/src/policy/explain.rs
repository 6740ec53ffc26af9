//! The command `mlgw policy explain`.

use crate::client::Client;
use crate::object::ObjectUri;
use crate::output::{Out, columns, pairs};
use crate::{CliError, Global, discover, path_segment};
use mlgw_api::{ActionInfo, CachedBlocksInfo, CopyPolicy, Explanation, ExtentInfo, RuleEvaluationInfo};
use mlgw_common::ByteSize;

pub(super) async fn run(object: &ObjectUri, global: &Global, out: Out) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    let (bucket, key) = (path_segment(&object.bucket), path_segment(&object.key));
    let path = format!("/v1/policy/explain?bucket={bucket}&key={key}");
    out.document(&client.get::<Explanation>(&path).await?, show)
}

fn show(explanation: &Explanation) -> String {
    let object = &explanation.object;
    let tiers: Vec<_> = object.tiers.iter().map(|tier| tier.tier.name()).collect();
    let facts = explanation.facts.iter().map(|fact| format!("{} {}", fact.property, fact.value));
    let deletion = explanation.deletion.as_ref().map(|one| match &one.guard {
        None => format!("with its checkpoint at {}, rule {}", one.due, one.rule),
        Some(why) => format!("not deleted despite rule {}: {why}", one.rule),
    });
    let mut head = vec![
        ("object", format!("s3://{}/{}", object.bucket, object.key)),
        ("tiers", tiers.join(", ")),
        ("encoding", stored(&object.extents)),
        ("copies", explanation.kept.as_ref().map_or_else(|| "-".to_owned(), kept)),
        ("facts", facts.collect::<Vec<_>>().join(", ")),
        ("policy", format!("version {}", explanation.version)),
        ("reason", explanation.reason.clone()),
        ("recommended", recommended(explanation)),
    ];
    if let Some(deletion) = deletion {
        head.insert(4, ("deletion", deletion));
    }
    let head = pairs(&head);
    let mut actions: Vec<Vec<String>> = Vec::new();
    let row = |what: &str, one: &ActionInfo, note: String| {
        vec![what.to_owned(), one.action.to_string(), one.target.clone(), one.rule.clone(), note]
    };
    actions.extend(explanation.due.iter().map(|one| row("due", one, one.note.clone())));
    actions.extend(
        explanation
            .observed
            .iter()
            .map(|one| row("observed", one, "not carried out: stance observe".to_owned())),
    );
    actions.extend(explanation.overridden.iter().map(|lost| {
        let note = format!("{}: {} of rule {}", lost.why, lost.to_action, lost.to_rule);
        vec!["overridden".to_owned(), lost.action.to_string(), String::new(), lost.rule.clone(), note]
    }));
    actions.extend(explanation.scoped.iter().map(|one| {
        vec!["group".to_owned(), one.action.to_string(), one.of.clone(), one.rule.clone(), String::new()]
    }));
    let actions = match actions[..] {
        [] => String::new(),
        _ => columns(&["STATUS", "ACTION", "TARGET", "RULE", "NOTE"], &actions) + "\n",
    };
    let rules: Vec<_> = explanation.rules.iter().map(tried).collect();
    format!("{head}\n{actions}{}", columns(&["RULE", "PRIORITY", "MATCHED", "CONDITIONS", "SOURCE"], &rules))
}

/// Formats the encoding of an object, with its sizes before and after compression.
fn stored(extents: &[ExtentInfo]) -> String {
    let packed: Vec<_> = extents.iter().filter(|extent| extent.encoding != "raw").collect();
    let size = |bytes: fn(&ExtentInfo) -> u64| ByteSize(packed.iter().map(|one| bytes(one)).sum()).human();
    match packed.first() {
        None => "uncompressed".to_owned(),
        Some(one) => {
            format!("{}, {} as {}", one.encoding, size(|one| one.bytes), size(|one| one.stored_bytes))
        }
    }
}

fn kept(kept: &CachedBlocksInfo) -> String {
    let CachedBlocksInfo { blocks, kept, pinned, planned } = kept;
    format!("{kept} of {blocks} blocks cached, {pinned} pinned, {planned} planned")
}

fn recommended(explanation: &Explanation) -> String {
    let best = &explanation.recommendation;
    let copy = match best.cache {
        true if best.cache_policy == CopyPolicy::Lru => "cache by recency (LRU)".to_owned(),
        true => format!("cache with {} priority", best.cache_priority),
        false => "do not cache".to_owned(),
    };
    let ahead = match best.prefetch_depth {
        0 => format!("read ahead: {}", best.prefetch_strategy),
        depth => format!("read {depth} blocks ahead: {}", best.prefetch_strategy),
    };
    format!("{copy}, {ahead}, at most {}", ByteSize(best.prefetch_bytes).human())
}

/// Formats a tried rule: the conditions that held if it matched, or those that did not.
fn tried(rule: &RuleEvaluationInfo) -> Vec<String> {
    let conditions = rule.conditions.iter().filter(|one| one.held == rule.matched);
    let says: Vec<_> = conditions.map(|one| one.says.clone()).collect();
    let saw = match (rule.applies, rule.matched) {
        (false, _) => "framework not detected".to_owned(),
        (true, true) => says.join(", "),
        (true, false) => format!("false: {}", says.join(", ")),
    };
    let matched = if rule.matched { "yes" } else { "no" };
    vec![rule.rule.clone(), rule.priority.to_string(), matched.to_owned(), saw, rule.from.clone()]
}

#[cfg(test)]
mod tests {
    use super::tried;
    use mlgw_api::{ConditionResultInfo, RuleEvaluationInfo};

    #[test]
    fn a_rule_lists_the_conditions_that_held_or_those_that_did_not() {
        let seen = |held, says: &str| ConditionResultInfo { held, says: says.into() };
        let mut rule = RuleEvaluationInfo {
            rule: "r".into(),
            priority: 5,
            from: "p.yaml:3".into(),
            applies: true,
            matched: false,
            score: 0.5,
            conditions: vec![seen(true, "a is b (b)"), seen(false, "c is d (not known)")],
        };
        assert_eq!(tried(&rule), ["r", "5", "no", "false: c is d (not known)", "p.yaml:3"]);
        rule.matched = true;
        assert_eq!(tried(&rule)[3], "a is b (b)");
        rule.applies = false;
        assert_eq!(tried(&rule)[3], "framework not detected");
    }
}
