//! Futures that a thread may poll itself after it has woken them.
//!
//! A thread that syncs a file is no worker of the runtime. When it wakes a task, a worker has to wake up
//! first, and that worker wakes another one to look for more work. If the future only sends some bytes, these
//! wake-ups take longer and cost more than sending. So such a thread may poll the future where it is, within
//! [`poll_woken`]. A wake-up outside of it wakes the task, which can poll the future at any time.
//!
//! A woken future is polled after the work in [`poll_woken`] has returned: by then the thread holds none of
//! the locks under which it was woken. One thread polls at a time. A wake-up that arrives meanwhile is not
//! lost, because the polling thread polls once more. Nothing is stored.

use parking_lot::Mutex;
use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::task::{Context, Poll, Wake, Waker};
use tokio::runtime::Handle;

/// Number of polls after which a thread leaves a future that is woken again and again to its task.
const POLLS_MAX: usize = 16;

thread_local! {
    /// Futures that this thread has woken, in order; `None` outside of [`poll_woken`].
    static WOKEN: RefCell<Option<VecDeque<Arc<dyn PollHere>>>> = const { RefCell::new(None) };
}

/// Runs `work`, and then polls each [`InlinePolls`] that `work` has woken, in the order of the first
/// wake-ups. Their tasks poll what these polls wake. A call within another one only runs `work`.
pub fn poll_woken<T>(work: impl FnOnce() -> T) -> T {
    if WOKEN.with_borrow(Option::is_some) {
        return work();
    }
    let end = EndOfWork::begin();
    let result = work();
    for woken in end.take() {
        woken.poll_here();
    }
    result
}

/// Ends the list of woken futures when it is dropped, after a panic too: then their tasks poll them.
struct EndOfWork;

impl EndOfWork {
    fn begin() -> Self {
        WOKEN.set(Some(VecDeque::new()));
        Self
    }

    fn take(&self) -> VecDeque<Arc<dyn PollHere>> {
        WOKEN.take().unwrap_or_default()
    }
}

impl Drop for EndOfWork {
    fn drop(&mut self) {
        for woken in self.take() {
            woken.wake_task();
        }
    }
}

/// A future that its task and other threads poll.
trait PollHere: Send + Sync {
    fn poll_here(self: Arc<Self>);

    fn wake_task(&self);
}

/// A future that threads which wake it may poll. Dropping it drops the future.
#[must_use = "futures do nothing unless polled"]
pub struct InlinePolls<F: Future>(Arc<InlineState<F>>);

struct InlineState<F: Future> {
    future: Mutex<FutureState<F>>,
    turn: AtomicU8,
    /// True from the end of the future.
    has_ended: AtomicBool,
    /// Waker of the task.
    task: Mutex<Option<Waker>>,
    runtime: Handle,
}

/// Values of [`InlineState::turn`].
mod turn {
    /// No thread polls.
    pub(super) const IDLE: u8 = 0;
    /// A thread polls.
    pub(super) const POLLING: u8 = 1;
    /// A thread polls, and will poll once more.
    pub(super) const POLLING_AGAIN: u8 = 2;
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
        Self(Arc::new(InlineState {
            future: Mutex::new(FutureState::Pending(Box::pin(future))),
            turn: AtomicU8::new(turn::IDLE),
            has_ended: AtomicBool::new(false),
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
        *self.0.task.lock() = Some(cx.waker().clone());
        self.0.poll_in_turn();
        if !self.0.has_ended.load(Acquire) {
            // A thread that polls meanwhile wakes this task if the future ends.
            return Poll::Pending;
        }
        match take_end(&mut self.0.future.lock()) {
            Some(Ok(output)) => Poll::Ready(output),
            Some(Err(panic)) => resume_unwind(panic),
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
        let state = std::mem::replace(&mut *self.0.future.lock(), FutureState::Ended);
        drop(state);
    }
}

impl<F> InlineState<F>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    /// Polls the future, and repeats that while a thread has called this during the poll. While another
    /// thread polls, it makes that one poll again. Returns true if the future ended here.
    fn poll_in_turn(self: &Arc<Self>) -> bool {
        let took = |turn| Some(if turn == turn::IDLE { turn::POLLING } else { turn::POLLING_AGAIN });
        if self.turn.fetch_update(AcqRel, Acquire, took) != Ok(turn::IDLE) {
            return false;
        }
        let mut has_ended = false;
        for _ in 0..POLLS_MAX {
            has_ended |= self.poll_once();
            if self.turn.compare_exchange(turn::POLLING, turn::IDLE, AcqRel, Acquire).is_ok() {
                return has_ended;
            }
            self.turn.swap(turn::POLLING, AcqRel);
        }
        self.turn.swap(turn::IDLE, AcqRel);
        self.wake_task();
        has_ended
    }

    /// Returns true if the future has ended.
    fn poll_once(self: &Arc<Self>) -> bool {
        let mut state = self.future.lock();
        let FutureState::Pending(future) = &mut *state else { return false };
        let waker = Waker::from(self.clone());
        let _context = self.runtime.enter();
        let poll = AssertUnwindSafe(|| future.as_mut().poll(&mut Context::from_waker(&waker)));
        *state = match catch_unwind(poll) {
            Ok(Poll::Pending) => return false,
            Ok(Poll::Ready(output)) => FutureState::Ready(output),
            Err(panic) => FutureState::Panicked(panic),
        };
        self.has_ended.store(true, Release);
        true
    }
}

impl<F> PollHere for InlineState<F>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn poll_here(self: Arc<Self>) {
        if self.poll_in_turn() {
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

impl<F> Wake for InlineState<F>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn wake(self: Arc<Self>) {
        let polls_here = WOKEN.try_with(|woken| match &mut *woken.borrow_mut() {
            Some(woken) => {
                woken.push_back(self.clone());
                true
            }
            None => false,
        });
        // The list does not exist any more while its thread ends.
        if !polls_here.unwrap_or(false) {
            self.wake_task();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{InlinePolls, poll_woken};
    use futures_util::FutureExt as _;
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::task::{Poll, Waker};
    use std::thread;
    use tokio::sync::{mpsc, oneshot};

    /// A future that adds up the numbers that it receives, and their sum so far.
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
    async fn a_wake_up_during_the_last_poll_keeps_the_output() {
        let (mut polls, mut waker) = (0, None);
        let mut future = InlinePolls::new(poll_fn(move |cx| {
            polls += 1;
            if polls == 1 {
                waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            let waker: Waker = waker.take().unwrap();
            thread::spawn(move || poll_woken(|| waker.wake())).join().unwrap();
            Poll::Ready(polls)
        }));
        assert!((&mut future).now_or_never().is_none());
        assert_eq!(future.now_or_never(), Some(2));
    }

    #[tokio::test]
    async fn a_future_that_wakes_itself_is_left_to_its_task() {
        let polls = Arc::new(AtomicUsize::new(0));
        let counted = polls.clone();
        let mut future = InlinePolls::new(poll_fn(move |cx| {
            counted.fetch_add(1, SeqCst);
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        }));
        poll_woken(|| assert!((&mut future).now_or_never().is_none()));
        assert!(polls.load(SeqCst) < 100);
    }

    #[tokio::test]
    async fn a_task_raises_the_panic_of_its_future() {
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
