//! Digests of the rows of a group after one entry, to compare the members of a cluster.
//!
//! The entry is the same on all members, so their rows are as well, unless a member diverged. The rows are
//! frozen while the entry is applied, which reads nothing. A thread of low rate reads them afterwards. A
//! group has one digest at a time: a newer one ends an older one, and each has a time limit, because RocksDB
//! keeps replaced values meanwhile. Nothing is stored. After a restart, and after another member's state was
//! installed, there is no digest until the next entry.

use crate::offline::group_rows::GroupDigest;
use crate::store::state::StateDb;
use crate::store_error::StoreError;
use mlgw_common::limits::{KIB, MIB};
use mlgw_common::time::{Instant, block_for, sleep};
use mlgw_formats::member_calls::RowDigestReply;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::oneshot;

/// Bytes of rows that a node digests per second: 10^8 rows of 120 bytes take 12 minutes. One processor
/// digests about ten times as much.
const BYTES_PER_SECOND: u64 = 16 * MIB;

/// Bytes of rows that are read from one iterator, and then charged to the rate.
const STEP_BYTES: u64 = 256 * KIB;

/// Longest time for which rows stay frozen. A digest that takes longer is given up.
pub(crate) const DIGEST_MAX: Duration = Duration::from_mins(30);

/// Interval at which a thread that waits checks that its digest is still wanted.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Rate of the digests of all groups of a node.
pub(crate) struct DigestPace {
    bytes_per_second: u64,
    /// Time at which the bytes that were read so far are paid for.
    paid: Mutex<Instant>,
}

impl Default for DigestPace {
    fn default() -> Self {
        Self::new(BYTES_PER_SECOND)
    }
}

impl DigestPace {
    pub(crate) fn new(bytes_per_second: u64) -> Self {
        assert!(bytes_per_second > 0, "a digest makes progress");
        Self { bytes_per_second, paid: Mutex::new(Instant::now()) }
    }

    /// Charges bytes that were read, and returns the time at which reading may go on.
    fn charge(&self, bytes: u64) -> Instant {
        let mut paid = self.paid.lock();
        let takes = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        *paid = Instant::now().max(*paid) + takes;
        *paid
    }
}

/// Digest of the rows after one entry, as far as this member has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowDigest {
    /// The entry is not applied yet, or the rows are being read.
    Pending,
    /// SHA-256 of the rows.
    Done([u8; 32]),
    /// There is none and there will be none.
    Absent,
}

impl RowDigest {
    /// The answer to a question for it.
    pub(crate) fn reply(self) -> RowDigestReply {
        RowDigestReply {
            is_pending: self == Self::Pending,
            digest: if let Self::Done(sum) = self { sum.to_vec() } else { Vec::new() },
        }
    }

    /// The digest in an answer.
    pub(crate) fn of_reply(reply: &RowDigestReply) -> Self {
        match (reply.is_pending, reply.digest.as_slice().try_into()) {
            (true, _) => Self::Pending,
            (false, Ok(sum)) => Self::Done(sum),
            (false, Err(_)) => Self::Absent,
        }
    }
}

/// The newest digest of a member.
struct NewestDigest {
    index: u64,
    digest: RowDigest,
    _guard: DigestGuard,
}

/// Ends the thread of a digest when it is dropped.
struct DigestGuard(Arc<AtomicBool>);

impl Drop for DigestGuard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The digests of a member of a group.
pub(crate) struct RowDigests {
    group: u32,
    pace: Arc<DigestPace>,
    is_enabled: bool,
    newest: Arc<Mutex<Option<NewestDigest>>>,
    /// Each thread has a clone until it has closed the state.
    threads: Arc<()>,
}

impl RowDigests {
    pub(super) fn new(group: u32, pace: Arc<DigestPace>, is_enabled: bool) -> Self {
        Self { group, pace, is_enabled, newest: Arc::default(), threads: Arc::default() }
    }

    /// Freezes the rows of `state`, which has applied the entry `index` and no later one, and digests them in
    /// the background. Returns when they are frozen.
    pub(super) async fn begin(&self, state: Arc<StateDb>, index: u64) {
        if !self.is_enabled {
            return;
        }
        let is_wanted = Arc::new(AtomicBool::new(true));
        let guard = DigestGuard(Arc::clone(&is_wanted));
        *self.newest.lock() = Some(NewestDigest { index, digest: RowDigest::Pending, _guard: guard });
        let work = DigestWork {
            state,
            index,
            group: self.group,
            pace: Arc::clone(&self.pace),
            is_wanted,
            newest: Arc::downgrade(&self.newest),
            _thread: Arc::clone(&self.threads),
        };
        let (freeze, frozen) = oneshot::channel();
        // A thread of its own: it waits most of the time, and the rows are frozen for as long as it borrows
        // them.
        let spawned = std::thread::Builder::new().name("row-digest".into()).spawn(move || work.run(freeze));
        match spawned {
            // Without an answer the thread has ended, and recorded no digest.
            Ok(_) => {
                let _ = frozen.await;
            }
            Err(error) => {
                tracing::warn!(group = self.group, %error, "no thread digests the rows of the group");
                *self.newest.lock() = None;
            }
        }
    }

    /// Removes the newest digest, and waits until no thread has the state open.
    pub(super) async fn end(&self) {
        *self.newest.lock() = None;
        while Arc::strong_count(&self.threads) > 1 {
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// The digest after the entry `index`; `None` if the newest one is of another entry.
    pub(super) fn of(&self, index: u64) -> Option<RowDigest> {
        self.newest.lock().as_ref().filter(|newest| newest.index == index).map(|newest| newest.digest)
    }
}

/// Work of the thread of a digest.
struct DigestWork {
    state: Arc<StateDb>,
    index: u64,
    group: u32,
    pace: Arc<DigestPace>,
    is_wanted: Arc<AtomicBool>,
    newest: Weak<Mutex<Option<NewestDigest>>>,
    _thread: Arc<()>,
}

impl DigestWork {
    fn run(self, freeze: oneshot::Sender<()>) {
        let digested = self.digest(freeze);
        let Self { state, index, group, newest, _thread: thread, .. } = self;
        // The state may be closed from here on.
        drop(state);
        drop(thread);
        let digest = match digested {
            Ok(Some(sum)) => RowDigest::Done(sum),
            Ok(None) => RowDigest::Absent,
            Err(error) => {
                tracing::warn!(group, %error, "the rows of the group were not digested");
                RowDigest::Absent
            }
        };
        if let Some(newest) = newest.upgrade()
            && let Some(newest) = newest.lock().as_mut().filter(|newest| newest.index == index)
        {
            newest.digest = digest;
        }
    }

    /// The digest; `None` if it is not wanted any more, or takes too long.
    fn digest(&self, freeze: oneshot::Sender<()>) -> Result<Option<[u8; 32]>, StoreError> {
        let rows = self.state.frozen();
        // Without a receiver the group stops.
        let _ = freeze.send(());
        let deadline = Instant::now() + DIGEST_MAX;
        let mut digest = GroupDigest::default();
        let mut from = vec![0];
        loop {
            let mut step = rows.rows(&from, &[u8::MAX]);
            let mut bytes = 0;
            loop {
                let Some((key, value)) = step.next()? else { return Ok(Some(digest.sum())) };
                digest.add(key, value);
                bytes += (key.len() + value.len()) as u64;
                if bytes >= STEP_BYTES {
                    // The first key after it.
                    from = [key, &[0]].concat();
                    break;
                }
            }
            drop(step);
            if !self.wait_until(self.pace.charge(bytes), deadline) {
                return Ok(None);
            }
        }
    }

    /// Waits until a time. Returns false if the digest is not wanted any more, or takes too long.
    fn wait_until(&self, time: Instant, deadline: Instant) -> bool {
        loop {
            let now = Instant::now();
            if now >= deadline {
                tracing::warn!(group = self.group, "the digest of the group's rows takes too long");
                return false;
            }
            if !self.is_wanted.load(Ordering::Acquire) {
                return false;
            }
            let rest = time.saturating_duration_since(now);
            if rest.is_zero() {
                return true;
            }
            block_for(rest.min(CHECK_INTERVAL));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DigestPace, RowDigest, RowDigests, STEP_BYTES};
    use crate::offline::group_rows::GroupDigest;
    use crate::store::options;
    use crate::store::state::StateDb;
    use crate::view::RowReader as _;
    use mlgw_common::time::{Instant, sleep};
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    /// A state with rows of more than three steps.
    fn state(dir: &Path) -> Arc<StateDb> {
        let state = StateDb::open(dir, &options::cache(1 << 20), 4 << 20).unwrap();
        let row = |number: u64| (number.to_be_bytes().to_vec(), Some(vec![7; 4096]));
        state.write(&(0..STEP_BYTES / 1024).map(row).collect()).unwrap();
        Arc::new(state)
    }

    fn digest_of(state: &StateDb) -> RowDigest {
        let mut digest = GroupDigest::default();
        for (key, value) in state.range(&[0], &[u8::MAX], usize::MAX).unwrap() {
            digest.add(&key, &value);
        }
        RowDigest::Done(digest.sum())
    }

    fn digests(bytes_per_second: u64) -> RowDigests {
        RowDigests::new(0, Arc::new(DigestPace::new(bytes_per_second)), true)
    }

    async fn ended(digests: &RowDigests, index: u64) -> RowDigest {
        loop {
            match digests.of(index).unwrap() {
                RowDigest::Pending => sleep(Duration::from_millis(1)).await,
                digest => return digest,
            }
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_digest_has_the_rows_of_its_entry_and_no_later_ones() {
        let dir = tempfile::tempdir().unwrap();
        let state = state(dir.path());
        let expected = digest_of(&state);
        // The rate leaves time for the write below before the digest ends.
        let digests = digests(8 * STEP_BYTES);
        digests.begin(Arc::clone(&state), 5).await;
        let changes = [(vec![1; 8], Some(vec![1])), (vec![0, 1], Some(vec![2]))];
        state.write(&changes.into()).unwrap();
        assert_eq!(ended(&digests, 5).await, expected);
        digests.begin(Arc::clone(&state), 6).await;
        assert_eq!(digests.of(5), None, "the newest one alone is kept");
        assert_eq!(ended(&digests, 6).await, digest_of(&state));
        assert_ne!(digest_of(&state), expected);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_digest_that_is_not_wanted_gives_its_state_back() {
        let dir = tempfile::tempdir().unwrap();
        let state = state(dir.path());
        let closed = state.open_token();
        // This one would take hours.
        let digests = digests(64);
        digests.begin(Arc::clone(&state), 5).await;
        digests.begin(Arc::clone(&state), 6).await;
        digests.end().await;
        assert_eq!(digests.of(6), None);
        digests.begin(state, 7).await;
        assert_eq!(digests.of(7), Some(RowDigest::Pending));
        drop(digests);
        while closed.strong_count() > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn a_server_without_peers_digests_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let digests = RowDigests::new(0, Arc::default(), false);
        digests.begin(state(dir.path()), 5).await;
        assert_eq!(digests.of(5), None);
    }

    #[test]
    fn all_groups_of_a_node_share_the_rate() {
        let (pace, begin) = (DigestPace::new(1000), Instant::now());
        pace.charge(500);
        let second = pace.charge(1500);
        assert!(second >= begin + Duration::from_secs(2), "{:?}", second - begin);
    }

    #[test]
    fn an_answer_has_a_digest_or_states_that_there_is_none() {
        for digest in [RowDigest::Pending, RowDigest::Done([9; 32]), RowDigest::Absent] {
            assert_eq!(RowDigest::of_reply(&digest.reply()), digest);
        }
    }
}
