//! Commands of a Raft group and their replies.
//!
//! A command is the content of a log entry: a protobuf message with stable tags, applied by a pure function
//! on every member. Times, ids and choices are fields of the command; `apply` generates no such values.

pub mod bucket;
pub mod cluster;
pub mod conditions;
pub mod dataset;
pub mod object;
pub mod policy;
pub mod quota;
pub mod reply;
pub mod segment;
pub mod set;
pub mod system;
pub mod upload;

pub use bucket::{
    CreateBucket, DropBucket, FreezeBucket, MirrorBucket, RebindBucket, RemoveBucket, SetBucketState,
    SetBucketTerm, SplitKey, ThawBucket,
};
pub use cluster::{
    AdmitNode, CreateJoinToken, DrainNode, PutAuthority, RemoveAuthority, RemoveJoinToken, RemoveNode,
    ReportNode, SetDuty, SetNodeRole,
};
pub use conditions::{Conditions, EtagCondition};
pub use dataset::{
    CancelJob, ClaimJob, CreateJob, DeleteDataset, EndJob, JobStep, PutDataset, StepJob, UpdateJobProgress,
};
pub use object::{
    DeleteObject, ObjectChange, ObjectCommand, PutObject, Replace, SetTags, UpdateObject, update_object,
};
pub use policy::PutPolicy;
pub use quota::{BeginAllotment, NeededRoom, QuotaOwner, SetBucketQuota, SetKeyQuota, SetSlice};
pub use reply::{QuotaSubject, Reject, Reply, WrittenVersion};
pub use segment::{
    CreateSegment, FenceSegment, MarkSegment, PlaceSegment, RelocateExtent, RemoveSegment, SealSegment,
    SetReplicas,
};
pub use set::{AssignGroup, EndGuest, EndRebalance, PutSet, RequestRebalance};
pub use system::{
    BeginIncarnation, CompareRows, DeleteCredential, LeaseBodies, PutCredential, PutNode, PutPartition,
    PutUploadKey, SetClusterVersion, TagBatch,
};
pub use upload::{AbortUpload, CompleteUpload, CreateUpload, NamedPart, PutPart, ReleaseBody};

use crate::schema::Bucket;
use mlgw_common::{ObjectKey, Timestamp};

/// A change of the namespace, as the Raft log carries it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Command {
    /// The change.
    #[prost(
        oneof = "Change",
        tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, \
            26, 27, 28, 29, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, \
            50, 51, 52, 53, 54"
    )]
    pub change: Option<Change>,
}

/// Change that a command makes. Group 0 applies the changes marked with it; object groups apply the others.
#[derive(Clone, PartialEq, prost::Oneof)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all commands are of the large variant, and they are shared"
)]
pub enum Change {
    /// Changes one key of a bucket.
    #[prost(message, tag = "1")]
    Object(ObjectCommand),
    /// Group 0: creates a bucket that is not in use yet.
    #[prost(message, tag = "2")]
    CreateBucket(CreateBucket),
    /// Group 0: moves a bucket to the next state of its life cycle.
    #[prost(message, tag = "3")]
    SetBucketState(SetBucketState),
    /// Group 0: removes a bucket.
    #[prost(message, tag = "4")]
    RemoveBucket(RemoveBucket),
    /// Object groups: sets the local copy of a bucket's definition.
    #[prost(message, tag = "5")]
    MirrorBucket(MirrorBucket),
    /// Object groups: refuses further object commands on a bucket if it is empty here.
    #[prost(message, tag = "6")]
    FreezeBucket(FreezeBucket),
    /// Object groups: accepts object commands on a frozen bucket again.
    #[prost(message, tag = "7")]
    ThawBucket(ThawBucket),
    /// Object groups: deletes the rows of a frozen bucket, a bounded step at a time.
    #[prost(message, tag = "8")]
    DropBucket(DropBucket),
    /// Object groups: frees the rows of a released body, a bounded step at a time.
    #[prost(message, tag = "9")]
    ReleaseBody(ReleaseBody),
    /// Group 0: leases a range of body ids to a node.
    #[prost(message, tag = "10")]
    LeaseBodies(LeaseBodies),
    /// Group 0: creates a segment to append to.
    #[prost(message, tag = "11")]
    CreateSegment(CreateSegment),
    /// Group 0: seals a segment at its final length.
    #[prost(message, tag = "12")]
    SealSegment(SealSegment),
    /// Group 0: creates or changes an access key.
    #[prost(message, tag = "13")]
    PutCredential(PutCredential),
    /// Group 0: deletes an access key.
    #[prost(message, tag = "14")]
    DeleteCredential(DeleteCredential),
    /// Group 0: adds or changes a member of the cluster.
    #[prost(message, tag = "15")]
    PutNode(PutNode),
    /// Group 0: assigns a range of keys to a group.
    #[prost(message, tag = "16")]
    PutPartition(PutPartition),
    /// Group 0: raises the offset from which recovery reads an open segment.
    #[prost(message, tag = "17")]
    MarkSegment(MarkSegment),
    /// Object groups: refuses new references to a segment from now on.
    #[prost(message, tag = "18")]
    FenceSegment(FenceSegment),
    /// Object groups: points an extent at the new location of its chunk.
    #[prost(message, tag = "19")]
    RelocateExtent(RelocateExtent),
    /// Group 0: removes a segment.
    #[prost(message, tag = "20")]
    RemoveSegment(RemoveSegment),
    /// Group 0: changes the location of a sealed segment.
    #[prost(message, tag = "21")]
    PlaceSegment(PlaceSegment),
    /// Group 0: creates or changes a dataset.
    #[prost(message, tag = "22")]
    PutDataset(PutDataset),
    /// Group 0: deletes a dataset.
    #[prost(message, tag = "23")]
    DeleteDataset(DeleteDataset),
    /// Group 0: creates a job.
    #[prost(message, tag = "24")]
    CreateJob(CreateJob),
    /// Group 0: advances a job.
    #[prost(message, tag = "25")]
    StepJob(StepJob),
    /// All groups: sets a bucket's quota.
    #[prost(message, tag = "26")]
    SetBucketQuota(SetBucketQuota),
    /// All groups: sets an access key's quota.
    #[prost(message, tag = "27")]
    SetKeyQuota(SetKeyQuota),
    /// Group 0: changes the origin of a remote-backed bucket.
    #[prost(message, tag = "28")]
    RebindBucket(RebindBucket),
    /// Group 0: adds the next version of the running policy.
    #[prost(message, tag = "29")]
    PutPolicy(PutPolicy),
    /// Group 0: sets the key that upload ids are made with. Set once.
    #[prost(message, tag = "31")]
    PutUploadKey(PutUploadKey),
    /// Group 0: begins an incarnation, the timeline of the commands that follow.
    #[prost(message, tag = "32")]
    BeginIncarnation(BeginIncarnation),
    /// Group 0: raises the cluster's version.
    #[prost(message, tag = "33")]
    SetClusterVersion(SetClusterVersion),
    /// Group 0: creates a token with which a node may join.
    #[prost(message, tag = "34")]
    CreateJoinToken(CreateJoinToken),
    /// Group 0: removes such a token.
    #[prost(message, tag = "35")]
    RemoveJoinToken(RemoveJoinToken),
    /// Group 0: admits a node that presents a token.
    #[prost(message, tag = "36")]
    AdmitNode(AdmitNode),
    /// Group 0: adds a certificate authority of the cluster.
    #[prost(message, tag = "37")]
    PutAuthority(PutAuthority),
    /// Group 0: removes an older certificate authority.
    #[prost(message, tag = "38")]
    RemoveAuthority(RemoveAuthority),
    /// Group 0: records a node's report about itself.
    #[prost(message, tag = "39")]
    ReportNode(ReportNode),
    /// Group 0: changes a node's role.
    #[prost(message, tag = "40")]
    SetNodeRole(SetNodeRole),
    /// Group 0: begins or ends the draining of a node.
    #[prost(message, tag = "41")]
    DrainNode(DrainNode),
    /// Group 0: removes a node for ever.
    #[prost(message, tag = "42")]
    RemoveNode(RemoveNode),
    /// Group 0: changes the list of replicas of a sealed segment.
    #[prost(message, tag = "43")]
    SetReplicas(SetReplicas),
    /// Group 0: changes the duty node.
    #[prost(message, tag = "44")]
    SetDuty(SetDuty),
    /// Rejects changes of keys of a bucket by earlier terms of duty.
    #[prost(message, tag = "45")]
    SetBucketTerm(SetBucketTerm),
    /// Group 0: creates a set of nodes, or replaces its nodes.
    #[prost(message, tag = "46")]
    PutSet(PutSet),
    /// Group 0: assigns an object group to a set.
    #[prost(message, tag = "47")]
    AssignGroup(AssignGroup),
    /// Group 0: requests a rebalance of the sets.
    #[prost(message, tag = "48")]
    RequestRebalance(RequestRebalance),
    /// Group 0: ends a rebalance.
    #[prost(message, tag = "49")]
    EndRebalance(EndRebalance),
    /// Group 0: ends that a group is a guest of a set.
    #[prost(message, tag = "50")]
    EndGuest(EndGuest),
    /// Group 0: allocates the number of an allotment of a quota.
    #[prost(message, tag = "51")]
    BeginAllotment(BeginAllotment),
    /// Object groups: sets the group's slice of a quota.
    #[prost(message, tag = "52")]
    SetSlice(SetSlice),
    /// All groups: each member digests the rows that it has after the entry with this command.
    #[prost(message, tag = "53")]
    CompareRows(CompareRows),
    /// Identifies the batch that it ends.
    #[prost(message, tag = "54")]
    TagBatch(TagBatch),
}

impl Command {
    /// Returns a command that changes one key of `bucket`, with the bucket's current id and epoch. The
    /// catalogue that proposes it sets `grows_times`.
    #[must_use]
    pub fn object(bucket: &Bucket, key: &ObjectKey, now: Timestamp, change: ObjectChange) -> Self {
        Self::from(Change::Object(ObjectCommand {
            bucket_id: bucket.id,
            epoch: bucket.epoch,
            key: key.as_str().to_owned(),
            now_ms: now.as_millis(),
            change: Some(change),
            grows_times: false,
            duty_term: None,
        }))
    }

    /// Adds the term of the duty node to a command that changes a key of a remote-backed bucket.
    #[must_use]
    pub fn of_term(mut self, duty_term: Option<u64>) -> Self {
        if let Some(Change::Object(object)) = &mut self.change {
            object.duty_term = duty_term;
        }
        self
    }
}

impl From<Change> for Command {
    fn from(change: Change) -> Self {
        Self { change: Some(change) }
    }
}
