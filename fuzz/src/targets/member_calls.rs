//! Calls between the members of a Raft group, their answers, heads of snapshots, requests for replicas of
//! segments, streams of appends, answers to pings, and digests of settings. Property: data that decodes is
//! encoded to bytes that decode to the same value.

use bytes::Bytes;
use mlgw_formats::append_frames::{AppendAnswerDecoder, AppendDecoder, AppendHead};
use mlgw_formats::member_calls::{AppendCall, MemberAnswer, MemberCall, MemberRequest};
use mlgw_formats::member_snapshot::SnapshotHead;
use mlgw_formats::node_load::PingAnswer;
use mlgw_formats::node_settings::SettingDigests;
use mlgw_formats::schema;
use mlgw_formats::segment_calls::{ClosedReplica, OpenReplica, ReadReplica};

/// The first byte selects the kind of data.
pub fn run(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else { return };
    match kind % 5 {
        0 => call(Bytes::copy_from_slice(bytes)),
        1 => answer(Bytes::copy_from_slice(bytes)),
        2 => heads(bytes),
        3 => segment_call(bytes),
        _ => appends(bytes),
    }
}

fn call(bytes: Bytes) {
    let Ok((group, request)) = MemberCall::read(bytes) else { return };
    let again = MemberCall::read(MemberCall::encode_request(group, request.clone()));
    assert_eq!(again.as_ref(), Ok(&(group, request.clone())));
    let MemberRequest::Append(append) = request else { return };
    let Ok(entries) = append.decode_entries() else { return };
    let again = AppendCall { entries: AppendCall::encode_entries(&entries), ..append };
    let decoded = again.decode_entries().unwrap_or_default();
    assert_eq!(decoded.len(), entries.len(), "an encoding decodes to as many entries");
    assert_eq!(AppendCall::encode_entries(&decoded), again.entries, "an encoding is stable");
}

fn answer(bytes: Bytes) {
    let Ok(reply) = MemberAnswer::read(bytes) else { return };
    assert_eq!(MemberAnswer::read(MemberAnswer::encode_reply(reply.clone())), Ok(reply));
}

/// Heads of snapshots, answers to pings and digests of settings, which are short messages.
fn heads(bytes: &[u8]) {
    if let Ok(answer) = PingAnswer::decode_answer(bytes) {
        assert_eq!(PingAnswer::decode_answer(&answer.encode_answer()), Ok(answer));
    }
    if let Ok(answer) = SettingDigests::decode_answer(bytes) {
        assert_eq!(SettingDigests::decode_answer(&answer.encode_answer()), Ok(answer));
    }
    let Ok(head) = SnapshotHead::read(bytes) else { return };
    assert_eq!(SnapshotHead::read(&schema::encode(&head)), Ok(head));
}

fn segment_call(bytes: &[u8]) {
    if let Ok(request) = ReadReplica::decode_request(bytes) {
        assert_eq!(ReadReplica::decode_request(&request.encode_request()), Ok(request));
    }
    if let Ok((open, header)) = OpenReplica::decode_request(bytes) {
        assert_eq!(OpenReplica::decode_request(&open.encode_request()), Ok((open, header)));
    }
    if let Ok(answer) = ClosedReplica::decode_answer(bytes) {
        assert_eq!(ClosedReplica::decode_answer(&answer.encode_answer()), Ok(answer));
    }
}

/// The first byte is the length of the pieces in which the rest arrives.
fn appends(bytes: &[u8]) {
    let Some((piece, bytes)) = bytes.split_first() else { return };
    let mut decoder = AppendDecoder::default();
    let mut answers = AppendAnswerDecoder::default();
    for piece in bytes.chunks(usize::from(*piece) + 1) {
        decoder.push(Bytes::copy_from_slice(piece));
        answers.push(Bytes::copy_from_slice(piece));
        drop(answers.last_length());
        while let Ok(Some(frame)) = decoder.next_frame() {
            let head = AppendHead::of(frame.offset, &frame.payload);
            assert_eq!(AppendHead::decode(&head.encode()), Ok(head));
        }
    }
}
