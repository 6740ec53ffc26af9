//! Whole bodies: what arrives is what was sent, or the code of AWS.

mod chunked;
mod plain;

use super::{Body, Digests, Terms};
use mlgw_auth::Payload;
use mlgw_wire::error::S3Error;
use bytes::Bytes;
use http::request::Parts;
use http_body::Frame;
use http_body_util::StreamBody;
use std::convert::Infallible;

/// The head of a PUT with these headers.
fn head(headers: &[(&str, &str)]) -> Parts {
    mlgw_auth::tests::head("PUT", "/b/k", headers)
}

/// Reads a body that comes in pieces, to its end.
async fn read(
    pieces: &[&[u8]],
    head: &Parts,
    payload: Payload,
    terms: Terms,
) -> Result<(Vec<u8>, Digests), S3Error> {
    let frames = pieces.iter().map(|piece| Bytes::copy_from_slice(piece));
    let frames = frames.map(|piece| Ok::<_, Infallible>(Frame::data(piece))).collect::<Vec<_>>();
    let stream = futures_util::stream::iter(frames);
    let mut body = Body::new(StreamBody::new(stream), head, payload, terms)?;
    let mut bytes = Vec::new();
    while let Some(more) = body.next().await? {
        assert!(!more.is_empty(), "only bytes come out");
        bytes.extend_from_slice(&more);
    }
    assert_eq!(body.next().await, Ok(None), "an end stays an end");
    Ok((bytes, body.finish()))
}
