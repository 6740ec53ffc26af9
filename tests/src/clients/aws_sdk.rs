//! Tests with the AWS SDK for Rust.

use aws_sdk_s3::Client;
use aws_sdk_s3::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_s3::error::ProvideErrorMetadata as _;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{ChecksumAlgorithm, ChecksumMode, CompletedMultipartUpload, CompletedPart};
use aws_sdk_s3::types::{Delete, ObjectIdentifier};
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{ClientEndpoint, MIB, assert_same};
use crate::content::TestContent;
use crate::server::{ACCESS_KEY, SECRET_KEY};

const BUCKET: &str = "aws-sdk";
const CONCURRENCY: usize = 8;

/// A client with nothing set but the endpoint, the credentials and the trusted certificate.
pub(super) fn client(endpoint: &ClientEndpoint) -> Client {
    let mut trusted = TrustStore::empty();
    if let Some(pem) = &endpoint.certificate {
        trusted.add_pem_certificate(pem.as_bytes());
    }
    let tls = TlsContext::builder().with_trust_store(trusted).build().expect("a TLS context");
    let http = aws_smithy_http_client::Builder::new()
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .tls_context(tls)
        .build_https();
    let config = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .endpoint_url(&endpoint.url)
        .credentials_provider(Credentials::new(ACCESS_KEY, SECRET_KEY, None, None, "tests"))
        .http_client(http)
        .build();
    Client::from_conf(config)
}

async fn get(client: &Client, key: &str) -> bytes::Bytes {
    let answer = client.get_object().bucket(BUCKET).key(key).send().await.expect("read");
    answer.body.collect().await.expect("whole").into_bytes()
}

async fn stores_and_reads_back(endpoint: ClientEndpoint) {
    let client = client(&endpoint);
    client.create_bucket().bucket(BUCKET).send().await.expect("created");
    large_object(&client, endpoint.load.large()).await;
    small_objects(&client, &endpoint).await;
    multipart_upload(&client).await;
    conditions_and_metadata(&client).await;
    endpoint.stop();
}

async fn large_object(client: &Client, large: TestContent) {
    let body = ByteStream::from(large.bytes());
    client.put_object().bucket(BUCKET).key("large").body(body).send().await.expect("stored");
    assert_same("large", large, &get(client, "large").await);
    let request = client.get_object().bucket(BUCKET).key("large").range("bytes=65530-65540");
    let part = request.send().await.expect("read").body.collect().await.expect("whole");
    assert_eq!(part.into_bytes(), large.bytes().slice(65530..65541));
}

async fn small_objects(client: &Client, endpoint: &ClientEndpoint) {
    let puts = endpoint.load.small().map(|(key, content)| async move {
        let body = ByteStream::from(content.bytes());
        client.put_object().bucket(BUCKET).key(key).body(body).send().await
    });
    stream::iter(puts).buffer_unordered(CONCURRENCY).try_collect::<Vec<_>>().await.expect("stored");
    for (key, content) in endpoint.load.small() {
        assert_same(&key, content, &get(client, &key).await);
    }
    let pages = client.list_objects_v2().bucket(BUCKET).prefix("many/").max_keys(7).into_paginator();
    let pages: Vec<_> = pages.send().try_collect().await.expect("listed");
    let mut expected: Vec<_> = endpoint.load.small().collect();
    expected.sort_by(|left, right| left.0.cmp(&right.0));
    let listed = pages
        .iter()
        .flat_map(|page| page.contents())
        .map(|object| (object.key().expect("a key"), object.size().expect("a size")));
    assert!(listed.eq(expected.iter().map(|(key, body)| (key.as_str(), body.length.cast_signed() as i64))));
    let identifiers = expected.into_iter().map(|(key, _)| ObjectIdentifier::builder().key(key).build());
    let identifiers = identifiers.collect::<Result<Vec<_>, _>>().expect("names");
    let delete = Delete::builder().set_objects(Some(identifiers)).build().expect("a list");
    let answer = client.delete_objects().bucket(BUCKET).delete(delete).send().await.expect("deleted");
    assert!(answer.errors().is_empty());
}

async fn multipart_upload(client: &Client) {
    let create = client.create_multipart_upload().bucket(BUCKET).key("parts");
    let create = create.checksum_algorithm(ChecksumAlgorithm::Crc32C);
    let upload = create.send().await.expect("begun").upload_id.expect("an id");
    let bodies = [TestContent { id: 7, length: 5 * MIB }, TestContent { id: 8, length: 99 }];
    let mut parts = CompletedMultipartUpload::builder();
    for (number, content) in (1..).zip(bodies) {
        let part = client.upload_part().bucket(BUCKET).key("parts").upload_id(&upload).part_number(number);
        let part = part.checksum_algorithm(ChecksumAlgorithm::Crc32C);
        let part = part.body(content.bytes().into()).send().await.expect("stored");
        let part = CompletedPart::builder()
            .part_number(number)
            .set_e_tag(part.e_tag)
            .set_checksum_crc32_c(part.checksum_crc32_c);
        parts = parts.parts(part.build());
    }
    let complete = client.complete_multipart_upload().bucket(BUCKET).key("parts").upload_id(&upload);
    let done = complete.multipart_upload(parts.build()).send().await.expect("completed");
    assert_eq!(done.e_tag(), Some(&*format!("\"{}\"", TestContent::etag_of_parts(&bodies))));
    assert!(done.checksum_crc32_c().is_some_and(|sum| sum.ends_with("-2")));
    let whole = [bodies[0].bytes(), bodies[1].bytes()].concat();
    assert!(get(client, "parts").await == whole);
}

async fn conditions_and_metadata(client: &Client) {
    let put = || client.put_object().bucket(BUCKET).key("k").body(ByteStream::from_static(b"data"));
    let first =
        put().if_none_match("*").metadata("Colour", "blue").checksum_algorithm(ChecksumAlgorithm::Sha256);
    first.send().await.expect("stored");
    let refused = put().if_none_match("*").send().await.expect_err("exists");
    assert_eq!(refused.code(), Some("PreconditionFailed"));
    let head = client.head_object().bucket(BUCKET).key("k").checksum_mode(ChecksumMode::Enabled);
    let head = head.send().await.expect("exists");
    assert_eq!(head.metadata().and_then(|m| m.get("colour")).map(String::as_str), Some("blue"));
    assert!(head.checksum_sha256().is_some() && head.version_id().is_none());
    let copy = client.copy_object().bucket(BUCKET).key("copy").copy_source(format!("{BUCKET}/k"));
    copy.send().await.expect("copied");
    assert_eq!(&get(client, "copy").await[..], b"data");
    let absent = client.get_object().bucket(BUCKET).key("absent").send().await.expect_err("absent");
    assert_eq!(absent.code(), Some("NoSuchKey"));
    // A failed HEAD is a valid response, not a protocol error: the SDK would retry a protocol error for long.
    let absent = client.head_object().bucket(BUCKET).key("absent").send().await.expect_err("absent");
    assert!(absent.into_service_error().is_not_found());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_aws_sdk_stores_and_reads_back_over_http() {
    stores_and_reads_back(ClientEndpoint::http()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_aws_sdk_stores_and_reads_back_over_https() {
    stores_and_reads_back(ClientEndpoint::https()).await;
}
