//! Commands on their way into a group's log: waiting, batched, answered.
//!
//! The first caller that finds no batch under way sends one itself; whoever applied a batch sends
//! the next. So a lone command crosses no thread of ours, and under load commands gather while
//! the log syncs. Callers that come together, because one sync of a segment or one batch answered
//! them all, would split into the first one's batch and the others': so after a batch of many the
//! next waits until as many have come, or until what was ready to run has had its time. Dropping a
//! waiting future leaves its command where it is.

use bytes::Bytes;
use mlgw_common::histogram::Histogram;
use mlgw_common::limits::{BATCH_BYTES_MAX, BATCH_COMMANDS_MAX, PROPOSE_BYTES_MAX, PROPOSE_QUEUE_MAX};
use mlgw_formats::command::{Command, Reject, Reply};
use mlgw_formats::log_batch::{Batch, Outcomes, encode_into};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::oneshot;

/// Batches under way at once. With one, whatever waits during a sync makes the next batch; with
/// two, writers in step split into halves and every command pays for more syncs (measured at 32
/// writers: 10 commands a sync instead of 31).
const BATCHES_MAX: usize = 1;

/// The answer to a command; a closed channel says that the group stopped.
pub(crate) type Answer = Result<Reply, Reject>;

struct Waiting {
    command: Arc<Command>,
    encoded: Vec<u8>,
    arrived: Instant,
    answer: oneshot::Sender<Answer>,
}

/// Why a command was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Too many wait whose callers have gone: those who stay are held back before.
    Full,
    /// The group stopped.
    Stopped,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    under_way: usize,
    /// How many commands the last batch had, and so how many are expected.
    expected: usize,
    /// Somebody will send the next batch once it has gathered.
    gathering: bool,
    stopped: bool,
}

/// What to do about a batch that may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Send it.
    Now,
    /// Send it when [`Queue::has_gathered`] or others had the chance to join, after [`Queue::gathered`].
    Gather,
    /// Nothing: somebody else will.
    Wait,
}

/// A group's waiting commands.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    /// How long commands waited for their batch.
    waits: Histogram,
}

/// A batch to send, and whom to answer.
pub(crate) struct Outgoing {
    pub(crate) batch: Batch,
    pub(crate) answers: Vec<oneshot::Sender<Answer>>,
}

impl Queue {
    /// Lets a command wait, and returns where its answer will be.
    pub(crate) fn push(&self, command: Arc<Command>) -> Result<oneshot::Receiver<Answer>, Refused> {
        let mut encoded = Vec::new();
        encode_into(&command, &mut encoded);
        let (answer, receiver) = oneshot::channel();
        let arrived = Instant::now();
        let mut state = self.state.lock();
        if state.stopped {
            return Err(Refused::Stopped);
        }
        let bytes = state.waiting_bytes + encoded.len();
        let is_full = state.waiting.len() >= PROPOSE_QUEUE_MAX || bytes > PROPOSE_BYTES_MAX;
        if is_full && !state.waiting.is_empty() {
            return Err(Refused::Full);
        }
        state.waiting_bytes = bytes;
        state.waiting.push_back(Waiting { command, encoded, arrived, answer });
        Ok(receiver)
    }

    /// Whose turn it is to send.
    pub(crate) fn turn(&self) -> Turn {
        let mut state = self.state.lock();
        if state.gathering || state.under_way >= BATCHES_MAX {
            return Turn::Wait;
        }
        // Who writes alone is not made to wait for others.
        state.gathering = state.expected > 1 && state.waiting.len() < state.expected;
        if state.gathering { Turn::Gather } else { Turn::Now }
    }

    /// Whether as many wait as are expected.
    pub(crate) fn has_gathered(&self) -> bool {
        let state = self.state.lock();
        state.waiting.len() >= state.expected
    }

    /// What was said by [`Turn::Gather`] is done.
    pub(crate) fn gathered(&self) {
        self.state.lock().gathering = false;
    }

    /// The next batch, if there is one to send now.
    pub(crate) fn next(&self) -> Option<Outgoing> {
        let mut state = self.state.lock();
        if state.under_way >= BATCHES_MAX || state.waiting.is_empty() || state.stopped {
            return None;
        }
        state.under_way += 1;
        let (mut count, mut bytes) = (0, 0);
        for waiting in state.waiting.iter().take(BATCH_COMMANDS_MAX) {
            if count > 0 && bytes + waiting.encoded.len() > BATCH_BYTES_MAX {
                break;
            }
            bytes += waiting.encoded.len();
            count += 1;
        }
        state.expected = count;
        let taken: Vec<Waiting> = state.waiting.drain(..count).collect();
        state.waiting_bytes -= bytes;
        drop(state);
        let begun = Instant::now();
        let mut encoded = Vec::with_capacity(bytes);
        let mut commands = Vec::with_capacity(count);
        let mut answers = Vec::with_capacity(count);
        for waiting in taken {
            self.waits.record(begun.saturating_duration_since(waiting.arrived));
            encoded.extend_from_slice(&waiting.encoded);
            commands.push(waiting.command);
            answers.push(waiting.answer);
        }
        Some(Outgoing { batch: Batch { commands, encoded: Bytes::from(encoded) }, answers })
    }

    fn done(&self) {
        self.state.lock().under_way -= 1;
    }

    /// Takes nothing any more, and lets go of what waits.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        state.waiting.clear();
        state.waiting_bytes = 0;
    }

    /// How long commands waited.
    pub(crate) const fn waits(&self) -> &Histogram {
        &self.waits
    }

    /// Number of commands that wait.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Whether nothing waits and nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.waiting.is_empty() && state.under_way == 0
    }
}

/// A batch that was sent. When it is dropped without an outcome, its group has stopped.
pub(crate) struct UnderWay(Option<Arc<Queue>>);

impl UnderWay {
    /// The batch that [`Queue::next`] gave last.
    pub(crate) fn new(queue: &Arc<Queue>) -> Self {
        Self(Some(Arc::clone(queue)))
    }

    /// It has an outcome.
    pub(crate) fn done(mut self) {
        if let Some(queue) = self.0.take() {
            queue.done();
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(queue) = self.0.take() {
            queue.done();
            queue.stop();
        }
    }
}

/// Hands out the answers of a batch.
pub(crate) fn answer(answers: Vec<oneshot::Sender<Answer>>, outcomes: Outcomes) {
    assert_eq!(answers.len(), outcomes.0.len(), "a batch has one outcome per command");
    for (answer, outcome) in answers.into_iter().zip(outcomes.0) {
        // Nobody waits any more when its future was dropped.
        drop(answer.send(outcome));
    }
}
