//! The command `mlgw cluster rotate-ca`, and the progress of the replacement of the authority.

use super::CLUSTER;
use crate::client::Client;
use crate::output::Out;
use crate::{CliError, Global, discover};
use http::Method;
use mlgw_api::{ClusterAuthorityChange, ClusterInfo, ClusterNodeInfo};

/// Printed when a replacement has begun.
pub(super) const BEGUN: &str = "The nodes replace the authority of the cluster and their certificates \
                                automatically. `mlgw cluster status` shows the progress, and which nodes it \
                                waits for.";

/// Begins to replace the authority of the cluster.
///
/// # Errors
/// If a node is too old; see [`CliError`].
pub async fn rotate_ca(global: &Global, out: Out) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    let path = format!("{CLUSTER}/authority/rotate");
    let change: ClusterAuthorityChange = client.call(Method::POST, &path, None::<&()>).await?;
    out.done(&change, BEGUN)
}

/// Describes the authority of the cluster.
pub(super) fn line(cluster: &ClusterInfo) -> String {
    let Some(change) = &cluster.authority_change else { return "one, in use by every node".to_owned() };
    match (change.without_trust.is_empty(), change.without_certificate.is_empty()) {
        (false, _) => {
            let nodes = named(cluster, &change.without_trust);
            format!("being replaced; waits until {nodes} trusts the new one")
        }
        (true, false) => {
            let nodes = named(cluster, &change.without_certificate);
            format!("being replaced; waits until {nodes} has a certificate of the new one")
        }
        (true, true) => "being replaced; the old one is being removed".to_owned(),
    }
}

/// Names nodes, and whether they answer.
pub(super) fn named(cluster: &ClusterInfo, ids: &[u64]) -> String {
    let is_down = |id: u64| {
        let found = cluster.nodes.iter().find(|node: &&ClusterNodeInfo| node.id == id);
        found.is_some_and(|node| !node.own && node.reachable == Some(false))
    };
    let name = |id: &u64| match is_down(*id) {
        true => format!("node {id} (it does not answer)"),
        false => format!("node {id}"),
    };
    let names: Vec<String> = ids.iter().map(name).collect();
    match names.len() {
        1 => names.concat(),
        _ => format!("each of {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::cluster;
    use super::line;
    use mlgw_api::{ClusterAuthorityChange, ClusterInfo};

    fn shown(without_trust: &[u64], without_certificate: &[u64]) -> String {
        let change = ClusterAuthorityChange {
            authority: 2,
            without_trust: without_trust.to_vec(),
            without_certificate: without_certificate.to_vec(),
        };
        let mut cluster = ClusterInfo { authority_change: Some(change), ..cluster() };
        cluster.nodes[1].reachable = Some(false);
        line(&cluster)
    }

    #[test]
    fn the_nodes_that_a_replacement_waits_for_are_named() {
        assert_eq!(line(&cluster()), "one, in use by every node");
        let down = "being replaced; waits until node 2 (it does not answer) trusts the new one";
        assert_eq!(shown(&[2], &[1, 2]), down);
        let both = shown(&[], &[1, 2]);
        assert!(both.contains("each of node 1, node 2 (it does not answer) has a certificate"), "{both}");
        assert_eq!(shown(&[], &[]), "being replaced; the old one is being removed");
    }
}
