//! Protection from files whose reads hang: they block neither the disk nor the threads for other files.
//!
//! A failing disk or a lost network file system can block a read forever. A read that takes long counts as
//! slow. Slow reads of one file hold a bounded number of slots at the disk; further ones release theirs while
//! they wait. A file with too many slow reads is refused until some of them return, and a request that waits
//! for a slow read fails after a timeout. Reads of a healthy file are never delayed. The state is in memory.

use mlgw_common::time::Instant;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use mlgw_common::ids::SegmentId;
use mlgw_common::limits::{FILE_SLOW_READS_MAX, FILE_SLOW_SLOTS_MAX};
use parking_lot::Mutex;

use super::error::SegmentReadError;
use crate::fair::{DiskQueue, ServiceClass};

const _: () = assert!(0 < FILE_SLOW_SLOTS_MAX && FILE_SLOW_SLOTS_MAX <= FILE_SLOW_READS_MAX);

/// Time limits of reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlowReadLimits {
    /// Time after which a read is slow. A disk that retries a bad sector takes a few seconds.
    pub(super) slow: Duration,
    /// Time after which a request fails. Disks abort a request after 30 s themselves.
    pub(super) give_up: Duration,
}

impl Default for SlowReadLimits {
    fn default() -> Self {
        Self { slow: Duration::from_secs(5), give_up: Duration::from_secs(30) }
    }
}

/// The reads of one file in progress, by number with their start times; numbers grow with time.
#[derive(Debug, Default)]
struct ReadsInProgress(BTreeMap<u64, Instant>);

impl ReadsInProgress {
    /// True if at least `count` reads are slow.
    fn has_slow(&self, count: usize, now: Instant, slow: Duration) -> bool {
        // The oldest come first.
        let nth = self.0.values().nth(count - 1);
        nth.is_some_and(|begun| now.saturating_duration_since(*begun) >= slow)
    }

    /// True if another read may start.
    fn can_start_read(&self, now: Instant, slow: Duration) -> bool {
        !self.has_slow(FILE_SLOW_READS_MAX, now, slow)
    }

    /// True if a read that became slow keeps its slot at the disk, since it is among the oldest.
    fn can_keep_slot(&self, read: u64) -> bool {
        self.0.keys().take(FILE_SLOW_SLOTS_MAX).any(|key| *key == read)
    }
}

/// The reads of all files in progress.
#[derive(Debug, Default)]
pub(super) struct FileReadTracker {
    limits: SlowReadLimits,
    state: Mutex<FileReadTrackerState>,
}

#[derive(Debug, Default)]
struct FileReadTrackerState {
    files: HashMap<SegmentId, ReadsInProgress>,
    next: u64,
}

/// A read in progress, until it is dropped.
struct TrackedRead {
    tracker: Arc<FileReadTracker>,
    segment: SegmentId,
    number: u64,
}

impl Drop for TrackedRead {
    fn drop(&mut self) {
        let mut state = self.tracker.state.lock();
        if let Some(file) = state.files.get_mut(&self.segment) {
            let ended = file.0.remove(&self.number);
            assert!(ended.is_some(), "a read in progress is tracked until it ends");
            if file.0.is_empty() {
                state.files.remove(&self.segment);
            }
        }
    }
}

impl FileReadTracker {
    #[cfg(test)]
    pub(super) fn new(patience: SlowReadLimits) -> Self {
        Self { limits: patience, ..Self::default() }
    }

    fn begin(self: &Arc<Self>, segment: SegmentId) -> Result<TrackedRead, SegmentReadError> {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        let file = state.files.entry(segment).or_default();
        let now = Instant::now();
        if !file.can_start_read(now, self.limits.slow) {
            return Err(timeout_error(segment));
        }
        file.0.insert(number, now);
        Ok(TrackedRead { tracker: self.clone(), segment, number })
    }

    fn can_keep_slot(&self, segment: SegmentId, number: u64) -> bool {
        self.state.lock().files.get(&segment).is_some_and(|file| file.can_keep_slot(number))
    }

    /// Runs `work` on the file of a segment on the blocking pool, when its turn at the disk has come.
    ///
    /// # Errors
    /// Those of `work`, or a timeout if the file does not respond.
    pub(super) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        segment: SegmentId,
        disk: &DiskQueue,
        turn: ServiceClass,
        bytes: u64,
        work: impl FnOnce() -> Result<T, SegmentReadError> + Send + 'static,
    ) -> Result<T, SegmentReadError> {
        let place = disk.acquire(turn, bytes).await;
        let read = self.begin(segment)?;
        let (number, SlowReadLimits { slow, give_up }) = (read.number, self.limits);
        let mut done = tokio::task::spawn_blocking(move || {
            // The read counts as in progress until the thread is done, even if no request waits for it any
            // more.
            let _read = read;
            work()
        });
        let done = match mlgw_common::time::timeout(slow, &mut done).await {
            Ok(done) => done,
            Err(_) => {
                let _place = self.can_keep_slot(segment, number).then_some(place);
                tracing::warn!(%segment, "slow read: the disk may be failing");
                match mlgw_common::time::timeout(give_up.saturating_sub(slow), done).await {
                    Ok(done) => done,
                    Err(_) => return Err(timeout_error(segment)),
                }
            }
        };
        done.unwrap_or_else(|stopped| {
            Err(SegmentReadError::Io { segment, source: io::Error::other(stopped) })
        })
    }
}

fn timeout_error(segment: SegmentId) -> SegmentReadError {
    let source = io::Error::new(io::ErrorKind::TimedOut, "reads of its file do not complete");
    SegmentReadError::Io { segment, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fair::Lane;
    use mlgw_common::limits::DISK_SLOTS;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const SLOW: Duration = Duration::from_secs(5);

    #[test]
    fn a_file_is_refused_while_too_many_of_its_reads_are_slow() {
        let begun = Instant::now();
        let mut file = ReadsInProgress::default();
        for number in 0..FILE_SLOW_READS_MAX as u64 {
            assert!(file.can_start_read(begun + SLOW, SLOW), "{number} are slow");
            file.0.insert(number, begun);
        }
        assert!(file.can_start_read(begun + SLOW / 2, SLOW), "none is slow yet");
        assert!(!file.can_start_read(begun + SLOW, SLOW));
        file.0.insert(1_000_000, begun + SLOW);
        file.0.remove(&3);
        assert!(file.can_start_read(begun + SLOW, SLOW), "one has returned");
    }

    #[test]
    fn the_oldest_slow_reads_keep_their_places() {
        let file = ReadsInProgress((0..100).map(|number| (number, Instant::now())).collect());
        let kept = (0..100).filter(|number| file.can_keep_slot(*number)).count();
        assert_eq!(kept, FILE_SLOW_SLOTS_MAX);
        assert!(file.can_keep_slot(0) && !file.can_keep_slot(99) && FILE_SLOW_SLOTS_MAX * 2 <= DISK_SLOTS);
    }

    /// Returns work that blocks until the sender is dropped, like a file that does not respond.
    fn stuck(until: Receiver<()>) -> impl FnOnce() -> Result<(), SegmentReadError> + Send {
        move || {
            let _ = until.recv();
            Ok(())
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_hanging_file_does_not_block_reads_of_others() {
        let patience = SlowReadLimits { slow: Duration::from_millis(1), give_up: Duration::from_secs(3600) };
        let (reads, disk) = (Arc::new(FileReadTracker::new(patience)), DiskQueue::new(DISK_SLOTS));
        let (dead, other) = (SegmentId(1), SegmentId(2));
        let turn = || ServiceClass::from(Lane::Training);
        let mut ends: Vec<Sender<()>> = Vec::new();
        let mut stuck_reads = Vec::new();
        // More reads than slots: without the bound the last ones, and reads of every other file, would wait
        // forever.
        for _ in 0..FILE_SLOW_READS_MAX {
            let (end, until) = channel();
            ends.push(end);
            let (reads, disk) = (reads.clone(), disk.clone());
            stuck_reads
                .push(tokio::spawn(async move { reads.run(dead, &disk, turn(), 1, stuck(until)).await }));
        }
        while reads
            .state
            .lock()
            .files
            .get(&dead)
            .is_none_or(|file| file.can_start_read(Instant::now(), patience.slow))
        {
            tokio::task::yield_now().await;
        }
        for _ in 0..2 * DISK_SLOTS {
            reads.run(other, &disk, turn(), 1, || Ok(())).await.unwrap();
        }
        let refused = reads.run(dead, &disk, turn(), 1, || Ok(())).await;
        assert!(matches!(
            &refused,
            Err(SegmentReadError::Io { source, .. }) if source.kind() == io::ErrorKind::TimedOut
        ));
        // The file responds again.
        drop(ends);
        for read in stuck_reads {
            read.await.unwrap().unwrap();
        }
        reads.run(dead, &disk, turn(), 1, || Ok(())).await.unwrap();
        assert!(reads.state.lock().files.is_empty());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_request_fails_although_its_read_hangs() {
        let patience = SlowReadLimits { slow: Duration::from_millis(1), give_up: Duration::from_millis(2) };
        let (reads, disk) = (Arc::new(FileReadTracker::new(patience)), DiskQueue::new(1));
        let (end, until) = channel::<()>();
        let read = reads.run(SegmentId(1), &disk, ServiceClass::from(Lane::Training), 1, stuck(until)).await;
        assert!(read.is_err() && disk.try_acquire(Lane::Training).is_some(), "its slot is free again");
        drop(end);
    }
}
