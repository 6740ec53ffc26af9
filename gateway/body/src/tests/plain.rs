//! Bodies in the identity encoding.

use super::{head, read};
use crate::{BodyMd5, BodyTerms, RequestBody, read_all};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::Version;
use http_body_util::Full;
use md5::Md5;
use mlgw_auth::BodyRequirement;
use mlgw_common::limits::{CHUNK_BYTES_MAX, PUT_BYTES_MAX, SMALL_BODY_BYTES};
use mlgw_formats::checksum::Algorithm;
use mlgw_wire::error::{Code, S3Error};
use sha2::{Digest, Sha256};

/// Returns the terms of an object whose MD5 is never computed separately.
fn object(also: Option<Algorithm>) -> BodyTerms {
    BodyTerms { allows_separate_md5: false, ..BodyTerms::object(also) }
}

async fn put(body: &str, headers: &[(&str, &str)], payload: BodyRequirement) -> Result<(), S3Error> {
    read(&[body.as_bytes()], &head(headers), payload, object(None)).await.map(|_| ())
}

#[tokio::test]
async fn a_body_is_hashed_once_over_all_its_pieces() {
    let terms = object(Some(Algorithm::Crc64Nvme));
    let value = BASE64_STANDARD.encode(Algorithm::Sha256.digest(b"hello world"));
    let head = head(&[("content-length", "11"), ("x-amz-checksum-sha256", &value)]);
    let payload = BodyRequirement::Sha256(Sha256::digest(b"hello world").into());
    let (bytes, digests) = read(&[b"hello", b"", b" world"], &head, payload, terms).await.unwrap();
    assert_eq!(bytes, b"hello world");
    assert_eq!(digests.bytes, 11);
    assert_eq!(digests.md5, BodyMd5::InlineMd5(Md5::digest(b"hello world").into()));
    assert_eq!(digests.declared, Some(Algorithm::Sha256));
    assert_eq!(digests.checksums.len(), 2);
    for algorithm in [Algorithm::Sha256, Algorithm::Crc64Nvme] {
        assert_eq!(digests.checksum(algorithm), Some(algorithm.digest(b"hello world").as_slice()));
    }
}

#[tokio::test]
async fn lengths_are_exact() {
    for length in ["4", "6"] {
        let error = put("hello", &[("content-length", length)], BodyRequirement::Unsigned).await.unwrap_err();
        assert_eq!(error.code(), Code::IncompleteBody, "{length}");
    }
    assert_eq!(
        put("hello", &[], BodyRequirement::Unsigned).await.unwrap_err().code(),
        Code::MissingContentLength
    );
    let too_large = (PUT_BYTES_MAX + 1).to_string();
    let error = put("", &[("content-length", &too_large)], BodyRequirement::Unsigned).await.unwrap_err();
    assert_eq!(error.code(), Code::EntityTooLarge);
    assert_eq!(error.get("MaxSizeAllowed"), Some("5368709120"));
}

#[tokio::test]
async fn a_body_without_a_well_defined_end_is_refused() {
    let chunked = [("x-amz-decoded-content-length", "0"), ("content-encoding", "aws-chunked")];
    for (version, headers, payload, refused) in [
        (Version::HTTP_11, &[][..], BodyRequirement::Unsigned, true),
        (Version::HTTP_10, &[], BodyRequirement::Unsigned, true),
        (Version::HTTP_11, &chunked, BodyRequirement::UnsignedTrailer, true),
        (Version::HTTP_11, &[("expect", "100-continue")], BodyRequirement::Unsigned, true),
        (Version::HTTP_11, &[("content-length", "0")], BodyRequirement::Unsigned, false),
        (Version::HTTP_2, &[], BodyRequirement::Unsigned, false),
    ] {
        let mut head = head(headers);
        head.version = version;
        // Same body as the HTTP library creates without a length or chunks.
        let body = Full::new(Bytes::new());
        let made =
            RequestBody::new(body, &head, payload, object(None)).map(drop).map_err(|error| error.code());
        assert_eq!(made.is_err(), refused, "{version:?} {headers:?}");
        assert_eq!(made, if refused { Err(Code::MissingContentLength) } else { Ok(()) });
    }
}

#[tokio::test]
async fn over_http2_a_body_without_a_length_is_taken_within_the_limits() {
    let mut head = head(&[]);
    head.version = Version::HTTP_2;
    let (bytes, digests) =
        read(&[b"hel", b"lo"], &head, BodyRequirement::Unsigned, object(None)).await.unwrap();
    assert_eq!((bytes.as_slice(), digests.bytes), (&b"hello"[..], 5));
    let terms = BodyTerms { bytes_max: 4, ..object(None) };
    let error = read(&[b"hel", b"lo"], &head, BodyRequirement::Unsigned, terms).await.unwrap_err();
    assert_eq!(error.code(), Code::EntityTooLarge);
}

#[tokio::test]
async fn an_empty_body_is_a_body() {
    let (bytes, digests) =
        read(&[], &head(&[("content-length", "0")]), BodyRequirement::Unsigned, object(None)).await.unwrap();
    assert_eq!((bytes.len(), digests.bytes), (0, 0));
    assert_eq!(digests.md5, BodyMd5::InlineMd5(Md5::digest(b"").into()));
}

#[tokio::test]
async fn a_wrong_hash_is_refused_before_the_end() {
    for (name, value, code) in [
        ("content-md5", "XUFAKrxLKna5cZ2REBfFkg==", None),
        ("content-md5", "XUFAKrxLKna5cZ2REBfFkQ==", Some(Code::BadDigest)),
        ("content-md5", "XUFAKrxLKna5", Some(Code::InvalidDigest)),
        ("x-amz-checksum-crc32", "NhCmhg==", None),
        ("x-amz-checksum-crc32", "NhCmhw==", Some(Code::BadDigest)),
        ("x-amz-checksum-crc32c", "mnG7TA==", None),
        ("x-amz-checksum-crc32c", "NhCmhg==", Some(Code::BadDigest)),
        ("x-amz-checksum-crc64nvme", "M3eFcAZSQlc=", None),
        ("x-amz-checksum-crc64nvme", "QFRKMGE3tuw=", Some(Code::BadDigest)),
        ("x-amz-checksum-sha1", "qvTGHdzF6KLavt4PO0gs2a6pQ00=", None),
        ("x-amz-checksum-sha1", "L7XhNBn8iSRoZeejJPR27GJOh0A=", Some(Code::BadDigest)),
        ("x-amz-checksum-sha256", "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=", None),
        ("x-amz-checksum-sha256", "fRpUEnsiJQL1t5tfsIAwYRUqRPkrN+I8ZSe69mXU2po=", Some(Code::BadDigest)),
    ] {
        let answer = put("hello", &[("content-length", "5"), (name, value)], BodyRequirement::Unsigned).await;
        assert_eq!(answer.err().map(|e| e.code()), code, "{name}: {value}");
    }
    let error = put("hello", &[("content-length", "5")], BodyRequirement::Sha256([0; 32])).await.unwrap_err();
    assert_eq!(error.code(), Code::XAmzContentSHA256Mismatch);
    assert!(error.get("S3ComputedContentSHA256").unwrap().starts_with("2cf24dba"));
}

#[tokio::test]
async fn a_declared_trailer_requires_a_chunked_body() {
    let headers = [("content-length", "5"), ("x-amz-trailer", "x-amz-checksum-crc32")];
    let error = put("hello", &headers, BodyRequirement::Unsigned).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidRequest);
}

#[tokio::test]
async fn checksums_of_the_object_are_not_those_of_the_request() {
    let terms = BodyTerms { checksum_headers: false, ..BodyTerms::document(100) };
    let head = head(&[("x-amz-checksum-crc32", "AAAAAA==-3"), ("x-amz-checksum-type", "COMPOSITE")]);
    assert!(read(&[b"<xml/>"], &head, BodyRequirement::Unsigned, terms).await.is_ok());
}

#[tokio::test]
async fn a_document_is_limited_with_and_without_a_declared_length() {
    let terms = BodyTerms::document(10);
    for (pieces, headers, fits) in [
        (&[&b"12345"[..], b"67890"][..], &[][..], true),
        (&[b"12345", b"678901"], &[], false),
        (&[], &[("content-length", "11")], false),
    ] {
        let answer = read(pieces, &head(headers), BodyRequirement::Unsigned, terms).await;
        let code = answer.err().map(|e| e.code());
        assert_eq!(code, (!fits).then_some(Code::MaxMessageLengthExceeded), "{pieces:?}");
    }
    let body = Full::new(Bytes::from_static(b"1234567890"));
    let body = RequestBody::new(body, &head(&[]), BodyRequirement::Unsigned, terms).unwrap();
    assert_eq!(body.decoded_length(), Some(10), "known from the body itself");
    assert_eq!(read_all(body).await, Ok(Bytes::from_static(b"1234567890")));
}

#[tokio::test]
#[should_panic(expected = "only at its end")]
async fn a_body_is_not_finished_before_its_end() {
    let body = Full::new(Bytes::from_static(b"hello"));
    let head = head(&[("content-length", "5")]);
    let body = RequestBody::new(body, &head, BodyRequirement::Unsigned, object(None)).unwrap();
    let _ = body.finish();
}

#[tokio::test]
async fn the_separately_computed_md5_of_a_body_is_verified() {
    let (long, found) = (vec![7; CHUNK_BYTES_MAX as usize + 1], [3; 16]);
    let read = async |bytes: &[u8], md5: Option<[u8; 16]>, terms: BodyTerms| {
        let md5 = md5.map(|md5| BASE64_STANDARD.encode(md5));
        let length = bytes.len().to_string();
        let mut headers = vec![("content-length", &*length)];
        headers.extend(md5.as_deref().map(|md5| ("content-md5", md5)));
        read(&[bytes], &head(&headers), BodyRequirement::Unsigned, terms)
            .await
            .map(|(_, digests)| digests.md5)
    };
    let object = BodyTerms::object(None);
    let (one_chunk, small) = (&long[1..], &long[..SMALL_BODY_BYTES]);
    assert_eq!(read(one_chunk, None, object).await, Ok(BodyMd5::InlineMd5(Md5::digest(one_chunk).into())));
    assert_eq!(read(small, None, object).await, Ok(BodyMd5::SeparateMd5 { declared: None }));
    let apart = read(&long, None, object).await.unwrap();
    assert_eq!(apart, BodyMd5::SeparateMd5 { declared: None });
    assert_eq!(apart.verify(Some(found)), Ok(Some(found)));
    let spared = BodyTerms { md5: false, ..object };
    assert_eq!(read(&long, None, spared).await.unwrap().verify(None), Ok(None), "no caller requires it");
    for terms in [object, spared] {
        let apart = read(&long, Some(found), terms).await.unwrap();
        assert_eq!(apart.verify(Some(found)), Ok(Some(found)));
        assert_eq!(apart.verify(Some([4; 16])).unwrap_err().code(), Code::BadDigest);
    }
    let document = BodyTerms::document(long.len() as u64);
    assert_eq!(read(&long, Some(found), document).await.unwrap_err().code(), Code::BadDigest, "immediately");
}
