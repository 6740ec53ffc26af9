//! A job at work: how far it is, how fast, and whether it is to end.

use super::Stop;
use mlgw_formats::schema::{Job, JobCursor, JobKind, JobProgress};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Errors of single objects that are told; further ones are counted.
const TOLD_MAX: usize = 3;

/// A job at work.
pub(super) struct Live {
    pub(super) kind: JobKind,
    pub(super) cancel: CancellationToken,
    stop: CancellationToken,
    begun: Instant,
    /// How far it was then.
    before: JobProgress,
    /// Bytes that came of objects that are not settled yet.
    ahead_bytes: AtomicU64,
    state: Mutex<State>,
}

/// What came of an object so far; it counts until the object is settled, and this is dropped.
pub(super) struct Ahead {
    live: Arc<Live>,
    bytes: AtomicU64,
}

impl Ahead {
    pub(super) fn of(live: &Arc<Live>) -> Self {
        Self { live: Arc::clone(live), bytes: AtomicU64::new(0) }
    }

    /// More came.
    pub(super) fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
        self.live.ahead_bytes.fetch_add(bytes, Relaxed);
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.live.ahead_bytes.fetch_sub(self.bytes.load(Relaxed), Relaxed);
    }
}

#[derive(Default)]
struct State {
    progress: JobProgress,
    cursor: Option<JobCursor>,
    errors: Vec<String>,
}

/// How fast a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Bytes that were seen to in a second, since it was begun here.
    pub bytes_per_second: u64,
    /// How long it will still take; nothing as long as that cannot be said.
    pub left: Option<Duration>,
}

impl Live {
    pub(super) fn new(job: &Job, stop: CancellationToken) -> Self {
        let state = State { progress: job.progress, cursor: job.cursor.clone(), ..State::default() };
        Self {
            kind: job.kind(),
            cancel: CancellationToken::new(),
            stop,
            begun: Instant::now(),
            before: job.progress,
            ahead_bytes: AtomicU64::new(0),
            state: Mutex::new(state),
        }
    }

    /// Whether the work may go on.
    pub(super) fn check(&self) -> Result<(), Stop> {
        if self.stop.is_cancelled() {
            Err(Stop::Stopping)
        } else if self.cancel.is_cancelled() {
            Err(Stop::Cancelled)
        } else {
            Ok(())
        }
    }

    /// Waits until the work may not go on, and says why.
    pub(super) async fn ended(&self) -> Stop {
        tokio::select! {
            () = self.stop.cancelled() => Stop::Stopping,
            () = self.cancel.cancelled() => Stop::Cancelled,
        }
    }

    pub(super) fn progress(&self) -> JobProgress {
        self.state.lock().progress
    }

    /// How far it is, with what came of objects that are not settled yet.
    pub(super) fn shown(&self) -> JobProgress {
        let progress = self.progress();
        let ahead_bytes = progress.bytes_done + self.ahead_bytes.load(Relaxed);
        let bytes_done = ahead_bytes.min(progress.bytes_total.max(progress.bytes_done));
        JobProgress { bytes_done, ..progress }
    }

    pub(super) fn cursor(&self) -> Option<JobCursor> {
        self.state.lock().cursor.clone()
    }

    /// How far it is and where it would go on, which belong together.
    pub(super) fn noted(&self) -> (JobProgress, Option<JobCursor>) {
        let state = self.state.lock();
        (state.progress, state.cursor.clone())
    }

    /// It is all done once more; what was moved, was.
    pub(super) fn begin_anew(&self) {
        let mut state = self.state.lock();
        let JobProgress { moved_objects, moved_bytes, deleted_objects, .. } = state.progress;
        state.progress =
            JobProgress { moved_objects, moved_bytes, deleted_objects, ..JobProgress::default() };
        state.errors.clear();
    }

    /// It is further.
    pub(super) fn step(&self, change: impl FnOnce(&mut JobProgress)) {
        change(&mut self.state.lock().progress);
    }

    /// It is further, and would go on behind `after` of `part`.
    pub(super) fn step_to(&self, part: u32, after: &str, change: impl FnOnce(&mut JobProgress)) {
        let mut state = self.state.lock();
        change(&mut state.progress);
        state.cursor = Some(JobCursor { part, after: after.to_owned() });
    }

    /// An object could not be seen to.
    pub(super) fn failed(&self, why: impl FnOnce() -> String) {
        let mut state = self.state.lock();
        state.progress.failed_objects += 1;
        if state.errors.len() < TOLD_MAX {
            let why = why();
            state.errors.push(why);
        }
    }

    /// What came of single objects that could not be seen to.
    pub(super) fn errors(&self) -> Result<(), Stop> {
        let state = self.state.lock();
        match state.progress.failed_objects {
            0 => Ok(()),
            count => {
                let told = state.errors.join("; ");
                let more = if count as usize > state.errors.len() { "; and others" } else { "" };
                Err(Stop::Failed(format!(
                    "objects that failed: {count} ({told}{more}); the same job again tries them again"
                )))
            }
        }
    }

    /// Objects and bytes that were moved here.
    pub(super) fn moved(&self) -> (u64, u64) {
        let now = self.progress();
        let more = |now: u64, before: u64| now.saturating_sub(before);
        (more(now.moved_objects, self.before.moved_objects), more(now.moved_bytes, self.before.moved_bytes))
    }

    pub(super) fn pace(&self) -> Pace {
        pace(self.shown(), self.before, self.begun.elapsed())
    }
}

/// How fast work is that came from `before` to `now` in `took`.
fn pace(now: JobProgress, before: JobProgress, took: Duration) -> Pace {
    let bytes = now.bytes_done.saturating_sub(before.bytes_done);
    let rate = bytes as f64 / took.as_secs_f64().max(0.001);
    let left = now.bytes_total.saturating_sub(now.bytes_done) as f64;
    let is_known = now.is_counted && (rate > 0.0 || left == 0.0);
    // A year is as good as any longer time.
    let seconds = (left / rate.max(f64::MIN_POSITIVE)).min(31_536_000.0);
    Pace { bytes_per_second: rate as u64, left: is_known.then(|| Duration::from_secs_f64(seconds)) }
}

#[cfg(test)]
mod tests {
    use super::pace;
    use mlgw_formats::schema::JobProgress;
    use std::time::Duration;

    #[test]
    fn what_is_left_takes_as_long_as_what_was_done_here_says() {
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
        assert_eq!(pace(at(0, true), at(0, true), two).left, None, "nothing has come yet");
        assert_eq!(pace(at(1000, true), at(1000, true), two).left, Some(Duration::ZERO));
    }
}
