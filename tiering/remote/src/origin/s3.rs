//! Origin that is accessed by the S3 protocol.
//!
//! Reads are retried while that may help; each try is signed anew. A body that breaks off is an error for its
//! reader, because the reader knows which bytes it already has. Writes are retried only if their bytes are in
//! memory and a second execution does no harm. A write that was sent once and whose outcome is unknown is
//! left to the client.
//!
//! Behind a fence a write is retried only if it was certainly not executed: otherwise an earlier try may be
//! executed after a later one was answered, and after the fence has ended.

mod chunked;
mod credentials;
mod head;
mod outgoing;
mod refusal;
mod results;
mod sent_md5;
mod sign;
mod success;
mod transport;
mod uploads;
mod url;
mod write;
mod xml;

use super::metrics::OriginCounters;
use super::retry::{self, RetrySafety};
use super::{
    CreatedOriginUpload, GetQuery, ListPage, ListQuery, ObjectPart, Origin, OriginContent, OriginCopyReceipt,
    OriginDocument, OriginError, OriginFence, OriginFuture, OriginMetrics, OriginObject, OriginUploadRef,
    OriginWriteReceipt, PartPage, UploadPage, UploadsQuery,
};
use crate::upstream::{EtagTrust, UpstreamBudget, UpstreamSettings};
use backon::Retryable as _;
use bytes::Bytes;
use credentials::OriginCredentials;
use futures_util::{StreamExt as _, TryStreamExt as _};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use mlgw_carrier::Incoming;
use mlgw_common::Clock;
use mlgw_common::time::Instant;
use mlgw_formats::schema::{ObjectVersion, Pair};
use outgoing::OutgoingBody;
use refusal::error_of_response;
use sign::OriginSigner;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use transport::{OriginPatience, Transport, is_read};
use url::BucketUrl;

/// Bucket of an S3 upstream.
pub struct S3Origin {
    name: String,
    bucket: String,
    base: BucketUrl,
    signer: OriginSigner,
    transport: Transport,
    /// Interpretation of its ETags.
    trust: EtagTrust,
    clock: Arc<dyn Clock>,
    counts: Arc<OriginCounters>,
    /// Shared with other clients of the same store.
    budget: Arc<UpstreamBudget>,
}

impl S3Origin {
    /// Creates a client of the bucket of an upstream, limited by `budget`. Sends nothing. In a cluster it is
    /// for a [`FencedOrigin`](super::FencedOrigin) with the same `fence`.
    ///
    /// # Errors
    /// A description of the setting that is wrong.
    pub fn new(
        settings: &UpstreamSettings,
        budget: Arc<UpstreamBudget>,
        clock: Arc<dyn Clock>,
        fence: Option<&OriginFence>,
    ) -> Result<Self, String> {
        let of = |what: String| format!("upstream {:?}: {what}", settings.name);
        let credentials = OriginCredentials::load(&settings.credentials).map_err(of)?;
        Ok(Self {
            name: settings.name.clone(),
            bucket: settings.bucket.clone(),
            base: BucketUrl::from_settings(settings).map_err(of)?,
            signer: OriginSigner { credentials, region: settings.region.clone() },
            transport: Transport::new(settings, fence).map_err(of)?,
            trust: settings.etag,
            clock,
            counts: Arc::default(),
            budget,
        })
    }

    /// Sends a read, with retries.
    async fn send_read(
        &self,
        operation: &'static str,
        method: Method,
        url: &str,
        headers: &HeaderMap,
    ) -> Result<Response<Incoming>, OriginError> {
        let (retry_safety, patience, success) =
            (RetrySafety::Idempotent, OriginPatience::Usual, success::READ);
        let request = OriginRequest { operation, method, url, headers, retry_safety, patience, success };
        self.send_with_retries(&request, OutgoingBody::empty).await
    }

    /// Sends a request with retries, as far as its retry safety allows. `outgoing` creates the body of each
    /// try.
    async fn send_with_retries(
        &self,
        request: &OriginRequest<'_>,
        outgoing: impl Fn() -> OutgoingBody,
    ) -> Result<Response<Incoming>, OriginError> {
        let mut may_be_done = false;
        let answer = (|| self.send_once(request, outgoing()))
            .retry(retry::WAITS)
            .when(|error| self.may_retry(request, error))
            .adjust(|error, longest| retry::jittered(error, longest, random_fraction()))
            .notify(|error, wait| {
                may_be_done |= !error.is_undone();
                tracing::debug!(origin = %self.name, %error, ?wait, "retrying a request");
            })
            .await;
        answer.map_err(|error| if may_be_done { request.error_after_doubt(error) } else { error })
    }

    fn may_retry(&self, request: &OriginRequest<'_>, error: &OriginError) -> bool {
        let is_guarded = self.transport.is_fenced() && !request.is_read();
        let safety = if is_guarded { RetrySafety::IfUndone } else { request.retry_safety };
        safety.allows(error)
    }

    async fn send_once(
        &self,
        request: &OriginRequest<'_>,
        outgoing: OutgoingBody,
    ) -> Result<Response<Incoming>, OriginError> {
        let turn = outgoing.progress.clone();
        // At least one byte is charged, so that the request waits for bytes that others received without
        // waiting.
        self.budget.wait_for_request(1).await;
        let begun = Instant::now();
        let answer = self.exchange(request, outgoing).await;
        self.counts.add(request.operation, answer.as_ref().err(), begun.elapsed());
        self.counts.sent_bytes.fetch_add(turn.sent_bytes(), Relaxed);
        self.budget.charge(turn.sent_bytes());
        answer
    }

    async fn exchange(
        &self,
        origin_request: &OriginRequest<'_>,
        outgoing: OutgoingBody,
    ) -> Result<Response<Incoming>, OriginError> {
        let invalid = |error: String| OriginError::InvalidResponse(error);
        let OutgoingBody { body, headers, signable, progress: turn } = outgoing;
        let request =
            Request::builder().method(origin_request.method.clone()).uri(origin_request.url).body(body);
        let mut request = request.map_err(|error| invalid(error.to_string()))?;
        *request.headers_mut() = origin_request.headers.clone();
        outgoing::merge_headers(headers, request.headers_mut());
        let host = HeaderValue::from_str(&self.base.authority).map_err(|error| invalid(error.to_string()))?;
        request.headers_mut().insert(header::HOST, host);
        self.signer.sign(&mut request, signable, self.clock.now()).await?;
        let answer = self.transport.send(request, &turn, origin_request.patience).await?;
        if answer.status().is_success() {
            return success::check_status(answer, origin_request.success);
        }
        let (head, body) = answer.into_parts();
        // An error whose document cannot be read is still reported, by its status.
        let document = match origin_request.method == Method::HEAD {
            true => Bytes::new(),
            false => self.transport.document(body, xml::DOCUMENT_BYTES_MAX).await.unwrap_or_default(),
        };
        Err(error_of_response(head.status, &head.headers, &document))
    }

    async fn list(&self, query: &ListQuery) -> Result<ListPage, OriginError> {
        let max_keys = query.max_keys.to_string();
        let mut pairs = vec![("list-type", "2"), ("encoding-type", "url"), ("max-keys", max_keys.as_str())];
        let filled =
            [("prefix", &query.prefix), ("delimiter", &query.delimiter), ("start-after", &query.start_after)];
        pairs.extend(
            filled.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| (*name, value.as_str())),
        );
        pairs.extend(query.token.as_deref().map(|token| ("continuation-token", token)));
        let url = self.base.bucket(&pairs);
        let document = || async {
            match self.send_read("list", Method::GET, &url, &HeaderMap::new()).await {
                Ok(answer) => {
                    self.transport.document(answer.into_body(), xml::DOCUMENT_BYTES_MAX).await.map(Ok)
                }
                // It was retried already.
                Err(error) => Ok(Err(error)),
            }
        };
        let document = document
            .retry(retry::WAITS)
            .adjust(|error, longest| retry::jittered(error, longest, random_fraction()))
            .await??;
        self.budget.charge(document.len() as u64);
        xml::parse_list_page(&document)?.within(query)
    }

    async fn head(&self, key: &str) -> Result<ObjectVersion, OriginError> {
        let headers = HeaderMap::from_iter([checksum_mode()]);
        let answer = self.send_read("head", Method::HEAD, &self.base.object(key), &headers).await?;
        head::object_and_range(answer.status(), answer.headers(), self.trust).map(|(object, _)| object)
    }

    async fn head_part(&self, key: &str, number: u32) -> Result<(ObjectVersion, Range<u64>), OriginError> {
        let url = self.base.object_with(key, &[("partNumber", number.to_string().as_str())]);
        let answer = self.send_read("head", Method::HEAD, &url, &HeaderMap::new()).await?;
        head::object_and_range(answer.status(), answer.headers(), self.trust)
    }

    async fn get(&self, key: &str, query: &GetQuery) -> Result<OriginObject, OriginError> {
        let headers = headers_of(query)?;
        let answer = self.send_read("get", Method::GET, &self.base.object(key), &headers).await?;
        let (object, range) = head::object_and_range(answer.status(), answer.headers(), self.trust)?;
        let is_tagged = object.tag_count > 0;
        let length = range.end - range.start;
        let (counts, budget) = (self.counts.clone(), self.budget.clone());
        let body = self.transport.body(answer.into_body(), length).and_then(move |piece| {
            counts.received_bytes.fetch_add(piece.len() as u64, Relaxed);
            let budget = budget.clone();
            async move {
                budget.wait_for_bytes(piece.len() as u64).await;
                Ok(piece)
            }
        });
        Ok(OriginObject { object, is_tagged, range, body: body.boxed() })
    }
}

/// Request without its body.
struct OriginRequest<'a> {
    /// Operation under which it is counted.
    operation: &'static str,
    method: Method,
    url: &'a str,
    headers: &'a HeaderMap,
    retry_safety: RetrySafety,
    patience: OriginPatience,
    /// Statuses that mean success.
    success: &'static [StatusCode],
}

impl OriginRequest<'_> {
    fn is_read(&self) -> bool {
        is_read(&self.method)
    }

    /// Returns the error of the last try, after an earlier try that may have been executed. If the request is
    /// a write, the error does not claim that the write had no effect.
    fn error_after_doubt(&self, last: OriginError) -> OriginError {
        match !self.is_read() && last.is_undone() {
            true => OriginError::ConnectionLost(format!(
                "an earlier attempt may have succeeded; last error: {last}"
            )),
            false => last,
        }
    }
}

impl Origin for S3Origin {
    fn list<'a>(&'a self, query: &'a ListQuery) -> OriginFuture<'a, ListPage> {
        Box::pin(self.list(query))
    }

    fn head<'a>(&'a self, key: &'a str) -> OriginFuture<'a, ObjectVersion> {
        Box::pin(self.head(key))
    }

    fn get<'a>(&'a self, key: &'a str, query: &'a GetQuery) -> OriginFuture<'a, OriginObject> {
        Box::pin(self.get(key, query))
    }

    fn head_part<'a>(&'a self, key: &'a str, number: u32) -> OriginFuture<'a, (ObjectVersion, Range<u64>)> {
        Box::pin(self.head_part(key, number))
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn metrics(&self) -> OriginMetrics {
        self.counts.metrics()
    }

    fn put<'a>(
        &'a self,
        key: &'a str,
        headers: &'a HeaderMap,
        content: OriginContent,
    ) -> OriginFuture<'a, OriginWriteReceipt> {
        Box::pin(self.put(key, headers, content))
    }

    fn delete<'a>(&'a self, key: &'a str, headers: &'a HeaderMap) -> OriginFuture<'a, OriginWriteReceipt> {
        Box::pin(self.delete(key, headers))
    }

    fn copy<'a>(
        &'a self,
        key: &'a str,
        source: &'a str,
        headers: &'a HeaderMap,
    ) -> OriginFuture<'a, OriginCopyReceipt> {
        Box::pin(self.copy(key, source, headers))
    }

    fn tags<'a>(&'a self, key: &'a str) -> OriginFuture<'a, Vec<Pair>> {
        Box::pin(self.tags(key))
    }

    fn set_tags<'a>(&'a self, key: &'a str, tags: &'a [Pair]) -> OriginFuture<'a, ()> {
        Box::pin(self.set_tags(key, tags))
    }

    fn attributes<'a>(&'a self, key: &'a str, headers: &'a HeaderMap) -> OriginFuture<'a, OriginDocument> {
        Box::pin(self.attributes(key, headers))
    }

    fn create_upload<'a>(
        &'a self,
        key: &'a str,
        headers: &'a HeaderMap,
    ) -> OriginFuture<'a, CreatedOriginUpload> {
        Box::pin(self.create_upload(key, headers))
    }

    fn put_part<'a>(
        &'a self,
        upload: OriginUploadRef<'a>,
        number: u32,
        headers: &'a HeaderMap,
        content: OriginContent,
    ) -> OriginFuture<'a, OriginWriteReceipt> {
        Box::pin(self.put_part(upload, number, headers, content))
    }

    fn copy_part<'a>(
        &'a self,
        upload: OriginUploadRef<'a>,
        number: u32,
        source: &'a str,
        headers: &'a HeaderMap,
    ) -> OriginFuture<'a, OriginCopyReceipt> {
        Box::pin(self.copy_part(upload, number, source, headers))
    }

    fn complete<'a>(
        &'a self,
        upload: OriginUploadRef<'a>,
        headers: &'a HeaderMap,
        document: Bytes,
    ) -> OriginFuture<'a, OriginCopyReceipt> {
        Box::pin(self.complete(upload, headers, document))
    }

    fn abort<'a>(&'a self, upload: OriginUploadRef<'a>) -> OriginFuture<'a, ()> {
        Box::pin(self.abort(upload))
    }

    fn list_parts<'a>(
        &'a self,
        upload: OriginUploadRef<'a>,
        after: u32,
        max: usize,
    ) -> OriginFuture<'a, PartPage> {
        Box::pin(self.list_parts(upload, after, max))
    }

    fn list_uploads<'a>(&'a self, query: &'a UploadsQuery) -> OriginFuture<'a, UploadPage> {
        Box::pin(self.list_uploads(query))
    }
}

fn checksum_mode() -> (header::HeaderName, HeaderValue) {
    (header::HeaderName::from_static("x-amz-checksum-mode"), HeaderValue::from_static("ENABLED"))
}

fn headers_of(query: &GetQuery) -> Result<HeaderMap, OriginError> {
    let range = match query.part {
        ObjectPart::Whole => None,
        ObjectPart::Range { first, end } => Some(format!("bytes={first}-{}", end.saturating_sub(1))),
        ObjectPart::From(first) => Some(format!("bytes={first}-")),
        ObjectPart::Last(bytes) => Some(format!("bytes=-{bytes}")),
    };
    // A weak ETag already has its `W/` prefix and quotes.
    let quoted = |etag: &String| match etag.starts_with("W/\"") {
        true => etag.clone(),
        false => format!("\"{etag}\""),
    };
    let lines = [
        (header::RANGE, range),
        (header::IF_MATCH, query.if_match.as_ref().map(quoted)),
        (header::IF_NONE_MATCH, query.if_none_match.as_ref().map(quoted)),
    ];
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        let Some(value) = value else { continue };
        let value =
            HeaderValue::from_str(&value).map_err(|error| OriginError::InvalidResponse(error.to_string()))?;
        headers.insert(name, value);
    }
    if query.part == ObjectPart::Whole {
        headers.extend([checksum_mode()].map(|(name, value)| (Some(name), value)));
    }
    Ok(headers)
}

/// Returns a random number from 0 to 1, so that waiting clients do not retry at the same moment.
fn random_fraction() -> f64 {
    let mut bytes = [0; 4];
    match getrandom::fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX),
        // Without random bytes all clients wait equally long, which does no harm.
        Err(_) => 0.5,
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use crate::upstream::{BucketAddressing, CredentialSource, UpstreamKind, UpstreamSettings};
    use std::time::Duration;

    /// Settings of an upstream at `endpoint`, for tests.
    pub(crate) fn settings(endpoint: &str) -> UpstreamSettings {
        UpstreamSettings {
            name: "lake".into(),
            kind: UpstreamKind::S3,
            endpoint: Some(endpoint.into()),
            bucket: "b".into(),
            prefix: String::new(),
            region: "eu-x".into(),
            addressing: BucketAddressing::Auto,
            credentials: CredentialSource::Anonymous,
            ca_file: None,
            proxy: None,
            encrypt: false,
            bytes_per_second: 0,
            requests_per_second: 0,
            persist_bytes_per_second: 0,
            etag: crate::upstream::EtagTrust::Auto,
            timeout: Duration::from_secs(5),
        }
    }
}

#[cfg(test)]
mod tests;
