//! Bytes of a change that an origin carries out after the last of them.
//!
//! Invariant: the last byte is sent, or the change is cut before it, and never both. An origin stores nothing
//! of a body without its last byte. Nothing is kept on disk: a process that ends sends no more.

use std::sync::Arc;
use tokio::sync::watch;

/// State of the bytes of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyState {
    /// The last byte is still here.
    Incomplete,
    /// The last byte is sent from now on. A change without bytes begins so.
    Complete,
    /// The last byte will never be sent.
    Cut,
}

/// State of the bytes of a change. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct ChangeBody(Arc<watch::Sender<BodyState>>);

impl ChangeBody {
    /// Creates the state of bytes that are in memory, or of a change without bytes: it may take effect as
    /// soon as it begins.
    pub(super) fn whole() -> Self {
        Self::of(BodyState::Complete)
    }

    /// Creates the state of `bytes` that arrive while they are sent.
    pub(super) fn streaming(bytes: u64) -> Self {
        Self::of(if bytes == 0 { BodyState::Complete } else { BodyState::Incomplete })
    }

    fn of(state: BodyState) -> Self {
        Self(Arc::new(watch::Sender::new(state)))
    }

    /// Records that the last byte is sent now. Returns false if it must not be sent, because the change was
    /// cut.
    pub(super) fn complete(&self) -> bool {
        self.change_to(BodyState::Complete)
    }

    /// Cuts the change. Returns false if its last byte may have been sent.
    pub(super) fn cut(&self) -> bool {
        self.change_to(BodyState::Cut)
    }

    /// Leaves the state [`BodyState::Incomplete`]. Returns false if another state was reached before.
    fn change_to(&self, next: BodyState) -> bool {
        self.0.send_if_modified(|state| {
            let is_incomplete = *state == BodyState::Incomplete;
            if is_incomplete {
                *state = next;
            }
            is_incomplete
        }) || *self.0.borrow() == next
    }

    /// Waits until the last byte is sent. Never returns if the change is cut before.
    pub(super) async fn completed(&self) {
        let mut states = self.0.subscribe();
        let completed = states.wait_for(|state| *state == BodyState::Complete).await;
        debug_assert!(completed.is_ok(), "the sender lives as long as this body");
    }
}

#[cfg(test)]
mod tests {
    use super::ChangeBody;

    #[test]
    fn a_change_is_cut_or_its_last_byte_is_sent() {
        let body = ChangeBody::streaming(8);
        assert!(body.complete() && !body.cut());
        let body = ChangeBody::streaming(8);
        assert!(body.cut() && !body.complete());
        for body in [ChangeBody::whole(), ChangeBody::streaming(0)] {
            assert!(!body.cut(), "it may be executed from its begin on");
        }
    }
}
