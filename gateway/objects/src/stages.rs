//! The stages that a traced request goes through: where its time went.
//!
//! Work that is worth a name is wrapped in [`stage`]. In a request that is not traced that is a
//! look at a thread's variable and nothing else; in one that is, begin and end are noted, for the
//! trace and for `Server-Timing`.

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Stages that are noted of one request; a long upload has more chunks than anybody reads.
const STAGES_MAX: usize = 32;

tokio::task_local! {
    static STAGES: Arc<Stages>;
}

/// A stage, timed from the beginning of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// What was done.
    pub name: &'static str,
    /// When it began.
    pub begin: Duration,
    /// When it was done.
    pub end: Duration,
}

/// The stages of one request.
#[derive(Debug)]
pub struct Stages {
    started: Instant,
    noted: Mutex<Vec<Stage>>,
}

impl Stages {
    /// Of a request that started at `started`.
    #[must_use]
    pub const fn new(started: Instant) -> Self {
        Self { started, noted: Mutex::new(Vec::new()) }
    }

    /// Notes a stage that began at `begun` and ends now.
    pub fn push(&self, name: &'static str, begun: Instant) {
        let mut noted = self.noted.lock();
        if noted.len() < STAGES_MAX {
            let begin = begun.saturating_duration_since(self.started);
            noted.push(Stage { name, begin, end: self.started.elapsed() });
        }
    }

    /// What was noted so far, in the order of their ends.
    #[must_use]
    pub fn all(&self) -> Vec<Stage> {
        self.noted.lock().clone()
    }
}

/// Does `work`, whose stages are noted in `stages`, if there are any. It is pinned where it is: the
/// future of a request is large, and one that is moved takes its room twice.
pub async fn follow<F: Future>(stages: Option<Arc<Stages>>, mut work: Pin<&mut F>) -> F::Output {
    poll_fn(|cx| match &stages {
        None => work.as_mut().poll(cx),
        Some(stages) => STAGES.sync_scope(Arc::clone(stages), || work.as_mut().poll(cx)),
    })
    .await
}

/// `work` as a stage of the request that is being answered, if that is traced. It begins now.
pub fn stage<F: Future>(name: &'static str, work: F) -> impl Future<Output = F::Output> {
    let begun = begin();
    work.map(move |done| {
        end(name, begun);
        done
    })
}

/// As [`stage`], for work that does not wait.
pub fn stage_at_once<T>(name: &'static str, work: impl FnOnce() -> T) -> T {
    let begun = begin();
    let done = work();
    end(name, begun);
    done
}

/// Now, in a request that is traced.
fn begin() -> Option<Instant> {
    STAGES.try_with(|_| Instant::now()).ok()
}

fn end(name: &'static str, begun: Option<Instant>) {
    if let Some(begun) = begun {
        // It ends where it began: within the request that is traced.
        let _ = STAGES.try_with(|stages| stages.push(name, begun));
    }
}

#[cfg(test)]
mod tests {
    use super::{STAGES_MAX, Stages, follow, stage, stage_at_once};
    use std::pin::pin;
    use std::sync::Arc;
    use std::time::Instant;

    #[tokio::test]
    async fn stages_are_noted_where_they_are_followed_and_nowhere_else() {
        assert_eq!(stage("lost", async { 1 }).await, 1);
        let stages = Arc::new(Stages::new(Instant::now()));
        let work = || async {
            stage_at_once("authenticate", || ());
            stage("read", tokio::task::yield_now()).await;
        };
        follow(None, pin!(work())).await;
        assert_eq!(stages.all(), []);
        follow(Some(Arc::clone(&stages)), pin!(work())).await;
        let noted = stages.all();
        assert_eq!(noted.iter().map(|stage| stage.name).collect::<Vec<_>>(), ["authenticate", "read"]);
        assert!(noted.iter().all(|stage| stage.begin <= stage.end));
    }

    #[test]
    fn a_request_of_many_chunks_keeps_a_bounded_number_of_stages() {
        let stages = Stages::new(Instant::now());
        (0..1000).for_each(|_| stages.push("append", Instant::now()));
        assert_eq!(stages.all().len(), STAGES_MAX);
    }
}
