//! Answers to commands: what was done, or why nothing was.

use crate::schema::{Bucket, Dataset, Excess, Job, PolicyVersion, SegmentRecord};
use mlgw_common::Seq;
use serde::{Deserialize, Serialize};

/// What a command did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// It was done and there is nothing to tell.
    Done,
    /// There is a version now.
    Written(Written),
    /// There is no version now.
    Deleted {
        /// Whether there was one.
        existed: bool,
    },
    /// There is a part now.
    Part {
        /// Its `seq`.
        seq: u64,
    },
    /// The bucket as it is now.
    Bucket(Bucket),
    /// The segment as it is now.
    Segment(SegmentRecord),
    /// The dataset as it is now.
    Dataset(Dataset),
    /// The job as it is now.
    Job(Box<Job>),
    /// The version of the policy that was made.
    Policy(Box<PolicyVersion>),
    /// The first of the leased body ids.
    Bodies {
        /// The first one.
        first: u64,
    },
    /// A bounded step was made.
    Step {
        /// Whether there is more to do.
        more: bool,
    },
}

/// A version that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// Its place in the order of versions.
    pub seq: u64,
    /// Its ETag, without quotes.
    pub etag: String,
    /// Its length in bytes.
    pub size: u64,
    /// Its Last-Modified, milliseconds since the epoch.
    pub modified_ms: i64,
    /// Whether it has a version id.
    pub versioned: bool,
}

impl Written {
    /// Its place in the order of versions.
    #[must_use]
    pub const fn order(&self) -> Seq {
        Seq(self.seq)
    }
}

/// Whose quota it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum QuotaOf {
    /// The bucket's that was written to.
    Bucket,
    /// The access key's that what was written counts for.
    Key(String),
}

impl std::fmt::Display for QuotaOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bucket => f.write_str("the bucket"),
            Self::Key(access_key) => write!(f, "the access key {access_key}"),
        }
    }
}

/// Why a command did nothing. Each is a fact about the state it met.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Reject {
    /// No such bucket.
    #[error("the bucket does not exist")]
    NoSuchBucket,
    /// The name is taken.
    #[error("the bucket exists and belongs to {owner}")]
    BucketExists {
        /// By whom.
        owner: String,
    },
    /// Objects are left.
    #[error("the bucket is not empty")]
    BucketNotEmpty,
    /// The owner has as many buckets as allowed.
    #[error("the owner has too many buckets")]
    TooManyBuckets,
    /// Another step of its life is due first.
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
    #[error("a condition does not hold")]
    PreconditionFailed,
    /// No such upload.
    #[error("the upload does not exist")]
    NoSuchUpload,
    /// A named part is missing, was replaced, or is out of order.
    #[error("part {number} is missing, was replaced or is out of order")]
    InvalidPart {
        /// Its number.
        number: u32,
    },
    /// A part other than the last is below the least size.
    #[error("part {number} has only {size} bytes")]
    PartTooSmall {
        /// Its number.
        number: u32,
        /// Its length in bytes.
        size: u64,
    },
    /// The parts are longer than an object may be.
    #[error("the object would be too large")]
    TooLarge,
    /// The body belongs to a version or upload already.
    #[error("the body is in use")]
    BodyInUse,
    /// The map of a body does not cover exactly its bytes, or a field is out of its range.
    #[error("the command contradicts itself: {what}")]
    Malformed {
        /// How.
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
        /// Which.
        segment: u64,
    },
    /// The segment is not where the command says, or still open.
    #[error("the segment is elsewhere, or open")]
    SegmentElsewhere,
    /// Something refers to the segment, or may yet.
    #[error("the segment is in use")]
    SegmentInUse,
    /// The body's map does not name the chunk where it was; there is nothing to relocate.
    #[error("the chunk is not referred to where it was")]
    NotReferenced,
    /// No such access key.
    #[error("the access key does not exist")]
    NoSuchCredential,
    /// The name is a dataset's already.
    #[error("the dataset exists")]
    DatasetExists,
    /// No such dataset.
    #[error("the dataset does not exist")]
    NoSuchDataset,
    /// Somebody changed it since; read it again and retry.
    #[error("the dataset changed since the command was built")]
    DatasetChanged,
    /// There are as many as allowed.
    #[error("there are too many datasets")]
    TooManyDatasets,
    /// A job is queued or runs; another may begin when it has ended.
    #[error("job {job} is at work on the dataset")]
    DatasetBusy {
        /// Which.
        job: u64,
    },
    /// No such job.
    #[error("the job does not exist")]
    NoSuchJob,
    /// The job is over.
    #[error("the job has ended")]
    JobEnded,
    /// Another node is at it.
    #[error("node {node} is at the job")]
    JobElsewhere {
        /// Which.
        node: u64,
    },
    /// What a bucket or an access key may hold would be exceeded.
    #[error("the quota of {of} would be exceeded: {:?} {} of {}", .excess.measure, .excess.used, .excess.limit)]
    QuotaExceeded {
        /// Whose quota.
        of: QuotaOf,
        /// Which limit of it.
        excess: Excess,
    },
    /// There is a newer version of the policy than the command was built from; read it again and retry.
    #[error("the policy changed: its version is {newest}")]
    PolicyChanged {
        /// Its number.
        newest: u64,
    },
    /// The files of that version of the policy are not kept.
    #[error("the files of the policy's version {number} are not kept")]
    NoSuchPolicy {
        /// Its number.
        number: u64,
    },
    /// The range holds something.
    #[error("the range of keys is in use")]
    RangeInUse,
}
