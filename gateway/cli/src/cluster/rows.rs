//! The comparisons of the rows that the nodes have, in `mlgw cluster status`.

use crate::output::counted;
use mlgw_api::{ClusterInfo, ClusterRowsInfo};
use std::collections::BTreeSet;

/// Describes the last comparisons: the groups whose rows differ, or that all are equal.
pub(super) fn line(cluster: &ClusterInfo) -> String {
    let Some(oldest) = cluster.rows.iter().map(|rows| &rows.compared).min() else {
        return "not compared since the start of this node".to_owned();
    };
    let differing: Vec<String> = cluster.rows.iter().filter_map(difference).collect();
    if !differing.is_empty() {
        return differing.join("; ");
    }
    let groups = counted(cluster.rows.len() as u64, "group");
    let without: BTreeSet<u64> = cluster.rows.iter().flat_map(|rows| &rows.without).copied().collect();
    let except = match without.len() {
        0 => String::new(),
        1 => format!(", without node {}", listed(&without)),
        _ => format!(", without nodes {}", listed(&without)),
    };
    format!("equal in {groups}{except}; compared at {oldest} or later")
}

/// Describes a group whose rows differ.
fn difference(rows: &ClusterRowsInfo) -> Option<String> {
    let (group, nodes) = (rows.group, listed(&rows.differing));
    match (rows.differing.is_empty(), rows.undecided) {
        (true, _) => None,
        (false, false) => Some(format!("those of group {group} differ on node {nodes} from most nodes")),
        (false, true) => Some(format!("those of group {group} differ on the nodes {nodes}")),
    }
}

fn listed<'a>(nodes: impl IntoIterator<Item = &'a u64>) -> String {
    nodes.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::tests::cluster;
    use super::line;
    use mlgw_api::{ClusterInfo, ClusterRowsInfo};

    fn rows(group: u32, second: u32, differing: &[u64], without: &[u64]) -> ClusterRowsInfo {
        ClusterRowsInfo {
            group,
            index: 120,
            compared: format!("2026-11-29T04:10:0{second}.000Z"),
            differing: differing.into(),
            undecided: differing.len() > 1,
            without: without.into(),
        }
    }

    #[test]
    fn the_rows_are_equal_differ_or_were_not_compared() {
        let of = |rows: Vec<ClusterRowsInfo>| line(&ClusterInfo { rows, ..cluster() });
        assert_eq!(of(vec![]), "not compared since the start of this node");
        let equal = |without: &[u64]| of(vec![rows(0, 5, &[], &[]), rows(1, 4, &[], without)]);
        assert_eq!(equal(&[]), "equal in 2 groups; compared at 2026-11-29T04:10:04.000Z or later");
        let without = "equal in 2 groups, without node 3; compared at 2026-11-29T04:10:04.000Z or later";
        assert_eq!(equal(&[3]), without);
        assert!(equal(&[2, 3]).starts_with("equal in 2 groups, without nodes 2, 3;"));
        let differing = of(vec![rows(0, 5, &[], &[]), rows(1, 4, &[3], &[]), rows(2, 4, &[1, 2], &[3])]);
        assert_eq!(
            differing,
            "those of group 1 differ on node 3 from most nodes; those of group 2 differ on the nodes 1, 2"
        );
    }
}
