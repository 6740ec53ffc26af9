//! An origin that one node of a cluster at a time may change.
//!
//! Reads pass. A change begins only with the permission of an [`OriginFence`], and is cut when the lease
//! ends: a body that is not complete is not stored by the origin. Once an origin has the whole request, its
//! answer is awaited for a limited time, because the next node waits as long.

use super::fence::{CHANGE_MAX, OriginFence};
use super::{
    CreatedOriginUpload, GetQuery, ListPage, ListQuery, Origin, OriginContent, OriginCopyReceipt,
    OriginDocument, OriginError, OriginFuture, OriginMetrics, OriginObject, OriginUploadRef,
    OriginWriteReceipt, PartPage, Streamed, UploadPage, UploadsQuery,
};
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use http::HeaderMap;
use mlgw_common::time::sleep;
use mlgw_formats::schema::{ObjectVersion, Pair};
use std::future::{pending, poll_fn};
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;
use tokio::sync::watch;

/// An origin behind a fence.
pub struct FencedOrigin {
    origin: Arc<dyn Origin>,
    fence: OriginFence,
}

/// Time that a change may take.
enum ChangeLimit {
    /// It changes no object, so it may take as long as the origin needs.
    Lease,
    /// It takes effect at any time from its begin on.
    FromBegin,
    /// It takes effect after its last byte, which has been sent once this is true.
    FromLastByte(watch::Receiver<bool>),
}

impl ChangeLimit {
    async fn exceeded(self) {
        match self {
            Self::Lease => pending().await,
            Self::FromBegin => sleep(CHANGE_MAX).await,
            Self::FromLastByte(mut sent) => {
                // A body that is dropped before its end is never complete.
                if sent.wait_for(|sent| *sent).await.is_err() {
                    pending::<()>().await;
                }
                sleep(CHANGE_MAX).await;
            }
        }
    }
}

impl FencedOrigin {
    /// Puts an origin behind a fence.
    #[must_use]
    pub fn new(origin: Arc<dyn Origin>, fence: OriginFence) -> Self {
        Self { origin, fence }
    }

    /// Carries out a change, of which nothing has been sent yet.
    fn change<'a, T: Send + 'a>(
        &'a self,
        limit: ChangeLimit,
        mut work: OriginFuture<'a, T>,
    ) -> OriginFuture<'a, T> {
        async move {
            let pass = self.fence.begin().await?;
            // A process that was stopped for a while may be woken by the work and not by the clock.
            let guarded = poll_fn(|context| match self.fence.holds() {
                true => work.poll_unpin(context),
                false => Poll::Ready(Err(lease_ended())),
            });
            let outcome = tokio::select! {
                biased;
                () = self.fence.ended() => Err(lease_ended()),
                () = limit.exceeded() => Err(OriginError::TimedOut),
                outcome = guarded => outcome,
            };
            pass.finish(outcome.as_ref().err().is_none_or(OriginError::is_undone));
            outcome
        }
        .boxed()
    }

    /// Returns content that ends with an error when the lease ends, and the limit of its change.
    fn guard(&self, content: OriginContent) -> (OriginContent, ChangeLimit) {
        let Streamed { bytes, pieces, trailer } = match content {
            // The client of the origin may send it at any time, and again.
            OriginContent::Whole(bytes) => return (OriginContent::Whole(bytes), ChangeLimit::FromBegin),
            OriginContent::Streaming(streamed) => streamed,
        };
        let (fence, mut left) = (self.fence.clone(), bytes);
        let (sender, sent) = watch::channel(bytes == 0);
        let guarded = pieces.map(move |piece| {
            if !fence.holds() {
                return Err(lease_ended());
            }
            let piece = piece?;
            left = left.saturating_sub(piece.len() as u64);
            if left == 0 {
                sender.send_replace(true);
            }
            Ok(piece)
        });
        let pieces = guarded.boxed();
        let content = OriginContent::Streaming(Streamed { bytes, pieces, trailer });
        (content, ChangeLimit::FromLastByte(sent))
    }
}

fn lease_ended() -> OriginError {
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
        let (content, limit) = self.guard(content);
        self.change(limit, self.origin.put(key, headers, content))
    }

    fn delete<'a>(&'a self, key: &'a str, headers: &'a HeaderMap) -> OriginFuture<'a, OriginWriteReceipt> {
        self.change(ChangeLimit::FromBegin, self.origin.delete(key, headers))
    }

    fn copy<'a>(
        &'a self,
        key: &'a str,
        source: &'a str,
        headers: &'a HeaderMap,
    ) -> OriginFuture<'a, OriginCopyReceipt> {
        self.change(ChangeLimit::FromBegin, self.origin.copy(key, source, headers))
    }

    fn tags<'a>(&'a self, key: &'a str) -> OriginFuture<'a, Vec<Pair>> {
        self.origin.tags(key)
    }

    fn set_tags<'a>(&'a self, key: &'a str, tags: &'a [Pair]) -> OriginFuture<'a, ()> {
        self.change(ChangeLimit::FromBegin, self.origin.set_tags(key, tags))
    }

    fn attributes<'a>(&'a self, key: &'a str, headers: &'a HeaderMap) -> OriginFuture<'a, OriginDocument> {
        self.origin.attributes(key, headers)
    }

    fn create_upload<'a>(
        &'a self,
        key: &'a str,
        headers: &'a HeaderMap,
    ) -> OriginFuture<'a, CreatedOriginUpload> {
        self.change(ChangeLimit::Lease, self.origin.create_upload(key, headers))
    }

    fn put_part<'a>(
        &'a self,
        upload: OriginUploadRef<'a>,
        number: u32,
        headers: &'a HeaderMap,
        content: OriginContent,
    ) -> OriginFuture<'a, OriginWriteReceipt> {
        let (content, _) = self.guard(content);
        self.change(ChangeLimit::Lease, self.origin.put_part(upload, number, headers, content))
    }

    fn copy_part<'a>(
        &'a self,
        upload: OriginUploadRef<'a>,
        number: u32,
        source: &'a str,
        headers: &'a HeaderMap,
    ) -> OriginFuture<'a, OriginCopyReceipt> {
        self.change(ChangeLimit::Lease, self.origin.copy_part(upload, number, source, headers))
    }

    fn complete<'a>(
        &'a self,
        upload: OriginUploadRef<'a>,
        headers: &'a HeaderMap,
        document: Bytes,
    ) -> OriginFuture<'a, OriginCopyReceipt> {
        self.change(ChangeLimit::FromBegin, self.origin.complete(upload, headers, document))
    }

    fn abort<'a>(&'a self, upload: OriginUploadRef<'a>) -> OriginFuture<'a, ()> {
        self.change(ChangeLimit::Lease, self.origin.abort(upload))
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
    use crate::origin::{
        GetQuery, ListPage, ListQuery, Origin, OriginContent, OriginError, OriginFuture, OriginMetrics,
        OriginObject, OriginWriteReceipt, Streamed,
    };
    use bytes::Bytes;
    use futures_util::{FutureExt as _, StreamExt as _, stream};
    use http::HeaderMap;
    use mlgw_common::time::{Instant, sleep};
    use mlgw_formats::schema::ObjectVersion;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::time::Duration;

    const LEASE: Duration = Duration::from_secs(4);

    /// Takes bodies, and answers after a time.
    struct SlowOrigin {
        answers_after: Duration,
        bodies: Arc<AtomicUsize>,
    }

    impl Origin for SlowOrigin {
        fn list<'a>(&'a self, _query: &'a ListQuery) -> OriginFuture<'a, ListPage> {
            async { Ok(ListPage::default()) }.boxed()
        }

        fn head<'a>(&'a self, _key: &'a str) -> OriginFuture<'a, ObjectVersion> {
            async { Ok(ObjectVersion::default()) }.boxed()
        }

        fn get<'a>(&'a self, _key: &'a str, _query: &'a GetQuery) -> OriginFuture<'a, OriginObject> {
            async { Err(OriginError::NoSuchKey) }.boxed()
        }

        fn name(&self) -> &'static str {
            "slow"
        }

        fn metrics(&self) -> OriginMetrics {
            OriginMetrics::default()
        }

        fn put<'a>(
            &'a self,
            _key: &'a str,
            _headers: &'a HeaderMap,
            content: OriginContent,
        ) -> OriginFuture<'a, OriginWriteReceipt> {
            async move {
                if let OriginContent::Streaming(mut streamed) = content {
                    while let Some(piece) = streamed.pieces.next().await {
                        piece?;
                    }
                }
                self.bodies.fetch_add(1, Relaxed);
                sleep(self.answers_after).await;
                Ok(OriginWriteReceipt::default())
            }
            .boxed()
        }
    }

    struct Bench {
        fence: OriginFence,
        origin: FencedOrigin,
        bodies: Arc<AtomicUsize>,
    }

    impl Bench {
        /// With an open fence and a lease.
        fn new(answers_after: Duration) -> Self {
            let (fence, bodies) = (OriginFence::new(), Arc::new(AtomicUsize::new(0)));
            let slow = SlowOrigin { answers_after, bodies: Arc::clone(&bodies) };
            let origin = FencedOrigin::new(Arc::new(slow), fence.clone());
            fence.open();
            fence.extend(Instant::now() + LEASE);
            Self { fence, origin, bodies }
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
}
