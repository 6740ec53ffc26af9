//! Commands of datasets and of the jobs that are done with them.

use crate::schema::{Dataset, Found, JobCursor, JobKind, JobParams, JobProgress, JobState};

/// A new or changed dataset. Answers [`Reply::Dataset`](super::Reply::Dataset).
#[derive(Clone, PartialEq, prost::Message)]
pub struct PutDataset {
    /// All of it, with the revision that it was built from; 0 for one that is new. What jobs note in it is
    /// left as it is.
    #[prost(message, required, tag = "1")]
    pub dataset: Dataset,
}

/// A dataset's end, and that of its jobs' records.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeleteDataset {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// A new job, unless the dataset has one that has not ended. Answers [`Reply::Job`](super::Reply::Job).
#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateJob {
    /// The dataset.
    #[prost(string, tag = "1")]
    pub dataset: String,
    /// What is done.
    #[prost(enumeration = "JobKind", tag = "2")]
    pub kind: i32,
    /// With what.
    #[prost(message, required, tag = "3")]
    pub params: JobParams,
    /// When, milliseconds since the epoch.
    #[prost(int64, tag = "4")]
    pub created_ms: i64,
    /// Who asked for it.
    #[prost(string, tag = "5")]
    pub requested_by: String,
    /// Whether the dataset's schedule of this kind did: it is done with up to now.
    #[prost(bool, tag = "6")]
    pub is_scheduled: bool,
}

/// A step of a job's life. Answers [`Reply::Job`](super::Reply::Job).
#[derive(Clone, PartialEq, prost::Message)]
pub struct StepJob {
    /// The dataset.
    #[prost(string, tag = "1")]
    pub dataset: String,
    /// The job.
    #[prost(uint64, tag = "2")]
    pub job: u64,
    /// The node that is at it, or will be; of a wish to cancel, nothing.
    #[prost(uint64, tag = "3")]
    pub node: u64,
    /// When, milliseconds since the epoch.
    #[prost(int64, tag = "4")]
    pub now_ms: i64,
    /// Which step.
    #[prost(oneof = "JobStep", tags = "5, 6, 7, 8")]
    pub step: Option<JobStep>,
}

/// A step of a job's life.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum JobStep {
    /// A node begins it, or begins it again after a restart.
    #[prost(message, tag = "5")]
    Claim(ClaimJob),
    /// It is so far.
    #[prost(message, tag = "6")]
    Note(NoteJob),
    /// It is over.
    #[prost(message, tag = "7")]
    End(EndJob),
    /// Somebody wants it to end.
    #[prost(message, tag = "8")]
    Cancel(CancelJob),
}

/// A node begins a job.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ClaimJob {}

/// How far a job is.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NoteJob {
    /// How far.
    #[prost(message, required, tag = "1")]
    pub progress: JobProgress,
    /// Where it would go on.
    #[prost(message, optional, tag = "2")]
    pub cursor: Option<JobCursor>,
}

/// A job is over.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct EndJob {
    /// What came of it.
    #[prost(enumeration = "JobState", tag = "1")]
    pub state: i32,
    /// How far it came.
    #[prost(message, required, tag = "2")]
    pub progress: JobProgress,
    /// Why it failed.
    #[prost(string, tag = "3")]
    pub error: String,
    /// What it found of the dataset, if it looked at all of it.
    #[prost(message, optional, tag = "4")]
    pub found: Option<Found>,
}

/// Somebody wants a job to end.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct CancelJob {}
