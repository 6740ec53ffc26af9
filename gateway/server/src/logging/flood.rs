//! Bounds the rate of log lines of one kind, so that clients cannot fill a disk with them.
//!
//! A kind is a location in the source that writes a line, so every line is bounded, also those of libraries.
//! A kind may write [`BURST_LINES`] in a burst and one line a second on average. Lines beyond that are
//! counted, and once a minute one line per kind states how many were left out. Lines of `debug` and below are
//! not bounded, because they were enabled to look for a fault.

use mlgw_common::time::Instant;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Maximum number of lines of one kind in a burst.
const BURST_LINES: u64 = 50;
/// Time of its kind's budget that a line uses: one line a second on average.
const LINE_MS: u64 = 1000;
/// Interval between reports of lines that were left out.
const REPORT_EVERY: Duration = Duration::from_secs(60);
/// Kinds of lines with a separate configured bound: the slow-request log.
const BOUNDED_ELSEWHERE: &[&str] = &["mlgw::metrics::slow_log"];

/// Decides which lines are written. Clones share the counts.
#[derive(Clone, Debug)]
pub(super) struct Flood(Arc<FloodState>);

#[derive(Debug)]
struct FloodState {
    started: Instant,
    /// An entry for each location of the program that has written a line.
    kinds: Mutex<HashMap<Identifier, LineKind>>,
}

/// State of a kind of line.
#[derive(Debug)]
struct LineKind {
    metadata: &'static Metadata<'static>,
    allowance: Allowance,
    left_out: u64,
}

/// The budget of a kind: the time up to which its lines have used their allowance of one per second.
#[derive(Clone, Copy, Debug, Default)]
struct Allowance {
    used_up_to_ms: u64,
}

impl Allowance {
    /// Returns true if a line may be written at `now_ms`, and charges it.
    fn admit(&mut self, now_ms: u64) -> bool {
        let used = self.used_up_to_ms.max(now_ms) + LINE_MS;
        let admitted = used <= now_ms + BURST_LINES * LINE_MS;
        if admitted {
            self.used_up_to_ms = used;
        }
        admitted
    }
}

impl Flood {
    pub(super) fn new() -> Self {
        Self(Arc::new(FloodState { started: Instant::now(), kinds: Mutex::default() }))
    }

    fn admit(&self, metadata: &'static Metadata<'static>) -> bool {
        if *metadata.level() > Level::INFO || BOUNDED_ELSEWHERE.contains(&metadata.target()) {
            return true;
        }
        let now_ms = u64::try_from(self.0.started.elapsed().as_millis()).unwrap_or(u64::MAX / 2);
        let mut kinds = self.0.kinds.lock();
        let kind = kinds.entry(metadata.callsite()).or_insert_with(|| LineKind {
            metadata,
            allowance: Allowance::default(),
            left_out: 0,
        });
        let admitted = kind.allowance.admit(now_ms);
        kind.left_out += u64::from(!admitted);
        admitted
    }

    /// Returns the kinds with lines left out since the last call, and the number of those lines.
    fn take_left_out(&self) -> Vec<(String, u64)> {
        let mut kinds = self.0.kinds.lock();
        let left_out = kinds.values_mut().filter(|kind| kind.left_out > 0);
        let counted = left_out.map(|kind| (place_of(kind.metadata), std::mem::take(&mut kind.left_out)));
        counted.collect()
    }

    /// Periodically writes the number of lines left out. Never returns.
    pub(super) async fn report(self) {
        loop {
            mlgw_common::time::sleep(REPORT_EVERY).await;
            self.report_once();
        }
    }

    fn report_once(&self) {
        for (place, lines) in self.take_left_out() {
            tracing::warn!(lines, %place, "log lines suppressed: too many of one kind");
        }
    }
}

fn place_of(metadata: &Metadata<'_>) -> String {
    match (metadata.file(), metadata.line()) {
        (Some(file), Some(line)) => format!("{file}:{line}"),
        _ => metadata.target().to_owned(),
    }
}

impl<S: Subscriber> Layer<S> for Flood {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        self.admit(event.metadata())
    }
}

#[cfg(test)]
mod tests {
    use super::{Allowance, BURST_LINES, Flood};
    use proptest::prelude::*;
    use std::io;
    use std::sync::{Arc, Mutex};
    use tracing_subscriber::layer::SubscriberExt as _;

    proptest! {
        #[test]
        fn no_interval_has_more_lines_than_a_burst_and_one_per_second(
            gaps in prop::collection::vec(prop_oneof![4 => 0_u64..20, 1 => 0_u64..200_000], 1..2000),
        ) {
            let (mut allowance, mut now, mut written) = (Allowance::default(), 0, Vec::new());
            for gap in gaps {
                now += gap;
                if allowance.admit(now) {
                    written.push(now);
                }
            }
            for (first, from) in written.iter().enumerate() {
                for (last, to) in written.iter().enumerate().skip(first) {
                    let lines = (last - first + 1) as u64;
                    let allowed = BURST_LINES + (to - from) / 1000 + 1;
                    prop_assert!(lines <= allowed, "{lines} in {} ms", to - from);
                }
            }
        }

        #[test]
        fn one_line_per_second_is_never_left_out(lines in 1_u64..500, start: u32) {
            let mut allowance = Allowance::default();
            prop_assert!((0..lines).all(|line| allowance.admit(u64::from(start) + line * 1000)));
        }
    }

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_kind_of_line_is_bounded_separately_and_missing_lines_are_counted() {
        let (written, flood) = (Written::default(), Flood::new());
        let out = written.clone();
        let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || out.clone());
        let subscriber = tracing_subscriber::registry().with(flood.clone()).with(lines);
        tracing::subscriber::with_default(subscriber, || {
            for number in 0..1000 {
                tracing::warn!(number, "of a flood");
                tracing::debug!("for a developer");
            }
            tracing::error!("alone");
            flood.report_once();
            flood.report_once();
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let count = |words| text.lines().filter(|line| line.contains(words)).count();
        // A slow machine may allow some more while this runs.
        assert!((50..300).contains(&count("of a flood")), "{} lines", count("of a flood"));
        assert_eq!((count("for a developer"), count("alone")), (1000, 1));
        assert_eq!(count("log lines suppressed"), 1, "a report covers the lines since the last one");
        assert!(text.contains("flood.rs:"), "{text}");
    }
}
