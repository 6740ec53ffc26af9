//! Queue of commands on their way into a group's log: enqueued, batched, answered.
//!
//! The first caller that finds no batch in flight sends one itself; the thread that applied a batch sends the
//! next. So a lone command needs no thread switch of ours, and under load commands accumulate while the log
//! syncs. Callers that arrive together, because one sync of a segment or one batch answered them all, would
//! be split into the first caller's batch and the rest. After a batch of several commands, the next one
//! therefore waits until as many have arrived, or until the tasks that were ready have run. Dropping a
//! waiting future leaves its command in the queue.
//!
//! Every command carries the leadership under which it was enqueued, and all commands of a batch have the
//! same. Raft refuses the batch under another leadership. So no command enters the log in a later term, after
//! its caller has received the error of an unknown outcome. A lost leadership fails the batch in flight and
//! leaves the queue open.

use super::error::GroupError;
use bytes::Bytes;
use mlgw_common::histogram::DurationHistogram;
use mlgw_common::limits::{BATCH_BYTES_MAX, BATCH_COMMANDS_MAX, PROPOSE_BYTES_MAX, PROPOSE_QUEUE_MAX};
use mlgw_common::time::Instant;
use mlgw_formats::command::{Command, Reply};
use mlgw_formats::log_batch::{Batch, Outcomes, encode_into};
use mlgw_formats::log_types::Leadership;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::oneshot;

/// Maximum number of batches in flight. With one, all commands that arrive during a sync form the next batch.
/// With two, synchronized writers are split into halves and every command pays for more syncs (measured at 32
/// writers: 10 commands per sync instead of 31).
const BATCHES_MAX: usize = 1;

const _: () = assert!(BATCH_COMMANDS_MAX <= PROPOSE_QUEUE_MAX && BATCH_BYTES_MAX <= PROPOSE_BYTES_MAX);

/// Reply to an applied command.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AppliedReply {
    /// Index of the log entry that holds the command: a member that has applied it shows the change.
    pub(crate) index: u64,
    pub(crate) reply: Reply,
}

/// Answer to a command; a closed channel means that the outcome is unknown.
pub(crate) type CommandResult = Result<AppliedReply, GroupError>;

struct QueuedCommand {
    command: Arc<Command>,
    leadership: Leadership,
    encoded: Vec<u8>,
    arrived: Instant,
    answer: oneshot::Sender<CommandResult>,
}

#[derive(Default)]
struct CommandQueueState {
    waiting: VecDeque<QueuedCommand>,
    waiting_bytes: usize,
    in_flight: usize,
    /// Number of commands in the last batch, which is the expected number for the next.
    expected: usize,
    /// A task will send the next batch once enough commands have arrived.
    gathering: bool,
    stopped: bool,
}

/// Action for a batch that may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchTurn {
    /// The caller sends the batch now.
    Now,
    /// The caller sends the batch when [`CommandQueue::has_gathered`], or when other tasks had the chance to
    /// enqueue, after calling [`CommandQueue::finish_gathering`].
    Gather,
    /// The caller does nothing: another caller or task sends the batch.
    Wait,
}

/// Queued commands of a group.
#[derive(Default)]
pub(crate) struct CommandQueue {
    state: Mutex<CommandQueueState>,
    /// Time that commands waited for their batch.
    wait_times: DurationHistogram,
}

/// A batch to send, the leadership under which it may enter the log, and the channels for its answers.
pub(crate) struct OutgoingBatch {
    pub(crate) batch: Batch,
    pub(crate) leadership: Leadership,
    pub(crate) answers: Vec<oneshot::Sender<CommandResult>>,
}

/// Numbers of the batches that a member sends to another node. The first one is random: the log may have tags
/// of the process before.
#[derive(Debug)]
pub(super) struct BatchNumbers(AtomicU64);

impl Default for BatchNumbers {
    fn default() -> Self {
        Self(AtomicU64::new(fastrand::u64(..)))
    }
}

impl BatchNumbers {
    /// A number that no other batch of the member has.
    pub(super) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

impl CommandQueue {
    /// Enqueues a command for the log of `leadership` and returns the receiver of its answer.
    ///
    /// # Errors
    /// [`GroupError::Overloaded`] if the queue is full of commands whose callers have gone; live callers are
    /// held back earlier, by [`CommandLimiter`](super::limiter::CommandLimiter). [`GroupError::Stopped`].
    pub(crate) fn push(
        &self,
        command: Arc<Command>,
        leadership: Leadership,
    ) -> Result<oneshot::Receiver<CommandResult>, GroupError> {
        let mut encoded = Vec::new();
        encode_into(&command, &mut encoded);
        let (answer, receiver) = oneshot::channel();
        let arrived = Instant::now();
        let mut state = self.state.lock();
        if state.stopped {
            return Err(GroupError::Stopped);
        }
        let bytes = state.waiting_bytes + encoded.len();
        let is_full = state.waiting.len() >= PROPOSE_QUEUE_MAX || bytes > PROPOSE_BYTES_MAX;
        if is_full && !state.waiting.is_empty() {
            return Err(GroupError::Overloaded);
        }
        state.waiting_bytes = bytes;
        state.waiting.push_back(QueuedCommand { command, leadership, encoded, arrived, answer });
        Ok(receiver)
    }

    /// Decides whether the caller has to send the next batch.
    pub(crate) fn turn(&self) -> BatchTurn {
        let mut state = self.state.lock();
        if state.gathering || state.in_flight >= BATCHES_MAX {
            return BatchTurn::Wait;
        }
        // A lone writer must not wait for others.
        state.gathering = state.expected > 1 && state.waiting.len() < state.expected;
        if state.gathering { BatchTurn::Gather } else { BatchTurn::Now }
    }

    /// True if as many commands are queued as expected.
    pub(crate) fn has_gathered(&self) -> bool {
        let state = self.state.lock();
        state.waiting.len() >= state.expected
    }

    /// Ends the phase that [`BatchTurn::Gather`] began.
    pub(crate) fn finish_gathering(&self) {
        self.state.lock().gathering = false;
    }

    /// The next batch, if there is one to send now.
    pub(crate) fn next_batch(&self) -> Option<OutgoingBatch> {
        let mut state = self.state.lock();
        if state.in_flight >= BATCHES_MAX || state.stopped {
            return None;
        }
        let leadership = state.waiting.front()?.leadership;
        state.in_flight += 1;
        let (mut count, mut bytes) = (0, 0);
        for waiting in state.waiting.iter().take(BATCH_COMMANDS_MAX) {
            let is_full = count > 0 && bytes + waiting.encoded.len() > BATCH_BYTES_MAX;
            if is_full || waiting.leadership != leadership {
                break;
            }
            bytes += waiting.encoded.len();
            count += 1;
        }
        state.expected = count;
        let taken: Vec<QueuedCommand> = state.waiting.drain(..count).collect();
        assert!(state.waiting_bytes >= bytes, "the bytes of queued commands are counted");
        state.waiting_bytes -= bytes;
        drop(state);
        let begun = Instant::now();
        let mut encoded = Vec::with_capacity(bytes);
        let mut commands = Vec::with_capacity(count);
        let mut answers = Vec::with_capacity(count);
        for waiting in taken {
            self.wait_times.record(begun.saturating_duration_since(waiting.arrived));
            encoded.extend_from_slice(&waiting.encoded);
            commands.push(waiting.command);
            answers.push(waiting.answer);
        }
        let batch = Batch { commands, encoded: Bytes::from(encoded) };
        Some(OutgoingBatch { batch, leadership, answers })
    }

    fn done(&self) {
        let mut state = self.state.lock();
        assert!(state.in_flight > 0, "a batch that ends is in flight");
        state.in_flight -= 1;
    }

    /// Stops the queue: refuses queued and new commands.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        state.waiting_bytes = 0;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for QueuedCommand { answer, .. } in waiting {
            drop(answer.send(Err(GroupError::Stopped)));
        }
    }

    /// Time that commands waited for their batch.
    pub(crate) const fn wait_times(&self) -> &DurationHistogram {
        &self.wait_times
    }

    /// Number of queued commands.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// True if nothing is queued or in flight.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.waiting.is_empty() && state.in_flight == 0
    }
}

/// Guard of a batch in flight. Dropping it before [`InFlightBatch::done`] stops the queue: Raft drops the
/// callback of a batch only when it has ended.
pub(crate) struct InFlightBatch(Option<Arc<CommandQueue>>);

impl InFlightBatch {
    /// Guard for the batch that [`CommandQueue::next_batch`] returned last.
    pub(crate) fn new(queue: &Arc<CommandQueue>) -> Self {
        Self(Some(Arc::clone(queue)))
    }

    /// Marks the batch as finished, whatever its outcome.
    pub(crate) fn done(mut self) {
        if let Some(queue) = self.0.take() {
            queue.done();
        }
    }
}

impl Drop for InFlightBatch {
    fn drop(&mut self) {
        if let Some(queue) = self.0.take() {
            queue.done();
            queue.stop();
        }
    }
}

/// Sends the outcomes of the batch in the log entry `index`.
pub(crate) fn send_outcomes(answers: Vec<oneshot::Sender<CommandResult>>, index: u64, outcomes: Outcomes) {
    assert_eq!(answers.len(), outcomes.0.len(), "a batch has one outcome per command");
    for (answer, outcome) in answers.into_iter().zip(outcomes.0) {
        let outcome = outcome.map(|reply| AppliedReply { index, reply }).map_err(GroupError::Rejected);
        // The receiver is gone if the caller's future was dropped.
        drop(answer.send(outcome));
    }
}

/// Sends the outcomes of a batch with its index, or the reason that it failed. Without an outcome for each
/// command, the leader named an entry that is not this batch.
pub(super) fn send_results(
    answers: Vec<oneshot::Sender<CommandResult>>,
    results: Result<(u64, Outcomes), GroupError>,
) {
    match results {
        Ok((index, outcomes)) if outcomes.0.len() == answers.len() => {
            send_outcomes(answers, index, outcomes);
        }
        Ok(_) => send_failure(answers, &GroupError::UnknownOutcome),
        Err(error) => send_failure(answers, &error),
    }
}

/// Sends the reason that a whole batch failed.
pub(crate) fn send_failure(answers: Vec<oneshot::Sender<CommandResult>>, error: &GroupError) {
    for answer in answers {
        drop(answer.send(Err(error.clone())));
    }
}
