//! Reads of the log by another member, from memory and from the store.

use super::log::GroupLog;
use super::suite_tests::parts;
use mlgw_formats::command::{Change, Command, PutNode};
use mlgw_formats::log_batch::{Batch, encode_into};
use mlgw_formats::log_types::RaftLogEntry;
use mlgw_formats::member_calls::log_id;
use mlgw_formats::schema::Node;
use mlgw_formats::schema::meta::LogPosition;
use openraft::EntryPayload;
use openraft::storage::{RaftLogReader as _, RaftLogStorageExt as _};

/// Bytes of an entry, more or less. Five of them are at least as long as a read, and four are not.
const ENTRY_BYTES: usize = 1800 << 10;
/// Entries of the log, more than stay in memory.
const ENTRIES: u64 = 9;
/// Entries of a read.
const READ_ENTRIES: u64 = 5;

/// An entry with one long command.
fn entry(index: u64, bytes: usize) -> RaftLogEntry {
    let node = Node { id: 2, name: "n".repeat(bytes), ..Node::default() };
    let mut encoded = Vec::new();
    encode_into(&Command::from(Change::PutNode(PutNode { node })), &mut encoded);
    let batch = Batch { commands: Vec::new(), encoded: encoded.into() };
    let log_id = log_id(Some(&LogPosition { term: 1, node: 1, index })).unwrap();
    RaftLogEntry { log_id, payload: EntryPayload::Normal(batch) }
}

fn indices(entries: &[RaftLogEntry]) -> Vec<u64> {
    entries.iter().map(|entry| entry.log_id.index).collect()
}

/// Asserts that each read, whichever entry it begins with, returns no more than the limit of bytes.
async fn assert_bounded(log: &mut GroupLog, place: &str) {
    for from in 1..=ENTRIES {
        let read = log.limited_get_log_entries(from, ENTRIES + 1).await.unwrap();
        let expected: Vec<u64> = (from..=ENTRIES).take(READ_ENTRIES as usize).collect();
        assert_eq!(indices(&read), expected, "from {place}");
    }
    // The state machine applies a range as a whole.
    let read = log.try_get_log_entries(1..=ENTRIES).await.unwrap();
    assert_eq!(indices(&read), (1..=ENTRIES).collect::<Vec<_>>(), "from {place}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_for_another_member_is_bounded_by_bytes_and_has_one_entry_at_least() {
    let dir = tempfile::tempdir().unwrap();
    let (mut log, ..) = super::group::stores(parts(dir.path(), 1));
    let entries: Vec<RaftLogEntry> = (1..=ENTRIES).map(|index| entry(index, ENTRY_BYTES)).collect();
    log.blocking_append(entries).await.unwrap();
    assert_bounded(&mut log, "memory, and the store for what is older").await;
    log.record_applied(ENTRIES);
    assert_bounded(&mut log, "the store").await;

    let large = entry(ENTRIES + 1, 5 * ENTRY_BYTES);
    let after = entry(ENTRIES + 2, 10);
    log.blocking_append([large, after]).await.unwrap();
    for _ in 0..2 {
        let read = log.limited_get_log_entries(ENTRIES + 1, ENTRIES + 3).await.unwrap();
        assert_eq!(indices(&read), [ENTRIES + 1], "an entry that is longer than a read");
        log.record_applied(ENTRIES + 2);
    }
}
