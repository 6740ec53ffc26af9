//! Waits for space on a full disk, in place of an end of the process.
//!
//! RocksDB refuses a write for which the disk has no space. It refuses all later ones too, until as much
//! space is free as a memtable takes, which it checks every five seconds. Then it flushes its memtables and
//! begins a new write-ahead log, so what it refused can be repeated. Nothing that waits is acknowledged:
//! after a power loss the store is as of its last sync. Other failures are not repeated.
//!
//! A write is repeated until it succeeds, before a flush is. RocksDB queues each flush, and its recovery
//! waits until none is queued: repeated flushes would delay it for ever.

use crate::store_error::StoreError;
use mlgw_common::time::{Instant, block_for};
use mlgw_formats::store_files::file_system_free_bytes;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// Time with enough free space after which a store that still refuses does not recover by itself.
const STUCK: Duration = Duration::from_secs(60);

/// Waits of the stores of a catalogue, which are on one file system.
#[derive(Debug)]
pub(crate) struct SpaceWaits {
    dir: PathBuf,
    waiting: AtomicUsize,
    /// End of the last wait.
    last_end: Mutex<Option<Instant>>,
    ended: AtomicBool,
}

impl SpaceWaits {
    /// Waits for space on the file system of `dir`.
    pub(crate) fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            waiting: AtomicUsize::new(0),
            last_end: Mutex::default(),
            ended: AtomicBool::new(false),
        }
    }

    /// Makes everything that waits fail, now and later: the catalogue stops.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// True if the catalogue stops. What a full disk refuses then is not repeated, and is no failure.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// True while anything waits for space.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// True if anything waits for space, or has done so since a time.
    pub(crate) fn has_waited_since(&self, begun: Instant) -> bool {
        self.is_waiting() || self.last_end.lock().is_some_and(|end| end >= begun)
    }

    /// Does what needs space, again and again while the disk is full. Blocks. `memtable_bytes` are those of
    /// the store, and `what` is for the log.
    ///
    /// # Errors
    /// It failed for another reason, the catalogue stops, or the store refuses although there is space.
    pub(crate) fn repeat<T>(
        &self,
        what: &str,
        memtable_bytes: usize,
        mut act: impl FnMut() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut wait = SpaceWait::new(self, what, memtable_bytes);
        loop {
            let done = act();
            if !wait.is_to_repeat(done.as_ref().err()) {
                return done;
            }
            block_for(PAUSE);
        }
    }

    /// The same in an async task; `act` does not block for long.
    ///
    /// # Errors
    /// See [`Self::repeat`].
    pub(crate) async fn repeat_async<T>(
        &self,
        what: &str,
        memtable_bytes: usize,
        mut act: impl FnMut() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut wait = SpaceWait::new(self, what, memtable_bytes);
        loop {
            let done = act();
            if !wait.is_to_repeat(done.as_ref().err()) {
                return done;
            }
            mlgw_common::time::sleep(PAUSE).await;
        }
    }

    /// True if the file system has this much free space.
    pub(crate) fn has_free(&self, bytes: u64) -> bool {
        file_system_free_bytes(&self.dir).is_ok_and(|free_bytes| free_bytes >= bytes)
    }
}

/// A wait for space. It begins when the disk is full.
struct SpaceWait<'a> {
    waits: &'a SpaceWaits,
    what: &'a str,
    /// Free bytes with which the store recovers.
    needed_bytes: u64,
    has_begun: bool,
    /// Time since which they are free.
    enough_since: Option<Instant>,
}

impl<'a> SpaceWait<'a> {
    const fn new(waits: &'a SpaceWaits, what: &'a str, memtable_bytes: usize) -> Self {
        // More than RocksDB compares with, for what is written meanwhile.
        let needed_bytes = (memtable_bytes as u64).saturating_mul(2);
        Self { waits, what, needed_bytes, has_begun: false, enough_since: None }
    }

    /// True if the last attempt failed because the disk is full, and there is a reason for a further one.
    fn is_to_repeat(&mut self, error: Option<&StoreError>) -> bool {
        let Some(error) = error else {
            if self.has_begun {
                tracing::info!("{} goes on: the disk has space again", self.what);
            }
            return false;
        };
        if !error.is_disk_full() {
            return false;
        }
        self.begin(error);
        if self.waits.is_ended() {
            return false;
        }
        if !self.waits.has_free(self.needed_bytes) {
            self.enough_since = None;
            return true;
        }
        self.enough_since.get_or_insert_with(Instant::now).elapsed() < STUCK
    }

    fn begin(&mut self, error: &StoreError) {
        if !std::mem::replace(&mut self.has_begun, true) {
            tracing::error!(%error, dir = %self.waits.dir.display(),
                "the disk is full: {} waits for space; delete data, or free space otherwise", self.what);
            self.waits.waiting.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Drop for SpaceWait<'_> {
    fn drop(&mut self) {
        if self.has_begun {
            *self.waits.last_end.lock() = Some(Instant::now());
            self.waits.waiting.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{PAUSE, STUCK, SpaceWaits};
    use crate::store::state::StateDb;
    use crate::store_error::StoreError;
    use crate::view::RowChanges;
    use mlgw_common::time::{Instant, block_for};
    use std::io::{BufRead as _, BufReader};
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};
    use std::sync::atomic::Ordering;
    use tokio::time::advance;

    const MEMTABLE_BYTES: usize = 4 << 20;

    /// A disk of a few megabytes, in a mount namespace that another process holds.
    pub(crate) struct SmallDisk {
        holder: Child,
        place: tempfile::TempDir,
    }

    impl SmallDisk {
        pub(crate) fn new(megabytes: u32) -> Self {
            let place = tempfile::tempdir().unwrap();
            let path = place.path().display();
            let script =
                format!("mount -t tmpfs -o size={megabytes}m tmpfs {path} && echo mounted && exec cat");
            let is_root = rustix::process::geteuid().is_root();
            let namespaces: &[&str] = if is_root { &["-m"] } else { &["-r", "-m"] };
            let mut command = Command::new("unshare");
            let command = command.args(namespaces).args(["sh", "-c", &script]);
            // `cat` ends with this process, and the disk with it.
            let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(holder.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(line, "mounted\n", "mounting a tmpfs needs root or user namespaces");
            Self { holder, place }
        }

        /// Its root, as this process sees it.
        pub(crate) fn path(&self) -> PathBuf {
            let inside = self.place.path().strip_prefix("/").unwrap();
            PathBuf::from(format!("/proc/{}/root", self.holder.id())).join(inside)
        }

        /// Leaves no free byte. Returns the file that takes the space.
        pub(crate) fn fill(&self) -> PathBuf {
            use std::io::Write as _;
            let path = self.path().join("eaten");
            let mut eater = std::fs::File::create(&path).unwrap();
            let mut piece = vec![1; 1 << 20];
            while !piece.is_empty() {
                if eater.write_all(&piece).is_err() {
                    piece.truncate(piece.len() / 2);
                }
            }
            path
        }
    }

    impl Drop for SmallDisk {
        fn drop(&mut self) {
            // Both fail only if the process has ended already.
            drop(self.holder.kill());
            drop(self.holder.wait());
        }
    }

    #[test]
    fn a_state_recovers_though_several_flushes_of_it_wait() {
        let disk = SmallDisk::new(64);
        let cache = rocksdb::Cache::new_lru_cache(1 << 20);
        let state = StateDb::open(&disk.path().join("state"), &cache, MEMTABLE_BYTES).unwrap();
        let changes = RowChanges::from([(vec![1], Some(vec![7; MEMTABLE_BYTES / 4]))]);
        state.write(&changes).unwrap();
        let eaten = disk.fill();
        let waits = SpaceWaits::new(&disk.path());
        let flush = || waits.repeat("the test", MEMTABLE_BYTES, || state.flush());
        std::thread::scope(|scope| {
            let flushes = [0; 3].map(|_| scope.spawn(flush));
            while waits.waiting.load(Ordering::Acquire) < flushes.len() {
                block_for(PAUSE);
            }
            // More attempts than one queued flush delays.
            block_for(PAUSE * 30);
            std::fs::remove_file(eaten).unwrap();
            for flush in flushes {
                flush.join().unwrap().unwrap();
            }
        });
        assert!(state.get_flushed(&[1]).unwrap().is_some());
    }

    fn full() -> StoreError {
        StoreError("IO error: No space left on device: While appending to file: 7.log".to_owned())
    }

    /// Attempts until `SpaceWaits` gives up or the given one succeeds.
    async fn attempts(waits: &SpaceWaits, memtable_bytes: usize, succeeds: u32) -> (u32, bool) {
        let mut attempts = 0;
        let act = || {
            attempts += 1;
            if attempts == succeeds { Ok(()) } else { Err(full()) }
        };
        let done = waits.repeat_async("the test", memtable_bytes, act).await;
        (attempts, done.is_ok())
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_a_full_disk_refuses_is_repeated_and_not_for_ever_when_there_is_space() {
        let dir = tempfile::tempdir().unwrap();
        let waits = SpaceWaits::new(dir.path());
        let begun = Instant::now();
        assert!(!waits.has_waited_since(begun));
        // No disk has so much space, so the store is waited for longer than a stuck one.
        let beyond = usize::try_from(STUCK.as_millis()).unwrap();
        let (_, succeeded) = attempts(&waits, usize::MAX, u32::try_from(beyond).unwrap()).await;
        assert!(succeeded);
        let (stuck, succeeded) = attempts(&waits, 0, u32::MAX).await;
        assert!(!succeeded && stuck > 2, "{stuck} attempts");
        let mut failures = 0;
        let failed = waits.repeat("the test", 0, || {
            failures += 1;
            Err::<(), _>(StoreError("IO error: Input/output error".to_owned()))
        });
        assert!(failed.is_err() && failures == 1 && !waits.is_waiting());
        assert!(waits.has_waited_since(begun), "a wait that has ended counts for what it delayed");
        advance(STUCK).await;
        assert!(!waits.has_waited_since(Instant::now()));
        waits.end();
        assert_eq!(attempts(&waits, usize::MAX, u32::MAX).await, (1, false), "the catalogue stops");
    }
}
