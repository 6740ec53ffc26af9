//! A group's log for openraft: appends go through the node's log store, recent entries are read from memory.

use crate::store::log::{LogStore, LogWrite};
use crate::store::log_rows::{LogRowKind, key};
use crate::store::space_waits::SpaceWaits;
use crate::store_error::StoreError;
use mlgw_formats::log_entry;
use mlgw_formats::log_types::{LogId, RaftLogEntry, RaftTypes, Vote};
use mlgw_formats::schema;
use mlgw_formats::schema::meta::LogPosition;
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::oneshot;

/// Maximum bytes of written entries that stay in memory although they are not applied yet.
const RECENT_BYTES_MAX: usize = 4 << 20;

/// Bytes of entries after which a read for another member ends. With syncs of two seconds an append takes up
/// to four: it may wait for the one in progress. So such a member follows two megabytes a second.
const READ_BYTES: usize = 8 << 20;

/// A group's part of the log. Clones share it.
#[derive(Clone)]
pub(crate) struct GroupLog {
    store: LogStore,
    group: u32,
    recent: Arc<Mutex<RecentEntries>>,
    /// Bytes of entries that were appended and not purged. After a start it counts all bytes of the store.
    bytes: Arc<AtomicU64>,
    /// Position of the newest committed entry, until it is written.
    committed: Arc<Mutex<Option<LogId>>>,
    /// The vote of this member.
    vote: Arc<Mutex<Option<Vote>>>,
}

/// Recently appended entries, without gaps.
#[derive(Default)]
struct RecentEntries {
    entries: VecDeque<(RaftLogEntry, usize)>,
    bytes: usize,
    /// Index up to which the entries are in the store.
    written: u64,
    applied: u64,
}

impl RecentEntries {
    fn push(&mut self, entry: RaftLogEntry, bytes: usize) {
        let is_next = self.entries.back().is_none_or(|(last, _)| last.index() + 1 == entry.index());
        assert!(is_next, "recent entries have no gaps");
        self.bytes += bytes;
        self.entries.push_back((entry, bytes));
    }

    /// Drops entries that are written and applied, and written entries beyond the byte limit.
    fn trim(&mut self) {
        while let Some((entry, bytes)) = self.entries.front() {
            let index = entry.index();
            let done = index <= self.applied || self.bytes > RECENT_BYTES_MAX;
            if index > self.written || !done {
                break;
            }
            self.bytes -= bytes;
            self.entries.pop_front();
        }
    }

    fn cut_after(&mut self, index: u64) {
        while self.entries.back().is_some_and(|(entry, _)| entry.index() > index) {
            self.bytes -= self.entries.pop_back().map_or(0, |(_, bytes)| bytes);
        }
        self.written = self.written.min(index);
    }

    /// Drops the entries up to `index`, which the store has purged. The next entry may follow a gap then: a
    /// snapshot of another member replaces entries that this member never had.
    fn purge(&mut self, index: u64) {
        while self.entries.front().is_some_and(|(entry, _)| entry.index() <= index) {
            self.bytes -= self.entries.pop_front().map_or(0, |(_, bytes)| bytes);
        }
        self.written = self.written.max(index);
        self.applied = self.applied.max(index);
    }

    fn first(&self) -> Option<u64> {
        self.entries.front().map(|(entry, _)| entry.index())
    }
}

impl GroupLog {
    /// The log of `group`. The existing bytes of the store count for group 0, so that a restart does not let
    /// the log grow to twice its bound.
    pub(crate) fn new(store: LogStore, group: u32) -> Self {
        let bytes = if group == 0 { store.bytes() } else { 0 };
        let bytes = Arc::new(AtomicU64::new(bytes));
        let (recent, committed, vote) = (Arc::default(), Arc::default(), Arc::default());
        Self { store, group, recent, bytes, committed, vote }
    }

    /// The vote of this member; `None` before the first one. It is no older than any vote that the member has
    /// granted, and than that of any leader whose entries it has accepted, because openraft saves a vote
    /// before either.
    pub(super) fn vote(&self) -> Option<Vote> {
        *self.vote.lock()
    }

    /// Records that entries up to `index` were applied: they are not read again soon.
    pub(crate) fn record_applied(&self, index: u64) {
        let mut young = self.recent.lock();
        young.applied = young.applied.max(index);
        young.trim();
    }

    /// See [`LogStore::space`].
    pub(crate) fn space(&self) -> &Arc<SpaceWaits> {
        self.store.space()
    }

    /// Frees the space of purged entries below `end`. Separate from the purge itself, because the Raft core
    /// waits for the purge.
    pub(crate) fn free_purged_space(&self, end: u64) -> Result<(), StoreError> {
        self.store.free_purged_space(self.group, end)
    }

    /// Bytes of entries that are not purged.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Subtracts `bytes`, whose entries were purged.
    pub(crate) fn subtract_purged(&self, bytes: u64) {
        let before = self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "purged bytes were appended");
    }

    /// See [`LogStore::open_token`].
    #[cfg(test)]
    pub(crate) fn open_token(&self) -> std::sync::Weak<()> {
        self.store.open_token()
    }

    /// The id of the last entry.
    pub(crate) fn last(&self) -> Result<Option<LogId>, StoreError> {
        if let Some((entry, _)) = self.recent.lock().entries.back() {
            return Ok(Some(entry.log_id));
        }
        let last = self.store.last_entry(self.group)?;
        Ok(last.map(|(index, bytes)| log_entry::log_id(index, &bytes)).transpose()?)
    }

    /// Bytes of the entries from `from` to before `end`; more than `max` are not counted exactly.
    pub(crate) fn bytes_between(&self, from: u64, end: u64, max: u64) -> Result<u64, StoreError> {
        let mut counted = 0;
        let mut next = from;
        self.store.each_entry(self.group, from..end, |index, bytes| {
            counted += bytes.len() as u64;
            next = index + 1;
            Ok(counted <= max)
        })?;
        // The newest entries may not be in the store yet.
        let young = self.recent.lock();
        let unwritten = young.entries.iter().filter(|(entry, _)| (next..end).contains(&entry.index()));
        Ok(counted + unwritten.map(|(_, bytes)| *bytes as u64).sum::<u64>())
    }

    fn position(&self, kind: LogRowKind) -> Result<Option<LogId>, StoreError> {
        let Some(bytes) = self.store.get(&key(self.group, kind, 0))? else { return Ok(None) };
        let record: LogPosition = schema::decode(&bytes)?;
        Ok(Some(log_entry::log_id_from_position(&record)))
    }

    /// Returns the write of the newest committed position, unless it was returned before. The caller keeps
    /// the position locked until it has enqueued the write. So a later sync includes the write in any case.
    fn committed_write(&self, committed: &mut Option<LogId>) -> Option<LogWrite> {
        let committed = committed.take()?;
        let record = schema::encode(&log_entry::log_position(&committed));
        Some(LogWrite::Put(key(self.group, LogRowKind::Committed, 0), record))
    }

    /// Enqueues a write of the newest committed position, and returns its outcome; `None` if the position was
    /// enqueued before. The next sync of the store includes the write, and fails if it fails.
    pub(crate) fn enqueue_committed(&self) -> Option<oneshot::Receiver<io::Result<()>>> {
        let mut committed = self.committed.lock();
        self.committed_write(&mut committed).map(|write| self.enqueue(vec![write]))
    }

    /// Writes the newest committed position, before the group ends.
    pub(crate) async fn write_committed(&self) -> io::Result<()> {
        match self.enqueue_committed() {
            Some(written) => outcome(written).await,
            None => Ok(()),
        }
    }

    async fn write(&self, writes: Vec<LogWrite>) -> io::Result<()> {
        outcome(self.enqueue(writes)).await
    }

    fn enqueue(&self, writes: Vec<LogWrite>) -> oneshot::Receiver<io::Result<()>> {
        let (sender, written) = oneshot::channel();
        self.store.write(writes, Box::new(move |result| drop(sender.send(result))));
        written
    }

    /// Entries from `from` to before `end`. A read ends early after `bytes_max` bytes, but returns the first
    /// entry.
    fn read(&self, from: u64, end: u64, bytes_max: usize) -> Result<Vec<RaftLogEntry>, StoreError> {
        let mut room = bytes_max;
        let mut has_room = move |bytes: usize| {
            let fits = room > 0;
            room = room.saturating_sub(bytes);
            fits
        };
        let young = self.recent.lock();
        let first = young.first().unwrap_or(u64::MAX);
        if from >= first {
            let within = young.entries.iter().skip_while(|(entry, _)| entry.index() < from);
            let within = within.take_while(|(entry, bytes)| entry.index() < end && has_room(*bytes));
            return Ok(within.map(|(entry, _)| entry.clone()).collect());
        }
        // These stay readable in memory while the older ones are read from the store.
        let within = young.entries.iter().take_while(|(entry, _)| entry.index() < end);
        let recent: Vec<(RaftLogEntry, usize)> = within.cloned().collect();
        drop(young);
        let mut entries = Vec::new();
        let mut is_whole = true;
        self.store.each_entry(self.group, from..end.min(first), |index, bytes| {
            is_whole = has_room(bytes.len());
            if is_whole {
                entries.push(log_entry::decode(index, bytes.to_vec())?);
            }
            Ok(is_whole)
        })?;
        if is_whole {
            let recent = recent.into_iter().take_while(|(_, bytes)| has_room(*bytes));
            entries.extend(recent.map(|(entry, _)| entry));
        }
        Ok(entries)
    }
}

/// The outcome of a write that was enqueued.
async fn outcome(written: oneshot::Receiver<io::Result<()>>) -> io::Result<()> {
    written.await.map_err(|_| io::Error::other("the log writer has stopped"))?
}

/// Converts the error of a store for openraft.
pub(crate) fn io_error(error: impl ToString) -> io::Error {
    io::Error::other(error.to_string())
}

impl RaftLogReader<RaftTypes> for GroupLog {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + Send>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<RaftLogEntry>> {
        let from = match range.start_bound() {
            Bound::Included(&index) => index,
            Bound::Excluded(&index) => index + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&index) => index + 1,
            Bound::Excluded(&index) => index,
            Bound::Unbounded => u64::MAX,
        };
        self.read(from, end, usize::MAX).map_err(io_error)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<RaftLogEntry>> {
        self.read(start, end, READ_BYTES).map_err(io_error)
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        let bytes = self.store.get(&key(self.group, LogRowKind::Vote, 0)).map_err(io_error)?;
        let vote = bytes.map(|bytes| log_entry::decode_vote(&bytes)).transpose().map_err(io_error)?;
        *self.vote.lock() = vote;
        Ok(vote)
    }
}

impl RaftLogStorage<RaftTypes> for GroupLog {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<RaftTypes>> {
        let purged = self.position(LogRowKind::Purged).map_err(io_error)?;
        let last = self.last().map_err(io_error)?;
        Ok(LogState { last_purged_log_id: purged, last_log_id: last.or(purged) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        *self.vote.lock() = Some(*vote);
        let put = LogWrite::Put(key(self.group, LogRowKind::Vote, 0), log_entry::encode_vote(vote));
        self.write(vec![put]).await
    }

    /// Written with the next append, which a write of its own would delay: the position only shows a restart
    /// how far it may apply entries before it receives messages from other members. It is never written
    /// before the entry itself, because that was appended earlier.
    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        if committed.is_some() {
            *self.committed.lock() = committed;
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        if let Some(committed) = *self.committed.lock() {
            return Ok(Some(committed));
        }
        self.position(LogRowKind::Committed).map_err(io_error)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<RaftTypes>) -> io::Result<()>
    where
        I: IntoIterator<Item = RaftLogEntry> + Send,
        I::IntoIter: Send,
    {
        let mut committed = self.committed.lock();
        let mut writes = Vec::with_capacity(2);
        writes.extend(self.committed_write(&mut committed));
        let mut last = 0;
        let mut young = self.recent.lock();
        for entry in entries {
            let bytes = log_entry::encode(&entry);
            last = entry.index();
            self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            young.push(entry, bytes.len());
            writes.push(LogWrite::Put(key(self.group, LogRowKind::Entry, last), bytes));
        }
        drop(young);
        let young = Arc::clone(&self.recent);
        let done = move |result: io::Result<()>| {
            if result.is_ok() {
                let mut young = young.lock();
                young.written = young.written.max(last);
                young.trim();
            }
            callback.io_completed(result);
        };
        self.store.write(writes, Box::new(done));
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let from = last.map_or(0, |id| id.index + 1);
        let end = key(self.group, LogRowKind::Entry, u64::MAX);
        let cut = LogWrite::DeleteRange(key(self.group, LogRowKind::Entry, from), end);
        self.write(vec![cut]).await?;
        let mut young = self.recent.lock();
        match last {
            Some(last) => young.cut_after(last.index),
            None => *young = RecentEntries { applied: young.applied, ..RecentEntries::default() },
        }
        Ok(())
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        let end = key(self.group, LogRowKind::Entry, upto.index + 1);
        let record = schema::encode(&log_entry::log_position(&upto));
        let put = LogWrite::Put(key(self.group, LogRowKind::Purged, 0), record);
        let cut = LogWrite::DeleteRange(key(self.group, LogRowKind::Entry, 0), end);
        self.write(vec![put, cut]).await?;
        self.recent.lock().purge(upto.index);
        Ok(())
    }
}
