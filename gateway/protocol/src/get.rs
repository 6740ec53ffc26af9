//! GetObject and HeadObject.
//!
//! The head of a response always has the length; the response to a range always has status 206. A small
//! body is read before its head is sent, so that damage causes an error and not a closed connection. Of a
//! large body the first piece is read before the head is sent.

use super::Gateway;
use super::access_hooks;
use super::conditions::{READ_CONDITIONS, ReadConditionResult};
use super::object_headers::{http_date, override_headers, write_description};
use super::request::AuthenticatedRequest;
use super::response::{BodyError, ResponseBody, S3Response, S3Result, empty};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http::{HeaderName, HeaderValue, StatusCode, header};
use mlgw_common::Timestamp;
use mlgw_common::limits::{LOOKUP_RETRIES_MAX, PART_NUMBER_MAX};
use mlgw_formats::schema::{Checksum, ObjectVersion};
use mlgw_objects::ObjectError;
use mlgw_objects::memory::MemoryGrant;
use mlgw_objects::read::{FoundObject, PartDescription};
use mlgw_objects::reader::{BodyReadError, BodyReader};
use mlgw_objects::stages::stage;
use mlgw_segments::fair::ServiceClass;
use mlgw_wire::checksums;
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::target::check_version;
use mlgw_wire::values::header_value;
use std::ops::Range;
use std::sync::Arc;

static CHECKSUM_MODE_HEADER: HeaderName = HeaderName::from_static("x-amz-checksum-mode");

/// GetObject.
///
/// # Errors
/// Those of S3.
pub async fn get_object(gateway: &Arc<Gateway>, request: &AuthenticatedRequest<'_>) -> S3Result {
    for _ in 1..LOOKUP_RETRIES_MAX {
        match get_once(gateway, request).await {
            Err(error) if error.is_missing() => {}
            done => return Ok(done?),
        }
    }
    Ok(get_once(gateway, request).await?)
}

/// Answers from the object that a request names, and finds it again if it was replaced meanwhile.
///
/// # Errors
/// Those of [`find_object`] and of `answer`.
pub(super) fn answer_from_object(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
    answer: impl Fn(&FoundObject) -> Result<S3Response, GetError>,
) -> S3Result {
    let answer_once = || answer(&find_object(gateway, request)?);
    for _ in 1..LOOKUP_RETRIES_MAX {
        match answer_once() {
            Err(error) if error.is_missing() => {}
            done => return Ok(done?),
        }
    }
    Ok(answer_once()?)
}

/// Errors of the reads of an object.
pub(super) enum GetError {
    Answer(S3Error),
    Read(BodyReadError),
}

impl GetError {
    /// True if bytes or parts of the record are missing: the object was replaced and freed after the read of
    /// its record, or the catalogue is damaged.
    pub(super) const fn is_missing(&self) -> bool {
        matches!(self, Self::Read(BodyReadError::Missing(_)))
    }
}

impl From<BodyReadError> for GetError {
    fn from(error: BodyReadError) -> Self {
        Self::Read(error)
    }
}

impl From<ObjectError> for GetError {
    fn from(error: ObjectError) -> Self {
        Self::Answer(error.into())
    }
}

impl From<S3Error> for GetError {
    fn from(error: S3Error) -> Self {
        Self::Answer(error)
    }
}

impl From<GetError> for S3Error {
    fn from(error: GetError) -> Self {
        match error {
            GetError::Answer(error) => error,
            GetError::Read(error) => ObjectError::from(error).into(),
        }
    }
}

async fn get_once(
    gateway: &Arc<Gateway>,
    request: &AuthenticatedRequest<'_>,
) -> Result<S3Response, GetError> {
    let found = find_object(gateway, request)?;
    answer_get(gateway, request, &found).await
}

/// Answers a GET of an object that was found.
pub(super) async fn answer_get(
    gateway: &Arc<Gateway>,
    request: &AuthenticatedRequest<'_>,
    found: &FoundObject,
) -> Result<S3Response, GetError> {
    let mut answer = match build_head(request, &found.object, &|at| found.part(&gateway.objects, at))? {
        Ok(answer) => answer,
        Err(not_modified) => return Ok(not_modified),
    };
    override_headers(request, answer.response.headers_mut())?;
    let length = answer.range.end - answer.range.start;
    let ruled = access_hooks::record_read(gateway, request, found, answer.range.clone());
    let (mut reader, memory) = found.reader(&gateway.objects, request.memory, answer.range).await?;
    let lane = gateway.lanes.lane_of_read(&request.head.headers, &request.principal.access_key);
    reader.set_turn(ServiceClass::from(lane).with_rule_rank(ruled));
    let first = stage("read", reader.next()).await?;
    let Some(first) = first else { return Ok(answer.response) };
    assert!(first.len() as u64 <= length, "a reader returns no more than its range");
    let whole = first.len() as u64 == length;
    let first = with_memory_grant(first, &memory);
    *answer.response.body_mut() = if whole {
        ResponseBody::full(first)
    } else {
        ResponseBody::sized(length, stream::once(async { Ok(first) }).chain(pieces(reader, memory)))
    };
    Ok(answer.response)
}

/// HeadObject.
///
/// # Errors
/// Those of S3.
pub fn head_object(gateway: &Arc<Gateway>, request: &AuthenticatedRequest<'_>) -> S3Result {
    answer_from_object(gateway, request, |found| answer_head_request(gateway, request, found))
}

/// Answers a HEAD of an object that was found.
pub(super) fn answer_head_request(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
    found: &FoundObject,
) -> Result<S3Response, GetError> {
    let mut answer = match build_head(request, &found.object, &|at| found.part(&gateway.objects, at))? {
        Ok(answer) => answer,
        Err(not_modified) => return Ok(not_modified),
    };
    override_headers(request, answer.response.headers_mut())?;
    // Set explicitly: the body of this response is empty, that of a GET is not.
    let length = HeaderValue::from(answer.range.end - answer.range.start);
    answer.response.headers_mut().insert(header::CONTENT_LENGTH, length);
    Ok(answer.response)
}

/// Returns a piece that holds its memory grant until the connection has written it.
pub(super) fn with_memory_grant(piece: Bytes, memory: &Option<Arc<MemoryGrant>>) -> Bytes {
    match memory {
        Some(memory) => memory.attached_to(piece),
        None => piece,
    }
}

/// Streams the rest of a body, piece by piece.
fn pieces(
    reader: BodyReader,
    memory: Option<Arc<MemoryGrant>>,
) -> impl Stream<Item = Result<Bytes, BodyError>> + Send + 'static {
    stream::try_unfold((reader, memory), |(mut reader, memory)| async {
        match reader.next().await {
            Ok(Some(bytes)) => Ok(Some((with_memory_grant(bytes, &memory), (reader, memory)))),
            Ok(None) => Ok(None),
            Err(error) => {
                tracing::warn!(%error, "a download broke off");
                Err(BodyError::from(error))
            }
        }
    })
}

/// Finds the object that a request names.
///
/// # Errors
/// `NoSuchBucket`, `NoSuchKey`, `NoSuchVersion`.
pub(super) fn find_object(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
) -> Result<FoundObject, S3Error> {
    let bucket = gateway.bucket(request.bucket())?;
    let key = request.key()?;
    check_version(request.query.raw("versionId"))?;
    Ok(gateway.objects.find(bucket, key)?)
}

/// Head of a response and the range of the bytes of its body.
pub(super) struct ObjectResponseHead {
    pub(super) response: S3Response,
    pub(super) range: Range<u64>,
}

/// Finds a part of a multipart object by its index, from 0.
pub(super) type FindPart<'a> = &'a dyn Fn(usize) -> Result<Option<PartDescription>, BodyReadError>;

/// Evaluates the conditions, then the range or part, then builds the headers. The inner error is
/// `304 Not Modified`.
pub(super) fn build_head(
    request: &AuthenticatedRequest<'_>,
    object: &ObjectVersion,
    part: FindPart<'_>,
) -> Result<Result<ObjectResponseHead, S3Response>, GetError> {
    match READ_CONDITIONS.check(&request.head.headers, &object.etag, Timestamp(object.modified_ms)) {
        ReadConditionResult::Send => {}
        ReadConditionResult::Failed(condition) => {
            return Err(S3Error::precondition_failed(condition).into());
        }
        ReadConditionResult::NotModified => {
            let mut response = empty(StatusCode::NOT_MODIFIED);
            write_description(object, response.headers_mut());
            return Ok(Err(response));
        }
    }
    let requested = requested_bytes(request, object, part)?;
    let wants_checksums =
        request.head.headers.get(&CHECKSUM_MODE_HEADER).is_some_and(|mode| mode == "ENABLED");
    let mut response = empty(StatusCode::OK);
    let headers = response.headers_mut();
    write_description(object, headers);
    // A checksum of the whole object must not accompany a part of it: clients would compare them.
    match &requested {
        RequestedBytes::Whole if wants_checksums => checksums::describe(object, headers),
        RequestedBytes::Part(_, part) if wants_checksums => checksums::describe_part(object, part, headers),
        _ => {}
    }
    let range = requested.range(object.size);
    // An empty part has no bytes for Content-Range to name.
    if !matches!(requested, RequestedBytes::Whole) && !range.is_empty() {
        let text = format!("bytes {}-{}/{}", range.start, range.end - 1, object.size);
        headers.insert(header::CONTENT_RANGE, header_value(&text));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    if request.query.raw("partNumber").is_some() && object.part_count > 0 {
        response.headers_mut().insert("x-amz-mp-parts-count", HeaderValue::from(object.part_count));
    }
    Ok(Ok(ObjectResponseHead { response, range }))
}

/// Requested part of an object.
enum RequestedBytes {
    Whole,
    Range(Range<u64>),
    /// A part, with its checksums.
    Part(Range<u64>, Vec<Checksum>),
}

impl RequestedBytes {
    fn range(&self, size: u64) -> Range<u64> {
        match self {
            Self::Whole => 0..size,
            Self::Range(range) | Self::Part(range, _) => range.clone(),
        }
    }
}

/// Returns the bytes that `Range` or `partNumber` requests.
fn requested_bytes(
    request: &AuthenticatedRequest<'_>,
    object: &ObjectVersion,
    part: FindPart<'_>,
) -> Result<RequestedBytes, GetError> {
    let range = request.header("range")?.filter(|_| is_if_range_met(request, object));
    let Some(number) = part_number(request)? else {
        let range = range.map(|range| mlgw_wire::range::parse(range, object.size)).transpose()?;
        return Ok(range.flatten().map_or(RequestedBytes::Whole, RequestedBytes::Range));
    };
    if range.is_some() {
        let why = "Cannot specify both Range header and partNumber query parameter";
        return Err(S3Error::new(Code::InvalidRequest).message(why).into());
    }
    requested_part(object, number, part)
}

/// True if the object is the one that `If-Range` names, so that the range may be sent.
fn is_if_range_met(request: &AuthenticatedRequest<'_>, object: &ObjectVersion) -> bool {
    let Some(value) = request.head.headers.get(header::IF_RANGE) else { return true };
    let strong = format!("\"{}\"", object.etag);
    *value == *strong || *value == http_date(Timestamp(object.modified_ms))
}

/// Parses `partNumber`, if present.
///
/// # Errors
/// `InvalidArgument` if the number is out of range.
pub(super) fn part_number(request: &AuthenticatedRequest<'_>) -> Result<Option<u64>, S3Error> {
    let number = request.query.number("partNumber")?;
    if number.is_some_and(|number| number == 0 || number > u64::from(PART_NUMBER_MAX)) {
        let why = "Part number must be an integer between 1 and 10000, inclusive";
        let text = request.query.raw("partNumber").unwrap_or_default();
        return Err(S3Error::invalid_argument(why, "partNumber", text));
    }
    Ok(number)
}

/// Returns part `number` of an object. An object that was uploaded by one PUT has one part.
fn requested_part(
    object: &ObjectVersion,
    number: u64,
    part: FindPart<'_>,
) -> Result<RequestedBytes, GetError> {
    let invalid = || {
        S3Error::new(Code::InvalidPartNumber)
            .field("PartNumberRequested", number.to_string())
            .field("ActualPartCount", object.part_count.max(1).to_string())
    };
    let at = usize::try_from(number).ok().and_then(|n| n.checked_sub(1)).ok_or_else(invalid)?;
    let found = match object.part_count {
        0 => (at == 0).then(|| (0..object.size, object.checksums.clone())),
        _ => part(at)?,
    };
    let (range, checksums) = found.ok_or_else(invalid)?;
    Ok(RequestedBytes::Part(range, checksums))
}
