//! An origin that one node of a cluster at a time may change.
//!
//! Reads pass. A change begins only with the permission of an [`OriginFence`], and is cut when the lease
//! ends: a body that is not complete is not stored by the origin. An answer before the last byte cuts the
//! body too, and is no success. Once an origin has the whole request, its answer is awaited for a limited
//! time, because the next node waits as long. An object that an origin would copy for longer is copied in
//! parts (`copy_in_parts`).
//!
//! Nothing is kept on disk: a process that ends changes nothing any more.

use super::change_body::ChangeBody;
use super::copy_in_parts;
use super::fence::{CHANGE_MAX, ChangeEffect, OriginFence};
use super::{
    CreatedOriginUpload, GetQuery, ListPage, ListQuery, Origin, OriginContent, OriginCopyReceipt,
    OriginDocument, OriginError, OriginFuture, OriginMetrics, OriginObject, OriginUploadRef,
    OriginWriteReceipt, PartPage, Streamed, UploadPage, UploadsQuery,
};
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use http::HeaderMap;
use mlgw_common::limits::FENCED_COPY_BYTES_MAX;
use mlgw_common::time::sleep;
use mlgw_formats::schema::{ObjectVersion, Pair};
use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;

/// An origin behind a fence.
#[derive(Clone)]
pub struct FencedOrigin {
    origin: Arc<dyn Origin>,
    fence: OriginFence,
}

impl FencedOrigin {
    /// Puts an origin behind a fence.
    #[must_use]
    pub fn new(origin: Arc<dyn Origin>, fence: OriginFence) -> Self {
        Self { origin, fence }
    }

    /// Begins the change that `work` sends, and waits for its outcome. `work` was not polled yet.
    fn change<'a, T: Send + 'a>(
        &'a self,
        effect: ChangeEffect,
        body: ChangeBody,
        mut work: OriginFuture<'a, T>,
    ) -> OriginFuture<'a, T> {
        async move {
            let pass = self.fence.begin(effect, body.clone()).await?;
            // A process that was stopped for a while may be woken by the work and not by the clock.
            let guarded = poll_fn(|context| match self.fence.holds() {
                true => work.poll_unpin(context),
                false => Poll::Ready(Err(taken_over())),
            });
            let given_up = async {
                // A slow client does not count: its change takes effect after the last byte.
                body.completed().await;
                sleep(CHANGE_MAX).await;
            };
            let outcome = tokio::select! {
                biased;
                () = self.fence.lease_ended() => Err(taken_over()),
                () = given_up => Err(OriginError::TimedOut),
                outcome = guarded => outcome,
            };
            let outcome = match outcome {
                // The rest of the body is never sent, so the origin does not store it.
                Ok(_) if body.cut() => {
                    Err(OriginError::Unconfirmed("it answered before the last byte was sent".to_owned()))
                }
                outcome => outcome,
            };
            pass.finish(outcome.as_ref().err().is_none_or(OriginError::is_undone));
            outcome
        }
        .boxed()
    }

    /// Returns content that ends with an error before its last byte when the change is cut or the lease ends,
    /// and the state of its bytes.
    fn guard(&self, content: OriginContent) -> (OriginContent, ChangeBody) {
        let Streamed { bytes, pieces, trailer } = match content {
            // The client of the origin may send it at any time, and again.
            OriginContent::Whole(bytes) => return (OriginContent::Whole(bytes), ChangeBody::whole()),
            OriginContent::Streaming(streamed) => streamed,
        };
        let (body, fence, mut left) = (ChangeBody::streaming(bytes), self.fence.clone(), bytes);
        let sent = body.clone();
        let guarded = pieces.map(move |piece| {
            if !fence.holds() {
                return Err(taken_over());
            }
            let piece = piece?;
            left = left.saturating_sub(piece.len() as u64);
            match left > 0 || sent.complete() {
                true => Ok(piece),
                false => Err(taken_over()),
            }
        });
        let content = OriginContent::Streaming(Streamed { bytes, pieces: guarded.boxed(), trailer });
        (content, body)
    }

    /// Waits until changes are allowed on this node, and begins none.
    async fn until_allowed(&self) -> Result<(), OriginError> {
        self.fence.begin(ChangeEffect::Upload, ChangeBody::whole()).await?.finish(true);
        Ok(())
    }
}

fn taken_over() -> OriginError {
    OriginError::ConnectionLost("another node may have taken over the remote-backed buckets".to_owned())
}

impl Origin for FencedOrigin {
    fn list<'a>(&'a self, query: &'a ListQuery) -> OriginFuture<'a, ListPage> {
        self.origin.list(query)
    }

    fn head<'a>(&'a self, key: &'a str) -> OriginFuture<'a, ObjectVersion> {
        self.origin.head(key)
    }

    fn get<'a>(&'a self, key: &'a str, query: &'a GetQuery) -> OriginFuture<'a, OriginObject> {
        self.origin.get(key, query)
    }

    fn head_part<'a>(&'a self, key: &'a str, number: u32) -> OriginFuture<'a, (ObjectVersion, Range<u64>)> {
        self.origin.head_part(key, number)
    }

    fn name(&self) -> &str {
        self.origin.name()
    }

    fn metrics(&self) -> OriginMetrics {
        self.origin.metrics()
    }

    fn put<'a>(
        &'a self,
        key: &'a str,
        headers: &'a HeaderMap,
        content: OriginContent,
    ) -> OriginFuture<'a, OriginWriteReceipt> {
        let (content, body) = self.guard(content);
        self.change(ChangeEffect::Object, body, self.origin.put(key, headers, content))
    }

    fn delete<'a>(&'a self, key: &'a str, headers: &'a HeaderMap) -> OriginFuture<'a, OriginWriteReceipt> {
        self.change(ChangeEffect::Object, ChangeBody::whole(), self.origin.delete(key, headers))
    }

    fn copy<'a>(
        &'a self,
        key: &'a str,
        source: &'a str,
        headers: &'a HeaderMap,
    ) -> OriginFuture<'a, OriginCopyReceipt> {
        async move {
            // First, because the answer of a node that may not change anything is no answer of the origin.
            self.until_allowed().await?;
            let object = self.origin.head(source).await?;
            copy_in_parts::check_size(&object)?;
            if object.size > FENCED_COPY_BYTES_MAX {
                return copy_in_parts::copy_in_parts(self, key, source, headers, &object).await;
            }
            let copy = self.origin.copy(key, source, headers);
            self.change(ChangeEffect::Object, ChangeBody::whole(), copy).await
        }
        .boxed()
    }

    fn tags<'a>(&'a self, key: &'a str) -> OriginFuture<'a, Vec<Pair>> {
        self.origin.tags(key)
    }

    fn set_tags<'a>(&'a self, key: &'a str, tags: &'a [Pair]) -> OriginFuture<'a, ()> {
        self.change(ChangeEffect::Object, ChangeBody::whole(), self.origin.set_tags(key, tags))
    }

    fn attributes<'a>(&'a self, key: &'a str, headers: &'a HeaderMap) -> OriginFuture<'a, OriginDocument> {
        self.origin.attributes(key, headers)
    }

    fn create_upload<'a>(
        &'a self,
        key: &'a str,
        headers: &'a HeaderMap,
    ) -> OriginFuture<'a, CreatedOriginUpload> {
        self.change(ChangeEffect::Upload, ChangeBody::whole(), self.origin.create_upload(key, headers))
    }

    fn put_part<'a>(
        &'a self,
        upload: OriginUploadRef<'a>,
        number: u32,
        headers: &'a HeaderMap,
        content: OriginContent,
    ) -> OriginFuture<'a, OriginWriteReceipt> {
        let (content, body) = self.guard(content);
        self.change(ChangeEffect::Upload, body, self.origin.put_part(upload, number, headers, content))
    }

    fn copy_part<'a>(
        &'a self,
        upload: OriginUploadRef<'a>,
        number: u32,
        source: &'a str,
        headers: &'a HeaderMap,
    ) -> OriginFuture<'a, OriginCopyReceipt> {
        let copy = self.origin.copy_part(upload, number, source, headers);
        self.change(ChangeEffect::Upload, ChangeBody::whole(), copy)
    }

    fn complete<'a>(
        &'a self,
        upload: OriginUploadRef<'a>,
        headers: &'a HeaderMap,
        document: Bytes,
    ) -> OriginFuture<'a, OriginCopyReceipt> {
        let complete = self.origin.complete(upload, headers, document);
        self.change(ChangeEffect::Object, ChangeBody::whole(), complete)
    }

    fn abort<'a>(&'a self, upload: OriginUploadRef<'a>) -> OriginFuture<'a, ()> {
        self.change(ChangeEffect::Upload, ChangeBody::whole(), self.origin.abort(upload))
    }

    fn list_parts<'a>(
        &'a self,
        upload: OriginUploadRef<'a>,
        after: u32,
        max: usize,
    ) -> OriginFuture<'a, PartPage> {
        self.origin.list_parts(upload, after, max)
    }

    fn list_uploads<'a>(&'a self, query: &'a UploadsQuery) -> OriginFuture<'a, UploadPage> {
        self.origin.list_uploads(query)
    }
}

#[cfg(test)]
mod tests {
    use super::{CHANGE_MAX, FencedOrigin, OriginFence};
    use crate::origin::test_origin::TestOrigin;
    use crate::origin::{
        Origin as _, OriginContent, OriginError, OriginUploadRef, OriginWriteReceipt, Streamed,
    };
    use bytes::Bytes;
    use futures_util::{StreamExt as _, stream};
    use http::HeaderMap;
    use mlgw_common::time::{Instant, sleep};
    use parking_lot::Mutex;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::time::Duration;

    const LEASE: Duration = Duration::from_secs(4);

    struct Bench {
        fence: OriginFence,
        origin: FencedOrigin,
        bodies: Arc<AtomicUsize>,
        unread: Arc<Mutex<Option<OriginContent>>>,
    }

    impl Bench {
        /// With an open fence and a lease.
        fn new(answers_after: Duration) -> Self {
            let (fence, slow) = (OriginFence::new(), TestOrigin { answers_after, ..TestOrigin::default() });
            let (bodies, unread) = (Arc::clone(&slow.bodies), Arc::clone(&slow.unread));
            let origin = FencedOrigin::new(Arc::new(slow), fence.clone());
            fence.open();
            fence.extend(Instant::now() + LEASE);
            Self { fence, origin, bodies, unread }
        }

        async fn put(&self, content: OriginContent) -> Result<OriginWriteReceipt, OriginError> {
            self.origin.put("k", &HeaderMap::new(), content).await
        }
    }

    fn whole() -> OriginContent {
        OriginContent::Whole(Bytes::from_static(b"body"))
    }

    /// Two pieces, the second one after a time.
    fn streamed(pause: Duration) -> OriginContent {
        let pieces = stream::iter([Duration::ZERO, pause]).then(|pause| async move {
            sleep(pause).await;
            Ok(Bytes::from_static(b"body"))
        });
        OriginContent::Streaming(Streamed { bytes: 8, pieces: pieces.boxed(), trailer: None })
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_cut_when_the_lease_ends_and_reads_pass() {
        let bench = Bench::new(Duration::from_mins(1));
        let begun = Instant::now();
        assert!(matches!(bench.put(whole()).await, Err(OriginError::ConnectionLost(_))));
        assert_eq!(begun.elapsed(), LEASE);
        assert!(!bench.fence.end(Duration::ZERO).await, "its outcome is unknown");
        assert!(matches!(bench.put(whole()).await, Err(OriginError::Unreachable(_))));
        assert_eq!(bench.bodies.load(Relaxed), 1);
        assert!(bench.origin.head("k").await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_byte_is_not_sent_after_the_end_of_the_lease() {
        let bench = Bench::new(Duration::ZERO);
        assert!(bench.put(streamed(LEASE / 2)).await.is_ok());
        assert_eq!(bench.bodies.load(Relaxed), 1);
        assert!(bench.put(streamed(LEASE)).await.is_err());
        assert_eq!(bench.bodies.load(Relaxed), 1);
        assert!(bench.fence.end(Duration::ZERO).await, "the origin stores nothing of it");
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_cuts_a_body_that_is_incomplete_and_is_complete_itself() {
        let bench = Bench::new(Duration::ZERO);
        let put = bench.put(streamed(LEASE));
        let end = async {
            sleep(LEASE / 4).await;
            bench.fence.end(LEASE / 4).await
        };
        let (put, is_known) = tokio::join!(put, end);
        assert!(put.is_err() && is_known);
        assert_eq!(bench.bodies.load(Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_before_the_last_byte_ends_the_body_and_is_no_success() {
        for key in ["early", "refused"] {
            let bench = Bench::new(Duration::ZERO);
            let sent = bench.origin.put(key, &HeaderMap::new(), streamed(Duration::ZERO)).await;
            assert!(matches!(sent, Err(OriginError::Unconfirmed(_) | OriginError::Denied(_))), "{sent:?}");
            let Some(OriginContent::Streaming(rest)) = bench.unread.lock().take() else { panic!("no body") };
            let pieces: Vec<_> = rest.pieces.collect().await;
            assert!(pieces[0].is_ok() && pieces[1].is_err(), "a connection may still send it");
            assert!(bench.fence.end(Duration::ZERO).await, "the origin stores nothing of it");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_awaited_for_a_limited_time_after_the_last_byte() {
        let bench = Bench::new(Duration::from_hours(1));
        bench.fence.extend(Instant::now() + Duration::from_hours(2));
        let begun = Instant::now();
        assert_eq!(bench.put(whole()).await, Err(OriginError::TimedOut));
        assert_eq!(begun.elapsed(), CHANGE_MAX);
        let begun = Instant::now();
        assert_eq!(bench.put(streamed(CHANGE_MAX * 2)).await, Err(OriginError::TimedOut));
        assert_eq!(begun.elapsed(), CHANGE_MAX * 3, "a slow client does not count");
    }

    #[tokio::test(start_paused = true)]
    async fn changes_of_uploads_have_the_same_deadline() {
        let bench = Bench::new(Duration::from_hours(1));
        bench.fence.extend(Instant::now() + Duration::from_hours(2));
        let (headers, begun) = (HeaderMap::new(), Instant::now());
        assert_eq!(bench.origin.create_upload("k", &headers).await, Err(OriginError::TimedOut));
        assert_eq!(begun.elapsed(), CHANGE_MAX);
        let (upload, begun) = (OriginUploadRef { key: "k", id: "1" }, Instant::now());
        assert_eq!(bench.origin.copy_part(upload, 1, "s", &headers).await, Err(OriginError::TimedOut));
        assert_eq!(begun.elapsed(), CHANGE_MAX);
        assert!(bench.fence.end(Duration::ZERO).await, "no object can change any more");
    }
}
