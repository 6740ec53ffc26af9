//! Everything that can be asked of a group, and every answer.
//!
//! A command is what the log holds: a protobuf message under stable tags, applied by a pure
//! function on every member. Time, ids and choices are in it; `apply` makes none of its own.

pub mod bucket;
pub mod dataset;
pub mod object;
pub mod policy;
pub mod quota;
pub mod reply;
pub mod segment;
pub mod system;
pub mod upload;

pub use bucket::{
    CreateBucket, DropBucket, FreezeBucket, MirrorBucket, RebindBucket, RemoveBucket, SetBucketState,
    ThawBucket,
};
pub use dataset::{
    CancelJob, ClaimJob, CreateJob, DeleteDataset, EndJob, JobStep, NoteJob, PutDataset, StepJob,
};
pub use object::{
    Conditions, DeleteObject, EtagCondition, ObjectChange, ObjectCommand, PutObject, Replace, SetTags,
    UpdateObject, update_object,
};
pub use policy::PutPolicy;
pub use quota::{SetBucketQuota, SetKeyQuota};
pub use reply::{QuotaOf, Reject, Reply, Written};
pub use segment::{
    CreateSegment, FenceSegment, MarkSegment, PlaceSegment, RelocateExtent, RemoveSegment, SealSegment,
};
pub use system::{
    BeginIncarnation, DeleteCredential, LeaseBodies, PutCredential, PutNode, PutPartition, PutUploadKey,
};
pub use upload::{AbortUpload, CompleteUpload, CreateUpload, NamedPart, PutPart, ReleaseBody};

use crate::schema::Bucket;
use mlgw_common::{ObjectKey, Timestamp};

/// A command.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Command {
    /// What is to change.
    #[prost(
        oneof = "Change",
        tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 31, 32"
    )]
    pub change: Option<Change>,
}

/// What a command changes. Group 0 applies those of the cluster; every object group the others.
#[derive(Clone, PartialEq, prost::Oneof)]
#[expect(clippy::large_enum_variant, reason = "nearly all commands are the large one, and they are shared")]
pub enum Change {
    /// One key of a bucket.
    #[prost(message, tag = "1")]
    Object(ObjectCommand),
    /// Group 0: a new bucket, not yet in use.
    #[prost(message, tag = "2")]
    CreateBucket(CreateBucket),
    /// Group 0: a step of a bucket's life.
    #[prost(message, tag = "3")]
    SetBucketState(SetBucketState),
    /// Group 0: the end of a bucket.
    #[prost(message, tag = "4")]
    RemoveBucket(RemoveBucket),
    /// Object groups: what to know of a bucket.
    #[prost(message, tag = "5")]
    MirrorBucket(MirrorBucket),
    /// Object groups: refuse object commands if the bucket is empty here.
    #[prost(message, tag = "6")]
    FreezeBucket(FreezeBucket),
    /// Object groups: take object commands again.
    #[prost(message, tag = "7")]
    ThawBucket(ThawBucket),
    /// Object groups: forget a frozen bucket, a bounded step at a time.
    #[prost(message, tag = "8")]
    DropBucket(DropBucket),
    /// Object groups: free rows of a body that waits, a bounded step at a time.
    #[prost(message, tag = "9")]
    ReleaseBody(ReleaseBody),
    /// Group 0: body ids for a node.
    #[prost(message, tag = "10")]
    LeaseBodies(LeaseBodies),
    /// Group 0: a segment to append to.
    #[prost(message, tag = "11")]
    CreateSegment(CreateSegment),
    /// Group 0: a segment's final length.
    #[prost(message, tag = "12")]
    SealSegment(SealSegment),
    /// Group 0: a new or changed access key.
    #[prost(message, tag = "13")]
    PutCredential(PutCredential),
    /// Group 0: an access key's end.
    #[prost(message, tag = "14")]
    DeleteCredential(DeleteCredential),
    /// Group 0: a member of the cluster.
    #[prost(message, tag = "15")]
    PutNode(PutNode),
    /// Group 0: where a range of keys is.
    #[prost(message, tag = "16")]
    PutPartition(PutPartition),
    /// Group 0: how much of an open segment recovery need not read.
    #[prost(message, tag = "17")]
    MarkSegment(MarkSegment),
    /// Object groups: refuse new references to a segment from now on.
    #[prost(message, tag = "18")]
    FenceSegment(FenceSegment),
    /// Object groups: a chunk is elsewhere now.
    #[prost(message, tag = "19")]
    RelocateExtent(RelocateExtent),
    /// Group 0: the end of a segment.
    #[prost(message, tag = "20")]
    RemoveSegment(RemoveSegment),
    /// Group 0: a sealed segment is elsewhere now.
    #[prost(message, tag = "21")]
    PlaceSegment(PlaceSegment),
    /// Group 0: a new or changed dataset.
    #[prost(message, tag = "22")]
    PutDataset(PutDataset),
    /// Group 0: a dataset's end.
    #[prost(message, tag = "23")]
    DeleteDataset(DeleteDataset),
    /// Group 0: a new job.
    #[prost(message, tag = "24")]
    CreateJob(CreateJob),
    /// Group 0: a step of a job's life.
    #[prost(message, tag = "25")]
    StepJob(StepJob),
    /// All groups: what a bucket may hold.
    #[prost(message, tag = "26")]
    SetBucketQuota(SetBucketQuota),
    /// All groups: what an access key may hold.
    #[prost(message, tag = "27")]
    SetKeyQuota(SetKeyQuota),
    /// Group 0: what a bucket fronts from now on.
    #[prost(message, tag = "28")]
    RebindBucket(RebindBucket),
    /// Group 0: the next version of the running policy.
    #[prost(message, tag = "29")]
    PutPolicy(PutPolicy),
    /// Group 0: the key of upload ids, once.
    #[prost(message, tag = "31")]
    PutUploadKey(PutUploadKey),
    /// Group 0: the timeline of the commands that follow.
    #[prost(message, tag = "32")]
    BeginIncarnation(BeginIncarnation),
}

impl Command {
    /// A command that changes one key of `bucket`, as it is now.
    #[must_use]
    pub fn object(bucket: &Bucket, key: &ObjectKey, now: Timestamp, change: ObjectChange) -> Self {
        Self::from(Change::Object(ObjectCommand {
            bucket_id: bucket.id,
            epoch: bucket.epoch,
            key: key.as_str().to_owned(),
            now_ms: now.as_millis(),
            change: Some(change),
        }))
    }
}

impl From<Change> for Command {
    fn from(change: Change) -> Self {
        Self { change: Some(change) }
    }
}
