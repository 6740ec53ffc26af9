//! Configuration of a transport.

use crate::address::{AddressBook, PeerAddress};
use crate::handshake::WireVersions;
use mlgw_common::{ClusterId, NodeId};
use mlgw_trust::{NodeCredentials, NodeStart, PeerStarts};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Description of this node, with which a transport starts.
#[derive(Debug)]
pub struct TransportConfig {
    /// The cluster.
    pub cluster: ClusterId,
    /// This node.
    pub node: NodeId,
    /// Its start.
    pub start: NodeStart,
    /// Address under which the others dial this node.
    pub address: PeerAddress,
    /// Wire versions that it supports: [`WireVersions::OWN`].
    pub versions: WireVersions,
    /// Its key and certificate, and the authorities that it trusts.
    pub credentials: NodeCredentials,
    /// Starts of the other nodes, on disk.
    pub starts: Arc<PeerStarts>,
    /// Addresses of the other nodes.
    pub book: AddressBook,
    /// Ids that are refused for ever.
    pub removed: BTreeSet<NodeId>,
}

/// Error of a configuration with which no transport can start.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TransportError {
    /// The certificate is of another node.
    #[error(
        "the certificate is of node {certified} of cluster {in_cluster}, and this is node {node} of \
             {cluster}: restore the folder of the cluster, or let the node join again"
    )]
    Certificate {
        /// Node in the certificate.
        certified: NodeId,
        /// Cluster in the certificate.
        in_cluster: ClusterId,
        /// This node.
        node: NodeId,
        /// Its cluster.
        cluster: ClusterId,
    },
    /// The certificate, the key or an authority cannot be used.
    #[error("TLS between nodes: {0}")]
    Tls(#[from] rustls::Error),
}

/// Checks that credentials are of this node.
///
/// # Errors
/// [`TransportError::Certificate`].
pub(crate) fn check_credentials(
    credentials: &NodeCredentials,
    node: NodeId,
    cluster: ClusterId,
) -> Result<(), TransportError> {
    let certified = credentials.node();
    if (certified.node, certified.cluster) != (node, cluster) {
        let (certified, in_cluster) = (certified.node, certified.cluster);
        return Err(TransportError::Certificate { certified, in_cluster, node, cluster });
    }
    Ok(())
}
