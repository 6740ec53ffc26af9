//! CopyObject and UploadPartCopy.
//!
//! A copy copies bytes, because a body belongs to one version. The one exception is a copy of an object
//! onto itself that replaces its metadata, which changes the record and keeps the body. A long copy answers
//! early and keeps the connection alive.

use super::conditions;
use super::copied_object::{CopiedObject, CopiedObjectReader};
use super::multipart::{checksum_of_parts, find_upload, named_upload, part_number, requested_checksum};
use super::object_headers::{self, WEBSITE_REDIRECT};
use super::request::AuthenticatedRequest;
use super::response::{S3Result, xml};
use super::tagging::update;
use super::{Gateway, keep_alive};
use crate::put::writer;
use bytes::Bytes;
use mlgw_common::Timestamp;
use mlgw_common::limits::PUT_BYTES_MAX;
use mlgw_formats::checksum::Algorithm;
use mlgw_formats::checksum::{self, ChecksumHasher};
use mlgw_formats::command::update_object::Update;
use mlgw_formats::command::{Replace, SetTags};
use mlgw_formats::schema::{Checksum, ChecksumKind, Pair, Upload};
use mlgw_objects::body_target::BodyTarget;
use mlgw_objects::etag::EtagSource;
use mlgw_objects::memory::{Account, MemoryGrant};
use mlgw_objects::multipart::UploadHandle;
use mlgw_objects::put::{BodyDigests, Description, PutSource, STORAGE_CLASS};
use mlgw_objects::read::FoundObject;
use mlgw_wire::checksums;
use mlgw_wire::copy_source::{self, source_range};
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::xml::Xml;
use std::ops::Range;
use std::sync::Arc;

/// Parses the source of a copy.
///
/// # Errors
/// Those of [`copy_source::CopySource::parse`].
pub(super) fn parse_source(request: &AuthenticatedRequest<'_>) -> Result<copy_source::CopySource, S3Error> {
    copy_source::CopySource::parse(request.header("x-amz-copy-source")?.unwrap_or_default())
}

/// Source of an attribute of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Directive {
    /// The copied object.
    Copy,
    /// The request.
    Replace,
}

impl Directive {
    /// Parses `x-amz-metadata-directive`.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub(super) fn of_metadata(request: &AuthenticatedRequest<'_>) -> Result<Self, S3Error> {
        Self::parse(request, "x-amz-metadata-directive")
    }

    fn parse(request: &AuthenticatedRequest<'_>, name: &'static str) -> Result<Self, S3Error> {
        match request.header(name)? {
            None | Some("COPY") => Ok(Self::Copy),
            Some("REPLACE") => Ok(Self::Replace),
            Some(other) => Err(S3Error::invalid_argument(format!("Unknown {name}."), name, other)),
        }
    }
}

/// Sources of the description of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopyDirectives {
    metadata: Directive,
    tags: Directive,
}

impl CopyDirectives {
    /// Parses the directives of a request.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub(super) fn parse(request: &AuthenticatedRequest<'_>) -> Result<Self, S3Error> {
        let metadata = Directive::of_metadata(request)?;
        Ok(Self { metadata, tags: Directive::parse(request, "x-amz-tagging-directive")? })
    }
}

/// CopyObject.
///
/// # Errors
/// Those of S3.
pub async fn copy_object(gateway: &Arc<Gateway>, request: &AuthenticatedRequest<'_>) -> S3Result {
    let bucket = gateway.bucket(request.bucket())?;
    let key = request.key()?.clone();
    let from = CopiedObject::find(gateway, request, parse_source(request)?).await?;
    let directives = CopyDirectives::parse(request)?;
    let given = object_headers::parse_description(request)?;
    let requested = requested_checksum(request)?.map(|(algorithm, _)| algorithm);
    let from = match from {
        // A copy that gets another checksum must be read and written again.
        CopiedObject::Local(from)
            if from.bucket.id == bucket.id
                && from.key == key
                && (requested.is_none() || copy_checksum(&from.object.checksums, requested).0.is_some()) =>
        {
            return replace_metadata(gateway, request, *from, given, directives).await;
        }
        from => from,
    };
    check_copy_size(&from)?;
    let description = describe_copy(&from, given, directives).await?;
    let conditions = conditions::write_conditions(request)?;
    conditions::check_write(&conditions, gateway.objects.current(bucket.bucket_id(), &key)?.as_ref())?;
    let (gateway, memory) = (gateway.clone(), request.memory.clone());
    let (owner, now) = (writer(&request.principal), request.now);
    gateway.objects.check_quota(&bucket, &key, &owner.payer, Some(from.object().size))?;
    let compression = gateway.compression(request, &bucket, &key, Some(from.object().size), &description);
    let (kept, computed) = copy_checksum(&from.object().checksums, requested);
    keep_alive::respond(async move {
        let range = 0..from.object().size;
        let target = BodyTarget { bucket: &bucket, key: &key, part: None };
        let body = CopyBody::open(&gateway, &memory, from, range, computed).await?;
        let mut stored = gateway.objects.store(&memory, target, body, compression).await?;
        stored.checksums.extend(kept);
        let object = stored.object(description, owner, now.as_millis());
        let result = copy_result("CopyObjectResult", &stored.etag, &stored.checksums, 0, now);
        gateway.objects.put_version(&bucket, &key, object, stored.extents, conditions).await?;
        Ok(result)
    })
    .await
}

/// Returns the checksum of a copy, which covers the whole object: either the source's checksum, or the
/// algorithm by which to compute it. The algorithm is the requested one, else the source's.
fn copy_checksum(source: &[Checksum], requested: Option<Algorithm>) -> (Option<Checksum>, Option<Algorithm>) {
    let of_source = source.first().map(|checksum| checksum::algorithm_from_stored(checksum.algorithm()));
    let algorithm = requested.or(of_source).unwrap_or(checksum::DEFAULT_ALGORITHM);
    let holds = |one: &&Checksum| {
        one.kind() == ChecksumKind::FullObject
            && checksum::algorithm_from_stored(one.algorithm()) == algorithm
    };
    match source.iter().find(holds) {
        Some(kept) => (Some(kept.clone()), None),
        None => (None, Some(algorithm)),
    }
}

/// Refuses a copy that is larger than the limit of a PUT.
pub(super) fn check_copy_size(from: &CopiedObject) -> Result<(), S3Error> {
    if from.object().size <= PUT_BYTES_MAX {
        return Ok(());
    }
    let why =
        "The specified copy source is larger than the maximum allowable size for a copy source: 5368709120";
    Err(S3Error::new(Code::InvalidRequest).message(why))
}

/// Returns the description of a copy: the source's, with the parts that the request replaces.
pub(super) async fn describe_copy(
    from: &CopiedObject,
    given: Description,
    directives: CopyDirectives,
) -> Result<Description, S3Error> {
    if directives.metadata == Directive::Replace && directives.tags == Directive::Replace {
        return Ok(given);
    }
    let mut description = from.description().await?;
    match directives.metadata {
        Directive::Replace => (description.headers, description.metadata) = (given.headers, given.metadata),
        Directive::Copy => description.headers = kept_headers(&description.headers, given.headers),
    }
    if directives.tags == Directive::Replace {
        description.tags = given.tags;
    }
    Ok(description)
}

/// Returns the stored headers of a copy that keeps the source's headers. The website redirect belongs to a
/// single object and is not copied; the request may set another.
fn kept_headers(source: &[Pair], given: Vec<Pair>) -> Vec<Pair> {
    let is_redirect = |pair: &&Pair| pair.name == WEBSITE_REDIRECT;
    let kept = source.iter().filter(|pair| !is_redirect(pair)).cloned();
    kept.chain(given.into_iter().filter(|pair| is_redirect(&pair))).collect()
}

/// Copies an object onto itself: new metadata, the same body.
async fn replace_metadata(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
    from: FoundObject,
    given: Description,
    directives: CopyDirectives,
) -> S3Result {
    let redirects = given.headers.iter().any(|pair| pair.name == WEBSITE_REDIRECT);
    let replaces = directives.metadata == Directive::Replace || directives.tags == Directive::Replace;
    if !replaces && !redirects {
        let why = "This copy request is illegal because it is trying to copy an object to itself without \
                   changing the object's metadata, storage class, website redirect location or \
                   encryption attributes.";
        return Err(S3Error::new(Code::InvalidRequest).message(why));
    }
    let (headers, metadata) = match directives.metadata {
        Directive::Replace => (given.headers, given.metadata),
        Directive::Copy => (kept_headers(&from.object.headers, given.headers), from.object.metadata.clone()),
    };
    let change = Update::Replace(Replace {
        headers,
        metadata,
        tags: (directives.tags == Directive::Replace).then_some(SetTags { tags: given.tags }),
        modified_ms: request.now.as_millis(),
        storage_class: STORAGE_CLASS.to_owned(),
    });
    update(gateway, request, &from, change).await?;
    let object = &from.object;
    Ok(xml(copy_result("CopyObjectResult", &object.etag, &object.checksums, object.part_count, request.now)))
}

/// UploadPartCopy.
///
/// # Errors
/// Those of S3.
pub async fn upload_part_copy(gateway: &Arc<Gateway>, request: &AuthenticatedRequest<'_>) -> S3Result {
    let named = named_upload(gateway, request)?;
    let record = find_upload(gateway, &named)?;
    upload_part_copy_of(gateway, request, named, &record).await
}

/// UploadPartCopy to the upload `named`, whose record is `record`.
///
/// # Errors
/// Those of S3.
pub(super) async fn upload_part_copy_of(
    gateway: &Arc<Gateway>,
    request: &AuthenticatedRequest<'_>,
    named: UploadHandle,
    record: &Upload,
) -> S3Result {
    let number = part_number(request)?;
    let algorithm = checksum_of_parts(&named.bucket, record);
    let from = CopiedObject::find(gateway, request, parse_source(request)?).await?;
    let range = part_range(request, &from)?;
    let bytes = range.end - range.start;
    gateway.objects.check_quota_of_part(&named.bucket, &named.key, record, number, Some(bytes))?;
    let compression = gateway.part_compression(request, &named.bucket, record)?;
    let (gateway, memory, now) = (gateway.clone(), request.memory.clone(), request.now);
    keep_alive::respond(async move {
        let body = CopyBody::open(&gateway, &memory, from, range, algorithm).await?;
        let stored = gateway.objects.store(&memory, named.part(number), body, compression).await?;
        let result = copy_result("CopyPartResult", &stored.etag, &stored.checksums, 0, now);
        gateway.objects.put_part(&named, number, now, stored).await?;
        Ok(result)
    })
    .await
}

/// Returns the range of the source that a part copies.
pub(super) fn part_range(
    request: &AuthenticatedRequest<'_>,
    from: &CopiedObject,
) -> Result<Range<u64>, S3Error> {
    let size = from.object().size;
    let range = match request.header("x-amz-copy-source-range")? {
        Some(header) => source_range(header, size)?,
        None => 0..size,
    };
    if range.end - range.start > PUT_BYTES_MAX {
        return Err(S3Error::new(Code::EntityTooLarge));
    }
    Ok(range)
}

/// Body of a copy, as a source of the object layer.
struct CopyBody {
    reader: CopiedObjectReader,
    _memory: Option<Arc<MemoryGrant>>,
    bytes: u64,
    wants_md5: bool,
    checksum: Option<ChecksumHasher>,
}

impl CopyBody {
    /// Opens `range` of the source; `computed` is the algorithm of the checksum to compute.
    async fn open(
        gateway: &Gateway,
        memory: &Account,
        from: CopiedObject,
        range: Range<u64>,
        computed: Option<Algorithm>,
    ) -> Result<Self, S3Error> {
        let bytes = range.end - range.start;
        let (reader, held) = from.read(gateway, memory, range).await?;
        let (wants_md5, checksum) =
            (gateway.objects.etags == EtagSource::Md5, computed.map(ChecksumHasher::new));
        Ok(Self { reader, _memory: held, bytes, wants_md5, checksum })
    }
}

impl PutSource for CopyBody {
    type Error = S3Error;

    fn length(&self) -> Option<u64> {
        Some(self.bytes)
    }

    fn needs_md5(&self) -> bool {
        self.wants_md5
    }

    async fn next(&mut self) -> Result<Option<Bytes>, S3Error> {
        let piece = self.reader.next().await?;
        if let (Some(checksum), Some(piece)) = (&mut self.checksum, &piece) {
            checksum.update(piece);
        }
        Ok(piece)
    }

    fn finish(self, md5: Option<[u8; 16]>) -> Result<BodyDigests, S3Error> {
        let checksum = self.checksum.map(|running| (running.algorithm(), running.finish()));
        Ok(BodyDigests { bytes: self.bytes, md5, checksums: checksum.into_iter().collect() })
    }
}

fn copy_result(root: &str, etag: &str, of_copy: &[Checksum], part_count: u32, now: Timestamp) -> String {
    let mut out = Xml::new(root);
    out.time("LastModified", now).etag(etag);
    for checksum in of_copy {
        let algorithm = checksum::algorithm_from_stored(checksum.algorithm());
        out.text(checksums::xml_element(algorithm), &checksums::wire_value(checksum, part_count));
        // The checksum of a part always covers the whole part, so its type is not written.
        if root == "CopyObjectResult" {
            out.text("ChecksumType", checksums::kind_name(checksum.kind()));
        }
    }
    out.finish(root)
}

#[cfg(test)]
mod tests {
    use super::{Algorithm, Checksum, ChecksumKind, Pair, copy_checksum, kept_headers};
    use mlgw_formats::checksum::stored_checksum;

    #[test]
    fn a_copy_has_a_checksum_of_the_whole_by_the_algorithm_of_its_source() {
        let of =
            |algorithm: Algorithm, kind| stored_checksum(algorithm, kind, vec![1; algorithm.value_bytes()]);
        for algorithm in Algorithm::ALL.iter().copied() {
            let full: Vec<Checksum> = vec![of(algorithm, ChecksumKind::FullObject)];
            assert_eq!(
                copy_checksum(&full, None),
                (Some(full[0].clone()), None),
                "the checksum also holds for the copy"
            );
            assert_eq!(copy_checksum(&full, Some(algorithm)), (Some(full[0].clone()), None));
            let of_parts = [of(algorithm, ChecksumKind::Composite)];
            assert_eq!(copy_checksum(&of_parts, None), (None, Some(algorithm)), "a copy has no parts");
            for other in Algorithm::ALL.iter().copied().filter(|other| *other != algorithm) {
                assert_eq!(copy_checksum(&full, Some(other)), (None, Some(other)));
            }
        }
        assert_eq!(copy_checksum(&[], None), (None, Some(Algorithm::Crc64Nvme)));
        assert_eq!(copy_checksum(&[], Some(Algorithm::Sha1)), (None, Some(Algorithm::Sha1)));
    }

    #[test]
    fn the_website_redirect_is_not_copied() {
        let pair = |name: &str, value: &str| Pair::new(name, value);
        let source = [pair("content-type", "a/b"), pair("x-amz-website-redirect-location", "/x")];
        assert_eq!(kept_headers(&source, vec![]), [pair("content-type", "a/b")]);
        let given = vec![pair("content-type", "c/d"), pair("x-amz-website-redirect-location", "/y")];
        let expected = [pair("content-type", "a/b"), pair("x-amz-website-redirect-location", "/y")];
        assert_eq!(kept_headers(&source, given), expected);
    }
}
