//! CopyObject and UploadPartCopy to buckets in write-through mode.
//!
//! If the source is at the same upstream, the origin makes the copy and evaluates the conditions on both
//! sides. A source that is stored here, not yet at the origin, or at another upstream is read through this
//! server and sent like a PUT; conditions on such a source are evaluated here.

use super::multipart::{upload_id, write_checksums};
use super::shown::{IF_MATCH, keep_description, pass_conditions};
use super::write::{CONDITIONS, described, pass};
use super::{Fronted, back, of_name, told_of_write};
use crate::copied::Copied;
use crate::copy::{check_size, described as copy_description, part_range, replaces, source};
use crate::keep_alive::{self, Done};
use crate::multipart::part_number;
use crate::object_headers::{self, WEBSITE_REDIRECT};
use crate::request::Request;
use crate::response::S3Result;
use crate::{Gateway, may_read};
use futures_util::{StreamExt as _, stream};
use http::HeaderMap;
use mlgw_cache::writeback::record::Mark;
use mlgw_common::limits::LOOK_AGAIN_MAX;
use mlgw_common::{ObjectKey, Timestamp};
use mlgw_formats::schema::ObjectVersion;
use mlgw_objects::put::Description;
use mlgw_remote::origin::{Content, Made, OriginError, Streamed};
use mlgw_wire::copy_source::Source;
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::origin_headers::describe;
use mlgw_wire::xml::Xml;
use std::ops::Range;
use std::sync::Arc;

/// Conditions on the source.
const OF_SOURCE: &[&str] = &[
    "x-amz-copy-source-if-match",
    "x-amz-copy-source-if-none-match",
    "x-amz-copy-source-if-modified-since",
    "x-amz-copy-source-if-unmodified-since",
];
/// Headers that control which attributes are taken from the source, and which checksum is computed.
const HOW: &[&str] = &["x-amz-metadata-directive", "x-amz-tagging-directive", "x-amz-checksum-algorithm"];

/// CopyObject.
///
/// # Errors
/// Those of S3.
pub(super) async fn copy_object(
    gateway: &Arc<Gateway>,
    request: &Request<'_>,
    fronted: &Fronted,
) -> S3Result {
    let source = source(request)?;
    let Some(from) = beside(gateway, request, fronted, &source).await? else {
        return copy_object_from_elsewhere(gateway, request, fronted, source).await;
    };
    let keeps = !replaces(request, "x-amz-metadata-directive")?;
    let given = described(request, fronted)?;
    let mut headers = if keeps { HeaderMap::new() } else { given };
    if keeps {
        pass(request, &["x-amz-tagging", "x-amz-storage-class", WEBSITE_REDIRECT], &mut headers);
    }
    let (key, fronted, now) = (request.key()?.clone(), fronted.clone(), request.now);
    pass(request, HOW, &mut headers);
    pass_conditions(request, CONDITIONS, &fronted, &key, &mut headers).await;
    pass_conditions(request, OF_SOURCE, &from, &source.key, &mut headers).await;
    keep_alive::answer(async move {
        let copied = copy_there(&fronted, &key, (&from, &source.key), &headers, keeps).await;
        Ok(result("CopyObjectResult", copied.map_err(|error| told_of_write(error, &fronted))?, now))
    })
    .await
}

/// Has the origin copy an object. A copy that `keeps` its description drops the source's mark, so it names
/// the version whose description was read.
async fn copy_there(
    fronted: &Fronted,
    key: &ObjectKey,
    (from, source): (&Fronted, &ObjectKey),
    headers: &HeaderMap,
    keeps: bool,
) -> Result<Made, OriginError> {
    let asks = headers.contains_key(IF_MATCH);
    let mut known = from.bound.head(source, false).await.ok().map(|opened| opened.object);
    for tries in 1.. {
        let mut headers = headers.clone();
        if keeps && let Some(object) = &known {
            keep_description(object, fronted, &mut headers);
        }
        match fronted.bound.copy(key, &from.bound, source, &headers).await {
            // The source was written since.
            Err(OriginError::Changed) if keeps && !asks && tries < LOOK_AGAIN_MAX => {
                let now = from.bound.look(source).await?;
                if known.as_ref().is_none_or(|known| known.etag == now.etag) {
                    return Err(OriginError::Changed);
                }
                known = Some(now);
            }
            done => return done,
        }
    }
    Err(OriginError::Changed)
}

/// Copies an object that is stored here, or at another upstream, through this server.
async fn copy_object_from_elsewhere(
    gateway: &Arc<Gateway>,
    request: &Request<'_>,
    fronted: &Fronted,
    source: Source,
) -> S3Result {
    let (replaces_metadata, replaces_tags) =
        (replaces(request, "x-amz-metadata-directive")?, replaces(request, "x-amz-tagging-directive")?);
    let from = Copied::find(gateway, request, source).await?;
    check_size(&from)?;
    let given = object_headers::description(request)?;
    let Description { headers: stored, metadata, tags } =
        copy_description(&from, given, replaces_metadata, replaces_tags).await?;
    let like = ObjectVersion { headers: stored, metadata, tags, ..ObjectVersion::default() };
    let mut headers = HeaderMap::new();
    describe(&like, &mut headers);
    if let Some(queue) = &fronted.queue {
        Mark::of_through(&fronted.bucket, queue.timelines()).put(&mut headers);
    }
    pass_conditions(request, CONDITIONS, fronted, request.key()?, &mut headers).await;
    let range = 0..from.object().size;
    let to = Destination { key: request.key()?.clone(), part: None };
    send_copy(gateway, request, fronted, (from, range), to, headers).await
}

/// UploadPartCopy.
///
/// # Errors
/// Those of S3.
pub(super) async fn upload_part_copy(
    gateway: &Arc<Gateway>,
    request: &Request<'_>,
    fronted: &Fronted,
) -> S3Result {
    let (id, number) = (upload_id(request)?.into_owned(), u32::from(part_number(request)?.get()));
    let (key, source) = (request.key()?.clone(), source(request)?);
    let Some(from) = beside(gateway, request, fronted, &source).await? else {
        let from = Copied::find(gateway, request, source).await?;
        let range = part_range(request, &from)?;
        let to = Destination { key, part: Some((id, number)) };
        return send_copy(gateway, request, fronted, (from, range), to, HeaderMap::new()).await;
    };
    let mut headers = HeaderMap::new();
    pass(request, &["x-amz-copy-source-range"], &mut headers);
    pass_conditions(request, OF_SOURCE, &from, &source.key, &mut headers).await;
    let (fronted, now) = (fronted.clone(), request.now);
    keep_alive::answer(async move {
        let copied = fronted.bound.copy_part((&key, &id, number), &from.bound, &source.key, &headers).await;
        Ok(result("CopyPartResult", copied.map_err(|error| told_of_write(error, &fronted))?, now))
    })
    .await
}

/// Returns the bucket of the source of a copy if the source is already at the same upstream.
async fn beside(
    gateway: &Gateway,
    request: &Request<'_>,
    fronted: &Fronted,
    source: &Source,
) -> Result<Option<Fronted>, S3Error> {
    if !may_read(&request.principal, &source.bucket, source.key.as_str()) {
        return Err(S3Error::new(Code::AccessDenied));
    }
    gateway.objects.bucket(&source.bucket)?;
    let from = of_name(gateway, &source.bucket)?.filter(|from| from.bound.is_beside(&fronted.bound));
    let Some(from) = from else { return Ok(None) };
    let is_dirty = back::find_key(gateway, &source.key, &from).await?.is_some();
    Ok((!is_dirty).then_some(from))
}

/// Target of a copy at the origin: an object, or a part of an upload.
struct Destination {
    key: ObjectKey,
    part: Option<(String, u32)>,
}

/// Sends bytes of the source to the origin.
async fn send_copy(
    gateway: &Arc<Gateway>,
    request: &Request<'_>,
    fronted: &Fronted,
    (from, range): (Copied, Range<u64>),
    to: Destination,
    headers: HeaderMap,
) -> S3Result {
    let bytes = range.end - range.start;
    let (reader, held) = from.read(gateway, request.memory, range).await?;
    let pieces = stream::try_unfold((reader, held), |(mut reader, held)| async {
        // After a read error the origin does not receive the rest, and discards the write.
        let piece = reader.next().await.map_err(|error| OriginError::Nonsense(error.to_string()))?;
        Ok(piece.map(|piece| (piece, (reader, held))))
    });
    let content = Content::Stream(Streamed { bytes, pieces: pieces.boxed(), trailer: None });
    let (fronted, now) = (fronted.clone(), request.now);
    keep_alive::answer(async move {
        let (root, sent) = match &to.part {
            None => ("CopyObjectResult", fronted.bound.put(&to.key, &headers, content).await),
            Some((id, number)) => {
                ("CopyPartResult", fronted.bound.put_part(&to.key, id, *number, &headers, content).await)
            }
        };
        let written = sent.map_err(|error| told_of_write(error, &fronted))?;
        let etag = written.etag().unwrap_or_default();
        Ok(result(root, Made { etag, headers: written.headers, ..Made::default() }, now))
    })
    .await
}

fn result(root: &str, copied: Made, now: Timestamp) -> Done {
    let modified = if copied.modified_ms == 0 { now } else { Timestamp(copied.modified_ms) };
    let mut out = Xml::new(root);
    out.time("LastModified", modified).etag(&copied.etag);
    write_checksums(&mut out, &copied.checksums);
    Done { document: out.finish(root), headers: copied.headers }
}
