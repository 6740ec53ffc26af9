//! The terminal: an alternate screen, keys, and changes of size.
//!
//! The terminal is restored at every end of the program: the screen is left when this value is dropped and
//! before the message of a panic, and signals are events like `q`.

use super::super::CliError;
use crossterm::event::{Event, EventStream, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use futures_util::StreamExt as _;
use mlgw_common::time::Instant;
use ratatui::{DefaultTerminal, Frame};
use std::io;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

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
    screen: DefaultTerminal,
    events: EventStream,
    interrupted: Signal,
    terminated: Signal,
}

fn failed(error: io::Error) -> CliError {
    CliError::Failed(format!("the terminal: {error}"))
}

impl Terminal {
    pub(super) fn open() -> Result<Self, CliError> {
        let listen = |kind| signal(kind).map_err(failed);
        let (interrupted, terminated) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
        let screen = ratatui::try_init().inspect_err(|_| drop(ratatui::try_restore())).map_err(failed)?;
        Ok(Self { screen, events: EventStream::new(), interrupted, terminated })
    }

    pub(super) fn draw(&mut self, page: impl FnOnce(&mut Frame<'_>)) -> Result<(), CliError> {
        self.screen.draw(page).map(drop).map_err(failed)
    }

    /// Waits until the reader quits or the size changes.
    pub(super) async fn interruption(&mut self) -> TerminalEvent {
        const NEVER: Duration = Duration::from_secs(24 * 3600);
        loop {
            match self.event(Instant::now() + NEVER).await {
                TerminalEvent::Due => {}
                event => return event,
            }
        }
    }

    /// Waits for an event, until `due` at the latest.
    pub(super) async fn event(&mut self, due: Instant) -> TerminalEvent {
        loop {
            tokio::select! {
                event = self.events.next() => match event {
                    Some(Ok(event)) => if let Some(event) = meaning(&event) { return event },
                    // Without keys the command could only be ended by a signal, so it ends.
                    Some(Err(_)) | None => return TerminalEvent::Quit,
                },
                _ = self.interrupted.recv() => return TerminalEvent::Quit,
                _ = self.terminated.recv() => return TerminalEvent::Quit,
                () = mlgw_common::time::sleep_until(due) => return TerminalEvent::Due,
            }
        }
    }
}

/// Returns the event that a key or a change of the size means, if any. In raw mode Ctrl-C is a key.
fn meaning(event: &Event) -> Option<TerminalEvent> {
    match event {
        Event::Resize(..) => Some(TerminalEvent::Resized),
        Event::Key(KeyEvent { kind: KeyEventKind::Press, code, modifiers, .. }) => {
            let is_quit = match code {
                KeyCode::Esc | KeyCode::Char('q' | 'Q') => true,
                KeyCode::Char('c' | 'd') => modifiers.contains(KeyModifiers::CONTROL),
                _ => false,
            };
            is_quit.then_some(TerminalEvent::Quit)
        }
        _ => None,
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // After a panic the terminal is restored already, and its message is below.
        if !std::thread::panicking() {
            // A failure cannot be reported any more.
            let _ = ratatui::try_restore();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{TerminalEvent, meaning};
    use crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers};

    #[test]
    fn three_keys_quit() {
        let key = |code, modifiers| meaning(&Event::Key(KeyEvent::new(code, modifiers)));
        let plain = |code| key(code, KeyModifiers::NONE);
        let quit = Some(TerminalEvent::Quit);
        assert_eq!([plain(KeyCode::Char('q')), plain(KeyCode::Esc)], [quit, quit]);
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), quit);
        assert_eq!([plain(KeyCode::Char('c')), plain(KeyCode::Up)], [None, None]);
        assert_eq!(meaning(&Event::Resize(40, 10)), Some(TerminalEvent::Resized));
    }
}
