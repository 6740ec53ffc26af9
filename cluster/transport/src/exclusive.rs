//! Exclusive connections of this node to a peer: each carries one request at a time, in frames of its own.
//!
//! A call, or the stream of a client's request without a body, is short, and there are many. On an exclusive
//! connection it costs a third of what it costs as a stream of HTTP/2, because its own task writes and reads
//! the socket. Connections are kept for the next request. When none is idle, a request goes over HTTP/2 while
//! another one is made, up to [`PEER_EXCLUSIVE_MAX`] for each channel. Large calls go over HTTP/2 too, whose
//! windows bound the bytes in memory. A stream of appends takes a connection for itself
//! ([`crate::append_stream`]).
//!
//! They belong to the connection of HTTP/2 on the same channel, which detects that the peer has gone. When it
//! has ended they are used no more, and what is in flight on them has as long as a peer that stops gives it.
//! Nothing is stored.

use crate::body::Kept;
use crate::error::UnknownOutcome;
use crate::framed_io::FramedIo;
use crate::frames::{AnswerStatus, Frame, RequestFrame, put_request};
use crate::metered::StreamFacts;
use bytes::Bytes;
use futures_util::FutureExt as _;
use mlgw_common::limits::{PEER_EXCLUSIVE_IDLE_MS, PEER_EXCLUSIVE_MAX};
use mlgw_common::time::{Instant, timeout, timeout_at};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Time after which an idle connection is closed.
const IDLE_MAX: Duration = Duration::from_millis(PEER_EXCLUSIVE_IDLE_MS);
/// Pause after a dial that failed.
const REDIAL_PAUSE: Duration = Duration::from_secs(10);

/// An exclusive connection whose handshake passed.
pub(crate) struct ExclusiveConnection {
    pub(crate) io: FramedIo,
    pub(crate) facts: StreamFacts,
    /// True if the peer closes it soon.
    pub(crate) is_ending: bool,
    used: Instant,
    _kept: [Kept; 2],
}

/// The exclusive connections to a peer on one channel.
#[derive(Default)]
pub(crate) struct ExclusivePool {
    state: Mutex<PoolState>,
    /// Cancels all of them, those in use too.
    cancel: CancellationToken,
}

#[derive(Default)]
struct PoolState {
    /// Idle connections; the one that was used last is at the end.
    idle: Vec<ExclusiveConnection>,
    /// Connections that are open or being made.
    count: usize,
    is_dialing: bool,
    redial_at: Option<Instant>,
    /// True when no connection is kept any more.
    is_closed: bool,
}

/// A connection that counts for the limit of its pool.
pub(crate) struct CountedConnection(Arc<ExclusivePool>);

impl CountedConnection {
    pub(crate) const fn pool(&self) -> &Arc<ExclusivePool> {
        &self.0
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.state.lock().count -= 1;
    }
}

impl ExclusivePool {
    /// Takes an idle connection; `None` if there is none.
    pub(crate) fn take(&self) -> Option<ExclusiveConnection> {
        while let Some(mut connection) = self.pop() {
            if connection.is_usable() {
                return Some(connection);
            }
        }
        None
    }

    /// Number of connections that wait for a request.
    #[cfg(test)]
    pub(crate) fn idle(&self) -> usize {
        self.state.lock().idle.len()
    }

    fn pop(&self) -> Option<ExclusiveConnection> {
        self.state.lock().idle.pop()
    }

    /// Keeps a connection for the next request.
    pub(crate) fn put(&self, mut connection: ExclusiveConnection) {
        connection.io.shrink();
        connection.used = Instant::now();
        // A connection that is not kept is dropped after the lock.
        let mut state = self.state.lock();
        if !connection.is_ending && !state.is_closed {
            state.idle.push(connection);
        }
    }

    /// Closes connections that were idle for long. The caller drops them without the lock.
    fn expire(&self) -> Vec<ExclusiveConnection> {
        let mut state = self.state.lock();
        let expired =
            state.idle.iter().take_while(|connection| connection.used.elapsed() >= IDLE_MAX).count();
        state.idle.drain(..expired).collect()
    }

    /// Closes the idle connections, and keeps no further ones.
    fn close(&self) {
        let idle = {
            let mut state = self.state.lock();
            state.is_closed = true;
            std::mem::take(&mut state.idle)
        };
        drop(idle);
    }

    /// Begins a dial, unless one is in progress or no connection may be added. [`Self::end_dial`] must
    /// follow.
    pub(crate) fn begin_dial(self: &Arc<Self>) -> Option<CountedConnection> {
        let mut state = self.state.lock();
        if state.is_dialing {
            return None;
        }
        let counted = self.count(&mut state)?;
        state.is_dialing = true;
        Some(counted)
    }

    /// Begins a dial for one request, also while others are in progress.
    pub(crate) fn begin_own_dial(self: &Arc<Self>) -> Option<CountedConnection> {
        self.count(&mut self.state.lock())
    }

    /// Counts one more connection; `None` if the limit is reached, and while dials wait.
    fn count(self: &Arc<Self>, state: &mut PoolState) -> Option<CountedConnection> {
        let waits = state.redial_at.is_some_and(|at| Instant::now() < at);
        if state.is_closed || waits || state.count >= PEER_EXCLUSIVE_MAX {
            return None;
        }
        state.count += 1;
        Some(CountedConnection(self.clone()))
    }

    /// Ends a dial that made a connection, or that was given up.
    pub(crate) fn end_dial(&self) {
        let mut state = self.state.lock();
        (state.is_dialing, state.redial_at) = (false, None);
    }

    /// Ends a dial that failed: the next one waits.
    pub(crate) fn fail_dial(&self) {
        self.end_dial();
        self.pause_dials();
    }

    /// Makes the next dial wait, because one has failed.
    pub(crate) fn pause_dials(&self) {
        self.state.lock().redial_at = Some(Instant::now() + REDIAL_PAUSE);
    }

    /// A token for a new connection; it is cancelled with the pool.
    pub(crate) fn connection_token(&self) -> CancellationToken {
        self.cancel.child_token()
    }
}

/// Closes connections that are idle for long, and all idle ones when `shared`, the one of HTTP/2, has ended.
/// Those in use have `rest` then, unless `ended` is cancelled.
pub(crate) async fn keep_pool(
    pool: Arc<ExclusivePool>,
    shared: CancellationToken,
    ended: CancellationToken,
    rest: Duration,
) {
    while timeout(IDLE_MAX / 2, shared.cancelled()).await.is_err() {
        drop(pool.expire());
    }
    pool.close();
    let _ = timeout(rest, ended.cancelled()).await;
    pool.cancel.cancel();
}

impl ExclusiveConnection {
    /// A connection whose handshake passed. It has `kept` while it exists.
    pub(crate) fn new(io: FramedIo, facts: StreamFacts, kept: [Kept; 2]) -> Self {
        Self { io, facts, is_ending: false, used: Instant::now(), _kept: kept }
    }

    /// True if the peer has neither closed the connection nor announced that.
    fn is_usable(&mut self) -> bool {
        self.io.frame().now_or_never().is_none()
    }

    /// Sends a request and returns its answer.
    ///
    /// # Errors
    /// The request may have been carried out.
    pub(crate) async fn ask(
        &mut self,
        request: &RequestFrame,
        deadline: Instant,
    ) -> Result<(AnswerStatus, Bytes), UnknownOutcome> {
        put_request(&mut self.io.outbox, request);
        let answered = async {
            self.io.send().await?;
            loop {
                match self.io.frame().await? {
                    Some(Frame::Answer(status, bytes)) => return Ok((status, bytes)),
                    Some(Frame::Goodbye) => self.is_ending = true,
                    Some(_) => return Err(io::Error::other("the peer sent another frame than an answer")),
                    None => return Err(io::ErrorKind::UnexpectedEof.into()),
                }
            }
        };
        match timeout_at(deadline, answered).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(UnknownOutcome::Broken(self.facts.cause(&error))),
            Err(_) => Err(UnknownOutcome::Deadline),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ExclusiveConnection, ExclusivePool, IDLE_MAX, REDIAL_PAUSE, keep_pool};
    use crate::framed_io::FramedIo;
    use crate::frames::{FrameKind, ReceivedFrames, put_frame};
    use crate::metered::StreamFacts;
    use mlgw_common::limits::PEER_EXCLUSIVE_MAX;
    use mlgw_common::time::{Instant, sleep};
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::io::{DuplexStream, duplex};
    use tokio_util::sync::CancellationToken;

    fn connection() -> (ExclusiveConnection, DuplexStream) {
        let (near, remote) = duplex(1 << 10);
        let mut io = FramedIo::new(near);
        io.receive(ReceivedFrames::Answers);
        (ExclusiveConnection::new(io, StreamFacts::default(), [Box::new(()), Box::new(())]), remote)
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connections_are_closed_after_a_while_and_all_with_the_shared_one() {
        const REST: Duration = Duration::from_secs(5);
        let (pool, shared) = (Arc::<ExclusivePool>::default(), CancellationToken::new());
        let keeping = tokio::spawn(keep_pool(pool.clone(), shared.clone(), CancellationToken::new(), REST));
        let (first, _first_remote) = connection();
        pool.put(first);
        sleep(IDLE_MAX - Duration::from_secs(1)).await;
        let (second, _second_remote) = connection();
        pool.put(second);
        assert_eq!(pool.idle(), 2);
        sleep(IDLE_MAX / 2 + Duration::from_secs(2)).await;
        assert_eq!(pool.idle(), 1, "the first one was idle for too long");
        let in_use = pool.connection_token();
        shared.cancel();
        let begun = Instant::now();
        in_use.cancelled().await;
        assert_eq!(begun.elapsed(), REST, "a request in flight has a while");
        keeping.await.unwrap();
        let (third, _third_remote) = connection();
        pool.put(third);
        assert_eq!(pool.idle(), 0, "none is kept any more");
        assert!(pool.begin_dial().is_none());
    }

    #[tokio::test]
    async fn a_connection_that_its_peer_closed_or_closes_soon_is_not_taken() {
        let pool = ExclusivePool::default();
        let (open, _open_remote) = connection();
        pool.put(open);
        let (closed, closed_remote) = connection();
        drop(closed_remote);
        pool.put(closed);
        let (ending, ending_remote) = connection();
        let mut peer = FramedIo::new(ending_remote);
        put_frame(&mut peer.outbox, FrameKind::Goodbye, &[]);
        peer.send().await.unwrap();
        pool.put(ending);
        assert!(pool.take().is_some());
        assert!(pool.take().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn dials_are_made_one_at_a_time_up_to_the_limit_and_wait_after_a_failure() {
        let pool = Arc::<ExclusivePool>::default();
        let mut counted = vec![pool.begin_dial().unwrap()];
        assert!(pool.begin_dial().is_none(), "one is in progress");
        pool.fail_dial();
        assert!(pool.begin_dial().is_none());
        sleep(REDIAL_PAUSE).await;
        while let Some(next) = pool.begin_dial() {
            counted.push(next);
            pool.end_dial();
        }
        assert_eq!(counted.len(), PEER_EXCLUSIVE_MAX);
        counted.pop();
        assert!(pool.begin_dial().is_some());
    }
}
