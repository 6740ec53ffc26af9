//! Calls between the members of a Raft group, their answers, and heads of snapshots. Property: data that
//! decodes is encoded to bytes that decode to the same value.

use bytes::Bytes;
use mlgw_formats::member_calls::{AppendCall, MemberAnswer, MemberCall, MemberRequest};
use mlgw_formats::member_snapshot::SnapshotHead;
use mlgw_formats::schema;

/// The first byte selects the kind of data.
pub fn run(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else { return };
    match kind % 3 {
        0 => call(Bytes::copy_from_slice(bytes)),
        1 => answer(Bytes::copy_from_slice(bytes)),
        _ => head(bytes),
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

fn head(bytes: &[u8]) {
    let Ok(head) = SnapshotHead::read(bytes) else { return };
    assert_eq!(SnapshotHead::read(&schema::encode(&head)), Ok(head));
}
