//! Origin in memory that records requests and fails on demand.

use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use http::HeaderMap;
use mlgw_formats::schema::ObjectVersion;
use mlgw_remote::origin::{
    GetQuery, ListPage, ListQuery, ObjectPart, Origin, OriginContent, OriginError, OriginFuture,
    OriginMetrics, OriginObject, OriginWriteReceipt,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Length of the pieces of its responses.
const PIECE_BYTES: usize = 300_000;

/// Injected fault of a request.
pub(super) enum MemoryOriginFault {
    /// The request fails with this error.
    Fail(OriginError),
    /// The response breaks off after this many bytes.
    Cut(usize),
    /// The request is executed, and fails with this error.
    DoneAndFail(OriginError),
    /// The request is executed, and answered when there is a permit.
    Hold(Arc<Semaphore>),
}

#[derive(Default)]
pub(super) struct MemoryOrigin {
    pub(super) objects: Mutex<BTreeMap<String, Bytes>>,
    /// Keys whose bytes were requested.
    keys: Mutex<Vec<String>>,
    /// Parts that were requested, and `head`.
    pub(super) log: Mutex<Vec<String>>,
    pub(super) faults: Mutex<VecDeque<MemoryOriginFault>>,
    /// Successive answers to listings.
    pub(super) pages: Mutex<VecDeque<ListPage>>,
}

impl MemoryOrigin {
    pub(super) fn put(&self, key: &str, bytes: Vec<u8>) {
        self.objects.lock().insert(key.into(), bytes.into());
    }

    pub(super) fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock())
    }

    /// Returns the keys whose bytes were requested since the last call.
    pub(super) fn take_keys(&self) -> Vec<String> {
        std::mem::take(&mut self.keys.lock())
    }

    /// Returns the same keys without clearing them.
    pub(super) fn keys_so_far(&self) -> Vec<String> {
        self.keys.lock().clone()
    }

    pub(super) fn fail(&self, fault: MemoryOriginFault) {
        self.faults.lock().push_back(fault);
    }

    fn object(&self, key: &str) -> Result<(ObjectVersion, Bytes), OriginError> {
        let bytes = self.objects.lock().get(key).cloned().ok_or(OriginError::NoSuchKey)?;
        let etag = format!("{:08x}-{}", mlgw_common::checksum::crc32c(&bytes), bytes.len());
        let object = ObjectVersion { etag, size: bytes.len() as u64, ..ObjectVersion::default() };
        Ok((object, bytes))
    }

    async fn answer(&self, key: &str, query: &GetQuery) -> Result<OriginObject, OriginError> {
        let fault = self.faults.lock().pop_front();
        if let Some(MemoryOriginFault::Hold(until)) = fault {
            let answer = self.answer_now(key, query, None);
            until.acquire().await.unwrap().forget();
            return answer;
        }
        self.answer_now(key, query, fault)
    }

    /// Executes a write with the next fault.
    async fn write(
        &self,
        done: impl FnOnce(&mut BTreeMap<String, Bytes>),
    ) -> Result<OriginWriteReceipt, OriginError> {
        let fault = self.faults.lock().pop_front();
        if let Some(MemoryOriginFault::Fail(error)) = fault {
            return Err(error);
        }
        done(&mut self.objects.lock());
        match fault {
            Some(MemoryOriginFault::DoneAndFail(error)) => Err(error),
            Some(MemoryOriginFault::Hold(until)) => {
                until.acquire().await.unwrap().forget();
                Ok(OriginWriteReceipt::default())
            }
            _ => Ok(OriginWriteReceipt::default()),
        }
    }

    fn answer_now(
        &self,
        key: &str,
        query: &GetQuery,
        fault: Option<MemoryOriginFault>,
    ) -> Result<OriginObject, OriginError> {
        self.keys.lock().push(key.to_owned());
        self.log.lock().push(match query.part {
            ObjectPart::Whole => "whole".into(),
            ObjectPart::Range { first, end } => format!("{first}-{end}"),
            ObjectPart::From(first) => format!("{first}-"),
            ObjectPart::Last(bytes) => format!("-{bytes}"),
        });
        if let Some(MemoryOriginFault::Fail(error)) = fault {
            return Err(error);
        }
        let (object, bytes) = self.object(key)?;
        if query.if_none_match.as_ref() == Some(&object.etag) {
            return Err(OriginError::NotModified(Some(object.modified_ms)));
        }
        if query.if_match.as_ref().is_some_and(|etag| *etag != object.etag) {
            return Err(OriginError::Changed);
        }
        let range = match query.part {
            ObjectPart::Whole => 0..object.size,
            ObjectPart::Range { first, end } => first..end.min(object.size),
            ObjectPart::From(first) => first..object.size,
            ObjectPart::Last(last) => object.size.saturating_sub(last)..object.size,
        };
        if query.part != ObjectPart::Whole && range.start >= range.end {
            return Err(OriginError::OutOfRange(Some(object.size)));
        }
        let mut pieces: Vec<Result<Bytes, OriginError>> = bytes[range.start as usize..range.end as usize]
            .chunks(PIECE_BYTES)
            .map(|piece| Ok(Bytes::copy_from_slice(piece)))
            .collect();
        if let Some(MemoryOriginFault::Cut(whole)) = fault {
            pieces.truncate(whole / PIECE_BYTES);
            pieces.push(Err(OriginError::Unreachable("cut".into())));
        }
        // Yields between pieces, so that readers and fetches interleave.
        let body = stream::iter(pieces).then(|piece| async {
            tokio::task::yield_now().await;
            piece
        });
        Ok(OriginObject { object, is_tagged: false, range, body: body.boxed() })
    }
}

impl Origin for MemoryOrigin {
    fn list<'a>(&'a self, query: &'a ListQuery) -> OriginFuture<'a, ListPage> {
        self.log.lock().push(format!("list {}", query.token.as_deref().unwrap_or_default()));
        let page = self.pages.lock().pop_front().unwrap_or_default();
        Box::pin(async { Ok(page) })
    }

    fn head<'a>(&'a self, key: &'a str) -> OriginFuture<'a, ObjectVersion> {
        Box::pin(async move {
            self.log.lock().push("head".into());
            match self.faults.lock().pop_front() {
                Some(MemoryOriginFault::Fail(error)) => Err(error),
                _ => self.object(key).map(|(object, _)| object),
            }
        })
    }

    fn get<'a>(&'a self, key: &'a str, query: &'a GetQuery) -> OriginFuture<'a, OriginObject> {
        Box::pin(self.answer(key, query))
    }

    fn put<'a>(
        &'a self,
        key: &'a str,
        _: &'a HeaderMap,
        content: OriginContent,
    ) -> OriginFuture<'a, OriginWriteReceipt> {
        let OriginContent::Whole(bytes) = content else { panic!("tests write bodies in memory") };
        Box::pin(self.write(move |objects| drop(objects.insert(key.to_owned(), bytes))))
    }

    fn delete<'a>(&'a self, key: &'a str, _: &'a HeaderMap) -> OriginFuture<'a, OriginWriteReceipt> {
        Box::pin(self.write(move |objects| drop(objects.remove(key))))
    }

    fn name(&self) -> &str {
        "memory"
    }

    fn metrics(&self) -> OriginMetrics {
        OriginMetrics::default()
    }
}
