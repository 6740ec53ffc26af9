//! Who sent a request, and what its signature promises about the body that follows.
//!
//! Every form of signature that S3 clients use ends here: the SigV4 header, SigV4 and SigV2 in
//! the query, and POST policies ([`post`]). A signature is computed anew for every request (only
//! the keys derived for a day, region and service are kept) and compared in constant time. What
//! is signed is the request as it was sent; which bucket and key it names is decided elsewhere.
//!
//! Nothing here reads a body: a signature binds the body by its hash, and [`Payload`] tells
//! [`mlgw_body`] what to hold the body to. All of it is pure: time and keys come in as
//! arguments, and nothing is kept that a power failure could lose.

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
pub use payload::Payload;

use crate::key::Key;
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

/// How far a request's time may be from ours, in seconds, as AWS has it.
pub const SKEW_SECS_MAX: i64 = 15 * 60;

/// Where keys are found.
pub trait KeySource {
    /// The key with this access key id, unless there is none or it is disabled.
    fn find(&self, access_key: &str) -> Option<Arc<Key>>;
}

/// What signatures are held to. Clones share the cache of signing keys.
#[derive(Clone, Debug)]
pub struct AuthRules {
    /// The service that a scope must name: `s3`, or `mlgw` for the admin API.
    pub service: &'static str,
    /// The only region accepted in a scope; without it, any.
    pub region: Option<String>,
    /// Whether SigV2 (in the query and in POST forms) is accepted.
    pub sigv2: bool,
    /// How far a request's time may be from ours, in seconds.
    pub skew_secs: i64,
    /// Base names whose sub-domains are buckets: SigV2 signs such a bucket as part of the path.
    pub domains: Vec<String>,
    keys: Arc<SigningKeys>,
}

impl AuthRules {
    /// The rules for `service` where nothing is configured: any region, SigV2 accepted.
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

/// A request whose signature was right, or that had none.
#[derive(Debug)]
pub struct Authenticated {
    /// Who signed; nothing for an anonymous request.
    pub principal: Option<Arc<Principal>>,
    /// What the body will be held to.
    pub payload: Payload,
}

/// Finds out who sent the request with this head; `query` is its query, taken apart.
///
/// # Errors
/// AWS's code for what is wrong with the signature; never one that tells a wrong secret from a
/// wrong signature.
pub fn authenticate(
    head: &Parts,
    query: &Query<'_>,
    keys: &dyn KeySource,
    now: Timestamp,
    rules: &AuthRules,
) -> Result<Authenticated, S3Error> {
    let request = Request { head, query, keys, now, rules };
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

/// What every form of signature is verified against.
struct Request<'a> {
    head: &'a Parts,
    query: &'a Query<'a>,
    keys: &'a dyn KeySource,
    now: Timestamp,
    rules: &'a AuthRules,
}

impl<'a> Request<'a> {
    /// The decoded value of a parameter of the query.
    fn parameter(&self, name: &str) -> Option<Cow<'a, str>> {
        self.query.raw(name).map(percent::decode_text)
    }

    fn key(&self, access_key: &str) -> Result<Arc<Key>, S3Error> {
        find_key(self.keys, access_key)
    }

    /// The host as the client named it: HTTP/2 and absolute-form targets have it in the target.
    fn host(&self) -> &'a [u8] {
        let header = self.head.headers.get(HOST).map(http::HeaderValue::as_bytes);
        header.or_else(|| self.head.uri.authority().map(|a| a.as_str().as_bytes())).unwrap_or_default()
    }
}

fn find_key(keys: &dyn KeySource, access_key: &str) -> Result<Arc<Key>, S3Error> {
    let unknown = || S3Error::new(Code::InvalidAccessKeyId).field("AWSAccessKeyId", access_key);
    keys.find(access_key).ok_or_else(unknown)
}

fn anonymous(head: &Parts) -> Result<Authenticated, S3Error> {
    let payload = match header_str(&head.headers, payload::HEADER)? {
        Some(value) => payload::Declared::parse(value)?.unsigned()?,
        None => Payload::Unsigned,
    };
    Ok(Authenticated { principal: None, payload })
}

/// The value of a header that is ASCII whenever it is right.
fn header_str<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<Option<&'a str>, S3Error> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    value.to_str().map(Some).map_err(|_| {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        S3Error::invalid_argument(format!("The header {name} is not ASCII."), name, value)
    })
}

/// The answer to a signature that is not the right one, with what the client should have signed.
fn mismatch(access_key: &str, provided: &str, string_to_sign: &[u8]) -> S3Error {
    S3Error::new(Code::SignatureDoesNotMatch)
        .field("AWSAccessKeyId", access_key)
        .field("StringToSign", String::from_utf8_lossy(string_to_sign))
        .field("SignatureProvided", provided)
}

/// The answer to temporary credentials, which this server does not issue.
fn no_session_tokens() -> S3Error {
    S3Error::new(Code::InvalidToken)
}
