//! The version of a cluster and the progress of an upgrade, and settings that differ between nodes.

use super::authority::named;
use mlgw_api::ClusterInfo;

/// Describes the version of the cluster, and the nodes that an upgrade waits for.
pub(super) fn version(cluster: &ClusterInfo) -> String {
    let version = cluster.cluster_version;
    let Some(upgrade) = &cluster.upgrade else { return version.to_string() };
    match upgrade.without.is_empty() {
        true => format!("{version}; being raised to {}", upgrade.version),
        false => {
            let nodes = named(cluster, &upgrade.without);
            format!("{version}; {} when {nodes} has been upgraded", upgrade.version)
        }
    }
}

/// Names the nodes with settings that differ from those of most nodes. Findings name the settings.
pub(super) fn settings(cluster: &ClusterInfo) -> String {
    let differing = cluster.nodes.iter().filter(|node| !node.differing_settings.is_empty());
    let nodes: Vec<String> = differing.map(|node| format!("node {}", node.id)).collect();
    match nodes.is_empty() {
        true => "equal where they should be".to_owned(),
        false => format!("other ones on {}", nodes.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::cluster;
    use super::{settings, version};
    use mlgw_api::{ClusterInfo, ClusterUpgradeInfo};

    #[test]
    fn an_upgrade_names_the_nodes_that_it_waits_for() {
        let shown = |without: &[u64]| {
            let upgrade = Some(ClusterUpgradeInfo { version: 3, without: without.to_vec() });
            let mut cluster = ClusterInfo { upgrade, ..cluster() };
            cluster.nodes[1].reachable = Some(false);
            version(&cluster)
        };
        assert_eq!(version(&cluster()), "2");
        assert_eq!(shown(&[1]), "2; 3 when node 1 has been upgraded");
        let both = "2; 3 when each of node 1, node 2 (it does not answer) has been upgraded";
        assert_eq!(shown(&[1, 2]), both);
        assert_eq!(shown(&[]), "2; being raised to 3");
    }

    #[test]
    fn nodes_with_other_settings_are_named() {
        let mut cluster = cluster();
        assert_eq!(settings(&cluster), "equal where they should be");
        cluster.nodes[1].differing_settings = vec!["s3.region".into()];
        assert_eq!(settings(&cluster), "other ones on node 2");
    }
}
