//! The terminal: an alternate screen, keys, and changes of size.
//!
//! The terminal is restored at every end of the program: the screen is left when this value is dropped, and
//! signals are events like `q`.

use super::super::CliError;
use super::page::{PageRow, RowStyle};
use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::style::{Attribute, Color, Print, ResetColor, SetAttribute, SetForegroundColor};
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen,
    LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{execute, queue};
use mlgw_common::time::Instant;
use std::io::{self, Read as _, Write as _};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// Size assumed for a terminal that does not report its own.
const SIZE_UNKNOWN: (u16, u16) = (80, 24);
/// Bytes of Ctrl-C and Ctrl-D in raw mode, where the terminal does not convert them to signals.
const CONTROL_C: u8 = 3;
const CONTROL_D: u8 = 4;

/// Event for the main loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TerminalEvent {
    /// The reader quits.
    Quit,
    /// The size of the terminal changed.
    Resized,
    /// The next refresh is due.
    Due,
}

/// The terminal while it shows pages.
pub(super) struct Terminal {
    keys: mpsc::Receiver<u8>,
    resized: Signal,
    interrupted: Signal,
    terminated: Signal,
}

fn failed(error: io::Error) -> CliError {
    CliError::Failed(format!("the terminal: {error}"))
}

impl Terminal {
    pub(super) fn open() -> Result<Self, CliError> {
        let listen = |kind| signal(kind).map_err(failed);
        let (pressed, keys) = mpsc::channel(16);
        let terminal = Self {
            keys,
            resized: listen(SignalKind::window_change())?,
            interrupted: listen(SignalKind::interrupt())?,
            terminated: listen(SignalKind::terminate())?,
        };
        enable_raw_mode().map_err(failed)?;
        execute!(io::stdout(), EnterAlternateScreen, Hide).map_err(failed)?;
        // Reading keys blocks, so a thread does it. The thread ends with the process.
        std::thread::spawn(move || {
            let mut keys = io::stdin().lock();
            let mut key = [0];
            while keys.read_exact(&mut key).is_ok() && pressed.blocking_send(key[0]).is_ok() {}
        });
        Ok(terminal)
    }

    /// Draws the rows that `page` returns for a width and a height.
    pub(super) fn draw(&mut self, page: impl FnOnce(usize, usize) -> Vec<PageRow>) -> Result<(), CliError> {
        let (width, height) = size().unwrap_or(SIZE_UNKNOWN);
        let mut out = io::stdout().lock();
        let show = || -> io::Result<()> {
            queue!(out, BeginSynchronizedUpdate)?;
            let rows = page(usize::from(width), usize::from(height));
            for (row, line) in rows.iter().zip(0..height) {
                queue!(out, MoveTo(0, line))?;
                match row.style {
                    RowStyle::Plain => {}
                    RowStyle::Head => queue!(out, SetAttribute(Attribute::Bold))?,
                    RowStyle::Warning => queue!(out, SetForegroundColor(Color::Yellow))?,
                    RowStyle::Critical => {
                        queue!(out, SetForegroundColor(Color::Red), SetAttribute(Attribute::Bold))?;
                    }
                }
                queue!(out, Print(&row.text), SetAttribute(Attribute::Reset), ResetColor)?;
                queue!(out, Clear(ClearType::UntilNewLine))?;
            }
            let used = u16::try_from(rows.len()).unwrap_or(height);
            if used < height {
                queue!(out, MoveTo(0, used), Clear(ClearType::FromCursorDown))?;
            }
            queue!(out, EndSynchronizedUpdate)?;
            out.flush()
        };
        show().map_err(failed)
    }

    /// Waits until the reader quits.
    pub(super) async fn quit(&mut self) {
        let never = Duration::from_secs(24 * 3600);
        while self.event(Instant::now() + never).await != TerminalEvent::Quit {}
    }

    /// Waits for an event, until `due` at the latest.
    pub(super) async fn event(&mut self, due: Instant) -> TerminalEvent {
        loop {
            tokio::select! {
                key = self.keys.recv() => match key {
                    // Without keys the command could only be ended by a signal, so it ends.
                    None | Some(b'q' | b'Q' | CONTROL_C | CONTROL_D) => return TerminalEvent::Quit,
                    Some(_) => {}
                },
                _ = self.resized.recv() => return TerminalEvent::Resized,
                _ = self.interrupted.recv() => return TerminalEvent::Quit,
                _ = self.terminated.recv() => return TerminalEvent::Quit,
                () = mlgw_common::time::sleep_until(due) => return TerminalEvent::Due,
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A failure cannot be reported any more.
        let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}
