//! Barriers of requests: what a request reads contains every change that any node acknowledged before it.
//!
//! A read waits for the groups of its keys. It waits for the system group only before it reports that a
//! bucket, key or upload does not exist, because the copy of the bucket on this node may be an old one. A
//! change also waits for the system group first: it cannot be repeated once its body was read. A server
//! without peers has no barriers.

use crate::Gateway;
use crate::request::AuthenticatedRequest;
use http::StatusCode;
use mlgw_metadata::{BarrierError, BarrierScope};
use mlgw_wire::access::RequiredPermission;
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::operation::Operation;

/// True if no other node can have changed what a request reads.
pub(crate) fn are_needless(gateway: &Gateway) -> bool {
    gateway.objects.catalogue.is_alone()
}

/// Waits until the groups that the request reads contain every acknowledged change.
pub(crate) async fn wait(
    gateway: &Gateway,
    operation: Operation,
    request: &AuthenticatedRequest<'_>,
) -> Result<(), S3Error> {
    let catalogue = &gateway.objects.catalogue;
    let name = request.target.bucket.as_deref();
    let is_known = name.is_some_and(|name| catalogue.bucket(name).is_some());
    if !is_known || !is_read(operation) {
        pass(gateway, BarrierScope::System).await?;
    }
    // The source of a copy may be in any group.
    if request.head.headers.contains_key("x-amz-copy-source") {
        return pass(gateway, BarrierScope::AllGroups).await;
    }
    let Some(bucket) = name.and_then(|name| catalogue.bucket(name)) else { return Ok(()) };
    let scope = match &request.target.key {
        Some(key) => BarrierScope::Key(bucket.bucket_id(), key),
        None => BarrierScope::Bucket(bucket.bucket_id()),
    };
    pass(gateway, scope).await
}

/// Waits for the system group after a read found nothing. Returns true if the bucket is another one since, so
/// that the read has to be repeated.
pub(crate) async fn is_outdated(
    gateway: &Gateway,
    operation: Operation,
    request: &AuthenticatedRequest<'_>,
    error: &S3Error,
) -> Result<bool, S3Error> {
    let is_absent = error.status() == StatusCode::NOT_FOUND;
    let Some(name) = request.target.bucket.as_deref().filter(|_| is_absent && is_read(operation)) else {
        return Ok(false);
    };
    let found = || gateway.objects.catalogue.bucket(name).map(|bucket| bucket.id);
    let before = found();
    pass(gateway, BarrierScope::System).await?;
    Ok(found() != before)
}

const fn is_read(operation: Operation) -> bool {
    matches!(operation.action(), RequiredPermission::Read | RequiredPermission::List)
}

async fn pass(gateway: &Gateway, scope: BarrierScope<'_>) -> Result<(), S3Error> {
    gateway.objects.catalogue.barrier(scope).await.map_err(unavailable)
}

fn unavailable(error: BarrierError) -> S3Error {
    S3Error::new(Code::ServiceUnavailable)
        .caused_by(error.to_string())
        .message("This node cannot confirm that it has the newest state. Try again, or use another node.")
}
