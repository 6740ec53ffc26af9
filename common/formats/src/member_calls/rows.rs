//! Messages with which the members of a group compare their rows: digests of the rows after one entry, and
//! the result.
//!
//! The leader asks each member for its digest and sends the result to all of them. Nothing is stored.

use crate::format_error::FormatError;
use mlgw_common::limits::NODES_MAX;

/// Bytes of a digest: SHA-256.
const ROW_DIGEST_BYTES: usize = 32;

/// Question for the digest of the rows of the member.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct RowDigestCall {
    /// Index of the entry with the command [`CompareRows`](crate::command::CompareRows).
    #[prost(uint64, tag = "1")]
    pub index: u64,
}

/// Answer to a question for a digest. Without a digest the member has none for this entry, and will have none
/// unless `is_pending`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RowDigestReply {
    /// True if the member has not applied the entry yet, or still reads its rows.
    #[prost(bool, tag = "1")]
    pub is_pending: bool,
    /// The digest; empty if there is none.
    #[prost(bytes = "vec", tag = "2")]
    pub digest: Vec<u8>,
}

/// Result of a comparison of the rows of a group.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RowVerdict {
    /// Index of the entry after which the rows were digested.
    #[prost(uint64, tag = "1")]
    pub index: u64,
    /// Time of the result by the clock of the leader, milliseconds since the epoch.
    #[prost(int64, tag = "2")]
    pub compared_ms: i64,
    /// Nodes whose rows differ from those of most members. If no digest is that of most members, all nodes
    /// with a digest.
    #[prost(uint64, repeated, tag = "3")]
    pub differing: Vec<u64>,
    /// Nodes without a digest.
    #[prost(uint64, repeated, tag = "4")]
    pub without: Vec<u64>,
    /// True if the digests differ and none is that of most members.
    #[prost(bool, tag = "5")]
    pub is_undecided: bool,
}

impl RowDigestReply {
    pub(super) fn check(&self) -> Result<(), FormatError> {
        match self.digest.len() {
            0 | ROW_DIGEST_BYTES => Ok(()),
            other => Err(FormatError(format!("a digest of rows has {other} bytes"))),
        }
    }
}

impl RowVerdict {
    pub(super) fn check(&self) -> Result<(), FormatError> {
        if self.differing.len() > NODES_MAX || self.without.len() > NODES_MAX {
            return Err(FormatError(format!("a comparison of rows has more than {NODES_MAX} nodes")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{EmptyReply, MemberAnswer, MemberCall, MemberReply, MemberRequest};
    use super::{ROW_DIGEST_BYTES, RowDigestCall, RowDigestReply, RowVerdict};
    use crate::schema::golden;
    use mlgw_common::limits::NODES_MAX;

    #[test]
    fn calls_and_answers_have_these_bytes() {
        let verdict = RowVerdict {
            index: 300,
            compared_ms: 5,
            differing: vec![3],
            without: vec![2, 4],
            is_undecided: true,
        };
        let requests = [
            (MemberRequest::RowDigest(RowDigestCall { index: 300 }), "01 0807 820103 08ac02"),
            (MemberRequest::RowVerdict(verdict), "01 0807 8a010e 08ac02 1005 1a0103 22020204 2801"),
        ];
        for (request, hex) in requests {
            golden::check(&MemberCall { group: 7, request: Some(request.clone()) }, hex);
            let bytes = MemberCall::encode_request(7, request.clone());
            assert_eq!(MemberCall::read(bytes), Ok((7, request)));
        }
        let pending = RowDigestReply { is_pending: true, digest: vec![] };
        let replies = [
            (MemberReply::RowDigest(pending), "01 9a0102 0801"),
            (MemberReply::VerdictRecorded(EmptyReply {}), "01 a20100"),
        ];
        for (reply, hex) in replies {
            golden::check(&MemberAnswer { reply: Some(reply.clone()) }, hex);
            assert_eq!(MemberAnswer::read(MemberAnswer::encode_reply(reply.clone())), Ok(reply));
        }
    }

    #[test]
    fn digests_of_another_length_and_too_many_nodes_are_refused() {
        let answered = |bytes| {
            let reply = RowDigestReply { is_pending: false, digest: vec![1; bytes] };
            MemberAnswer::read(MemberAnswer::encode_reply(MemberReply::RowDigest(reply)))
        };
        assert!(answered(0).is_ok() && answered(ROW_DIGEST_BYTES).is_ok());
        assert!(answered(ROW_DIGEST_BYTES - 1).is_err() && answered(ROW_DIGEST_BYTES + 1).is_err());
        let sent = |differing: usize, without: usize| {
            let (differing, without) = (vec![1; differing], vec![2; without]);
            let verdict = RowVerdict { differing, without, ..RowVerdict::default() };
            MemberCall::read(MemberCall::encode_request(7, MemberRequest::RowVerdict(verdict)))
        };
        assert!(sent(NODES_MAX, NODES_MAX).is_ok());
        assert!(sent(NODES_MAX + 1, 0).is_err() && sent(0, NODES_MAX + 1).is_err());
    }
}
