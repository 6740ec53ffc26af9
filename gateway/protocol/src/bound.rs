//! Operations on remote-backed buckets, whose objects are at an origin.
//!
//! Answers carry the origin's own ETag, time and headers. Operations that are not offered here are refused
//! with a message that names them. Operations of local buckets never run on a remote-backed bucket, because
//! [`Gateway::bucket`] refuses it. In write-through mode a write is acknowledged when the origin has it,
//! and refusals of the origin are returned to the client. In write-back mode PutObject, uploads and deletes
//! are acknowledged when they are durable here ([`back`]). Every other write goes through to the origin,
//! after all writes that were acknowledged before have reached it.

mod back;
mod back_parts;
mod copy;
mod list;
mod merge;
mod multipart;
mod onward;
mod read;
mod send;
mod shown;
mod source;
mod tagging;
mod write;

pub use source::FromBound;

use super::request::{Request, Target};
use super::response::S3Result;
use super::{Gateway, Upload, bucket, bucket_config};
use mlgw_cache::bound::{BoundBucket, Pass};
use mlgw_cache::writeback::Queue;
use mlgw_formats::schema::{BindMode, Binding, Bucket};
use mlgw_remote::origin::OriginError;
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::operation::{Operation, Support, Supported};
use std::sync::Arc;

/// A remote-backed bucket with its binding.
#[derive(Clone)]
pub struct Fronted {
    bucket: Arc<Bucket>,
    binding: Binding,
    bound: BoundBucket,
    /// Queue of the writes that the origin does not have yet, in write-back mode.
    queue: Option<Arc<Queue>>,
    /// Pass of a writer: the bucket is not bound elsewhere until the last clone of it is dropped.
    pass: Option<Arc<Pass>>,
}

/// Returns the bucket that a request names if it is remote-backed.
///
/// # Errors
/// `ServiceUnavailable` if its upstream is no longer configured.
pub fn of_request(gateway: &Gateway, request: &Request<'_>) -> Result<Option<Fronted>, S3Error> {
    let Some(name) = request.target.bucket.as_deref() else { return Ok(None) };
    of_name(gateway, name)
}

/// Returns the bucket of this name if it is remote-backed.
fn of_name(gateway: &Gateway, name: &str) -> Result<Option<Fronted>, S3Error> {
    let Ok(bucket) = gateway.objects.bucket(name) else { return Ok(None) };
    let Some(binding) = &bucket.binding else { return Ok(None) };
    let Some(bound) = gateway.bound.bucket(&bucket, binding) else {
        let upstream = &binding.upstream;
        let why = format!("The bucket is bound to the upstream {upstream:?}, which is not configured here.");
        return Err(S3Error::new(Code::ServiceUnavailable).message(why).caused_by("no such upstream"));
    };
    let (binding, queue) = (binding.clone(), gateway.writeback.queue(&bucket)?);
    Ok(Some(Fronted { bucket, binding, bound, queue, pass: None }))
}

/// Returns the bucket with a pass, as it stays bound until the write is done.
async fn to_be_written(gateway: &Gateway, fronted: Fronted) -> Result<Fronted, S3Error> {
    let pass = Some(Arc::new(fronted.bound.pass().await));
    // The bucket may have been bound elsewhere, or deleted, since it was looked up.
    let found = of_name(gateway, &fronted.bucket.name)?.filter(|now| now.bucket.id == fronted.bucket.id);
    let now = found.ok_or_else(|| S3Error::new(Code::NoSuchBucket))?;
    Ok(Fronted { pass, ..now })
}

/// True if the request's bucket is in write-through mode.
#[must_use]
pub fn is_written_through(gateway: &Gateway, target: &Target) -> bool {
    let bucket = target.bucket.as_deref().and_then(|name| gateway.objects.bucket(name).ok());
    let binding = bucket.as_ref().and_then(|bucket| bucket.binding.as_ref());
    binding.is_some_and(|binding| binding.mode() == BindMode::WriteThrough)
}

/// Answers a request for a remote-backed bucket.
///
/// # Errors
/// Those of S3.
pub async fn dispatch(
    gateway: &Arc<Gateway>,
    operation: Operation,
    request: &Request<'_>,
    body: Upload<'_>,
    fronted: Fronted,
) -> S3Result {
    use Supported as S;
    let not_offered = || Err(not_offered(&fronted.bucket.name, &fronted.binding, operation.name()));
    let supported = match operation.support() {
        Support::Full(supported) => supported,
        Support::Absent => return bucket_config::absent(gateway, request, operation),
        Support::None => return not_offered(),
    };
    match supported {
        S::GetObject => match back::get_object(gateway, request, &fronted).await? {
            Some(dirty) => Ok(dirty),
            None => read::get_object(gateway, request, &fronted).await,
        },
        S::HeadObject => match back::head_object(gateway, request, &fronted).await? {
            Some(dirty) => Ok(dirty),
            None => read::head_object(request, &fronted).await,
        },
        S::ListObjects => list::list_objects(request, &fronted).await,
        S::ListObjectsV2 => list::list_objects_v2(request, &fronted).await,
        S::HeadBucket => bucket::head(gateway, request),
        S::GetBucketLocation => bucket::location(gateway, request),
        S::DeleteBucket => Err(S3Error::new(Code::NotImplemented).message(format!(
            "The bucket {0:?} is bound to the upstream {1:?}: `mlgw bucket unbind {0}` ends that, and all stays there.",
            fronted.bucket.name, fronted.binding.upstream
        ))),
        S::CreateBucket => Err(S3Error::new(Code::BucketAlreadyOwnedByYou)),
        S::GetObjectTagging => {
            back::through(request, operation, &fronted).await?;
            tagging::get(request, &fronted).await
        }
        S::GetObjectAttributes => {
            back::through(request, operation, &fronted).await?;
            read::attributes(request, &fronted).await
        }
        S::ListParts => match back_parts::find(gateway, request, &fronted)? {
            Some(found) => back_parts::with_upload(gateway, operation, request, &fronted, body, found).await,
            None => multipart::list_parts(request, &fronted).await,
        },
        S::ListMultipartUploads if fronted.queue.is_some() => {
            back_parts::list_uploads(gateway, request, &fronted)
        }
        S::ListMultipartUploads => multipart::list_uploads(request, &fronted).await,
        S::PutObject
        | S::CopyObject
        | S::DeleteObject
        | S::DeleteObjects
        | S::CreateMultipartUpload
        | S::UploadPart
        | S::UploadPartCopy
        | S::CompleteMultipartUpload
        | S::AbortMultipartUpload
        | S::PutObjectTagging
        | S::DeleteObjectTagging => write(gateway, operation, request, body, fronted).await,
        S::ListBuckets | S::ListObjectVersions | S::PostObject => not_offered(),
    }
}

/// Answers a request that changes objects.
async fn write(
    gateway: &Arc<Gateway>,
    operation: Operation,
    request: &Request<'_>,
    body: Upload<'_>,
    fronted: Fronted,
) -> S3Result {
    use Operation as O;
    if fronted.binding.mode() == BindMode::ReadThrough {
        return Err(refused_write(&fronted));
    }
    let fronted = to_be_written(gateway, fronted).await?;
    // Held until the write is done.
    let mut _turn = None;
    if let Some(queue) = &fronted.queue {
        match operation {
            O::PutObject if back::takes(gateway, request) => {
                return back::put_object(gateway, request, &fronted, queue, body).await;
            }
            O::DeleteObject if !back::is_conditional(request) => {
                return back::delete_object(gateway, request, &fronted, queue).await;
            }
            O::DeleteObjects => {
                return back::delete_objects(gateway, request, &fronted, queue, body).await;
            }
            O::CreateMultipartUpload => return back_parts::create(gateway, request, &fronted).await,
            O::UploadPart | O::UploadPartCopy | O::CompleteMultipartUpload | O::AbortMultipartUpload => {
                if let Some(found) = back_parts::find(gateway, request, &fronted)? {
                    return back_parts::with_upload(gateway, operation, request, &fronted, body, found).await;
                }
                if operation == O::CompleteMultipartUpload
                    && let Some(done) = back_parts::completed(gateway, request, &fronted, queue).await?
                {
                    return Ok(done);
                }
            }
            _ => {}
        }
        _turn = back::through(request, operation, &fronted).await?;
    }
    match operation {
        O::PutObject => write::put_object(request, &fronted, body).await,
        O::DeleteObject => write::delete_object(request, &fronted).await,
        O::DeleteObjects => write::delete_objects(gateway, request, &fronted, body).await,
        O::CopyObject => copy::copy_object(gateway, request, &fronted).await,
        O::CreateMultipartUpload => multipart::create(request, &fronted).await,
        O::UploadPart => multipart::upload_part(request, &fronted, body).await,
        O::UploadPartCopy => copy::upload_part_copy(gateway, request, &fronted).await,
        O::CompleteMultipartUpload => multipart::complete(request, &fronted, body).await,
        O::AbortMultipartUpload => multipart::abort(request, &fronted).await,
        O::PutObjectTagging => tagging::put(request, &fronted, body).await,
        O::DeleteObjectTagging => tagging::delete(request, &fronted).await,
        other => Err(not_offered(&fronted.bucket.name, &fronted.binding, other.name())),
    }
}

/// Returns the refusal of an operation that is only available at the origin.
pub fn not_offered(bucket: &str, binding: &Binding, what: &str) -> S3Error {
    let upstream = &binding.upstream;
    S3Error::new(Code::NotImplemented).message(format!(
        "{what}: the bucket {bucket:?} is bound to the upstream {upstream:?}; do it there, on the origin itself."
    ))
}

fn refused_write(fronted: &Fronted) -> S3Error {
    let (bucket, upstream) = (&fronted.bucket.name, &fronted.binding.upstream);
    S3Error::new(Code::AccessDenied).message(format!(
        "The bucket {bucket:?} is bound read-through to the upstream {upstream:?}: it can be read only."
    ))
}

/// Translates an error of an origin to an S3 error.
fn told(error: OriginError, fronted: &Fronted) -> S3Error {
    let upstream = &fronted.binding.upstream;
    let of = |code: Code| {
        S3Error::new(code).message(format!("The upstream {upstream:?}: {error}.")).caused_by(&error)
    };
    match &error {
        OriginError::NoSuchKey => S3Error::new(Code::NoSuchKey),
        OriginError::NoSuchBucket => of(Code::NoSuchBucket),
        OriginError::Denied(_) => of(Code::AccessDenied),
        OriginError::Throttled(_) => of(Code::SlowDown),
        OriginError::Failed(_)
        | OriginError::Unreachable(_)
        | OriginError::Broken(_)
        | OriginError::TimedOut
        | OriginError::Unconfirmed(_)
        | OriginError::WrongBytes(_)
        | OriginError::Nonsense(_) => of(Code::ServiceUnavailable),
        OriginError::Refused { status, code, .. } => of(code_of(*status, code)),
        OriginError::NotModified(_) | OriginError::Changed | OriginError::OutOfRange(_) => {
            of(Code::InternalError)
        }
    }
}

/// Returns the code of a refusal: the origin's own, if S3 has that code with that status.
fn code_of(status: u16, code: &str) -> Code {
    let own = Code::named(code).filter(|code| code.status() == status);
    own.unwrap_or(match status {
        404 => Code::NoSuchKey,
        405 => Code::MethodNotAllowed,
        409 => Code::OperationAborted,
        411 => Code::MissingContentLength,
        412 => Code::PreconditionFailed,
        501 => Code::NotImplemented,
        400..=499 => Code::InvalidRequest,
        _ => Code::InternalError,
    })
}

/// Translates an error of an origin on a write to an S3 error.
fn told_of_write(error: OriginError, fronted: &Fronted) -> S3Error {
    match &error {
        OriginError::Changed => S3Error::new(Code::PreconditionFailed).caused_by(&error),
        OriginError::OutOfRange(_) => S3Error::new(Code::InvalidRange).caused_by(&error),
        _ => told(error, fronted),
    }
}
