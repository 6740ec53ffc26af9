//! Futures that a thread may poll itself after it has woken them.
//!
//! A thread that syncs a file is no worker of the runtime. When it wakes a task, a worker has to wake up
//! first, and that worker wakes another one to look for more work. Where all that is left to do is to send
//! some bytes, this takes longer and costs more than the work. So such a thread may poll the future where it
//! is, within [`poll_woken`]. Any other wake-up is one of the task, which can always poll the future too.
//!
//! A woken future is polled after the work in [`poll_woken`] has returned: by then the thread holds none of
//! the locks under which it was woken. One thread polls at a time. A wake-up that arrives meanwhile is not
//! lost, because the polling thread polls once more. Nothing is stored.

use parking_lot::Mutex;
use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use tokio::runtime::Handle;

/// Maximum number of polls by one call of [`poll_woken`]. What is woken again and again is left to its task.
const POLLS_MAX: usize = 16;

thread_local! {
    /// Futures that this thread has woken; `None` outside of [`poll_woken`].
    static WOKEN: RefCell<Option<Vec<Arc<dyn PollInline>>>> = const { RefCell::new(None) };
}

/// Runs `work`, and then polls those of the futures that it has woken which are [`InlinePolls`]. A call
/// within another one only runs `work`.
pub fn poll_woken<T>(work: impl FnOnce() -> T) -> T {
    if WOKEN.with_borrow(Option::is_some) {
        return work();
    }
    WOKEN.set(Some(Vec::new()));
    let end = EndOfPolls;
    let result = work();
    for _ in 0..POLLS_MAX {
        let Some(woken) = WOKEN.with_borrow_mut(|woken| woken.as_mut()?.pop()) else { break };
        woken.poll_inline();
    }
    drop(end);
    result
}

/// Ends the polls of this thread: the tasks poll what is left.
struct EndOfPolls;

impl Drop for EndOfPolls {
    fn drop(&mut self) {
        for woken in WOKEN.take().unwrap_or_default() {
            woken.wake_task();
        }
    }
}

/// A future that its task and other threads poll.
trait PollInline: Send + Sync {
    fn poll_inline(self: Arc<Self>);

    fn wake_task(&self);
}

/// A future that threads which wake it may poll. Dropping it drops the future.
#[must_use = "futures do nothing unless polled"]
pub struct InlinePolls<F: Future>(Arc<SharedFuture<F>>);

struct SharedFuture<F: Future> {
    /// Locked while a thread polls.
    state: Mutex<FutureState<F>>,
    /// True from a wake-up within [`poll_woken`], or from a poll that could not begin, until the next poll
    /// begins. A thread will poll while it is true.
    is_woken: AtomicBool,
    /// Waker of the task.
    task: Mutex<Option<Waker>>,
    runtime: Handle,
}

enum FutureState<F: Future> {
    Pending(Pin<Box<F>>),
    Ready(F::Output),
    Panicked(Box<dyn Any + Send>),
    /// The task has the output, or was dropped.
    Ended,
}

impl<F> InlinePolls<F>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    /// Must be called within a tokio runtime, in whose context every poll runs.
    pub fn new(future: F) -> Self {
        Self(Arc::new(SharedFuture {
            state: Mutex::new(FutureState::Pending(Box::pin(future))),
            is_woken: AtomicBool::new(false),
            task: Mutex::new(None),
            runtime: Handle::current(),
        }))
    }
}

impl<F> Future for InlinePolls<F>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let shared = &self.0;
        *shared.task.lock() = Some(cx.waker().clone());
        let mut ended = None;
        shared.poll_while_woken(|state| ended = take_end(state));
        match ended {
            Some(Ok(output)) => Poll::Ready(output),
            Some(Err(panic)) => resume_unwind(panic),
            // If another thread polls, it wakes this task at the end of the future.
            None => Poll::Pending,
        }
    }
}

/// Takes the output of a future, or its panic; `None` before its end.
fn take_end<F: Future>(state: &mut FutureState<F>) -> Option<Result<F::Output, Box<dyn Any + Send>>> {
    match std::mem::replace(state, FutureState::Ended) {
        FutureState::Ready(output) => Some(Ok(output)),
        FutureState::Panicked(panic) => Some(Err(panic)),
        FutureState::Ended => None,
        FutureState::Pending(future) => {
            *state = FutureState::Pending(future);
            None
        }
    }
}

impl<F: Future> Drop for InlinePolls<F> {
    fn drop(&mut self) {
        let state = std::mem::replace(&mut *self.0.state.lock(), FutureState::Ended);
        drop(state);
    }
}

impl<F> SharedFuture<F>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    /// Polls until no wake-up has arrived since the begin of the last poll; not at all while another thread
    /// does so. Calls `polled` after each poll.
    fn poll_while_woken(self: &Arc<Self>, mut polled: impl FnMut(&mut FutureState<F>)) {
        self.is_woken.store(true, SeqCst);
        // Whoever has the lock looks at the mark again after it has released it.
        while self.is_woken.load(SeqCst)
            && let Some(mut state) = self.state.try_lock()
        {
            self.is_woken.store(false, SeqCst);
            self.poll_once(&mut state);
            polled(&mut state);
        }
    }

    fn poll_once(self: &Arc<Self>, state: &mut FutureState<F>) {
        let FutureState::Pending(future) = state else { return };
        let waker = Waker::from(self.clone());
        let _context = self.runtime.enter();
        let poll = AssertUnwindSafe(|| future.as_mut().poll(&mut Context::from_waker(&waker)));
        *state = match catch_unwind(poll) {
            Ok(Poll::Pending) => return,
            Ok(Poll::Ready(output)) => FutureState::Ready(output),
            Err(panic) => FutureState::Panicked(panic),
        };
    }
}

impl<F> PollInline for SharedFuture<F>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn poll_inline(self: Arc<Self>) {
        let mut has_ended = false;
        self.poll_while_woken(|state| has_ended = !matches!(state, FutureState::Pending(_)));
        if has_ended {
            self.wake_task();
        }
    }

    fn wake_task(&self) {
        let task = self.task.lock().clone();
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl<F> Wake for SharedFuture<F>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn wake(self: Arc<Self>) {
        let polls_here = WOKEN.try_with(|woken| match &mut *woken.borrow_mut() {
            Some(woken) => {
                if !self.is_woken.swap(true, SeqCst) {
                    woken.push(self.clone());
                }
                true
            }
            None => false,
        });
        // A thread that ends has no list any more.
        if !polls_here.unwrap_or(false) {
            self.wake_task();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{InlinePolls, poll_woken};
    use futures_util::FutureExt as _;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::thread;
    use tokio::sync::{mpsc, oneshot};

    /// A future that counts what it receives, and the counter.
    fn counting(
        mut numbers: mpsc::UnboundedReceiver<usize>,
    ) -> (InlinePolls<impl Future<Output = ()>>, Arc<AtomicUsize>) {
        let sum = Arc::new(AtomicUsize::new(0));
        let counted = sum.clone();
        let future = async move {
            while let Some(number) = numbers.recv().await {
                counted.fetch_add(number, SeqCst);
            }
        };
        (InlinePolls::new(future), sum)
    }

    #[tokio::test]
    async fn the_thread_that_wakes_a_future_polls_it_and_its_task_returns_the_output() {
        let (sender, receiver) = mpsc::unbounded_channel();
        let (mut future, sum) = counting(receiver);
        sender.send(1).unwrap();
        assert!((&mut future).now_or_never().is_none());
        assert_eq!(sum.load(SeqCst), 1);
        let counted = sum.clone();
        let thread = thread::spawn(move || {
            poll_woken(|| {
                sender.send(2).unwrap();
                assert_eq!(counted.load(SeqCst), 1, "not before the end of the work");
            });
            assert_eq!(counted.load(SeqCst), 3, "no task was polled");
            sender.send(4).unwrap();
            assert_eq!(counted.load(SeqCst), 3, "outside of it only the task is woken");
        });
        thread.join().unwrap();
        future.await;
        assert_eq!(sum.load(SeqCst), 7);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_wake_up_is_lost_between_threads() {
        const ROUNDS: usize = 20_000;
        let (sender, receiver) = mpsc::unbounded_channel();
        let (future, sum) = counting(receiver);
        let task = tokio::spawn(async move {
            future.await;
        });
        let threads: Vec<_> = (0..3)
            .map(|number| {
                let sender = sender.clone();
                thread::spawn(move || {
                    for round in 0..ROUNDS {
                        if (round + number) % 3 == 0 {
                            sender.send(1).unwrap();
                        } else {
                            poll_woken(|| sender.send(1).unwrap());
                        }
                    }
                })
            })
            .collect();
        drop(sender);
        task.await.unwrap();
        assert_eq!(sum.load(SeqCst), 3 * ROUNDS);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[tokio::test]
    async fn a_panic_is_one_of_the_task() {
        let (sender, receiver) = oneshot::channel::<()>();
        let mut future = InlinePolls::new(async move {
            receiver.await.unwrap();
            panic!("in the future");
        });
        assert!((&mut future).now_or_never().is_none());
        thread::spawn(|| poll_woken(|| sender.send(()).unwrap())).join().unwrap();
        assert!(tokio::spawn(future).await.unwrap_err().is_panic());
    }

    #[tokio::test]
    async fn a_dropped_future_is_not_polled() {
        let (sender, receiver) = mpsc::unbounded_channel();
        let (mut future, sum) = counting(receiver);
        assert!((&mut future).now_or_never().is_none());
        poll_woken(|| {
            sender.send(1).unwrap();
            drop(future);
        });
        assert!(sender.is_closed() && sum.load(SeqCst) == 0);
    }
}
