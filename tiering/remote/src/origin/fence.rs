//! Permission of one node of a cluster to change origins.
//!
//! Remote-backed buckets are served by one node at a time. When another node takes them over, a request of
//! the former one must not reach an origin after a newer request of the next one. The permission lasts as
//! long as the lease of the node. When it ends, requests in progress are cut; until then the next node waits.
//!
//! A fence is for one term of duty, and is closed for ever at its end. Nothing is stored: a process that
//! starts has no permission.

use super::OriginError;
use mlgw_common::limits::ORIGIN_CHANGE_MS_MAX;
use mlgw_common::time::{Instant, sleep_until, timeout, timeout_at};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Longest time from the last byte of a change until it is given up. Later it has no effect any more.
pub(super) const CHANGE_MAX: Duration = Duration::from_millis(ORIGIN_CHANGE_MS_MAX);

/// Longest time in which a change waits until changes are allowed: after a take-over from a node that was
/// lost.
const WAIT_MAX: Duration = Duration::from_millis(ORIGIN_CHANGE_MS_MAX + 10_000);

/// Permission of this node. Clones share it.
#[derive(Clone, Debug)]
pub struct OriginFence {
    state: Arc<watch::Sender<FenceState>>,
}

#[derive(Clone, Copy, Debug)]
struct FenceState {
    /// End of the lease.
    lease: Instant,
    /// Changes may begin.
    is_open: bool,
    /// None begins any more; those in progress go on.
    is_ending: bool,
    /// The term has ended.
    is_closed: bool,
    in_progress: usize,
    /// Time until which a change whose outcome is unknown may have an effect.
    doubtful_until: Option<Instant>,
}

impl FenceState {
    fn holds(&self, now: Instant) -> bool {
        !self.is_closed && now < self.lease
    }

    /// True if changes may begin, or never will.
    const fn is_decided(&self) -> bool {
        self.is_open || self.is_ending || self.is_closed
    }

    fn is_at_rest(&self, now: Instant) -> bool {
        self.in_progress == 0 && self.doubtful_until.is_none_or(|until| until <= now)
    }
}

impl Default for OriginFence {
    fn default() -> Self {
        Self::new()
    }
}

impl OriginFence {
    /// Creates the fence of a term that has no lease yet.
    #[must_use]
    pub fn new() -> Self {
        let state = FenceState {
            lease: Instant::now(),
            is_open: false,
            is_ending: false,
            is_closed: false,
            in_progress: 0,
            doubtful_until: None,
        };
        Self { state: Arc::new(watch::Sender::new(state)) }
    }

    /// Extends the lease: until then no other node serves remote-backed buckets.
    pub fn extend(&self, lease: Instant) {
        self.state.send_modify(|state| state.lease = state.lease.max(lease));
    }

    /// Allows changes of origins.
    pub fn open(&self) {
        self.state.send_modify(|state| state.is_open = true);
    }

    /// Lets no change begin any more, and waits until those in progress have ended, at most `max`. Then the
    /// fence is closed, and what is still in progress is cut. Returns true if the outcome of all changes is
    /// known.
    pub async fn end(&self, max: Duration) -> bool {
        self.state.send_modify(|state| state.is_ending = true);
        let mut states = self.state.subscribe();
        // A wait in vain is judged below.
        let _ = timeout(max, states.wait_for(|state| state.in_progress == 0)).await;
        self.state.send_modify(|state| state.is_closed = true);
        self.state.borrow().is_at_rest(Instant::now())
    }

    /// True while this node has the lease: no other one serves remote-backed buckets.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.state.borrow().holds(Instant::now())
    }

    /// Waits until changes are allowed, or never will be. What is read from an origin after that is not older
    /// than the changes of the node before.
    pub async fn until_open(&self) {
        let mut states = self.state.subscribe();
        let is_decided = states.wait_for(FenceState::is_decided).await;
        debug_assert!(is_decided.is_ok(), "the sender lives as long as this fence");
    }

    /// Waits until changes are allowed, and begins one.
    pub(super) async fn begin(&self) -> Result<ChangePass, OriginError> {
        let mut states = self.state.subscribe();
        let is_decided = states.wait_for(FenceState::is_decided);
        let waited = timeout_at(Instant::now() + WAIT_MAX, is_decided).await.is_ok();
        let mut has_begun = false;
        self.state.send_if_modified(|state| {
            has_begun = waited && state.is_open && !state.is_ending && state.holds(Instant::now());
            state.in_progress += usize::from(has_begun);
            has_begun
        });
        match has_begun {
            true => Ok(ChangePass { fence: self.clone(), is_known: false }),
            false => {
                Err(OriginError::Unreachable("another node takes over the remote-backed buckets".into()))
            }
        }
    }

    /// Waits until the lease has ended.
    pub(super) async fn ended(&self) {
        let mut states = self.state.subscribe();
        loop {
            let state = *states.borrow_and_update();
            if !state.holds(Instant::now()) {
                return;
            }
            tokio::select! {
                // The sender lives as long as this fence.
                _ = states.changed() => {}
                () = sleep_until(state.lease) => {}
            }
        }
    }
}

/// A change in progress. Dropped without an outcome, it is doubtful for a while.
#[derive(Debug)]
pub(super) struct ChangePass {
    fence: OriginFence,
    is_known: bool,
}

impl ChangePass {
    /// Ends the change. `is_known` is false if it may still have an effect.
    pub(super) fn finish(mut self, is_known: bool) {
        self.is_known = is_known;
    }
}

impl Drop for ChangePass {
    fn drop(&mut self) {
        self.fence.state.send_modify(|state| {
            state.in_progress -= 1;
            if !self.is_known {
                state.doubtful_until = Some(Instant::now() + CHANGE_MAX);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{CHANGE_MAX, OriginFence, WAIT_MAX};
    use mlgw_common::time::{Instant, sleep};
    use std::time::Duration;

    const LEASE: Duration = Duration::from_secs(4);

    fn leased() -> OriginFence {
        let fence = OriginFence::new();
        fence.extend(Instant::now() + LEASE);
        fence
    }

    #[tokio::test(start_paused = true)]
    async fn no_change_begins_without_a_lease_and_none_goes_on_after_it() {
        let fence = OriginFence::new();
        fence.open();
        assert!(!fence.holds() && fence.begin().await.is_err());
        let fence = leased();
        fence.open();
        let pass = fence.begin().await.unwrap();
        let begun = Instant::now();
        let renewing = async {
            sleep(LEASE / 2).await;
            fence.extend(Instant::now() + LEASE);
        };
        tokio::join!(renewing, fence.ended());
        assert_eq!(begun.elapsed(), LEASE + LEASE / 2);
        assert!(!fence.holds() && fence.begin().await.is_err());
        pass.finish(true);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_waits_until_changes_are_allowed() {
        let (fence, begun) = (leased(), Instant::now());
        let open = async {
            sleep(LEASE / 2).await;
            fence.open();
        };
        let (began, ()) = tokio::join!(fence.begin(), open);
        assert!(began.is_ok());
        assert_eq!(begun.elapsed(), LEASE / 2);
        let (never, begun) = (leased(), Instant::now());
        assert!(never.begin().await.is_err());
        assert_eq!(begun.elapsed(), WAIT_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_waits_for_the_changes_in_progress_and_for_no_others() {
        let fence = leased();
        fence.open();
        let pass = fence.begin().await.unwrap();
        let change = async {
            sleep(LEASE / 4).await;
            assert!(fence.begin().await.is_err(), "none begins");
            pass.finish(true);
        };
        let begun = Instant::now();
        let (is_known, ()) = tokio::join!(fence.end(LEASE), change);
        assert!(is_known && begun.elapsed() == LEASE / 4 && !fence.holds());
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_that_is_cut_or_has_no_outcome_is_doubtful() {
        let fence = leased();
        fence.open();
        let pass = fence.begin().await.unwrap();
        assert!(!fence.end(LEASE).await, "it is still in progress");
        drop(pass);
        let fence = leased();
        fence.open();
        fence.begin().await.unwrap().finish(false);
        assert!(!fence.end(Duration::ZERO).await);
        sleep(CHANGE_MAX).await;
        assert!(fence.end(Duration::ZERO).await, "it can have no effect any more");
    }
}
