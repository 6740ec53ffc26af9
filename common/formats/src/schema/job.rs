//! Jobs of datasets, with their progress. Rows: `job` in group 0, keyed by (dataset name, job number).
//!
//! A node claims a job and records its progress from time to time. After a crash the job is claimed again and
//! resumes from the recorded position. Ended jobs are history; the newest few of each dataset are kept.

use crate::key::{BadKey, Family, KeyReader, KeyWriter};
use std::borrow::Cow;

/// A job.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct Job {
    /// Number of the job; never reused.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The dataset.
    #[prost(string, tag = "2")]
    pub dataset: String,
    /// Kind of the job.
    #[prost(enumeration = "JobKind", tag = "3")]
    pub kind: i32,
    /// State of the job.
    #[prost(enumeration = "JobState", tag = "4")]
    pub state: i32,
    /// Parameters of the job.
    #[prost(message, required, tag = "5")]
    pub params: JobParams,
    /// Requester: an access key, or `schedule`.
    #[prost(string, tag = "6")]
    pub requested_by: String,
    /// Time of the request, milliseconds since the epoch, as are the following times.
    #[prost(int64, tag = "7")]
    pub created_ms: i64,
    /// Time of the first start; 0 if not started yet.
    #[prost(int64, tag = "8")]
    pub started_ms: i64,
    /// Time of the end; 0 if not ended yet.
    #[prost(int64, tag = "9")]
    pub ended_ms: i64,
    /// The node that runs the job; 0 if none does yet.
    #[prost(uint64, tag = "10")]
    pub node: u64,
    /// Number of starts: more than one after a restart.
    #[prost(uint32, tag = "11")]
    pub starts: u32,
    /// True if a cancellation was requested.
    #[prost(bool, tag = "12")]
    pub cancel_asked: bool,
    /// Progress of the job.
    #[prost(message, required, tag = "13")]
    pub progress: JobProgress,
    /// Position at which the job resumes.
    #[prost(message, optional, tag = "14")]
    pub cursor: Option<JobCursor>,
    /// Error of a failed job, or of the part of it that failed.
    #[prost(string, tag = "15")]
    pub error: String,
}

impl Job {
    /// True if the job has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        match self.state() {
            JobState::Queued | JobState::Running => false,
            JobState::Done | JobState::Failed | JobState::Cancelled => true,
        }
    }
}

/// Kind of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum JobKind {
    /// Fetches the dataset ahead of use.
    Warm = 0,
    /// Imports the dataset from its sources.
    Sync = 1,
    /// Evicts clean copies that were not read for a given time.
    Evict = 2,
    /// Evicts all clean copies.
    Clear = 3,
    /// Moves a remote-backed bucket to another upstream.
    Migrate = 4,
}

/// State of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum JobState {
    /// No node runs it yet.
    Queued = 0,
    /// A node runs it.
    Running = 1,
    /// Completed.
    Done = 2,
    /// Failed, wholly or in part.
    Failed = 3,
    /// Cancelled by a user.
    Cancelled = 4,
}

/// Parameters of a job.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct JobParams {
    /// Evict: minimum time since the last read of the copies to evict, in milliseconds.
    #[prost(uint64, optional, tag = "1")]
    pub older_than_ms: Option<u64>,
    /// Sync: delete imported objects that no longer exist at their source.
    #[prost(bool, tag = "2")]
    pub delete: bool,
    /// Restricts the job to keys with this prefix.
    #[prost(string, tag = "3")]
    pub prefix: String,
    /// Migrate: the new origin.
    #[prost(message, optional, tag = "4")]
    pub to: Option<MigrateTo>,
    /// Warm: order of the objects.
    #[prost(enumeration = "JobOrder", tag = "5")]
    pub order: i32,
}

/// Order in which a job visits a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum JobOrder {
    /// Order of keys.
    Sequential = 0,
    /// Objects in random order.
    Shuffled = 1,
    /// Shards in random order, in key order within each. A shard is the content of one directory.
    ShardShuffled = 2,
}

/// Origin to which a remote-backed bucket is moved.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct MigrateTo {
    /// The upstream's name in the configuration.
    #[prost(string, tag = "1")]
    pub upstream: String,
    /// Prefix of the origin's keys that is stripped from the keys shown here.
    #[prost(string, tag = "2")]
    pub prefix: String,
}

/// Progress of a job. Totals are as known so far.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct JobProgress {
    /// Objects processed.
    #[prost(uint64, tag = "1")]
    pub objects_done: u64,
    /// Objects in total.
    #[prost(uint64, tag = "2")]
    pub objects_total: u64,
    /// Bytes of the objects processed.
    #[prost(uint64, tag = "3")]
    pub bytes_done: u64,
    /// Bytes in total.
    #[prost(uint64, tag = "4")]
    pub bytes_total: u64,
    /// Bytes that were moved: fetched, imported, promoted or evicted.
    #[prost(uint64, tag = "5")]
    pub moved_bytes: u64,
    /// Objects with moved bytes.
    #[prost(uint64, tag = "6")]
    pub moved_objects: u64,
    /// Objects that failed.
    #[prost(uint64, tag = "7")]
    pub failed_objects: u64,
    /// Objects deleted.
    #[prost(uint64, tag = "8")]
    pub deleted_objects: u64,
    /// True if the totals are final.
    #[prost(bool, tag = "9")]
    pub is_counted: bool,
}

/// Position at which a job resumes.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct JobCursor {
    /// Index of the current slice or source, from 0.
    #[prost(uint32, tag = "1")]
    pub part: u32,
    /// Last processed key of it; empty before the first.
    #[prost(string, tag = "2")]
    pub after: String,
}

/// Returns the row key of a job.
#[must_use]
pub fn row(dataset: &str, id: u64) -> Vec<u8> {
    KeyWriter::new(Family::Job).name(dataset.as_bytes()).u64(id).finish()
}

/// Returns the range of row keys of all jobs of a dataset: the first key and the exclusive end.
#[must_use]
pub fn rows_of(dataset: &str) -> (Vec<u8>, Vec<u8>) {
    let first = KeyWriter::new(Family::Job).name(dataset.as_bytes()).finish();
    (first.clone(), crate::key::after_prefix(first))
}

/// Returns the dataset and the job number in a row key.
///
/// # Errors
/// Returns [`BadKey`] if `row` is not a key of this family.
pub fn key_of(row: &[u8]) -> Result<(Cow<'_, [u8]>, u64), BadKey> {
    let mut fields = KeyReader::new(Family::Job, row)?;
    let key = (fields.name()?, fields.u64()?);
    fields.end()?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::{Job, JobCursor, JobParams, JobProgress, MigrateTo, key_of, row, rows_of};
    use crate::schema::golden;
    use proptest::{prop_assert, prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn rows_sort_by_dataset_and_number(a in "[a-c]{1,3}", b in "[a-c]{1,3}", x: u64, y: u64) {
            prop_assert_eq!(row(&a, x).cmp(&row(&b, y)), (&a, x).cmp(&(&b, y)));
            let at = row(&a, x);
            prop_assert_eq!(key_of(&at), Ok((a.as_bytes().into(), x)));
            let (first, end) = rows_of(&a);
            prop_assert!(first < row(&a, x) && row(&a, x) < end);
            prop_assert_eq!(first < row(&b, y) && row(&b, y) < end, a == b);
        }
    }

    #[test]
    fn the_record_has_these_bytes() {
        let progress = JobProgress {
            objects_done: 1,
            objects_total: 2,
            bytes_done: 3,
            bytes_total: 4,
            moved_bytes: 5,
            moved_objects: 6,
            failed_objects: 7,
            deleted_objects: 8,
            is_counted: true,
        };
        let job = Job {
            id: 9,
            dataset: "d".into(),
            kind: 3,
            state: 4,
            params: JobParams {
                older_than_ms: Some(0),
                delete: true,
                prefix: "p".into(),
                to: Some(MigrateTo { upstream: "u".into(), prefix: "q/".into() }),
                order: 2,
            },
            requested_by: "AK".into(),
            created_ms: 1000,
            started_ms: 2000,
            ended_ms: 3000,
            node: 1,
            starts: 2,
            cancel_asked: true,
            progress,
            cursor: Some(JobCursor { part: 1, after: "p/x".into() }),
            error: "e".into(),
        };
        golden::check(&job, include_str!("golden/job.hex"));
    }
}
