//! Commands that create, change and delete datasets, and that create and advance their jobs.

use crate::schema::{Dataset, DatasetSize, JobCursor, JobKind, JobParams, JobProgress, JobState};

/// Creates or changes a dataset. Replies with [`Reply::Dataset`](super::Reply::Dataset).
#[derive(Clone, PartialEq, prost::Message)]
pub struct PutDataset {
    /// The whole dataset, with the revision that it was built from; 0 for a new dataset. Fields that jobs
    /// maintain keep their stored values.
    #[prost(message, required, tag = "1")]
    pub dataset: Dataset,
}

/// Deletes a dataset and the records of its jobs.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeleteDataset {
    /// Name of the dataset.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// Creates a job. Rejected if the dataset has an active job. Replies with [`Reply::Job`](super::Reply::Job).
#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateJob {
    /// The dataset.
    #[prost(string, tag = "1")]
    pub dataset: String,
    /// Kind of the job.
    #[prost(enumeration = "JobKind", tag = "2")]
    pub kind: i32,
    /// Parameters of the job.
    #[prost(message, required, tag = "3")]
    pub params: JobParams,
    /// Creation time, milliseconds since the epoch.
    #[prost(int64, tag = "4")]
    pub created_ms: i64,
    /// Requester of the job: an access key, or `schedule`.
    #[prost(string, tag = "5")]
    pub requested_by: String,
    /// True if the dataset's schedule of this kind created the job; the schedule's due times up to now are
    /// done then.
    #[prost(bool, tag = "6")]
    pub is_scheduled: bool,
    /// Term of the duty node whose schedule is due; rejected if another term has begun. Absent for a request.
    #[prost(uint64, optional, tag = "7")]
    pub duty_term: Option<u64>,
}

/// Advances a job. Replies with [`Reply::Job`](super::Reply::Job).
#[derive(Clone, PartialEq, prost::Message)]
pub struct StepJob {
    /// The dataset.
    #[prost(string, tag = "1")]
    pub dataset: String,
    /// The job.
    #[prost(uint64, tag = "2")]
    pub job: u64,
    /// The node that runs the job or is about to; 0 for a cancellation.
    #[prost(uint64, tag = "3")]
    pub node: u64,
    /// Time of the step, milliseconds since the epoch.
    #[prost(int64, tag = "4")]
    pub now_ms: i64,
    /// The step.
    #[prost(oneof = "JobStep", tags = "5, 6, 7, 8")]
    pub step: Option<JobStep>,
    /// Term of the duty node that runs the job; rejected if another term has begun. A node of the present
    /// term may take the job from another node.
    #[prost(uint64, optional, tag = "9")]
    pub duty_term: Option<u64>,
}

/// A step of a job.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum JobStep {
    /// A node starts the job, or starts it again after a restart.
    #[prost(message, tag = "5")]
    Acquire(ClaimJob),
    /// Records the job's progress.
    #[prost(message, tag = "6")]
    Progress(UpdateJobProgress),
    /// The job has ended.
    #[prost(message, tag = "7")]
    End(EndJob),
    /// Requests the end of the job.
    #[prost(message, tag = "8")]
    Cancel(CancelJob),
}

/// Assigns a job to a node.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ClaimJob {}

/// Records the progress of a job.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct UpdateJobProgress {
    /// Progress of the job.
    #[prost(message, required, tag = "1")]
    pub progress: JobProgress,
    /// Position at which the job resumes.
    #[prost(message, optional, tag = "2")]
    pub cursor: Option<JobCursor>,
}

/// Ends a job.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct EndJob {
    /// Final state of the job.
    #[prost(enumeration = "JobState", tag = "1")]
    pub state: i32,
    /// Final progress of the job.
    #[prost(message, required, tag = "2")]
    pub progress: JobProgress,
    /// Reason of a failure.
    #[prost(string, tag = "3")]
    pub error: String,
    /// Size of the dataset, if the job visited all of it.
    #[prost(message, optional, tag = "4")]
    pub found: Option<DatasetSize>,
}

/// Requests the end of a job.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct CancelJob {}
