//! The nodes of a cluster in the output of `status` and `top`: tables with the node of each row, and the
//! nodes that give no answer. Pure.

use super::figures::{age, byte_rate, rate, time};
use super::load::{IntervalLoad, ReportedLoad};
use super::output::TextTable;
use mlgw_api::{ClusterNodeReport, HealthFinding, ReportedFigures, Status};
use mlgw_common::ByteSize;

/// Number of nodes that a finding names.
const NAMED_MAX: usize = 8;

/// Returns the figures of the nodes that have answered, by id.
pub(super) fn answered(nodes: &[ClusterNodeReport]) -> impl Iterator<Item = (u64, &ReportedFigures)> {
    nodes.iter().filter_map(|report| Some((report.node, report.figures.as_ref()?)))
}

/// Returns one table of the tables of several nodes, which have the same columns. Each row begins with its
/// node.
pub(super) fn with_nodes(tables: impl IntoIterator<Item = (u64, TextTable)>) -> TextTable {
    let mut whole = TextTable { head: vec!["NODE"], rows: Vec::new() };
    for (node, table) in tables {
        if whole.head.len() == 1 {
            whole.head.extend(table.head);
        }
        let labelled =
            |row: Vec<String>| -> Vec<String> { std::iter::once(node.to_string()).chain(row).collect() };
        whole.rows.extend(table.rows.into_iter().map(labelled));
    }
    whole
}

/// Returns a table of all nodes with their load. A node that gives no answer has the reason instead.
pub(super) fn nodes_table(loads: &[ReportedLoad<'_>]) -> TextTable {
    let head = vec![
        "NODE",
        "NAME",
        "STATE",
        "UP",
        "PER SECOND",
        "FAILED",
        "REFUSED",
        "P99",
        "IN",
        "OUT",
        "CPU",
        "MEMORY",
        "CONNECTIONS",
    ];
    let row = |ReportedLoad { report, load }: &ReportedLoad<'_>| {
        let mut row = vec![report.node.to_string(), report.name.clone()];
        match (&report.figures, load) {
            (Some(figures), Some(load)) => row.extend(load_cells(figures, load)),
            _ => {
                let why = report.silent.as_deref().unwrap_or("for an unknown reason");
                row.push(format!("no answer: {why}"));
            }
        }
        row
    };
    TextTable { head, rows: loads.iter().map(row).collect() }
}

fn load_cells(figures: &ReportedFigures, load: &IntervalLoad) -> [String; 11] {
    let total = load.total();
    let cpu =
        load.cpu_seconds.map_or_else(|| "-".to_owned(), |cpu| format!("{:.0} %", 100.0 * cpu / load.seconds));
    [
        figures.state.to_string(),
        age(figures.uptime_seconds),
        rate(total.requests, load.seconds),
        total.errors.to_string(),
        total.refused.to_string(),
        time(total.p99_seconds),
        byte_rate(total.bytes_in, load.seconds),
        byte_rate(total.bytes_out, load.seconds),
        cpu,
        ByteSize(figures.process.resident_bytes).human(),
        figures.s3.connections.to_string(),
    ]
}

/// Returns the findings of a status, each with the nodes that report it.
pub(super) fn named_findings(status: &Status) -> Vec<HealthFinding> {
    status.findings.iter().map(|finding| named(finding, &status.nodes)).collect()
}

fn named(finding: &HealthFinding, nodes: &[ClusterNodeReport]) -> HealthFinding {
    let reports = answered(nodes).filter(|(_, figures)| figures.findings.contains(finding));
    let ids: Vec<String> = reports.map(|(node, _)| node.to_string()).collect();
    let label = match ids.as_slice() {
        [] => return finding.clone(),
        [node] => format!("node {node}"),
        several if several.len() <= NAMED_MAX => format!("nodes {}", several.join(", ")),
        many => format!("nodes {} and {} others", many[..NAMED_MAX].join(", "), many.len() - NAMED_MAX),
    };
    HealthFinding { what: format!("{label}: {}", finding.what), ..finding.clone() }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{named_findings, nodes_table};
    use crate::load::IntervalLoad;
    use mlgw_api::{ClusterNodeReport, Health, HealthFinding, Status};
    use mlgw_testing::sample_status::healthy;

    /// Returns a status with two nodes that answer and a third one that does not.
    pub(crate) fn of_three() -> Status {
        let mut status = healthy();
        let report = |node, own| ClusterNodeReport {
            node,
            name: format!("n{node}"),
            own,
            silent: None,
            figures: Some(healthy().into()),
        };
        let silent = ClusterNodeReport {
            silent: Some("it does not answer".into()),
            figures: None,
            ..report(3, false)
        };
        status.nodes = vec![report(1, true), report(2, false), silent];
        status
    }

    #[test]
    fn a_finding_names_the_nodes_that_report_it() {
        let finding =
            |what: &str| HealthFinding { severity: Health::Warning, what: what.into(), advice: "a".into() };
        let mut status = of_three();
        let report = |status: &mut Status, at: usize, what: &str| {
            status.nodes[at].figures.as_mut().unwrap().findings.push(finding(what));
        };
        report(&mut status, 0, "Node 3 does not answer.");
        report(&mut status, 1, "Node 3 does not answer.");
        report(&mut status, 1, "Full.");
        status.findings = ["Node 3 does not answer.", "Full.", "Odd."].map(finding).to_vec();
        let what: Vec<String> = named_findings(&status).into_iter().map(|finding| finding.what).collect();
        assert_eq!(what, ["nodes 1, 2: Node 3 does not answer.", "node 2: Full.", "Odd."]);
    }

    #[test]
    fn a_node_without_an_answer_has_the_reason() {
        let status = of_three();
        let text = nodes_table(&IntervalLoad::of_nodes(&status.nodes, None)).to_string();
        let rows: Vec<&str> = text.lines().collect();
        assert!(rows[1].starts_with("1     n1    ready") && rows[1].contains(" 1000 "), "{text}");
        assert!(rows[3].starts_with("3     n3    no answer: it does not answer"), "{text}");
    }
}
