//! Barriers: reads that must see every change acknowledged before them wait here.
//!
//! One confirmation is in flight at a time. Readers that arrive meanwhile share the next one, because a
//! confirmation that began before a reader arrived does not cover it. Every node has confirmations of its
//! readers. Those of all nodes share the confirmations of the leader, because each one costs a round to a
//! quorum.

use crate::catalogue::options::BarrierError;
use mlgw_common::time::{Instant, timeout, timeout_at};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// Longest time that a reader waits, and that a confirmation takes: longer than an election. A request of a
/// group that has lost its majority is answered earlier: its node does not reach most of the voters.
pub(super) const BARRIER_WAIT: Duration = Duration::from_secs(6);

/// Outcome of a confirmation, which returns a `T`.
type Confirmed<T> = Result<T, BarrierError>;

struct BarrierState<T> {
    is_confirming: bool,
    waiting: Vec<oneshot::Sender<Confirmed<T>>>,
    /// Number of readers of the last confirmation, which is the expected number for the next.
    expected: usize,
}

/// Readers of a group that wait for a confirmation.
pub(crate) struct Barriers<T> {
    state: Mutex<BarrierState<T>>,
    /// Notified when as many readers wait as are expected.
    gathered: Notify,
    /// Longest time from the begin of a confirmation with several readers to that of the next one.
    shared_interval: Duration,
}

impl<T: Copy + Send + 'static> Barriers<T> {
    pub(crate) const fn new(shared_interval: Duration) -> Self {
        let state = BarrierState { is_confirming: false, waiting: Vec::new(), expected: 0 };
        Self { state: Mutex::new(state), gathered: Notify::const_new(), shared_interval }
    }

    /// Waits for a confirmation that begins after this call. If none is in progress, a task makes them until
    /// no reader is left. It goes on when the caller no longer waits, because others may. Only that task
    /// needs `confirm`, which returns the function that makes one.
    ///
    /// # Errors
    /// The error of the confirmation; [`BarrierError::NoQuorum`] if there is none in time.
    pub(crate) async fn confirmed<C, F>(self: &Arc<Self>, confirm: impl FnOnce() -> C) -> Confirmed<T>
    where
        C: Fn() -> F + Send + 'static,
        F: Future<Output = Confirmed<T>> + Send + 'static,
    {
        let (confirmed, is_first) = self.join();
        if is_first {
            tokio::spawn(Arc::clone(self).confirm_all(confirm()));
        }
        // A reader that joined a running confirmation would otherwise wait for two of them.
        let confirmed = timeout(BARRIER_WAIT, confirmed).await;
        confirmed.map_or(Err(BarrierError::NoQuorum), |sent| sent.unwrap_or(Err(BarrierError::Stopping)))
    }

    async fn confirm_all<C, F>(self: Arc<Self>, confirm: C)
    where
        C: Fn() -> F + Send,
        F: Future<Output = Confirmed<T>> + Send,
    {
        while let Some(readers) = self.next_round() {
            let (begun, is_shared) = (Instant::now(), readers.len() > 1);
            let confirmed = timeout(BARRIER_WAIT, confirm()).await.unwrap_or(Err(BarrierError::NoQuorum));
            for reader in readers {
                let _ = reader.send(confirmed);
            }
            if is_shared && !self.shared_interval.is_zero() {
                // Readers that were answered together come again together, and share the next confirmation.
                // A single reader does not wait for others.
                self.gather(begun + self.shared_interval).await;
            }
        }
    }

    /// Waits until as many readers wait as the last confirmation had, but not beyond `until`.
    async fn gather(&self, until: Instant) {
        let gathered = async {
            // The permit may be one of before.
            while self.lacks_readers() {
                self.gathered.notified().await;
            }
        };
        let _ = timeout_at(until, gathered).await;
    }

    fn lacks_readers(&self) -> bool {
        let state = self.state.lock();
        state.waiting.len() < state.expected
    }

    /// Adds a reader to the next confirmation. Returns true as well if no task makes confirmations.
    fn join(&self) -> (oneshot::Receiver<Confirmed<T>>, bool) {
        let (sender, confirmed) = oneshot::channel();
        let mut state = self.state.lock();
        state.waiting.push(sender);
        if state.waiting.len() == state.expected {
            self.gathered.notify_one();
        }
        (confirmed, !std::mem::replace(&mut state.is_confirming, true))
    }

    /// The readers that the next confirmation covers; `None` if there are none, which ends the confirmations.
    fn next_round(&self) -> Option<Vec<oneshot::Sender<Confirmed<T>>>> {
        let mut state = self.state.lock();
        let round = std::mem::take(&mut state.waiting);
        state.expected = round.len();
        state.is_confirming = !round.is_empty();
        state.is_confirming.then_some(round)
    }
}

#[cfg(test)]
mod tests {
    use super::{BARRIER_WAIT, Barriers};
    use crate::catalogue::options::BarrierError;
    use futures_util::future::join_all;
    use mlgw_common::time::{Instant, sleep};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::time::Duration;

    const INTERVAL: Duration = Duration::from_millis(1);
    const CONFIRMING: Duration = Duration::from_micros(100);

    #[test]
    fn a_reader_joins_a_confirmation_that_begins_after_it() {
        let barriers = Barriers::<()>::new(INTERVAL);
        assert!(barriers.join().1 && !barriers.join().1);
        assert_eq!(barriers.next_round().map(|round| round.len()), Some(2));
        assert!(!barriers.join().1);
        assert_eq!(barriers.next_round().map(|round| round.len()), Some(1));
        assert!(barriers.next_round().is_none());
        assert!(barriers.join().1, "the next reader starts again");
    }

    #[tokio::test(start_paused = true)]
    async fn readers_at_the_same_time_share_confirmations() {
        let (barriers, made) = (Arc::new(Barriers::new(INTERVAL)), Arc::new(AtomicUsize::new(0)));
        let read = async |number: u32| {
            // They arrive within two intervals.
            sleep(2 * INTERVAL * number / 100).await;
            let (before, made) = (made.load(Relaxed), Arc::clone(&made));
            let confirm = move || {
                let number = made.fetch_add(1, Relaxed);
                async move {
                    sleep(CONFIRMING).await;
                    Ok(number)
                }
            };
            let confirmed = barriers.confirmed(|| confirm).await.unwrap();
            assert!(confirmed >= before, "it began after the reader");
        };
        join_all((0..100).map(read)).await;
        assert!(made.load(Relaxed) < 10, "{} confirmations", made.load(Relaxed));
    }

    #[tokio::test(start_paused = true)]
    async fn a_single_reader_does_not_wait_for_others() {
        let (barriers, begun) = (Arc::new(Barriers::new(Duration::from_secs(1))), Instant::now());
        for _ in 0..10 {
            assert_eq!(barriers.confirmed(|| || async { Ok(()) }).await, Ok(()));
        }
        assert!(begun.elapsed().is_zero());
    }

    #[tokio::test(start_paused = true)]
    async fn readers_that_come_again_together_do_not_wait_longer_than_for_the_last_of_them() {
        let (barriers, begun) = (Arc::new(Barriers::new(Duration::from_secs(1))), Instant::now());
        let read = async |count: usize| {
            let all = (0..count).map(|_| barriers.confirmed(|| || async { Ok(()) }));
            assert!(join_all(all).await.iter().all(Result::is_ok));
        };
        for _ in 0..10 {
            read(3).await;
        }
        assert!(begun.elapsed().is_zero());
        read(2).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(1), "the third one may come until then");
        read(1).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(2));
        read(1).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(2), "a single one waits for no other");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_waits_for_one_confirmation_at_most() {
        let barriers = Arc::new(Barriers::<()>::new(INTERVAL));
        let read = async |after: Duration| {
            sleep(after).await;
            let begun = Instant::now();
            assert_eq!(barriers.confirmed(|| std::future::pending).await, Err(BarrierError::NoQuorum));
            assert_eq!(begun.elapsed(), BARRIER_WAIT, "{after:?}");
        };
        tokio::join!(read(Duration::ZERO), read(BARRIER_WAIT / 2));
    }
}
