//! Tests of whole bodies: the decoded bytes are those that were sent, or the error has AWS's code.

mod chunked;
mod plain;

use super::{BodyTerms, Digests, RequestBody};
use bytes::Bytes;
use http::request::Parts;
use http_body::Frame;
use http_body_util::StreamBody;
use mlgw_api::AccessKeyRole;
use mlgw_auth::key::SigningAccessKey;
use mlgw_auth::principal::Principal;
use mlgw_auth::{AuthRules, Authenticated, BodyRequirement, KeySource, authenticate};
use mlgw_common::Secret;
use mlgw_testing::signer::{ACCESS_KEY, NOW, SECRET};
use mlgw_wire::error::S3Error;
use mlgw_wire::query::Query;
use std::convert::Infallible;
use std::sync::Arc;

/// Returns the head of a PUT with these headers.
fn head(headers: &[(&str, &str)]) -> Parts {
    mlgw_testing::signer::head("PUT", "/b/k", headers)
}

/// Key source with the only key of the tests.
struct OneKey;

impl KeySource for OneKey {
    fn find(&self, access_key: &str) -> Option<Arc<SigningAccessKey>> {
        let principal = Arc::new(Principal::unrestricted(ACCESS_KEY, "owner", AccessKeyRole::Admin));
        (access_key == ACCESS_KEY)
            .then(|| Arc::new(SigningAccessKey { principal, secret: Secret::new(SECRET) }))
    }
}

/// Verifies the signature of a head at the time when it was signed.
fn verify(head: &Parts) -> Result<Authenticated, S3Error> {
    let query = Query::parse(head.uri.query().unwrap_or_default());
    authenticate(head, &query, &OneKey, NOW, &AuthRules::new("s3"))
}

/// Reads a body that arrives in pieces, to its end.
async fn read(
    pieces: &[&[u8]],
    head: &Parts,
    payload: BodyRequirement,
    terms: BodyTerms,
) -> Result<(Vec<u8>, Digests), S3Error> {
    let frames = pieces.iter().map(|piece| Bytes::copy_from_slice(piece));
    let frames = frames.map(|piece| Ok::<_, Infallible>(Frame::data(piece))).collect::<Vec<_>>();
    let stream = futures_util::stream::iter(frames);
    let mut body = RequestBody::new(StreamBody::new(stream), head, payload, terms)?;
    let mut bytes = Vec::new();
    while let Some(more) = body.next().await? {
        assert!(!more.is_empty(), "the body yields no empty pieces");
        bytes.extend_from_slice(&more);
    }
    assert_eq!(body.next().await, Ok(None), "the end is final");
    Ok((bytes, body.finish()))
}
