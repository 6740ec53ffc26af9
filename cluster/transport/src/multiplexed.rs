//! Multiplexed connections of this node to a peer: each carries many short requests at a time.
//!
//! A forwarded read is a head of some hundred bytes and an answer of a few KiB. With many in flight, one
//! write to the socket carries several of them in each direction, which costs half of what a connection for
//! each request does ([`crate::exclusive`]). The task of the connection writes what was queued once the other
//! tasks of its thread had a turn. There is no flow control: an answer is short, or it carries the beginning
//! of a body whose rest is a stream of its own ([`crate::continuations`]).
//!
//! There is one such connection to a peer beside the shared one of HTTP/2. A request goes elsewhere while
//! there is none, while few are in flight ([`TOGETHER_MIN`]), and while it has [`REQUESTS_MAX`]. When it
//! breaks, the outcome of what is in flight is unknown. Nothing is stored.

use crate::error::UnknownOutcome;
use crate::framed_io::{Exchanged, FramedIo};
use crate::frames::{Frame, NumberedAnswer, NumberedRequest, put_cancel, put_numbered_request};
use crate::metered::StreamFacts;
use bytes::BytesMut;
use mlgw_common::time::{Instant, timeout_at};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// Requests in flight on one connection.
pub(crate) const REQUESTS_MAX: usize = 64;
/// Streams to a peer in flight from which requests share the connection. With fewer, a write carries one or
/// two, and the task of the connection costs more than that saves.
pub(crate) const TOGETHER_MIN: u64 = 8;
/// Pause after a dial that failed.
const REDIAL_PAUSE: Duration = Duration::from_secs(10);

/// A connection whose handshake passed.
pub(crate) struct MultiplexedConnection {
    state: Mutex<ConnectionState>,
    /// Notified when something is queued.
    queued: Notify,
    facts: StreamFacts,
}

#[derive(Default)]
struct ConnectionState {
    /// Frames that the task of the connection has not taken.
    queue: BytesMut,
    /// Requests without an answer.
    waiting: BTreeMap<u32, oneshot::Sender<NumberedAnswer>>,
    last_number: u32,
    /// True if it takes no further request: the peer closes it soon, or it has ended.
    is_ending: bool,
}

/// A request that was queued. Dropped before its answer, it is cancelled.
pub(crate) struct RequestInFlight {
    connection: Arc<MultiplexedConnection>,
    number: u32,
    answer: oneshot::Receiver<NumberedAnswer>,
}

impl MultiplexedConnection {
    pub(crate) fn new(facts: StreamFacts) -> Self {
        Self { state: Mutex::default(), queued: Notify::new(), facts }
    }

    fn is_ending(&self) -> bool {
        self.state.lock().is_ending
    }

    /// Queues a request, and gives it a number; `None` if the connection takes none now.
    pub(crate) fn begin(self: &Arc<Self>, mut request: NumberedRequest) -> Option<RequestInFlight> {
        let (sender, answer) = oneshot::channel();
        let number = {
            let mut state = self.state.lock();
            if state.is_ending || state.waiting.len() >= REQUESTS_MAX {
                return None;
            }
            request.number = state.next_number();
            state.waiting.insert(request.number, sender);
            put_numbered_request(&mut state.queue, &request);
            request.number
        };
        self.queued.notify_one();
        Some(RequestInFlight { connection: self.clone(), number, answer })
    }

    /// Sends what is queued and passes answers on, until the connection ends.
    pub(crate) async fn run(&self, mut io: FramedIo) {
        let _ = self.exchange(&mut io).await;
        let waiting = {
            let mut state = self.state.lock();
            state.is_ending = true;
            std::mem::take(&mut state.waiting)
        };
        drop(waiting);
    }

    async fn exchange(&self, io: &mut FramedIo) -> io::Result<()> {
        while !self.has_ended() {
            tokio::select! {
                biased;
                exchanged = io.exchange() => match exchanged? {
                    Exchanged::Sent => {}
                    Exchanged::Frame(Frame::NumberedAnswer(answer)) => self.pass_on(answer),
                    Exchanged::Frame(Frame::Goodbye) => self.state.lock().is_ending = true,
                    Exchanged::Frame(_) => return Err(io::Error::other("another frame than an answer")),
                    Exchanged::End => return Ok(()),
                },
                () = self.queued.notified(), if io.outbox.is_empty() => {
                    // Requests of tasks that run now go with the first one.
                    tokio::task::yield_now().await;
                    io.outbox = std::mem::take(&mut self.state.lock().queue);
                }
            }
        }
        Ok(())
    }

    /// True if no request will be queued, and none waits for an answer.
    fn has_ended(&self) -> bool {
        let state = self.state.lock();
        state.is_ending && state.waiting.is_empty()
    }

    fn pass_on(&self, answer: NumberedAnswer) {
        let waiting = self.state.lock().waiting.remove(&answer.of.number);
        if let Some(waiting) = waiting {
            let _ = waiting.send(answer);
        }
    }
}

impl ConnectionState {
    /// A number that no request in flight has.
    fn next_number(&mut self) -> u32 {
        loop {
            self.last_number = self.last_number.wrapping_add(1);
            if !self.waiting.contains_key(&self.last_number) {
                return self.last_number;
            }
        }
    }
}

impl RequestInFlight {
    /// The answer.
    ///
    /// # Errors
    /// The request may have been carried out.
    pub(crate) async fn answer(mut self, deadline: Instant) -> Result<NumberedAnswer, UnknownOutcome> {
        match timeout_at(deadline, &mut self.answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => {
                let ended = io::Error::from(io::ErrorKind::UnexpectedEof);
                Err(UnknownOutcome::Broken(self.connection.facts.cause(&ended)))
            }
            Err(_) => Err(UnknownOutcome::Deadline),
        }
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        let mut state = self.connection.state.lock();
        if state.waiting.remove(&self.number).is_some() {
            put_cancel(&mut state.queue, self.number);
            drop(state);
            self.connection.queued.notify_one();
        }
    }
}

/// The multiplexed connection beside a shared one.
#[derive(Default)]
pub(crate) struct MultiplexedSlot(Mutex<SlotState>);

#[derive(Default)]
struct SlotState {
    connection: Option<Arc<MultiplexedConnection>>,
    is_dialing: bool,
    redial_at: Option<Instant>,
}

impl MultiplexedSlot {
    /// Returns the connection, if there is one that takes requests.
    pub(crate) fn get(&self) -> Option<Arc<MultiplexedConnection>> {
        self.0.lock().connection.clone().filter(|connection| !connection.is_ending())
    }

    /// Begins a dial; false if one is in progress, or has failed a moment ago. [`Self::end_dial`] must
    /// follow.
    pub(crate) fn begin_dial(&self) -> bool {
        let mut slot = self.0.lock();
        let begins = !slot.is_dialing && slot.redial_at.is_none_or(|at| at <= Instant::now());
        slot.is_dialing |= begins;
        begins
    }

    /// Makes the next dial wait.
    pub(crate) fn pause_dials(&self) {
        self.0.lock().redial_at = Some(Instant::now() + REDIAL_PAUSE);
    }

    pub(crate) fn end_dial(&self, dialed: Option<Arc<MultiplexedConnection>>) {
        let mut slot = self.0.lock();
        (slot.is_dialing, slot.connection) = (false, dialed);
    }
}
