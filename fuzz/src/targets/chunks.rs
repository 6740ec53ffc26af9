//! The aws-chunked framing. Properties: a body decodes to the same bytes however it is cut; a well-formed
//! body decodes to the original; a signed body with one changed byte decodes to the original or not at all.

use crate::input::{Input, run as wait};
use crate::signing::{chunk_signature, signed, trailer_signature, verify};
use bytes::Bytes;
use http::request::Parts;
use http_body::Frame;
use http_body_util::StreamBody;
use mlgw_auth::BodyRequirement;
use mlgw_body::{BodyTerms, RequestBody};
use mlgw_wire::error::S3Error;
use std::convert::Infallible;

const CHECKSUM: &str = "x-amz-checksum-crc32";

/// The first byte selects the kind of body, the second the size of the pieces.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (kind, step) = (input.byte(), input.byte());
    if kind % 2 == 0 { any_bytes(kind, step, input) } else { signed_bytes(kind, step, input) }
}

fn head(length: usize, trailer: bool) -> Parts {
    let mut head = http::Request::put("/b/k").header("x-amz-decoded-content-length", length);
    head = head.header("transfer-encoding", "chunked");
    if trailer {
        head = head.header("x-amz-trailer", CHECKSUM);
    }
    head.body(()).expect("our own head").into_parts().0
}

fn read(head: &Parts, payload: BodyRequirement, pieces: &[&[u8]]) -> Result<Vec<u8>, S3Error> {
    let pieces = pieces.iter().map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(piece))));
    let stream = futures_util::stream::iter(pieces.collect::<Vec<_>>());
    let mut body = RequestBody::new(StreamBody::new(stream), head, payload, BodyTerms::object(None))?;
    wait(async {
        let mut bytes = Vec::new();
        while let Some(more) = body.next().await? {
            assert!(!more.is_empty(), "only bytes come out");
            bytes.extend_from_slice(&more);
        }
        Ok(bytes)
    })
}

/// Decodes arbitrary bytes as an unsigned body.
fn any_bytes(kind: u8, step: u8, mut input: Input<'_>) {
    let length = usize::from(input.u16());
    let head = head(length, kind & 2 != 0);
    let whole = read(&head, BodyRequirement::UnsignedTrailer, &[input.0]);
    let cut = read(&head, BodyRequirement::UnsignedTrailer, &input.pieces(step));
    assert_eq!(whole.is_ok(), cut.is_ok());
    if let (Ok(whole), Ok(cut)) = (whole, cut) {
        assert_eq!((whole.len(), &whole), (length, &cut));
    }
}

/// Decodes a signed body of the input's chunks, unchanged and with one byte changed.
fn signed_bytes(kind: u8, step: u8, mut input: Input<'_>) {
    let trailer = kind & 2 != 0;
    let (at, to) = (usize::from(input.u16()), input.byte());
    let chunks = std::iter::from_fn(|| {
        Some(input.byte()).filter(|length| *length > 0).map(|length| input.take(length.into()))
    });
    let chunks: Vec<&[u8]> = chunks.filter(|chunk| !chunk.is_empty()).take(8).collect();
    let body = chunks.concat();
    let kind = ["STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"];
    let (head, mut signature) = signed(head(body.len(), trailer), kind[usize::from(trailer)]);
    let mut wire = Vec::new();
    for chunk in chunks.iter().chain([&&b""[..]]) {
        signature = chunk_signature(&signature, chunk);
        wire.extend_from_slice(format!("{:x};chunk-signature={signature}\r\n", chunk.len()).as_bytes());
        wire.extend_from_slice(chunk);
        wire.extend_from_slice(if chunk.is_empty() { b"" } else { b"\r\n" });
    }
    if trailer {
        let value = mlgw_formats::checksum::Algorithm::Crc32.digest(&body);
        let value = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, value);
        let signature = trailer_signature(&signature, &format!("{CHECKSUM}:{value}\n"));
        wire.extend_from_slice(
            format!("{CHECKSUM}:{value}\r\nx-amz-trailer-signature:{signature}\r\n").as_bytes(),
        );
    }
    wire.extend_from_slice(b"\r\n");
    let payload = || verify(&head).expect("it is signed").payload;
    let pieces: Vec<&[u8]> = Input(&wire).pieces(step);
    assert_eq!(read(&head, payload(), &pieces).as_ref(), Ok(&body));
    let mut changed = wire.clone();
    let at = at % wire.len();
    changed[at] = to;
    if let Ok(read) = read(&head, payload(), &[&changed]) {
        assert_eq!(read, body, "byte {at} was changed");
    }
}
