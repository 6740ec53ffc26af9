//! CopyObject and UploadPartCopy to buckets that are written through.
//!
//! Where the source is at the same upstream the origin copies by itself, and the conditions of both sides are its own to decide.

use super::multipart::{upload_id, write_checksums};
use super::write::{CONDITIONS, described, pass};
use super::{Fronted, not_offered, of_name, told_of_write};
use crate::s3::copy::source;
use crate::s3::copy_source::Source;
use crate::s3::error::{Code, S3Error};
use crate::s3::keep_alive::{self, Done};
use crate::s3::multipart::part_number;
use crate::s3::request::Request;
use crate::s3::response::S3Result;
use crate::s3::xml::Xml;
use crate::s3::{Gateway, may_read};
use http::HeaderMap;
use mlgw_common::{ObjectKey, Timestamp};
use mlgw_tiering::origin::Made;
use std::sync::Arc;

/// Conditions on the source.
const OF_SOURCE: &[&str] = &[
    "x-amz-copy-source-if-match",
    "x-amz-copy-source-if-none-match",
    "x-amz-copy-source-if-modified-since",
    "x-amz-copy-source-if-unmodified-since",
];
/// What is taken from the source, and what is computed.
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
    let (from, source) = beside(gateway, request, fronted)?;
    let mut headers = described(request, fronted)?;
    [CONDITIONS, OF_SOURCE, HOW].iter().for_each(|names| pass(request, names, &mut headers));
    let (key, fronted, now) = (request.key()?.clone(), fronted.clone(), request.now);
    keep_alive::answer(async move {
        let copied = fronted.bound.copy(&key, &from.bound, &source, &headers).await;
        Ok(result("CopyObjectResult", copied.map_err(|error| told_of_write(error, &fronted))?, now))
    })
    .await
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
    let (from, source) = beside(gateway, request, fronted)?;
    let (id, number) = (upload_id(request)?.into_owned(), u32::from(part_number(request)?.get()));
    let mut headers = HeaderMap::new();
    [OF_SOURCE, &["x-amz-copy-source-range"]].iter().for_each(|names| pass(request, names, &mut headers));
    let (key, fronted, now) = (request.key()?.clone(), fronted.clone(), request.now);
    keep_alive::answer(async move {
        let copied = fronted.bound.copy_part((&key, &id, number), &from.bound, &source, &headers).await;
        Ok(result("CopyPartResult", copied.map_err(|error| told_of_write(error, &fronted))?, now))
    })
    .await
}

/// The source of a copy, which must be at the same upstream.
fn beside(
    gateway: &Gateway,
    request: &Request<'_>,
    fronted: &Fronted,
) -> Result<(Fronted, ObjectKey), S3Error> {
    let Source { bucket, key } = source(request)?;
    if !may_read(&request.principal, &bucket, key.as_str()) {
        return Err(S3Error::new(Code::AccessDenied));
    }
    gateway.any_bucket(&bucket)?;
    match of_name(gateway, &bucket)? {
        Some(from) if from.bound.is_beside(&fronted.bound) => Ok((from, key)),
        _ => {
            let what = format!("A copy from the bucket {bucket:?}, which is not at the same upstream");
            Err(not_offered(&fronted.bucket.name, &fronted.binding, &what))
        }
    }
}

fn result(root: &str, copied: Made, now: Timestamp) -> Done {
    let modified = if copied.modified_ms == 0 { now } else { Timestamp(copied.modified_ms) };
    let mut out = Xml::new(root);
    out.value("LastModified", modified).etag(&copied.etag);
    write_checksums(&mut out, &copied.checksums);
    Done { document: out.finish(root), headers: copied.headers }
}
