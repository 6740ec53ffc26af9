//! Middleware that accepts a request only if an unrestricted admin key signed it, body included.
//!
//! As for S3 requests, the rows of access keys are recent, so that a node which is cut off does not accept a
//! deleted key for long. The root's key and that of commands on this host do not depend on rows: with them a
//! node shows its state also without a majority.

use super::context::AdminContext;
use super::{Admin, ApiError};
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{FromRef as _, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::request::Parts;
use http::{Method, StatusCode};
use mlgw_auth::{BodyRequirement, authenticate};
use mlgw_common::limits::POLICY_BYTES_MAX;
use mlgw_listener::Peer;
use mlgw_metadata::BarrierScope;
use mlgw_node::AdminCall;
use mlgw_policies::language::limits::PLAN_TEXT_BYTES_MAX;
use mlgw_wire::access::RequiredPermission;
use mlgw_wire::query::Query;
use sha2::{Digest as _, Sha256};
use std::sync::Arc;

/// Longest body of a request.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// Longest body of a request with policy files, whose text JSON escapes may lengthen.
const POLICY_BODY_BYTES_MAX: usize = 2 * POLICY_BYTES_MAX;
/// Longest body of a request with an access plan, whose line ends JSON escapes lengthen.
const PLAN_BODY_BYTES_MAX: usize = PLAN_TEXT_BYTES_MAX + PLAN_TEXT_BYTES_MAX / 8;

/// Access key and address of the sender of a request, for the audit log.
#[derive(Clone, Debug)]
pub(super) struct AdminCaller {
    pub(super) access_key: String,
    pub(super) from: String,
}

/// Head of a request with a valid signature of an unrestricted admin key.
pub(super) struct SignedHead {
    /// The head, with its [`AdminCaller`].
    head: Parts,
    access_key: String,
    payload: BodyRequirement,
}

impl SignedHead {
    /// Verifies the signature of a head, by recent rows of access keys.
    ///
    /// # Errors
    /// Also 503 if the rows are older, and no majority confirms them.
    pub(super) async fn verify(context: &AdminContext, head: Parts) -> Result<Self, ApiError> {
        let signed = Self::verify_by_rows(context, head)?;
        if context.keyring.is_fixed(&signed.access_key) || context.catalogue.has_recent_system_rows() {
            return Ok(signed);
        }
        let confirmed = context.catalogue.barrier(BarrierScope::System).await;
        confirmed.map_err(|error| {
            let message = format!("This node cannot confirm the access key: {error}. Use another node.");
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "NotCurrent", message)
        })?;
        Self::verify_by_rows(context, signed.head)
    }

    /// Verifies the signature of a head, by the rows that this node has.
    fn verify_by_rows(context: &AdminContext, mut head: Parts) -> Result<Self, ApiError> {
        let query = Query::parse(head.uri.query().unwrap_or_default());
        let authenticated =
            authenticate(&head, &query, &context.keyring, context.clock.now(), &context.rules)?;
        let denied = |message| ApiError::new(StatusCode::FORBIDDEN, "AccessDenied", message);
        let principal = authenticated.principal.ok_or_else(|| {
            denied(
                "The request is not signed. Sign it with SigV4 for the service mlgw, as the `mlgw` commands \
                 do.",
            )
        })?;
        if !principal.allows(RequiredPermission::Admin, None, None) {
            return Err(denied("The admin API requires a key with the role admin and without globs."));
        }
        let from = head.extensions.get::<Peer>().map(|peer| peer.address.to_string()).unwrap_or_default();
        let access_key = principal.access_key.clone();
        head.extensions.insert(AdminCaller { access_key: access_key.clone(), from });
        Ok(Self { head, access_key, payload: authenticated.payload })
    }

    /// Returns the path.
    pub(super) fn path(&self) -> &str {
        self.head.uri.path()
    }

    /// Returns the longest body that the route may get.
    pub(super) fn longest_body(&self) -> LongestBody {
        LongestBody::of(&self.head)
    }

    /// Reads the body, and returns the request if the body is the signed one.
    async fn with_body(self, body: Body, bytes_max: usize) -> Result<Request, ApiError> {
        let body = read_body(body, bytes_max).await?;
        check_payload(&self.payload, &body)?;
        Ok(Request::from_parts(self.head, Body::from(body)))
    }

    /// Reads the body, and returns the request for another node if the body is the signed one.
    pub(super) async fn into_call(
        self,
        body: Body,
        bytes_max: usize,
    ) -> Result<(AdminCall, Bytes), ApiError> {
        let body = read_body(body, bytes_max).await?;
        check_payload(&self.payload, &body)?;
        let caller = self.head.extensions.get::<AdminCaller>().cloned();
        let AdminCaller { access_key, from } =
            caller.ok_or_else(|| ApiError::invalid("The request has no caller."))?;
        let target = self.head.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
        Ok((AdminCall { method: self.head.method.to_string(), target, access_key, from }, body))
    }
}

/// Longest body of a request, by its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LongestBody {
    /// A body of a few values.
    Short,
    /// One with policy files.
    Policy,
    /// One with an access plan. Such bodies are processed one at a time.
    Plan,
}

impl LongestBody {
    fn of(head: &Parts) -> Self {
        match head.uri.path() {
            path if path.starts_with("/v1/policy") => Self::Policy,
            path if path.starts_with("/v1/workload-plans") && head.method == Method::PUT => Self::Plan,
            _ => Self::Short,
        }
    }

    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::Short => BODY_BYTES_MAX,
            Self::Policy => POLICY_BODY_BYTES_MAX,
            Self::Plan => PLAN_BODY_BYTES_MAX,
        }
    }
}

async fn read_body(body: Body, bytes_max: usize) -> Result<Bytes, ApiError> {
    to_bytes(body, bytes_max).await.map_err(|_| {
        let message = format!("The body cannot be read, or has more than {bytes_max} bytes.");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "BodyTooLarge", message)
    })
}

/// Refuses requests without a valid signature; adds the [`AdminCaller`] to the others.
pub(super) async fn require_admin_signature(
    State(admin): State<Arc<Admin>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    let signed = SignedHead::verify(&AdminContext::from_ref(&admin), head).await?;
    let longest = signed.longest_body();
    let _turn = if longest == LongestBody::Plan { Some(admin.plans.turn().await) } else { None };
    Ok(next.run(signed.with_body(body, longest.bytes()).await?).await)
}

/// Reads the body of a request that another node sends. That node has authenticated its caller.
pub(super) async fn read_body_of_node(
    State(admin): State<Arc<Admin>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    let longest = LongestBody::of(&head);
    let _turn = if longest == LongestBody::Plan { Some(admin.plans.turn().await) } else { None };
    let body = read_body(body, longest.bytes()).await?;
    Ok(next.run(Request::from_parts(head, Body::from(body))).await)
}

/// Like [`require_admin_signature`], for a node without policies and access plans, whose bodies are long.
pub(super) async fn require_member_signature(
    State(context): State<AdminContext>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    let signed = SignedHead::verify(&context, head).await?;
    Ok(next.run(signed.with_body(body, BODY_BYTES_MAX).await?).await)
}

fn check_payload(payload: &BodyRequirement, body: &Bytes) -> Result<(), ApiError> {
    match payload {
        BodyRequirement::Sha256(signed) if *signed == <[u8; 32]>::from(Sha256::digest(body)) => Ok(()),
        BodyRequirement::Sha256(_) => {
            Err(ApiError::invalid("The body does not match the signed x-amz-content-sha256."))
        }
        BodyRequirement::Unsigned if body.is_empty() => Ok(()),
        BodyRequirement::Unsigned | BodyRequirement::SignedChunks(..) | BodyRequirement::UnsignedTrailer => {
            Err(ApiError::invalid("Sign the body: x-amz-content-sha256 must be its SHA-256."))
        }
    }
}
