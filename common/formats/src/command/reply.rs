//! Replies to commands: the result, or the reason why nothing changed.

use crate::schema::{
    Bucket, Dataset, Excess, Job, Node, NodeState, PolicyVersion, Quota, SegmentRecord, SliceState,
};
use mlgw_common::Seq;
use serde::{Deserialize, Serialize};

/// Result of a command that was applied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// Done, without further information.
    Done,
    /// A version was written.
    Written(WrittenVersion),
    /// The current version was deleted.
    Deleted {
        /// True if there was a version.
        existed: bool,
    },
    /// A part was written.
    Part {
        /// The part's `seq`.
        seq: u64,
    },
    /// The bucket after the command.
    Bucket(Bucket),
    /// The segment after the command.
    Segment(SegmentRecord),
    /// The dataset after the command.
    Dataset(Dataset),
    /// The job after the command.
    Job(Box<Job>),
    /// The new version of the policy.
    Policy(Box<PolicyVersion>),
    /// The node after the command.
    Node(Box<Node>),
    /// An authority was recorded.
    Authority {
        /// Its number.
        number: u64,
    },
    /// A range of body ids was leased.
    Bodies {
        /// First id of the range.
        first: u64,
    },
    /// An allotment of a quota may begin.
    Allotment {
        /// Its number.
        number: u64,
    },
    /// The group's slice of a quota was set.
    Slice {
        /// The slice and the usage of the group after the command.
        state: SliceState,
        /// Limits of the slice before it.
        before: Quota,
    },
    /// A bounded step was made.
    #[serde(rename = "Step")]
    StepDone {
        /// True if more steps are needed.
        more: bool,
    },
}

/// A version that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenVersion {
    /// Sequence number of the version.
    pub seq: u64,
    /// ETag of the version, without quotes.
    pub etag: String,
    /// Length in bytes.
    pub size: u64,
    /// Last-Modified, milliseconds since the epoch.
    pub modified_ms: i64,
    /// True if the version has a version id.
    pub versioned: bool,
}

impl WrittenVersion {
    /// Returns the sequence number of the version.
    #[must_use]
    pub const fn order(&self) -> Seq {
        Seq(self.seq)
    }
}

/// Subject of a quota.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum QuotaSubject {
    /// The bucket that was written to.
    Bucket,
    /// The access key that the written data is charged to.
    Key(String),
}

impl std::fmt::Display for QuotaSubject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bucket => f.write_str("the bucket"),
            Self::Key(access_key) => write!(f, "the access key {access_key}"),
        }
    }
}

/// Reason why a command changed nothing. Each reason is a fact about the state that the command was applied
/// to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Reject {
    /// No such bucket.
    #[error("the bucket does not exist")]
    NoSuchBucket,
    /// The name is taken.
    #[error("the bucket exists and belongs to {owner}")]
    BucketExists {
        /// Owner of the bucket.
        owner: String,
    },
    /// The bucket has objects.
    #[error("the bucket is not empty")]
    BucketNotEmpty,
    /// The owner has as many buckets as allowed.
    #[error("the owner has too many buckets")]
    TooManyBuckets,
    /// All buckets together would have more split keys than allowed.
    #[error("the buckets have too many split keys")]
    TooManySplitKeys,
    /// Another step of the bucket's life cycle is due first.
    #[error("the bucket is being created or deleted")]
    BucketBusy,
    /// Built against a bucket that has changed; read it again and retry.
    #[error("the bucket changed since the command was built")]
    StaleEpoch,
    /// A deletion of the bucket is being decided; retry.
    #[error("the bucket is frozen")]
    BucketFrozen,
    /// The key has no version.
    #[error("the key does not exist")]
    NoSuchKey,
    /// A condition did not hold.
    #[error("a precondition failed")]
    PreconditionFailed,
    /// No such upload.
    #[error("the upload does not exist")]
    NoSuchUpload,
    /// A named part is missing, was replaced, or is out of order.
    #[error("part {number} is missing, was replaced or is out of order")]
    InvalidPart {
        /// Number of the part.
        number: u32,
    },
    /// A part other than the last is below the least size.
    #[error("part {number} has only {size} bytes")]
    PartTooSmall {
        /// Number of the part.
        number: u32,
        /// Length of the part in bytes.
        size: u64,
    },
    /// The parts are longer than an object may be.
    #[error("the object would be too large")]
    TooLarge,
    /// The body already belongs to a version or upload.
    #[error("the body is in use")]
    BodyInUse,
    /// The map of a body does not cover exactly its bytes, or a field is out of its range.
    #[error("invalid command: {what}")]
    Malformed {
        /// Text that describes the defect.
        what: String,
    },
    /// No such segment.
    #[error("the segment does not exist")]
    NoSuchSegment,
    /// The segment was sealed with another length.
    #[error("the segment is sealed")]
    SegmentSealed,
    /// The segment takes no new references: append the bytes again elsewhere and retry.
    #[error("segment {segment} is fenced")]
    SegmentFenced {
        /// Id of the segment.
        segment: u64,
    },
    /// The segment is not at the expected location, or is still open.
    #[error("the segment is at another location, or open")]
    SegmentElsewhere,
    /// The segment has references, or may still get new ones.
    #[error("the segment is in use")]
    SegmentInUse,
    /// The body's map does not name the chunk where it was; there is nothing to relocate.
    #[error("the chunk is no longer referenced at its old location")]
    NotReferenced,
    /// No such access key.
    #[error("the access key does not exist")]
    NoSuchCredential,
    /// A dataset with this name exists.
    #[error("the dataset exists")]
    DatasetExists,
    /// No such dataset.
    #[error("the dataset does not exist")]
    NoSuchDataset,
    /// The dataset changed since the command was built; read it again and retry.
    #[error("the dataset changed since the command was built")]
    DatasetChanged,
    /// The maximum number of datasets exists.
    #[error("there are too many datasets")]
    TooManyDatasets,
    /// A job of the dataset is queued or running; another may begin when it has ended.
    #[error("job {job} is queued or running on the dataset")]
    DatasetBusy {
        /// Number of the job.
        job: u64,
    },
    /// No such job.
    #[error("the job does not exist")]
    NoSuchJob,
    /// The job has ended.
    #[error("the job has ended")]
    JobEnded,
    /// Another node runs the job.
    #[error("node {node} is running the job")]
    JobElsewhere {
        /// Id of the node.
        node: u64,
    },
    /// Another term of duty has begun.
    #[error("node {node} is the duty node of term {term}")]
    DutyTaken {
        /// Id of the duty node.
        node: u64,
        /// Its term.
        term: u64,
    },
    /// The command is of a term of duty that has ended.
    #[error("term {term} of duty has begun")]
    TermEnded {
        /// The later term.
        term: u64,
    },
    /// A later run of a saga has dropped a bucket in the group.
    #[error("a later run of the saga has begun")]
    SagaEnded,
    /// The command would exceed the quota of a bucket or an access key.
    #[error(
        "the quota of {of} would be exceeded: {:?} {} of {}",
        .excess.measure, .excess.used, .excess.limit
    )]
    QuotaExceeded {
        /// Subject of the quota.
        of: QuotaSubject,
        /// The limit that would be exceeded.
        excess: Excess,
    },
    /// The command would exceed the group's slice of a quota, and other groups may have room: divide the
    /// quota again and retry.
    #[error("the group's slice of the quota of {of} is full")]
    SliceFull {
        /// Subject of the quota.
        of: QuotaSubject,
        /// Bytes that the command adds to the usage.
        bytes: u64,
        /// Objects that the command adds to the usage.
        objects: u64,
        /// Number of the newest allotment that the group took part in.
        allotment: u64,
    },
    /// The group takes part in a later allotment of the quota.
    #[error("allotment {allotment} of the quota has begun")]
    AllotmentEnded {
        /// Number of the allotment that the group takes part in.
        allotment: u64,
    },
    /// The group has no quota that could be divided.
    #[error("there is no quota to divide")]
    NoQuota,
    /// A newer version of the policy than the command was built from exists; read it again and retry.
    #[error("the policy changed; its newest version is {newest}")]
    PolicyChanged {
        /// Number of the newest version.
        newest: u64,
    },
    /// The files of that version of the policy are no longer stored.
    #[error("the files of policy version {number} are no longer stored")]
    NoSuchPolicy {
        /// Number of the version.
        number: u64,
    },
    /// No such join token.
    #[error("the join token does not exist: create another one")]
    NoSuchJoinToken,
    /// A token with this id exists.
    #[error("a join token with this ID exists")]
    JoinTokenExists,
    /// The maximum number of tokens exists.
    #[error("there are too many join tokens: remove some")]
    TooManyJoinTokens,
    /// The secret is not that of the token.
    #[error("the secret of the join token is wrong")]
    WrongJoinSecret,
    /// The token is too old.
    #[error("the join token has expired: create another one")]
    JoinTokenExpired,
    /// A node with another key joined with the token.
    #[error("node {node} has joined with this token: create another one")]
    JoinTokenUsed {
        /// Id of that node.
        node: u64,
    },
    /// The build of the node does not know the cluster's version.
    #[error("the cluster has version {needs}, and the node knows version {knows} at most: upgrade the node")]
    NodeTooOld {
        /// Newest version that the node knows.
        knows: u32,
        /// The cluster's version.
        needs: u32,
    },
    /// A node has not reported that it knows a version.
    #[error(
        "node {node} knows cluster version {knows} at most, and not version {needs}: upgrade or remove it"
    )]
    VersionNotReported {
        /// Id of the node.
        node: u64,
        /// Newest version that it reported.
        knows: u32,
        /// The version that was to be finalized.
        needs: u32,
    },
    /// No node had this id so far.
    #[error("node {node} does not exist")]
    NoSuchNode {
        /// The id.
        node: u64,
    },
    /// The node was removed, and its id is refused for ever.
    #[error("node {node} was removed: join again with an empty directory, under a new ID")]
    NodeRemoved {
        /// Id of the node.
        node: u64,
    },
    /// Another node has the same key.
    #[error("node {node} has the same key: join with an empty directory")]
    NodeKeyInUse {
        /// Id of that node.
        node: u64,
    },
    /// The cluster has the maximum number of nodes.
    #[error("the cluster has too many nodes: remove some")]
    TooManyNodes,
    /// The state of the node does not allow the change.
    #[error("node {node} is {state}, which does not allow the change")]
    WrongNodeState {
        /// Id of the node.
        node: u64,
        /// Its state.
        state: NodeState,
    },
    /// No other node that stores data is active.
    #[error("node {node} is the last one that stores data: add another one first")]
    LastStorageNode {
        /// Id of the node.
        node: u64,
    },
    /// A newer start of the node is known, or another process has the same one: its directory was restored or
    /// cloned.
    #[error(
        "node {node} reports start {counter}, which is older than the recorded one or a copy of it: remove \
         the node and join under a new ID"
    )]
    StaleNodeStart {
        /// Id of the node.
        node: u64,
        /// Number of the reported start.
        counter: u64,
    },
    /// A newer authority exists than the command was built from; read it again and retry.
    #[error("the authorities of the cluster changed; the newest is number {newest}")]
    AuthorityChanged {
        /// Number of the newest one.
        newest: u64,
    },
    /// The maximum number of authorities exists.
    #[error("there are too many authorities: remove an older one")]
    TooManyAuthorities,
    /// No such authority, or it is the newest one, which stays.
    #[error("authority {number} does not exist or is in use")]
    AuthorityInUse {
        /// The number.
        number: u64,
    },
    /// No such set of nodes.
    #[error("set {set} does not exist")]
    NoSuchSet {
        /// Id of the set.
        set: u32,
    },
    /// The set changed since the command was built; read it again and retry.
    #[error("set {set} changed since the command was built")]
    SetChanged {
        /// Id of the set.
        set: u32,
    },
    /// The group was assigned to a set since the command was built; read it again and retry.
    #[error("group {group} was assigned to a set since the command was built")]
    GroupAssigned {
        /// Id of the group.
        group: u32,
    },
    /// Records of the group may refer to segments of too many sets.
    #[error("group {group} was in too many sets: wait until its bytes have followed it")]
    TooManyGuestSets {
        /// Id of the group.
        group: u32,
    },
    /// The node is in a set, which needs another node in its place first.
    #[error("node {node} is in set {set}")]
    NodeInSet {
        /// Id of the node.
        node: u64,
        /// Id of the set.
        set: u32,
    },
    /// The range contains rows.
    #[error("the range of keys is in use")]
    RangeInUse,
}
