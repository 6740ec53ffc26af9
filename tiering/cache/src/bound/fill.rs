//! A block that is being fetched: who reads it follows its bytes as they come, however many they are.
//!
//! Whether it is kept is for its readers to say; as long as one is known to come that has not yet
//! ([`Claim`]), it is not over.

use bytes::Bytes;
use mlgw_formats::schema::Extent;
use mlgw_policies::Sharing;
use mlgw_remote::origin::OriginError;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit};

/// A block that is being fetched.
pub(super) struct Fill {
    /// Its bytes in the object.
    pub(super) range: Range<u64>,
    /// From this byte on nothing is read before all of it came and was compared.
    held_from: u64,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    pieces: Vec<Bytes>,
    bytes: u64,
    end: Option<Result<(), OriginError>>,
    /// Whether nothing more will come of it.
    is_closed: bool,
    /// Whether somebody wants it to be kept.
    wanted: Wanted,
    /// Readers that will say so, or not.
    claims: usize,
    /// How long its bytes wait for others who read them, when it is not kept, and how many may wait so.
    sharing: Sharing,
    /// Whether it was fetched for somebody who is about to ask.
    is_ahead: bool,
    /// Whether somebody has read it to its end.
    is_taken: bool,
    /// Whether it does nothing but wait for readers.
    rests: bool,
    /// Where it is kept, once it is.
    kept: Option<Vec<Extent>>,
    /// Held as long as its bytes are in memory.
    _memory: Option<OwnedSemaphorePermit>,
}

/// So long bytes wait that were fetched ahead and are not kept.
const AHEAD_WAITS_MAX: Duration = Duration::from_secs(10);

/// Who wants a block to be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wanted {
    /// Nobody.
    #[default]
    No,
    /// Somebody who does not read it: the engine says.
    Adopted,
    /// A reader, as the engine said.
    Yes,
}

/// A reader is known to come that will say whether it is kept: until this is dropped.
pub(super) struct Claim(Arc<Fill>);

impl Claim {
    /// It is to be kept by this reader.
    pub(super) fn want(&self, wanted: Wanted) {
        self.0.want(wanted);
    }

    /// Its bytes wait for who is about to ask, when it is not kept.
    pub(super) fn wait_for_reader(&self) {
        self.0.wait_for_reader();
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.state.lock().claims -= 1;
        self.0.changed.notify_waiters();
    }
}

/// What there is behind a byte.
pub(super) enum Next {
    /// Some bytes.
    Bytes(Bytes),
    /// All of the block is on the disk, there.
    Kept(Vec<Extent>),
}

impl Fill {
    /// A block whose bytes from `held_from` on are withheld until [`Fill::finish`] confirms all of them.
    pub(super) fn new(range: Range<u64>, held_from: u64, memory: OwnedSemaphorePermit) -> Self {
        let state = State { _memory: Some(memory), ..State::default() };
        Self { range, held_from, state: Mutex::new(state), changed: Notify::new() }
    }

    /// Drops all bytes that came, unless a reader may have seen some.
    pub(super) fn restart(&self) -> bool {
        if self.held_from > self.range.start {
            return false;
        }
        let mut state = self.state.lock();
        (state.pieces, state.bytes) = (Vec::new(), 0);
        true
    }

    /// The next byte of the object that is missing.
    pub(super) fn at(&self) -> u64 {
        self.range.start + self.state.lock().bytes
    }

    /// More bytes came. What is beyond the block is not taken.
    pub(super) fn push(&self, mut piece: Bytes) {
        let mut state = self.state.lock();
        let left = self.range.end - self.range.start - state.bytes;
        piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        state.bytes += piece.len() as u64;
        state.pieces.push(piece);
        drop(state);
        self.changed.notify_waiters();
    }

    /// All came, or no more will.
    pub(super) fn finish(&self, end: Result<(), OriginError>) {
        self.state.lock().end = Some(end);
        self.changed.notify_waiters();
    }

    /// Somebody wants it to be kept.
    pub(super) fn want(&self, wanted: Wanted) {
        let mut state = self.state.lock();
        state.wanted = state.wanted.max(wanted);
        drop(state);
        self.changed.notify_waiters();
    }

    /// A reader is known to come.
    pub(super) fn claim(self: &Arc<Self>) -> Claim {
        self.state.lock().claims += 1;
        Claim(self.clone())
    }

    /// Who wants it, as soon as those who are known to come have said.
    pub(super) async fn decided(&self) -> Wanted {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.state.lock();
                if state.wanted == Wanted::Yes || state.claims == 0 {
                    return state.wanted;
                }
            }
            changed.await;
        }
    }

    /// Its bytes wait so long for others when it is not kept, at least, unless more than so many do by then.
    pub(super) fn wait_for_others(&self, sharing: Sharing) {
        let held = &mut self.state.lock().sharing;
        held.window = held.window.max(sharing.window);
        held.bytes_max = held.bytes_max.max(sharing.bytes_max);
    }

    /// Its bytes wait for who is about to ask, when it is not kept.
    pub(super) fn wait_for_reader(&self) {
        self.state.lock().is_ahead = true;
    }

    /// Whether its bytes wait for anybody.
    pub(super) fn waits(&self) -> bool {
        let state = self.state.lock();
        state.is_ahead || !state.sharing.window.is_zero()
    }

    /// Waits for those for whom its bytes wait: for who is about to ask until he has asked, but not for ever;
    /// for others as long as it was said; and for nobody any more as soon as it is `wanted` more than it was
    /// so far. `shared_bytes` are all that wait for others. Says who wants it by then.
    pub(super) async fn wait_out(&self, wanted: Wanted, shared_bytes: &AtomicU64) -> Wanted {
        let is_ahead = {
            let mut state = self.state.lock();
            state.rests = true;
            state.is_ahead
        };
        // Come to pass or not: either way the wait is over.
        if is_ahead {
            let taken = self.until(|state| state.is_taken || state.wanted > wanted);
            let _ = tokio::time::timeout(AHEAD_WAITS_MAX, taken).await;
        }
        // Looked at only now: it is he for whom it was fetched ahead who says that it is shared.
        let sharing = self.state.lock().sharing;
        let bytes = self.range.end - self.range.start;
        if shared_bytes.fetch_add(bytes, Relaxed) + bytes <= sharing.bytes_max {
            let _ = tokio::time::timeout(sharing.window, self.until(|state| state.wanted > wanted)).await;
        }
        shared_bytes.fetch_sub(bytes, Relaxed);
        let mut state = self.state.lock();
        state.rests = false;
        state.wanted
    }

    /// Somebody has read it to its end.
    pub(super) fn take(&self) {
        self.state.lock().is_taken = true;
        self.changed.notify_waiters();
    }

    /// Waits until that is so.
    async fn until(&self, is_so: impl Fn(&State) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if is_so(&self.state.lock()) {
                return;
            }
            changed.await;
        }
    }

    /// Whether all of it is here.
    pub(super) fn is_whole(&self) -> bool {
        let state = self.state.lock();
        state.kept.is_some() || state.end == Some(Ok(()))
    }

    /// Who wants it by now.
    pub(super) fn wanted(&self) -> Wanted {
        self.state.lock().wanted
    }

    /// All that came.
    pub(super) fn pieces(&self) -> Vec<Bytes> {
        self.state.lock().pieces.clone()
    }

    /// It is on the disk, so its memory is given back; who reads it reads on from there.
    pub(super) fn kept(&self, extents: Vec<Extent>) {
        let mut state = self.state.lock();
        let State { bytes, wanted, claims, .. } = *state;
        *state = State { bytes, wanted, claims, kept: Some(extents), ..State::default() };
    }

    /// Nothing more comes of it: it is kept by now, or will not be.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_waiters();
    }

    /// Whether it does nothing but wait for readers.
    #[cfg(test)]
    pub(super) fn rests(&self) -> bool {
        self.state.lock().rests
    }

    /// Waits until all of it came, or no more will; says whether all did.
    pub(super) async fn whole(&self) -> bool {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.state.lock();
                if state.kept.is_some() {
                    return true;
                }
                if let Some(end) = &state.end {
                    return end.is_ok();
                }
            }
            changed.await;
        }
    }

    /// Waits until nothing more comes of it; says whether it is kept.
    pub(super) async fn ended(&self) -> Result<bool, OriginError> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Listening from here on, so that an end after the look is heard.
            changed.as_mut().enable();
            {
                let state = self.state.lock();
                if state.is_closed {
                    return match &state.end {
                        Some(Err(error)) => Err(error.clone()),
                        _ => Ok(state.kept.is_some()),
                    };
                }
            }
            changed.await;
        }
    }

    /// What is behind byte `at` of the object, as soon as there is anything.
    pub(super) async fn next(&self, at: u64) -> Result<Next, OriginError> {
        loop {
            let changed = self.changed.notified();
            if let Some(next) = self.look(at) {
                return next;
            }
            changed.await;
        }
    }

    fn look(&self, at: u64) -> Option<Result<Next, OriginError>> {
        let state = self.state.lock();
        if let Some(extents) = &state.kept {
            return Some(Ok(Next::Kept(extents.clone())));
        }
        let shown = if state.end == Some(Ok(())) { self.range.end } else { self.held_from };
        let mut into = at - self.range.start;
        for piece in state.pieces.iter().filter(|_| at < shown) {
            let bytes = piece.len() as u64;
            if into < bytes {
                let end = bytes.min(into + (shown - at));
                return Some(Ok(Next::Bytes(piece.slice(into as usize..end as usize))));
            }
            into -= bytes;
        }
        match &state.end {
            Some(Err(error)) => Some(Err(error.clone())),
            Some(Ok(())) => Some(Err(OriginError::Nonsense("a block ended before it was whole".into()))),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Fill, Next, Wanted};
    use bytes::Bytes;
    use mlgw_policies::Sharing;
    use mlgw_remote::origin::OriginError;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;
    use tokio::sync::Semaphore;

    async fn fill() -> Arc<Fill> {
        let memory = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        Arc::new(Fill::new(100..110, 110, memory))
    }

    async fn held_back(from: u64) -> Arc<Fill> {
        let memory = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        Arc::new(Fill::new(100..110, from, memory))
    }

    #[tokio::test]
    async fn what_is_held_back_is_read_when_all_is_right_and_never_otherwise() {
        for (end, last) in
            [(Ok(()), Ok(Bytes::from_static(b"789"))), (Err(OriginError::Changed), Err(OriginError::Changed))]
        {
            let fill = held_back(107).await;
            fill.push(Bytes::from_static(b"01234"));
            fill.push(Bytes::from_static(b"56789"));
            assert_eq!(next(&fill, 103).await, Ok(Bytes::from_static(b"34")));
            assert_eq!(next(&fill, 105).await, Ok(Bytes::from_static(b"56")), "the rest of it is held back");
            assert!(fill.look(107).is_none() && !fill.restart());
            fill.finish(end);
            assert_eq!(next(&fill, 107).await, last);
        }
    }

    #[tokio::test]
    async fn what_nobody_can_have_read_begins_anew() {
        let fill = held_back(100).await;
        fill.push(Bytes::from_static(b"wrong"));
        assert!(fill.look(100).is_none() && fill.restart());
        assert_eq!(fill.at(), 100);
        fill.push(Bytes::from_static(b"0123456789"));
        fill.finish(Ok(()));
        assert_eq!(next(&fill, 100).await, Ok(Bytes::from_static(b"0123456789")));
    }

    async fn next(fill: &Fill, at: u64) -> Result<Bytes, OriginError> {
        fill.next(at).await.map(|next| match next {
            Next::Bytes(bytes) => bytes,
            Next::Kept(extents) => panic!("{extents:?}"),
        })
    }

    #[tokio::test]
    async fn a_reader_follows_what_comes_and_no_byte_is_beyond_the_block() {
        let fill = fill().await;
        let reader = tokio::spawn({
            let fill = fill.clone();
            async move { (next(&fill, 100).await, next(&fill, 104).await) }
        });
        fill.push(Bytes::from_static(b"0123"));
        tokio::task::yield_now().await;
        assert_eq!((next(&fill, 102).await, fill.at()), (Ok(Bytes::from_static(b"23")), 104));
        fill.push(Bytes::from_static(b"456789beyond"));
        fill.finish(Ok(()));
        let (first, second) = reader.await.unwrap();
        assert!(first.unwrap().starts_with(b"0123") && second.unwrap() == Bytes::from_static(b"456789"));
        assert_eq!((fill.at(), fill.pieces().concat().len()), (110, 10));
    }

    #[tokio::test]
    async fn an_error_comes_behind_what_came() {
        let fill = fill().await;
        fill.push(Bytes::from_static(b"0"));
        fill.finish(Err(OriginError::TimedOut));
        assert_eq!(next(&fill, 100).await, Ok(Bytes::from_static(b"0")));
        assert_eq!(next(&fill, 101).await, Err(OriginError::TimedOut));
    }

    #[tokio::test]
    async fn what_waits_for_others_waits_no_longer_than_until_one_of_them_wants_it_kept() {
        let fill = fill().await;
        fill.push(Bytes::from_static(b"0123456789"));
        assert!(!fill.is_whole());
        fill.finish(Ok(()));
        assert!(fill.is_whole());
        let sharing = |bytes_max| Sharing { window: Duration::from_secs(3600), bytes_max };
        fill.wait_for_others(sharing(14));
        let others = AtomicU64::new(5);
        assert_eq!(fill.wait_out(Wanted::No, &others).await, Wanted::No, "too much waits");
        fill.wait_for_others(sharing(15));
        let (wanted, ()) = tokio::join!(fill.wait_out(Wanted::No, &others), async {
            tokio::task::yield_now().await;
            assert!(fill.rests());
            fill.want(Wanted::Yes);
        });
        assert_eq!((wanted, fill.rests()), (Wanted::Yes, false));
    }

    #[tokio::test]
    async fn what_was_fetched_ahead_waits_for_others_as_he_says_for_whom_it_was() {
        let fill = fill().await;
        fill.push(Bytes::from_static(b"0123456789"));
        fill.finish(Ok(()));
        fill.wait_for_reader();
        let others = AtomicU64::new(0);
        let (wanted, ()) = tokio::join!(fill.wait_out(Wanted::No, &others), async {
            tokio::task::yield_now().await;
            fill.wait_for_others(Sharing { window: Duration::from_secs(3600), bytes_max: 10 });
            fill.take();
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
            assert!(fill.rests(), "it waits for the next one");
            fill.want(Wanted::Yes);
        });
        assert_eq!(wanted, Wanted::Yes);
    }

    #[tokio::test]
    async fn what_is_kept_is_read_from_there() {
        let fill = fill().await;
        fill.push(Bytes::from_static(b"0123456789"));
        fill.finish(Ok(()));
        fill.kept(Vec::new());
        assert!(matches!(fill.next(105).await, Ok(Next::Kept(_))) && fill.pieces().is_empty());
        assert!(fill.state.lock()._memory.is_none() && fill.at() == 110);
    }
}
