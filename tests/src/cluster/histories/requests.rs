//! The requests of a history: each is sent once, through a node, and recorded with its outcome.
//!
//! A request that changes something and gets a 5xx, no response, or none in time has an unknown outcome. A
//! read of that kind is not recorded, nor is a 409 of a conditional write: neither changes or shows anything.
//! Every other response that no state of a key allows is recorded as a failure of the round.

use std::time::Duration;

use http::Method;
use mlgw_common::time::timeout;
use serde::Deserialize;

use super::recorder::{HistoryRecorder, KeySlot, ObjectName, StoredValue};
use super::register::{KeyAction, KeyCondition, KeyMoment, KeyOperation, KeyOutcome};
use crate::cluster::testbed::node_of;
use crate::s3::{CallFailure, S3ClientResponse, S3TestClient, encode, full_body};

/// Longest wait for a response. The request may be carried out later.
const RESPONSE_MAX: Duration = Duration::from_secs(5);

/// A client of a history, at one node.
pub(super) struct RecordedClient<'a> {
    pub(super) recorder: &'a HistoryRecorder,
    pub(super) number: usize,
    pub(super) node: usize,
    pub(super) client: S3TestClient,
}

/// An object and the slot of its key.
#[derive(Clone, Debug)]
pub(super) struct SlotObject {
    pub(super) slot: KeySlot,
    pub(super) name: ObjectName,
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestEnd {
    /// It has a certain outcome.
    Answered,
    /// There was no certain response.
    Unanswered,
}

/// The page of a listing, limited to what is read of it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListedPage {
    #[serde(default)]
    contents: Vec<ListedEntry>,
}

#[derive(Debug, Deserialize)]
struct ListedEntry {
    #[serde(rename = "Key")]
    key: String,
    #[serde(rename = "ETag")]
    etag: String,
}

/// An operation in progress.
struct BegunOperation {
    request: &'static str,
    action: KeyAction,
    begun: KeyMoment,
}

/// Length of a body from which on the node that answers has certainly stored it in a segment of its own.
const SEGMENT_BYTES_MIN: usize = 5_000;

/// Waits for a response, for a limited time.
async fn limited<T>(work: impl Future<Output = Result<T, CallFailure>>) -> Result<T, CallFailure> {
    let ended = timeout(RESPONSE_MAX, work).await;
    ended.unwrap_or_else(|_| Err(CallFailure::NoResponse("no response in time".to_owned())))
}

/// True if a failure leaves open what happened.
fn is_uncertain(failure: &CallFailure) -> bool {
    failure.status().is_none_or(|status| status >= 500)
}

/// True if a failure is the response for a key without an object. That of a HEAD has no document.
fn is_no_such_key(failure: &CallFailure, method: &Method) -> bool {
    let CallFailure::Refused { status, body } = failure else { return false };
    status.as_u16() == 404 && (*method == Method::HEAD || body.contains("<Code>NoSuchKey</Code>"))
}

impl RecordedClient<'_> {
    async fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, String)],
    ) -> Result<S3ClientResponse, CallFailure> {
        limited(self.client.call(method, path, headers, full_body(""))).await
    }

    /// True if the clock of the node was wrong, so that it refused the signature: nothing was done.
    fn is_refused_by_clock(&self, failure: &CallFailure) -> bool {
        let CallFailure::Refused { status, body } = failure else { return false };
        let is_named = body.is_empty() || body.contains("<Code>RequestTimeTooSkewed</Code>");
        status.as_u16() == 403 && is_named && self.recorder.have_clocks_jumped()
    }

    /// Creates the bucket of an object. Returns false if the outcome is not certain.
    pub(super) async fn create_bucket(&self, object: &SlotObject) -> bool {
        let created = self.client.create_bucket(&object.name.bucket);
        self.until_certain(object, created).await.is_some()
    }

    fn begin(&self, request: &'static str, action: KeyAction) -> BegunOperation {
        BegunOperation { request, action, begun: self.recorder.now() }
    }

    fn end(&self, name: &ObjectName, operation: BegunOperation, outcome: KeyOutcome) {
        let BegunOperation { request, action, begun } = operation;
        let ended = (outcome != KeyOutcome::Unknown).then(|| self.recorder.now());
        let (client, node) = (self.number, self.node);
        let recorded = KeyOperation { request, client, node, action, outcome, begun, ended };
        self.recorder.record(name, recorded);
    }

    fn fail(&self, request: &str, name: &ObjectName, failure: &str) {
        self.recorder.fail(format!("{request} {name} through node {}: {failure}", self.node));
    }

    /// GET or HEAD.
    pub(super) async fn read(&self, method: Method, object: &SlotObject) -> RequestEnd {
        let request = if method == Method::HEAD { "HEAD" } else { "GET" };
        let name = &object.name;
        let operation = self.begin(request, KeyAction::Read(KeyCondition::Always));
        let failure = match self.call(method.clone(), &name.path(), &[]).await {
            Ok(answer) => {
                let value = match method {
                    Method::HEAD => self.recorder.value_of(&answer.etag()),
                    _ => self.recorder.value_of_body(&answer.etag(), &answer.body),
                };
                match value {
                    Ok(value) => {
                        self.end(name, operation, KeyOutcome::Present(value.id));
                        self.recorder.saw(object.slot, name, Some(value));
                        return RequestEnd::Answered;
                    }
                    Err(failure) => failure,
                }
            }
            Err(failure) if is_no_such_key(&failure, &method) => {
                self.end(name, operation, KeyOutcome::Absent);
                self.recorder.saw(object.slot, name, None);
                return RequestEnd::Answered;
            }
            Err(failure) if is_uncertain(&failure) || self.is_refused_by_clock(&failure) => {
                return RequestEnd::Unanswered;
            }
            Err(failure) => format!("{failure:?}"),
        };
        self.fail(request, name, &failure);
        RequestEnd::Answered
    }

    /// LIST with the key as its prefix.
    pub(super) async fn list(&self, name: &ObjectName) -> RequestEnd {
        let operation = self.begin("LIST", KeyAction::Read(KeyCondition::Always));
        let path = format!("/{}?list-type=2&max-keys=10&prefix={}", name.bucket, encode(&name.key));
        let page = match self.call(Method::GET, &path, &[]).await {
            Ok(answer) => listed_page(&answer),
            Err(failure) if is_uncertain(&failure) || self.is_refused_by_clock(&failure) => {
                return RequestEnd::Unanswered;
            }
            Err(failure) => Err(format!("{failure:?}")),
        };
        let outcome = page.and_then(|page| match page.contents.as_slice() {
            [] => Ok(KeyOutcome::Absent),
            [row] if row.key == name.key => {
                Ok(KeyOutcome::Present(self.recorder.value_of(row.etag.trim_matches('"'))?.id))
            }
            others => Err(format!("lists {others:?}")),
        });
        match outcome {
            Ok(outcome) => self.end(name, operation, outcome),
            Err(failure) => self.fail("LIST", name, &failure),
        }
        RequestEnd::Answered
    }

    /// PUT of a new value under a condition.
    pub(super) async fn put(
        &self,
        object: &SlotObject,
        value: StoredValue,
        condition: &WriteCondition,
    ) -> RequestEnd {
        let header = condition.header();
        let body = full_body(value.parts[0].bytes());
        let operation = self.begin("PUT", KeyAction::Write(value.id, condition.of_key()));
        let path = object.name.path();
        let put = self.client.call(Method::PUT, &path, header.as_slice(), body);
        let length = value.parts[0].length;
        let ended = limited(put).await.map(|answer| {
            if length >= SEGMENT_BYTES_MIN {
                self.recorder.stored_by(node_of(&answer));
            }
        });
        self.end_write(object, operation, value, ended)
    }

    /// DELETE.
    pub(super) async fn delete(&self, object: &SlotObject) -> RequestEnd {
        let operation = self.begin("DELETE", KeyAction::Delete);
        match self.call(Method::DELETE, &object.name.path(), &[]).await {
            Ok(_) => {
                self.end(&object.name, operation, KeyOutcome::Done);
                self.recorder.saw(object.slot, &object.name, None);
            }
            Err(failure) if is_uncertain(&failure) => {
                self.end(&object.name, operation, KeyOutcome::Unknown);
                return RequestEnd::Unanswered;
            }
            Err(failure) if self.is_refused_by_clock(&failure) => return RequestEnd::Unanswered,
            Err(failure) => self.fail("DELETE", &object.name, &format!("{failure:?}")),
        }
        RequestEnd::Answered
    }

    /// CopyObject of a value that its source had when a client saw it last. It is a read of the source and a
    /// write of the target.
    pub(super) async fn copy(
        &self,
        source: &SlotObject,
        value: StoredValue,
        target: &SlotObject,
    ) -> RequestEnd {
        let headers = [
            ("x-amz-copy-source", source.name.path()),
            ("x-amz-copy-source-if-match", format!("\"{}\"", value.etag)),
        ];
        let read = self.begin("COPY from", KeyAction::Read(KeyCondition::Is(value.id)));
        let write = self.begin("COPY", KeyAction::Write(value.id, KeyCondition::Always));
        match self.call(Method::PUT, &target.name.path(), &headers).await {
            // A response that begins with 200 may end with an error.
            Ok(answer) if !has_text(&answer, "<CopyObjectResult") => {
                self.end(&target.name, write, KeyOutcome::Unknown);
                return RequestEnd::Unanswered;
            }
            Ok(_) => {
                self.end(&source.name, read, KeyOutcome::Present(value.id));
                return self.end_write(target, write, value, Ok(()));
            }
            Err(failure) if is_uncertain(&failure) => {
                self.end(&target.name, write, KeyOutcome::Unknown);
                return RequestEnd::Unanswered;
            }
            Err(failure) if failure.status() == Some(412) => {
                self.end(&source.name, read, KeyOutcome::Refused);
            }
            Err(failure) if is_no_such_key(&failure, &Method::PUT) => {
                self.end(&source.name, read, KeyOutcome::Absent);
            }
            Err(failure) if self.is_refused_by_clock(&failure) => return RequestEnd::Unanswered,
            Err(failure) => self.fail("COPY", &target.name, &format!("{failure:?}")),
        }
        RequestEnd::Answered
    }

    /// A multipart upload of a new value. Only its completion changes the key.
    pub(super) async fn upload(&self, object: &SlotObject, value: StoredValue) -> RequestEnd {
        let ObjectName { bucket, key } = &object.name;
        let created = self.client.create_upload(bucket, key);
        let Some(id) = self.until_certain(object, created).await else { return RequestEnd::Unanswered };
        let mut parts = Vec::new();
        for (number, part) in (1..).zip(&value.parts) {
            let put = self.client.put_part(bucket, key, &id, number, full_body(part.bytes()));
            let Some(etag) = self.until_certain(object, put).await else { return RequestEnd::Unanswered };
            parts.push((number, etag));
        }
        let operation = self.begin("COMPLETE", KeyAction::Write(value.id, KeyCondition::Always));
        let ended = limited(self.client.complete(bucket, key, &id, &parts)).await.map(|_| ());
        self.end_write(object, operation, value, ended)
    }

    /// Waits for the response to a request of an upload that changes no key. Its failure ends the upload.
    async fn until_certain<T>(
        &self,
        object: &SlotObject,
        work: impl Future<Output = Result<T, CallFailure>>,
    ) -> Option<T> {
        match limited(work).await {
            Ok(answer) => Some(answer),
            Err(failure) => {
                if !is_uncertain(&failure) && !self.is_refused_by_clock(&failure) {
                    self.fail("upload", &object.name, &format!("{failure:?}"));
                }
                None
            }
        }
    }

    fn end_write(
        &self,
        object: &SlotObject,
        operation: BegunOperation,
        value: StoredValue,
        ended: Result<(), CallFailure>,
    ) -> RequestEnd {
        let SlotObject { slot, name } = object;
        let condition = match operation.action {
            KeyAction::Read(condition) | KeyAction::Write(_, condition) => condition,
            KeyAction::Delete => KeyCondition::Always,
        };
        let is_conditional = condition != KeyCondition::Always;
        let failure = match ended {
            Ok(()) => {
                self.end(name, operation, KeyOutcome::Done);
                self.recorder.saw(*slot, name, Some(value));
                return RequestEnd::Answered;
            }
            Err(failure) => failure,
        };
        match failure.status() {
            Some(412) if is_conditional => self.end(name, operation, KeyOutcome::Refused),
            Some(404)
                if matches!(condition, KeyCondition::Is(_)) && is_no_such_key(&failure, &Method::PUT) =>
            {
                self.end(name, operation, KeyOutcome::Absent);
                self.recorder.saw(*slot, name, None);
            }
            // Another change of the key was made meanwhile, and this one was not.
            Some(409) if is_conditional => {}
            _ if is_uncertain(&failure) => {
                self.end(name, operation, KeyOutcome::Unknown);
                return RequestEnd::Unanswered;
            }
            _ if self.is_refused_by_clock(&failure) => return RequestEnd::Unanswered,
            _ => self.fail(operation.request, name, &format!("{failure:?}")),
        }
        RequestEnd::Answered
    }
}

/// The condition of a PUT.
#[derive(Clone, Debug)]
pub(super) enum WriteCondition {
    Always,
    IsAbsent,
    Is(StoredValue),
}

impl WriteCondition {
    fn header(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Always => Vec::new(),
            Self::IsAbsent => vec![("if-none-match", "*".to_owned())],
            Self::Is(value) => vec![("if-match", format!("\"{}\"", value.etag))],
        }
    }

    const fn of_key(&self) -> KeyCondition {
        match self {
            Self::Always => KeyCondition::Always,
            Self::IsAbsent => KeyCondition::IsAbsent,
            Self::Is(value) => KeyCondition::Is(value.id),
        }
    }
}

fn has_text(answer: &S3ClientResponse, text: &str) -> bool {
    String::from_utf8_lossy(&answer.body).contains(text)
}

/// The rows of a listing.
///
/// # Errors
/// The response is no listing.
fn listed_page(answer: &S3ClientResponse) -> Result<ListedPage, String> {
    let text = String::from_utf8_lossy(&answer.body);
    quick_xml::de::from_str(&text).map_err(|error| format!("{error} in {text}"))
}
