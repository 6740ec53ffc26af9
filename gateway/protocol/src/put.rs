//! PutObject, and the body of a request as a source of the object layer.
//!
//! Invariants: the response is sent after [`mlgw_objects::put`] has made the object durable. A client that
//! disconnects, a wrong checksum or a failed condition leaves the namespace unchanged.

use super::conditions;
use super::object_headers;
use super::request::AuthenticatedRequest;
use super::response::{S3Response, S3Result, empty};
use super::{Gateway, IncomingBody as Sent};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use mlgw_auth::principal::Principal;
use mlgw_body::{Digests, RequestBody};
use mlgw_common::ObjectKey;
use mlgw_formats::command::Conditions;
use mlgw_formats::schema::{Bucket, ObjectVersion, Upload};
use mlgw_objects::body_target::BodyTarget;
use mlgw_objects::compressor::Compression;
use mlgw_objects::put::{BodyDigests, Description, PutSource};
use mlgw_objects::quota::WriteAttribution;
use mlgw_policy_runtime::compression::NewObject;
use mlgw_wire::checksums;
use mlgw_wire::error::S3Error;
use mlgw_wire::lanes::workload;
use mlgw_wire::values::etag_value;
use std::sync::Arc;

/// PutObject.
///
/// # Errors
/// Those of S3.
pub async fn put_object(
    gateway: &Arc<Gateway>,
    request: &AuthenticatedRequest<'_>,
    upload: Sent<'_>,
) -> S3Result {
    let bucket = gateway.bucket(request.bucket())?;
    let key = request.key()?;
    let conditions = conditions::write_conditions(request)?;
    let description = object_headers::parse_description(request)?;
    let terms = gateway.new_object_terms();
    let body = BodySource(RequestBody::new(upload.incoming, request.head, upload.payload, terms)?);
    let (objects, length) = (&gateway.objects, body.0.decoded_length());
    if conditions != Conditions::default() {
        conditions::check_write(&conditions, objects.current(bucket.bucket_id(), key)?.as_ref())?;
    }
    objects.check_quota(&bucket, key, request.principal.payer(), length)?;
    let compression = gateway.compression(request, &bucket, key, length, &description);
    let target = BodyTarget { bucket: &bucket, key, part: None };
    let stored = objects.store(request.memory, target, body, compression).await?;
    let object = stored.object(description, writer(&request.principal), request.now.as_millis());
    let answer = put_response(&object);
    objects.put_version(&bucket, key, object, stored.extents, conditions).await?;
    Ok(answer)
}

/// Returns the description of a new object for rules, except its size, metadata and tags.
pub(super) fn new_object_facts<'a>(
    headers: &'a HeaderMap,
    bucket: &'a Bucket,
    key: &'a ObjectKey,
) -> NewObject<'a> {
    NewObject {
        bucket: &bucket.name,
        key,
        size: None,
        metadata: &[],
        tags: &[],
        agent: headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()),
        workload: workload(headers),
    }
}

impl Gateway {
    /// Returns the compression of the body of an object of this size and description, if any.
    pub(super) fn compression(
        &self,
        request: &AuthenticatedRequest<'_>,
        bucket: &Bucket,
        key: &ObjectKey,
        size: Option<u64>,
        description: &Description,
    ) -> Option<Compression> {
        let Description { metadata, tags, .. } = description;
        let sent_by = || new_object_facts(&request.head.headers, bucket, key);
        self.policies.compression(|| NewObject { size, metadata, tags, ..sent_by() })
    }

    /// Returns the compression of a part of `upload`, if any. The size of the object is not known yet.
    pub(super) fn part_compression(
        &self,
        request: &AuthenticatedRequest<'_>,
        bucket: &Bucket,
        upload: &Upload,
    ) -> Result<Option<Compression>, S3Error> {
        let (key, headers) = (request.key()?, &request.head.headers);
        let Upload { metadata, tags, .. } = upload;
        Ok(self.policies.compression(|| NewObject {
            metadata,
            tags,
            ..new_object_facts(headers, bucket, key)
        }))
    }
}

/// Returns the writer to whose quota an object of `principal` is charged.
pub(crate) fn writer(principal: &Principal) -> WriteAttribution {
    WriteAttribution { owner: principal.owner.clone(), payer: principal.payer().to_owned() }
}

/// Body of a request as the source of an object's bytes.
pub(crate) struct BodySource<B>(pub(crate) RequestBody<B>);

impl<B> PutSource for BodySource<B>
where
    B: http_body::Body<Data = Bytes> + Unpin + Send,
    S3Error: From<B::Error>,
{
    type Error = S3Error;

    fn length(&self) -> Option<u64> {
        self.0.decoded_length()
    }

    fn needs_md5(&self) -> bool {
        self.0.has_separate_md5()
    }

    async fn next(&mut self) -> Result<Option<Bytes>, S3Error> {
        self.0.next().await
    }

    fn finish(self, md5: Option<[u8; 16]>) -> Result<BodyDigests, S3Error> {
        let Digests { bytes, md5: own, checksums, .. } = self.0.finish();
        Ok(BodyDigests { bytes, md5: own.verify(md5)?, checksums })
    }
}

/// Returns the response to a PUT of `object`.
pub(super) fn put_response(object: &ObjectVersion) -> S3Response {
    let mut response = empty(StatusCode::OK);
    response.headers_mut().insert(header::ETAG, etag_value(&object.etag));
    checksums::describe(object, response.headers_mut());
    response
}
