//! Bodies in the aws-chunked encoding.

use super::verify;
use super::{head, read};
use crate::{BodyTerms, Digests};
use aws_sigv4::http_request::SignableBody;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::HeaderValue;
use http::request::Parts;
use mlgw_auth::BodyRequirement;
use mlgw_formats::checksum::Algorithm;
use mlgw_testing::signer::{RequestToSign, chunk_signature, trailer_signature};
use mlgw_wire::error::{Code, S3Error};
use proptest::prelude::*;

const CRC64: &str = "x-amz-checksum-crc64nvme";

/// Returns the head with a well-defined end of the body, as every aws-chunked body without a length has it.
fn chunked(mut head: Parts) -> Parts {
    head.headers.insert("transfer-encoding", HeaderValue::from_static("chunked"));
    head
}

async fn put_unsigned(body: &str, headers: &[(&str, &str)]) -> Result<(Vec<u8>, Digests), S3Error> {
    read(
        &[body.as_bytes()],
        &chunked(head(headers)),
        BodyRequirement::UnsignedTrailer,
        BodyTerms::object(None),
    )
    .await
}

#[tokio::test]
async fn an_unsigned_body_with_its_trailer() {
    let headers = [
        ("x-amz-decoded-content-length", "5"),
        ("x-amz-trailer", CRC64),
        ("x-amz-sdk-checksum-algorithm", "CRC64NVME"),
    ];
    let body = "5\r\nhello\r\n0\r\nx-amz-checksum-crc64nvme:M3eFcAZSQlc=\r\n\r\n";
    let (bytes, digests) = put_unsigned(body, &headers).await.unwrap();
    assert_eq!(bytes, b"hello");
    assert_eq!(digests.declared, Some(Algorithm::Crc64Nvme));
    assert_eq!(
        digests.checksum(Algorithm::Crc64Nvme),
        Some(Algorithm::Crc64Nvme.digest(b"hello").as_slice())
    );
}

#[tokio::test]
async fn an_empty_body_with_a_trailer() {
    let headers = [("x-amz-decoded-content-length", "0"), ("x-amz-trailer", "x-amz-checksum-crc32")];
    let (bytes, _) = put_unsigned("0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n", &headers).await.unwrap();
    assert!(bytes.is_empty());
}

#[tokio::test]
async fn the_length_is_counted_over_the_decoded_bytes() {
    let headers = [("content-length", "15"), ("x-amz-decoded-content-length", "5")];
    let (bytes, digests) = put_unsigned("5\r\nhello\r\n0\r\n\r\n", &headers).await.unwrap();
    assert_eq!((bytes.as_slice(), digests.bytes), (&b"hello"[..], 5));
    for length in ["4", "6"] {
        let error =
            put_unsigned("5\r\nhello\r\n0\r\n\r\n", &[("x-amz-decoded-content-length", length)]).await;
        assert_eq!(error.unwrap_err().code(), Code::IncompleteBody, "{length}");
    }
    for headers in [&[][..], &[("content-length", "15")], &[("x-amz-decoded-content-length", "5x")]] {
        let error = put_unsigned("5\r\nhello\r\n0\r\n\r\n", headers).await;
        assert_eq!(error.unwrap_err().code(), Code::MissingContentLength, "{headers:?}");
    }
}

#[tokio::test]
async fn trailers_must_match_the_declared_ones() {
    for (promised, trailer, code, text) in [
        (Some(CRC64), "", Code::MalformedTrailerError, ""),
        (Some(CRC64), ":M3eFcAZSQlc=\r\n", Code::MalformedTrailerError, ""),
        (None, "x-amz-checksum-crc64nvme:M3eFcAZSQlc=\r\n", Code::MalformedTrailerError, ""),
        (Some(CRC64), "other:M3eFcAZSQlc=\r\n", Code::MalformedTrailerError, ""),
        (Some(CRC64), "x-amz-trailer-signature:00\r\n", Code::MalformedTrailerError, ""),
        (
            Some(CRC64),
            "x-amz-checksum-crc64nvme:x\r\n",
            Code::InvalidRequest,
            "Value for x-amz-checksum-crc64nvme trailing",
        ),
        (
            Some(CRC64),
            "x-amz-checksum-crc64nvme:QFRKMGE3tuw=\r\n",
            Code::BadDigest,
            "The CRC64NVME you specified",
        ),
    ] {
        let mut headers = vec![("x-amz-decoded-content-length", "5")];
        headers.extend(promised.map(|name| ("x-amz-trailer", name)));
        let error = put_unsigned(&format!("5\r\nhello\r\n0\r\n{trailer}\r\n"), &headers).await.unwrap_err();
        assert_eq!(error.code(), code, "{promised:?} {trailer:?}");
        assert!(error.text().contains(text), "{}", error.text());
    }
}

/// Returns the head and the wire form of a signed upload of these chunks, optionally with a checksum as
/// trailer.
fn signed_upload(chunks: &[&[u8]], trailer: bool) -> (http::request::Parts, Vec<u8>) {
    let body = chunks.concat();
    let length = body.len().to_string();
    let kind = ["STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"];
    let headers = [("x-amz-decoded-content-length", &*length), ("x-amz-trailer", CRC64)];
    let headers = if trailer { &headers[..] } else { &headers[..1] };
    let kind = kind[usize::from(trailer)];
    let to_sign = SignableBody::Precomputed(kind.to_owned());
    let (head, mut signature) =
        RequestToSign { method: "PUT", headers, body: to_sign, ..Default::default() }.sign();
    let mut wire = Vec::new();
    for chunk in chunks.iter().chain([&&b""[..]]) {
        signature = chunk_signature(chunk, &signature);
        wire.extend_from_slice(format!("{:x};chunk-signature={signature}\r\n", chunk.len()).as_bytes());
        wire.extend_from_slice(chunk);
        wire.extend_from_slice(if chunk.is_empty() { b"" } else { b"\r\n" });
    }
    if trailer {
        let value = BASE64_STANDARD.encode(Algorithm::Crc64Nvme.digest(&body));
        let signature = trailer_signature(CRC64, &value, &signature);
        wire.extend_from_slice(
            format!("{CRC64}:{value}\r\nx-amz-trailer-signature:{signature}\r\n").as_bytes(),
        );
    }
    wire.extend_from_slice(b"\r\n");
    (chunked(head), wire)
}

async fn put_signed(head: &http::request::Parts, pieces: &[&[u8]]) -> Result<Vec<u8>, S3Error> {
    let payload = verify(head)?.payload;
    read(pieces, head, payload, BodyTerms::object(None)).await.map(|(bytes, _)| bytes)
}

#[tokio::test]
async fn signed_chunks_are_verified_with_and_without_a_trailer() {
    for trailer in [false, true] {
        for chunks in [&[][..], &[&b"hello"[..]], &[&[7; 70_000], b"hello", b"!"]] {
            let (head, wire) = signed_upload(chunks, trailer);
            assert_eq!(put_signed(&head, &[&wire]).await, Ok(chunks.concat()));
        }
    }
}

#[tokio::test]
async fn a_chunk_with_a_wrong_signature_ends_the_body() {
    let (head, mut wire) = signed_upload(&[b"hello", b"world"], false);
    let last = wire.windows(5).rposition(|bytes| bytes == b"world").unwrap();
    wire[last + 4] ^= 1;
    let payload = verify(&head).unwrap().payload;
    let body = http_body_util::Full::new(Bytes::from(wire));
    let mut body = crate::RequestBody::new(body, &head, payload, BodyTerms::object(None)).unwrap();
    assert_eq!(body.next().await.unwrap().as_deref(), Some(&b"hello"[..]));
    assert_eq!(body.next().await.unwrap_err().code(), Code::SignatureDoesNotMatch);
}

#[tokio::test]
async fn chunks_cannot_be_reordered_dropped_or_repeated() {
    let (head, wire) = signed_upload(&[b"a", b"b", b"c"], false);
    let text = String::from_utf8(wire).unwrap();
    let lines: Vec<String> = text.split_inclusive("\r\n").map(str::to_owned).collect();
    let chunk = |n: usize| lines[2 * n..2 * n + 2].concat();
    let end = lines[6..].concat();
    let body = |chunks: &[usize]| chunks.iter().map(|n| chunk(*n)).collect::<String>() + &end;
    assert!(put_signed(&head, &[body(&[0, 1, 2]).as_bytes()]).await.is_ok());
    for (order, code) in [
        (&[0, 2, 1][..], Code::SignatureDoesNotMatch),
        (&[0, 0, 1], Code::SignatureDoesNotMatch),
        (&[0, 1], Code::IncompleteBody),
        (&[0, 1, 2, 2], Code::IncompleteBody),
    ] {
        let error = put_signed(&head, &[body(order).as_bytes()]).await.unwrap_err();
        assert_eq!(error.code(), code, "{order:?}");
    }
}

#[tokio::test]
async fn trailers_of_a_signed_body_must_be_signed() {
    let (head, wire) = signed_upload(&[b"hello"], true);
    let text = String::from_utf8(wire).unwrap();
    let at = text.find("x-amz-trailer-signature").unwrap();
    let unsigned = format!("{}\r\n", &text[..at]);
    assert_eq!(
        put_signed(&head, &[unsigned.as_bytes()]).await.unwrap_err().code(),
        Code::MalformedTrailerError
    );
    let start = text.find(CRC64).unwrap();
    let none = format!("{}\r\n", &text[..start]);
    assert_eq!(put_signed(&head, &[none.as_bytes()]).await.unwrap_err().code(), Code::MalformedTrailerError);
    let other = text.replace("x-amz-trailer-signature:", "x-amz-trailer-signature:0");
    assert_eq!(put_signed(&head, &[other.as_bytes()]).await.unwrap_err().code(), Code::SignatureDoesNotMatch);
}

#[tokio::test]
async fn a_large_signed_chunk_is_returned_in_pieces_and_not_buffered() {
    let chunk = vec![7; 3 << 20];
    let (head, wire) = signed_upload(&[&chunk], false);
    let payload = verify(&head).unwrap().payload;
    let wire = Bytes::from(wire);
    let pieces = [wire.slice(..1 << 20), wire.slice(1 << 20..)];
    let frames = pieces.map(|piece| Ok::<_, std::convert::Infallible>(http_body::Frame::data(piece)));
    let stream = http_body_util::StreamBody::new(futures_util::stream::iter(frames));
    let mut body = crate::RequestBody::new(stream, &head, payload, BodyTerms::object(None)).unwrap();
    let first = body.next().await.unwrap().unwrap();
    assert!(first.len() > 1_000_000 && first.len() < 1 << 20, "{} of the first piece", first.len());
    let mut bytes = first.len();
    while let Some(more) = body.next().await.unwrap() {
        bytes += more.len();
    }
    assert_eq!(bytes, chunk.len());
}

#[tokio::test]
async fn the_signature_covers_the_decoded_length() {
    let (mut head, wire) = signed_upload(&[b"hello"], false);
    head.headers.insert("x-amz-decoded-content-length", HeaderValue::from_static("4"));
    assert_eq!(put_signed(&head, &[&wire]).await.unwrap_err().code(), Code::SignatureDoesNotMatch);
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

proptest! {
    #[test]
    fn a_signed_body_decodes_the_same_for_every_split(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..60), 0..4),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        trailer: bool,
    ) {
        let chunks: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
        let (head, wire) = signed_upload(&chunks, trailer);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(wire.len())).collect();
        cuts.extend([0, wire.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &wire[cut[0]..cut[1]]).collect();
        prop_assert_eq!(block_on(put_signed(&head, &pieces)), Ok(chunks.concat()));
    }

    #[test]
    fn every_changed_byte_of_a_signed_body_is_detected(at: prop::sample::Index, to: u8, trailer: bool) {
        let (head, wire) = signed_upload(&[b"hello", b"world"], trailer);
        let mut changed = wire.clone();
        let at = at.index(wire.len());
        changed[at] = to;
        // Letter case of sizes and names, and white space around trailers, are not significant.
        if let Ok(bytes) = block_on(put_signed(&head, &[&changed])) {
            prop_assert_eq!(bytes, b"helloworld");
            let same = wire[at].eq_ignore_ascii_case(&to)
                || matches!(wire[at], b'\r' | b'\n')
                || to.is_ascii_whitespace();
            prop_assert!(same, "{} became {}", wire[at], to);
        }
    }

    #[test]
    fn a_truncated_body_is_refused(to: prop::sample::Index, trailer: bool) {
        let (head, wire) = signed_upload(&[b"hello", b"world"], trailer);
        let cut = &wire[..to.index(wire.len())];
        prop_assert!(block_on(put_signed(&head, &[cut])).is_err());
    }
}
