//! Checks of the answer to a request to join. Pure, except for a line in the log.
//!
//! The member that answers was authenticated by the authority in the token. Nevertheless every part is
//! compared with the others before any is stored: a node with a certificate that its peers refuse would not
//! notice it before its first start.

use crate::join_wire::{BadJoinMessage, JoinAnswer};
use mlgw_formats::schema::NodeRole;
use mlgw_store::node_file::{DirectoryRole, GivenIdentity};
use mlgw_trust::{
    AuthorityHash, CertifiedNode, CredentialsError, IssuedCertificate, JoinToken, NodeCredentials, NodeKey,
    Validity,
};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;
use zeroize::Zeroizing;

/// Reason to refuse an answer.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadJoinAnswer {
    /// It cannot be decoded.
    #[error(transparent)]
    Message(#[from] BadJoinMessage),
    /// The certificate is not one for the key of this node.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The certificate names another node than the answer.
    #[error("its certificate is of node {} of cluster {}", .0.node, .0.cluster)]
    Node(CertifiedNode),
    /// No authority in it is that of the token.
    #[error("none of its authorities is that of the join token")]
    Token,
    /// The first authority did not sign the certificate, or not for the stated time.
    #[error("its first authority did not sign its certificate: {0}")]
    Issuer(String),
}

/// An answer whose parts fit each other, the token and the key.
pub(crate) struct CheckedAnswer {
    pub(super) identity: GivenIdentity,
    pub(super) issued: IssuedCertificate,
    pub(super) authorities: Vec<CertificateDer<'static>>,
    pub(super) cluster_key: Zeroizing<String>,
}

/// True if the token is of one of the authorities.
pub(super) fn is_of_token(token: &JoinToken, authorities: &[CertificateDer<'_>]) -> bool {
    authorities.iter().any(|authority| AuthorityHash::of(authority) == token.authority())
}

/// Checks an answer to the request with `key` and `token`.
///
/// # Errors
/// See [`BadJoinAnswer`].
pub(super) fn check_answer(
    answer: JoinAnswer,
    key: &Arc<NodeKey>,
    token: &JoinToken,
) -> Result<CheckedAnswer, BadJoinAnswer> {
    let certificate = CertificateDer::from(answer.certificate);
    let authorities: Vec<CertificateDer<'static>> =
        answer.authorities.into_iter().map(CertificateDer::from).collect();
    let credentials =
        NodeCredentials::new(Arc::clone(key), certificate.clone(), answer.validity, authorities.clone())?;
    let node = CertifiedNode { cluster: answer.cluster, node: answer.node };
    if credentials.node() != node {
        return Err(BadJoinAnswer::Node(credentials.node()));
    }
    if !is_of_token(token, &authorities) {
        return Err(BadJoinAnswer::Token);
    }
    let issued = IssuedCertificate { node, certificate, validity: answer.validity };
    let signer = authorities.first().ok_or(CredentialsError::Authorities(0))?;
    check_issuer(&issued, signer).map_err(|error| BadJoinAnswer::Issuer(error.to_string()))?;
    tracing::info!(cluster = %node.cluster, node = %node.node, members = answer.members.len(), "admitted");
    let identity = GivenIdentity {
        cluster: answer.cluster,
        incarnation: answer.incarnation,
        earlier: answer.earlier,
        id: NonZeroU64::new(answer.node.0).ok_or(BadJoinAnswer::Node(node))?,
        role: directory_role(answer.role),
    };
    Ok(CheckedAnswer { identity, issued, authorities, cluster_key: answer.cluster_key })
}

/// Checks that `authority` signed a certificate, for at least the time that was stated.
fn check_issuer(issued: &IssuedCertificate, authority: &CertificateDer<'_>) -> Result<(), rustls::Error> {
    let general = |error: &dyn std::fmt::Display| rustls::Error::General(error.to_string());
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone())?;
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
    let verifier = verifier.map_err(|error| general(&error))?;
    let name = ServerName::try_from(issued.node.domain()).map_err(|error| general(&error))?;
    let Validity { not_before_ms, not_after_ms } = issued.validity;
    for at_ms in [not_before_ms, not_after_ms] {
        let at = Duration::from_millis(u64::try_from(at_ms).unwrap_or(0));
        let at = UnixTime::since_unix_epoch(at);
        verifier.verify_server_cert(&issued.certificate, &[], &name, &[], at)?;
    }
    Ok(())
}

/// Role in the record of a node.
pub(super) const fn recorded_role(role: DirectoryRole) -> NodeRole {
    match role {
        DirectoryRole::Storage => NodeRole::Storage,
        DirectoryRole::Gateway => NodeRole::Gateway,
    }
}

const fn directory_role(role: NodeRole) -> DirectoryRole {
    match role {
        NodeRole::Storage => DirectoryRole::Storage,
        NodeRole::Gateway => DirectoryRole::Gateway,
    }
}
