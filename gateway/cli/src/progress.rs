//! Progress of long work on standard error, so that a result can be piped. On a terminal each stage of the
//! work is a bar. Otherwise each stage that advanced is a line at intervals.

use super::figures::age;
use super::stderr::print_stderr;
use super::terminal_text::printable;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use mlgw_common::ByteSize;
use mlgw_common::time::Instant;
use std::cell::RefCell;
use std::time::Duration;

/// Interval of updates on a terminal.
const TERMINAL_EVERY: Duration = Duration::from_millis(200);
/// Interval of lines without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Maximum number of bars; beyond it the oldest one is removed.
const BARS_MAX: usize = 8;

/// Prints the progress of one command.
pub struct CommandProgress {
    quiet: bool,
    /// Hidden without a terminal.
    bars: MultiProgress,
    state: RefCell<ProgressState>,
}

struct ProgressState {
    stages: Vec<ProgressStage>,
    last_printed: Instant,
}

/// A stage of the work.
struct ProgressStage {
    name: String,
    amount: StageAmount,
    bar: ProgressBar,
    /// True if it advanced since the last update.
    is_changed: bool,
}

/// Meaning of the numbers of a stage.
#[derive(Clone, Copy)]
enum StageAmount {
    Bytes,
    Count,
}

impl CommandProgress {
    /// Returns the progress of one command. It prints nothing if `quiet` is true.
    #[must_use]
    pub fn new(quiet: bool) -> Self {
        let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        Self::on(target, quiet)
    }

    fn on(target: ProgressDrawTarget, quiet: bool) -> Self {
        let state = ProgressState { stages: Vec::new(), last_printed: Instant::now() };
        Self { quiet, bars: MultiProgress::with_draw_target(target), state: RefCell::new(state) }
    }

    /// Reports that `done` of `total` bytes are complete. Without a total (0) `done` is a count.
    pub fn step(&self, stage: &str, done: u64, total: u64) {
        let amount = if total == 0 { StageAmount::Count } else { StageAmount::Bytes };
        self.advance(stage, amount, [done, total], ProgressStage::line);
    }

    /// Reports that `done` of `total` things are complete. A total of 0 is unknown.
    pub fn count(&self, stage: &str, done: u64, total: u64) {
        self.advance(stage, StageAmount::Count, [done, total], ProgressStage::line);
    }

    /// Reports that `done` of `total` bytes are complete, in the words of `line`. A total of 0 is unknown.
    pub(super) fn line(&self, done: u64, total: u64, line: impl FnOnce() -> String) {
        self.advance("", StageAmount::Bytes, [done, total], |_| line());
    }

    fn advance(
        &self,
        name: &str,
        amount: StageAmount,
        [done, total]: [u64; 2],
        line: impl FnOnce(&ProgressStage) -> String,
    ) {
        if self.quiet {
            return;
        }
        let (mut state, is_terminal) = (self.state.borrow_mut(), !self.bars.is_hidden());
        let at = state.stage(name, amount, [done, total], &self.bars);
        state.stages[at].is_changed = true;
        let every = if is_terminal { TERMINAL_EVERY } else { LINE_EVERY };
        if state.last_printed.elapsed() < every {
            return;
        }
        state.last_printed = Instant::now();
        let mut line = Some(line);
        for (number, stage) in state.stages.iter_mut().enumerate() {
            if !std::mem::take(&mut stage.is_changed) {
                continue;
            }
            let line = match line.take_if(|_| number == at) {
                Some(line) => line(stage),
                // A stage without a name has the words of its own reports only.
                None if stage.name.is_empty() => continue,
                None => stage.line(),
            };
            let line = printable(&line).into_owned();
            if is_terminal {
                stage.bar.set_message(line);
            } else {
                print_stderr(&line);
            }
        }
    }

    /// Removes the bars from the terminal.
    pub fn done(&self) {
        self.state.borrow_mut().stages.clear();
        let _ = self.bars.clear();
    }
}

impl ProgressState {
    /// Sets the progress of a stage, which is added if it is new. Returns its index.
    fn stage(
        &mut self,
        name: &str,
        amount: StageAmount,
        [done, total]: [u64; 2],
        bars: &MultiProgress,
    ) -> usize {
        let at = self.stages.iter().position(|stage| stage.name == name).unwrap_or_else(|| {
            if self.stages.len() == BARS_MAX {
                bars.remove(&self.stages.remove(0).bar);
            }
            let bar = ProgressBar::no_length().with_style(style(total > 0));
            let bar = bars.add(bar.with_message(printable(name).into_owned()));
            bar.set_position(done);
            // What was complete before the first report does not count in the rate.
            bar.reset_eta();
            self.stages.push(ProgressStage { name: name.to_owned(), amount, bar, is_changed: true });
            self.stages.len() - 1
        });
        // The total can become known, and its unit with it, after the first report.
        self.stages[at].amount = amount;
        let bar = &self.stages[at].bar;
        if bar.length() != Some(total).filter(|total| *total > 0) {
            bar.set_style(style(total > 0));
            if total > 0 { bar.set_length(total) } else { bar.unset_length() }
        }
        bar.set_position(done);
        at
    }
}

impl ProgressStage {
    fn line(&self) -> String {
        let (rate, left) = (self.bar.per_sec(), self.bar.eta());
        line(&self.name, self.amount, [self.bar.position(), self.bar.length().unwrap_or(0)], rate, left)
    }
}

/// Returns the style of a bar: the line beside it is cut at the width of the terminal.
fn style(has_total: bool) -> ProgressStyle {
    let template = if has_total { "[{bar:20}] {wide_msg}" } else { "[{spinner:20}] {wide_msg}" };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.progress_chars("=> ").tick_chars("-\\|/ ")
}

/// Formats the completed amount, the rate, and the remaining time.
fn line(stage: &str, amount: StageAmount, [done, total]: [u64; 2], rate: f64, left: Duration) -> String {
    let format = |number: u64| match amount {
        StageAmount::Bytes => ByteSize(number).human(),
        StageAmount::Count => number.to_string(),
    };
    let (amount, rate) = (format(done), format(rate.round() as u64));
    if total == 0 {
        return format!("{stage}: {amount}, {rate}/s");
    }
    // The remaining time is unknown until something is complete.
    let left = if left.is_zero() && done < total {
        String::new()
    } else {
        format!(", {} left", age(left.as_secs()))
    };
    let percent = u128::from(done) * 100 / u128::from(total);
    format!("{stage}: {amount} of {} ({percent} %), {rate}/s{left}", format(total))
}

#[cfg(test)]
mod tests {
    use super::{BARS_MAX, CommandProgress, StageAmount, line};
    use indicatif::{ProgressDrawTarget, TermLike};
    use std::io;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    /// A terminal of 70 columns that keeps the text of each drawing.
    #[derive(Clone, Debug, Default)]
    struct RecordedTerminal(Arc<Mutex<String>>);

    impl RecordedTerminal {
        fn text(&self) -> String {
            self.0.lock().unwrap().clone()
        }

        fn push(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }
    }

    impl TermLike for RecordedTerminal {
        fn width(&self) -> u16 {
            70
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.push(text)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.push(text)
        }
        fn clear_line(&self) -> io::Result<()> {
            self.push("\n")
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns a progress without limits of the rate of drawing, so that the test does not depend on time.
    fn recorded(quiet: bool) -> (CommandProgress, RecordedTerminal) {
        let terminal = RecordedTerminal::default();
        let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        let progress = CommandProgress::on(target, quiet);
        (progress, terminal)
    }

    fn redraw(progress: &CommandProgress) {
        for stage in &progress.state.borrow().stages {
            stage.bar.set_message(stage.line());
            stage.bar.force_draw();
        }
    }

    #[test]
    fn a_line_has_the_amount_the_rate_and_the_remaining_time() {
        let second = Duration::from_secs(1);
        let mib = f64::from(1 << 20);
        let bytes =
            line("verifying segments", StageAmount::Bytes, [64 << 20, 256 << 20], 32.0 * mib, 6 * second);
        assert_eq!(bytes, "verifying segments: 64.0 MiB of 256.0 MiB (25 %), 32.0 MiB/s, 6 s left");
        let count = |of, left| line("reading", StageAmount::Count, of, 1000.0, left);
        assert_eq!(count([3000, 0], Duration::ZERO), "reading: 3000, 1000/s");
        assert_eq!(count([3000, 9000], 6 * second), "reading: 3000 of 9000 (33 %), 1000/s, 6 s left");
        assert_eq!(count([0, 9000], Duration::ZERO), "reading: 0 of 9000 (0 %), 1000/s");
        let days = line("copying", StageAmount::Count, [1, 9], 1.0, 93_784 * second);
        assert_eq!(days, "copying: 1 of 9 (11 %), 1/s, 1 d 2 h left");
    }

    #[test]
    fn each_stage_has_a_bar() {
        let (progress, terminal) = recorded(false);
        progress.step("reading the catalogue", 3000, 0);
        progress.step("verifying segments", 1 << 20, 4 << 20);
        progress.count("verifying files", 1, 2);
        redraw(&progress);
        let text = terminal.text();
        for part in [
            "] reading the catalogue: 3000, ",
            "[=====>              ] verifying segments: 1.0 MiB of 4.0 MiB ",
            "[==========>         ] verifying files: 1 of 2 (50 %), ",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
        assert!(text.split('[').all(|bar| bar.trim_end().chars().count() < 70), "{text}");
        progress.step("verifying segments", 2 << 20, 4 << 20);
        assert_eq!(progress.state.borrow().stages.len(), 3, "a stage has one bar");
        progress.done();
        assert!(progress.state.borrow().stages.is_empty());
    }

    #[test]
    fn a_total_that_becomes_known_gives_the_stage_its_unit() {
        let (progress, terminal) = recorded(false);
        progress.step("copying", 0, 0);
        progress.step("copying", 1 << 20, 4 << 20);
        redraw(&progress);
        assert!(terminal.text().contains("] copying: 1.0 MiB of 4.0 MiB "), "{}", terminal.text());
        progress.step("copying", 3000, 0);
        redraw(&progress);
        assert!(terminal.text().contains("] copying: 3000, "), "{}", terminal.text());
    }

    #[test]
    fn the_number_of_bars_is_bounded() {
        let (progress, _) = recorded(false);
        for number in 0..2 * BARS_MAX {
            progress.count(&format!("cache {number}"), 1, 2);
        }
        let state = progress.state.borrow();
        assert_eq!(state.stages.len(), BARS_MAX);
        assert_eq!(state.stages[BARS_MAX - 1].name, format!("cache {}", 2 * BARS_MAX - 1));
    }

    #[test]
    fn quiet_prints_nothing() {
        let (progress, terminal) = recorded(true);
        progress.step("verifying segments", 1, 2);
        redraw(&progress);
        progress.done();
        assert_eq!(terminal.text(), "");
    }
}
