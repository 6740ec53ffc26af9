//! A member's side of a join: it checks the token, has the node admitted by the system group, and signs its
//! certificate.
//!
//! The token is checked before anything else of a request that can be decoded, and behind a barrier, so that
//! a stranger learns nothing about the cluster and puts nothing into its log. An unknown token and a wrong
//! secret get the same answer, whatever else is wrong. The decision is one command, so a power loss leaves
//! the node admitted or not. A repeated join with the same key and token gets the same id and a new
//! certificate.

use crate::authority::{AuthorityRowError, open_authority, signer_first, trusted_authorities};
use crate::join_wire::{BadJoinMessage, JOIN_MEMBERS_MAX, JoinAnswer, JoinMember, JoinRequest};
use bytes::Bytes;
use mlgw_common::{CheckedClock, Clock as _, NodeId, Timestamp};
use mlgw_credentials::Sealer;
use mlgw_formats::command::{AdmitNode, Reject};
use mlgw_formats::schema::{JoinTokenRecord, Node, NodeRole};
use mlgw_metadata::{BarrierScope, Catalogue, ProposeError};
use mlgw_store::node_file::NodeDescription;
use mlgw_transport::{BadPeerAddress, PeerAddress, ServiceRefusal};
use mlgw_trust::{
    BadCertificateRequest, CertificateRequest, CertifiedNode, ClusterAuthority, PublicKeyHash, StoredToken,
    TokenId, TokenRefusal, TokenUse, judge_token,
};
use rustls::pki_types::CertificateDer;
use std::net::SocketAddr;
use std::path::PathBuf;
use tokio::task::spawn_blocking;
use zeroize::Zeroizing;

/// Code of a refusal. Numbers are part of the protocol and are never used again with another meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum JoinRefusalCode {
    /// The request cannot be decoded.
    Malformed = 1,
    /// There is no such token, or its secret is another one.
    TokenNotValid = 2,
    /// The token is too old.
    TokenExpired = 3,
    /// Another node used the token.
    TokenUsed = 4,
    /// The certificate request or a fact about the node is not valid.
    Field = 5,
    /// The node was removed.
    NodeRemoved = 6,
    /// Another node has the key.
    KeyInUse = 7,
    /// The build of the node is too old.
    NodeTooOld = 8,
    /// The cluster has as many nodes as it can have.
    TooManyNodes = 9,
    /// The cluster does not decide now; the request may be repeated.
    TryAgain = 10,
    /// This member cannot admit nodes.
    Failed = 11,
}

/// Refusal of a request to join. The texts up to [`Self::Token`] are for strangers.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JoinRefusal {
    /// The request cannot be decoded.
    #[error("the request to join: {0}")]
    Request(#[from] BadJoinMessage),
    /// The token was not checked. The reason is for the log of this member.
    #[error("this member cannot check join tokens now: repeat the command, or ask another member")]
    Unchecked(String),
    /// The token does not admit the node.
    #[error(transparent)]
    Token(#[from] TokenRefusal),
    /// The node does not prove that it has its key.
    #[error(transparent)]
    CertificateRequest(#[from] BadCertificateRequest),
    /// The address of the node cannot be dialed.
    #[error("the address of the node: {0}; set cluster.address of the node")]
    Address(#[from] BadPeerAddress),
    /// The role of the node is not one of this version.
    #[error("role {0} is unknown here: upgrade the members of the cluster first")]
    Role(i32),
    /// A text has control characters.
    #[error("the {0} of the node has a control character: use another one")]
    Text(&'static str),
    /// The cluster does not admit the node.
    #[error("{0}")]
    Rejected(Reject),
    /// The cluster does not decide now.
    #[error("the cluster cannot admit a node now ({0}): repeat the command")]
    Undecided(ProposeError),
    /// This member cannot sign certificates.
    #[error("this member cannot admit nodes ({0}): ask another member")]
    Unable(String),
}

impl JoinRefusal {
    /// The code.
    pub(crate) const fn code(&self) -> JoinRefusalCode {
        match self {
            Self::Request(_) => JoinRefusalCode::Malformed,
            Self::Token(TokenRefusal::Unknown) => JoinRefusalCode::TokenNotValid,
            Self::Token(TokenRefusal::Expired) => JoinRefusalCode::TokenExpired,
            Self::Token(TokenRefusal::Used) => JoinRefusalCode::TokenUsed,
            Self::CertificateRequest(_) | Self::Address(_) | Self::Role(_) | Self::Text(_) => {
                JoinRefusalCode::Field
            }
            Self::Rejected(Reject::NodeRemoved { .. }) => JoinRefusalCode::NodeRemoved,
            Self::Rejected(Reject::NodeKeyInUse { .. }) => JoinRefusalCode::KeyInUse,
            Self::Rejected(Reject::NodeTooOld { .. }) => JoinRefusalCode::NodeTooOld,
            Self::Rejected(Reject::TooManyNodes) => JoinRefusalCode::TooManyNodes,
            Self::Unchecked(_) | Self::Undecided(_) => JoinRefusalCode::TryAgain,
            Self::Rejected(_) | Self::Unable(_) => JoinRefusalCode::Failed,
        }
    }

    /// The refusal for an error of the proposal. Between the check of the token and the command another node
    /// may have used it.
    fn of_proposal(error: ProposeError) -> Self {
        match error {
            ProposeError::Rejected(Reject::NoSuchJoinToken | Reject::WrongJoinSecret) => {
                Self::Token(TokenRefusal::Unknown)
            }
            ProposeError::Rejected(Reject::JoinTokenExpired) => Self::Token(TokenRefusal::Expired),
            ProposeError::Rejected(Reject::JoinTokenUsed { .. }) => Self::Token(TokenRefusal::Used),
            ProposeError::Rejected(reject) => Self::Rejected(reject),
            ProposeError::Overloaded
            | ProposeError::NotLeader { .. }
            | ProposeError::UnknownOutcome
            | ProposeError::Stopping => Self::Undecided(error),
            ProposeError::NotFinalized { .. } => Self::Unable(error.to_string()),
        }
    }

    fn log(&self, from: SocketAddr) {
        let code = self.code() as u32;
        let cause = if let Self::Unchecked(cause) = self { cause.as_str() } else { "" };
        tracing::warn!(%from, code, refusal = %self, cause, "a node is not admitted");
    }
}

impl From<AuthorityRowError> for JoinRefusal {
    fn from(error: AuthorityRowError) -> Self {
        Self::Unable(error.to_string())
    }
}

impl From<JoinRefusal> for ServiceRefusal {
    fn from(refusal: JoinRefusal) -> Self {
        Self { code: refusal.code() as u32, message: refusal.to_string() }
    }
}

/// Admits nodes into the cluster of this member.
pub(crate) struct Admission {
    catalogue: Catalogue,
    sealer: Sealer,
    dir: PathBuf,
    description: NodeDescription,
    clock: CheckedClock,
}

/// Secrets with which this member answers.
struct MemberSecrets {
    authority: ClusterAuthority,
    /// Certificates of all authorities, that of `authority` first.
    authorities: Vec<CertificateDer<'static>>,
    cluster_key: Zeroizing<String>,
}

/// Id of a node that is not admitted yet.
const NOT_ADMITTED: NodeId = NodeId(0);

/// A node that was admitted.
struct AdmittedNode {
    record: Node,
    answer: JoinAnswer,
}

impl Admission {
    /// Admits nodes with the rows of `catalogue` and the key in the data directory `dir`.
    pub(crate) fn new(
        catalogue: Catalogue,
        sealer: Sealer,
        dir: PathBuf,
        description: NodeDescription,
        clock: CheckedClock,
    ) -> Self {
        Self { catalogue, sealer, dir, description, clock }
    }

    /// Answers the request to join of a node at `from`.
    ///
    /// # Errors
    /// The refusal; its code is one of [`JoinRefusalCode`].
    pub(crate) async fn admit(&self, from: SocketAddr, body: Bytes) -> Result<Bytes, ServiceRefusal> {
        match self.decide(&body).await {
            Ok(AdmittedNode { record, answer }) => {
                let (node, role) = (record.id, record.role());
                let (name, address) = (record.name.as_str(), record.address.as_str());
                tracing::info!(%from, node, ?role, name, address, "a node is admitted to the cluster");
                Ok(answer.encode())
            }
            Err(refusal) => {
                refusal.log(from);
                Err(refusal.into())
            }
        }
    }

    async fn decide(&self, body: &[u8]) -> Result<AdmittedNode, JoinRefusal> {
        let request = JoinRequest::decode(body)?;
        let verified = CertificateRequest::decode(&request.certificate_request);
        let key = verified.as_ref().ok().map(CertificateRequest::public_hash);
        let secret_hash = self.authenticate(&request, key).await?;
        let certificate_request = verified?;
        let role = check_facts(&request)?;
        // The certificate would begin and end at other times, and an expired token might have been accepted.
        if let Some(skew_ms) = self.clock.refused_skew_ms() {
            return Err(JoinRefusal::Unable(format!("its clock deviates by {skew_ms} ms")));
        }
        // A member that cannot sign must not use up the token.
        self.secrets(NOT_ADMITTED).await?;
        let command = AdmitNode {
            token: request.token.0,
            secret_hash: secret_hash.to_vec(),
            key_hash: certificate_request.public_hash().0.to_vec(),
            name: request.name,
            address: request.address,
            role: role as i32,
            cluster_version: request.cluster_version,
            build: request.build,
            ..AdmitNode::default()
        };
        let record = self.catalogue.admit_node(command).await.map_err(JoinRefusal::of_proposal)?;
        // An authority that was recorded before the node is among those that it gets. One that is recorded
        // later waits for its report.
        let secrets = self.secrets(record.node_id()).await?;
        let answer = self.answer(&record, &certificate_request, secrets)?;
        Ok(AdmittedNode { record, answer })
    }

    /// Checks the token of a request, and returns the hash of its secret. `key` is the key of the request,
    /// unless that is not valid.
    async fn authenticate(
        &self,
        request: &JoinRequest,
        key: Option<PublicKeyHash>,
    ) -> Result<[u8; 32], JoinRefusal> {
        let barrier = self.catalogue.barrier(BarrierScope::System).await;
        barrier.map_err(|error| JoinRefusal::Unchecked(error.to_string()))?;
        let record = self.catalogue.join_token(request.token.0);
        let record = record.map_err(|error| JoinRefusal::Unchecked(error.to_string()))?;
        let stored = record.as_ref().and_then(stored_token);
        // No key has this hash.
        let key = key.unwrap_or(PublicKeyHash([0; 32]));
        judge_token(stored.as_ref(), &request.secret, key, self.clock.now())?;
        let stored = stored.ok_or(TokenRefusal::Unknown)?;
        Ok(stored.secret_hash)
    }

    /// Opens the authority that signs certificates of `node`, and reads the key of the cluster.
    async fn secrets(&self, node: NodeId) -> Result<MemberSecrets, JoinRefusal> {
        let (catalogue, sealer) = (self.catalogue.clone(), self.sealer.clone());
        let named = CertifiedNode { cluster: self.description.cluster, node };
        let dir = self.dir.clone();
        let opened = spawn_blocking(move || -> Result<MemberSecrets, JoinRefusal> {
            let authority = open_authority(&catalogue, &sealer, named)?;
            let authority =
                authority.ok_or_else(|| JoinRefusal::Unable("the cluster has no authority".to_owned()))?;
            let authorities = signer_first(authority.certificate(), trusted_authorities(&catalogue)?);
            let cluster_key =
                Sealer::export_key(&dir).map_err(|error| JoinRefusal::Unable(error.to_string()))?;
            Ok(MemberSecrets { authority, authorities, cluster_key })
        });
        opened.await.unwrap_or_else(|error| Err(JoinRefusal::Unable(error.to_string())))
    }

    /// Signs the certificate of an admitted node, and describes the cluster to it.
    fn answer(
        &self,
        record: &Node,
        request: &CertificateRequest,
        secrets: MemberSecrets,
    ) -> Result<JoinAnswer, JoinRefusal> {
        let signed = secrets.authority.sign(request, record.node_id(), self.clock.now());
        let issued = signed.map_err(|error| JoinRefusal::Unable(error.to_string()))?;
        Ok(JoinAnswer {
            cluster: self.description.cluster,
            incarnation: self.description.incarnation,
            earlier: self.description.earlier.clone(),
            node: record.node_id(),
            role: record.role(),
            certificate: issued.certificate.to_vec(),
            validity: issued.validity,
            authorities: secrets.authorities.iter().map(|authority| authority.to_vec()).collect(),
            cluster_key: secrets.cluster_key,
            members: self.members(record.node_id()),
        })
    }

    /// Members that `joined` may dial.
    fn members(&self, joined: NodeId) -> Vec<JoinMember> {
        let nodes = self.catalogue.nodes();
        let members = nodes.iter().filter(|node| node.is_staying() && node.node_id() != joined);
        let members = members.filter_map(|node| {
            Some(JoinMember { node: node.node_id(), address: node.address.parse().ok()? })
        });
        members.take(JOIN_MEMBERS_MAX).collect()
    }
}

/// Checks what a node states about itself, and returns its role.
fn check_facts(request: &JoinRequest) -> Result<NodeRole, JoinRefusal> {
    request.address.parse::<PeerAddress>()?;
    for (field, text) in [("name", &request.name), ("build", &request.build)] {
        if text.chars().any(char::is_control) {
            return Err(JoinRefusal::Text(field));
        }
    }
    NodeRole::try_from(request.role).map_err(|_| JoinRefusal::Role(request.role))
}

/// The token in a record; `None` if the record is not valid.
fn stored_token(record: &JoinTokenRecord) -> Option<StoredToken> {
    let hash = |bytes: &[u8]| <[u8; 32]>::try_from(bytes).ok();
    let used = match record.node {
        0 => None,
        node => Some(TokenUse { key: PublicKeyHash(hash(&record.key_hash)?), node: NodeId(node) }),
    };
    Some(StoredToken {
        id: TokenId(record.id),
        secret_hash: hash(&record.secret_hash)?,
        expires: Timestamp(record.expires_ms),
        used,
    })
}

#[cfg(test)]
pub(crate) mod tests;
