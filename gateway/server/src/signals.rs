//! Signals to the process: SIGTERM and SIGINT stop the server, SIGHUP reloads its configuration.

use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Action requested by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignalAction {
    Stop,
    Reload,
}

/// The signals that the server handles.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    pub(super) fn install() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for a signal to stop.
    pub(super) async fn stop(&mut self) {
        while self.next().await != SignalAction::Stop {}
    }

    /// Waits for any handled signal.
    pub(super) async fn next(&mut self) -> SignalAction {
        tokio::select! {
            _ = self.terminate.recv() => SignalAction::Stop,
            _ = self.interrupt.recv() => SignalAction::Stop,
            _ = self.hangup.recv() => SignalAction::Reload,
        }
    }
}
