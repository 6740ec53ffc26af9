//! The command `mlgw policy decisions`.

use crate::client::Client;
use crate::output::{Out, columns};
use crate::server_name::ServerName;
use crate::word_arg::word_of;
use crate::{CliError, Global, discover, path_segment};
use clap::Args;
use mlgw_api::{DecisionAction, DecisionInfo, DecisionList};
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
    let rows: Vec<_> = list.decisions.iter().map(row).collect();
    columns(&["TIME", "KIND", "SUBJECT", "FROM", "TO", "BYTES", "REASON", "OUTCOME"], &rows)
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
    use super::row;
    use mlgw_api::{DecisionAction, DecisionInfo, DecisionLocation, DecisionResult, DecisionTrigger};

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
