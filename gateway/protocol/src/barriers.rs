//! Barriers of requests: what a request reads contains every change that any node acknowledged before it.
//!
//! A read of a key waits for the group of the key. It waits for the system group only before it reports that
//! a bucket, key or upload does not exist, because the copy of the bucket on this node may be an old one. A
//! read of a whole bucket waits for the system group too, since the bucket may have been deleted elsewhere.
//! Most changes also wait for it: they cannot be repeated once their body was read. The waits for both groups
//! begin at once. If the bucket is another one afterwards, its group is waited for then. A copy waits for the
//! groups of both keys. An access key that this node does not have is looked up again after a barrier. A
//! server without peers has no barriers.
//!
//! A PUT without conditions does not wait if barriers of both groups have passed within the last 20 ms. What
//! it reads decides nothing that its group does not decide again when it applies the change. If the group
//! then has no such bucket, the bucket may have been replaced by one of the same name, so the system group is
//! waited for before that is reported
//! ([decision](../../../docs/decisions/2026-11-29-put-without-barriers.md)).
//!
//! Before a request is authenticated, its node has passed a barrier of the system group within the last 10 s,
//! or passes one ([`until_recent`]). So a node that does not reach the leader of that group accepts a deleted
//! access key for 10 s at most, although it may reach the leader of the object's group. The command that
//! deletes the key waits longer than that. A task of the node passes such barriers every few seconds, so most
//! requests do not wait.
//!
//! With `cluster.lease_reads` a read does not wait for a group that this node leads under a lease. It reads
//! first, and its answer is current if the lease still holds then. Otherwise it is performed again behind
//! barriers.

use crate::Gateway;
use crate::member::{MemberPart, STALE_HEADER, source_in_header};
use crate::request::AuthenticatedRequest;
use crate::response::S3Result;
use futures_util::future::join;
use http::header::{IF_MATCH, IF_NONE_MATCH, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use mlgw_common::BucketId;
use mlgw_forwarding::UnconfirmedCause;
use mlgw_metadata::{BarrierError, BarrierScope, ReadLeases};
use mlgw_wire::access::RequiredPermission;
use mlgw_wire::copy_source::CopySource;
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::operation::Operation;
use std::collections::BTreeSet;

/// True if no other node can have changed what a request reads.
pub(crate) fn are_needless(gateway: &Gateway) -> bool {
    gateway.member.is_none() || gateway.objects.catalogue.is_alone()
}

/// Attempt to perform a request, by which it waits for a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarrierAttempt {
    /// The first one: a read uses leases.
    First,
    /// A later one, behind barriers.
    Repeated,
}

/// Id of the bucket for whose groups a request waited; `None` if it does not exist.
#[derive(Clone, Copy, PartialEq, Eq)]
struct AwaitedBucket(Option<u64>);

/// State for which a request waited.
pub(crate) struct AwaitedState {
    attempt: BarrierAttempt,
    bucket: AwaitedBucket,
    leases: ReadLeases,
    /// True for a PUT that did not wait, because barriers have passed a moment ago.
    is_put_by_recent_rows: bool,
}

/// Waits until the groups that the request reads contain every acknowledged change.
pub(crate) async fn wait(
    gateway: &Gateway,
    operation: Operation,
    request: &AuthenticatedRequest<'_>,
    attempt: BarrierAttempt,
) -> Result<AwaitedState, BarrierError> {
    let attempt = if is_read(operation) { attempt } else { BarrierAttempt::Repeated };
    let mut leases = ReadLeases::default();
    if let Some(bucket) = bucket_of_recent_rows(gateway, operation, request) {
        return Ok(AwaitedState { attempt, bucket, leases, is_put_by_recent_rows: true });
    }
    let mut bucket = bucket_now(gateway, request);
    if bucket == AwaitedBucket(None) || !is_read(operation) || request.target.key.is_none() {
        // Both groups are waited for at once. Boxed because each request has room for this future.
        let system = Box::pin(begin(gateway, BarrierScope::System, attempt));
        let (system, of_bucket) = join(system, begin_of_bucket(gateway, request, bucket, attempt)).await;
        leases.add(system?);
        if bucket_now(gateway, request) == bucket {
            leases.add(of_bucket?);
        } else {
            bucket = bucket_now(gateway, request);
            leases.add(begin_of_bucket(gateway, request, bucket, attempt).await?);
        }
    } else {
        leases.add(begin_of_bucket(gateway, request, bucket, attempt).await?);
    }
    if let Some(CopySource { bucket, key }) = source_in_header(&request.head.headers)
        && let Some(bucket) = gateway.objects.catalogue.bucket(&bucket)
    {
        leases.add(begin(gateway, BarrierScope::Key(bucket.bucket_id(), &key), attempt).await?);
    }
    if !is_read(operation) && gateway.objects.catalogue.has_sets() {
        ask_usage(gateway, request).await;
    }
    Ok(AwaitedState { attempt, bucket, leases, is_put_by_recent_rows: false })
}

/// The bucket of a PUT of an object without a barrier of its own; `None` for any other request. Conditions
/// and quotas are checked before the body is read, which may refuse the request, so current rows are needed
/// for these.
fn bucket_of_recent_rows(
    gateway: &Gateway,
    operation: Operation,
    request: &AuthenticatedRequest<'_>,
) -> Option<AwaitedBucket> {
    let headers = &request.head.headers;
    if operation != Operation::PutObject
        || headers.contains_key(IF_MATCH)
        || headers.contains_key(IF_NONE_MATCH)
    {
        return None;
    }
    let key = request.target.key.as_ref()?;
    let objects = &gateway.objects;
    let bucket = objects.catalogue.bucket(request.target.bucket.as_deref()?)?;
    let is_enough = bucket.binding.is_none()
        && objects.catalogue.has_recent_rows_for_put(bucket.bucket_id(), key)
        && !objects.has_quota(&bucket, request.principal.payer());
    is_enough.then_some(AwaitedBucket(Some(bucket.id)))
}

/// Asks for the usage that the check of a quota needs, on a node that has not all groups.
async fn ask_usage(gateway: &Gateway, request: &AuthenticatedRequest<'_>) {
    let name = request.target.bucket.as_deref();
    if let Some(bucket) = name.and_then(|name| gateway.objects.catalogue.bucket(name)) {
        gateway.objects.ask_quota_usage(&bucket, request.principal.payer()).await;
    }
}

/// Waits until the rows of the system group, such as access keys, contain every change that was acknowledged
/// more than 10 s ago. Call this before the request is authenticated. Returns at once if a barrier has passed
/// since, and on a server without peers.
///
/// # Errors
/// That of the barrier. Then the request is refused, or it is a read for which [`is_read_stale`] is true.
pub(crate) async fn until_recent(gateway: &Gateway) -> Result<(), BarrierError> {
    match gateway.objects.catalogue.has_recent_system_rows() {
        true => Ok(()),
        // Boxed because it is rare, and each request has room for it.
        false => Box::pin(pass(gateway, BarrierScope::System)).await,
    }
}

/// Waits until the rows of the system group, such as buckets and access keys, contain every acknowledged
/// change. Returns at once on a server without peers.
pub(crate) async fn until_system(gateway: &Gateway) -> Result<(), S3Error> {
    pass(gateway, BarrierScope::System).await.map_err(unavailable)
}

/// True if the request is answered from the rows of this node after its barrier ended with this error.
pub(crate) fn is_read_stale(gateway: &Gateway, operation: Operation, error: BarrierError) -> bool {
    let is_allowed = gateway.member.as_ref().is_some_and(MemberPart::reads_stale);
    let is_lost = match error {
        BarrierError::NotLeader { .. } | BarrierError::NoQuorum => true,
        BarrierError::Stopping => false,
    };
    is_allowed && is_lost && is_read(operation)
}

/// Marks the answer of a read that no majority has confirmed. What was not found may exist: that is the error
/// of the barrier. Other errors follow from the old rows too, such as a condition that does not hold.
pub(crate) fn mark_stale(answered: S3Result, error: BarrierError) -> S3Result {
    let mark = HeaderValue::from_static("true");
    match answered {
        Ok(mut response) => {
            response.headers_mut().insert(STALE_HEADER, mark);
            Ok(response)
        }
        Err(missing) if missing.status() == StatusCode::NOT_FOUND => Err(unavailable(error)),
        Err(refused) => Err(refused.header(STALE_HEADER, mark)),
    }
}

/// True if a request read current rows of the bucket for which it waited. Waits for the system group first if
/// the read found nothing. Only a read can be repeated; a change of a bucket that is gone is rejected by its
/// group.
///
/// # Errors
/// That of the barrier. 503 if a PUT did not wait, and its bucket was replaced.
pub(crate) async fn is_current(
    gateway: &Gateway,
    operation: Operation,
    request: &AuthenticatedRequest<'_>,
    awaited: AwaitedState,
    found_nothing: bool,
) -> Result<bool, S3Error> {
    if !is_read(operation) {
        if awaited.is_put_by_recent_rows && found_nothing {
            until_system(gateway).await?;
            if bucket_now(gateway, request) != awaited.bucket {
                return Err(bucket_replaced());
            }
        }
        return Ok(true);
    }
    if !awaited.leases.hold() {
        return Ok(false);
    }
    let system = match found_nothing {
        true => begin(gateway, BarrierScope::System, awaited.attempt).await.map_err(unavailable)?,
        false => ReadLeases::default(),
    };
    Ok(bucket_now(gateway, request) == awaited.bucket && system.hold())
}

/// Returns `verified`, the result of `verify`, unless its access key is unknown here. That may be a new one,
/// so the rows of access keys are current before it is refused.
pub(crate) async fn authenticate<T>(
    gateway: &Gateway,
    verified: Result<T, S3Error>,
    verify: impl FnOnce() -> Result<T, S3Error>,
) -> Result<T, S3Error> {
    let is_unknown = verified.as_ref().is_err_and(|error| error.code() == Code::InvalidAccessKeyId);
    if !is_unknown || are_needless(gateway) {
        return verified;
    }
    until_system(gateway).await?;
    verify()
}

fn bucket_now(gateway: &Gateway, request: &AuthenticatedRequest<'_>) -> AwaitedBucket {
    let name = request.target.bucket.as_deref();
    AwaitedBucket(name.and_then(|name| gateway.objects.catalogue.bucket(name)).map(|bucket| bucket.id))
}

pub(crate) const fn is_read(operation: Operation) -> bool {
    matches!(operation.action(), RequiredPermission::Read | RequiredPermission::List)
}

/// Reason why this node cannot confirm its rows; `None` if it stops.
pub(crate) const fn unconfirmed_cause(error: BarrierError) -> Option<UnconfirmedCause> {
    match error {
        BarrierError::NotLeader { .. } => Some(UnconfirmedCause::Leader),
        BarrierError::NoQuorum => Some(UnconfirmedCause::Majority),
        BarrierError::Stopping => None,
    }
}

/// Begins to read rows of `scope`.
async fn begin(
    gateway: &Gateway,
    scope: BarrierScope<'_>,
    attempt: BarrierAttempt,
) -> Result<ReadLeases, BarrierError> {
    let catalogue = &gateway.objects.catalogue;
    match attempt {
        BarrierAttempt::First => unless_lost(gateway, scope, catalogue.begin_read(scope)).await,
        BarrierAttempt::Repeated => pass(gateway, scope).await.map(|()| ReadLeases::default()),
    }
}

/// Begins to read rows of the key of a request in a bucket, or of the whole bucket.
async fn begin_of_bucket(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
    bucket: AwaitedBucket,
    attempt: BarrierAttempt,
) -> Result<ReadLeases, BarrierError> {
    let AwaitedBucket(Some(id)) = bucket else { return Ok(ReadLeases::default()) };
    let scope = match &request.target.key {
        Some(key) => BarrierScope::Key(BucketId(id), key),
        None => BarrierScope::Bucket(BucketId(id)),
    };
    begin(gateway, scope, attempt).await
}

async fn pass(gateway: &Gateway, scope: BarrierScope<'_>) -> Result<(), BarrierError> {
    unless_lost(gateway, scope, gateway.objects.catalogue.barrier(scope)).await
}

/// Waits for a barrier, on a member only while most voters of its groups answer.
async fn unless_lost<T>(
    gateway: &Gateway,
    scope: BarrierScope<'_>,
    barrier: impl Future<Output = Result<T, BarrierError>>,
) -> Result<T, BarrierError> {
    match &gateway.member {
        Some(member) => {
            let has_any_in = |lost: &BTreeSet<u32>| gateway.objects.catalogue.has_any_in(scope, lost);
            member.unless_lost(has_any_in, barrier).await
        }
        None => barrier.await,
    }
}

/// Returns the error of a PUT to a bucket that was replaced by one of the same name a moment before.
fn bucket_replaced() -> S3Error {
    S3Error::new(Code::ServiceUnavailable)
        .field("Reason", "BucketReplaced")
        .header(RETRY_AFTER, HeaderValue::from_static(S3Error::RETRY_AFTER_SECS))
        .message("The bucket was deleted and created again. Nothing was stored. Send the request again.")
}

/// Returns the error of a request whose barrier was not passed.
pub(crate) fn unavailable(error: BarrierError) -> S3Error {
    S3Error::new(Code::ServiceUnavailable)
        .field("Reason", unconfirmed_cause(error).map_or("Stopping", UnconfirmedCause::name))
        .header(RETRY_AFTER, HeaderValue::from_static(S3Error::RETRY_AFTER_SECS))
        .caused_by(error.to_string())
        .message(UnconfirmedCause::MESSAGE)
}

#[cfg(test)]
mod tests {
    use super::mark_stale;
    use crate::member::STALE_HEADER;
    use crate::response::empty;
    use bytes::Bytes;
    use http::StatusCode;
    use mlgw_metadata::BarrierError;
    use mlgw_wire::error::{Code, S3Error};

    #[test]
    fn answers_from_old_rows_are_marked_and_none_states_that_an_object_does_not_exist() {
        let found = mark_stale(Ok(empty(StatusCode::OK)), BarrierError::NoQuorum).expect("an answer");
        assert_eq!(found.headers()[STALE_HEADER], "true");
        let refused = |code| {
            let Err(refused) = mark_stale(Err(S3Error::new(code)), BarrierError::NoQuorum) else {
                panic!("an error")
            };
            refused.into_response::<Bytes>("/b/k", "id")
        };
        let failed = refused(Code::PreconditionFailed);
        assert_eq!(failed.status(), StatusCode::PRECONDITION_FAILED);
        assert_eq!(failed.headers()[STALE_HEADER], "true");
        let missing = refused(Code::NoSuchKey);
        assert_eq!(missing.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(!missing.headers().contains_key(STALE_HEADER));
    }
}
