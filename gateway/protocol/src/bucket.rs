//! ListBuckets, CreateBucket, HeadBucket, DeleteBucket, GetBucketLocation.

use super::list::write_owner;
use super::request::AuthenticatedRequest;
use super::response::{S3Result, empty, xml};
use super::{Gateway, IncomingBody, document};
use http::{StatusCode, header};
use mlgw_common::{BucketName, Timestamp};
use mlgw_formats::schema::Bucket;
use mlgw_metadata::{CreateBucketError, NewBucket};
use mlgw_wire::access::RequiredPermission;
use mlgw_wire::elements::CreateDocument;
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::split_keys::parse_split_keys;
use mlgw_wire::values::header_value;
use mlgw_wire::xml::Xml;
use mlgw_wire::xml_input::parse;
use std::sync::Arc;

/// The region whose buckets have an empty location.
const DEFAULT_REGION: &str = "us-east-1";

/// ListBuckets: the buckets that the caller may list.
///
/// # Errors
/// Those of S3.
pub fn list(gateway: &Arc<Gateway>, request: &AuthenticatedRequest<'_>) -> S3Result {
    let prefix = request.query.get("prefix")?.unwrap_or_default();
    let after = request.query.get("continuation-token")?.unwrap_or_default();
    let max = request.query.number("max-buckets")?.unwrap_or(u64::MAX).max(1);
    let max = usize::try_from(max).unwrap_or(usize::MAX);
    let buckets = gateway.objects.catalogue.buckets(None, Some(&after), usize::MAX);
    let mut seen = buckets.iter().filter(|bucket| {
        bucket.name.starts_with(&*prefix)
            && request.principal.allows(RequiredPermission::List, Some(&bucket.name), None)
    });
    let page: Vec<_> = seen.by_ref().take(max).collect();
    let truncated = seen.next().is_some();
    let mut out = Xml::new("ListAllMyBucketsResult");
    write_owner(&mut out, "Owner", &request.principal.owner);
    out.open("Buckets");
    for bucket in &page {
        out.open("Bucket").text("Name", &bucket.name).time("CreationDate", Timestamp(bucket.created_ms));
        out.text("BucketRegion", region(gateway, &bucket.region)).close("Bucket");
    }
    out.close("Buckets");
    if let (true, Some(last)) = (truncated, page.last()) {
        out.text("ContinuationToken", &last.name);
    }
    if !prefix.is_empty() {
        out.text("Prefix", &prefix);
    }
    Ok(xml(out.finish("ListAllMyBucketsResult")))
}

/// CreateBucket. Repeating it succeeds in us-east-1 and is `BucketAlreadyOwnedByYou` elsewhere; the ranges of
/// the bucket stay as they are.
///
/// # Errors
/// Those of S3.
pub async fn create(
    gateway: &Arc<Gateway>,
    request: &AuthenticatedRequest<'_>,
    upload: IncomingBody<'_>,
) -> S3Result {
    let name = BucketName::new(request.bucket())
        .map_err(|why| S3Error::new(Code::InvalidBucketName).message(why.to_string()))?;
    let split_keys = parse_split_keys(&request.head.headers)?;
    let document = document::read(request, upload, document::DOCUMENT_TERMS).await?;
    let requested_region = match document.iter().all(u8::is_ascii_whitespace) {
        true => None,
        false => parse::<CreateDocument>(&document)?.location.filter(|location| !location.is_empty()),
    };
    let new = NewBucket {
        name,
        owner: request.principal.owner.clone(),
        region: requested_region.unwrap_or_else(|| gateway.config.region.clone()),
        binding: None,
        split_keys,
    };
    let location = format!("/{}", new.name);
    let region = new.region.clone();
    match gateway.objects.catalogue.create_bucket(new).await {
        Err(CreateBucketError::Exists(bucket)) if is_repeated_create(gateway, request, &bucket, &region) => {}
        created => drop(created?),
    }
    let mut response = empty(StatusCode::OK);
    response.headers_mut().insert(header::LOCATION, header_value(&location));
    Ok(response)
}

/// True if the owner repeats the request for an existing bucket in us-east-1. AWS answers 200 there and
/// changes nothing.
fn is_repeated_create(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
    existing: &Bucket,
    requested_region: &str,
) -> bool {
    existing.owner == request.principal.owner
        && existing.binding.is_none()
        && region(gateway, &existing.region) == DEFAULT_REGION
        && requested_region == DEFAULT_REGION
}

/// Returns the refusal of a CreateBucket whose headers request a feature that is not offered. It is
/// `BucketAlreadyExists` if the caller already has the bucket and requests another ACL, ownership or lock.
pub(super) fn recreate_error(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
    error: S3Error,
) -> S3Error {
    let header = error.get("Header").unwrap_or_default();
    let of_bucket = header.starts_with("x-amz-grant-")
        || ["x-amz-acl", "x-amz-object-ownership", "x-amz-bucket-object-lock-enabled"].contains(&header);
    let name = request.bucket();
    if of_bucket
        && request.principal.allows(RequiredPermission::Admin, Some(name), None)
        && gateway.objects.bucket(name).is_ok()
    {
        return S3Error::new(Code::BucketAlreadyExists).field("BucketName", name);
    }
    error
}

/// HeadBucket.
///
/// # Errors
/// `NoSuchBucket`.
pub fn head(gateway: &Arc<Gateway>, request: &AuthenticatedRequest<'_>) -> S3Result {
    let bucket = gateway.objects.bucket(request.bucket())?;
    let mut response = empty(StatusCode::OK);
    let region = header_value(region(gateway, &bucket.region));
    response.headers_mut().insert("x-amz-bucket-region", region);
    Ok(response)
}

/// DeleteBucket.
///
/// # Errors
/// `NoSuchBucket`, `BucketNotEmpty`.
pub async fn delete(gateway: &Arc<Gateway>, request: &AuthenticatedRequest<'_>) -> S3Result {
    let bucket = gateway.bucket(request.bucket())?;
    let name = BucketName::new(&bucket.name).map_err(S3Error::internal)?;
    gateway.objects.catalogue.delete_bucket(&name).await?;
    Ok(empty(StatusCode::NO_CONTENT))
}

/// GetBucketLocation.
///
/// # Errors
/// `NoSuchBucket`.
pub fn location(gateway: &Arc<Gateway>, request: &AuthenticatedRequest<'_>) -> S3Result {
    let bucket = gateway.objects.bucket(request.bucket())?;
    let region = region(gateway, &bucket.region);
    let mut out = Xml::new("LocationConstraint");
    if region != DEFAULT_REGION {
        out.content(region);
    }
    Ok(xml(out.finish("LocationConstraint")))
}

fn region<'a>(gateway: &'a Gateway, bucket: &'a str) -> &'a str {
    if bucket.is_empty() { &gateway.config.region } else { bucket }
}
