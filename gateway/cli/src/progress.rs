//! Progress of long work: on a terminal one line that is overwritten, otherwise a line at intervals. Progress
//! is written to standard error, so that a result can be piped.

use mlgw_common::ByteSize;
use mlgw_common::time::Instant;
use std::cell::RefCell;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

/// Interval of updates of the line on a terminal.
const TERMINAL_EVERY: Duration = Duration::from_millis(200);
/// Interval of lines without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Prints the progress of one command.
pub struct CommandProgress {
    quiet: bool,
    terminal: bool,
    state: RefCell<ProgressState>,
}

struct ProgressState {
    stage: &'static str,
    begun: Instant,
    last_printed: Option<Instant>,
}

impl CommandProgress {
    /// Returns the progress of one command. It prints nothing if `quiet` is true.
    #[must_use]
    pub fn new(quiet: bool) -> Self {
        let state = ProgressState { stage: "", begun: Instant::now(), last_printed: None };
        Self { quiet, terminal: io::stderr().is_terminal(), state: RefCell::new(state) }
    }

    /// Reports that `done` of `total` are complete. A total of 0 is unknown.
    pub fn step(&self, stage: &'static str, done: u64, total: u64) {
        let line = |elapsed| line(stage, done, total, elapsed);
        self.print(stage, line);
    }

    /// Reports progress as a text.
    pub(super) fn line(&self, line: impl FnOnce() -> String) {
        self.print("", |_| line());
    }

    fn print(&self, stage: &'static str, line: impl FnOnce(Duration) -> String) {
        if self.quiet {
            return;
        }
        let mut state = self.state.borrow_mut();
        let now = Instant::now();
        if state.stage != stage {
            *state = ProgressState { stage, begun: now, last_printed: None };
        }
        let every = if self.terminal { TERMINAL_EVERY } else { LINE_EVERY };
        if now.duration_since(state.last_printed.unwrap_or(state.begun)) < every {
            return;
        }
        state.last_printed = Some(now);
        let line = line(now.duration_since(state.begun));
        // A closed terminal does not stop the work.
        let _ = if self.terminal {
            write!(io::stderr(), "\r\x1b[K{line}")
        } else {
            writeln!(io::stderr(), "{line}")
        };
    }

    /// Clears the line on the terminal.
    pub fn done(&self) {
        if self.terminal && self.state.borrow().last_printed.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// Formats the completed amount, the rate, and the remaining time. Without a total `done` is a count, with
/// one it is bytes.
fn line(stage: &str, done: u64, total: u64, elapsed: Duration) -> String {
    let rate = done as f64 / elapsed.as_secs_f64().max(0.001);
    if total == 0 {
        return format!("{stage}: {done}, {rate:.0}/s");
    }
    let left = total.saturating_sub(done) as f64 / rate.max(1.0);
    format!(
        "{stage}: {} of {} ({} %), {}/s, {} left",
        ByteSize(done).human(),
        ByteSize(total).human(),
        done.saturating_mul(100) / total.max(1),
        ByteSize(rate as u64).human(),
        duration(left as u64),
    )
}

pub(super) fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::{duration, line};
    use std::time::Duration;

    #[test]
    fn a_line_has_the_amount_the_rate_and_the_remaining_time() {
        let said = line("verifying segments", 64 << 20, 256 << 20, Duration::from_secs(2));
        assert_eq!(said, "verifying segments: 64.0 MiB of 256.0 MiB (25 %), 32.0 MiB/s, 6 s left");
        let counted = line("reading the catalogue", 3000, 0, Duration::from_secs(3));
        assert_eq!(counted, "reading the catalogue: 3000, 1000/s");
        assert_eq!((duration(61), duration(7260)), ("1 min 1 s".to_owned(), "2 h 1 min".to_owned()));
    }
}
