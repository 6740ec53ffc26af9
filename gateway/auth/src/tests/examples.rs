//! Examples that AWS publishes with its description of the signatures.

use super::{is_verified, verify};
use crate::BodyRequirement;
use http::request::Parts;
use mlgw_testing::signer::head;
use sha2::{Digest, Sha256};

const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const HOST: &str = "examplebucket.s3.amazonaws.com";
const SCOPE: &str = "AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request";

fn signed(method: &str, target: &str, names: &str, signature: &str, headers: &[(&str, &str)]) -> Parts {
    let value = format!("AWS4-HMAC-SHA256 Credential={SCOPE},SignedHeaders={names},Signature={signature}");
    let mut all = vec![("authorization", value.as_str()), ("x-amz-date", "20130524T000000Z")];
    all.extend_from_slice(headers);
    head(method, target, &all)
}

#[test]
fn get_object() {
    assert!(is_verified(&signed(
        "GET",
        "/test.txt",
        "host;range;x-amz-content-sha256;x-amz-date",
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        &[("host", HOST), ("range", "bytes=0-9"), ("x-amz-content-sha256", EMPTY)],
    )));
}

#[test]
fn put_object() {
    let hash = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
    let head = signed(
        "PUT",
        "/test%24file.text",
        "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        &[
            ("host", HOST),
            ("date", "Fri, 24 May 2013 00:00:00 GMT"),
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
            ("x-amz-content-sha256", hash),
        ],
    );
    let payload = verify(&head).unwrap().payload;
    let body: [u8; 32] = Sha256::digest(b"Welcome to Amazon S3.").into();
    assert!(matches!(payload, BodyRequirement::Sha256(signed) if signed == body));
}

#[test]
fn get_bucket_lifecycle() {
    for target in ["/?lifecycle", "/?lifecycle="] {
        assert!(is_verified(&signed(
            "GET",
            target,
            "host;x-amz-content-sha256;x-amz-date",
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            &[("host", HOST), ("x-amz-content-sha256", EMPTY)],
        )));
    }
}

#[test]
fn list_objects() {
    for target in ["/?max-keys=2&prefix=J", "/?prefix=%4A&max-keys=2"] {
        assert!(is_verified(&signed(
            "GET",
            target,
            "host;x-amz-content-sha256;x-amz-date",
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            &[("host", HOST), ("x-amz-content-sha256", EMPTY)],
        )));
    }
}

#[test]
fn presigned_url() {
    let target = "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE\
                  %2F20130524%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400\
                  &X-Amz-SignedHeaders=host\
                  &X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404";
    assert!(is_verified(&head("GET", target, &[("host", HOST)])));
}

/// Returns the head of the chunked upload, with `names` signed.
fn chunked(kind: &str, names: &str, signature: &str, more: &[(&str, &str)]) -> Parts {
    let mut headers = vec![
        ("host", "s3.amazonaws.com"),
        ("content-encoding", "aws-chunked"),
        ("x-amz-content-sha256", kind),
        ("x-amz-decoded-content-length", "66560"),
        ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
    ];
    headers.extend_from_slice(more);
    signed("PUT", "/examplebucket/chunkObject.txt", names, signature, &headers)
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Verifies the two chunks of the example and its end.
fn verify_chunks(payload: &mut BodyRequirement, signatures: [&str; 3]) {
    let BodyRequirement::SignedChunks(signer, _) = payload else { panic!("not signed in chunks") };
    let chunks = [vec![b'a'; 65536], vec![b'a'; 1024], vec![]];
    for (chunk, signature) in chunks.iter().zip(signatures) {
        signer.verify_chunk(&sha256(chunk), signature.as_bytes()).unwrap();
    }
}

#[test]
fn chunked_upload() {
    let head = chunked(
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        "content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;\
         x-amz-storage-class",
        "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
        &[("content-length", "66824")],
    );
    let mut payload = verify(&head).unwrap().payload;
    verify_chunks(
        &mut payload,
        [
            "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
            "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
            "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
        ],
    );
}

#[test]
fn chunked_upload_with_a_signed_trailer() {
    let head = chunked(
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
        "content-encoding;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;\
         x-amz-storage-class;x-amz-trailer",
        "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
        &[("x-amz-trailer", "x-amz-checksum-crc32c")],
    );
    let mut payload = verify(&head).unwrap().payload;
    verify_chunks(
        &mut payload,
        [
            "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
            "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
            "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
        ],
    );
    let BodyRequirement::SignedChunks(mut signer, true) = payload else { panic!("no signed trailer") };
    signer
        .verify_trailer(
            &sha256(b"x-amz-checksum-crc32c:sOO8/Q==\n"),
            b"d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435",
        )
        .unwrap();
}
