//! Permission of one node of a cluster to change origins.
//!
//! Remote-backed buckets are served by one node at a time. When another node takes them over, a request of
//! the former one must not reach an origin after a newer request of the next one. The permission lasts as
//! long as the lease of the node. When it ends, requests in progress are cut; until then the next node waits.
//! A suspension of the machine ends the lease, because the clock of the lease stands still meanwhile.
//!
//! A change of an object whose outcome is unknown is in doubt for [`CHANGE_MAX`]. A change is not in doubt if
//! its last byte was never sent, or if it changes no object.
//!
//! A fence is for one term of duty, and is closed for ever at its end. Nothing is stored: a process that
//! starts has no permission.

use super::OriginError;
use super::change_body::ChangeBody;
use mlgw_carrier::{PermitEnd, SendPermit};
use mlgw_common::SuspensionWatch;
use mlgw_common::limits::{DUTY_LEASE_MS, ORIGIN_CHANGE_MS_MAX};
use mlgw_common::time::{Instant, sleep_until, timeout, timeout_at};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Longest time from the last byte of a change until it is given up, and until it can have no effect any
/// more.
pub(super) const CHANGE_MAX: Duration = Duration::from_millis(ORIGIN_CHANGE_MS_MAX);

/// Longest time in which a change waits until changes are allowed: after a take-over from a node that was
/// lost.
const WAIT_MAX: Duration = Duration::from_millis(ORIGIN_CHANGE_MS_MAX + 10_000);

/// Time from the begin of a lease to its end.
const LEASE: Duration = Duration::from_millis(DUTY_LEASE_MS);

/// Interval at which the lease is examined while a change is in progress: a suspension of the machine does
/// not end a sleep.
const EXAMINE_INTERVAL: Duration = Duration::from_millis(250);

/// Time in which changes that are cut have ended.
const CUT_MAX: Duration = Duration::from_secs(1);

/// Effect of a change at the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangeEffect {
    /// It changes an object.
    Object,
    /// It changes a multipart upload and no object, so the next node need not wait for it: the part of a
    /// completed object is chosen by its ETag.
    Upload,
}

/// Permission of this node. Clones share it.
#[derive(Clone, Debug)]
pub struct OriginFence {
    state: Arc<watch::Sender<FenceState>>,
    suspensions: SuspensionWatch,
}

#[derive(Clone, Copy, Debug)]
struct FenceState {
    /// End of the lease.
    lease: Instant,
    /// Time since which changes may begin.
    opened: Option<Instant>,
    /// No change begins any more; those in progress go on.
    is_draining: bool,
    /// The term is over.
    is_closed: bool,
    /// Number of changes of objects in progress.
    in_progress: usize,
    /// Time until which a change whose outcome is unknown may have an effect.
    doubtful_until: Option<Instant>,
}

impl FenceState {
    /// True if no change will ever begin any more.
    const fn is_over(&self) -> bool {
        self.is_draining || self.is_closed
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
        Self::with_suspensions(SuspensionWatch::of_process())
    }

    /// Creates the fence of a term that has no lease yet, on a machine with these suspensions.
    pub(super) fn with_suspensions(suspensions: SuspensionWatch) -> Self {
        let state = FenceState {
            lease: Instant::now(),
            opened: None,
            is_draining: false,
            is_closed: false,
            in_progress: 0,
            doubtful_until: None,
        };
        Self { state: Arc::new(watch::Sender::new(state)), suspensions }
    }

    /// Extends the lease: until then no other node serves remote-backed buckets. It was confirmed
    /// [`DUTY_LEASE_MS`] before its end, or later.
    pub fn extend(&self, lease: Instant) {
        self.state.send_modify(|state| state.lease = state.lease.max(lease));
    }

    /// Allows changes of origins.
    pub fn open(&self) {
        self.state.send_modify(|state| {
            state.opened.get_or_insert_with(Instant::now);
        });
    }

    /// Lets no change begin any more, and waits until those in progress have ended, at most `max`. Then the
    /// fence is closed, and what is still in progress is cut. Returns true if the outcome of all changes of
    /// objects is known.
    pub async fn end(&self, max: Duration) -> bool {
        self.state.send_modify(|state| state.is_draining = true);
        let mut states = self.state.subscribe();
        // A wait in vain is judged below.
        let _ = timeout(max, states.wait_for(|state| state.in_progress == 0)).await;
        self.state.send_modify(|state| state.is_closed = true);
        let _ = timeout(CUT_MAX, states.wait_for(|state| state.in_progress == 0)).await;
        self.state.borrow().is_at_rest(Instant::now())
    }

    /// True while this node has the lease: no other one serves remote-backed buckets.
    #[must_use]
    pub fn holds(&self) -> bool {
        let state = *self.state.borrow();
        self.is_held(&state)
    }

    /// True if an answer of the origin is not older than the changes of an earlier holder, also of one at an
    /// origin that executes a request late: changes have been allowed for [`CHANGE_MAX`], and the term is not
    /// over.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let state = *self.state.borrow();
        !state.is_closed && state.opened.is_some_and(|since| since.elapsed() >= CHANGE_MAX)
    }

    fn is_held(&self, state: &FenceState) -> bool {
        !state.is_closed && self.suspensions.lease_holds(state.lease, LEASE)
    }

    fn may_begin(&self, state: &FenceState) -> bool {
        state.opened.is_some() && !state.is_over() && self.is_held(state)
    }

    /// Waits until changes are allowed, or never will be. What is read from an origin after that is not older
    /// than the changes of the node before.
    pub async fn until_open(&self) {
        let mut states = self.state.subscribe();
        let is_decided = states.wait_for(|state| state.opened.is_some() || state.is_over()).await;
        debug_assert!(is_decided.is_ok(), "the sender lives as long as this fence");
    }

    /// Waits until changes are allowed and this node has the lease, and begins one with these bytes.
    pub(super) async fn begin(
        &self,
        effect: ChangeEffect,
        body: ChangeBody,
    ) -> Result<ChangePass, OriginError> {
        let mut states = self.state.subscribe();
        let is_decided = states.wait_for(|state| state.is_over() || self.may_begin(state));
        let waited = timeout_at(Instant::now() + WAIT_MAX, is_decided).await.is_ok();
        let mut has_begun = false;
        self.state.send_if_modified(|state| {
            has_begun = waited && self.may_begin(state);
            state.in_progress += usize::from(has_begun && effect == ChangeEffect::Object);
            has_begun
        });
        match has_begun {
            true => Ok(ChangePass { fence: self.clone(), effect, body, is_known: false }),
            false => {
                Err(OriginError::Unreachable("another node takes over the remote-backed buckets".into()))
            }
        }
    }

    /// Waits until this node has no lease.
    pub(super) async fn lease_ended(&self) {
        let mut states = self.state.subscribe();
        loop {
            let state = *states.borrow_and_update();
            if !self.is_held(&state) {
                return;
            }
            let examined = state.lease.min(Instant::now() + EXAMINE_INTERVAL);
            tokio::select! {
                // The sender lives as long as this fence.
                _ = states.changed() => {}
                () = sleep_until(examined) => {}
            }
        }
    }
}

impl SendPermit for OriginFence {
    fn holds(&self) -> bool {
        Self::holds(self)
    }

    fn ended(&self) -> PermitEnd {
        let fence = self.clone();
        Box::pin(async move { fence.lease_ended().await })
    }
}

/// A change in progress. Its end cuts a body that is incomplete, because a connection may still send it. A
/// change without an outcome is doubtful for a while if its body is complete.
#[derive(Debug)]
pub(super) struct ChangePass {
    fence: OriginFence,
    effect: ChangeEffect,
    body: ChangeBody,
    is_known: bool,
}

impl ChangePass {
    /// Ends the change. `is_known` is false if a complete one may still have an effect.
    pub(super) fn finish(mut self, is_known: bool) {
        self.is_known = is_known;
    }
}

impl Drop for ChangePass {
    fn drop(&mut self) {
        let is_cut = self.body.cut();
        let is_known = self.is_known || is_cut;
        if self.effect == ChangeEffect::Upload {
            return;
        }
        self.fence.state.send_modify(|state| {
            state.in_progress -= 1;
            if !is_known {
                state.doubtful_until = Some(Instant::now() + CHANGE_MAX);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{
        CHANGE_MAX, ChangeBody, ChangeEffect, ChangePass, EXAMINE_INTERVAL, LEASE, OriginFence, WAIT_MAX,
    };
    use crate::origin::OriginError;
    use mlgw_common::SuspensionWatch;
    use mlgw_common::time::{Instant, SuspendedTime, sleep};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::Duration;

    /// A fence on a machine that is never suspended.
    fn new() -> OriginFence {
        OriginFence::with_suspensions(SuspensionWatch::new(SuspendedTime::default))
    }

    fn leased() -> OriginFence {
        let fence = new();
        fence.extend(Instant::now() + LEASE);
        fence
    }

    async fn begin(fence: &OriginFence) -> Result<ChangePass, OriginError> {
        fence.begin(ChangeEffect::Object, ChangeBody::whole()).await
    }

    #[tokio::test(start_paused = true)]
    async fn no_change_begins_without_a_lease_and_none_goes_on_after_it() {
        let fence = new();
        fence.open();
        assert!(!fence.holds() && begin(&fence).await.is_err());
        let fence = leased();
        fence.open();
        let pass = begin(&fence).await.unwrap();
        let begun = Instant::now();
        let renewing = async {
            sleep(LEASE / 2).await;
            fence.extend(Instant::now() + LEASE);
        };
        tokio::join!(renewing, fence.lease_ended());
        assert_eq!(begun.elapsed(), LEASE + LEASE / 2);
        assert!(!fence.holds() && begin(&fence).await.is_err());
        pass.finish(true);
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspension_of_the_machine_ends_the_lease() {
        let suspended_ms = Arc::new(AtomicU64::default());
        let source = Arc::clone(&suspended_ms);
        let suspensions = SuspensionWatch::new(move || {
            let suspended = Duration::from_millis(source.load(Relaxed));
            SuspendedTime { at_least: suspended, at_most: suspended }
        });
        let fence = OriginFence::with_suspensions(suspensions);
        fence.open();
        fence.extend(Instant::now() + LEASE);
        assert!(fence.holds());
        // Its own clock stands still meanwhile.
        let (cut, begun) = (fence.lease_ended(), Instant::now());
        let suspend = async { suspended_ms.store(60_000, Relaxed) };
        tokio::join!(cut, suspend);
        assert!(!fence.holds() && begun.elapsed() <= EXAMINE_INTERVAL, "{:?}", begun.elapsed());
        fence.extend(Instant::now() + LEASE);
        assert!(fence.holds(), "it was confirmed after the suspension");
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_waits_until_changes_are_allowed_and_the_lease_is_renewed() {
        let (fence, begun) = (leased(), Instant::now());
        let open = async {
            sleep(LEASE / 2).await;
            fence.open();
        };
        let (began, ()) = tokio::join!(begin(&fence), open);
        assert!(began.is_ok());
        assert_eq!(begun.elapsed(), LEASE / 2);
        let renew = async {
            sleep(2 * LEASE).await;
            fence.extend(Instant::now() + LEASE);
        };
        sleep(LEASE).await;
        assert!(!fence.holds());
        let begun = Instant::now();
        let (began, ()) = tokio::join!(begin(&fence), renew);
        assert!(began.is_ok());
        assert_eq!(begun.elapsed(), 2 * LEASE);
        let (never, begun) = (leased(), Instant::now());
        assert!(begin(&never).await.is_err());
        assert_eq!(begun.elapsed(), WAIT_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_waits_for_the_changes_in_progress_and_for_no_others() {
        let fence = leased();
        fence.open();
        let pass = begin(&fence).await.unwrap();
        let change = async {
            sleep(LEASE / 4).await;
            assert!(begin(&fence).await.is_err(), "none begins");
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
        let pass = begin(&fence).await.unwrap();
        assert!(!fence.end(LEASE).await, "it is still in progress");
        drop(pass);
        let fence = leased();
        fence.open();
        begin(&fence).await.unwrap().finish(false);
        assert!(!fence.end(Duration::ZERO).await);
        sleep(CHANGE_MAX).await;
        assert!(fence.end(Duration::ZERO).await, "it can have no effect any more");
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_without_its_last_byte_is_not_doubtful_and_never_gets_it() {
        for outcome in [None, Some(false), Some(true)] {
            let fence = leased();
            fence.open();
            let body = ChangeBody::streaming(8);
            let pass = fence.begin(ChangeEffect::Object, body.clone()).await.unwrap();
            match outcome {
                None => drop(pass),
                Some(is_known) => pass.finish(is_known),
            }
            assert!(!body.complete(), "the last byte is not sent any more");
            assert!(fence.end(Duration::ZERO).await);
        }
        let fence = leased();
        fence.open();
        let body = ChangeBody::streaming(8);
        let pass = fence.begin(ChangeEffect::Object, body.clone()).await.unwrap();
        assert!(body.complete());
        drop(pass);
        assert!(!fence.end(Duration::ZERO).await, "the origin may have it");
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_waits_for_no_change_of_an_upload() {
        let fence = leased();
        fence.open();
        let part = fence.begin(ChangeEffect::Upload, ChangeBody::whole()).await.unwrap();
        let begun = Instant::now();
        assert!(fence.end(LEASE).await, "it changes no object");
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert!(!fence.holds(), "the part is cut");
        drop(part);
        assert!(fence.end(Duration::ZERO).await);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_settled_a_while_after_changes_are_allowed_and_until_the_end() {
        let fence = leased();
        sleep(2 * CHANGE_MAX).await;
        assert!(!fence.is_settled(), "an earlier holder may still change the origin");
        fence.open();
        sleep(CHANGE_MAX / 2).await;
        fence.open();
        assert!(!fence.is_settled());
        sleep(CHANGE_MAX / 2).await;
        assert!(fence.is_settled());
        fence.end(Duration::ZERO).await;
        assert!(!fence.is_settled());
    }
}
