//! Authentication of requests: the principal that signed a request, and the requirements on its body.
//!
//! All forms of signature that S3 clients use are verified here: the SigV4 header, SigV4 and SigV2 in the
//! query, and POST policies ([`post`]). A signature is computed anew for every request (only the keys derived
//! for a day, region and service are cached) and compared in constant time. The signature covers the request
//! as it was sent; its bucket and key are parsed elsewhere.
//!
//! No body is read here: a signature covers the body by its hash, and [`BodyRequirement`] gives `mlgw-body`
//! the values to verify. The module is pure: time and keys are arguments, and it holds no state that a power
//! loss could lose.

mod canonical;
mod chunks;
mod header;
pub mod key;
pub mod principal;

mod payload;
mod percent;
pub mod post;
mod presigned;
mod scope;
mod signing_key;
mod sigv2;
mod time;

#[cfg(test)]
pub(crate) mod tests;

pub use chunks::ChunkSigner;
pub use payload::BodyRequirement;

use crate::key::SigningAccessKey;
use crate::principal::Principal;
use http::HeaderMap;
use http::header::{AUTHORIZATION, HOST};
use http::request::Parts;
use mlgw_common::Timestamp;
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::query::Query;
use signing_key::SigningKeys;
use std::borrow::Cow;
use std::sync::Arc;

/// Maximum difference between a request's time and the server's, in seconds, as at AWS.
pub const SKEW_SECS_MAX: i64 = 15 * 60;

/// Lookup of access keys.
pub trait KeySource {
    /// Returns the key with this access key id, unless it does not exist or is disabled.
    fn find(&self, access_key: &str) -> Option<Arc<SigningAccessKey>>;
}

/// Rules by which signatures are verified. Clones share the cache of signing keys.
#[derive(Clone, Debug)]
pub struct AuthRules {
    /// Service that a scope must name: `s3`, or `mlgw` for the admin API.
    pub service: &'static str,
    /// The only region accepted in a scope; `None` accepts any.
    pub region: Option<String>,
    /// True if SigV2 (in the query and in POST forms) is accepted.
    pub sigv2: bool,
    /// Maximum difference between a request's time and the server's, in seconds.
    pub skew_secs: i64,
    /// Base names whose sub-domains are buckets: SigV2 signs such a bucket as part of the path.
    pub domains: Vec<String>,
    keys: Arc<SigningKeys>,
}

impl AuthRules {
    /// Returns the default rules for `service`: any region, SigV2 accepted.
    #[must_use]
    pub fn new(service: &'static str) -> Self {
        Self {
            service,
            region: None,
            sigv2: true,
            skew_secs: SKEW_SECS_MAX,
            domains: Vec::new(),
            keys: Arc::default(),
        }
    }
}

/// A request with a valid signature, or without one.
#[derive(Debug)]
pub struct Authenticated {
    /// The signer; `None` for an anonymous request.
    pub principal: Option<Arc<Principal>>,
    /// Requirements on the body.
    pub payload: BodyRequirement,
}

/// Verifies the signature of the request with this head and parsed query, and returns its signer.
///
/// # Errors
/// AWS's code for the defect of the signature. No code distinguishes a wrong secret from a wrong signature.
pub fn authenticate(
    head: &Parts,
    query: &Query<'_>,
    keys: &dyn KeySource,
    now: Timestamp,
    rules: &AuthRules,
) -> Result<Authenticated, S3Error> {
    let request = AuthRequest { head, query, keys, now, rules };
    let v4 = request.query.has("X-Amz-Algorithm") || request.query.has("X-Amz-Signature");
    let v2 = !v4 && (request.query.has("Signature") || request.query.has("AWSAccessKeyId"));
    match head.headers.get(AUTHORIZATION) {
        Some(value) if v4 || v2 => Err(S3Error::invalid_argument(
            "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query \
             string parameter or the Authorization header should be specified",
            "Authorization",
            String::from_utf8_lossy(value.as_bytes()),
        )),
        Some(value) => header::verify(&request, value),
        None if v4 => presigned::verify(&request),
        None if v2 => sigv2::verify(&request),
        None => anonymous(head),
    }
}

/// Inputs of the verification, common to all forms of signature.
struct AuthRequest<'a> {
    head: &'a Parts,
    query: &'a Query<'a>,
    keys: &'a dyn KeySource,
    now: Timestamp,
    rules: &'a AuthRules,
}

impl<'a> AuthRequest<'a> {
    /// Returns the decoded value of a parameter of the query.
    fn parameter(&self, name: &str) -> Option<Cow<'a, str>> {
        self.query.raw(name).map(percent::decode_text)
    }

    fn key(&self, access_key: &str) -> Result<Arc<SigningAccessKey>, S3Error> {
        find_key(self.keys, access_key)
    }

    /// Returns the host as the client sent it; HTTP/2 and absolute-form targets have it in the target.
    fn host(&self) -> &'a [u8] {
        let header = self.head.headers.get(HOST).map(http::HeaderValue::as_bytes);
        header.or_else(|| self.head.uri.authority().map(|a| a.as_str().as_bytes())).unwrap_or_default()
    }
}

fn find_key(keys: &dyn KeySource, access_key: &str) -> Result<Arc<SigningAccessKey>, S3Error> {
    let unknown = || S3Error::new(Code::InvalidAccessKeyId).field("AWSAccessKeyId", access_key);
    keys.find(access_key).ok_or_else(unknown)
}

fn anonymous(head: &Parts) -> Result<Authenticated, S3Error> {
    let payload = match header_str(&head.headers, payload::HEADER)? {
        Some(value) => payload::ContentSha256::parse(value)?.unsigned()?,
        None => BodyRequirement::Unsigned,
    };
    Ok(Authenticated { principal: None, payload })
}

/// Returns the value of a header that must be ASCII.
fn header_str<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<Option<&'a str>, S3Error> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    value.to_str().map(Some).map_err(|_| {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        S3Error::invalid_argument(format!("The header {name} is not ASCII."), name, value)
    })
}

/// Returns the error for a wrong signature, with the string that the client should have signed.
fn mismatch(access_key: &str, provided: &str, string_to_sign: &[u8]) -> S3Error {
    S3Error::new(Code::SignatureDoesNotMatch)
        .field("AWSAccessKeyId", access_key)
        .field("StringToSign", String::from_utf8_lossy(string_to_sign))
        .field("SignatureProvided", provided)
}

/// Returns the error for temporary credentials, which this server does not issue.
fn no_session_tokens() -> S3Error {
    S3Error::new(Code::InvalidToken)
}
