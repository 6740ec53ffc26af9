//! `meta`: one row each for the applied log id, the membership, the counters of ids and the key of upload
//! ids.
//!
//! The applied log id and the membership are written in the same batch as what applying that
//! entry changed, so that any flushed state says itself how far it reaches.

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
    /// The key of upload ids (group 0).
    UploadKey = 8,
    /// The timeline that the rows belong to (group 0).
    Incarnation = 9,
    /// The timelines that this one descends from, and where each ended (group 0).
    EarlierTimelines = 10,
}

impl MetaRow {
    /// Its key.
    #[must_use]
    pub fn row(self) -> Vec<u8> {
        KeyWriter::new(Family::Meta).raw(&[self as u8]).finish()
    }
}

/// A counter of ids.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Counter {
    /// The next id to give; 0 stands for 1.
    #[prost(uint64, tag = "1")]
    pub next: u64,
}

/// The timeline that a group's rows belong to.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Timeline {
    /// The cluster.
    #[prost(fixed64, tag = "1")]
    pub cluster: u64,
    /// The incarnation of it.
    #[prost(fixed64, tag = "2")]
    pub incarnation: u64,
}

/// The timelines that this one descends from, the oldest first.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct EarlierTimelines {
    /// Where each ended. Timelines that ended before a server recorded this are not in it.
    #[prost(message, repeated, tag = "1")]
    pub ended: Vec<EndedTimeline>,
}

/// The end of a timeline, as the one that followed it saw it.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct EndedTimeline {
    /// Its incarnation.
    #[prost(fixed64, tag = "1")]
    pub incarnation: u64,
    /// The first body id that it had not handed out: what carries it and a body id from this one on was made
    /// by a server that went on beside this one.
    #[prost(uint64, tag = "2")]
    pub bodies_before: u64,
}

/// What turns body ids into the upload ids that clients see. It is made once and never changes: upload ids
/// have to mean the same on every member, after every restart and after a restore.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct UploadKey {
    /// The key, 16 random bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Uploads of body ids below this one were begun before there was a key; their ids are the body ids.
    #[prost(uint64, tag = "2")]
    pub bodies_from: u64,
}

/// A log id.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct LogPosition {
    /// The term of the leader that proposed the entry.
    #[prost(uint64, tag = "1")]
    pub term: u64,
    /// That leader.
    #[prost(uint64, tag = "2")]
    pub node: u64,
    /// The entry's index.
    #[prost(uint64, tag = "3")]
    pub index: u64,
}

/// A membership and the entry that set it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MembershipRecord {
    /// The entry; none for the empty membership a store begins with.
    #[prost(message, optional, tag = "1")]
    pub position: Option<LogPosition>,
    /// Sets of voters; two while one replaces another.
    #[prost(message, repeated, tag = "2")]
    pub configs: Vec<Voters>,
    /// All members, learners included.
    #[prost(message, repeated, tag = "3")]
    pub members: Vec<Member>,
}

/// A set of voters.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Voters {
    /// Their node ids, ascending.
    #[prost(uint64, repeated, tag = "1")]
    pub nodes: Vec<u64>,
}

/// A member.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Member {
    /// Its node id.
    #[prost(uint64, tag = "1")]
    pub node: u64,
    /// Where other members reach it.
    #[prost(string, tag = "2")]
    pub address: String,
}

#[cfg(test)]
mod tests {
    use super::{
        Counter, EarlierTimelines, EndedTimeline, LogPosition, Member, MembershipRecord, MetaRow, Timeline,
        UploadKey, Voters,
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
