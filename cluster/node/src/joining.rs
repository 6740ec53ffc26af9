//! The side of a new node in a join: `mlgw cluster join`.
//!
//! The order makes a power loss harmless: the key of the node is stored first, then the cluster is asked,
//! then the certificate and the empty list of starts are stored, and `node.json` last. Until then the
//! directory is without data, and the same command with the same token gets the same id, because the cluster
//! recognizes the key. Afterwards the directory is that of the node, and the command succeeds without a
//! request.
//!
//! The directory is locked and checked before the request, so that a token is not used up for a directory
//! that is refused. Nothing of an answer is stored before all of it is checked.

mod answer;

use crate::admission::JoinRefusalCode;
use crate::join_wire::{JoinAnswer, JoinRequest};
use answer::{BadJoinAnswer, CheckedAnswer, check_answer, is_of_token, recorded_role};
use bytes::Bytes;
use mlgw_common::limits::NODE_TEXT_BYTES_MAX;
use mlgw_common::time::Instant;
use mlgw_common::{ClusterId, NodeId, Timestamp};
use mlgw_store::data_dir::CLUSTER_DIR;
use mlgw_store::node_file::{DirectoryRole, NodeDescription};
use mlgw_store::{ClusterJoinError, JoiningDir, StoreLocation};
use mlgw_transport::{JoinError, PeerAddress, ServiceRefusal};
use mlgw_trust::{
    CertificateAge, CertifiedNode, JoinToken, NodeCredentials, NodeFiles, NodeFilesError, NodeKey,
    PeerStarts, StartsFileError,
};
use std::path::PathBuf;
use std::sync::Arc;
use zeroize::Zeroizing;

/// A join of this machine.
#[derive(Debug)]
pub struct JoinCluster<'a> {
    /// The directories of the new node.
    pub place: &'a StoreLocation,
    /// The token.
    pub token: &'a JoinToken,
    /// Addresses of members.
    pub seeds: &'a [PeerAddress],
    /// Address at which other nodes dial the new one.
    pub address: &'a PeerAddress,
    /// Name of the node for operators; may be empty.
    pub name: &'a str,
    /// Its role.
    pub role: DirectoryRole,
    /// Its build.
    pub build: &'a str,
    /// Newest cluster version that it knows.
    pub cluster_version: u32,
    /// The time of day.
    pub now: Timestamp,
    /// Time until which the answer of a member is awaited.
    pub deadline: Instant,
}

/// A node that joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinedNode {
    /// The cluster.
    pub cluster: ClusterId,
    /// The node.
    pub node: NodeId,
    /// Its role.
    pub role: DirectoryRole,
}

/// Reason that a node did not join. The command may be repeated.
#[derive(Debug, thiserror::Error)]
pub enum JoinClusterError {
    /// No address of a member is known.
    #[error("no member of the cluster is known: name one with --seed HOST:PORT, or set cluster.seeds")]
    NoSeeds,
    /// Other nodes cannot dial the address.
    #[error(
        "{0} stands for all addresses of this machine, so other nodes cannot dial it: set cluster.address to \
         one of them, or to a name"
    )]
    Address(PeerAddress),
    /// The name is too long.
    #[error("a name of {0} bytes is too long: use one of at most {NODE_TEXT_BYTES_MAX}")]
    Name(usize),
    /// The directory cannot become that of a new node.
    #[error(transparent)]
    Directory(#[from] ClusterJoinError),
    /// The directory is that of a node of another cluster.
    #[error(
        "{dir} belongs to node {node} of cluster {cluster}, and the join token is not of that cluster: use \
         an empty directory"
    )]
    OtherCluster {
        /// The directory.
        dir: PathBuf,
        /// Its node.
        node: NodeId,
        /// The cluster of that node.
        cluster: ClusterId,
    },
    /// The directory is that of a node whose key is lost.
    #[error(
        "this directory belongs to node {node} of cluster {cluster}, whose key {path} is missing: restore \
         it, or use an empty directory"
    )]
    NoKey {
        /// The file.
        path: PathBuf,
        /// The node.
        node: NodeId,
        /// Its cluster.
        cluster: ClusterId,
    },
    /// The node has another role than the command states.
    #[error(
        "node {node} has the role {}: repeat the command with that role, or remove the node and join with an \
         empty directory",
        role_name(*.role)
    )]
    Role {
        /// The node.
        node: NodeId,
        /// Its role.
        role: DirectoryRole,
    },
    /// A join of another cluster began with the directory.
    #[error(
        "{0} has the certificate of an unfinished join of another cluster: remove that folder, and repeat \
         the command"
    )]
    Unfinished(PathBuf),
    /// The files of the node cannot be read or written.
    #[error(transparent)]
    Files(#[from] NodeFilesError),
    /// The file of starts cannot be written.
    #[error(transparent)]
    Starts(#[from] StartsFileError),
    /// No member admitted the node.
    #[error(transparent)]
    Send(#[from] JoinError),
    /// The answer does not fit the request. Nothing of it was stored.
    #[error(
        "the answer of the cluster is not valid: {0}; use the same version of mlgw on all nodes, and repeat \
         the command"
    )]
    Answer(String),
    /// The clock is wrong.
    #[error(
        "the certificate of this node is not valid now, at {now} by the clock of this machine: set the \
         clock, and repeat the command"
    )]
    Clock {
        /// The time by this machine.
        now: Timestamp,
    },
}

impl From<BadJoinAnswer> for JoinClusterError {
    fn from(bad: BadJoinAnswer) -> Self {
        Self::Answer(bad.to_string())
    }
}

/// Joins a cluster with an empty directory. A directory of a node of that cluster is accepted as it is.
///
/// # Errors
/// See [`JoinClusterError`].
pub async fn join_cluster(join: JoinCluster<'_>) -> Result<JoinedNode, JoinClusterError> {
    match begin(&join)? {
        BegunJoin::Joined(joined) => Ok(joined),
        BegunJoin::Pending(pending) => {
            let request = pending.request()?;
            let (seeds, token, deadline) = (join.seeds, join.token, join.deadline);
            let answer = mlgw_transport::join(seeds, token, request, deadline, is_of_member).await?;
            pending.finish(&answer)
        }
    }
}

/// True if a refusal depends on the member, so that another one may admit the node.
fn is_of_member(refusal: &ServiceRefusal) -> bool {
    [JoinRefusalCode::TryAgain, JoinRefusalCode::Failed].into_iter().any(|code| code as u32 == refusal.code)
}

/// A join whose directory is locked and checked.
pub(crate) enum BegunJoin<'a> {
    /// The directory is that of a node that has joined.
    Joined(JoinedNode),
    /// The cluster is to be asked.
    Pending(PendingJoin<'a>),
}

/// A join between its request and its end.
pub(crate) struct PendingJoin<'a> {
    join: &'a JoinCluster<'a>,
    dir: JoiningDir<'a>,
    files: NodeFiles,
    key: Arc<NodeKey>,
}

/// Locks and checks the directory, and makes the key of the node if there is none.
pub(crate) fn begin<'a>(join: &'a JoinCluster<'a>) -> Result<BegunJoin<'a>, JoinClusterError> {
    check_arguments(join)?;
    let dir = JoiningDir::lock(join.place)?;
    let owner = dir.owner()?;
    let folder = join.place.dir.join(CLUSTER_DIR);
    if let Some(owner) = &owner {
        check_key(owner, folder.join(NodeFiles::KEY_FILE))?;
    }
    let files = NodeFiles::new(&folder)?;
    let held = files.credentials()?;
    match (owner, held) {
        (Some(owner), Some(held)) => return joined_before(join, &owner, &held).map(BegunJoin::Joined),
        (Some(owner), None) => check_role(join, owner.node_id(), owner.role)?,
        (None, Some(held)) if !is_of_token(join.token, held.authorities()) => {
            return Err(JoinClusterError::Unfinished(folder));
        }
        (None, _) => {}
    }
    if join.seeds.is_empty() {
        return Err(JoinClusterError::NoSeeds);
    }
    let key = Arc::new(files.key()?);
    Ok(BegunJoin::Pending(PendingJoin { join, dir, files, key }))
}

/// Checks what can be wrong before anything is created.
fn check_arguments(join: &JoinCluster<'_>) -> Result<(), JoinClusterError> {
    if join.address.is_unspecified() {
        return Err(JoinClusterError::Address(join.address.clone()));
    }
    if join.name.len() > NODE_TEXT_BYTES_MAX {
        return Err(JoinClusterError::Name(join.name.len()));
    }
    Ok(())
}

/// Checks that the key of a node that has joined is there: with another one the cluster would take the node
/// for a new one.
fn check_key(owner: &NodeDescription, path: PathBuf) -> Result<(), JoinClusterError> {
    if path.is_file() {
        return Ok(());
    }
    Err(JoinClusterError::NoKey { path, node: owner.node_id(), cluster: owner.cluster })
}

/// Accepts the directory of a node that has joined with a token of its cluster.
fn joined_before(
    join: &JoinCluster<'_>,
    owner: &NodeDescription,
    held: &NodeCredentials,
) -> Result<JoinedNode, JoinClusterError> {
    let (node, cluster) = (owner.node_id(), owner.cluster);
    if held.node() != (CertifiedNode { cluster, node }) || !is_of_token(join.token, held.authorities()) {
        return Err(JoinClusterError::OtherCluster { dir: join.place.dir.clone(), node, cluster });
    }
    check_role(join, node, owner.role)?;
    Ok(JoinedNode { cluster, node, role: owner.role })
}

fn check_role(join: &JoinCluster<'_>, node: NodeId, role: DirectoryRole) -> Result<(), JoinClusterError> {
    if role == join.role { Ok(()) } else { Err(JoinClusterError::Role { node, role }) }
}

impl PendingJoin<'_> {
    /// Bytes of the request.
    pub(crate) fn request(&self) -> Result<Bytes, JoinClusterError> {
        let certificate_request = self.key.request().map_err(NodeFilesError::from)?;
        let request = JoinRequest {
            token: self.join.token.id(),
            secret: Zeroizing::new(*self.join.token.secret()),
            certificate_request: certificate_request.encode(),
            address: self.join.address.to_string(),
            name: self.join.name.to_owned(),
            role: recorded_role(self.join.role) as i32,
            build: self.join.build.to_owned(),
            cluster_version: self.join.cluster_version,
        };
        Ok(request.encode())
    }

    /// Checks the answer and stores it.
    pub(crate) fn finish(&self, answer: &[u8]) -> Result<JoinedNode, JoinClusterError> {
        let checked = self.check(answer)?;
        self.store_certificate(&checked)?;
        self.create_starts(&checked)?;
        self.describe(&checked)
    }

    /// Checks that the parts of an answer fit each other, the token and the key of this node.
    pub(crate) fn check(&self, answer: &[u8]) -> Result<CheckedAnswer, JoinClusterError> {
        let answer = JoinAnswer::decode(answer).map_err(BadJoinAnswer::from)?;
        let checked = check_answer(answer, &self.key, self.join.token)?;
        let CheckedAnswer { identity, issued, .. } = &checked;
        check_role(self.join, issued.node.node, identity.role)?;
        match issued.validity.age(self.join.now) {
            CertificateAge::NotYetValid | CertificateAge::Expired => {
                Err(JoinClusterError::Clock { now: self.join.now })
            }
            CertificateAge::Fresh | CertificateAge::RenewalDue | CertificateAge::ExpiresSoon => Ok(checked),
        }
    }

    pub(crate) fn store_certificate(&self, checked: &CheckedAnswer) -> Result<(), JoinClusterError> {
        Ok(self.files.store_certificate(&checked.issued, &checked.authorities)?)
    }

    pub(crate) fn create_starts(&self, checked: &CheckedAnswer) -> Result<(), JoinClusterError> {
        PeerStarts::create(self.files.dir(), checked.identity.cluster)?;
        Ok(())
    }

    /// Makes the directory that of the node.
    pub(crate) fn describe(&self, checked: &CheckedAnswer) -> Result<JoinedNode, JoinClusterError> {
        let identity = &checked.identity;
        self.dir.describe(identity, &checked.cluster_key, self.join.now)?;
        let CertifiedNode { cluster, node } = checked.issued.node;
        Ok(JoinedNode { cluster, node, role: identity.role })
    }
}

const fn role_name(role: DirectoryRole) -> &'static str {
    match role {
        DirectoryRole::Storage => "storage",
        DirectoryRole::Gateway => "gateway",
    }
}

#[cfg(test)]
mod tests;
