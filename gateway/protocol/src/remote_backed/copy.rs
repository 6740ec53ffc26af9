//! CopyObject and UploadPartCopy to buckets in write-through mode.
//!
//! If the source is at the same upstream, the origin makes the copy and evaluates the conditions on both
//! sides. A source that is stored here, not yet at the origin, or at another upstream is read through this
//! server and sent like a PUT; conditions on such a source are evaluated here.

use super::multipart::{upload_id, write_checksums};
use super::passed_headers::pass_headers;
use super::shown_etags::{IF_MATCH, keep_source_description, pass_conditions};
use super::write_through::{CONDITIONS, description_headers};
use super::{RemoteBackedBucket, find_by_name, origin_write_error, write_back};
use crate::copied_object::CopiedObject;
use crate::copy::{
    CopyDirectives, Directive, check_copy_size, describe_copy as copy_description, parse_source, part_range,
};
use crate::keep_alive::{self, LongOperationResult};
use crate::multipart::part_number;
use crate::object_headers::{self, WEBSITE_REDIRECT};
use crate::request::AuthenticatedRequest;
use crate::response::S3Result;
use crate::{Gateway, can_read};
use futures_util::{StreamExt as _, stream};
use http::HeaderMap;
use mlgw_cache::writeback::record::WriteMark;
use mlgw_common::limits::LOOKUP_RETRIES_MAX;
use mlgw_common::{ObjectKey, Timestamp};
use mlgw_formats::schema::ObjectVersion;
use mlgw_objects::put::Description;
use mlgw_remote::origin::{OriginContent, OriginCopyReceipt, OriginError, Streamed};
use mlgw_wire::copy_source::CopySource;
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::origin_headers::describe;
use mlgw_wire::xml::Xml;
use std::ops::Range;
use std::sync::Arc;

/// Conditions on the source.
const SOURCE_CONDITIONS: &[&str] = &[
    "x-amz-copy-source-if-match",
    "x-amz-copy-source-if-none-match",
    "x-amz-copy-source-if-modified-since",
    "x-amz-copy-source-if-unmodified-since",
];
/// Headers that control which attributes are taken from the source, and which checksum is computed.
const COPY_DIRECTIVES: &[&str] =
    &["x-amz-metadata-directive", "x-amz-tagging-directive", "x-amz-checksum-algorithm"];

/// CopyObject.
///
/// # Errors
/// Those of S3.
pub(super) async fn copy_object(
    gateway: &Arc<Gateway>,
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
) -> S3Result {
    let source = parse_source(request)?;
    let Some(from) = source_at_same_upstream(gateway, request, remote_backed, &source).await? else {
        return copy_object_through_server(gateway, request, remote_backed, source).await;
    };
    let directive = Directive::of_metadata(request)?;
    let given = description_headers(request, remote_backed)?;
    let mut headers = if directive == Directive::Copy { HeaderMap::new() } else { given };
    if directive == Directive::Copy {
        pass_headers(request, &["x-amz-tagging", "x-amz-storage-class", WEBSITE_REDIRECT], &mut headers);
    }
    let (key, remote_backed, now) = (request.key()?.clone(), remote_backed.clone(), request.now);
    pass_headers(request, COPY_DIRECTIVES, &mut headers);
    pass_conditions(request, CONDITIONS, &remote_backed, &key, &mut headers).await;
    pass_conditions(request, SOURCE_CONDITIONS, &from, &source.key, &mut headers).await;
    keep_alive::respond(async move {
        let copied = copy_at_origin(&remote_backed, &key, &from, &source.key, &headers, directive).await;
        Ok(result(
            "CopyObjectResult",
            copied.map_err(|error| origin_write_error(error, &remote_backed))?,
            now,
        ))
    })
    .await
}

/// Has the origin copy an object. A copy that keeps the source's description drops the source's mark, so it
/// names the version whose description was read.
async fn copy_at_origin(
    remote_backed: &RemoteBackedBucket,
    key: &ObjectKey,
    from: &RemoteBackedBucket,
    source: &ObjectKey,
    headers: &HeaderMap,
    directive: Directive,
) -> Result<OriginCopyReceipt, OriginError> {
    let keeps = directive == Directive::Copy;
    let has_condition = headers.contains_key(IF_MATCH);
    let mut known = from.cached.head(source).await.ok().map(|opened| opened.object);
    for tries in 1.. {
        let mut headers = headers.clone();
        if keeps && let Some(object) = &known {
            keep_source_description(object, remote_backed, &mut headers);
        }
        match remote_backed.cached.copy(key, &from.cached, source, &headers).await {
            // The source was written since.
            Err(OriginError::Changed) if keeps && !has_condition && tries < LOOKUP_RETRIES_MAX => {
                let now = from.cached.head_origin(source).await?;
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
async fn copy_object_through_server(
    gateway: &Arc<Gateway>,
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
    source: CopySource,
) -> S3Result {
    let directives = CopyDirectives::parse(request)?;
    let from = CopiedObject::find(gateway, request, source).await?;
    check_copy_size(&from)?;
    let given = object_headers::parse_description(request)?;
    let Description { headers: stored, metadata, tags } = copy_description(&from, given, directives).await?;
    let like = ObjectVersion { headers: stored, metadata, tags, ..ObjectVersion::default() };
    let mut headers = HeaderMap::new();
    describe(&like, &mut headers);
    if let Some(queue) = &remote_backed.queue {
        WriteMark::of_write_through(&remote_backed.bucket, queue.timelines()).put(&mut headers);
    }
    pass_conditions(request, CONDITIONS, remote_backed, request.key()?, &mut headers).await;
    let range = 0..from.object().size;
    let to = RemoteCopyTarget { key: request.key()?.clone(), part: None };
    send_copy(gateway, request, remote_backed, from, range, to, headers).await
}

/// UploadPartCopy.
///
/// # Errors
/// Those of S3.
pub(super) async fn upload_part_copy(
    gateway: &Arc<Gateway>,
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
) -> S3Result {
    let (id, number) = (upload_id(request)?.into_owned(), u32::from(part_number(request)?.get()));
    let (key, source) = (request.key()?.clone(), parse_source(request)?);
    let Some(from) = source_at_same_upstream(gateway, request, remote_backed, &source).await? else {
        let from = CopiedObject::find(gateway, request, source).await?;
        let range = part_range(request, &from)?;
        let to = RemoteCopyTarget { key, part: Some((id, number)) };
        return send_copy(gateway, request, remote_backed, from, range, to, HeaderMap::new()).await;
    };
    let mut headers = HeaderMap::new();
    pass_headers(request, &["x-amz-copy-source-range"], &mut headers);
    pass_conditions(request, SOURCE_CONDITIONS, &from, &source.key, &mut headers).await;
    let (remote_backed, now) = (remote_backed.clone(), request.now);
    keep_alive::respond(async move {
        let copied =
            remote_backed.cached.copy_part(&key, &id, number, &from.cached, &source.key, &headers).await;
        Ok(result("CopyPartResult", copied.map_err(|error| origin_write_error(error, &remote_backed))?, now))
    })
    .await
}

/// Returns the bucket of the source of a copy if the source is already at the same upstream.
async fn source_at_same_upstream(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
    source: &CopySource,
) -> Result<Option<RemoteBackedBucket>, S3Error> {
    if !can_read(&request.principal, &source.bucket, source.key.as_str()) {
        return Err(S3Error::new(Code::AccessDenied));
    }
    gateway.objects.bucket(&source.bucket)?;
    let from = find_by_name(gateway, &source.bucket)?
        .filter(|from| from.cached.has_same_upstream(&remote_backed.cached));
    let Some(from) = from else { return Ok(None) };
    let is_dirty = write_back::find_dirty(gateway, &source.key, &from).await?.is_some();
    Ok((!is_dirty).then_some(from))
}

/// Target of a copy at the origin: an object, or a part of an upload.
struct RemoteCopyTarget {
    key: ObjectKey,
    part: Option<(String, u32)>,
}

/// Sends bytes of the source to the origin.
async fn send_copy(
    gateway: &Arc<Gateway>,
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
    from: CopiedObject,
    range: Range<u64>,
    to: RemoteCopyTarget,
    headers: HeaderMap,
) -> S3Result {
    let bytes = range.end - range.start;
    let (reader, held) = from.read(gateway, request.memory, range).await?;
    let pieces = stream::try_unfold((reader, held), |(mut reader, held)| async {
        // After a read error the origin does not receive the rest, and discards the write.
        let piece = reader.next().await.map_err(|error| OriginError::InvalidResponse(error.to_string()))?;
        Ok(piece.map(|piece| (piece, (reader, held))))
    });
    let content = OriginContent::Streaming(Streamed { bytes, pieces: pieces.boxed(), trailer: None });
    let (remote_backed, now) = (remote_backed.clone(), request.now);
    keep_alive::respond(async move {
        let (root, sent) = match &to.part {
            None => ("CopyObjectResult", remote_backed.cached.put(&to.key, &headers, content).await),
            Some((id, number)) => (
                "CopyPartResult",
                remote_backed.cached.put_part(&to.key, id, *number, &headers, content).await,
            ),
        };
        let written = sent.map_err(|error| origin_write_error(error, &remote_backed))?;
        let etag = written.etag().unwrap_or_default();
        Ok(result(
            root,
            OriginCopyReceipt { etag, headers: written.headers, ..OriginCopyReceipt::default() },
            now,
        ))
    })
    .await
}

fn result(root: &str, copied: OriginCopyReceipt, now: Timestamp) -> LongOperationResult {
    let modified = if copied.modified_ms == 0 { now } else { Timestamp(copied.modified_ms) };
    let mut out = Xml::new(root);
    out.time("LastModified", modified).etag(&copied.etag);
    write_checksums(&mut out, &copied.checksums);
    LongOperationResult { document: out.finish(root), headers: copied.headers }
}
