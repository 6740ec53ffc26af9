//! Calls between the members of a Raft group, and their answers.
//!
//! A call and an answer are one byte for the format and then a protobuf message, as records are. Log entries
//! travel as the bytes that the log stores: each is its length (32 bits, little-endian) and its bytes, in
//! order, and the first one follows the entry before them. Lengths and numbers are checked before anything of
//! that size is allocated. Nothing is stored.

mod rows;

pub use rows::{RowDigestCall, RowDigestReply, RowVerdict};

use crate::command::{Command, Reject, Reply};
use crate::format_error::FormatError;
use crate::log_entry;
use crate::log_types::{Leadership, LogId, RaftLogEntry, Vote};
use crate::schema::meta::LogPosition;
use crate::schema::{BucketUsage, FORMAT};
use bytes::Bytes;
use mlgw_common::limits::{APPEND_ENTRIES_MAX, MEMBER_CALL_BYTES_MAX, NODE_GROUPS_MAX};
use prost::Message;

/// Maximum number of bodies, and of segments, in one question about readers and in its answer: 10 KiB each.
pub const READERS_BODIES_MAX: usize = 1000;

/// A call to the member of a group on another node.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MemberCall {
    /// The group.
    #[prost(uint32, tag = "1")]
    pub group: u32,
    /// The request.
    #[prost(oneof = "MemberRequest", tags = "2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 17, 18")]
    pub request: Option<MemberRequest>,
}

/// Request of a call.
#[derive(Clone, PartialEq, prost::Oneof)]
#[expect(clippy::large_enum_variant, reason = "few calls exist at a time, each for a moment")]
pub enum MemberRequest {
    /// Appends entries, or shows that the leader is there.
    #[prost(message, tag = "2")]
    Append(AppendCall),
    /// Requests a vote.
    #[prost(message, tag = "3")]
    Vote(VoteCall),
    /// Asks for the answer that a request for a vote would get.
    #[prost(message, tag = "4")]
    PreVote(VoteCall),
    /// Hands the leadership over.
    #[prost(message, tag = "5")]
    Transfer(TransferCall),
    /// Proposes commands to the leader.
    #[prost(message, tag = "6")]
    Propose(ProposeCall),
    /// Asks the leader for the entry that a read must have applied.
    #[prost(message, tag = "7")]
    ReadIndex(ReadIndexCall),
    /// Creates an empty member of the group.
    #[prost(message, tag = "8")]
    CreateMember(CreateMemberCall),
    /// Runs a saga on the leader of the system group.
    #[prost(message, tag = "9")]
    Saga(SagaCall),
    /// Asks a node for the bodies and segments that are being read there.
    #[prost(message, tag = "10")]
    Readers(ReadersCall),
    /// Shows that the leader of several groups is there.
    #[prost(message, tag = "11")]
    Heartbeats(HeartbeatsCall),
    /// Asks the leader if the calling node is a member of the group. Since cluster version 6.
    #[prost(message, tag = "12")]
    IsMember(IsMemberCall),
    /// Asks a node of the first set for usage that the calling node cannot count. Since cluster version 6.
    #[prost(message, tag = "13")]
    Usage(UsageCall),
    /// Asks a member for the digest of its rows after an entry. Since cluster version 7.
    #[prost(message, tag = "16")]
    RowDigest(RowDigestCall),
    /// Sends the result of a comparison of rows to a member. Since cluster version 7.
    #[prost(message, tag = "17")]
    RowVerdict(RowVerdict),
    /// Asks a voter for its vote. A node of an earlier build refuses it.
    #[prost(message, tag = "18")]
    StateVote(StateVoteCall),
}

/// A vote of a member.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct VoteRecord {
    /// Its term.
    #[prost(uint64, tag = "1")]
    pub term: u64,
    /// Node of the candidate or leader.
    #[prost(uint64, tag = "2")]
    pub node: u64,
    /// True if a quorum granted it, so that the node leads.
    #[prost(bool, tag = "3")]
    pub committed: bool,
}

/// Entries for the log of a follower.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AppendCall {
    /// Vote of the leader.
    #[prost(message, required, tag = "1")]
    pub vote: VoteRecord,
    /// The entry before the first one; `None` at the beginning of the log.
    #[prost(message, optional, tag = "2")]
    pub previous: Option<LogPosition>,
    /// The last entry that a quorum has.
    #[prost(message, optional, tag = "3")]
    pub committed: Option<LogPosition>,
    /// The entries, encoded.
    #[prost(bytes = "bytes", tag = "4")]
    pub entries: Bytes,
}

/// Heartbeats of several groups. Their call names the system group.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HeartbeatsCall {
    /// The heartbeats, at most one for each group of a node.
    #[prost(message, repeated, tag = "1")]
    pub heartbeats: Vec<Heartbeat>,
}

/// Heartbeat of one group.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Heartbeat {
    /// The group.
    #[prost(uint32, tag = "1")]
    pub group: u32,
    /// An append without entries.
    #[prost(message, required, tag = "2")]
    pub append: AppendCall,
}

/// Request for a vote.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct VoteCall {
    /// Vote of the candidate.
    #[prost(message, required, tag = "1")]
    pub vote: VoteRecord,
    /// Last entry of the candidate.
    #[prost(message, optional, tag = "2")]
    pub last: Option<LogPosition>,
    /// True if the leader itself started the election.
    #[prost(bool, tag = "3")]
    pub is_transfer: bool,
}

/// Hand-over of the leadership.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct TransferCall {
    /// Vote of the leader.
    #[prost(message, required, tag = "1")]
    pub vote: VoteRecord,
    /// Node of the next leader.
    #[prost(uint64, tag = "2")]
    pub to: u64,
    /// The entry that the next leader must have.
    #[prost(message, optional, tag = "3")]
    pub last: Option<LogPosition>,
}

/// Commands for the log of a leader.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ProposeCall {
    /// Term of the leadership under which they may enter the log.
    #[prost(uint64, tag = "1")]
    pub term: u64,
    /// Node of that leadership.
    #[prost(uint64, tag = "2")]
    pub node: u64,
    /// The commands, encoded as a batch of the log.
    #[prost(bytes = "bytes", tag = "3")]
    pub batch: Bytes,
}

/// Request for the entry that a read must have applied.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ReadIndexCall {
    /// Vote of the calling member, which counts for a quorum. A node of an earlier build ignores it.
    #[prost(message, optional, tag = "1")]
    pub vote: Option<VoteRecord>,
}

/// Request for the vote of a member.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct StateVoteCall {}

/// Request for an empty member.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct CreateMemberCall {}

/// Request for the part of the calling node in the group.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct IsMemberCall {}

/// Request for the usage of a bucket, or of an access key, over all groups but some. Its call names the
/// system group.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct UsageCall {
    /// Id of the bucket; 0 for an access key.
    #[prost(uint64, tag = "1")]
    pub bucket_id: u64,
    /// The access key; empty for a bucket.
    #[prost(string, tag = "2")]
    pub access_key: String,
    /// Groups that the calling node counts.
    #[prost(uint32, repeated, tag = "3")]
    pub without: Vec<u32>,
}

/// Request for a saga: a change of a bucket that takes several steps.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SagaCall {
    /// The command that the saga ends with, or begins with.
    #[prost(message, required, tag = "1")]
    pub command: Command,
}

/// Request for the bodies and segments that are being read on a node. Its call names the system group.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ReadersCall {
    /// Group of the bodies.
    #[prost(uint32, tag = "1")]
    pub group: u32,
    /// Entry of that group that the node must have applied before it answers, else its answer states that it
    /// is behind. Required with bodies.
    #[prost(message, optional, tag = "2")]
    pub applied: Option<LogPosition>,
    /// Ids of the bodies.
    #[prost(uint64, repeated, tag = "3")]
    pub bodies: Vec<u64>,
    /// Ids of the segments.
    #[prost(uint64, repeated, tag = "4")]
    pub segments: Vec<u64>,
    /// Version of the policy that the node must run before it answers, else its answer states that it is
    /// behind. A node of an earlier build ignores it.
    #[prost(uint64, optional, tag = "5")]
    pub policy: Option<u64>,
}

/// Answer to a call.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MemberAnswer {
    /// The answer.
    #[prost(
        oneof = "MemberReply",
        tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 19, 20, 21"
    )]
    pub reply: Option<MemberReply>,
}

/// Content of an answer.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum MemberReply {
    /// All entries are in the log, synced.
    #[prost(message, tag = "1")]
    Appended(EmptyReply),
    /// The entries up to this one are in the log, synced.
    #[prost(message, tag = "2")]
    AppendedTo(LogPosition),
    /// The entry before the first one is not in the log.
    #[prost(message, tag = "3")]
    Conflict(EmptyReply),
    /// The member has seen a higher vote than that of the caller.
    #[prost(message, tag = "4")]
    HigherVote(VoteRecord),
    /// Vote of the member after a request for one.
    #[prost(message, tag = "5")]
    Vote(VoteReply),
    /// The member starts an election.
    #[prost(message, tag = "6")]
    Transferring(EmptyReply),
    /// The member cannot take over: its vote changed (`HigherVote`), or it lacks entries.
    #[prost(message, tag = "7")]
    TransferLacks(TransferReply),
    /// Entry with the proposed commands, which a quorum has.
    #[prost(message, tag = "8")]
    Proposed(LogPosition),
    /// Entry that a read must have applied.
    #[prost(message, tag = "9")]
    ReadIndex(LogPosition),
    /// The commands are not in the log, or the read was not confirmed.
    #[prost(message, tag = "10")]
    Declined(DeclineReply),
    /// The member exists.
    #[prost(message, tag = "11")]
    MemberExists(EmptyReply),
    /// The saga came to an end.
    #[prost(message, tag = "12")]
    Saga(SagaReply),
    /// Those of the bodies and segments that are being read on the node.
    #[prost(message, tag = "13")]
    Readers(ReadersReply),
    /// Answers to the heartbeats of several groups, in their order.
    #[prost(message, tag = "14")]
    Heartbeats(HeartbeatsReply),
    /// The part of the calling node in the group.
    #[prost(message, tag = "15")]
    Membership(MembershipReply),
    /// The usage.
    #[prost(message, tag = "16")]
    Usage(UsageReply),
    /// The digest of the rows, or its absence.
    #[prost(message, tag = "19")]
    RowDigest(RowDigestReply),
    /// The member has recorded the result of a comparison.
    #[prost(message, tag = "20")]
    VerdictRecorded(EmptyReply),
    /// The vote of the member.
    #[prost(message, tag = "21")]
    StatedVote(VoteRecord),
}

/// Reply without content.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct EmptyReply {}

/// Answer to a request for a vote.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct VoteReply {
    /// Vote of the member.
    #[prost(message, required, tag = "1")]
    pub vote: VoteRecord,
    /// True if the vote was granted.
    #[prost(bool, tag = "2")]
    pub is_granted: bool,
    /// Last entry of the member.
    #[prost(message, optional, tag = "3")]
    pub last: Option<LogPosition>,
}

/// Entries that keep a member from taking over.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct TransferReply {
    /// The entry that it must have.
    #[prost(message, optional, tag = "1")]
    pub expected: Option<LogPosition>,
    /// Its last entry.
    #[prost(message, optional, tag = "2")]
    pub last: Option<LogPosition>,
}

/// End of a saga.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SagaReply {
    /// The outcome, as JSON.
    #[prost(bytes = "vec", tag = "1")]
    pub outcome: Vec<u8>,
}

/// Those of the bodies and segments of a question that are being read.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ReadersReply {
    /// Ids of the bodies.
    #[prost(uint64, repeated, tag = "1")]
    pub bodies: Vec<u64>,
    /// Ids of the segments.
    #[prost(uint64, repeated, tag = "2")]
    pub segments: Vec<u64>,
    /// True if the node has not applied the entry of the question yet, or does not run its policy: a reader
    /// that comes later may still read one of the other bodies.
    #[prost(bool, tag = "3")]
    pub is_behind: bool,
    /// True if the node has pinned all segments: it makes a backup.
    #[prost(bool, tag = "4")]
    pub pins_all: bool,
}

/// Part of a node in a group.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct MembershipReply {
    /// True if the node is a member, or will be or was one by a change that is not committed.
    #[prost(bool, tag = "1")]
    pub is_member: bool,
}

/// Usage of a bucket or an access key in the groups of a question.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct UsageReply {
    /// The sum.
    #[prost(message, required, tag = "1")]
    pub usage: BucketUsage,
}

/// Answers to the heartbeats of a call, in their order.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HeartbeatsReply {
    /// The answers.
    #[prost(message, repeated, tag = "1")]
    pub answers: Vec<HeartbeatAnswer>,
}

/// Answer to one heartbeat.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HeartbeatAnswer {
    /// The bytes of a [`MemberAnswer`]; empty if the heartbeat was refused.
    #[prost(bytes = "bytes", tag = "1")]
    pub answer: Bytes,
    /// The reason of a refusal.
    #[prost(string, tag = "2")]
    pub refusal: String,
}

/// Reason to decline a proposal or a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum DeclineReason {
    /// The member does not lead under the leadership of the call.
    NotLeader = 0,
    /// Too many commands wait.
    Overloaded = 1,
    /// It is unknown if the commands take effect.
    UnknownOutcome = 2,
    /// Too few members answered.
    NoQuorum = 3,
    /// The member stops.
    Stopping = 4,
}

/// A declined proposal or read.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct DeclineReply {
    /// The reason.
    #[prost(enumeration = "DeclineReason", tag = "1")]
    pub reason: i32,
    /// The leader, if the member knows another one.
    #[prost(uint64, optional, tag = "2")]
    pub leader: Option<u64>,
}

impl VoteRecord {
    /// Returns a vote as a record.
    #[must_use]
    pub const fn of(vote: &Vote) -> Self {
        Self { term: vote.leader_id.term, node: vote.leader_id.node_id, committed: vote.committed }
    }

    /// Returns the vote in the record.
    #[must_use]
    pub const fn vote(&self) -> Vote {
        Vote { leader_id: Leadership { term: self.term, node_id: self.node }, committed: self.committed }
    }
}

impl MemberCall {
    /// Returns the bytes of a call of `group`.
    #[must_use]
    pub fn encode_request(group: u32, request: MemberRequest) -> Bytes {
        encode(&Self { group, request: Some(request) })
    }

    /// Decodes the call in `bytes`; the returned request exists.
    ///
    /// # Errors
    /// If `bytes` is longer than a call may be, or no call of this version; if a question about readers has
    /// too many ids, or has bodies and no log entry; if there are too many heartbeats, or one has entries; if
    /// a question about usage has too many groups; if the result of a comparison has too many nodes.
    pub fn read(bytes: Bytes) -> Result<(u32, MemberRequest), FormatError> {
        let call: Self = decode(bytes, "a call")?;
        let request = call.request.ok_or_else(|| of_later_version("a call"))?;
        if let MemberRequest::Readers(readers) = &request {
            readers.check()?;
        }
        if let MemberRequest::Heartbeats(heartbeats) = &request {
            heartbeats.check()?;
        }
        if let MemberRequest::RowVerdict(verdict) = &request {
            verdict.check()?;
        }
        if let MemberRequest::Usage(usage) = &request
            && usage.without.len() > NODE_GROUPS_MAX
        {
            let what = format!("a question about usage has more than {NODE_GROUPS_MAX} groups");
            return Err(FormatError(what));
        }
        Ok((call.group, request))
    }
}

impl MemberAnswer {
    /// Returns the bytes of an answer.
    #[must_use]
    pub fn encode_reply(reply: MemberReply) -> Bytes {
        encode(&Self { reply: Some(reply) })
    }

    /// Decodes the answer in `bytes`.
    ///
    /// # Errors
    /// If `bytes` is longer than an answer may be, or no answer of this version; if an answer about readers
    /// has too many ids, if there are too many answers to heartbeats, or if a digest has another length.
    pub fn read(bytes: Bytes) -> Result<MemberReply, FormatError> {
        let answer: Self = decode(bytes, "an answer")?;
        let reply = answer.reply.ok_or_else(|| of_later_version("an answer"))?;
        if let MemberReply::Readers(readers) = &reply {
            check_count(&readers.bodies, "bodies")?;
            check_count(&readers.segments, "segments")?;
        }
        if let MemberReply::Heartbeats(heartbeats) = &reply {
            check_heartbeats(heartbeats.answers.len())?;
        }
        if let MemberReply::RowDigest(digest) = &reply {
            digest.check()?;
        }
        Ok(reply)
    }
}

impl HeartbeatsCall {
    fn check(&self) -> Result<(), FormatError> {
        check_heartbeats(self.heartbeats.len())?;
        if self.heartbeats.iter().any(|heartbeat| !heartbeat.append.entries.is_empty()) {
            return Err(FormatError("a heartbeat has log entries".into()));
        }
        Ok(())
    }
}

impl ReadersCall {
    fn check(&self) -> Result<(), FormatError> {
        check_count(&self.bodies, "bodies")?;
        check_count(&self.segments, "segments")?;
        if !self.bodies.is_empty() && self.applied.is_none() {
            return Err(FormatError("a question about readers has bodies and no log entry".into()));
        }
        Ok(())
    }
}

impl AppendCall {
    /// Returns the encoding of entries.
    #[must_use]
    pub fn encode_entries(entries: &[RaftLogEntry]) -> Bytes {
        let mut bytes = Vec::new();
        for entry in entries {
            let at = bytes.len();
            bytes.extend_from_slice(&[0; 4]);
            log_entry::encode_into(entry, &mut bytes);
            let length = u32::try_from(bytes.len() - at - 4).unwrap_or(u32::MAX);
            assert!(length < u32::MAX, "a log entry is shorter than 4 GiB");
            bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
        }
        Bytes::from(bytes)
    }

    /// Decodes the entries, which share the bytes of the call.
    ///
    /// # Errors
    /// If there are too many, or one of them is no log entry.
    pub fn decode_entries(&self) -> Result<Vec<RaftLogEntry>, FormatError> {
        let cut = || FormatError("a call with log entries is truncated".into());
        let mut index = match &self.previous {
            Some(previous) => previous.index.checked_add(1).ok_or_else(cut)?,
            None => 0,
        };
        let mut entries = Vec::new();
        let mut rest = self.entries.clone();
        while !rest.is_empty() {
            if entries.len() == APPEND_ENTRIES_MAX {
                return Err(FormatError(format!("a call has more than {APPEND_ENTRIES_MAX} log entries")));
            }
            let length = rest.first_chunk::<4>().map(|length| u32::from_le_bytes(*length) as usize);
            let end = length.and_then(|length| length.checked_add(4)).filter(|end| *end <= rest.len());
            let entry = rest.split_to(end.ok_or_else(cut)?).slice(4..);
            entries.push(log_entry::decode(index, entry)?);
            index = index.checked_add(1).ok_or_else(cut)?;
        }
        Ok(entries)
    }
}

impl SagaReply {
    /// Returns the reply with an outcome.
    ///
    /// # Errors
    /// If the outcome has no JSON.
    pub fn of(outcome: &Result<Reply, Reject>) -> Result<Self, FormatError> {
        let outcome = serde_json::to_vec(outcome).map_err(|error| FormatError(error.to_string()))?;
        Ok(Self { outcome })
    }

    /// Returns the outcome.
    ///
    /// # Errors
    /// If it is no outcome of this version.
    pub fn outcome(&self) -> Result<Result<Reply, Reject>, FormatError> {
        serde_json::from_slice(&self.outcome).map_err(|error| FormatError(error.to_string()))
    }
}

impl DeclineReply {
    /// Returns a reply of the reason that its number names; unknown numbers mean that the outcome is unknown.
    #[must_use]
    pub fn known_reason(&self) -> DeclineReason {
        DeclineReason::try_from(self.reason).unwrap_or(DeclineReason::UnknownOutcome)
    }
}

/// Returns the position of an optional log id.
#[must_use]
pub fn position(id: Option<&LogId>) -> Option<LogPosition> {
    id.map(log_entry::log_position)
}

/// Returns the log id of an optional position.
#[must_use]
pub fn log_id(position: Option<&LogPosition>) -> Option<LogId> {
    position.map(log_entry::log_id_from_position)
}

fn of_later_version(what: &str) -> FormatError {
    FormatError(format!("{what} is of a later version"))
}

fn check_heartbeats(count: usize) -> Result<(), FormatError> {
    if count > NODE_GROUPS_MAX {
        return Err(FormatError(format!("a message has more than {NODE_GROUPS_MAX} heartbeats")));
    }
    Ok(())
}

fn check_count(ids: &[u64], what: &str) -> Result<(), FormatError> {
    if ids.len() > READERS_BODIES_MAX {
        return Err(FormatError(format!(
            "a message about readers has more than {READERS_BODIES_MAX} {what}"
        )));
    }
    Ok(())
}

fn encode(message: &impl Message) -> Bytes {
    let mut bytes = Vec::with_capacity(1 + message.encoded_len());
    bytes.push(FORMAT);
    message.encode_raw(&mut bytes);
    Bytes::from(bytes)
}

fn decode<M: Message + Default>(bytes: Bytes, what: &str) -> Result<M, FormatError> {
    if bytes.len() > MEMBER_CALL_BYTES_MAX {
        return Err(FormatError(format!("{what} has more than {MEMBER_CALL_BYTES_MAX} bytes")));
    }
    match bytes.first() {
        Some(&FORMAT) => M::decode(bytes.slice(1..)).map_err(|error| FormatError(format!("{what}: {error}"))),
        Some(other) => Err(FormatError(format!("{what} has the unknown format {other}"))),
        None => Err(FormatError(format!("{what} is empty"))),
    }
}

#[cfg(test)]
mod tests;
