//! The S3 protocol: from the head of a request to its response.
//!
//! Each request passes the same steps: derive its operation ([`operation`]), authenticate the caller
//! ([`mlgw_auth`]), check its headers against the table ([`headers`]), check the caller's rights, then call
//! the handler in the module of the operation's family. Only caches outlive a request here, so nothing is
//! lost at a power failure. A success is returned only after the catalogue has acknowledged the change.

mod access_hooks;
pub mod attributes;
mod barriers;
mod boxed;
pub mod bucket;
pub mod bucket_config;
pub mod client_body;
pub mod conditions;
pub(crate) mod copied_object;
pub mod copy;
pub mod delete;
pub mod document;
pub mod edge;
pub mod forwarded;
pub mod get;
pub mod keep_alive;
pub mod list;
mod list_versions;
pub mod member;
pub mod multipart;
pub mod object_headers;
mod observed_response;
pub mod post_object;
pub mod put;
pub mod remote_backed;
pub mod request;
pub mod request_ids;
pub mod response;
pub mod tagging;
mod unsigned;
pub mod upload_ids;

#[cfg(test)]
mod documentation;
#[cfg(test)]
mod forwarding_tests;

use barriers::BarrierAttempt;
use boxed::boxed_in_place;
use client_body::ReceivedClientBody;
use error::{Code, S3Error};
use http::request::Parts;
use http::{HeaderName, HeaderValue, StatusCode, header};
use lanes::WorkloadLanes;
use member::{MemberPart, NODE_HEADER};
use mlgw_auth::principal::Principal;
use mlgw_auth::{AuthRules, BodyRequirement, authenticate};
use mlgw_body::BodyTerms;
use mlgw_cache::policy_driver::PolicyDriver;
use mlgw_cache::remote_backed::RemoteBackedBuckets;
use mlgw_cache::writeback::WriteBack;
use mlgw_common::{Clock, Timestamp};
use mlgw_credentials::Keyring;
use mlgw_formats::checksum::{Algorithm, DEFAULT_ALGORITHM};
use mlgw_formats::schema::Bucket;
use mlgw_listener::Peer;
use mlgw_listener::pace::PacedRequestBody;
use mlgw_metadata::BarrierError;
use mlgw_objects::ObjectLayer;
use mlgw_objects::etag::EtagSource;
use mlgw_objects::memory::Account;
use mlgw_objects::stages::{follow, stage_sync};
use mlgw_policy_runtime::Policies;
use mlgw_telemetry::GatewayMetrics;
use mlgw_telemetry::observed::{Arrival, Observed};
use mlgw_telemetry::request_record::RequestFailure;
use mlgw_wire::error;
use mlgw_wire::headers;
use mlgw_wire::lanes;
use mlgw_wire::operation;
use mlgw_wire::target;
use mlgw_wire::values;
use operation::{Operation, ResourceLevel, Support, Supported};
use request::{AuthenticatedRequest, Query, RequestTarget};
use request_ids::RequestIds;
use response::{S3Response, S3Result};
use std::pin::pin;
use std::sync::Arc;
use target::HttpRequestView;
use upload_ids::UploadIds;

static REQUEST_ID_HEADER: HeaderName = HeaderName::from_static("x-amz-request-id");
static STORAGE_CLASS_HEADER: HeaderName = HeaderName::from_static("x-amz-storage-class");

/// Settings of the protocol.
#[derive(Clone, Debug)]
pub struct S3Config {
    /// Base names whose sub-domains are buckets.
    pub domains: Vec<String>,
    /// The region that buckets report.
    pub region: String,
    /// Rules by which signatures are verified.
    pub rules: AuthRules,
}

/// Handles that operations use.
pub struct Gateway {
    /// The object layer.
    pub objects: Arc<ObjectLayer>,
    /// The remote-backed buckets.
    pub remote_backed: RemoteBackedBuckets,
    /// The cache policy driver, which records every access and decides which blocks of remote-backed
    /// buckets are kept.
    pub policy_driver: PolicyDriver,
    /// The policies in force.
    pub policies: Arc<Policies>,
    /// Queues of writes that are not yet at their origins.
    pub writeback: WriteBack,
    /// Access keys and their rights.
    pub keyring: Keyring,
    /// The encryption of upload ids.
    pub upload_ids: UploadIds,
    /// The protocol's settings.
    pub config: S3Config,
    /// Lanes: shares of the disks by class of traffic.
    pub lanes: WorkloadLanes,
    /// Metrics of requests.
    pub metrics: Arc<GatewayMetrics>,
    /// The source of the current time.
    pub clock: Arc<dyn Clock>,
    /// Ids of requests.
    pub ids: Arc<RequestIds>,
    /// Part of this node in its cluster; `None` for a server without peers.
    pub member: Option<MemberPart>,
}

/// Answers one request.
pub async fn handle(
    gateway: Arc<Gateway>,
    request: http::Request<PacedRequestBody>,
    peer: Peer,
) -> S3Response {
    let (head, body) = request.into_parts();
    let now = gateway.clock.now();
    let assigned = gateway.ids.assign(now);
    let arrival = assigned.arrival(now, &peer);
    respond(&gateway, head, ReceivedClientBody::Direct(body), &peer.account, arrival, now).await
}

/// Refuses one request before it is authenticated.
fn refuse(gateway: &Gateway, head: &Parts, peer: &Peer, error: S3Error) -> S3Response {
    let now = gateway.clock.now();
    let assigned = gateway.ids.assign(now);
    let mut observed = gateway.metrics.begin();
    observed.record_arrival(assigned.arrival(now, peer), head);
    finish(gateway, Err(error), observed, head, &assigned.id)
}

/// Answers a request that a client or another node sent. `now` is the time of this node; signatures are
/// judged by the time of the arrival.
async fn respond(
    gateway: &Arc<Gateway>,
    mut head: Parts,
    body: ReceivedClientBody,
    memory: &Account,
    arrival: Arrival<'_>,
    now: Timestamp,
) -> S3Response {
    let mut body = Some(body);
    let mut observed = gateway.metrics.begin();
    observed.record_arrival(arrival, &head);
    let times = RequestTimes { received: arrival.time, now };
    let answered = {
        let stages = observed.stages();
        let answer = pin!(answer(gateway, memory, &mut head, &mut body, times, &mut observed));
        follow(stages, answer).await
    };
    finish(gateway, answered, observed, &head, arrival.id)
}

/// Completes the response to a request that this node served or refused. In a cluster it names this node.
fn finish(
    gateway: &Gateway,
    answered: S3Result,
    mut observed: Observed,
    head: &Parts,
    id: &str,
) -> S3Response {
    let mut response = match answered {
        Ok(mut response) => {
            add_headers(&mut response, id);
            response
        }
        Err(error) => finish_error(error, &mut observed, head, id),
    };
    if let Some(member) = &gateway.member {
        response.headers_mut().insert(NODE_HEADER, member.header.clone());
    }
    observed_response::observe_response(observed, head, &mut response);
    response
}

/// Returns the response to a request that failed, and records its error.
fn finish_error(error: S3Error, observed: &mut Observed, head: &Parts, id: &str) -> S3Response {
    observed.record_failure(RequestFailure { code: error.code(), shortage: error.shortage() });
    if let Some(cause) = error.cause() {
        log_cause(&error, cause, id);
    }
    let mut response = error.into_response(head.uri.path(), id);
    add_headers(&mut response, id);
    response
}

fn add_headers(response: &mut S3Response, id: &str) {
    let headers = response.headers_mut();
    headers.insert(&REQUEST_ID_HEADER, values::header_value(id));
    headers.insert(header::SERVER, HeaderValue::from_static("mlgw"));
}

/// Times of a request.
#[derive(Clone, Copy, Debug)]
struct RequestTimes {
    /// Time at which the node of the client's connection received the head, by the clock of that node.
    received: Timestamp,
    /// Time at which this node began to answer.
    now: Timestamp,
}

/// Logs internal failures as errors. Mistakes of clients and requests for absent things are logged at debug
/// level.
fn log_cause(error: &S3Error, cause: &str, request_id: &str) {
    if error.status().is_server_error() && error.code() != Code::NotImplemented {
        tracing::error!(code = error.code().as_str(), cause, request_id, "request failed");
    } else {
        tracing::debug!(code = error.code().as_str(), cause, request_id, "request refused");
    }
}

async fn answer(
    gateway: &Arc<Gateway>,
    memory: &Account,
    head: &mut Parts,
    incoming: &mut Option<ReceivedClientBody>,
    times: RequestTimes,
    observed: &mut Observed,
) -> S3Result {
    headers::check_size(head)?;
    let target = RequestTarget::parse(head, &gateway.config.domains)?;
    let query = Query::parse(head.uri.query().unwrap_or_default());
    observed.operation = HttpRequestView(head, &query).operation(target.level());
    if unsigned::is_unsigned_call(head, &target, &query) {
        return Box::pin(unsigned::answer(head, &query, incoming)).await;
    }
    if observed.operation == Operation::PostObject {
        HttpRequestView(head, &query).check_query(ResourceLevel::Bucket, Operation::PostObject)?;
        headers::check_headers(&head.headers, Operation::PostObject)?;
        let incoming = incoming.take().ok_or_else(body_already_taken)?;
        return Box::pin(post_object::post_object(gateway, memory, head, &target, incoming, times)).await;
    }
    let needs_no_barriers = barriers::are_needless(gateway);
    let recency = if needs_no_barriers { Ok(()) } else { barriers::until_recent(gateway).await };
    if let Err(error) = recency
        && !barriers::is_read_stale(gateway, observed.operation, error)
    {
        return Err(barriers::unavailable(error));
    }
    let verify = || authenticate(head, &query, &gateway.keyring, times.received, &gateway.config.rules);
    let authenticated = match stage_sync("authenticate", verify) {
        Ok(authenticated) => authenticated,
        Err(error) => Box::pin(barriers::authenticate(gateway, Err(error), verify)).await?,
    };
    let principal = authenticated.principal.ok_or_else(|| unsigned::denied(gateway, &target))?;
    observed.record_caller(&principal.access_key, target.bucket.as_deref());
    // Not earlier: a signature covers the query as it was sent.
    if headers::hoist(&mut head.headers, &query)? {
        observed.operation = HttpRequestView(head, &query).operation(target.level());
    }
    let operation = observed.operation;
    HttpRequestView(head, &query).check_query(target.level(), operation)?;
    let request =
        AuthenticatedRequest { head, target: &target, query: &query, principal, memory, now: times.now };
    check_headers(gateway, &request, operation)?;
    authorize(&request, operation)?;
    if !barriers::is_read(operation) {
        member::check_clock(gateway)?;
    }
    let incoming = incoming.as_mut().ok_or_else(body_already_taken)?;
    let body = IncomingBody { incoming, payload: authenticated.payload };
    let answered = if needs_no_barriers {
        dispatch(gateway, operation, &request, body).await
    } else {
        boxed_in_place(|| dispatch_with_barriers(gateway, operation, &request, body, recency)).await
    };
    if answered.is_ok() {
        access_hooks::record_change(gateway, operation, &request);
    }
    answered
}

/// Checks that every header is supported, so that none is silently ignored.
fn check_headers(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
    operation: Operation,
) -> Result<(), S3Error> {
    let headers = &request.head.headers;
    if headers.contains_key(&STORAGE_CLASS_HEADER)
        && remote_backed::is_written_through(gateway, request.target)
    {
        return headers::check_headers_for_origin(headers, operation);
    }
    let checked = headers::check_headers(headers, operation);
    match operation {
        Operation::CreateBucket => checked.map_err(|error| bucket::recreate_error(gateway, request, error)),
        _ => checked,
    }
}

fn body_already_taken() -> S3Error {
    S3Error::internal("the request body was taken twice")
}

/// Checks that the caller may perform `operation` on the request's target.
fn authorize(request: &AuthenticatedRequest<'_>, operation: Operation) -> Result<(), S3Error> {
    use Operation as O;
    let key = match operation {
        // DeleteObjects is authorized key by key; ListBuckets shows the buckets that the caller may list.
        O::DeleteObjects | O::ListBuckets => return Ok(()),
        // An access key that is restricted to a prefix may list below that prefix only.
        O::ListObjects | O::ListObjectsV2 | O::ListObjectVersions | O::ListMultipartUploads => {
            Some(request.query.get("prefix")?.unwrap_or_default())
        }
        _ => request.target.key.as_ref().map(|key| key.as_str().into()),
    };
    if request.principal.allows(operation.action(), request.target.bucket.as_deref(), key.as_deref()) {
        return Ok(());
    }
    Err(S3Error::new(Code::AccessDenied))
}

/// Attempts to perform a read whose leases end, or whose bucket is replaced meanwhile.
const BARRIER_ATTEMPTS: [BarrierAttempt; 3] =
    [BarrierAttempt::First, BarrierAttempt::Repeated, BarrierAttempt::Repeated];

/// Performs an operation on a node with peers. `recency` is the result of [`barriers::until_recent`].
async fn dispatch_with_barriers(
    gateway: &Arc<Gateway>,
    operation: Operation,
    request: &AuthenticatedRequest<'_>,
    body: IncomingBody<'_>,
    recency: Result<(), BarrierError>,
) -> S3Result {
    let IncomingBody { incoming, mut payload } = body;
    for attempt in BARRIER_ATTEMPTS {
        let awaited = match recency {
            Ok(()) => barriers::wait(gateway, operation, request, attempt).await,
            Err(error) => Err(error),
        };
        let awaited = match awaited {
            Ok(awaited) => awaited,
            Err(error) if barriers::is_read_stale(gateway, operation, error) => {
                let body = IncomingBody { incoming, payload };
                return barriers::mark_stale(dispatch(gateway, operation, request, body).await, error);
            }
            Err(error) => return Err(barriers::unavailable(error)),
        };
        // Only reads are repeated, which have no body.
        let payload = std::mem::replace(&mut payload, BodyRequirement::Unsigned);
        let body = IncomingBody { incoming: &mut *incoming, payload };
        let answered = dispatch(gateway, operation, request, body).await;
        let found_nothing = answered.as_ref().is_err_and(|error| error.status() == StatusCode::NOT_FOUND);
        if barriers::is_current(gateway, operation, request, awaited, found_nothing).await? {
            return answered;
        }
    }
    Err(S3Error::new(Code::ServiceUnavailable).caused_by("the bucket was replaced again and again"))
}

async fn dispatch(
    gateway: &Arc<Gateway>,
    operation: Operation,
    request: &AuthenticatedRequest<'_>,
    body: IncomingBody<'_>,
) -> S3Result {
    if let Some(bucket) = remote_backed::find_for_request(gateway, request)? {
        return Box::pin(remote_backed::dispatch(gateway, operation, request, body, bucket)).await;
    }
    match operation.support() {
        Support::Full(Supported::GetObject) => get::get_object(gateway, request).await,
        Support::Full(Supported::HeadObject) => get::head_object(gateway, request),
        // The future of the other operations takes tens of kilobytes. It is boxed, so a GET does not pay.
        Support::Full(other) => boxed_in_place(|| dispatch_supported(gateway, other, request, body)).await,
        Support::Absent(absent) => bucket_config::absent_configuration(gateway, request, absent),
        Support::None => Err(S3Error::not_implemented(operation.name())),
    }
}

/// Calls the handler of an operation. The match has no catch-all arm.
async fn dispatch_supported(
    gateway: &Arc<Gateway>,
    operation: Supported,
    request: &AuthenticatedRequest<'_>,
    body: IncomingBody<'_>,
) -> S3Result {
    use Supported as S;
    match operation {
        S::GetObject => get::get_object(gateway, request).await,
        S::HeadObject => get::head_object(gateway, request),
        S::PutObject => put::put_object(gateway, request, body).await,
        S::DeleteObject => delete::delete_object(gateway, request).await,
        S::DeleteObjects => delete::delete_objects(gateway, request, body).await,
        // The futures of copies are the largest. They are boxed to keep the others small.
        S::CopyObject => Box::pin(copy::copy_object(gateway, request)).await,
        S::ListObjects => list::list_objects(gateway, request),
        S::ListObjectsV2 => list::list_objects_v2(gateway, request),
        S::ListObjectVersions => list_versions::list_object_versions(gateway, request),
        S::CreateMultipartUpload => multipart::create(gateway, request).await,
        S::UploadPart => multipart::upload_part(gateway, request, body).await,
        S::UploadPartCopy => Box::pin(copy::upload_part_copy(gateway, request)).await,
        S::CompleteMultipartUpload => multipart::complete(gateway, request, body).await,
        S::AbortMultipartUpload => multipart::abort(gateway, request).await,
        S::ListParts => multipart::list_parts(gateway, request),
        S::ListMultipartUploads => multipart::list_uploads(gateway, request),
        S::GetObjectAttributes => attributes::get_object_attributes(gateway, request),
        S::GetObjectTagging => tagging::get(gateway, request),
        S::PutObjectTagging => tagging::put(gateway, request, body).await,
        S::DeleteObjectTagging => tagging::delete(gateway, request).await,
        S::ListBuckets => bucket::list(gateway, request),
        S::CreateBucket => bucket::create(gateway, request, body).await,
        S::HeadBucket => bucket::head(gateway, request),
        S::DeleteBucket => bucket::delete(gateway, request).await,
        S::GetBucketLocation => bucket::location(gateway, request),
        // A form carries its own signature and is handled earlier ([`post_object`]).
        S::PostObject => Err(S3Error::not_implemented(Operation::PostObject.name())),
    }
}

/// Body of a request, not yet decoded.
pub struct IncomingBody<'a> {
    /// Bytes as they arrive on the connection.
    pub incoming: &'a mut ReceivedClientBody,
    /// Payload rules that the signature sets.
    pub payload: BodyRequirement,
}

impl Gateway {
    /// Returns the bucket of this name if it is stored here, so that the caller may read and change its
    /// records directly.
    ///
    /// # Errors
    /// `NoSuchBucket`; `NotImplemented` for a remote-backed bucket.
    pub fn bucket(&self, name: &str) -> Result<Arc<Bucket>, S3Error> {
        let bucket = self.objects.bucket(name)?;
        match &bucket.binding {
            None => Ok(bucket),
            Some(binding) => Err(remote_backed::not_offered(name, binding, "This operation")),
        }
    }

    /// Returns the terms for the body of an object or part; `also` is a checksum to compute in addition.
    fn body_terms(&self, also: Option<Algorithm>) -> BodyTerms {
        BodyTerms { md5: self.objects.etags == EtagSource::Md5, ..BodyTerms::object(also) }
    }

    /// Returns the terms for a body that becomes an object of a bucket that is stored here.
    fn new_object_terms(&self) -> BodyTerms {
        BodyTerms { default_checksum: Some(DEFAULT_ALGORITHM), ..self.body_terms(None) }
    }
}

/// True if `principal` may read the source of a copy.
pub(crate) fn can_read(principal: &Principal, bucket: &str, key: &str) -> bool {
    principal.allows(mlgw_wire::access::RequiredPermission::Read, Some(bucket), Some(key))
}
