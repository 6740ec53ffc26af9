//! Keys of the rows of the log store: group, kind and index, big-endian.

/// Kinds of rows that a group keeps in the log store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum LogRowKind {
    /// The vote.
    Vote = 1,
    /// The last committed log id that was saved.
    Committed = 2,
    /// The last purged log id.
    Purged = 3,
    /// Entries, by index.
    Entry = 4,
    /// The identity of the server that writes the log; one row, under group 0.
    Identity = 5,
    /// The incarnation that made the newest write; one row, under group 0. It is a part of every write, so
    /// that each write-ahead log names its server.
    Writer = 6,
}

/// Key of a group's row of `kind`; `index` is 0 except for entries.
pub(crate) fn key(group: u32, kind: LogRowKind, index: u64) -> [u8; 13] {
    let mut key = [0; 13];
    key[..4].copy_from_slice(&group.to_be_bytes());
    key[4] = kind as u8;
    key[5..].copy_from_slice(&index.to_be_bytes());
    key
}

/// Group of a row.
pub(crate) fn group_of(key: &[u8]) -> Option<u32> {
    key.get(..4)?.try_into().ok().map(u32::from_be_bytes)
}

/// Index in the key of an entry.
pub(crate) fn index_of(key: &[u8]) -> Option<u64> {
    key.get(5..13)?.try_into().ok().map(u64::from_be_bytes)
}
