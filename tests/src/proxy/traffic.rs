//! The proxy's record of traffic: counters, and one log line for each request.
//!
//! Everything is recorded before it is passed on, and the end of a request before the last bytes of its
//! response: an event that a client or an origin has observed is already in the record. The log is bounded;
//! its oldest lines are dropped first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use serde::Serialize;

use super::head::MessageHead;
use super::shape::Direction;

/// Lines that are kept. At some 200 bytes a line this is 13 MB, and far more than the requests of one test.
const LOG_LINES_MAX: usize = 1 << 16;

/// Counts since the start, or since the log was cleared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Accepted connections, including refused ones.
    pub connections: u64,
    /// Connections that a rule refused before anything was read.
    pub refused: u64,
    /// Requests whose head was read.
    pub requests: u64,
    /// Requests by method.
    pub by_method: BTreeMap<String, u64>,
    /// Requests for which a rule fired.
    pub faults: u64,
    /// Bytes of request bodies.
    pub request_bytes: u64,
    /// Bytes of response bodies that were passed on.
    pub answer_bytes: u64,
    /// Requests that have not ended.
    pub in_flight: u64,
    /// Maximum of [`Self::in_flight`].
    pub in_flight_max: u64,
    /// Lines that were dropped because the log was full.
    pub log_lines_lost: u64,
}

/// The log line of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LogLine {
    /// The method, such as `GET`.
    pub method: String,
    /// Path and query, as they were sent.
    pub target: String,
    /// The `Range` header.
    pub range: Option<String>,
    /// The `If-Match` header.
    pub if_match: Option<String>,
    /// The status that was sent to the client, if any.
    pub status: Option<u16>,
    /// Bytes of the request's body, without the framing of chunks.
    pub request_bytes: u64,
    /// Bytes of the response's body that were passed on, without the framing of chunks.
    pub answer_bytes: u64,
    /// Index of the rule that fired.
    pub rule: Option<usize>,
}

#[derive(Debug, Default)]
struct TrafficState {
    counters: Counters,
    lines: VecDeque<LogLine>,
    /// The number of the first line that is kept.
    first: u64,
}

impl TrafficState {
    fn line(&mut self, number: u64) -> Option<&mut LogLine> {
        let at = number.checked_sub(self.first)?;
        self.lines.get_mut(usize::try_from(at).ok()?)
    }

    fn add(&mut self, line: LogLine) -> u64 {
        if self.lines.len() == LOG_LINES_MAX {
            self.lines.pop_front();
            self.first += 1;
            self.counters.log_lines_lost += 1;
        }
        self.lines.push_back(line);
        self.first + self.lines.len() as u64 - 1
    }
}

/// The record of one proxy.
#[derive(Debug, Default)]
pub(super) struct TrafficLog(Mutex<TrafficState>);

impl TrafficLog {
    fn state(&self) -> MutexGuard<'_, TrafficState> {
        self.0.lock().expect("lock is not poisoned")
    }

    pub(super) fn counters(&self) -> Counters {
        self.state().counters.clone()
    }

    pub(super) fn log(&self) -> Vec<LogLine> {
        self.state().lines.iter().cloned().collect()
    }

    /// Resets the counters. Requests in flight stay counted as in flight, but have no line any more.
    pub(super) fn clear(&self) {
        let mut pages = self.state();
        let in_flight = pages.counters.in_flight;
        pages.counters = Counters { in_flight, in_flight_max: in_flight, ..Counters::default() };
        pages.first += pages.lines.len() as u64;
        pages.lines.clear();
    }

    pub(super) fn connection(&self, is_refused: bool) {
        let counters = &mut self.state().counters;
        counters.connections += 1;
        counters.refused += u64::from(is_refused);
    }

    /// Records the arrival of a request.
    pub(super) fn begin_request(
        self: &Arc<Self>,
        request: &MessageHead,
        rule: Option<usize>,
    ) -> RequestEntry {
        let line = LogLine {
            method: request.method().into_owned(),
            target: request.target().into_owned(),
            range: request.value("range"),
            if_match: request.value("if-match"),
            rule,
            ..LogLine::default()
        };
        let mut pages = self.state();
        let counters = &mut pages.counters;
        counters.requests += 1;
        *counters.by_method.entry(line.method.clone()).or_default() += 1;
        counters.faults += u64::from(rule.is_some());
        counters.in_flight += 1;
        counters.in_flight_max = counters.in_flight_max.max(counters.in_flight);
        let number = pages.add(line);
        drop(pages);
        RequestEntry { log: self.clone(), number, has_ended: AtomicBool::new(false) }
    }
}

/// A request in progress; it ends at the latest when this is dropped.
#[derive(Debug)]
pub(super) struct RequestEntry {
    log: Arc<TrafficLog>,
    number: u64,
    has_ended: AtomicBool,
}

impl RequestEntry {
    pub(super) fn status(&self, status: u16) {
        if let Some(line) = self.log.state().line(self.number) {
            line.status = Some(status);
        }
    }

    /// Counts passed bytes of a body.
    pub(super) fn bytes(&self, way: Direction, bytes: u64) {
        let mut pages = self.log.state();
        let (mine, all) = match way {
            Direction::Request => (bytes, 0),
            Direction::Answer => (0, bytes),
        };
        pages.counters.request_bytes += mine;
        pages.counters.answer_bytes += all;
        if let Some(line) = pages.line(self.number) {
            line.request_bytes += mine;
            line.answer_bytes += all;
        }
    }

    /// Records the end of the request; called before the rest of the response is sent.
    pub(super) fn end(&self) {
        if !self.has_ended.swap(true, Ordering::Relaxed) {
            self.log.state().counters.in_flight -= 1;
        }
    }
}

impl Drop for RequestEntry {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> MessageHead {
        MessageHead::new(b"GET /b/k?x HTTP/1.1\r\nRange: bytes=1-2\r\nif-match: \"e\"\r\n\r\n".to_vec())
            .unwrap()
    }

    #[test]
    fn a_request_is_counted_once_and_ends_once() {
        let book = Arc::new(TrafficLog::default());
        let (first, second) = (book.begin_request(&head(), None), book.begin_request(&head(), Some(3)));
        first.status(206);
        first.bytes(Direction::Answer, 5);
        first.bytes(Direction::Request, 7);
        first.end();
        drop(first);
        let counters = book.counters();
        assert_eq!((counters.requests, counters.by_method["GET"], counters.faults), (2, 2, 1));
        assert_eq!((counters.in_flight, counters.in_flight_max), (1, 2));
        assert_eq!((counters.request_bytes, counters.answer_bytes), (7, 5));
        let line = LogLine {
            method: "GET".to_owned(),
            target: "/b/k?x".to_owned(),
            range: Some("bytes=1-2".to_owned()),
            if_match: Some("\"e\"".to_owned()),
            ..LogLine::default()
        };
        let done = LogLine { status: Some(206), request_bytes: 7, answer_bytes: 5, ..line.clone() };
        assert_eq!(book.log(), [done, LogLine { rule: Some(3), ..line }]);
        book.clear();
        second.status(200);
        let left = Counters { in_flight: 1, in_flight_max: 1, ..Counters::default() };
        assert_eq!((book.counters(), book.log()), (left, Vec::new()));
    }

    #[test]
    fn the_oldest_lines_are_dropped_first() {
        let book = Arc::new(TrafficLog::default());
        let entries: Vec<_> = (0..LOG_LINES_MAX + 2).map(|_| book.begin_request(&head(), None)).collect();
        for (at, entry) in entries.iter().enumerate() {
            entry.bytes(Direction::Answer, at as u64);
        }
        let log = book.log();
        assert_eq!((log.len(), book.counters().log_lines_lost), (LOG_LINES_MAX, 2));
        assert_eq!((log[0].answer_bytes, log[LOG_LINES_MAX - 1].answer_bytes), (2, LOG_LINES_MAX as u64 + 1));
    }
}
