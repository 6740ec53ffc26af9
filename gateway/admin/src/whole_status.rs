//! Status of the whole cluster: that of the responding node, with the figures and the findings of all nodes.
//!
//! Pure, except for the question to the other nodes. The health is that of the worst node. Nodes that see the
//! same state report the same finding; it is listed once.

use super::health::finding;
use super::node_parts::{ParsedPart, STATUS_PART, parts_of_others};
use super::signed::AdminCaller;
use axum::Extension;
use mlgw_api::{ClusterNodeReport, Health, HealthFinding, Status};
use mlgw_common::limits::NODE_STATUS_BYTES_MAX;
use mlgw_node::{ClusterNode, PartError};

/// Returns the status of the whole cluster. `own` is the part of this node.
pub(super) async fn whole_status(
    own: Status,
    cluster: Option<&ClusterNode>,
    caller: &Extension<AdminCaller>,
) -> Status {
    let Some(cluster) = cluster else { return own };
    let target = STATUS_PART.to_owned();
    let others = parts_of_others(Some(cluster), caller, target, NODE_STATUS_BYTES_MAX).await;
    merged(own, cluster.id().get(), others)
}

/// Adds the parts of the other nodes to the status of node `id`.
pub(super) fn merged(mut own: Status, id: u64, others: Vec<ParsedPart<Status>>) -> Status {
    let mut findings = own.findings.clone();
    let mut nodes = vec![ClusterNodeReport {
        node: id,
        name: own.node.clone(),
        own: true,
        silent: None,
        figures: Some(own.clone().into()),
    }];
    for other in others {
        findings.extend(findings_of(&other));
        nodes.push(report(other));
    }
    nodes.sort_by_key(|report| report.node);
    own.findings = once(findings);
    own.health = own.findings.first().map_or(Health::Ok, |worst| worst.severity);
    own.nodes = nodes;
    own
}

fn report(other: ParsedPart<Status>) -> ClusterNodeReport {
    let (silent, figures) = match other.part {
        Ok(status) => (None, Some(status.into())),
        Err(why) => (Some(why.to_string()), None),
    };
    ClusterNodeReport { node: other.node, name: other.name, own: false, silent, figures }
}

/// Returns the findings of another node. The probes already report a node that does not answer them.
fn findings_of(other: &ParsedPart<Status>) -> Vec<HealthFinding> {
    match &other.part {
        Ok(status) => status.findings.clone(),
        Err(PartError::Silent) => Vec::new(),
        Err(PartError::Failed(why)) => {
            let named = match other.name.as_str() {
                "" => format!("Node {}", other.node),
                name => format!("Node {} ({name})", other.node),
            };
            let advice = "Upgrade it if it runs an earlier version. Otherwise look into its log.";
            vec![finding(Health::Warning, format!("{named} gives no status: {why}."), advice)]
        }
    }
}

/// Returns each finding once, worst first.
fn once(findings: Vec<HealthFinding>) -> Vec<HealthFinding> {
    let mut distinct: Vec<HealthFinding> = Vec::new();
    for finding in findings {
        if !distinct.contains(&finding) {
            distinct.push(finding);
        }
    }
    distinct.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    distinct
}

#[cfg(test)]
mod tests {
    use super::merged;
    use crate::health::finding;
    use crate::node_parts::ParsedPart;
    use mlgw_api::{Health, Status};
    use mlgw_node::PartError;
    use mlgw_testing::sample_status::healthy;

    fn part(node: u64, part: Result<Status, PartError>) -> ParsedPart<Status> {
        ParsedPart { node, name: format!("n{node}"), part }
    }

    fn with_findings(severities: &[(Health, &str)]) -> Status {
        let found = severities.iter().map(|(severity, what)| finding(*severity, (*what).to_owned(), "a"));
        Status { findings: found.collect(), ..healthy() }
    }

    #[test]
    fn the_health_is_that_of_the_worst_node_and_each_finding_is_listed_once() {
        let own = with_findings(&[(Health::Warning, "shared")]);
        let other = with_findings(&[(Health::Critical, "full"), (Health::Warning, "shared")]);
        let whole = merged(own, 2, vec![part(1, Ok(other)), part(3, Ok(healthy()))]);
        assert_eq!(whole.health, Health::Critical);
        let found: Vec<&str> = whole.findings.iter().map(|finding| finding.what.as_str()).collect();
        assert_eq!(found, ["full", "shared"]);
        let nodes: Vec<_> = whole.nodes.iter().map(|report| (report.node, report.name.as_str())).collect();
        assert_eq!(nodes, [(1, "n1"), (2, "n"), (3, "n3")], "the responding node is one of them");
        let of = |at: usize| whole.nodes[at].figures.as_ref().map(|figures| figures.findings.len());
        assert_eq!([of(0), of(1), of(2)], [Some(2), Some(1), Some(0)]);
    }

    #[test]
    fn a_node_without_an_answer_is_listed_with_the_reason() {
        let late = PartError::Failed("it is late".into());
        let whole = merged(healthy(), 2, vec![part(1, Err(PartError::Silent)), part(3, Err(late))]);
        let silent: Vec<_> = whole.nodes.iter().map(|report| report.silent.as_deref()).collect();
        assert_eq!(silent, [Some("it does not answer"), None, Some("it is late")]);
        assert!(whole.nodes[0].figures.is_none());
        // The probes report node 1, also to this node.
        assert_eq!((whole.health, whole.findings.len()), (Health::Warning, 1));
        assert_eq!(whole.findings[0].what, "Node 3 (n3) gives no status: it is late.");
    }
}
