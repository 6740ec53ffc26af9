//! State of a running job: progress, speed, cancellation.

use super::JobStop;
use mlgw_common::time::Instant;
use mlgw_formats::schema::{Job, JobCursor, JobKind, JobProgress};
use mlgw_remote::origin::OriginFence;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Maximum number of object errors kept in full; further ones are only counted.
const ERRORS_KEPT_MAX: usize = 3;

/// A running job.
pub(super) struct RunningJob {
    pub(super) kind: JobKind,
    pub(super) cancel: CancellationToken,
    stop: JobStopSignals,
    /// Nothing more is recorded of this run.
    is_frozen: AtomicBool,
    begun: Instant,
    /// Progress at the start of this run.
    before: JobProgress,
    /// Bytes transferred for objects that are not finished yet.
    unfinished_bytes: AtomicU64,
    state: Mutex<RunningJobState>,
}

/// Reasons for which a job stops without being over.
pub(super) struct JobStopSignals {
    /// It ends between two objects, and nothing more is recorded of it.
    pub(super) closed: CancellationToken,
    /// It ends at once.
    pub(super) stop: CancellationToken,
    /// Permission of the duty node: without a lease, errors are no failures of the job.
    pub(super) lease: Option<OriginFence>,
}

/// Bytes transferred for one unfinished object; they count until the object is finished and this value is
/// dropped.
pub(super) struct UnfinishedBytes {
    live: Arc<RunningJob>,
    bytes: AtomicU64,
}

impl UnfinishedBytes {
    pub(super) fn of(live: &Arc<RunningJob>) -> Self {
        Self { live: Arc::clone(live), bytes: AtomicU64::new(0) }
    }

    /// Adds transferred bytes.
    pub(super) fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
        self.live.unfinished_bytes.fetch_add(bytes, Relaxed);
    }
}

impl Drop for UnfinishedBytes {
    fn drop(&mut self) {
        let bytes = self.bytes.load(Relaxed);
        let before = self.live.unfinished_bytes.fetch_sub(bytes, Relaxed);
        assert!(before >= bytes, "unfinished bytes that are subtracted were added");
    }
}

#[derive(Default)]
struct RunningJobState {
    progress: JobProgress,
    cursor: Option<JobCursor>,
    errors: Vec<String>,
}

/// Speed of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobPace {
    /// Bytes processed per second since this run began.
    pub bytes_per_second: u64,
    /// Remaining time; `None` while no estimate exists.
    pub left: Option<Duration>,
}

impl RunningJob {
    pub(super) fn new(job: &Job, stop: JobStopSignals) -> Self {
        let state = RunningJobState {
            progress: job.progress,
            cursor: job.cursor.clone(),
            ..RunningJobState::default()
        };
        Self {
            kind: job.kind(),
            cancel: CancellationToken::new(),
            stop,
            is_frozen: AtomicBool::new(false),
            begun: Instant::now(),
            before: job.progress,
            unfinished_bytes: AtomicU64::new(0),
            state: Mutex::new(state),
        }
    }

    /// True if the job stops without being over. Then nothing more is recorded of this run, also if the lease
    /// returns: an object may have failed because of the stop, and is visited again later.
    pub(super) fn is_frozen(&self) -> bool {
        let JobStopSignals { closed, stop, lease } = &self.stop;
        let has_lease = lease.as_ref().is_none_or(OriginFence::holds);
        if closed.is_cancelled() || stop.is_cancelled() || !has_lease {
            self.is_frozen.store(true, Relaxed);
        }
        self.is_frozen.load(Relaxed)
    }

    /// Returns an error if the work has to stop.
    pub(super) fn check(&self) -> Result<(), JobStop> {
        if self.is_frozen() {
            Err(JobStop::Stopping)
        } else if self.cancel.is_cancelled() {
            Err(JobStop::Cancelled)
        } else {
            Ok(())
        }
    }

    /// Waits until the work has to stop, and returns the reason.
    pub(super) async fn stop_reason(&self) -> JobStop {
        tokio::select! {
            () = self.stop.stop.cancelled() => JobStop::Stopping,
            () = self.cancel.cancelled() => JobStop::Cancelled,
        }
    }

    pub(super) fn progress(&self) -> JobProgress {
        self.state.lock().progress
    }

    /// Returns the progress, including bytes of unfinished objects.
    pub(super) fn shown_progress(&self) -> JobProgress {
        let progress = self.progress();
        let ahead_bytes = progress.bytes_done + self.unfinished_bytes.load(Relaxed);
        let bytes_done = ahead_bytes.min(progress.bytes_total.max(progress.bytes_done));
        JobProgress { bytes_done, ..progress }
    }

    pub(super) fn cursor(&self) -> Option<JobCursor> {
        self.state.lock().cursor.clone()
    }

    /// Returns the progress with its cursor, as a consistent pair.
    pub(super) fn progress_and_cursor(&self) -> (JobProgress, Option<JobCursor>) {
        let state = self.state.lock();
        (state.progress, state.cursor.clone())
    }

    /// Resets progress for a complete new run; totals of moved and deleted objects remain.
    pub(super) fn restart(&self) {
        let mut state = self.state.lock();
        let JobProgress { moved_objects, moved_bytes, deleted_objects, .. } = state.progress;
        state.progress =
            JobProgress { moved_objects, moved_bytes, deleted_objects, ..JobProgress::default() };
        state.errors.clear();
    }

    /// Updates the progress, unless the job stops.
    pub(super) fn update(&self, change: impl FnOnce(&mut JobProgress)) {
        if !self.is_frozen() {
            change(&mut self.state.lock().progress);
        }
    }

    /// Updates the progress and moves the cursor past the key `after` of `part`, unless the job stops.
    pub(super) fn advance_to(&self, part: u32, after: &str, change: impl FnOnce(&mut JobProgress)) {
        if self.is_frozen() {
            return;
        }
        let mut state = self.state.lock();
        change(&mut state.progress);
        state.cursor = Some(JobCursor { part, after: after.to_owned() });
    }

    /// Records that an object failed, unless the job stops.
    pub(super) fn record_failure(&self, why: impl FnOnce() -> String) {
        if self.is_frozen() {
            return;
        }
        let mut state = self.state.lock();
        state.progress.failed_objects += 1;
        if state.errors.len() < ERRORS_KEPT_MAX {
            let why = why();
            state.errors.push(why);
        }
    }

    /// Returns an error if any object has failed.
    pub(super) fn check_errors(&self) -> Result<(), JobStop> {
        let state = self.state.lock();
        match state.progress.failed_objects {
            0 => Ok(()),
            count => {
                let messages = state.errors.join("; ");
                let more = if count as usize > state.errors.len() { "; and others" } else { "" };
                Err(JobStop::Failed(format!(
                    "{count} objects failed ({messages}{more}); start the job again to retry them"
                )))
            }
        }
    }

    /// Returns objects and bytes moved in this run.
    pub(super) fn moved(&self) -> (u64, u64) {
        let now = self.progress();
        let more = |now: u64, before: u64| now.saturating_sub(before);
        (more(now.moved_objects, self.before.moved_objects), more(now.moved_bytes, self.before.moved_bytes))
    }

    pub(super) fn pace(&self) -> JobPace {
        pace(self.shown_progress(), self.before, self.begun.elapsed())
    }
}

/// Returns the speed of work that progressed from `before` to `now` in `took`.
fn pace(now: JobProgress, before: JobProgress, took: Duration) -> JobPace {
    let bytes = now.bytes_done.saturating_sub(before.bytes_done);
    let rate = bytes as f64 / took.as_secs_f64().max(0.001);
    let left = now.bytes_total.saturating_sub(now.bytes_done) as f64;
    let is_known = now.is_counted && (rate > 0.0 || left == 0.0);
    // Times beyond a year are cut off.
    let seconds = (left / rate.max(f64::MIN_POSITIVE)).min(31_536_000.0);
    JobPace { bytes_per_second: rate as u64, left: is_known.then(|| Duration::from_secs_f64(seconds)) }
}

#[cfg(test)]
mod tests {
    use super::{JobStopSignals, RunningJob, pace};
    use crate::jobs::JobStop;
    use mlgw_common::time::Instant;
    use mlgw_formats::schema::{Job, JobProgress};
    use mlgw_remote::origin::OriginFence;
    use std::time::Duration;
    use tokio_util::sync::CancellationToken;

    fn running(closed: &CancellationToken, lease: Option<OriginFence>) -> RunningJob {
        let stop = JobStopSignals { closed: closed.clone(), stop: CancellationToken::new(), lease };
        RunningJob::new(&Job::default(), stop)
    }

    /// Visits an object that fails.
    fn fail(live: &RunningJob, key: &str) {
        live.record_failure(|| "no connection".into());
        live.advance_to(0, key, |_| {});
    }

    fn recorded(live: &RunningJob) -> (u64, Option<String>) {
        let (progress, cursor) = live.progress_and_cursor();
        (progress.failed_objects, cursor.map(|cursor| cursor.after))
    }

    #[test]
    fn an_object_that_fails_because_the_job_stops_is_visited_again() {
        let closed = CancellationToken::new();
        let live = running(&closed, None);
        fail(&live, "a");
        assert_eq!((recorded(&live), live.check()), ((1, Some("a".into())), Ok(())));
        closed.cancel();
        fail(&live, "b");
        assert_eq!((recorded(&live), live.check()), ((1, Some("a".into())), Err(JobStop::Stopping)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_fails_without_the_lease_is_visited_again_also_if_the_lease_returns() {
        const LEASE: Duration = Duration::from_secs(3);
        let fence = OriginFence::new();
        fence.extend(Instant::now() + LEASE);
        let live = running(&CancellationToken::new(), Some(fence.clone()));
        assert_eq!(live.check(), Ok(()));
        mlgw_common::time::sleep(LEASE).await;
        fail(&live, "a");
        fence.extend(Instant::now() + LEASE);
        fail(&live, "b");
        assert_eq!((recorded(&live), live.check()), ((0, None), Err(JobStop::Stopping)));
    }

    #[test]
    fn remaining_time_is_estimated_from_the_speed_of_this_run() {
        let at = |bytes_done, is_counted| JobProgress {
            bytes_done,
            bytes_total: 1000,
            is_counted,
            ..JobProgress::default()
        };
        let two = Duration::from_secs(2);
        let found = pace(at(600, true), at(400, true), two);
        assert_eq!((found.bytes_per_second, found.left), (100, Some(Duration::from_secs(4))));
        assert_eq!(pace(at(600, false), at(400, false), two).left, None, "the total is not known yet");
        assert_eq!(pace(at(0, true), at(0, true), two).left, None, "no progress yet");
        assert_eq!(pace(at(1000, true), at(1000, true), two).left, Some(Duration::ZERO));
    }
}
