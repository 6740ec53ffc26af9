//! `job` (group 0, at the dataset's name and the job's number): what is to be done with a dataset, and how
//! far it is.
//!
//! A job is claimed by a node, which notes now and then how far it is; after a crash it is claimed again and
//! goes on from there. One that has ended is history, of which the newest few of each dataset are kept.

use crate::key::{BadKey, Family, KeyReader, KeyWriter};
use std::borrow::Cow;

/// A job.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct Job {
    /// Its number; no other job ever has it.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The dataset.
    #[prost(string, tag = "2")]
    pub dataset: String,
    /// What is done.
    #[prost(enumeration = "JobKind", tag = "3")]
    pub kind: i32,
    /// Where it is in its life.
    #[prost(enumeration = "JobState", tag = "4")]
    pub state: i32,
    /// With what.
    #[prost(message, required, tag = "5")]
    pub params: JobParams,
    /// Who asked for it: an access key, or `schedule`.
    #[prost(string, tag = "6")]
    pub requested_by: String,
    /// When it was asked for, milliseconds since the epoch, as are the following times.
    #[prost(int64, tag = "7")]
    pub created_ms: i64,
    /// When it was begun first; 0 is not yet.
    #[prost(int64, tag = "8")]
    pub started_ms: i64,
    /// When it ended; 0 is not yet.
    #[prost(int64, tag = "9")]
    pub ended_ms: i64,
    /// The node that is at it; 0 is none yet.
    #[prost(uint64, tag = "10")]
    pub node: u64,
    /// How often it was begun: more than once after a restart.
    #[prost(uint32, tag = "11")]
    pub starts: u32,
    /// Whether somebody wants it to end.
    #[prost(bool, tag = "12")]
    pub cancel_asked: bool,
    /// How far it is.
    #[prost(message, required, tag = "13")]
    pub progress: JobProgress,
    /// Where it goes on.
    #[prost(message, optional, tag = "14")]
    pub cursor: Option<JobCursor>,
    /// Why it failed, or what of it did.
    #[prost(string, tag = "15")]
    pub error: String,
}

impl Job {
    /// Whether it is over.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        match self.state() {
            JobState::Queued | JobState::Running => false,
            JobState::Done | JobState::Failed | JobState::Cancelled => true,
        }
    }
}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum JobKind {
    /// Brings the dataset in ahead of use.
    Warm = 0,
    /// Imports it from its sources.
    Sync = 1,
    /// Drops clean copies that nobody read for long.
    Evict = 2,
    /// Drops all clean copies.
    Clear = 3,
    /// Moves a bound bucket to another upstream.
    Migrate = 4,
}

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum JobState {
    /// Nobody is at it yet.
    Queued = 0,
    /// A node is at it.
    Running = 1,
    /// It is done.
    Done = 2,
    /// It could not be done, or not all of it.
    Failed = 3,
    /// Somebody did not want it any more.
    Cancelled = 4,
}

/// What a job is done with.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct JobParams {
    /// Of an eviction: copies go that were not read for so long, in milliseconds.
    #[prost(uint64, optional, tag = "1")]
    pub older_than_ms: Option<u64>,
    /// Of a sync: what was imported and is gone from its source goes here, too.
    #[prost(bool, tag = "2")]
    pub delete: bool,
    /// Only keys that begin so.
    #[prost(string, tag = "3")]
    pub prefix: String,
    /// Of a migration: where to.
    #[prost(message, optional, tag = "4")]
    pub to: Option<MigrateTo>,
    /// Of a warm: which comes first.
    #[prost(enumeration = "JobOrder", tag = "5")]
    pub order: i32,
}

/// In which order a job goes through a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum JobOrder {
    /// As keys sort.
    Sequential = 0,
    /// Objects at random.
    Shuffled = 1,
    /// Shards at random, which are what one directory holds; within one as keys sort.
    ShardShuffled = 2,
}

/// Where a bound bucket is moved to.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct MigrateTo {
    /// The upstream's name in the configuration.
    #[prost(string, tag = "1")]
    pub upstream: String,
    /// What keys there begin with that are shown here without it.
    #[prost(string, tag = "2")]
    pub prefix: String,
}

/// How far a job is. Totals are what is known of them by now.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct JobProgress {
    /// Objects that are seen to.
    #[prost(uint64, tag = "1")]
    pub objects_done: u64,
    /// Objects there are.
    #[prost(uint64, tag = "2")]
    pub objects_total: u64,
    /// Their bytes that are seen to.
    #[prost(uint64, tag = "3")]
    pub bytes_done: u64,
    /// Their bytes.
    #[prost(uint64, tag = "4")]
    pub bytes_total: u64,
    /// Bytes that had to be moved for it: fetched, imported, promoted or let go of.
    #[prost(uint64, tag = "5")]
    pub moved_bytes: u64,
    /// Objects of which something had to be moved.
    #[prost(uint64, tag = "6")]
    pub moved_objects: u64,
    /// Objects that could not be seen to.
    #[prost(uint64, tag = "7")]
    pub failed_objects: u64,
    /// Objects that were deleted.
    #[prost(uint64, tag = "8")]
    pub deleted_objects: u64,
    /// Whether the totals are final.
    #[prost(bool, tag = "9")]
    pub is_counted: bool,
}

/// Where a job goes on.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct JobCursor {
    /// The slice or source that it is at, from 0.
    #[prost(uint32, tag = "1")]
    pub part: u32,
    /// The last key of it that is done with; empty before the first.
    #[prost(string, tag = "2")]
    pub after: String,
}

/// The row of a job.
#[must_use]
pub fn row(dataset: &str, id: u64) -> Vec<u8> {
    KeyWriter::new(Family::Job).name(dataset.as_bytes()).u64(id).finish()
}

/// The rows of all jobs of a dataset: the first, and the end.
#[must_use]
pub fn rows_of(dataset: &str) -> (Vec<u8>, Vec<u8>) {
    let first = KeyWriter::new(Family::Job).name(dataset.as_bytes()).finish();
    (first.clone(), crate::key::after_prefix(first))
}

/// The dataset and the number in a row.
///
/// # Errors
/// When it is no row of this family.
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
