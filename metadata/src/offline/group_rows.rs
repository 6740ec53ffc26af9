//! Number and digest of the rows of a group, to compare the members of a cluster.
//!
//! Members that have applied the same commands have the same rows, except for the position that they have
//! reached: an entry without commands changes nothing else. Pure.

use mlgw_common::hex;
use mlgw_formats::schema::meta::MetaRow;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

/// The rows of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupRows {
    /// Id of the group.
    pub group: u32,
    /// Number of rows, without the position in the log.
    pub rows: u64,
    /// SHA-256 of their keys and values, in hexadecimal digits. It is equal on all members of a cluster that
    /// have applied the same commands.
    pub digest: String,
}

/// The digest in progress.
#[derive(Default)]
pub(crate) struct GroupDigest {
    rows: u64,
    sum: Sha256,
}

impl GroupDigest {
    /// Adds a row; rows are added in the order of their keys.
    pub(crate) fn add(&mut self, key: &[u8], value: &[u8]) {
        if key == MetaRow::Applied.row() {
            return;
        }
        self.rows += 1;
        for bytes in [key, value] {
            self.sum.update((bytes.len() as u64).to_le_bytes());
            self.sum.update(bytes);
        }
    }

    /// SHA-256 of the rows.
    pub(crate) fn sum(self) -> [u8; 32] {
        self.sum.finalize().into()
    }

    pub(super) fn finish(self, group: u32) -> GroupRows {
        let rows = self.rows;
        GroupRows { group, rows, digest: hex::text(&self.sum()) }
    }
}

#[cfg(test)]
mod tests {
    use super::{GroupDigest, GroupRows};
    use mlgw_formats::schema::meta::MetaRow;

    fn digest(rows: &[(&[u8], &[u8])]) -> GroupRows {
        let mut digest = GroupDigest::default();
        rows.iter().for_each(|(key, value)| digest.add(key, value));
        digest.finish(3)
    }

    #[test]
    fn a_digest_has_every_row_but_the_position_in_the_log() {
        let applied = MetaRow::Applied.row();
        let rows = [(&b"a"[..], &b"1"[..]), (b"b", b"2")];
        let whole = digest(&rows);
        assert_eq!((whole.group, whole.rows, whole.digest.len()), (3, 2, 64));
        assert_eq!(digest(&[(applied.as_slice(), &b"9"[..]), rows[0], rows[1]]), whole);
        assert_ne!(digest(&rows[..1]).digest, whole.digest);
        assert_ne!(digest(&[rows[0], (b"b", b"3")]).digest, whole.digest);
        assert_ne!(digest(&[(b"a1", b""), rows[1]]).digest, digest(&[(b"a", b"1"), rows[1]]).digest);
    }
}
