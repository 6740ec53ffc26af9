//! The command `mlgw policy decisions`.

use crate::client::Client;
use crate::output::{Out, columns, text_line};
use crate::server_name::ServerName;
use crate::word_arg::word_of;
use crate::{CliError, Global, discover, path_segment};
use clap::Args;
use mlgw_api::{DecisionAction, DecisionInfo, DecisionList, SilentNode};
use mlgw_common::ByteSize;

#[derive(Debug, Args)]
pub struct DecisionsArgs {
    /// Maximum number of decisions.
    #[arg(long, default_value_t = 100, value_name = "N")]
    limit: u32,
    /// Show only this kind.
    #[arg(long, value_parser = word_of(DecisionAction::ALL, DecisionAction::name))]
    kind: Option<DecisionAction>,
    /// Show only objects of this bucket. Decisions on whole segments are omitted.
    #[arg(long, add = ServerName::Bucket)]
    bucket: Option<String>,
}

pub(super) async fn run(args: DecisionsArgs, global: &Global, out: Out) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    let mut path = format!("/v1/decisions?limit={}", args.limit);
    path.extend(args.kind.map(|kind| format!("&kind={kind}")));
    path.extend(args.bucket.map(|bucket| format!("&bucket={}", path_segment(&bucket))));
    out.document(&client.get::<DecisionList>(&path).await?, list)
}

fn list(list: &DecisionList) -> String {
    let head = ["TIME", "KIND", "SUBJECT", "FROM", "TO", "BYTES", "REASON", "OUTCOME"];
    let is_clustered = !list.silent.is_empty() || list.decisions.iter().any(|of| of.node.is_some());
    if !is_clustered {
        return columns(&head, &list.decisions.iter().map(row).collect::<Vec<_>>());
    }
    let node = |of: &DecisionInfo| of.node.map_or_else(|| "-".to_owned(), |node| node.to_string());
    let with_node = |of: &DecisionInfo| [vec![node(of)], row(of)].concat();
    let rows: Vec<_> = list.decisions.iter().map(with_node).collect();
    let silent =
        |of: &SilentNode| text_line(&format!("node {} {}: no answer: {}", of.node, of.name, of.reason));
    let silent: String = list.silent.iter().map(silent).collect();
    columns(&[&["NODE"][..], &head].concat(), &rows) + &silent
}

fn row(decision: &DecisionInfo) -> Vec<String> {
    let reason = match (decision.job, &decision.rule) {
        (Some(job), _) => format!("{} {job}", decision.reason),
        (None, Some(rule)) => format!("{} {rule}", decision.reason),
        (None, None) => decision.reason.to_string(),
    };
    let outcome = match &decision.error {
        Some(error) => format!("{}: {error}", decision.outcome),
        None => decision.outcome.to_string(),
    };
    vec![
        decision.time.clone(),
        decision.kind.to_string(),
        what(decision),
        decision.from.to_string(),
        decision.to.to_string(),
        ByteSize(decision.bytes).human(),
        reason,
        outcome,
    ]
}

/// Formats the segment or the objects. Several equal decisions are shown by the first object and their count.
fn what(decision: &DecisionInfo) -> String {
    let times = if decision.count == 1 { String::new() } else { format!(" x{}", decision.count) };
    match (decision.segment, &decision.bucket) {
        (Some(segment), _) => format!("segment {segment}{times}"),
        (None, Some(bucket)) => {
            format!("s3://{bucket}/{}{times}", decision.key.as_deref().unwrap_or_default())
        }
        (None, None) => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{list, row};
    use mlgw_api::{
        DecisionAction, DecisionInfo, DecisionList, DecisionLocation, DecisionResult, DecisionTrigger,
        SilentNode,
    };

    #[test]
    fn a_list_of_a_cluster_names_the_nodes() {
        let decision =
            DecisionInfo { time: "T".into(), segment: Some(9), count: 1, ..DecisionInfo::default() };
        let alone = DecisionList { decisions: vec![decision.clone()], silent: vec![] };
        assert!(list(&alone).starts_with("TIME"), "{}", list(&alone));
        let decisions = vec![DecisionInfo { node: Some(2), ..decision }];
        let silent = vec![SilentNode { node: 3, name: "n3".into(), reason: "it does not answer".into() }];
        let text = list(&DecisionList { decisions, silent });
        assert!(text.starts_with("NODE  TIME") && text.contains("\n2     T"), "{text}");
        assert!(text.ends_with("\nnode 3 n3: no answer: it does not answer\n"), "{text}");
    }

    #[test]
    fn a_row_has_the_object_and_the_reason() {
        let decision = DecisionInfo {
            time: "T".into(),
            kind: DecisionAction::Keep,
            bucket: Some("lake".into()),
            key: Some("a/b".into()),
            count: 3,
            from: DecisionLocation::Origin,
            to: DecisionLocation::Copies,
            bytes: 3 << 20,
            reason: DecisionTrigger::Job,
            job: Some(7),
            outcome: DecisionResult::NoRoom,
            ..DecisionInfo::default()
        };
        let expected = ["T", "keep", "s3://lake/a/b x3", "origin", "copies", "3.0 MiB", "job 7", "no_room"];
        assert_eq!(row(&decision), expected);
        let failed = DecisionInfo {
            segment: Some(9),
            count: 1,
            outcome: DecisionResult::Failed,
            error: Some("no such disk".into()),
            ..DecisionInfo::default()
        };
        assert_eq!(row(&failed)[2], "segment 9");
        assert_eq!(row(&failed)[7], "failed: no such disk");
    }
}
