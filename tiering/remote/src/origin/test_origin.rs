//! An origin for the tests of the fence: it records its requests, and answers after a time.

use super::{
    CreatedOriginUpload, GetQuery, ListPage, ListQuery, Origin, OriginContent, OriginCopyReceipt,
    OriginError, OriginFuture, OriginMetrics, OriginObject, OriginUploadRef, OriginWriteReceipt,
};
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use http::HeaderMap;
use mlgw_common::time::sleep;
use mlgw_formats::schema::{ObjectVersion, Pair};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// ETag of a completed upload.
pub(super) const UPLOAD_ETAG: &str = "bb-5";

/// Clones share what was recorded.
#[derive(Clone)]
pub(super) struct TestOrigin {
    /// The object under every key.
    pub(super) object: ObjectVersion,
    /// Length of a completed upload.
    pub(super) completed_bytes: u64,
    /// Answer to the request that completes an upload.
    pub(super) completion: Result<(), OriginError>,
    /// Part whose copy is refused, because the source has changed.
    pub(super) changes_at: u32,
    /// Time until a write, a new upload, a copied part or an abort is answered.
    pub(super) answers_after: Duration,
    /// Time until a completion is answered.
    pub(super) completes_after: Duration,
    /// Requests and their headers, except for writes.
    pub(super) calls: Arc<Mutex<Vec<(String, HeaderMap)>>>,
    /// Number of writes whose body was read.
    pub(super) bodies: Arc<AtomicUsize>,
    /// Body of the last write that was answered before it was read: that of the key `early` or `refused`.
    pub(super) unread: Arc<Mutex<Option<OriginContent>>>,
}

impl Default for TestOrigin {
    fn default() -> Self {
        Self {
            object: ObjectVersion::default(),
            completed_bytes: 0,
            completion: Ok(()),
            changes_at: 0,
            answers_after: Duration::ZERO,
            completes_after: Duration::ZERO,
            calls: Arc::default(),
            bodies: Arc::default(),
            unread: Arc::default(),
        }
    }
}

impl TestOrigin {
    fn record(&self, call: impl Into<String>, headers: &HeaderMap) {
        self.calls.lock().push((call.into(), headers.clone()));
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.calls.lock().iter().map(|(name, _)| name.clone()).collect()
    }

    /// A header of the request `name`.
    pub(super) fn header(&self, name: &str, header: &str) -> Option<String> {
        let calls = self.calls.lock();
        let (_, headers) = calls.iter().find(|(call, _)| call == name).expect("the request was sent");
        headers.get(header).map(|value| value.to_str().unwrap().to_owned())
    }

    fn is_completed(&self) -> bool {
        self.calls.lock().iter().any(|(name, _)| name.starts_with("complete"))
    }
}

impl Origin for TestOrigin {
    fn list<'a>(&'a self, _query: &'a ListQuery) -> OriginFuture<'a, ListPage> {
        async { Ok(ListPage::default()) }.boxed()
    }

    fn head<'a>(&'a self, key: &'a str) -> OriginFuture<'a, ObjectVersion> {
        self.record(format!("head {key}"), &HeaderMap::new());
        let mut object = self.object.clone();
        if self.is_completed() {
            (object.size, object.etag) = (self.completed_bytes, UPLOAD_ETAG.to_owned());
        }
        async move { Ok(object) }.boxed()
    }

    fn get<'a>(&'a self, _key: &'a str, _query: &'a GetQuery) -> OriginFuture<'a, OriginObject> {
        async { Err(OriginError::NoSuchKey) }.boxed()
    }

    fn name(&self) -> &'static str {
        "test"
    }

    fn metrics(&self) -> OriginMetrics {
        OriginMetrics::default()
    }

    fn put<'a>(
        &'a self,
        key: &'a str,
        _headers: &'a HeaderMap,
        content: OriginContent,
    ) -> OriginFuture<'a, OriginWriteReceipt> {
        async move {
            let early = match key {
                "early" => Some(Ok(OriginWriteReceipt::default())),
                "refused" => Some(Err(OriginError::Denied("no".to_owned()))),
                _ => None,
            };
            if let Some(answer) = early {
                *self.unread.lock() = Some(content);
                return answer;
            }
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

    fn copy<'a>(
        &'a self,
        _key: &'a str,
        _source: &'a str,
        headers: &'a HeaderMap,
    ) -> OriginFuture<'a, OriginCopyReceipt> {
        self.record("copy", headers);
        async { Ok(OriginCopyReceipt { etag: "aa".to_owned(), ..OriginCopyReceipt::default() }) }.boxed()
    }

    fn tags<'a>(&'a self, _key: &'a str) -> OriginFuture<'a, Vec<Pair>> {
        self.record("tags", &HeaderMap::new());
        async { Ok(vec![Pair::new("a b", "c&d")]) }.boxed()
    }

    fn create_upload<'a>(
        &'a self,
        _key: &'a str,
        headers: &'a HeaderMap,
    ) -> OriginFuture<'a, CreatedOriginUpload> {
        async move {
            self.record("create", headers);
            sleep(self.answers_after).await;
            Ok(CreatedOriginUpload { id: "u".to_owned(), ..CreatedOriginUpload::default() })
        }
        .boxed()
    }

    fn copy_part<'a>(
        &'a self,
        _upload: OriginUploadRef<'a>,
        number: u32,
        _source: &'a str,
        headers: &'a HeaderMap,
    ) -> OriginFuture<'a, OriginCopyReceipt> {
        async move {
            self.record(format!("part {number}"), headers);
            sleep(self.answers_after).await;
            match number == self.changes_at {
                true => Err(OriginError::Changed),
                false => Ok(OriginCopyReceipt { etag: number.to_string(), ..Default::default() }),
            }
        }
        .boxed()
    }

    fn complete<'a>(
        &'a self,
        _upload: OriginUploadRef<'a>,
        headers: &'a HeaderMap,
        document: Bytes,
    ) -> OriginFuture<'a, OriginCopyReceipt> {
        let parts = String::from_utf8(document.to_vec()).unwrap().matches("<PartNumber>").count();
        async move {
            self.record(format!("complete {parts}"), headers);
            sleep(self.completes_after).await;
            self.completion.clone()?;
            Ok(OriginCopyReceipt { etag: UPLOAD_ETAG.to_owned(), ..OriginCopyReceipt::default() })
        }
        .boxed()
    }

    fn abort<'a>(&'a self, _upload: OriginUploadRef<'a>) -> OriginFuture<'a, ()> {
        async move {
            self.record("abort", &HeaderMap::new());
            sleep(self.answers_after).await;
            Ok(())
        }
        .boxed()
    }
}
