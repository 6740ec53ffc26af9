//! Rest of a response that carries more than the block that was taken from it.
//!
//! A read of a whole object requests it whole, because only such a response has its checksums. If the object
//! has more than one block, the blocks after the first come from the same response, one after the other, so
//! that no byte is fetched twice and no connection is cut. Invariants: blocks are assigned to the rest in
//! order and without a gap; any other block is fetched by a range. The response ends with its last reader.

use bytes::Bytes;
use mlgw_common::ids::BodyId;
use mlgw_remote::origin::OriginObject;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use tokio::sync::Notify;

/// Response in progress, and the bytes received that belong to the next block.
pub(super) struct RunningResponse {
    pub(super) got: OriginObject,
    pub(super) left_over: Bytes,
}

impl RunningResponse {
    /// Creates a response without any bytes so far.
    pub(super) const fn new(got: OriginObject) -> Self {
        Self { got, left_over: Bytes::new() }
    }
}

/// Rest of a response, shared by the blocks assigned to it.
pub(super) struct ResponseTail {
    state: Mutex<ResponseTailState>,
    changed: Notify,
}

struct ResponseTailState {
    /// First block that is not assigned.
    unassigned: u64,
    /// Block that the response has reached.
    current: u64,
    running: Option<RunningResponse>,
    is_over: bool,
}

impl ResponseTail {
    /// Creates the rest of a response whose block `first` is being taken.
    pub(super) fn after_block(first: u64) -> Self {
        let state =
            ResponseTailState { unassigned: first + 1, current: first, running: None, is_over: false };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    /// Assigns a block if it is the next one. Returns true if it is assigned.
    fn assign(&self, number: u64) -> bool {
        let mut state = self.state.lock();
        let is_next = !state.is_over && state.unassigned == number;
        state.unassigned += u64::from(is_next);
        is_next
    }

    /// Passes the response on after the block before `number` was taken; `None` if the response has ended.
    pub(super) fn pass_on(&self, number: u64, running: Option<RunningResponse>) {
        let mut state = self.state.lock();
        let is_next = number == state.current + 1;
        assert!(
            is_next || state.is_over || running.is_none(),
            "a response passes through all blocks in order"
        );
        state.is_over = running.is_none();
        (state.current, state.running) = (number, running);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Waits until the response reaches the assigned block `number`, and returns it; `None` if it ended
    /// before.
    pub(super) async fn take(&self, number: u64) -> Option<RunningResponse> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = self.state.lock();
                if state.is_over {
                    return None;
                }
                if state.current == number && state.running.is_some() {
                    return state.running.take();
                }
            }
            changed.await;
        }
    }
}

/// Rests that have a reader, by body.
#[derive(Default)]
pub(super) struct ResponseTails(Mutex<HashMap<BodyId, Weak<ResponseTail>>>);

impl ResponseTails {
    /// Adds the rest of a response. Rests without a reader are dropped.
    pub(super) fn add(&self, body: BodyId, rest: &Arc<ResponseTail>) {
        let mut rests = self.0.lock();
        rests.retain(|_, rest| rest.strong_count() > 0);
        rests.insert(body, Arc::downgrade(rest));
    }

    /// Returns the rest to which a block of a body is assigned, if it is the next block of that rest.
    pub(super) fn assign(&self, body: BodyId, number: u64) -> Option<Arc<ResponseTail>> {
        let rest = self.0.lock().get(&body)?.upgrade()?;
        rest.assign(number).then_some(rest)
    }
}

/// Guard of the response during a block: passes it on, or ends it if the block was abandoned.
pub(super) struct ResponseHandoff {
    rest: Arc<ResponseTail>,
    next: u64,
    running: Option<RunningResponse>,
}

impl ResponseHandoff {
    pub(super) fn new(rest: Arc<ResponseTail>, next: u64) -> Self {
        Self { rest, next, running: None }
    }

    /// Passes the response on to the next block.
    pub(super) fn keep(&mut self, running: RunningResponse) {
        self.running = Some(running);
    }
}

impl Drop for ResponseHandoff {
    fn drop(&mut self) {
        self.rest.pass_on(self.next, self.running.take());
    }
}

#[cfg(test)]
mod tests {
    use super::{ResponseTail, ResponseTails, RunningResponse};
    use bytes::Bytes;
    use futures_util::StreamExt as _;
    use futures_util::stream;
    use mlgw_common::ids::BodyId;
    use mlgw_formats::schema::ObjectVersion;
    use mlgw_remote::origin::OriginObject;
    use std::sync::Arc;

    fn running(text: &'static str) -> RunningResponse {
        let body = stream::iter([Ok(Bytes::from_static(text.as_bytes()))]).boxed();
        let object = ObjectVersion::default();
        RunningResponse::new(OriginObject { object, is_tagged: false, range: 0..1, body })
    }

    #[tokio::test]
    async fn blocks_are_assigned_in_order_and_get_the_answer_in_turn() {
        let (rests, rest) = (ResponseTails::default(), Arc::new(ResponseTail::after_block(0)));
        rests.add(BodyId(7), &rest);
        let assigned = |number| rests.assign(BodyId(7), number).is_some();
        assert!(!assigned(2), "a gap");
        assert!(assigned(1) && assigned(2) && !assigned(1) && !assigned(4));
        assert!(rests.assign(BodyId(8), 1).is_none());
        let second = tokio::spawn({
            let rest = rest.clone();
            async move { rest.take(2).await.is_some() }
        });
        rest.pass_on(1, Some(running("a")));
        let first = rest.take(1).await.unwrap();
        assert!(!second.is_finished());
        rest.pass_on(2, Some(first));
        assert!(second.await.unwrap());
    }

    #[tokio::test]
    async fn a_response_that_ends_leaves_its_blocks_to_range_requests() {
        let (rests, rest) = (ResponseTails::default(), Arc::new(ResponseTail::after_block(0)));
        rests.add(BodyId(7), &rest);
        assert!(rests.assign(BodyId(7), 1).is_some());
        rest.pass_on(1, None);
        assert!(rest.take(1).await.is_none() && rests.assign(BodyId(7), 2).is_none());
        drop(rest);
        assert!(rests.assign(BodyId(7), 1).is_none(), "it has no reader");
        rests.add(BodyId(8), &Arc::new(ResponseTail::after_block(0)));
        assert_eq!(rests.0.lock().len(), 1, "entries without readers are dropped");
    }
}
