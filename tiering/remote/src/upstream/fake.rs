//! In-memory store for tests of this package and of those above it. It implements S3 below the HTTP client
//! and fails as the test specifies.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::response::Parts;
use http::{Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::operator::connect;
use super::wire::{RequestSender, ResponseBody};
use super::{
    BucketAddressing, CredentialSource, EtagTrust, Upstream, UpstreamKind, UpstreamSettings, UpstreamTuning,
};
use mlgw_common::Secret;
use std::time::Duration;

/// Smallest part that opendal sends to S3.
pub(super) const PART: u64 = 5 << 20;
pub(super) const SECRET: &str = "wJalrXUtnFEMI-hush";

/// Tuning without waits between retries.
pub(super) const TUNING: UpstreamTuning = UpstreamTuning {
    part_bytes: PART,
    concurrent_parts: 4,
    retry_first: Duration::ZERO,
    retry_max: Duration::ZERO,
    retries: 3,
};

pub(super) fn settings() -> UpstreamSettings {
    UpstreamSettings {
        name: "lake".to_owned(),
        kind: UpstreamKind::S3,
        endpoint: Some("http://store.invalid".to_owned()),
        bucket: "bucket".to_owned(),
        prefix: "pre/".to_owned(),
        region: "us-east-1".to_owned(),
        addressing: BucketAddressing::Auto,
        credentials: CredentialSource::Static {
            access_key: "AKIAEXAMPLE".to_owned(),
            secret: Secret::new(SECRET),
            session_token: None,
        },
        ca_file: None,
        proxy: None,
        encrypt: false,
        bytes_per_second: 0,
        persist_bytes_per_second: 0,
        etag: EtagTrust::Auto,
        requests_per_second: 0,
        timeout: Duration::from_secs(30),
    }
}

/// Creates an upstream whose requests go to `store`.
pub(super) fn upstream_with(settings: &UpstreamSettings, store: &FakeStore) -> Upstream {
    let connected = connect(settings).expect("valid settings");
    Upstream::with_carrier(settings, connected, TUNING, store.clone())
}

/// Returns the upstream "lake", whose requests go to `store`.
///
/// # Panics
/// Never: its settings are right.
#[must_use]
pub fn lake(store: &FakeStore) -> Upstream {
    upstream_with(&settings(), store)
}

/// Returns the upstream "lake" like [`lake`], with encryption.
///
/// # Panics
/// Never: its settings are right.
#[must_use]
pub fn encrypting_lake(store: &FakeStore) -> Upstream {
    upstream_with(&UpstreamSettings { encrypt: true, ..settings() }, store)
}

/// Kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the operations of S3")]
pub enum FakeS3Call {
    Put,
    CreateUpload,
    /// A part of an upload.
    Part(u32),
    Complete,
    Abort,
    Get,
    Head,
    List,
    Delete,
}

/// Injected effect on a request.
#[derive(Clone, Copy, Debug)]
pub enum FakeS3Effect {
    /// Answered with this status and code, and not executed.
    Status(u16, &'static str),
    /// The connection breaks before the request is executed.
    Break,
    /// The request is executed, and then the connection breaks.
    BreakAfter,
    /// The request is never answered.
    Hang,
    /// The answer stops after this many bytes and does not end.
    Pause(usize),
    /// The answer ends after this many bytes as if it were complete.
    Short(usize),
    /// The requested range is ignored.
    IgnoreRange,
    /// A bit of the received body is flipped.
    Flip,
    /// Answered as if it was executed, and not executed.
    Discard,
}

#[derive(Default)]
struct FakeS3State {
    objects: BTreeMap<String, Vec<u8>>,
    uploads: BTreeMap<String, (String, BTreeMap<u32, Bytes>)>,
    created_uploads: u64,
    /// Injected effects with the number of calls that they still apply to.
    faults: Vec<(FakeS3Call, usize, FakeS3Effect)>,
    log: Vec<FakeS3Call>,
    ranges: Vec<(usize, usize)>,
    in_flight: usize,
    in_flight_max: usize,
    /// Pieces of answers that were not read.
    unread_pieces: usize,
    /// True if the conditions of writes are ignored.
    ignores_conditions: bool,
}

/// Fake store; clones share their state.
#[derive(Clone, Default)]
pub struct FakeStore {
    state: Arc<Mutex<FakeS3State>>,
    called: Arc<Notify>,
}

impl FakeStore {
    /// Applies `effect` to the next `times` calls of this kind.
    pub fn fail(&self, call: FakeS3Call, times: usize, effect: FakeS3Effect) {
        self.state.lock().faults.push((call, times, effect));
    }

    /// Removes all injected effects.
    pub fn heal(&self) {
        self.state.lock().faults.clear();
    }

    /// Returns the number of calls of this kind.
    #[must_use]
    pub fn calls(&self, call: FakeS3Call) -> usize {
        self.state.lock().log.iter().filter(|of| **of == call).count()
    }

    /// Clears the recorded calls and ranges.
    pub fn forget_calls(&self) {
        let mut state = self.state.lock();
        state.log.clear();
        state.ranges.clear();
    }

    /// Returns the ranges that were read.
    #[must_use]
    pub fn ranges(&self) -> Vec<(usize, usize)> {
        self.state.lock().ranges.clone()
    }

    /// Ignores the conditions of writes from now on.
    #[cfg(test)]
    pub(super) fn ignore_conditions(&self) {
        self.state.lock().ignores_conditions = true;
    }

    /// Removes an object.
    #[cfg(test)]
    pub(super) fn remove_object(&self, name: &str) {
        self.state.lock().objects.remove(name);
    }

    /// Returns the names of the objects.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.state.lock().objects.keys().cloned().collect()
    }

    /// Returns the bytes of an object.
    #[must_use]
    pub fn object(&self, name: &str) -> Option<Vec<u8>> {
        self.state.lock().objects.get(name).cloned()
    }

    /// Replaces the bytes of an object.
    pub fn set_object(&self, name: &str, bytes: Vec<u8>) {
        self.state.lock().objects.insert(name.to_owned(), bytes);
    }

    /// Returns the number of uploads that were neither completed nor aborted.
    #[must_use]
    pub fn open_uploads(&self) -> usize {
        self.state.lock().uploads.len()
    }

    /// Returns the number of pieces of answers that were not read.
    #[cfg(test)]
    pub(super) fn unread_pieces(&self) -> usize {
        self.state.lock().unread_pieces
    }

    /// Returns the maximum number of concurrent requests.
    #[cfg(test)]
    pub(super) fn in_flight_max(&self) -> usize {
        self.state.lock().in_flight_max
    }

    /// Waits until there were `times` calls of this kind.
    pub async fn wait_for(&self, call: FakeS3Call, times: usize) {
        while self.calls(call) < times {
            self.called.notified().await;
        }
    }

    fn record_call(&self, call: FakeS3Call) -> Option<FakeS3Effect> {
        let mut state = self.state.lock();
        state.log.push(call);
        let fault = state.faults.iter_mut().find(|(of, times, _)| *of == call && *times > 0);
        let effect = fault.map(|(_, times, effect)| {
            *times -= 1;
            *effect
        });
        drop(state);
        self.called.notify_one();
        effect
    }
}

/// Counts a request as in flight until it is dropped.
struct InFlightCount(FakeStore);

impl InFlightCount {
    fn new(store: &FakeStore) -> Self {
        let mut state = store.state.lock();
        state.in_flight += 1;
        state.in_flight_max = state.in_flight_max.max(state.in_flight);
        drop(state);
        Self(store.clone())
    }
}

impl Drop for InFlightCount {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        assert!(state.in_flight > 0, "a request that ends is in flight");
        state.in_flight -= 1;
    }
}

/// Maximum length of a piece of an answer.
const PIECE_BYTES: usize = 100_000;

/// Unread rest of an answer.
pub(super) struct FakeBody {
    bytes: Bytes,
    pauses: bool,
    /// Store that counts the pieces that are not read.
    store: Option<FakeStore>,
}

impl Drop for FakeBody {
    fn drop(&mut self) {
        if let Some(store) = &self.store {
            store.state.lock().unread_pieces += self.bytes.len().div_ceil(PIECE_BYTES);
        }
    }
}

impl ResponseBody for FakeBody {
    async fn piece(&mut self) -> Result<Option<Bytes>, String> {
        if self.bytes.is_empty() {
            if self.pauses {
                std::future::pending::<()>().await;
            }
            return Ok(None);
        }
        let piece = self.bytes.len().min(PIECE_BYTES);
        Ok(Some(self.bytes.split_to(piece)))
    }
}

impl RequestSender for FakeStore {
    async fn send(&self, request: Request<Bytes>) -> Result<(Parts, impl ResponseBody), String> {
        let _under_way = InFlightCount::new(self);
        let mut parsed = FakeS3Request::of(&request);
        let effect = self.record_call(parsed.call);
        // Yields, so that as many requests as the gate admits are in flight at the same time.
        tokio::task::yield_now().await;
        match effect {
            Some(FakeS3Effect::Status(status, code)) => return Ok(answer(status, error_body(code))),
            Some(FakeS3Effect::Break) => return Err("connection reset".to_owned()),
            Some(FakeS3Effect::Hang) => return std::future::pending().await,
            Some(FakeS3Effect::Discard) => return Ok(answer(200, complete_body())),
            _ => {}
        }
        let mut body = request.into_body();
        if matches!(effect, Some(FakeS3Effect::Flip)) {
            let mut bad = body.to_vec();
            let at = bad.len() / 2;
            bad[at] ^= 1;
            body = bad.into();
        }
        parsed.ignores_range = matches!(effect, Some(FakeS3Effect::IgnoreRange));
        let (mut head, mut body) = self.state.lock().answer(&parsed, body);
        body.store = Some(self.clone());
        match effect {
            Some(FakeS3Effect::BreakAfter) => return Err("connection reset".to_owned()),
            Some(FakeS3Effect::Pause(bytes)) => {
                body.bytes.truncate(bytes);
                body.pauses = true;
            }
            Some(FakeS3Effect::Short(bytes)) => {
                body.bytes.truncate(bytes);
                head.headers.insert("content-length", body.bytes.len().into());
            }
            _ => {}
        }
        Ok((head, body))
    }
}

/// Parsed request.
struct FakeS3Request {
    call: FakeS3Call,
    name: String,
    upload: String,
    prefix: String,
    range: Option<(usize, usize)>,
    /// True if the whole object is returned instead of the range.
    ignores_range: bool,
    /// ETag that the object must have.
    if_match: Option<String>,
    /// True if the object must not exist.
    if_none_match: bool,
}

impl FakeS3Request {
    fn of(request: &Request<Bytes>) -> Self {
        let uri = request.uri();
        let name = uri.path().trim_start_matches("/bucket").trim_start_matches('/').to_owned();
        let query: BTreeMap<&str, &str> = uri
            .query()
            .unwrap_or_default()
            .split('&')
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .collect();
        let has = |name| query.contains_key(name);
        let part = || query["partNumber"].parse().expect("a part's number");
        let call = match *request.method() {
            Method::PUT if has("partNumber") => FakeS3Call::Part(part()),
            Method::PUT => FakeS3Call::Put,
            Method::POST if has("uploads") => FakeS3Call::CreateUpload,
            Method::POST => FakeS3Call::Complete,
            Method::DELETE if has("uploadId") => FakeS3Call::Abort,
            Method::DELETE => FakeS3Call::Delete,
            Method::HEAD => FakeS3Call::Head,
            Method::GET if has("list-type") => FakeS3Call::List,
            Method::GET => FakeS3Call::Get,
            ref other => panic!("{other} {uri}"),
        };
        let range = request.headers().get("range").map(|range| {
            let range = range.to_str().expect("text").trim_start_matches("bytes=");
            let (from, to) = range.split_once('-').expect("a range");
            (from.parse().expect("a number"), to.parse().expect("a number"))
        });
        let of = |name| query.get(name).map_or(String::new(), |value| value.replace("%2F", "/"));
        let header = |name| request.headers().get(name).map(|value| value.to_str().expect("text").to_owned());
        let (if_match, if_none_match) = (header("if-match"), header("if-none-match").is_some());
        Self {
            call,
            name,
            upload: of("uploadId"),
            prefix: of("prefix"),
            range,
            ignores_range: false,
            if_match,
            if_none_match,
        }
    }
}

impl FakeS3State {
    fn answer(&mut self, request: &FakeS3Request, body: Bytes) -> (Parts, FakeBody) {
        match request.call {
            FakeS3Call::Put if !self.conditions_hold(request) => {
                answer(412, error_body("PreconditionFailed"))
            }
            FakeS3Call::Put => {
                self.objects.insert(request.name.clone(), body.into());
                answer(200, Bytes::new())
            }
            FakeS3Call::CreateUpload => {
                self.created_uploads += 1;
                let id = format!("upload-{}", self.created_uploads);
                self.uploads.insert(id.clone(), (request.name.clone(), BTreeMap::new()));
                let document = format!(
                    "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
                );
                answer(200, document.into())
            }
            FakeS3Call::Part(number) => match self.uploads.get_mut(&request.upload) {
                Some((_, parts)) => {
                    parts.insert(number, body);
                    answer(200, Bytes::new())
                }
                None => answer(404, error_body("NoSuchUpload")),
            },
            FakeS3Call::Complete => match self.uploads.remove(&request.upload) {
                Some((name, parts)) => {
                    self.objects.insert(name, parts.into_values().flatten().collect());
                    answer(200, complete_body())
                }
                None => answer(404, error_body("NoSuchUpload")),
            },
            FakeS3Call::Abort => match self.uploads.remove(&request.upload) {
                Some(_) => answer(204, Bytes::new()),
                None => answer(404, error_body("NoSuchUpload")),
            },
            FakeS3Call::Get => self.get(request),
            FakeS3Call::Head => match self.objects.get(&request.name) {
                Some(object) => {
                    let (mut head, body) = answer(200, Bytes::new());
                    head.headers.insert("content-length", object.len().into());
                    head.headers.insert("etag", etag(object).parse().expect("a value"));
                    (head, body)
                }
                None => answer(404, Bytes::new()),
            },
            FakeS3Call::List => self.list(&request.prefix),
            FakeS3Call::Delete => {
                self.objects.remove(&request.name);
                answer(204, Bytes::new())
            }
        }
    }

    /// True if the conditions of a write hold.
    fn conditions_hold(&self, request: &FakeS3Request) -> bool {
        let found = self.objects.get(&request.name).map(|object| etag(object));
        let matches = request.if_match.is_none() || request.if_match == found;
        self.ignores_conditions || (matches && !(request.if_none_match && found.is_some()))
    }

    fn get(&mut self, request: &FakeS3Request) -> (Parts, FakeBody) {
        let Some(object) = self.objects.get(&request.name) else {
            return answer(404, error_body("NoSuchKey"));
        };
        let (from, to) = request.range.unwrap_or((0, object.len() - 1));
        self.ranges.push((from, to));
        if from >= object.len() {
            return answer(416, error_body("InvalidRange"));
        }
        if request.ignores_range {
            return answer(200, Bytes::copy_from_slice(object));
        }
        answer(206, Bytes::copy_from_slice(&object[from..(to + 1).min(object.len())]))
    }

    fn list(&self, prefix: &str) -> (Parts, FakeBody) {
        let rows: String = self
            .objects
            .iter()
            .filter(|(name, _)| name.starts_with(prefix))
            .map(|(name, object)| {
                format!(
                    "<Contents><Key>{name}</Key><Size>{}</Size><ETag>\"e\"</ETag>\
                     <LastModified>2026-11-22T00:00:00.000Z</LastModified></Contents>",
                    object.len()
                )
            })
            .collect();
        let document = format!("<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>");
        answer(200, document.into())
    }
}

fn etag(object: &[u8]) -> String {
    format!("\"{:08x}\"", mlgw_common::checksum::crc32c(object))
}

fn answer(status: u16, body: Bytes) -> (Parts, FakeBody) {
    let mut answer = Response::new(());
    *answer.status_mut() = StatusCode::from_u16(status).expect("a status");
    answer.headers_mut().insert("content-length", body.len().into());
    answer.headers_mut().insert("etag", "\"e\"".parse().expect("a value"));
    (answer.into_parts().0, FakeBody { bytes: body, pauses: false, store: None })
}

fn error_body(code: &str) -> Bytes {
    format!("<Error><Code>{code}</Code><Message>said</Message></Error>").into()
}

fn complete_body() -> Bytes {
    Bytes::from("<CompleteMultipartUploadResult><ETag>\"e-2\"</ETag></CompleteMultipartUploadResult>")
}
