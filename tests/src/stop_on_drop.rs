//! A stop flag for a thread of a scope. The scope waits for its threads also after a failed assertion, so the
//! flag has to be set then too.

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets a thread's stop flag when it is dropped, also after a failed assertion.
pub(crate) struct StopOnDrop<'s>(pub(crate) &'s AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
