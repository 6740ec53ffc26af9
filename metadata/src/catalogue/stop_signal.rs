//! Signal that ends the background jobs of a catalogue.

use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// One-way signal that ends the jobs.
#[derive(Debug, Default)]
pub(super) struct StopSignal {
    stopped: AtomicBool,
    changed: Notify,
}

impl StopSignal {
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    pub(super) async fn cancelled(&self) {
        let changed = self.changed.notified();
        tokio::pin!(changed);
        // Registers the waiter before the check, so that a stop after the check still wakes it.
        changed.as_mut().enable();
        if !self.is_stopped() {
            changed.await;
        }
    }
}
