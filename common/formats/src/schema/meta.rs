//! State of a group's Raft log and id counters. Rows: `meta`, one each for the applied log id, the
//! membership, the counters of ids, the key of upload ids, the timelines, the cluster's version, its duty
//! node and its rebalance.
//!
//! The applied log id and the membership are written in the same batch as the changes of that entry, so that
//! any flushed state names the last entry that it contains.

use crate::key::{Family, KeyWriter};

/// A row of the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MetaRow {
    /// The id of the last applied log entry.
    Applied = 1,
    /// The last applied membership.
    Membership = 2,
    /// The next bucket id (group 0).
    NextBucket = 3,
    /// The next body id (group 0).
    NextBody = 4,
    /// The next segment id (group 0).
    NextSegment = 5,
    /// The next job's number (group 0).
    NextJob = 6,
    // Number 7 is not assigned.
    /// The key of upload ids (group 0).
    UploadKey = 8,
    /// The timeline that the rows belong to (group 0), as a [`Timeline`]. Named after the
    /// incarnation, the part of a timeline that changes while its cluster stays the same.
    Incarnation = 9,
    /// The timelines that this one descends from, and where each ended (group 0).
    EarlierTimelines = 10,
    /// The cluster's version (group 0), as a [`ClusterVersion`]. Absent in the first version.
    ClusterVersion = 11,
    /// The next node's id (group 0). Absent until a node joins.
    NextNode = 12,
    /// The duty node (group 0), as a [`Duty`](super::Duty). Absent until it changes for the first time.
    Duty = 13,
    /// The rebalance that is requested (group 0), as a [`Rebalance`](super::Rebalance). Absent without one.
    Rebalance = 14,
    /// The number of the next allotment of a quota (group 0). Absent until one is divided.
    NextAllotment = 15,
    /// The latest run of a saga that dropped a bucket in this group, as a [`SagaRun`].
    LastDrop = 16,
}

impl MetaRow {
    /// Returns the row's key.
    #[must_use]
    pub fn row(self) -> Vec<u8> {
        KeyWriter::new(Family::Meta).raw(&[self as u8]).finish()
    }
}

/// A counter of ids.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Counter {
    /// Next id to hand out; 0 means 1.
    #[prost(uint64, tag = "1")]
    pub next: u64,
}

/// A run of a saga.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct SagaRun {
    /// Index of its first command in the log of the system group. Runs are one after the other.
    #[prost(uint64, tag = "1")]
    pub index: u64,
}

/// The timeline that a group's rows belong to.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Timeline {
    /// The cluster.
    #[prost(fixed64, tag = "1")]
    pub cluster: u64,
    /// Incarnation of the cluster.
    #[prost(fixed64, tag = "2")]
    pub incarnation: u64,
}

/// The timelines that this one descends from, the oldest first.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct EarlierTimelines {
    /// End of each timeline. Timelines that ended before a server recorded ends are missing.
    #[prost(message, repeated, tag = "1")]
    pub ended: Vec<EndedTimeline>,
}

/// End of a timeline, as recorded by the timeline that followed it.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct EndedTimeline {
    /// Incarnation of the timeline.
    #[prost(fixed64, tag = "1")]
    pub incarnation: u64,
    /// First body id not handed out. Data with this incarnation and a body id from this
    /// one on was written by a server that continued the old timeline beside this one.
    #[prost(uint64, tag = "2")]
    pub bodies_before: u64,
}

/// Key that turns body ids into the upload ids that clients see. It is created once and never changes: upload
/// ids must be valid on every member, after every restart and after a restore.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct UploadKey {
    /// The key, 16 random bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// First body id with an encrypted upload id. Uploads with smaller body ids began before the key existed;
    /// their upload ids are the body ids.
    #[prost(uint64, tag = "2")]
    pub bodies_from: u64,
}

/// The version of a cluster: see [`crate::cluster_version`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ClusterVersion {
    /// The version.
    #[prost(uint32, tag = "1")]
    pub version: u32,
}

/// A log id.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct LogPosition {
    /// The term of the leader that proposed the entry.
    #[prost(uint64, tag = "1")]
    pub term: u64,
    /// Node id of that leader.
    #[prost(uint64, tag = "2")]
    pub node: u64,
    /// The entry's index.
    #[prost(uint64, tag = "3")]
    pub index: u64,
}

/// A membership and the entry that set it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MembershipRecord {
    /// Position of the entry; `None` for the empty membership of a new store.
    #[prost(message, optional, tag = "1")]
    pub position: Option<LogPosition>,
    /// Sets of voters; two during a joint configuration change.
    #[prost(message, repeated, tag = "2")]
    pub configs: Vec<Voters>,
    /// All members, learners included.
    #[prost(message, repeated, tag = "3")]
    pub members: Vec<Member>,
}

/// A set of voters.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Voters {
    /// Node ids of the voters, ascending.
    #[prost(uint64, repeated, tag = "1")]
    pub nodes: Vec<u64>,
}

/// A member.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Member {
    /// Node id of the member.
    #[prost(uint64, tag = "1")]
    pub node: u64,
    /// Address at which other members connect to it.
    #[prost(string, tag = "2")]
    pub address: String,
}

#[cfg(test)]
mod tests {
    use super::{
        ClusterVersion, Counter, EarlierTimelines, EndedTimeline, LogPosition, Member, MembershipRecord,
        MetaRow, Timeline, UploadKey, Voters,
    };
    use crate::schema::golden;

    #[test]
    fn the_rows_have_these_keys() {
        assert_eq!(MetaRow::Applied.row(), [0x01, 1]);
        assert_eq!(MetaRow::NextSegment.row(), [0x01, 5]);
        assert_eq!(MetaRow::UploadKey.row(), [0x01, 8]);
    }

    #[test]
    fn the_records_have_these_bytes() {
        let position = LogPosition { term: 1, node: 2, index: 300 };
        golden::check(&position, include_str!("golden/log_position.hex"));
        golden::check(&Counter { next: 300 }, include_str!("golden/counter.hex"));
        golden::check(&ClusterVersion { version: 300 }, include_str!("golden/cluster_version.hex"));
        let timeline = Timeline { cluster: 0x0102_0304, incarnation: 5 };
        golden::check(&timeline, include_str!("golden/timeline.hex"));
        let ended = EndedTimeline { incarnation: 0x0102_0304, bodies_before: 300 };
        golden::check(&EarlierTimelines { ended: vec![ended] }, include_str!("golden/earlier_timelines.hex"));
        let key = UploadKey { key: vec![7; 16], bodies_from: 300 };
        golden::check(&key, include_str!("golden/upload_key.hex"));
        let membership = MembershipRecord {
            position: Some(position),
            configs: vec![Voters { nodes: vec![1, 2] }],
            members: vec![Member { node: 1, address: "a".into() }],
        };
        golden::check(&membership, include_str!("golden/membership.hex"));
    }
}
