//! The terminal: a screen of its own while it is shown, keys, changes of size.
//!
//! Whatever ends the program, the terminal is as it was before: the screen is left when this is
//! dropped, and signals are events like `q`.

use super::super::CliError;
use super::page::{Look, Row};
use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::style::{Attribute, Color, Print, ResetColor, SetAttribute, SetForegroundColor};
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen,
    LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{execute, queue};
use std::io::{self, Read as _, Write as _};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Size of a terminal that does not tell its own.
const SIZE_UNKNOWN: (u16, u16) = (80, 24);
/// What Ctrl-C and Ctrl-D send where the terminal does not make signals of them.
const CONTROL_C: u8 = 3;
const CONTROL_D: u8 = 4;

/// Why there is something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The reader has seen enough.
    Quit,
    /// The terminal has another size.
    Resized,
    /// It is time to look again.
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
        // Reading keys blocks; the thread ends with the process.
        std::thread::spawn(move || {
            let mut keys = io::stdin().lock();
            let mut key = [0];
            while keys.read_exact(&mut key).is_ok() && pressed.blocking_send(key[0]).is_ok() {}
        });
        Ok(terminal)
    }

    /// Shows what `page` makes of a width and a height.
    pub(super) fn draw(&mut self, page: impl FnOnce(usize, usize) -> Vec<Row>) -> Result<(), CliError> {
        let (width, height) = size().unwrap_or(SIZE_UNKNOWN);
        let mut out = io::stdout().lock();
        let show = || -> io::Result<()> {
            queue!(out, BeginSynchronizedUpdate)?;
            let rows = page(usize::from(width), usize::from(height));
            for (row, line) in rows.iter().zip(0..height) {
                queue!(out, MoveTo(0, line))?;
                match row.look {
                    Look::Plain => {}
                    Look::Head => queue!(out, SetAttribute(Attribute::Bold))?,
                    Look::Warning => queue!(out, SetForegroundColor(Color::Yellow))?,
                    Look::Critical => {
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

    /// Waits until the reader has seen enough.
    pub(super) async fn quit(&mut self) {
        let never = Duration::from_secs(24 * 3600);
        while self.event(Instant::now() + never).await != Event::Quit {}
    }

    /// Waits for something to do, until `due` at the latest.
    pub(super) async fn event(&mut self, due: Instant) -> Event {
        loop {
            tokio::select! {
                key = self.keys.recv() => match key {
                    // Without keys there is no way to quit but a signal: it ends.
                    None | Some(b'q' | b'Q' | CONTROL_C | CONTROL_D) => return Event::Quit,
                    Some(_) => {}
                },
                _ = self.resized.recv() => return Event::Resized,
                _ = self.interrupted.recv() => return Event::Quit,
                _ = self.terminated.recv() => return Event::Quit,
                () = tokio::time::sleep_until(due) => return Event::Due,
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // There is nobody left to tell of a failure.
        let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}
