//! Nodes of the cluster, join tokens and certificate authorities. Nodes are in memory; tokens and authorities
//! are read from the store, because only joins and starts need them.

use super::{Catalogue, ProposeError, read};
use crate::store_error::{ReadError, StoreError};
use crate::view::RowReader as _;
use mlgw_common::limits::{AUTHORITIES_MAX, JOIN_TOKENS_MAX};
use mlgw_common::{BucketId, NodeId};
use mlgw_formats::cluster_version::{REPLACEMENT_CLUSTER_VERSION, ROTATION_CLUSTER_VERSION};
use mlgw_formats::command::{
    AdmitNode, Change, Command, CreateJoinToken, DrainNode, PutAuthority, Reject, RemoveAuthority,
    RemoveJoinToken, RemoveNode, Reply, ReportNode, SetBucketTerm, SetDuty, SetNodeRole,
};
use mlgw_formats::key::Family;
use mlgw_formats::schema::{
    AuthorityRecord, Duty, JoinTokenRecord, Node, NodeRole, RecordedStart, decode, join_token,
};
use std::sync::Arc;

/// Properties of a join token to create.
#[derive(Clone, Debug)]
pub struct NewJoinToken {
    /// Random id of the token.
    pub token: u64,
    /// SHA-256 of its secret.
    pub secret_hash: Vec<u8>,
    /// Life of the token in milliseconds; at most
    /// [`JOIN_TOKEN_MS_MAX`](mlgw_common::limits::JOIN_TOKEN_MS_MAX).
    pub life_ms: i64,
    /// The access key that creates it.
    pub created_by: String,
}

/// Facts that a node reports about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// The node.
    pub node: NodeId,
    /// Address at which other nodes connect to it.
    pub address: String,
    /// Newest cluster version that its build knows.
    pub cluster_version: u32,
    /// Its build.
    pub build: String,
    /// Its start.
    pub start: RecordedStart,
    /// SHA-256 of the public key of its certificate; empty leaves the recorded one.
    pub key_hash: Vec<u8>,
    /// True if it serves.
    pub is_serving: bool,
    /// Number of the authority that signed its certificate; 0 if it is not known. Not recorded below cluster
    /// version 5, nor is the next one.
    pub authority: u64,
    /// Number of the newest authority that it trusts; 0 if it is not known.
    pub trusted_authority: u64,
}

impl NodeReport {
    /// True if the record of the node already has everything in the report.
    fn is_recorded_in(&self, node: &Node) -> bool {
        let is_key_known = self.key_hash.is_empty() || self.key_hash == node.key_hash;
        let authorities = (self.authority, self.trusted_authority);
        let are_authorities_known =
            authorities == (0, 0) || authorities == (node.authority, node.trusted_authority);
        let is_state_known = !self.is_serving || node.state() != mlgw_formats::schema::NodeState::Joining;
        is_key_known
            && is_state_known
            && are_authorities_known
            && self.address == node.address
            && self.cluster_version == node.cluster_version
            && self.build == node.build
            && Some(self.start) == node.start
    }
}

impl Catalogue {
    /// All nodes of the cluster, by id, from memory. Removed ones are included while they have a record.
    #[must_use]
    pub fn nodes(&self) -> Vec<Arc<Node>> {
        self.inner.resident.nodes.read().values().cloned().collect()
    }

    /// The record of a node, from memory.
    #[must_use]
    pub fn node_record(&self, node: NodeId) -> Option<Arc<Node>> {
        self.inner.resident.nodes.read().get(&node).cloned()
    }

    /// True if the node was removed, at any time: it is refused for ever. From memory.
    #[must_use]
    pub fn is_removed_node(&self, node: NodeId) -> bool {
        match self.inner.resident.nodes.read().get(&node) {
            Some(record) => record.is_removed(),
            None => (1..self.inner.resident.next_node()).contains(&node.0),
        }
    }

    /// Completes when a node changes after this call, even if the change comes before the first poll.
    pub fn node_changed(&self) -> impl Future<Output = ()> + '_ {
        self.inner.resident.node_changed.notified()
    }

    /// Creates a token with which one node may join, and deletes expired ones.
    ///
    /// # Errors
    /// Those of [`Catalogue::propose`].
    pub async fn create_join_token(&self, new: NewJoinToken) -> Result<(), ProposeError> {
        let now_ms = self.now_ms();
        let create = CreateJoinToken {
            token: new.token,
            secret_hash: new.secret_hash,
            expires_ms: now_ms.saturating_add(new.life_ms),
            created_by: new.created_by,
            now_ms,
        };
        self.propose_change(Change::CreateJoinToken(create)).await.map(drop)
    }

    /// Removes a token.
    ///
    /// # Errors
    /// Those of [`Catalogue::propose`].
    pub async fn remove_join_token(&self, token: u64) -> Result<(), ProposeError> {
        self.propose_change(Change::RemoveJoinToken(RemoveJoinToken { token })).await.map(drop)
    }

    /// All tokens, expired ones included.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn join_tokens(&self) -> Result<Vec<JoinTokenRecord>, ReadError> {
        self.records(Family::JoinToken, JOIN_TOKENS_MAX)
    }

    /// The token `token`.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn join_token(&self, token: u64) -> Result<Option<JoinTokenRecord>, ReadError> {
        read(&self.inner.groups.system().state(), &join_token::row(token))
    }

    /// Admits a node and returns its record. `now_ms` of the command is set here.
    ///
    /// # Errors
    /// Those of [`Catalogue::propose`].
    pub async fn admit_node(&self, admit: AdmitNode) -> Result<Node, ProposeError> {
        let admit = AdmitNode { now_ms: self.now_ms(), ..admit };
        self.propose_change(Change::AdmitNode(admit)).await.map(node_of)
    }

    /// Records a node's report about itself and returns its record. A report that is recorded already is not
    /// proposed again.
    ///
    /// # Errors
    /// Those of [`Catalogue::propose`].
    pub async fn report_node(&self, mut report: NodeReport) -> Result<Arc<Node>, ProposeError> {
        if self.cluster_version() < ROTATION_CLUSTER_VERSION {
            (report.authority, report.trusted_authority) = (0, 0);
        }
        if let Some(node) = self.node_record(report.node).filter(|node| report.is_recorded_in(node)) {
            return Ok(node);
        }
        let report = ReportNode {
            node: report.node.0,
            address: report.address,
            cluster_version: report.cluster_version,
            build: report.build,
            start: report.start,
            key_hash: report.key_hash,
            is_serving: report.is_serving,
            now_ms: self.now_ms(),
            authority: report.authority,
            trusted_authority: report.trusted_authority,
        };
        self.propose_change(Change::ReportNode(report)).await.map(|reply| Arc::new(node_of(reply)))
    }

    /// Changes the role of a node and returns its record.
    ///
    /// # Errors
    /// Those of [`Catalogue::propose`].
    pub async fn set_node_role(&self, node: NodeId, role: NodeRole) -> Result<Node, ProposeError> {
        let set = SetNodeRole { node: node.0, role: role as i32 };
        self.propose_change(Change::SetNodeRole(set)).await.map(node_of)
    }

    /// Begins the draining of a node, whose place `new` takes if it is given, and returns its record.
    ///
    /// # Errors
    /// Those of [`Catalogue::propose`].
    pub async fn drain_node(&self, node: NodeId, new: Option<NodeId>) -> Result<Node, ProposeError> {
        let replaced_by = new.map_or(0, |new| new.0);
        let drain = DrainNode { node: node.0, is_draining: true, replaced_by };
        self.propose_change(Change::DrainNode(drain)).await.map(node_of)
    }

    /// Ends the draining of a node and returns its record.
    ///
    /// # Errors
    /// Those of [`Catalogue::propose`].
    pub async fn undrain_node(&self, node: NodeId) -> Result<Node, ProposeError> {
        let undrain = DrainNode { node: node.0, is_draining: false, replaced_by: 0 };
        self.propose_change(Change::DrainNode(undrain)).await.map(node_of)
    }

    /// Removes a node for ever and returns its record. While the node is in the membership of the system
    /// group it is only marked as leaving. Call this again when it is in no membership any more.
    ///
    /// # Errors
    /// Those of [`Catalogue::propose`].
    pub async fn remove_node(&self, node: NodeId) -> Result<Node, ProposeError> {
        self.remove_node_by(RemoveNode { node: node.0, ..RemoveNode::default() }).await
    }

    /// Like [`Self::remove_node`], for a node that was found drained. It is not removed if its draining was
    /// ended since, once every node knows that condition.
    ///
    /// # Errors
    /// Those of [`Catalogue::propose`].
    pub async fn remove_drained_node(&self, node: NodeId) -> Result<Node, ProposeError> {
        let is_drained = self.cluster_version() >= REPLACEMENT_CLUSTER_VERSION;
        self.remove_node_by(RemoveNode { node: node.0, is_drained, ..RemoveNode::default() }).await
    }

    async fn remove_node_by(&self, remove: RemoveNode) -> Result<Node, ProposeError> {
        let now_ms = self.now_ms();
        self.propose_change(Change::RemoveNode(RemoveNode { now_ms, ..remove })).await.map(node_of)
    }

    /// Certificate authorities of the cluster, the newest last.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn authorities(&self) -> Result<Vec<AuthorityRecord>, ReadError> {
        self.records(Family::Authority, AUTHORITIES_MAX)
    }

    /// The newest authority. `None` on a server that is not in a cluster.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn authority(&self) -> Result<Option<AuthorityRecord>, ReadError> {
        Ok(self.authorities()?.pop())
    }

    /// Adds an authority after the authority `after` (0 if there is none), or replaces the seal of the one
    /// that `authority` names, by compare and set. Returns its number.
    ///
    /// # Errors
    /// Those of [`Catalogue::propose`].
    pub async fn put_authority(&self, authority: AuthorityRecord, after: u64) -> Result<u64, ProposeError> {
        match self.propose_change(Change::PutAuthority(PutAuthority { authority, after })).await? {
            Reply::Authority { number } => Ok(number),
            other => unreachable!("unexpected reply to an authority put: {other:?}"),
        }
    }

    /// Removes an authority that is not the newest one.
    ///
    /// # Errors
    /// Those of [`Catalogue::propose`].
    pub async fn remove_authority(&self, number: u64) -> Result<(), ProposeError> {
        self.propose_change(Change::RemoveAuthority(RemoveAuthority { number })).await.map(drop)
    }

    /// The duty node, as the rows of this node name it.
    #[must_use]
    pub fn duty(&self) -> Duty {
        self.inner.resident.duty()
    }

    /// Changes the duty node, or how far it has taken over.
    ///
    /// # Errors
    /// [`Reject::DutyTaken`] if the present duty may not be followed by this one; those of
    /// [`Catalogue::propose`].
    pub async fn set_duty(&self, duty: Duty) -> Result<(), ProposeError> {
        self.propose_change(Change::SetDuty(SetDuty { duty })).await.map(drop)
    }

    /// Makes the groups of a remote-backed bucket reject changes of keys that are of an earlier term of duty.
    /// One that a former duty node sent late is not carried out after this.
    ///
    /// # Errors
    /// [`Reject::TermEnded`] if a later term has begun; those of [`Catalogue::propose`].
    pub async fn set_bucket_term(&self, bucket: BucketId, duty_term: u64) -> Result<(), ProposeError> {
        let set = SetBucketTerm { bucket_id: bucket.0, duty_term };
        for group in self.inner.groups_of(bucket) {
            match self.inner.propose_to(group, Arc::new(Command::from(Change::SetBucketTerm(set)))).await {
                // The bucket is being deleted.
                Ok(_) | Err(ProposeError::Rejected(Reject::NoSuchBucket)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn now_ms(&self) -> i64 {
        self.inner.clock.now().as_millis()
    }

    async fn propose_change(&self, change: Change) -> Result<Reply, ProposeError> {
        self.propose(Command::from(change)).await
    }

    /// All records of a small family of group 0.
    fn records<M: prost::Message + Default>(&self, family: Family, max: usize) -> Result<Vec<M>, ReadError> {
        let rows = self.inner.groups.system().state().range(&family.start(), &family.end(), max)?;
        let records: Result<Vec<M>, StoreError> =
            rows.iter().map(|(_, value)| decode(value).map_err(StoreError::from)).collect();
        Ok(records?)
    }
}

fn node_of(reply: Reply) -> Node {
    match reply {
        Reply::Node(node) => *node,
        other => unreachable!("unexpected reply to a change of a node: {other:?}"),
    }
}
