//! Tests the schedule against a model of its rules without indexes.

use crate::md5_lanes::schedule::{LaneSchedule, StreamId};
use mlgw_common::limits::{LOCKSTEP_LANES_MAX, UNHASHED_BYTES_MAX};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::VecDeque;

/// Event of a stream or batch. Streams are chosen by a number modulo their count.
#[derive(Clone, Debug)]
enum Event {
    Open,
    Push(usize, usize),
    Expedite(usize, u64),
    Close(usize),
    Begin,
    End(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let bytes = prop_oneof![3 => 1..=UNHASHED_BYTES_MAX / 8, 1 => 1..=UNHASHED_BYTES_MAX];
    prop_oneof![
        2 => Just(Event::Open),
        6 => (any::<usize>(), bytes).prop_map(|(at, bytes)| Event::Push(at, bytes)),
        1 => (any::<usize>(), 0..4u64).prop_map(|(at, chunks)| Event::Expedite(at, chunks)),
        1 => any::<usize>().prop_map(Event::Close),
        4 => Just(Event::Begin),
        3 => any::<usize>().prop_map(Event::End),
    ]
}

/// A stream of the model. Its chunks are represented by their numbers among all chunks.
struct Stream {
    id: StreamId,
    queue: VecDeque<(u64, usize)>,
    /// Chunks from the head of the queue that the caller waits for.
    expedited: u64,
    /// True if a batch began without this stream since its last chunk.
    passed: bool,
    running: bool,
    taken: u64,
}

#[derive(Default)]
struct Model {
    streams: Vec<Stream>,
    /// Running batches. Their streams may be closed by now.
    batches: Vec<Vec<StreamId>>,
    chunks: u64,
}

impl Model {
    fn ready(&self) -> Vec<&Stream> {
        let mut ready: Vec<_> = self.streams.iter().filter(|s| !s.running && !s.queue.is_empty()).collect();
        ready.sort_by_key(|stream| (stream.expedited == 0, stream.queue[0].0));
        ready
    }

    /// Returns the chunks of the batch that the rules require now.
    fn wanted(&self) -> Vec<(StreamId, u64)> {
        let ready = self.ready();
        let bytes: usize = self.streams.iter().flat_map(|stream| &stream.queue).map(|(_, bytes)| bytes).sum();
        let nobody_is_awaited = self.batches.is_empty()
            && self.streams.iter().all(|stream| !stream.queue.is_empty() || stream.passed);
        let due = nobody_is_awaited
            || ready.iter().any(|stream| stream.expedited > 0)
            || ready.len() >= LOCKSTEP_LANES_MAX
            || bytes >= UNHASHED_BYTES_MAX;
        let taken = if due { LOCKSTEP_LANES_MAX } else { 0 };
        ready.iter().take(taken).map(|stream| (stream.id, stream.queue[0].0)).collect()
    }

    fn begin(&mut self, batch: &[(StreamId, u64)]) {
        if batch.is_empty() {
            return;
        }
        for stream in &mut self.streams {
            stream.passed |= stream.queue.is_empty() && !stream.running;
            if batch.iter().any(|(id, _)| *id == stream.id) {
                stream.queue.pop_front();
                stream.expedited = stream.expedited.saturating_sub(1);
                stream.taken += 1;
                stream.running = true;
            }
        }
        self.batches.push(batch.iter().map(|(id, _)| *id).collect());
    }

    fn end(&mut self, at: usize) -> Vec<StreamId> {
        let ended = self.batches.remove(at);
        self.streams.iter_mut().filter(|s| ended.contains(&s.id)).for_each(|stream| stream.running = false);
        ended
    }
}

/// Applies `event` to the model and the schedule.
fn happen(event: &Event, model: &mut Model, schedule: &mut LaneSchedule<u64>) -> Result<(), TestCaseError> {
    let count = model.streams.len();
    match event {
        Event::Open => {
            let id = schedule.open();
            let queue = VecDeque::new();
            model.streams.push(Stream { id, queue, expedited: 0, passed: false, running: false, taken: 0 });
        }
        Event::Begin => {
            let wanted = model.wanted();
            prop_assert_eq!(&schedule.begin(), &wanted);
            model.begin(&wanted);
        }
        Event::End(at) if !model.batches.is_empty() => {
            let at = at % model.batches.len();
            schedule.end(model.end(at));
        }
        Event::Push(at, bytes) if count > 0 => {
            let stream = &mut model.streams[at % count];
            stream.queue.push_back((model.chunks, *bytes));
            stream.passed = false;
            schedule.push(stream.id, *bytes, model.chunks);
            model.chunks += 1;
        }
        Event::Expedite(at, chunks) if count > 0 => {
            let stream = &mut model.streams[at % count];
            let chunks = (*chunks).min(stream.queue.len() as u64);
            stream.expedited = stream.expedited.max(chunks);
            schedule.expedite(stream.id, stream.taken + chunks);
        }
        Event::Close(at) if count > 0 => {
            let stream = model.streams.remove(at % count);
            let left: Vec<_> = stream.queue.iter().map(|(number, _)| *number).collect();
            prop_assert_eq!(schedule.close(stream.id), left);
        }
        _ => {}
    }
    Ok(())
}

proptest! {
    #[test]
    fn batches_follow_the_rules_and_no_chunk_is_left(events in vec(event(), 0..200)) {
        let (mut model, mut schedule) = (Model::default(), LaneSchedule::new());
        for event in &events {
            happen(event, &mut model, &mut schedule)?;
        }
        // Every chunk that a caller waits for is hashed in the end, regardless of other streams.
        for at in 0..model.streams.len() {
            happen(&Event::Expedite(at, u64::MAX), &mut model, &mut schedule)?;
        }
        while model.streams.iter().any(|stream| !stream.queue.is_empty()) {
            happen(&Event::Begin, &mut model, &mut schedule)?;
            prop_assert!(!model.batches.is_empty(), "no batch runs and none begins");
            happen(&Event::End(0), &mut model, &mut schedule)?;
        }
    }
}

/// Returns the chunks that a batch takes.
fn taken(schedule: &mut LaneSchedule<&'static str>) -> Vec<&'static str> {
    let batch = schedule.begin();
    schedule.end(batch.iter().map(|(id, _)| *id));
    batch.into_iter().map(|(_, chunk)| chunk).collect()
}

#[test]
fn a_stream_waits_for_the_others_once() {
    let mut schedule = LaneSchedule::new();
    let (one, other) = (schedule.open(), schedule.open());
    schedule.push(one, 1, "1a");
    assert_eq!(taken(&mut schedule), [""; 0], "the other may join the batch");
    schedule.push(other, 1, "2a");
    assert_eq!(taken(&mut schedule), ["1a", "2a"]);
    schedule.push(one, 1, "1b");
    assert_eq!(taken(&mut schedule), [""; 0]);
    schedule.expedite(one, 2);
    assert_eq!(taken(&mut schedule), ["1b"], "a caller waits");
    schedule.push(one, 1, "1c");
    assert_eq!(taken(&mut schedule), ["1c"], "the other was waited for");
    schedule.push(other, 1, "2b");
    assert_eq!(taken(&mut schedule), [""; 0], "the first is waited for, as it kept up");
    assert_eq!(schedule.close(one), [""; 0]);
    assert_eq!(taken(&mut schedule), ["2b"], "the stream is closed");
}

#[test]
fn a_batch_begins_when_many_bytes_are_queued() {
    let mut schedule = LaneSchedule::new();
    let (one, _other) = (schedule.open(), schedule.open());
    schedule.push(one, UNHASHED_BYTES_MAX - 1, "almost");
    assert_eq!(taken(&mut schedule), [""; 0]);
    schedule.push(one, 1, "enough");
    assert_eq!(taken(&mut schedule), ["almost"]);
}
