//! GetObject and HeadObject of remote-backed buckets.

use super::passed_headers::pass_headers;
use super::{RemoteBackedBucket, origin_error};
use crate::Gateway;
use crate::access_hooks::{ObjectRuleFacts, caller, can_wait_for_disk, identity};
use crate::get::{ObjectResponseHead, build_head, part_number, with_memory_grant};
use crate::object_headers::override_headers;
use crate::request::AuthenticatedRequest;
use crate::response::{BodyError, ResponseBody, S3Response, S3Result, long_xml};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use mlgw_cache::policy_driver::PolicyRequestContext;
use mlgw_cache::remote_backed::{CacheState, CachedObjectReader, OpenedObject};
use mlgw_cache::writeback::record::unmarked;
use mlgw_common::ObjectKey;
use mlgw_common::limits::{LOOKUP_RETRIES_MAX, SMALL_BODY_BYTES};
use mlgw_objects::ResourceShortage;
use mlgw_objects::memory::{MemoryGrant, blocks_of};
use mlgw_objects::reader::PIECE_BYTES;
use mlgw_remote::origin::{ObjectPart, OriginError};
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::target::check_version;
use mlgw_wire::values::header_value;
use std::ops::Range;
use std::sync::Arc;

const CACHE: HeaderName = HeaderName::from_static("x-mlgw-cache");

/// GetObject.
///
/// # Errors
/// Those of S3.
pub(super) async fn get_object(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
) -> S3Result {
    answer(request, remote_backed, Some(gateway)).await
}

/// Answers with a body if a gateway to read it is given. Repeats if the object was replaced at the origin
/// meanwhile.
async fn answer(
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
    body: Option<&Gateway>,
) -> S3Result {
    let mut attempts = 1;
    loop {
        let answered = match body {
            Some(gateway) => get_once(gateway, request, remote_backed).await,
            None => head_once(request, remote_backed).await,
        };
        match answered {
            Err(RemoteReadError::Read(OriginError::Changed)) if attempts < LOOKUP_RETRIES_MAX => {
                attempts += 1
            }
            done => return done.map_err(|failure| failure.into_s3_error(remote_backed)),
        }
    }
}

enum RemoteReadError {
    Response(S3Error),
    Read(OriginError),
}

impl From<S3Error> for RemoteReadError {
    fn from(error: S3Error) -> Self {
        Self::Response(error)
    }
}

impl From<ResourceShortage> for RemoteReadError {
    fn from(shortage: ResourceShortage) -> Self {
        Self::Response(shortage.into())
    }
}

impl From<OriginError> for RemoteReadError {
    fn from(error: OriginError) -> Self {
        Self::Read(error)
    }
}

impl RemoteReadError {
    fn into_s3_error(self, remote_backed: &RemoteBackedBucket) -> S3Error {
        match self {
            Self::Response(error) => error,
            Self::Read(error) => origin_error(error, remote_backed),
        }
    }
}

async fn get_once(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
) -> Result<S3Response, RemoteReadError> {
    check_version(request.query.raw("versionId"))?;
    let key = request.key()?;
    let opened = match request.query.raw("partNumber") {
        None => remote_backed.cached.open(key, expected_part(request)).await,
        // The byte range of the part is not known yet.
        Some(_) => remote_backed.cached.head(key).await,
    };
    let opened = opened.map_err(|error| no_such_key(error, request))?;
    let part = requested_part(request, remote_backed, &opened).await?;
    let ObjectResponseHead { mut response, range } = match response_head(request, &opened, part)? {
        Ok(answer) => answer,
        Err(not_modified) => return Ok(not_modified),
    };
    write_cache_headers(remote_backed, key, &opened, &range, response.headers_mut());
    let length = range.end - range.start;
    let mut reader = reader(gateway, request, remote_backed, key, &opened, range);
    reader.set_turn(gateway.lanes.lane_of_read(&request.head.headers, &request.principal.access_key).into());
    let memory = if length <= SMALL_BODY_BYTES as u64 {
        None
    } else {
        let many = blocks_of(length.min(2 * PIECE_BYTES));
        Some(Arc::new(request.memory.reserve_some(many, many.min(2)).await?))
    };
    let Some(first) = reader.next().await? else { return Ok(response) };
    let whole = first.len() as u64 == length;
    let first = with_memory_grant(first, &memory);
    *response.body_mut() = if whole {
        ResponseBody::full(first)
    } else {
        ResponseBody::sized(length, stream::once(async { Ok(first) }).chain(pieces(reader, memory)))
    };
    Ok(response)
}

/// Returns a reader with the caller's context for the policy engine.
fn reader(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
    key: &ObjectKey,
    opened: &OpenedObject,
    range: Range<u64>,
) -> CachedObjectReader {
    let about = ObjectRuleFacts::new(gateway, &remote_backed.bucket, &opened.object, request.now);
    let identity = || identity(request);
    let may_wait = can_wait_for_disk(gateway, &range);
    let context = PolicyRequestContext {
        caller: caller(request),
        identity: &identity,
        facts: &about,
        may_wait_for_disk: may_wait,
    };
    remote_backed.cached.read(key, opened, range, Some(&context))
}

/// HeadObject.
///
/// # Errors
/// Those of S3.
pub(super) async fn head_object(
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
) -> S3Result {
    answer(request, remote_backed, None).await
}

async fn head_once(
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
) -> Result<S3Response, RemoteReadError> {
    check_version(request.query.raw("versionId"))?;
    let (cached, key) = (&remote_backed.cached, request.key()?);
    let opened = match request.head.headers.contains_key("x-amz-checksum-mode") {
        true => cached.head_with_checksums(key).await,
        false => cached.head(key).await,
    };
    let opened = opened.map_err(|error| no_such_key(error, request))?;
    let part = requested_part(request, remote_backed, &opened).await?;
    let ObjectResponseHead { mut response, range } = match response_head(request, &opened, part)? {
        Ok(answer) => answer,
        Err(not_modified) => return Ok(not_modified),
    };
    write_age(&opened, response.headers_mut());
    write_storage_class(&opened, response.headers_mut());
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(range.end - range.start));
    Ok(response)
}

/// GetObjectAttributes: returns the origin's own document.
///
/// # Errors
/// Those of S3.
pub(super) async fn attributes(
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
) -> S3Result {
    check_version(request.query.raw("versionId"))?;
    let mut headers = HeaderMap::new();
    let names = ["x-amz-object-attributes", "x-amz-max-parts", "x-amz-part-number-marker"];
    pass_headers(request, &names, &mut headers);
    let fetched = remote_backed.cached.attributes(request.key()?, &headers).await;
    let document = fetched.map_err(|error| origin_error(error, remote_backed))?;
    let mut response = long_xml(request.memory, document.text)?;
    let modified = document.headers.get(header::LAST_MODIFIED);
    response.headers_mut().extend(modified.map(|modified| (header::LAST_MODIFIED, modified.clone())));
    Ok(response)
}

fn no_such_key(error: OriginError, request: &AuthenticatedRequest<'_>) -> RemoteReadError {
    match (error, request.key()) {
        (OriginError::NoSuchKey, Ok(key)) => S3Error::new(Code::NoSuchKey).field("Key", key.as_str()).into(),
        (error, _) => RemoteReadError::Read(error),
    }
}

/// Returns the range of the part that `partNumber` names, if the object has several parts.
async fn requested_part(
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
    opened: &OpenedObject,
) -> Result<Option<Range<u64>>, RemoteReadError> {
    let number = part_number(request)?.and_then(|number| u32::try_from(number).ok());
    let Some(number) = number else { return Ok(None) };
    Ok(remote_backed.cached.part_range(request.key()?, opened, number).await?)
}

/// Returns the head of a response; the inner error is `304 Not Modified`.
fn response_head(
    request: &AuthenticatedRequest<'_>,
    opened: &OpenedObject,
    part: Option<Range<u64>>,
) -> Result<Result<ObjectResponseHead, S3Response>, S3Error> {
    // Only the origin knows the checksums of parts, by GetObjectAttributes.
    let range_of_part = |_| Ok(part.clone().map(|range| (range, Vec::new())));
    let unmarked = unmarked(&opened.object);
    let object = unmarked.as_ref().unwrap_or(&opened.object);
    let mut answer = match build_head(request, object, &range_of_part)? {
        Ok(answer) => answer,
        Err(mut not_modified) => {
            write_age(opened, not_modified.headers_mut());
            return Ok(Err(not_modified));
        }
    };
    override_headers(request, answer.response.headers_mut())?;
    Ok(Ok(answer))
}

/// Returns the range that a request is about to read, before the object's size is known. Only a read of the
/// whole returns checksums; without them the blocks of a large object are fetched in parallel.
fn expected_part(request: &AuthenticatedRequest<'_>) -> ObjectPart {
    let range = request.head.headers.get(header::RANGE).and_then(|range| range.to_str().ok());
    let wants_checksums = request.head.headers.contains_key("x-amz-checksum-mode");
    let whole = if wants_checksums { ObjectPart::Whole } else { ObjectPart::From(0) };
    range.and_then(parse_expected_range).unwrap_or(whole)
}

fn parse_expected_range(range: &str) -> Option<ObjectPart> {
    let (first, last) = range.trim().strip_prefix("bytes=")?.split_once('-')?;
    match (first.trim(), last.trim()) {
        ("", last) => last.parse().ok().filter(|bytes| *bytes > 0).map(ObjectPart::Last),
        (first, "") => first.parse().ok().map(ObjectPart::From),
        (first, last) => {
            let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
            (first <= last).then_some(ObjectPart::Range { first, end: last.saturating_add(1) })
        }
    }
}

/// Writes the headers for the age of the cached metadata and for the tier of the bytes.
fn write_cache_headers(
    remote_backed: &RemoteBackedBucket,
    key: &ObjectKey,
    opened: &OpenedObject,
    range: &Range<u64>,
    headers: &mut HeaderMap,
) {
    write_age(opened, headers);
    write_storage_class(opened, headers);
    let where_from = match remote_backed.cached.record_response(key, opened, range) {
        CacheState::Stale => "stale; tier=hot",
        CacheState::Hit => "hit; tier=hot",
        CacheState::Shared => "hit; tier=memory",
        CacheState::Miss => "miss; tier=origin",
    };
    headers.insert(CACHE, HeaderValue::from_static(where_from));
}

fn write_storage_class(opened: &OpenedObject, headers: &mut HeaderMap) {
    let class = &opened.object.storage_class;
    if !class.is_empty() && class != "STANDARD" {
        headers.insert("x-amz-storage-class", header_value(class));
    }
}

fn write_age(opened: &OpenedObject, headers: &mut HeaderMap) {
    headers.insert(header::AGE, HeaderValue::from(opened.age.as_secs()));
}

/// Streams the rest of a body, piece by piece.
fn pieces(
    reader: CachedObjectReader,
    memory: Option<Arc<MemoryGrant>>,
) -> impl Stream<Item = Result<Bytes, BodyError>> + Send + 'static {
    stream::try_unfold((reader, memory), |(mut reader, memory)| async {
        match reader.next().await {
            Ok(Some(bytes)) => Ok(Some((with_memory_grant(bytes, &memory), (reader, memory)))),
            Ok(None) => Ok(None),
            Err(error) => {
                tracing::warn!(%error, "a download from an origin broke off");
                Err(BodyError::from(error))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::parse_expected_range;
    use mlgw_remote::origin::ObjectPart;

    #[test]
    fn a_range_is_a_part_before_the_size_is_known() {
        assert_eq!(parse_expected_range("bytes=5-9"), Some(ObjectPart::Range { first: 5, end: 10 }));
        assert_eq!(parse_expected_range("bytes=5-"), Some(ObjectPart::From(5)));
        assert_eq!(parse_expected_range("bytes=-5"), Some(ObjectPart::Last(5)));
        for none in ["bytes=9-5", "bytes=-0", "bytes=", "items=0-1", "bytes=0-1,3-4"] {
            assert_eq!(parse_expected_range(none), None, "{none}");
        }
    }
}
