//! Operations on remote-backed buckets, whose objects are at an origin.
//!
//! Responses carry the origin's own ETag, time and headers. Operations that are not offered here are refused
//! with a message that names them. Operations of local buckets never run on a remote-backed bucket, because
//! [`Gateway::bucket`] refuses it. In write-through mode a write is acknowledged when the origin has it, and
//! refusals of the origin are returned to the client. In write-back mode PutObject, uploads and deletes are
//! acknowledged when they are durable here ([`write_back`]). Every other write goes through to the origin,
//! after all writes that were acknowledged before have reached it.

mod copy;
mod list;
mod listed_line;
mod listing_token;
mod merge;
mod multipart;
mod passed_headers;
mod read;
mod remote_copy_source;
mod send;
mod shown_etags;
mod tagging;
mod write_back;
mod write_back_uploads;
mod write_through;

pub use remote_copy_source::RemoteCopySource;

pub(crate) use remote_copy_source::FoundCopySource;

use super::request::{AuthenticatedRequest, RequestTarget};
use super::response::S3Result;
use super::{Gateway, IncomingBody, bucket, bucket_config};
use mlgw_cache::remote_backed::{BucketWriteGuard, CachedBucket};
use mlgw_cache::writeback::WriteBackQueue;
use mlgw_formats::schema::{BindMode, Binding, Bucket};
use mlgw_objects::{ObjectMetrics, ResourceShortage};
use mlgw_remote::origin::OriginError;
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::operation::{Operation, Support, Supported};
use std::sync::Arc;

/// A remote-backed bucket with its binding.
#[derive(Clone)]
pub struct RemoteBackedBucket {
    bucket: Arc<Bucket>,
    binding: Binding,
    cached: CachedBucket,
    /// Queue of the writes that the origin does not have yet, in write-back mode.
    queue: Option<Arc<WriteBackQueue>>,
    /// Pass of a writer: the bucket is not bound elsewhere until the last clone of it is dropped.
    write_pass: Option<Arc<BucketWriteGuard>>,
    /// Counts requests that the origin throttles.
    metrics: Arc<ObjectMetrics>,
}

/// Returns the bucket that a request names if it is remote-backed.
///
/// # Errors
/// `ServiceUnavailable` if its upstream is no longer configured.
pub fn find_for_request(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
) -> Result<Option<RemoteBackedBucket>, S3Error> {
    let Some(name) = request.target.bucket.as_deref() else { return Ok(None) };
    find_by_name(gateway, name)
}

/// Returns the bucket of this name if it is remote-backed.
fn find_by_name(gateway: &Gateway, name: &str) -> Result<Option<RemoteBackedBucket>, S3Error> {
    let Ok(bucket) = gateway.objects.bucket(name) else { return Ok(None) };
    let Some(binding) = &bucket.binding else { return Ok(None) };
    let Some(bound) = gateway.remote_backed.bucket(&bucket, binding) else {
        let upstream = &binding.upstream;
        let why = format!(
            "The bucket is bound to the upstream {upstream:?}, which is not configured on this server."
        );
        return Err(S3Error::new(Code::ServiceUnavailable).message(why).caused_by("no such upstream"));
    };
    let (binding, queue) = (binding.clone(), gateway.writeback.queue(&bucket)?);
    let metrics = gateway.objects.metrics.clone();
    Ok(Some(RemoteBackedBucket { bucket, binding, cached: bound, queue, write_pass: None, metrics }))
}

/// Returns the bucket with a pass, as it stays bound until the write is done.
async fn with_write_pass(
    gateway: &Gateway,
    remote_backed: RemoteBackedBucket,
) -> Result<RemoteBackedBucket, S3Error> {
    let pass = Some(Arc::new(remote_backed.cached.begin_write().await));
    // The bucket may have been bound elsewhere, or deleted, since it was looked up.
    let found = find_by_name(gateway, &remote_backed.bucket.name)?
        .filter(|now| now.bucket.id == remote_backed.bucket.id);
    let now = found.ok_or_else(|| S3Error::new(Code::NoSuchBucket))?;
    Ok(RemoteBackedBucket { write_pass: pass, ..now })
}

/// True if the request's bucket is in write-through mode.
#[must_use]
pub fn is_written_through(gateway: &Gateway, target: &RequestTarget) -> bool {
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
    request: &AuthenticatedRequest<'_>,
    body: IncomingBody<'_>,
    remote_backed: RemoteBackedBucket,
) -> S3Result {
    use Supported as S;
    use write_back_uploads as uploads;
    let not_offered =
        || Err(not_offered(&remote_backed.bucket.name, &remote_backed.binding, operation.name()));
    let supported = match operation.support() {
        Support::Full(supported) => supported,
        Support::Absent(absent) => return bucket_config::absent_configuration(gateway, request, absent),
        Support::None => return not_offered(),
    };
    match supported {
        S::GetObject => match write_back::get_object(gateway, request, &remote_backed).await? {
            Some(dirty) => Ok(dirty),
            None => read::get_object(gateway, request, &remote_backed).await,
        },
        S::HeadObject => match write_back::head_object(gateway, request, &remote_backed).await? {
            Some(dirty) => Ok(dirty),
            None => read::head_object(request, &remote_backed).await,
        },
        S::ListObjects => list::list_objects(request, &remote_backed).await,
        S::ListObjectsV2 => list::list_objects_v2(request, &remote_backed).await,
        S::HeadBucket => bucket::head(gateway, request),
        S::GetBucketLocation => bucket::location(gateway, request),
        S::DeleteBucket => Err(S3Error::new(Code::NotImplemented).message(format!(
            "The bucket {0:?} is bound to the upstream {1:?}; to remove it from this server, run `mlgw \
             bucket unbind {0}`. Its objects stay at the upstream.",
            remote_backed.bucket.name, remote_backed.binding.upstream
        ))),
        S::CreateBucket => Err(S3Error::new(Code::BucketAlreadyOwnedByYou)),
        S::GetObjectTagging => {
            write_back::wait_before_origin(request, operation, &remote_backed).await?;
            tagging::get(request, &remote_backed).await
        }
        S::GetObjectAttributes => {
            write_back::wait_before_origin(request, operation, &remote_backed).await?;
            read::attributes(request, &remote_backed).await
        }
        S::ListParts => match uploads::find(gateway, request, &remote_backed)? {
            Some((named, record)) => {
                uploads::with_upload(gateway, operation, request, &remote_backed, body, named, record).await
            }
            None => multipart::list_parts(request, &remote_backed).await,
        },
        S::ListMultipartUploads if remote_backed.queue.is_some() => {
            uploads::list_uploads(gateway, request, &remote_backed)
        }
        S::ListMultipartUploads => multipart::list_uploads(request, &remote_backed).await,
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
        | S::DeleteObjectTagging => {
            dispatch_write(gateway, operation, supported, request, body, remote_backed).await
        }
        S::ListBuckets | S::ListObjectVersions | S::PostObject => not_offered(),
    }
}

/// Answers a request that changes objects.
async fn dispatch_write(
    gateway: &Arc<Gateway>,
    operation: Operation,
    supported: Supported,
    request: &AuthenticatedRequest<'_>,
    body: IncomingBody<'_>,
    remote_backed: RemoteBackedBucket,
) -> S3Result {
    use Supported as S;
    if remote_backed.binding.mode() == BindMode::ReadThrough {
        return Err(read_only_error(&remote_backed));
    }
    let bucket = &with_write_pass(gateway, remote_backed).await?;
    // Held until the write is done.
    let mut _turn = None;
    if let Some(queue) = &bucket.queue {
        match supported {
            S::PutObject if write_back::can_queue(gateway, request) => {
                return write_back::put_object(gateway, request, bucket, queue, body).await;
            }
            S::DeleteObject if !write_back::is_conditional(request) => {
                return write_back::delete_object(gateway, request, bucket, queue).await;
            }
            S::DeleteObjects => {
                return write_back::delete_objects(gateway, request, bucket, queue, body).await;
            }
            S::CreateMultipartUpload => {
                return write_back_uploads::create(gateway, request, bucket).await;
            }
            S::UploadPart | S::UploadPartCopy | S::CompleteMultipartUpload | S::AbortMultipartUpload => {
                if let Some((named, record)) = write_back_uploads::find(gateway, request, bucket)? {
                    return write_back_uploads::with_upload(
                        gateway, operation, request, bucket, body, named, record,
                    )
                    .await;
                }
                if supported == S::CompleteMultipartUpload
                    && let Some(done) =
                        write_back_uploads::repeated_complete(gateway, request, bucket, queue).await?
                {
                    return Ok(done);
                }
            }
            // Go through to the origin.
            S::CopyObject | S::DeleteObject | S::PutObject => {}
            S::PutObjectTagging | S::DeleteObjectTagging => {}
            // Not dispatched as writes.
            S::ListBuckets | S::CreateBucket | S::HeadBucket | S::DeleteBucket | S::GetBucketLocation => {}
            S::ListObjects | S::ListObjectsV2 | S::ListObjectVersions | S::ListMultipartUploads => {}
            S::GetObject | S::HeadObject | S::GetObjectAttributes | S::GetObjectTagging => {}
            S::ListParts | S::PostObject => {}
        }
        _turn = write_back::wait_before_origin(request, operation, bucket).await?;
    }
    write_at_origin(gateway, operation, supported, request, body, bucket).await
}

/// Writes at the origin.
async fn write_at_origin(
    gateway: &Arc<Gateway>,
    operation: Operation,
    supported: Supported,
    request: &AuthenticatedRequest<'_>,
    body: IncomingBody<'_>,
    remote_backed: &RemoteBackedBucket,
) -> S3Result {
    use Supported as S;
    match supported {
        S::PutObject => write_through::put_object(request, remote_backed, body).await,
        S::DeleteObject => write_through::delete_object(request, remote_backed).await,
        S::DeleteObjects => write_through::delete_objects(gateway, request, remote_backed, body).await,
        S::CopyObject => copy::copy_object(gateway, request, remote_backed).await,
        S::CreateMultipartUpload => multipart::create(request, remote_backed).await,
        S::UploadPart => multipart::upload_part(request, remote_backed, body).await,
        S::UploadPartCopy => copy::upload_part_copy(gateway, request, remote_backed).await,
        S::CompleteMultipartUpload => multipart::complete(request, remote_backed, body).await,
        S::AbortMultipartUpload => multipart::abort(request, remote_backed).await,
        S::PutObjectTagging => tagging::put(request, remote_backed, body).await,
        S::DeleteObjectTagging => tagging::delete(request, remote_backed).await,
        S::ListBuckets
        | S::CreateBucket
        | S::HeadBucket
        | S::DeleteBucket
        | S::GetBucketLocation
        | S::ListObjects
        | S::ListObjectsV2
        | S::ListObjectVersions
        | S::ListMultipartUploads
        | S::PostObject
        | S::GetObject
        | S::HeadObject
        | S::GetObjectAttributes
        | S::GetObjectTagging
        | S::ListParts => {
            Err(not_offered(&remote_backed.bucket.name, &remote_backed.binding, operation.name()))
        }
    }
}

/// Returns the refusal of an operation that is only available at the origin.
pub fn not_offered(bucket: &str, binding: &Binding, what: &str) -> S3Error {
    let upstream = &binding.upstream;
    S3Error::new(Code::NotImplemented).message(format!(
        "{what} is not implemented for the bucket {bucket:?}, which is bound to the upstream {upstream:?}; \
         send the request to the origin."
    ))
}

fn read_only_error(remote_backed: &RemoteBackedBucket) -> S3Error {
    let (bucket, upstream) = (&remote_backed.bucket.name, &remote_backed.binding.upstream);
    S3Error::new(Code::AccessDenied).message(format!(
        "The bucket {bucket:?} is bound read-through to the upstream {upstream:?} and is read-only."
    ))
}

/// Translates an error of an origin to an S3 error. A throttling origin is counted as a shortage.
fn origin_error(error: OriginError, remote_backed: &RemoteBackedBucket) -> S3Error {
    let upstream = &remote_backed.binding.upstream;
    let of =
        |code: Code| S3Error::new(code).message(format!("Upstream {upstream:?}: {error}.")).caused_by(&error);
    match &error {
        OriginError::NoSuchKey => S3Error::new(Code::NoSuchKey),
        OriginError::NoSuchBucket => of(Code::NoSuchBucket),
        OriginError::Denied(_) => of(Code::AccessDenied),
        OriginError::Throttled(_) => {
            remote_backed.metrics.throttle(ResourceShortage::Origin);
            of(Code::SlowDown).with_shortage(ResourceShortage::Origin.name())
        }
        OriginError::Failed(_)
        | OriginError::Unreachable(_)
        | OriginError::ConnectionLost(_)
        | OriginError::TimedOut
        | OriginError::Unconfirmed(_)
        | OriginError::WrongBytes(_)
        | OriginError::InvalidResponse(_) => of(Code::ServiceUnavailable),
        OriginError::Refused { status, code, .. } => of(refusal_code(*status, code)),
        OriginError::NotModified(_) | OriginError::Changed | OriginError::OutOfRange(_) => {
            of(Code::InternalError)
        }
    }
}

/// Returns the code of a refusal: the origin's own, if S3 has that code with that status.
fn refusal_code(status: u16, code: &str) -> Code {
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
fn origin_write_error(error: OriginError, remote_backed: &RemoteBackedBucket) -> S3Error {
    match &error {
        OriginError::Changed => S3Error::new(Code::PreconditionFailed).caused_by(&error),
        OriginError::OutOfRange(_) => S3Error::new(Code::InvalidRange).caused_by(&error),
        _ => origin_error(error, remote_backed),
    }
}
