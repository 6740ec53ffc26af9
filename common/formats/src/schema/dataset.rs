//! `dataset` (group 0, at the name): a name for some of a bucket, and what is done with it by the clock.
//!
//! The revision rises with every change that somebody asks for; a change that was built against another one
//! is refused. The number of the job that is at work on it stands here, so that there is never more than one.

use super::job::{JobKind, JobParams};
use crate::key::{Family, KeyWriter};

/// A dataset.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct Dataset {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The bucket that it is of, native or bound.
    #[prost(string, tag = "2")]
    pub bucket: String,
    /// What its keys begin with; none of them is a prefix of another. Empty is the whole bucket.
    #[prost(string, repeated, tag = "3")]
    pub slices: Vec<String>,
    /// Where a sync imports it from.
    #[prost(message, repeated, tag = "4")]
    pub sources: Vec<Source>,
    /// When it was created, milliseconds since the epoch.
    #[prost(int64, tag = "5")]
    pub created_ms: i64,
    /// How often somebody changed it.
    #[prost(uint64, tag = "6")]
    pub revision: u64,
    /// The job that is queued or runs; 0 is none.
    #[prost(uint64, tag = "7")]
    pub active_job: u64,
    /// So many bytes of its copies are not evicted; without it, it is not pinned.
    #[prost(uint64, optional, tag = "8")]
    pub pin_bytes_max: Option<u64>,
    /// What is done by the clock, each kind once at most.
    #[prost(message, repeated, tag = "9")]
    pub schedules: Vec<Schedule>,
    /// What a job found that looked at all of it.
    #[prost(message, optional, tag = "10")]
    pub found: Option<Found>,
}

/// A bucket elsewhere, or some of it, that a sync imports.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct Source {
    /// The upstream's name in the configuration.
    #[prost(string, tag = "1")]
    pub upstream: String,
    /// What keys there begin with that are imported.
    #[prost(string, tag = "2")]
    pub prefix: String,
    /// What they begin with here, instead.
    #[prost(string, tag = "3")]
    pub into: String,
}

/// A job that is begun by the clock.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct Schedule {
    /// What is done.
    #[prost(enumeration = "JobKind", tag = "1")]
    pub kind: i32,
    /// When, as a cron expression in UTC.
    #[prost(string, tag = "2")]
    pub cron: String,
    /// With what.
    #[prost(message, required, tag = "3")]
    pub params: JobParams,
    /// Times up to this one are done with, milliseconds since the epoch.
    #[prost(int64, tag = "4")]
    pub after_ms: i64,
}

/// How much there is.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct Found {
    /// Objects.
    #[prost(uint64, tag = "1")]
    pub objects: u64,
    /// Their bytes.
    #[prost(uint64, tag = "2")]
    pub bytes: u64,
    /// When that was so, milliseconds since the epoch.
    #[prost(int64, tag = "3")]
    pub at_ms: i64,
}

/// The row of the dataset `name`.
#[must_use]
pub fn row(name: &str) -> Vec<u8> {
    KeyWriter::with_capacity(Family::Dataset, name.len() + 1).raw(name.as_bytes()).finish()
}

#[cfg(test)]
mod tests {
    use super::{Dataset, Found, Schedule, Source, row};
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
            sources: vec![Source { upstream: "u".into(), prefix: "x/".into(), into: "p/".into() }],
            created_ms: 1_700_000_000_123,
            revision: 2,
            active_job: 3,
            pin_bytes_max: Some(4),
            schedules: vec![Schedule { kind: 1, cron: "@daily".into(), params, after_ms: 1000 }],
            found: Some(Found { objects: 6, bytes: 7, at_ms: 2000 }),
        };
        golden::check(&dataset, include_str!("golden/dataset.hex"));
    }
}
