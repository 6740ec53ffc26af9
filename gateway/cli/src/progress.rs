//! How far long work is: on a terminal one line that is written over, elsewhere a line now and
//! then. Always to standard error, so that an answer can be piped.

use mlgw_common::ByteSize;
use std::cell::RefCell;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// How often a terminal's line is written anew.
const TERMINAL_EVERY: Duration = Duration::from_millis(200);
/// How often a line is written elsewhere.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Says how far work is.
pub struct Progress {
    quiet: bool,
    terminal: bool,
    state: RefCell<State>,
}

struct State {
    stage: &'static str,
    begun: Instant,
    said: Option<Instant>,
}

impl Progress {
    /// Returns the progress of one command; nothing is printed when it is quiet.
    #[must_use]
    pub fn new(quiet: bool) -> Self {
        let state = State { stage: "", begun: Instant::now(), said: None };
        Self { quiet, terminal: io::stderr().is_terminal(), state: RefCell::new(state) }
    }

    /// Hears that `done` of `total` (0: not known) are done.
    pub fn step(&self, stage: &'static str, done: u64, total: u64) {
        let line = |elapsed| line(stage, done, total, elapsed);
        self.say(stage, line);
    }

    /// Hears how far it is, in words.
    pub(super) fn line(&self, line: impl FnOnce() -> String) {
        self.say("", |_| line());
    }

    fn say(&self, stage: &'static str, line: impl FnOnce(Duration) -> String) {
        if self.quiet {
            return;
        }
        let mut state = self.state.borrow_mut();
        let now = Instant::now();
        if state.stage != stage {
            *state = State { stage, begun: now, said: None };
        }
        let every = if self.terminal { TERMINAL_EVERY } else { LINE_EVERY };
        if now.duration_since(state.said.unwrap_or(state.begun)) < every {
            return;
        }
        state.said = Some(now);
        let line = line(now.duration_since(state.begun));
        // A terminal that is gone is no reason to stop.
        let _ = if self.terminal {
            write!(io::stderr(), "\r\x1b[K{line}")
        } else {
            writeln!(io::stderr(), "{line}")
        };
    }

    /// Wipes the terminal's line.
    pub fn done(&self) {
        if self.terminal && self.state.borrow().said.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// What is done, how fast, and how long it will take. Without a total things are counted, with
/// one they are bytes.
fn line(stage: &str, done: u64, total: u64, elapsed: Duration) -> String {
    let rate = done as f64 / elapsed.as_secs_f64().max(0.001);
    if total == 0 {
        return format!("{stage}: {done}, {rate:.0} a second");
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
    fn a_line_says_how_much_how_fast_and_how_long_still() {
        let said = line("verifying segments", 64 << 20, 256 << 20, Duration::from_secs(2));
        assert_eq!(said, "verifying segments: 64.0 MiB of 256.0 MiB (25 %), 32.0 MiB/s, 6 s left");
        let counted = line("reading the catalogue", 3000, 0, Duration::from_secs(3));
        assert_eq!(counted, "reading the catalogue: 3000, 1000 a second");
        assert_eq!((duration(61), duration(7260)), ("1 min 1 s".to_owned(), "2 h 1 min".to_owned()));
    }
}
