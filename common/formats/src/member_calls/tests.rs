//! Calls between members: golden bytes, and bytes that are refused.

use super::{
    AppendCall, CreateMemberCall, DeclineReason, DeclineReply, EmptyReply, Heartbeat, HeartbeatAnswer,
    HeartbeatsCall, HeartbeatsReply, IsMemberCall, MemberAnswer, MemberCall, MemberReply, MemberRequest,
    MembershipReply, ProposeCall, READERS_BODIES_MAX, ReadIndexCall, ReadersCall, ReadersReply, SagaCall,
    SagaReply, StateVoteCall, TransferCall, TransferReply, UsageCall, UsageReply, VoteCall, VoteRecord,
    VoteReply,
};
use crate::command::{Change, Command, LeaseBodies, Reject, Reply};
use crate::log_batch::{Batch, encode_into};
use crate::log_entry;
use crate::log_types::RaftLogEntry;
use crate::schema::meta::{LogPosition, MembershipRecord, Voters};
use crate::schema::{BucketUsage, golden};
use bytes::Bytes;
use mlgw_common::limits::{APPEND_ENTRIES_MAX, MEMBER_CALL_BYTES_MAX, NODE_GROUPS_MAX};
use proptest::prelude::*;

const VOTE: VoteRecord = VoteRecord { term: 3, node: 2, committed: true };
const POSITION: LogPosition = LogPosition { term: 3, node: 2, index: 300 };

fn lease(count: u64) -> Command {
    Command::from(Change::LeaseBodies(LeaseBodies { count }))
}

/// A blank entry, commands, and a membership, with the indexes 301 to 303.
fn entries() -> Vec<RaftLogEntry> {
    let mut encoded = Vec::new();
    for count in [1, 300] {
        encode_into(&lease(count), &mut encoded);
    }
    let membership = MembershipRecord {
        configs: vec![Voters { nodes: vec![2] }],
        members: vec![crate::schema::meta::Member { node: 2, address: String::new() }],
        ..MembershipRecord::default()
    };
    let head = |kind: u8| [&[1, kind][..], &3u64.to_be_bytes(), &2u64.to_be_bytes()].concat();
    let stored = [
        head(0),
        [head(1), Batch::decode(Bytes::from(encoded)).unwrap().encoded.to_vec()].concat(),
        [head(2), crate::schema::encode(&membership)].concat(),
    ];
    (301..).zip(stored).map(|(index, bytes)| log_entry::decode(index, bytes).unwrap()).collect()
}

fn append() -> AppendCall {
    AppendCall {
        vote: VOTE,
        previous: Some(POSITION),
        committed: Some(LogPosition { index: 299, ..POSITION }),
        entries: AppendCall::encode_entries(&entries()),
    }
}

fn heartbeats(count: usize) -> HeartbeatsCall {
    let append = AppendCall { vote: VOTE, previous: Some(POSITION), ..AppendCall::default() };
    HeartbeatsCall { heartbeats: vec![Heartbeat { group: 7, append }; count] }
}

fn usage_of(without: Vec<u32>) -> UsageCall {
    UsageCall { bucket_id: 5, access_key: "AK".to_owned(), without }
}

fn readers() -> ReadersCall {
    ReadersCall { group: 1, applied: Some(POSITION), bodies: vec![5, 300], segments: vec![9], policy: None }
}

#[test]
fn the_calls_have_these_bytes() {
    let vote = VoteCall { vote: VOTE, last: Some(POSITION), is_transfer: true };
    let transfer = TransferCall { vote: VOTE, to: 3, last: Some(POSITION) };
    let propose = ProposeCall { term: 3, node: 2, batch: Bytes::from_static(&[0, 0, 0, 0]) };
    let requests = [
        (MemberRequest::Append(append()), include_str!("golden/append.hex")),
        (MemberRequest::Vote(vote), include_str!("golden/vote.hex")),
        (MemberRequest::PreVote(vote), include_str!("golden/pre_vote.hex")),
        (MemberRequest::Transfer(transfer), include_str!("golden/transfer.hex")),
        (MemberRequest::Propose(propose), include_str!("golden/propose.hex")),
        (MemberRequest::ReadIndex(ReadIndexCall { vote: None }), include_str!("golden/read_index.hex")),
        (MemberRequest::ReadIndex(ReadIndexCall { vote: Some(VOTE) }), "01 0807 3a08 0a06 0803 1002 1801"),
        (MemberRequest::StateVote(StateVoteCall {}), "01 0807 920100"),
        (MemberRequest::CreateMember(CreateMemberCall {}), include_str!("golden/create_member.hex")),
        (MemberRequest::IsMember(IsMemberCall {}), "01 0807 6200"),
        (MemberRequest::Usage(usage_of(vec![1, 2])), "01 0807 6a0a 0805 1202414b 1a020102"),
        (MemberRequest::Saga(SagaCall { command: lease(300) }), "01 0807 4a07 0a05 5203 08ac02"),
        (MemberRequest::Readers(readers()), "01 0807 5213 0801 1207 0803 1002 18ac02 1a03 05ac02 2201 09"),
        (
            MemberRequest::Readers(ReadersCall { policy: Some(300), ..ReadersCall::default() }),
            "01 0807 5203 28ac02",
        ),
        (
            MemberRequest::Heartbeats(heartbeats(1)),
            "01 0807 5a17 0a15 0807 1211 0a06 0803 1002 1801 1207 0803 1002 18ac02",
        ),
    ];
    for (request, hex) in requests {
        golden::check(&MemberCall { group: 7, request: Some(request.clone()) }, hex);
        let bytes = MemberCall::encode_request(7, request.clone());
        assert_eq!(MemberCall::read(bytes).unwrap(), (7, request));
    }
}

#[test]
fn the_answers_have_these_bytes() {
    let vote = VoteReply { vote: VOTE, is_granted: true, last: Some(POSITION) };
    let lacks = TransferReply { expected: Some(POSITION), last: None };
    let rejected = SagaReply::of(&Err(Reject::BucketNotEmpty)).unwrap();
    assert_eq!(rejected.outcome(), Ok(Err(Reject::BucketNotEmpty)));
    assert_eq!(SagaReply::of(&Ok(Reply::Done)).unwrap().outcome(), Ok(Ok(Reply::Done)));
    assert!(SagaReply { outcome: b"{".to_vec() }.outcome().is_err());
    let declined = DeclineReply { reason: DeclineReason::NoQuorum as i32, leader: Some(2) };
    let usage = BucketUsage { bytes: 8, ..BucketUsage::default() };
    let read = ReadersReply { bodies: vec![300], segments: vec![9], ..ReadersReply::default() };
    let behind = ReadersReply { is_behind: true, ..read.clone() };
    let answers = vec![
        HeartbeatAnswer { answer: Bytes::from_static(&[1, 0x0a, 0]), refusal: String::new() },
        HeartbeatAnswer { answer: Bytes::new(), refusal: "n".to_owned() },
    ];
    let replies = [
        (MemberReply::Appended(EmptyReply {}), "01 0a00"),
        (MemberReply::AppendedTo(POSITION), "01 1207 0803 1002 18ac02"),
        (MemberReply::Conflict(EmptyReply {}), "01 1a00"),
        (MemberReply::HigherVote(VOTE), "01 2206 0803 1002 1801"),
        (MemberReply::Vote(vote), "01 2a13 0a06 0803 1002 1801 1001 1a07 0803 1002 18ac02"),
        (MemberReply::Transferring(EmptyReply {}), "01 3200"),
        (MemberReply::TransferLacks(lacks), "01 3a09 0a07 0803 1002 18ac02"),
        (MemberReply::Proposed(POSITION), "01 4207 0803 1002 18ac02"),
        (MemberReply::ReadIndex(POSITION), "01 4a07 0803 1002 18ac02"),
        (MemberReply::Declined(declined), "01 5204 0803 1002"),
        (MemberReply::MemberExists(EmptyReply {}), "01 5a00"),
        (MemberReply::Membership(MembershipReply { is_member: true }), "01 7a02 0801"),
        (MemberReply::Membership(MembershipReply { is_member: false }), "01 7a00"),
        (MemberReply::Usage(UsageReply { usage }), "01 820104 0a021808"),
        (MemberReply::Saga(rejected), "01 621a 0a18 7b22457272223a224275636b65744e6f74456d707479227d"),
        (MemberReply::Readers(read), "01 6a07 0a02 ac02 1201 09"),
        (MemberReply::Readers(behind), "01 6a09 0a02 ac02 1201 09 1801"),
        (MemberReply::StatedVote(VOTE), "01 aa0106 0803 1002 1801"),
        (MemberReply::Heartbeats(HeartbeatsReply { answers }), "01 720c 0a05 0a03 010a00 0a03 1201 6e"),
    ];
    for (reply, hex) in replies {
        golden::check(&MemberAnswer { reply: Some(reply.clone()) }, hex);
        assert_eq!(MemberAnswer::read(MemberAnswer::encode_reply(reply.clone())).unwrap(), reply);
    }
}

#[test]
fn entries_are_the_bytes_of_the_log() {
    let (sent, call) = (entries(), append());
    let received = call.decode_entries().unwrap();
    let stored = |entries: &[RaftLogEntry]| entries.iter().map(log_entry::encode).collect::<Vec<_>>();
    assert_eq!(stored(&received), stored(&sent));
    assert_eq!(received.iter().map(|entry| entry.log_id.index).collect::<Vec<_>>(), [301, 302, 303]);
    let mut rest = &call.entries[..];
    for bytes in stored(&sent) {
        let (length, after) = rest.split_first_chunk::<4>().unwrap();
        assert_eq!(u32::from_le_bytes(*length) as usize, bytes.len());
        rest = after.strip_prefix(&bytes[..]).unwrap();
    }
    let first = AppendCall { previous: None, ..call };
    assert_eq!(first.decode_entries().unwrap()[0].log_id.index, 0, "an empty log begins at 0");
}

#[test]
fn hostile_bytes_are_refused() {
    let with = |entries: Vec<u8>| AppendCall { entries: Bytes::from(entries), ..append() }.decode_entries();
    assert!(with(vec![1, 0, 0]).is_err());
    assert!(with(vec![0xFF, 0xFF, 0xFF, 0xFF, 1]).is_err(), "longer than the call");
    assert!(with(vec![0, 0, 0, 0]).is_err(), "no entry is empty");
    let blank = AppendCall::encode_entries(&entries()[..1]);
    assert_eq!(with(blank.repeat(APPEND_ENTRIES_MAX)).unwrap().len(), APPEND_ENTRIES_MAX);
    let more = with(blank.repeat(APPEND_ENTRIES_MAX + 1)).unwrap_err().to_string();
    assert!(more.contains("more than"), "{more}");
    let last = LogPosition { index: u64::MAX, ..POSITION };
    assert!(AppendCall { previous: Some(last), ..append() }.decode_entries().is_err());

    let long = Bytes::from(vec![1; MEMBER_CALL_BYTES_MAX + 1]);
    assert!(MemberCall::read(long.clone()).is_err() && MemberAnswer::read(long).is_err());
    for bytes in [&[][..], &[2, 8, 1], &[1, 0xFF], &[1, 8, 7]] {
        assert!(MemberCall::read(Bytes::copy_from_slice(bytes)).is_err(), "{bytes:?}");
    }
    assert!(MemberAnswer::read(Bytes::from_static(&[1])).is_err(), "an answer of a later version");
    let call =
        |heartbeats| MemberCall::read(MemberCall::encode_request(0, MemberRequest::Heartbeats(heartbeats)));
    assert!(call(heartbeats(NODE_GROUPS_MAX)).is_ok());
    assert!(call(heartbeats(NODE_GROUPS_MAX + 1)).is_err());
    let with_entries = vec![Heartbeat { group: 7, append: append() }];
    assert!(call(HeartbeatsCall { heartbeats: with_entries }).is_err(), "heartbeats have no entries");
    let unknown = DeclineReply { reason: 99, leader: None };
    assert_eq!(unknown.known_reason(), DeclineReason::UnknownOutcome);
}

#[test]
fn a_question_about_readers_has_a_limit_and_names_the_entry_of_its_bodies() {
    let sent =
        |call: ReadersCall| MemberCall::read(MemberCall::encode_request(0, MemberRequest::Readers(call)));
    let full = vec![u64::MAX; READERS_BODIES_MAX];
    let most = ReadersCall { bodies: full.clone(), segments: full.clone(), ..readers() };
    assert_eq!(sent(most.clone()).unwrap().1, MemberRequest::Readers(most.clone()));
    let more = vec![1; READERS_BODIES_MAX + 1];
    let refused = |call: ReadersCall| sent(call).unwrap_err().to_string();
    let bodies = refused(ReadersCall { bodies: more.clone(), ..most.clone() });
    assert!(bodies.contains("more than 1000 bodies"), "{bodies}");
    let segments = refused(ReadersCall { segments: more.clone(), ..most.clone() });
    assert!(segments.contains("more than 1000 segments"), "{segments}");
    let no_entry = refused(ReadersCall { applied: None, ..most.clone() });
    assert!(no_entry.contains("no log entry"), "{no_entry}");
    assert!(sent(ReadersCall { applied: None, bodies: vec![], ..most }).is_ok(), "segments need none");

    let answered = |bodies: &[u64], segments: &[u64]| {
        let (bodies, segments) = (bodies.to_vec(), segments.to_vec());
        let reply = ReadersReply { bodies, segments, ..ReadersReply::default() };
        MemberAnswer::read(MemberAnswer::encode_reply(MemberReply::Readers(reply)))
    };
    assert!(answered(&full, &full).is_ok());
    assert!(answered(&more, &full).is_err() && answered(&full, &more).is_err());
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>, entries: Vec<u8>) {
        let bytes = Bytes::from([vec![1], bytes].concat());
        if let Ok((_, MemberRequest::Append(append))) = MemberCall::read(bytes.clone()) {
            let _ = append.decode_entries();
        }
        let _ = MemberAnswer::read(bytes);
        let _ = AppendCall { entries: Bytes::from(entries), ..append() }.decode_entries();
    }
}
