//! GetObject and HeadObject of remote-backed buckets.

use super::write::pass;
use super::{Fronted, told};
use crate::Gateway;
use crate::get::{Answer, answer_head, attached, part_number};
use crate::noted::{About, caller, identity, may_wait};
use crate::object_headers::override_headers;
use crate::request::Request;
use crate::response::{BodyError, ResponseBody, S3Response, S3Result, long_xml};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use mlgw_cache::bound::{BoundReader, CacheState, Opened};
use mlgw_cache::policy::Asking;
use mlgw_cache::writeback::record::unmarked;
use mlgw_common::ObjectKey;
use mlgw_common::limits::{LOOK_AGAIN_MAX, SMALL_BODY_BYTES};
use mlgw_objects::Shortage;
use mlgw_objects::memory::{MemoryGrant, blocks_of};
use mlgw_objects::reader::PIECE_BYTES;
use mlgw_remote::origin::{OriginError, Part};
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
pub(super) async fn get_object(gateway: &Gateway, request: &Request<'_>, fronted: &Fronted) -> S3Result {
    answer(request, fronted, Some(gateway)).await
}

/// Answers with a body if a gateway to read it is given. Repeats if the object was replaced at the origin
/// meanwhile.
async fn answer(request: &Request<'_>, fronted: &Fronted, body: Option<&Gateway>) -> S3Result {
    let mut looks = 1;
    loop {
        let answered = match body {
            Some(gateway) => get_once(gateway, request, fronted).await,
            None => head_once(request, fronted).await,
        };
        match answered {
            Err(Failure::Read(OriginError::Changed)) if looks < LOOK_AGAIN_MAX => looks += 1,
            done => return done.map_err(|failure| failure.told(fronted)),
        }
    }
}

enum Failure {
    Answer(S3Error),
    Read(OriginError),
}

impl From<S3Error> for Failure {
    fn from(error: S3Error) -> Self {
        Self::Answer(error)
    }
}

impl From<Shortage> for Failure {
    fn from(shortage: Shortage) -> Self {
        Self::Answer(shortage.into())
    }
}

impl From<OriginError> for Failure {
    fn from(error: OriginError) -> Self {
        Self::Read(error)
    }
}

impl Failure {
    fn told(self, fronted: &Fronted) -> S3Error {
        match self {
            Self::Answer(error) => error,
            Self::Read(error) => told(error, fronted),
        }
    }
}

async fn get_once(
    gateway: &Gateway,
    request: &Request<'_>,
    fronted: &Fronted,
) -> Result<S3Response, Failure> {
    check_version(request.query.raw("versionId"))?;
    let key = request.key()?;
    let opened = match request.query.raw("partNumber") {
        None => fronted.bound.open(key, part_of(request)).await,
        // The byte range of the part is not known yet.
        Some(_) => fronted.bound.head(key, false).await,
    };
    let opened = opened.map_err(|error| no_such_key(error, request))?;
    let part = asked_part(request, fronted, &opened).await?;
    let Answer { mut response, range } = match head_of(request, &opened, part)? {
        Ok(answer) => answer,
        Err(not_modified) => return Ok(not_modified),
    };
    say_where_from(fronted, key, &opened, &range, response.headers_mut());
    let length = range.end - range.start;
    let mut reader = reader(gateway, request, fronted, key, &opened, range);
    reader.set_turn(gateway.lanes.of_read(&request.head.headers, &request.principal.access_key).into());
    let memory = if length <= SMALL_BODY_BYTES as u64 {
        None
    } else {
        let many = blocks_of(length.min(2 * PIECE_BYTES));
        Some(Arc::new(request.memory.reserve_some(many, many.min(2)).await?))
    };
    let Some(first) = reader.next().await? else { return Ok(response) };
    let whole = first.len() as u64 == length;
    let first = attached(first, &memory);
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
    request: &Request<'_>,
    fronted: &Fronted,
    key: &ObjectKey,
    opened: &Opened,
    range: Range<u64>,
) -> BoundReader {
    let about = About::new(gateway, &fronted.bucket, &opened.object, request.now);
    let identity = || identity(request);
    let may_wait = may_wait(gateway, &range);
    let asking = Asking { caller: caller(request), identity: &identity, about: &about, may_wait };
    fronted.bound.read(key, opened, range, Some(&asking))
}

/// HeadObject.
///
/// # Errors
/// Those of S3.
pub(super) async fn head_object(request: &Request<'_>, fronted: &Fronted) -> S3Result {
    answer(request, fronted, None).await
}

async fn head_once(request: &Request<'_>, fronted: &Fronted) -> Result<S3Response, Failure> {
    check_version(request.query.raw("versionId"))?;
    let with_checksums = request.head.headers.contains_key("x-amz-checksum-mode");
    let opened = fronted.bound.head(request.key()?, with_checksums).await;
    let opened = opened.map_err(|error| no_such_key(error, request))?;
    let part = asked_part(request, fronted, &opened).await?;
    let Answer { mut response, range } = match head_of(request, &opened, part)? {
        Ok(answer) => answer,
        Err(not_modified) => return Ok(not_modified),
    };
    say_age(&opened, response.headers_mut());
    say_class(&opened, response.headers_mut());
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(range.end - range.start));
    Ok(response)
}

/// GetObjectAttributes: returns the origin's own document.
///
/// # Errors
/// Those of S3.
pub(super) async fn attributes(request: &Request<'_>, fronted: &Fronted) -> S3Result {
    check_version(request.query.raw("versionId"))?;
    let mut headers = HeaderMap::new();
    let asked = ["x-amz-object-attributes", "x-amz-max-parts", "x-amz-part-number-marker"];
    pass(request, &asked, &mut headers);
    let told_so = fronted.bound.attributes(request.key()?, &headers).await;
    let document = told_so.map_err(|error| told(error, fronted))?;
    let mut response = long_xml(request.memory, document.text)?;
    let modified = document.headers.get(header::LAST_MODIFIED);
    response.headers_mut().extend(modified.map(|modified| (header::LAST_MODIFIED, modified.clone())));
    Ok(response)
}

fn no_such_key(error: OriginError, request: &Request<'_>) -> Failure {
    match (error, request.key()) {
        (OriginError::NoSuchKey, Ok(key)) => S3Error::new(Code::NoSuchKey).field("Key", key.as_str()).into(),
        (error, _) => Failure::Read(error),
    }
}

/// Returns the range of the part that `partNumber` names, if the object has several parts.
async fn asked_part(
    request: &Request<'_>,
    fronted: &Fronted,
    opened: &Opened,
) -> Result<Option<Range<u64>>, Failure> {
    let number = part_number(request)?.and_then(|number| u32::try_from(number).ok());
    let Some(number) = number else { return Ok(None) };
    Ok(fronted.bound.part(request.key()?, opened, number).await?)
}

/// Returns the head of a response; the inner error is `304 Not Modified`.
fn head_of(
    request: &Request<'_>,
    opened: &Opened,
    part: Option<Range<u64>>,
) -> Result<Result<Answer, S3Response>, S3Error> {
    // Only the origin knows the checksums of parts, by GetObjectAttributes.
    let asked_part = |_| Ok(part.clone().map(|range| (range, Vec::new())));
    let unmarked = unmarked(&opened.object);
    let object = unmarked.as_ref().unwrap_or(&opened.object);
    let mut answer = match answer_head(request, object, &asked_part)? {
        Ok(answer) => answer,
        Err(mut not_modified) => {
            say_age(opened, not_modified.headers_mut());
            return Ok(Err(not_modified));
        }
    };
    override_headers(request, answer.response.headers_mut())?;
    Ok(Ok(answer))
}

/// Returns the range that a request is about to read, before the object's size is known. Only a read of the
/// whole returns checksums; without them the blocks of a large object are fetched in parallel.
fn part_of(request: &Request<'_>) -> Part {
    let range = request.head.headers.get(header::RANGE).and_then(|range| range.to_str().ok());
    let wants_checksums = request.head.headers.contains_key("x-amz-checksum-mode");
    let whole = if wants_checksums { Part::Whole } else { Part::From(0) };
    range.and_then(part_of_range).unwrap_or(whole)
}

fn part_of_range(range: &str) -> Option<Part> {
    let (first, last) = range.trim().strip_prefix("bytes=")?.split_once('-')?;
    match (first.trim(), last.trim()) {
        ("", last) => last.parse().ok().filter(|bytes| *bytes > 0).map(Part::Last),
        (first, "") => first.parse().ok().map(Part::From),
        (first, last) => {
            let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
            (first <= last).then_some(Part::Range { first, end: last.saturating_add(1) })
        }
    }
}

/// Writes the headers for the age of the cached metadata and for the tier of the bytes.
fn say_where_from(
    fronted: &Fronted,
    key: &ObjectKey,
    opened: &Opened,
    range: &Range<u64>,
    headers: &mut HeaderMap,
) {
    say_age(opened, headers);
    say_class(opened, headers);
    let where_from = match fronted.bound.state_of(key, opened, range) {
        CacheState::Stale => "stale; tier=hot",
        CacheState::Hit => "hit; tier=hot",
        CacheState::Shared => "hit; tier=memory",
        CacheState::Miss => "miss; tier=origin",
    };
    headers.insert(CACHE, HeaderValue::from_static(where_from));
}

fn say_class(opened: &Opened, headers: &mut HeaderMap) {
    let class = &opened.object.storage_class;
    if !class.is_empty() && class != "STANDARD" {
        headers.insert("x-amz-storage-class", header_value(class));
    }
}

fn say_age(opened: &Opened, headers: &mut HeaderMap) {
    headers.insert(header::AGE, HeaderValue::from(opened.age.as_secs()));
}

/// Streams the rest of a body, piece by piece.
fn pieces(
    reader: BoundReader,
    memory: Option<Arc<MemoryGrant>>,
) -> impl Stream<Item = Result<Bytes, BodyError>> + Send + 'static {
    stream::try_unfold((reader, memory), |(mut reader, memory)| async {
        match reader.next().await {
            Ok(Some(bytes)) => Ok(Some((attached(bytes, &memory), (reader, memory)))),
            Ok(None) => Ok(None),
            Err(error) => {
                tracing::warn!(%error, "a download from an origin was cut off");
                Err(BodyError::from(error))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::part_of_range;
    use mlgw_remote::origin::Part;

    #[test]
    fn a_range_is_a_part_before_the_size_is_known() {
        assert_eq!(part_of_range("bytes=5-9"), Some(Part::Range { first: 5, end: 10 }));
        assert_eq!(part_of_range("bytes=5-"), Some(Part::From(5)));
        assert_eq!(part_of_range("bytes=-5"), Some(Part::Last(5)));
        for none in ["bytes=9-5", "bytes=-0", "bytes=", "items=0-1", "bytes=0-1,3-4"] {
            assert_eq!(part_of_range(none), None, "{none}");
        }
    }
}
