//! Datasets: named parts of buckets, with their schedules. Rows: `dataset` in group 0, keyed by name.
//!
//! The revision rises with every change that a user requests. A change that was built against another
//! revision is rejected. The record holds the number of the active job, so that there is at most one per
//! dataset.

use super::job::{JobKind, JobParams};
use crate::key::{Family, KeyWriter};

/// A dataset.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct Dataset {
    /// Name of the dataset.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The bucket that contains it, native or remote-backed.
    #[prost(string, tag = "2")]
    pub bucket: String,
    /// Key prefixes of its objects; no prefix begins with another. An empty list or prefix is the whole
    /// bucket.
    #[prost(string, repeated, tag = "3")]
    pub slices: Vec<String>,
    /// Sources from which a sync imports.
    #[prost(message, repeated, tag = "4")]
    pub sources: Vec<ImportSource>,
    /// Creation time, milliseconds since the epoch.
    #[prost(int64, tag = "5")]
    pub created_ms: i64,
    /// Number of changes that users made.
    #[prost(uint64, tag = "6")]
    pub revision: u64,
    /// The queued or running job; 0 if there is none.
    #[prost(uint64, tag = "7")]
    pub active_job: u64,
    /// Maximum bytes of its copies that are protected from eviction; `None` if the dataset is not pinned.
    #[prost(uint64, optional, tag = "8")]
    pub pin_bytes_max: Option<u64>,
    /// Scheduled jobs, at most one of each kind.
    #[prost(message, repeated, tag = "9")]
    pub schedules: Vec<Schedule>,
    /// Size of the dataset when a job last visited all of it.
    #[prost(message, optional, tag = "10")]
    pub found: Option<DatasetSize>,
}

/// A bucket of an upstream, or a part of it, that a sync imports.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct ImportSource {
    /// The upstream's name in the configuration.
    #[prost(string, tag = "1")]
    pub upstream: String,
    /// Prefix of the source keys to import.
    #[prost(string, tag = "2")]
    pub prefix: String,
    /// Prefix that replaces it in the keys here.
    #[prost(string, tag = "3")]
    pub into: String,
}

/// A scheduled job.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct Schedule {
    /// Kind of the job.
    #[prost(enumeration = "JobKind", tag = "1")]
    pub kind: i32,
    /// Schedule as a cron expression in UTC.
    #[prost(string, tag = "2")]
    pub cron: String,
    /// Parameters of the job.
    #[prost(message, required, tag = "3")]
    pub params: JobParams,
    /// Due times up to this one are done, milliseconds since the epoch.
    #[prost(int64, tag = "4")]
    pub after_ms: i64,
}

/// Size of a dataset at one time.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct DatasetSize {
    /// Number of objects.
    #[prost(uint64, tag = "1")]
    pub objects: u64,
    /// Bytes of the objects.
    #[prost(uint64, tag = "2")]
    pub bytes: u64,
    /// Time of the count, milliseconds since the epoch.
    #[prost(int64, tag = "3")]
    pub at_ms: i64,
}

/// Returns the row key of the dataset `name`.
#[must_use]
pub fn row(name: &str) -> Vec<u8> {
    KeyWriter::with_capacity(Family::Dataset, name.len() + 1).raw(name.as_bytes()).finish()
}

#[cfg(test)]
mod tests {
    use super::{Dataset, DatasetSize, ImportSource, Schedule, row};
    use crate::schema::{JobParams, golden};
    use proptest::{prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn rows_sort_as_their_names(a in "[a-z0-9.-]{1,9}", b in "[a-z0-9.-]{1,9}") {
            prop_assert_eq!(row(&a).cmp(&row(&b)), a.cmp(&b));
        }
    }

    #[test]
    fn the_record_has_these_bytes() {
        let params =
            JobParams { older_than_ms: Some(5), delete: true, prefix: "p/q".into(), ..JobParams::default() };
        let dataset = Dataset {
            name: "d".into(),
            bucket: "data".into(),
            slices: vec!["p/".into()],
            sources: vec![ImportSource { upstream: "u".into(), prefix: "x/".into(), into: "p/".into() }],
            created_ms: 1_700_000_000_123,
            revision: 2,
            active_job: 3,
            pin_bytes_max: Some(4),
            schedules: vec![Schedule { kind: 1, cron: "@daily".into(), params, after_ms: 1000 }],
            found: Some(DatasetSize { objects: 6, bytes: 7, at_ms: 2000 }),
        };
        golden::check(&dataset, include_str!("golden/dataset.hex"));
    }
}
