//! Log of all groups of a node: one RocksDB store with a write-ahead log, and one writing thread.
//!
//! Keys are (group, kind, index), big-endian. A request is answered when all of its writes are written and
//! synced; requests that are queued together share one batch and one sync. While the disk is full they wait.
//! After any other failure nothing is written any more: the result of a failed sync is unknown, and a later
//! success must not hide that. The batch that a full disk refused is written again as a whole, to another
//! write-ahead log, and it is not answered before the old one, which may have a torn end, is gone for good.

use super::log_facts::LogFacts;
use super::log_rows::{LogRowKind, index_of, key};
use super::space_waits::SpaceWaits;
use super::{options, wal};
use crate::durability::Durability;
use crate::store_error::StoreError;
use mlgw_common::histogram::DurationHistogram;
use mlgw_common::limits::LOG_MEMTABLE_BYTES;
use mlgw_common::time::{Instant, block_for};
use mlgw_common::{Identity, Incarnation, SyncWatch};
use mlgw_formats::{manifest, store_files};
use parking_lot::Mutex;
use rocksdb::checkpoint::Checkpoint;
use rocksdb::{Cache, DB, FlushOptions, WriteBatch, WriteOptions};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Maximum number of requests in one write; the others go into the next write.
const WRITE_REQUESTS_MAX: usize = 1024;
/// Longest wait until RocksDB has removed a write-ahead log whose rows are in a table. It takes milliseconds,
/// unless a copy of the store is being made.
const REMOVAL_MAX: Duration = Duration::from_secs(60);
const REMOVAL_POLL: Duration = Duration::from_millis(10);

/// A change of the log store.
pub(crate) enum LogWrite {
    /// A row with a value.
    Put([u8; 13], Vec<u8>),
    /// Deletion of the rows from the first key on that are before the second.
    DeleteRange([u8; 13], [u8; 13]),
}

/// Callback with the outcome, called on the writing thread.
pub(crate) type WriteCallback = Box<dyn FnOnce(io::Result<()>) + Send>;

enum LogRequest {
    Write(PendingLogWrite),
    /// Ends the writing thread.
    End,
}

struct PendingLogWrite {
    writes: Vec<LogWrite>,
    /// True to sync this and all writes before it, even if writes do not wait for syncs.
    is_synced: bool,
    done: WriteCallback,
}

/// The store, and a token that is dropped after the store is closed, because fields are dropped in order.
struct OpenDb {
    db: DB,
    open: Arc<()>,
}

/// Metrics of the log store.
#[derive(Debug, Default)]
pub(crate) struct LogFigures {
    /// Duration of synced writes, from the first byte to the end of the sync.
    pub(crate) syncs: DurationHistogram,
    /// Finds slow ones among them.
    pub(crate) sync_watch: SyncWatch,
    pub(crate) bytes_appended: AtomicU64,
}

/// Number of log entries on stable media.
#[derive(Debug, Default)]
struct SyncedEntries {
    /// Index after the last entry, for each group.
    ends: Mutex<Vec<u64>>,
    total: AtomicU64,
}

impl SyncedEntries {
    /// Counts the entries that one write has synced.
    fn count<'w>(&self, writes: impl Iterator<Item = &'w LogWrite>) {
        let mut ends = self.ends.lock();
        for write in writes {
            let (LogWrite::Put(key, _) | LogWrite::DeleteRange(key, _)) = write;
            if key[4] != LogRowKind::Entry as u8 {
                continue;
            }
            let group = u32::from_be_bytes([key[0], key[1], key[2], key[3]]) as usize;
            if ends.len() <= group {
                ends.resize(group + 1, 0);
            }
            let index = index_of(key).unwrap_or(0);
            match write {
                LogWrite::Put(..) => ends[group] = ends[group].max(index + 1),
                // A leader replaces the end of a follower's log; a purge deletes its beginning.
                LogWrite::DeleteRange(_, to) if index_of(to) == Some(u64::MAX) => {
                    ends[group] = ends[group].min(index);
                }
                LogWrite::DeleteRange(..) => {}
            }
        }
        self.total.store(ends.iter().sum(), Ordering::Release);
    }
}

/// The log store of a node. Clones share it; dropping the last one ends the writing thread.
#[derive(Clone)]
pub(crate) struct LogStore {
    store: Arc<OpenDb>,
    dir: PathBuf,
    figures: Arc<LogFigures>,
    synced: Arc<SyncedEntries>,
    space: Arc<SpaceWaits>,
    writer: Arc<WriterThread>,
}

/// The writing thread. Dropping this waits for its end, so that no thread of ours closes the store while the
/// process exits.
struct WriterThread {
    requests: Sender<LogRequest>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl WriterThread {
    fn end(&self) {
        let Some(thread) = self.thread.lock().take() else { return };
        if self.requests.send(LogRequest::End).is_ok() && thread.join().is_err() {
            tracing::error!("the log writer panicked");
        }
    }
}

impl Drop for WriterThread {
    fn drop(&mut self) {
        self.end();
    }
}

impl LogStore {
    /// Opens or creates the log in `dir`. With [`Durability::Os`], syncs are left to the operating system.
    /// Every write names `writer`. `failed` is called with the first failure, before waiting requests are
    /// answered. Refuses a log whose damage would make it end before the last acknowledged entry.
    pub(crate) fn open(
        dir: &Path,
        cache: &Cache,
        durability: Durability,
        writer: Option<Incarnation>,
        failed: impl Fn(&str) + Send + 'static,
    ) -> Result<Self, StoreError> {
        let at = |error: io::Error| StoreError(format!("{}: {error}", dir.display()));
        store_files::make_dir(dir).map_err(at)?;
        if durability == Durability::Full
            && let Some(wal::BadWalRecord { file, at, damage: Some(why) }) =
                wal::first_bad(dir).map_err(at)?
        {
            let file = file.display();
            return Err(StoreError(format!("{file} is damaged at byte {at}: {why}; run `mlgw store check`")));
        }
        manifest::truncate_torn_end(dir).map_err(at)?;
        let store = Arc::new(OpenDb { db: DB::open(&options::log(cache), dir)?, open: Arc::default() });
        store_files::sync_dir(dir).map_err(at)?;
        let figures = Arc::new(LogFigures::default());
        let (requests, incoming) = channel();
        let synced = Arc::<SyncedEntries>::default();
        let space = Arc::new(SpaceWaits::new(dir));
        let writer = LogWriter {
            store: Arc::clone(&store),
            dir: dir.to_owned(),
            space: Arc::clone(&space),
            durability,
            figures: Arc::clone(&figures),
            synced: Arc::clone(&synced),
            incarnation: writer,
            failed: None,
        };
        let thread = std::thread::Builder::new()
            .name("catalogue-log".into())
            .spawn(move || writer.run(&incoming, failed))
            .map_err(at)?;
        let writer = Arc::new(WriterThread { requests, thread: Mutex::new(Some(thread)) });
        Ok(Self { store, dir: dir.to_owned(), figures, synced, space, writer })
    }

    /// Number of entries on stable media over all groups, purged ones included.
    pub(crate) fn synced_entries(&self) -> u64 {
        self.synced.total.load(Ordering::Acquire)
    }

    /// Starts the count of synced entries from the facts at a start. Call this before anything is written.
    pub(crate) fn start_synced_count(&self, facts: &LogFacts) {
        let ends: Vec<u64> = facts.groups.iter().map(|group| group.end).collect();
        self.synced.total.store(ends.iter().sum(), Ordering::Release);
        let mut known = self.synced.ends.lock();
        assert!(known.is_empty(), "the count of synced entries starts before the first write");
        *known = ends;
    }

    /// Enqueues writes; `done` is called when they are written, and synced.
    pub(crate) fn write(&self, writes: Vec<LogWrite>, done: WriteCallback) {
        self.enqueue(PendingLogWrite { writes, is_synced: false, done });
    }

    fn enqueue(&self, pending: PendingLogWrite) {
        if let Err(refused) = self.writer.requests.send(LogRequest::Write(pending))
            && let LogRequest::Write(PendingLogWrite { done, .. }) = refused.0
        {
            done(Err(io::Error::other("the log writer has stopped")));
        }
    }

    /// Waits for space on the disk of the log and of the states.
    pub(crate) fn space(&self) -> &Arc<SpaceWaits> {
        &self.space
    }

    /// Ends the writing thread and waits for it: nothing is written afterwards.
    pub(crate) fn end(&self) {
        self.writer.end();
    }

    /// The value at `key`.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.store.db.get(key)?)
    }

    /// Calls `each` with index and bytes of the entries of `group` in `range`, in order, until it returns
    /// false.
    pub(crate) fn each_entry(
        &self,
        group: u32,
        range: Range<u64>,
        mut each: impl FnMut(u64, &[u8]) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        if range.is_empty() {
            return Ok(());
        }
        let mut within = rocksdb::ReadOptions::default();
        within.set_iterate_upper_bound(key(group, LogRowKind::Entry, range.end));
        let mut rows = self.store.db.raw_iterator_opt(within);
        rows.seek(key(group, LogRowKind::Entry, range.start));
        while let Some((key, value)) = rows.item() {
            let index = index_of(key).ok_or_else(|| StoreError("a log key has no index".into()))?;
            if !each(index, value)? {
                break;
            }
            rows.next();
        }
        Ok(rows.status()?)
    }

    /// The last entry of `group`.
    pub(crate) fn last_entry(&self, group: u32) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
        let mut rows = self.store.db.raw_iterator();
        rows.seek_for_prev(key(group, LogRowKind::Entry, u64::MAX));
        let last = rows.item().filter(|(row, _)| row[..5] == key(group, LogRowKind::Entry, 0)[..5]);
        let last = last.and_then(|(key, value)| Some((index_of(key)?, value.to_vec())));
        rows.status()?;
        Ok(last)
    }

    /// Facts that a start checks before it uses the log.
    pub(crate) fn facts(&self) -> Result<LogFacts, StoreError> {
        LogFacts::read(&self.store.db)
    }

    /// Writes the identity of this server into the log. Durable when it returns.
    pub(crate) fn put_identity(&self, identity: &Identity) -> Result<(), StoreError> {
        let mut options = WriteOptions::default();
        options.set_sync(true);
        let row = key(0, LogRowKind::Identity, 0);
        Ok(self.store.db.put_opt(row, identity.to_string(), &options)?)
    }

    /// Frees the space of purged entries below `end`: deletes whole files, and flushes memory without these
    /// entries, so that its write-ahead log is deleted too.
    pub(crate) fn free_purged_space(&self, group: u32, end: u64) -> Result<(), StoreError> {
        let mut flush = FlushOptions::default();
        flush.set_wait(true);
        let (from, end) = (key(group, LogRowKind::Entry, 0), key(group, LogRowKind::Entry, end));
        self.space.repeat("the purge of the catalogue's log", LOG_MEMTABLE_BYTES, || {
            self.sync()?;
            self.store.db.flush_opt(&flush)?;
            Ok(self.store.db.delete_file_in_range(from, end)?)
        })?;
        self.store.db.compact_range(Some(from), Some(end));
        Ok(())
    }

    /// Flushes everything to disk, so that the next open has nothing to recover.
    pub(crate) fn flush(&self) -> Result<(), StoreError> {
        let mut flush = FlushOptions::default();
        flush.set_wait(true);
        self.store.db.flush_wal(true)?;
        Ok(self.store.db.flush_opt(&flush)?)
    }

    /// Syncs all writes so far to stable media, even if writes do not wait for syncs. Blocks, also while the
    /// disk is full. The writing thread does it: a sync of a write-ahead log that a full disk has torn is a
    /// fatal error for RocksDB, and so is a flush that replaces the log. It does not recover from that.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        let (sender, outcome) = channel();
        let done: WriteCallback = Box::new(move |synced| drop(sender.send(synced)));
        self.enqueue(PendingLogWrite { writes: Vec::new(), is_synced: true, done });
        let synced = outcome.recv().unwrap_or_else(|_| Err(io::Error::other("the log writer has stopped")));
        synced.map_err(|error| StoreError(error.to_string()))
    }

    /// Makes a copy of everything written in `dir`, which must not exist: with hard links if the file system
    /// allows them. Waits while the disk is full.
    pub(crate) fn checkpoint(&self, dir: &Path) -> Result<(), StoreError> {
        self.sync()?;
        Ok(Checkpoint::new(&self.store.db)?.create_checkpoint(dir)?)
    }

    /// Bytes of its files.
    pub(crate) fn bytes(&self) -> u64 {
        store_files::dir_bytes(&self.dir)
    }

    /// Weak reference that has no owners once the store is closed.
    pub(crate) fn open_token(&self) -> Weak<()> {
        Arc::downgrade(&self.store.open)
    }

    pub(crate) fn figures(&self) -> &LogFigures {
        &self.figures
    }
}

struct LogWriter {
    store: Arc<OpenDb>,
    dir: PathBuf,
    space: Arc<SpaceWaits>,
    durability: Durability,
    figures: Arc<LogFigures>,
    synced: Arc<SyncedEntries>,
    incarnation: Option<Incarnation>,
    failed: Option<String>,
}

impl LogWriter {
    fn run(mut self, incoming: &Receiver<LogRequest>, failed: impl Fn(&str)) {
        let mut ended = false;
        while !ended && let Ok(first) = incoming.recv() {
            let mut waiting = Vec::new();
            let mut next = Some(first);
            while let Some(request) = next.take() {
                match request {
                    LogRequest::Write(pending) => waiting.push(pending),
                    LogRequest::End => ended = true,
                }
                if !ended && waiting.len() < WRITE_REQUESTS_MAX {
                    next = incoming.try_recv().ok();
                }
            }
            if !waiting.is_empty() {
                self.answer(waiting, &failed);
            }
        }
    }

    fn answer(&mut self, waiting: Vec<PendingLogWrite>, failed: &impl Fn(&str)) {
        if self.failed.is_none()
            && let Err(error) = self.write_or_wait(&waiting)
        {
            // A stop does not wait for space. These writes are not acknowledged.
            if !(self.space.is_ended() && error.is_disk_full()) {
                failed(&format!("failed to write the catalogue's log: {error}"));
            }
            self.failed = Some(error.0);
        }
        for request in waiting {
            (request.done)(match &self.failed {
                None => Ok(()),
                Some(why) => Err(io::Error::other(why.clone())),
            });
        }
    }

    /// Writes; if the disk is full, as soon as it has space. The watch counts the wait as a slow sync, so the
    /// node leads nothing meanwhile.
    fn write_or_wait(&self, waiting: &[PendingLogWrite]) -> Result<(), StoreError> {
        match self.write(waiting) {
            Err(refused) if refused.is_disk_full() => {}
            done => return done,
        }
        self.figures.sync_watch.watch(|| {
            self.space.repeat("the catalogue's log", LOG_MEMTABLE_BYTES, || self.write(waiting))?;
            wait_for_removal(&self.dir, REMOVAL_MAX)
        })
    }

    fn write(&self, waiting: &[PendingLogWrite]) -> Result<(), StoreError> {
        let mut batch = WriteBatch::default();
        let mut bytes = 0;
        if let Some(Incarnation(number)) = self.incarnation {
            batch.put(key(0, LogRowKind::Writer, 0), number.to_be_bytes());
        }
        for write in waiting.iter().flat_map(|request| &request.writes) {
            match write {
                LogWrite::Put(key, value) => {
                    bytes += value.len() as u64;
                    batch.put(key, value);
                }
                LogWrite::DeleteRange(from, end) => batch.delete_range(from, end),
            }
        }
        let mut options = WriteOptions::default();
        let is_durable = self.durability == Durability::Full;
        let sync = is_durable || waiting.iter().any(|request| request.is_synced);
        options.set_sync(sync);
        let begun = Instant::now();
        let write = || self.store.db.write_opt(batch, &options);
        if sync { self.figures.sync_watch.watch(write) } else { write() }?;
        self.figures.bytes_appended.fetch_add(bytes, Ordering::Relaxed);
        if sync {
            self.figures.syncs.record(begun.elapsed());
        }
        if is_durable {
            self.synced.count(waiting.iter().flat_map(|request| &request.writes));
        }
        Ok(())
    }
}

/// Waits until RocksDB has removed all write-ahead logs in `dir` but the newest one, also after a power loss.
/// One of them may end with a part of a refused batch. A start would take that for damage if more than one
/// write followed it.
fn wait_for_removal(dir: &Path, longest: Duration) -> Result<(), StoreError> {
    let at = |error: io::Error| StoreError(format!("{}: {error}", dir.display()));
    let begun = Instant::now();
    loop {
        let mut files = wal::files(dir).map_err(at)?;
        // A new one without a write is no successor yet.
        files.retain(|file| file.metadata().is_ok_and(|found| found.len() > 0));
        if files.len() <= 1 {
            return store_files::sync_dir(dir).map_err(at);
        }
        if begun.elapsed() >= longest {
            return Err(StoreError(format!("old write-ahead logs are not removed: {files:?}")));
        }
        block_for(REMOVAL_POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::wait_for_removal;
    use std::fs;
    use std::time::Duration;

    #[test]
    fn a_batch_that_was_refused_is_not_answered_before_older_files_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        for (name, bytes) in [("999999.log", "torn"), ("1000000.log", "whole"), ("1000001.log", "")] {
            fs::write(file(name), bytes).unwrap();
        }
        assert!(wait_for_removal(dir.path(), Duration::ZERO).is_err());
        fs::remove_file(file("999999.log")).unwrap();
        wait_for_removal(dir.path(), Duration::ZERO).unwrap();
    }
}
