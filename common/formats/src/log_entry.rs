//! Encodings of Raft log entries, log ids, votes and memberships, for the log store and the state machine.
//!
//! A log entry is: format (1), kind (0 blank, 1 commands, 2 membership), term and node of its leader (64 bits
//! each, big-endian), then the batch or the membership record. The entry's index is its key and not in the
//! bytes.

use crate::format_error::FormatError;
use crate::log_batch::Batch;
use crate::log_types::{LogId, RaftLogEntry, StoredMembership, Vote};
use crate::schema::meta::{LogPosition, Member, MembershipRecord, Voters};
use crate::schema::{self, FORMAT};
use bytes::Bytes;
use openraft::impls::leader_id_adv::LeaderId;
use openraft::{BasicNode, EntryPayload, Membership};
use std::collections::{BTreeMap, BTreeSet};

const HEAD_BYTES: usize = 18;

/// Returns the stored bytes of an entry.
pub fn encode(entry: &RaftLogEntry) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_into(entry, &mut bytes);
    bytes
}

/// Appends the stored bytes of an entry.
pub(crate) fn encode_into(entry: &RaftLogEntry, bytes: &mut Vec<u8>) {
    let (kind, membership): (u8, _) = match &entry.payload {
        EntryPayload::Blank => (0, None),
        EntryPayload::Normal(_) => (1, None),
        EntryPayload::Membership(membership) => {
            (2, Some(schema::encode(&membership_record(&None, membership))))
        }
    };
    let payload: &[u8] = match (&entry.payload, &membership) {
        (EntryPayload::Normal(batch), _) => &batch.encoded,
        (_, Some(record)) => record,
        _ => &[],
    };
    bytes.reserve(HEAD_BYTES + payload.len());
    bytes.extend_from_slice(&[FORMAT, kind]);
    bytes.extend_from_slice(&entry.log_id.leader_id.term.to_be_bytes());
    bytes.extend_from_slice(&entry.log_id.leader_id.node_id.to_be_bytes());
    bytes.extend_from_slice(payload);
}

/// Reads the log id of the entry in `bytes`, whose key is `index`.
pub fn log_id(index: u64, bytes: &[u8]) -> Result<LogId, FormatError> {
    let head =
        bytes.first_chunk::<HEAD_BYTES>().ok_or_else(|| FormatError("a log entry is truncated".into()))?;
    let number = |at: usize| head[at..at + 8].iter().fold(0u64, |n, &b| n << 8 | u64::from(b));
    if head[0] != FORMAT {
        return Err(FormatError(format!("a log entry has the unknown format {}", head[0])));
    }
    Ok(LogId::new(LeaderId { term: number(2), node_id: number(10) }, index))
}

/// Decodes the entry in `bytes`, whose key is `index`.
pub fn decode(index: u64, bytes: impl Into<Bytes>) -> Result<RaftLogEntry, FormatError> {
    let bytes = bytes.into();
    let log_id = log_id(index, &bytes)?;
    let kind = bytes[1];
    let payload = match kind {
        0 => EntryPayload::Blank,
        1 => EntryPayload::Normal(Batch::decode(bytes.slice(HEAD_BYTES..))?),
        2 => EntryPayload::Membership(membership(&schema::decode(&bytes[HEAD_BYTES..])?)?.1),
        other => return Err(FormatError(format!("a log entry has the unknown kind {other}"))),
    };
    Ok(RaftLogEntry { log_id, payload })
}

/// Returns a log id as a record.
pub fn log_position(log_id: &LogId) -> LogPosition {
    LogPosition { term: log_id.leader_id.term, node: log_id.leader_id.node_id, index: log_id.index }
}

/// Returns the log id in a record.
pub fn log_id_from_position(position: &LogPosition) -> LogId {
    LogId::new(LeaderId { term: position.term, node_id: position.node }, position.index)
}

/// Encodes a vote: its leader as a log position, with index 1 if the vote is committed and 0 otherwise.
pub fn encode_vote(vote: &Vote) -> Vec<u8> {
    let leader = vote.leader_id;
    schema::encode(&LogPosition { term: leader.term, node: leader.node_id, index: u64::from(vote.committed) })
}

/// Decodes the vote in `bytes`.
pub fn decode_vote(bytes: &[u8]) -> Result<Vote, FormatError> {
    let record: LogPosition = schema::decode(bytes)?;
    let leader_id = LeaderId { term: record.term, node_id: record.node };
    Ok(Vote { leader_id, committed: record.index != 0 })
}

/// Returns a membership as a record.
pub fn record_of_membership(stored: &StoredMembership) -> MembershipRecord {
    membership_record(stored.log_id(), stored.membership())
}

fn membership_record(log_id: &Option<LogId>, membership: &Membership<u64, BasicNode>) -> MembershipRecord {
    let voters = |set: &BTreeSet<u64>| Voters { nodes: set.iter().copied().collect() };
    MembershipRecord {
        position: log_id.as_ref().map(log_position),
        configs: membership.get_joint_config().iter().map(voters).collect(),
        members: membership
            .nodes()
            .map(|(node, info)| Member { node: *node, address: info.addr.clone() })
            .collect(),
    }
}

/// Returns the membership in a record.
pub fn membership_of_record(record: &MembershipRecord) -> Result<StoredMembership, FormatError> {
    let (log_id, membership) = membership(record)?;
    Ok(StoredMembership::new(log_id, membership))
}

fn membership(record: &MembershipRecord) -> Result<(Option<LogId>, Membership<u64, BasicNode>), FormatError> {
    let configs = record.configs.iter().map(|set| set.nodes.iter().copied().collect()).collect();
    let nodes: BTreeMap<u64, BasicNode> =
        record.members.iter().map(|m| (m.node, BasicNode { addr: m.address.clone() })).collect();
    let membership = if record.configs.is_empty() {
        Membership::default()
    } else {
        Membership::new(configs, nodes).map_err(|e| FormatError(e.to_string()))?
    };
    Ok((record.position.as_ref().map(log_id_from_position), membership))
}
