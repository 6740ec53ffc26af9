//! Traffic shaping: a delay for each request, a rate for each connection and one for all together.
//!
//! Each rate is modeled as a line that bytes pass one after another: a piece is due when it would have
//! passed the line, and waits until then. Pieces are as long as a few milliseconds of the rate, so that a
//! client observes an even stream; a rate is never exceeded by more than [`CREDIT`] of it, over any time.
//! Responses and requests have separate lines, each with the same rate, as on a full-duplex link.

use std::sync::Mutex;
use std::time::Duration;

use mlgw_common::time::{Instant, sleep_until};
use serde::Deserialize;

use super::source::BUFFER_BYTES;
use super::units;

/// Time that a piece takes on its line: several times the timer's resolution of 1 ms, but too short for a
/// burst that a client could observe.
const PIECE: Duration = Duration::from_millis(4);

/// Idle time for which a line compensates. A task wakes up late after a sleep, by a millisecond or by more on
/// a busy machine, and would never reach the rate otherwise.
const CREDIT: Duration = Duration::from_millis(8);

/// A wait too short to justify a timer.
const SLACK: Duration = Duration::from_millis(1);

/// The costs of every request and of every byte of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficShape {
    /// The wait before a request's head is forwarded.
    pub delay: Duration,
    /// Bytes of bodies per second on each connection, each way; 0 for no limit.
    pub connection_rate: u64,
    /// Bytes of bodies per second on all connections together, each way; 0 for no limit.
    pub total_rate: u64,
}

/// A change of a shape; absent fields keep their value.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ShapeChange {
    #[serde(deserialize_with = "units::maybe_duration_in_json")]
    delay: Option<Duration>,
    #[serde(deserialize_with = "units::maybe_bytes_in_json")]
    connection_rate: Option<u64>,
    #[serde(deserialize_with = "units::maybe_bytes_in_json")]
    total_rate: Option<u64>,
}

impl ShapeChange {
    pub(super) fn applied_to(self, shape: TrafficShape) -> TrafficShape {
        TrafficShape {
            delay: self.delay.unwrap_or(shape.delay),
            connection_rate: self.connection_rate.unwrap_or(shape.connection_rate),
            total_rate: self.total_rate.unwrap_or(shape.total_rate),
        }
    }
}

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the client to the origin.
    Request,
    /// From the origin to the client.
    Answer,
}

/// A line that bytes pass one after another.
#[derive(Debug, Default)]
struct RateLine {
    /// The time at which all reserved bytes have passed.
    free_at: Option<Instant>,
}

impl RateLine {
    /// Reserves `bytes` and returns the time at which they have passed, at this rate.
    fn reserve(&mut self, bytes: u64, rate: u64, now: Instant) -> Instant {
        if rate == 0 {
            return now;
        }
        let earliest = now.checked_sub(CREDIT).unwrap_or(now);
        let begin = self.free_at.map_or(now, |free_at| free_at.max(earliest));
        let due = begin + Duration::from_nanos(nanoseconds(bytes, rate));
        self.free_at = Some(due);
        due
    }
}

fn nanoseconds(bytes: u64, rate: u64) -> u64 {
    u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX)
}

/// The shape of a proxy and its lines.
#[derive(Debug, Default)]
pub(super) struct Shaper {
    shape: Mutex<TrafficShape>,
    requests: Mutex<RateLine>,
    answers: Mutex<RateLine>,
}

impl Shaper {
    pub(super) fn shape(&self) -> TrafficShape {
        *self.shape.lock().expect("lock is not poisoned")
    }

    /// Takes effect from the next piece of every body.
    pub(super) fn set(&self, shape: TrafficShape) {
        *self.shape.lock().expect("lock is not poisoned") = shape;
    }

    fn total(&self, way: Direction) -> &Mutex<RateLine> {
        match way {
            Direction::Request => &self.requests,
            Direction::Answer => &self.answers,
        }
    }
}

/// A direction of a connection.
#[derive(Debug)]
pub(super) struct RateLane {
    pub(super) direction: Direction,
    line: RateLine,
}

impl RateLane {
    pub(super) fn new(way: Direction) -> Self {
        Self { direction: way, line: RateLine::default() }
    }

    /// Maximum bytes of the next piece: at least one.
    pub(super) fn piece_bytes(shaper: &Shaper) -> u64 {
        let shape = shaper.shape();
        let rates = [shape.connection_rate, shape.total_rate];
        let pieces = rates.into_iter().filter(|rate| *rate > 0).map(|rate| {
            let bytes = u128::from(rate) * PIECE.as_nanos() / 1_000_000_000;
            u64::try_from(bytes).unwrap_or(u64::MAX)
        });
        pieces.min().unwrap_or(u64::MAX).clamp(1, BUFFER_BYTES as u64)
    }

    /// Waits until these bytes have passed.
    pub(super) async fn pass(&mut self, bytes: u64, shaper: &Shaper) {
        let shape = shaper.shape();
        if bytes == 0 || (shape.connection_rate == 0 && shape.total_rate == 0) {
            return;
        }
        let now = Instant::now();
        let due = self.due(bytes, shape, shaper.total(self.direction), now);
        if due > now + SLACK {
            sleep_until(due).await;
        }
    }

    fn due(&mut self, bytes: u64, shape: TrafficShape, total: &Mutex<RateLine>, now: Instant) -> Instant {
        let mine = self.line.reserve(bytes, shape.connection_rate, now);
        let mut total = total.lock().expect("lock is not poisoned");
        mine.max(total.reserve(bytes, shape.total_rate, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 1_000_000;
    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_line_keeps_its_rate_and_compensates_for_late_wakeups() {
        let (mut line, start) = (RateLine::default(), Instant::now());
        let mut now = start;
        for _ in 0..1000 {
            // Each time 2 ms late, but never late in total.
            now = line.reserve(4_000, RATE, now).max(now) + 2 * MS;
        }
        assert_eq!(now - start, 4000 * MS + 2 * MS);
    }

    #[test]
    fn a_line_saves_no_more_than_its_credit() {
        let (mut line, start) = (RateLine::default(), Instant::now());
        line.reserve(1, RATE, start);
        let later = start + 1000 * MS;
        assert_eq!(line.reserve(1_000_000, RATE, later), later + 1000 * MS - CREDIT);
    }

    #[test]
    fn users_of_a_shared_line_wait_for_each_other() {
        let (mut line, now) = (RateLine::default(), Instant::now());
        let due: Vec<_> = (0..3).map(|_| line.reserve(10_000, RATE, now) - now).collect();
        assert_eq!(due, [10 * MS, 20 * MS, 30 * MS]);
        assert_eq!(line.reserve(10_000, 0, now), now, "no wait without a rate");
    }

    #[test]
    fn pieces_are_short_on_slow_lines_and_as_long_as_the_buffer_on_fast_ones() {
        let bytes = |connection_rate, total_rate| {
            let shaper = Shaper::default();
            shaper.set(TrafficShape { connection_rate, total_rate, ..TrafficShape::default() });
            RateLane::piece_bytes(&shaper)
        };
        assert_eq!(bytes(0, 0), BUFFER_BYTES as u64);
        assert_eq!(bytes(u64::MAX, 0), BUFFER_BYTES as u64);
        assert_eq!(bytes(2_000_000, 1_000_000), 4_000);
        assert_eq!(bytes(1, 0), 1);
    }
}
