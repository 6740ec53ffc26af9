//! Snapshots that are sent to another member of a Raft group: a head, then the bytes of the files.
//!
//! The head is one byte for the format and then a protobuf message. The body is, for each file in the order
//! of the head, its bytes and their CRC32C (32 bits, little-endian). A name in the head is a plain name that
//! stays within the directory of the receiver.

use crate::format_error::FormatError;
use crate::log_entry;
use crate::log_types::SnapshotMeta;
use crate::member_calls::{VoteRecord, log_id, position};
use crate::schema;
use crate::schema::meta::{LogPosition, MembershipRecord};
use mlgw_common::limits::{SNAPSHOT_FILES_MAX, SNAPSHOT_HEAD_BYTES_MAX};
use std::collections::BTreeSet;

/// Bytes of the checksum that follows a file.
pub const FILE_CHECKSUM_BYTES: usize = 4;

/// Longest name of a file in a snapshot.
const NAME_BYTES_MAX: usize = 64;

/// Head of a snapshot.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SnapshotHead {
    /// The group.
    #[prost(uint32, tag = "1")]
    pub group: u32,
    /// Vote of the leader that sends it.
    #[prost(message, required, tag = "2")]
    pub vote: VoteRecord,
    /// The last entry that it contains.
    #[prost(message, optional, tag = "3")]
    pub last: Option<LogPosition>,
    /// The last membership that it contains.
    #[prost(message, required, tag = "4")]
    pub membership: MembershipRecord,
    /// Its files.
    #[prost(message, repeated, tag = "5")]
    pub files: Vec<SnapshotFile>,
}

/// A file of a snapshot.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SnapshotFile {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its length in bytes.
    #[prost(uint64, tag = "2")]
    pub bytes: u64,
}

/// Answer to a snapshot that was installed, or refused for a higher vote.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct SnapshotReply {
    /// Vote of the receiver.
    #[prost(message, required, tag = "1")]
    pub vote: VoteRecord,
}

impl SnapshotHead {
    /// Returns the head of a snapshot with position and membership of `meta`.
    #[must_use]
    pub fn new(group: u32, vote: VoteRecord, meta: &SnapshotMeta, files: Vec<SnapshotFile>) -> Self {
        Self {
            group,
            vote,
            last: position(meta.last_log_id.as_ref()),
            membership: log_entry::record_of_membership(&meta.last_membership),
            files,
        }
    }

    /// Decodes a head, and checks its files.
    ///
    /// # Errors
    /// If it is too long, does not decode, or names a file that is not within a directory.
    pub fn read(bytes: &[u8]) -> Result<Self, FormatError> {
        if bytes.len() > SNAPSHOT_HEAD_BYTES_MAX {
            return Err(FormatError(format!(
                "a snapshot's head has more than {SNAPSHOT_HEAD_BYTES_MAX} bytes"
            )));
        }
        let head: Self = schema::decode(bytes)?;
        if head.files.len() > SNAPSHOT_FILES_MAX {
            return Err(FormatError(format!("a snapshot has more than {SNAPSHOT_FILES_MAX} files")));
        }
        let mut names = BTreeSet::new();
        let mut total: u64 = 0;
        for SnapshotFile { name, bytes } in &head.files {
            if !is_plain_name(name) || !names.insert(name) {
                return Err(FormatError("a snapshot has a file with an invalid name".into()));
            }
            let sum = total.checked_add(*bytes);
            total = sum.ok_or_else(|| FormatError("the files of a snapshot are too long".into()))?;
        }
        head.meta()?;
        Ok(head)
    }

    /// Returns position and membership.
    ///
    /// # Errors
    /// If the membership is none.
    pub fn meta(&self) -> Result<SnapshotMeta, FormatError> {
        let last_membership = log_entry::membership_of_record(&self.membership)?;
        Ok(SnapshotMeta { last_log_id: log_id(self.last.as_ref()), last_membership })
    }

    /// Returns the bytes of all files.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).fold(0, u64::saturating_add)
    }
}

/// True for a name as RocksDB gives to its files, such as `CURRENT`, `MANIFEST-000005` and `000008.sst`.
fn is_plain_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(allowed) && !name.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::{SnapshotFile, SnapshotHead, SnapshotReply};
    use crate::member_calls::VoteRecord;
    use crate::schema::meta::{LogPosition, Member, MembershipRecord, Voters};
    use crate::schema::{encode, golden};
    use mlgw_common::limits::{SNAPSHOT_FILES_MAX, SNAPSHOT_HEAD_BYTES_MAX};
    use proptest::prelude::*;

    const VOTE: VoteRecord = VoteRecord { term: 3, node: 2, committed: true };

    fn file(name: &str, bytes: u64) -> SnapshotFile {
        SnapshotFile { name: name.to_owned(), bytes }
    }

    fn head(files: Vec<SnapshotFile>) -> SnapshotHead {
        let position = LogPosition { term: 3, node: 2, index: 300 };
        SnapshotHead {
            group: 7,
            vote: VOTE,
            last: Some(position),
            membership: MembershipRecord {
                position: Some(position),
                configs: vec![Voters { nodes: vec![2] }],
                members: vec![Member { node: 2, address: String::new() }],
            },
            files,
        }
    }

    #[test]
    fn the_messages_have_these_bytes() {
        let files = vec![file("CURRENT", 16), file("000008.sst", 300)];
        golden::check(
            &head(files),
            "01 0807 1206 0803 1002 1801 1a07 0803 1002 18ac02 \
             2212 0a07 0803 1002 18ac02 1203 0a0102 1a02 0802 \
             2a0b 0a07 43555252454e54 1010 2a0f 0a0a 3030303030382e737374 10ac02",
        );
        golden::check(&SnapshotReply { vote: VOTE }, "01 0a06 0803 1002 1801");
    }

    #[test]
    fn a_head_names_files_within_a_directory_only() {
        let read = |files| SnapshotHead::read(&encode(&head(files)));
        let good = ["CURRENT", "MANIFEST-000005", "OPTIONS-000007", "000008.sst"];
        let files = good.iter().map(|name| file(name, 5)).collect();
        assert_eq!(read(files).unwrap().file_bytes(), 20);
        let bad = ["", ".", "..", "../a", "a/b", "/a", "a\0", "é", ".hidden", &"a".repeat(65)];
        for name in bad {
            assert!(read(vec![file(name, 1)]).is_err(), "{name:?}");
        }
        assert!(read(vec![file("a", 1), file("a", 1)]).is_err(), "twice");
        assert!(read(vec![file("a", u64::MAX), file("b", 1)]).is_err());
    }

    #[test]
    fn a_head_has_limits() {
        assert!(SnapshotHead::read(&vec![1; SNAPSHOT_HEAD_BYTES_MAX + 1]).is_err());
        let many = (0..=SNAPSHOT_FILES_MAX).map(|number| file(&format!("{number}.sst"), 1)).collect();
        let error = SnapshotHead::read(&encode(&head(many))).unwrap_err().to_string();
        assert!(error.contains("files"), "{error}");
        let configs = vec![Voters { nodes: vec![2] }];
        let voter_without_node = MembershipRecord { configs, ..MembershipRecord::default() };
        let none = SnapshotHead { membership: voter_without_node, ..head(vec![]) };
        assert!(SnapshotHead::read(&encode(&none)).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
            let _ = SnapshotHead::read(&[vec![1], bytes].concat());
        }
    }
}
