//! PutObject, and the way every new body takes: read, append, propose, answer.
//!
//! The order is fixed: the bytes are durable in a segment before the catalogue is asked to name
//! them, and the catalogue has synced before the answer is sent. A client that goes away, a wrong
//! checksum or a refused condition leaves the namespace as it was.

use super::checksums;
use super::compression::{Coming, Compression};
use super::conditions;
use super::error::{Code, S3Error};
use super::etag;
use super::get::current;
use super::ingest::{Destination, Durable, Ingest, append_failed};
use super::object_headers::{Description, STORAGE_CLASS};
use super::quota::Writer;
use super::request::Request;
use super::response::{S3Response, S3Result, empty, etag_value};
use super::{Gateway, Upload, bucket_id};
use crate::body::Body;
use crate::memory::Account;
use http::{StatusCode, header};
use mlgw_common::limits::{EXTENT_PAGE_ENTRIES_MAX, INLINE_EXTENTS_MAX};
use mlgw_common::{BodyId, ObjectKey, Timestamp};
use mlgw_metadata::ProposeError;
use mlgw_metadata::command::{Conditions, ObjectChange, PutObject, Reject, Reply};
use mlgw_metadata::schema::{Bucket, Checksum, ChecksumKind, Extent, ExtentPage, ObjectVersion};
use mlgw_tiering::Hold;
use std::sync::Arc;

/// PutObject.
///
/// # Errors
/// Those of S3.
pub async fn put_object(gateway: &Arc<Gateway>, request: &Request<'_>, upload: Upload<'_>) -> S3Result {
    let bucket = gateway.bucket(request.bucket())?;
    let key = request.key()?;
    let conditions = conditions::of_write(request)?;
    let description = Description::of(request)?;
    let terms = checksums::of_new_object(etag::terms(gateway, None));
    let body = Body::new(upload.incoming, request.head, upload.payload, terms)?;
    if conditions != Conditions::default() {
        conditions::check_write(&conditions, current(gateway, bucket_id(&bucket), key)?.as_ref())?;
    }
    gateway.check_quota(&bucket, key, request.principal.payer(), body.decoded_length())?;
    let compression = gateway.compression(&Coming::with(
        &bucket.name,
        key,
        body.decoded_length(),
        &description,
        Some(&request.head.headers),
    ));
    let stored = store(gateway, request.memory, &bucket, key, (body, compression), None).await?;
    let object = stored.object(description, Writer::from(&*request.principal), request.now.as_millis());
    let answer = put_answer(&object);
    put_version(gateway, &bucket, key, object, stored.extents, conditions).await?;
    Ok(answer)
}

/// A body that is durable in segments but named by nothing yet.
pub(crate) struct Stored {
    pub(crate) body: BodyId,
    pub(crate) bytes: u64,
    pub(crate) etag: String,
    pub(crate) checksums: Vec<Checksum>,
    pub(crate) extents: Vec<Extent>,
    /// Kept until the catalogue has named the bytes or refused to.
    pub(crate) _holds: Vec<Hold>,
}

/// Reads a body to its end and stores it, compressed where that is wanted. With `part`, it is that part of an upload.
///
/// # Errors
/// Whatever is wrong with the body, `SlowDown`, `InsufficientStorage`.
pub(super) async fn store<B>(
    gateway: &Arc<Gateway>,
    memory: &Account,
    bucket: &Bucket,
    key: &ObjectKey,
    (mut body, compression): (Body<B>, Option<Compression>),
    part: Option<(BodyId, mlgw_common::PartNumber)>,
) -> Result<Stored, S3Error>
where
    B: http_body::Body<Data = bytes::Bytes> + Unpin,
    S3Error: From<B::Error>,
{
    let expected = body.decoded_length();
    gateway.tiers.hot.room_for(expected.unwrap_or(0)).await.map_err(|error| append_failed(gateway, error))?;
    let id = match part {
        Some((upload, _)) => upload,
        None => gateway.catalogue.body_id().await?,
    };
    let destination =
        Destination { bucket: bucket_id(bucket), key: key.clone(), body: id, part: part.map(|(_, n)| n) };
    let ingest = Ingest::begin(gateway, memory, destination, expected, body.wants_md5_apart()).await?;
    let mut ingest = ingest.compressed(compression);
    while let Some(data) = body.next().await? {
        ingest.push(data).await?;
    }
    let digests = body.finish();
    let Durable { extents, holds, md5 } = ingest.finish().await?;
    let etag = etag::of_body(digests.md5.settle(md5)?)?;
    let of_whole = |(algorithm, value)| checksums::stored(algorithm, ChecksumKind::FullObject, value);
    let checksums = digests.checksums.into_iter().map(of_whole).collect();
    Ok(Stored { body: id, bytes: digests.bytes, etag, checksums, extents, _holds: holds })
}

impl Stored {
    /// The record of the version that this body becomes; its extents are still to be placed.
    pub(crate) fn object(&self, description: Description, writer: Writer, now_ms: i64) -> ObjectVersion {
        ObjectVersion {
            body_id: self.body.get(),
            size: self.bytes,
            modified_ms: now_ms,
            etag: self.etag.clone(),
            headers: description.headers,
            metadata: description.metadata,
            tags: description.tags,
            checksums: self.checksums.clone(),
            storage_class: STORAGE_CLASS.to_owned(),
            owner: writer.owner,
            payer: writer.payer,
            ..ObjectVersion::default()
        }
    }
}

/// Makes `object` the current version of its key; its place in the order of versions.
///
/// # Errors
/// `PreconditionFailed`; `ConditionalRequestConflict` when the key that `If-Match` wants was there
/// when the request began and is gone now; those of [`Gateway::commit`].
pub(crate) async fn put_version(
    gateway: &Gateway,
    bucket: &Bucket,
    key: &ObjectKey,
    object: ObjectVersion,
    extents: Vec<Extent>,
    conditions: Conditions,
) -> Result<u64, S3Error> {
    propose_put(gateway, bucket, key, put_of(object, extents, conditions)).await
}

/// A put of `object` with the extents of its body.
pub(super) fn put_of(mut object: ObjectVersion, extents: Vec<Extent>, conditions: Conditions) -> PutObject {
    let mut pages = Vec::new();
    if extents.len() <= INLINE_EXTENTS_MAX {
        object.extents = extents;
    } else {
        pages = pages_of(extents);
    }
    PutObject { version: object, pages, conditions, is_exempt: false }
}

/// As [`put_version`].
///
/// # Errors
/// As [`put_version`].
pub(super) async fn propose_put(
    gateway: &Gateway,
    bucket: &Bucket,
    key: &ObjectKey,
    put: PutObject,
) -> Result<u64, S3Error> {
    let condition = if put.conditions.if_match.is_some() { "If-Match" } else { "If-None-Match" };
    let now = Timestamp(put.version.modified_ms);
    let proposed = gateway.propose_object(bucket, key, now, ObjectChange::Put(put)).await;
    match proposed.map_err(|error| lost_race(error, condition))? {
        Reply::Written(written) => Ok(written.seq),
        other => Err(S3Error::internal(format!("a put was answered with {other:?}"))),
    }
}

/// A long body's map, in pages.
fn pages_of(extents: Vec<Extent>) -> Vec<ExtentPage> {
    let page = |extents: &[Extent]| ExtentPage { extents: extents.to_vec(), parts: Vec::new() };
    extents.chunks(EXTENT_PAGE_ENTRIES_MAX).map(page).collect()
}

/// The words for a condition that held when the request began and does not any more. Where the
/// key is gone it is a conflict, to be tried again; where another write came first, the
/// precondition failed.
pub(super) fn lost_race(error: ProposeError, condition: &'static str) -> S3Error {
    match error {
        ProposeError::Rejected(Reject::NoSuchKey) => {
            S3Error::new(Code::ConditionalRequestConflict).field("Condition", condition)
        }
        ProposeError::Rejected(Reject::PreconditionFailed) => S3Error::precondition_failed(condition),
        error => error.into(),
    }
}

/// The answer to a PUT of `object`.
pub(super) fn put_answer(object: &ObjectVersion) -> S3Response {
    let mut response = empty(StatusCode::OK);
    response.headers_mut().insert(header::ETAG, etag_value(&object.etag));
    checksums::describe(object, response.headers_mut());
    response
}
