//! The stages of a traced request: how its time is spent.
//!
//! A piece of work is measured by wrapping it in [`stage`]. In a request that is not traced this costs one
//! read of a task-local variable. In a traced one, begin and end are recorded for the trace and for
//! `Server-Timing`. Stages are kept in memory only, so a power failure changes nothing.

use futures_util::FutureExt as _;
use mlgw_common::time::Instant;
use parking_lot::Mutex;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of stages recorded of one request. A long upload has many chunks.
const STAGES_MAX: usize = 32;

tokio::task_local! {
    static STAGES: Arc<Stages>;
}

/// A stage. Times count from the start of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The name of the work.
    pub name: &'static str,
    /// Begin of the work.
    pub begin: Duration,
    /// End of the work.
    pub end: Duration,
}

/// The stages of one request.
#[derive(Debug)]
pub struct Stages {
    started: Instant,
    recorded: Mutex<Vec<Stage>>,
}

impl Stages {
    /// Returns the stages of a request that started at `started`.
    #[must_use]
    pub const fn new(started: Instant) -> Self {
        Self { started, recorded: Mutex::new(Vec::new()) }
    }

    /// Records a stage that began at `begun` and ends now.
    pub fn push(&self, name: &'static str, begun: Instant) {
        let mut recorded = self.recorded.lock();
        if recorded.len() < STAGES_MAX {
            let begin = begun.saturating_duration_since(self.started);
            recorded.push(Stage { name, begin, end: self.started.elapsed() });
        }
    }

    /// Returns the recorded stages in the order of their ends.
    #[must_use]
    pub fn all(&self) -> Vec<Stage> {
        self.recorded.lock().clone()
    }
}

/// Runs `work` and records its stages in `stages`, if given. The caller pins the work, because the future
/// of a request is large and moving it would need its space twice.
pub async fn follow<F: Future>(stages: Option<Arc<Stages>>, mut work: Pin<&mut F>) -> F::Output {
    poll_fn(|cx| match &stages {
        None => work.as_mut().poll(cx),
        Some(stages) => STAGES.sync_scope(Arc::clone(stages), || work.as_mut().poll(cx)),
    })
    .await
}

/// Runs `work` as a stage of the current request, if the request is traced. The stage begins now.
pub fn stage<F: Future>(name: &'static str, work: F) -> impl Future<Output = F::Output> {
    let begun = begin();
    work.map(move |done| {
        end(name, begun);
        done
    })
}

/// Runs synchronous `work` as a stage of the current request, like [`stage`].
pub fn stage_sync<T>(name: &'static str, work: impl FnOnce() -> T) -> T {
    let begun = begin();
    let done = work();
    end(name, begun);
    done
}

/// Returns the current time if the current request is traced.
fn begin() -> Option<Instant> {
    STAGES.try_with(|_| Instant::now()).ok()
}

fn end(name: &'static str, begun: Option<Instant>) {
    if let Some(begun) = begun {
        // The stage ends in the request in which it began.
        let _ = STAGES.try_with(|stages| stages.push(name, begun));
    }
}

#[cfg(test)]
mod tests {
    use super::{STAGES_MAX, Stages, follow, stage, stage_sync};
    use mlgw_common::time::Instant;
    use std::pin::pin;
    use std::sync::Arc;

    #[tokio::test]
    async fn stages_are_recorded_only_in_a_request_that_is_followed() {
        assert_eq!(stage("lost", async { 1 }).await, 1);
        let stages = Arc::new(Stages::new(Instant::now()));
        let work = || async {
            stage_sync("authenticate", || ());
            stage("read", tokio::task::yield_now()).await;
        };
        follow(None, pin!(work())).await;
        assert_eq!(stages.all(), []);
        follow(Some(Arc::clone(&stages)), pin!(work())).await;
        let recorded = stages.all();
        assert_eq!(recorded.iter().map(|stage| stage.name).collect::<Vec<_>>(), ["authenticate", "read"]);
        assert!(recorded.iter().all(|stage| stage.begin <= stage.end));
    }

    #[test]
    fn a_request_of_many_chunks_keeps_a_bounded_number_of_stages() {
        let stages = Stages::new(Instant::now());
        (0..1000).for_each(|_| stages.push("append", Instant::now()));
        assert_eq!(stages.all().len(), STAGES_MAX);
    }
}
