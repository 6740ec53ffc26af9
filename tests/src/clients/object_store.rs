//! Tests with `object_store`, through which polars, DataFusion, delta-rs and others reach S3.

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{
    Certificate, ClientOptions, Error, GetOptions, GetRange, ObjectStore as _, ObjectStoreExt as _,
};
use object_store::{PutMode, UpdateVersion, WriteMultipart};

use super::{ClientEndpoint, MIB, assert_same, aws_sdk};

const BUCKET: &str = "object-store";
const CONCURRENCY: usize = 8;

fn store(endpoint: &ClientEndpoint, http2: bool) -> AmazonS3 {
    let mut options = ClientOptions::new().with_allow_http(true);
    if http2 {
        options = options.with_http2_only();
    }
    if let Some(pem) = &endpoint.certificate {
        options =
            options.with_root_certificate(Certificate::from_pem(pem.as_bytes()).expect("a certificate"));
    }
    AmazonS3Builder::new()
        .with_endpoint(&endpoint.url)
        .with_client_options(options)
        .with_bucket_name(BUCKET)
        .with_region("us-east-1")
        .with_access_key_id(crate::server::ACCESS_KEY)
        .with_secret_access_key(crate::server::SECRET_KEY)
        .build()
        .expect("a store")
}

async fn stores_and_reads_back(endpoint: ClientEndpoint, http2: bool) {
    let bucket = aws_sdk::client(&endpoint).create_bucket().bucket(BUCKET);
    bucket.send().await.expect("created");
    let store = store(&endpoint, http2);
    large_object(&store, &endpoint).await;
    small_objects(&store, &endpoint).await;
    ranges(&store).await;
    conditions(&store).await;
    endpoint.stop();
}

async fn large_object(store: &AmazonS3, endpoint: &ClientEndpoint) {
    let (whole, parts, large) = (Path::from("large"), Path::from("parts"), endpoint.load.large());
    store.put(&whole, large.bytes().into()).await.expect("stored");
    let body = store.get(&whole).await.expect("read").bytes().await.expect("whole");
    assert_same("large", large, &body);
    let upload = store.put_multipart(&parts).await.expect("begun");
    let mut writer = WriteMultipart::new_with_chunk_size(upload, 5 * MIB);
    for piece in body.chunks(MIB + 1) {
        writer.wait_for_capacity(4).await.expect("stored");
        writer.write(piece);
    }
    writer.finish().await.expect("completed");
    assert_same("parts", large, &store.get(&parts).await.expect("read").bytes().await.expect("whole"));
}

async fn small_objects(store: &AmazonS3, endpoint: &ClientEndpoint) {
    let puts = endpoint
        .load
        .small()
        .map(|(key, content)| async move { store.put(&Path::from(key), content.bytes().into()).await });
    stream::iter(puts).buffer_unordered(CONCURRENCY).try_collect::<Vec<_>>().await.expect("stored");
    for (key, content) in endpoint.load.small() {
        let body = store.get(&Path::from(key.clone())).await.expect("read").bytes().await.expect("whole");
        assert_same(&key, content, &body);
    }
    let prefix = Path::from("many");
    let listed: Vec<_> = store.list(Some(&prefix)).try_collect().await.expect("listed");
    let mut expected: Vec<_> = endpoint.load.small().collect();
    expected.sort_by(|left, right| left.0.cmp(&right.0));
    let names = listed.iter().map(|object| (object.location.as_ref(), object.size));
    assert!(names.eq(expected.iter().map(|(key, body)| (key.as_str(), body.length as u64))));
    let folders = store.list_with_delimiter(Some(&prefix)).await.expect("listed");
    assert_eq!((folders.common_prefixes.len(), folders.objects.len()), (7, 0));
    let locations = stream::iter(listed.into_iter().map(|object| Ok(object.location))).boxed();
    store.delete_stream(locations).try_collect::<Vec<_>>().await.expect("deleted");
    assert!(store.list(Some(&prefix)).next().await.is_none());
}

async fn ranges(store: &AmazonS3) {
    let path = Path::from("ten/bytes");
    store.put(&path, "0123456789".into()).await.expect("stored");
    for (range, expected) in [
        (GetRange::Bounded(0..10), "0123456789"),
        (GetRange::Bounded(3..5), "34"),
        (GetRange::Offset(7), "789"),
        (GetRange::Suffix(2), "89"),
        (GetRange::Suffix(1000), "0123456789"),
    ] {
        let options = GetOptions::new().with_range(Some(range));
        let answer = store.get_opts(&path, options).await.expect("read");
        assert_eq!(answer.bytes().await.expect("whole"), expected);
    }
}

async fn conditions(store: &AmazonS3) {
    let (path, other) = (Path::from("latest"), Path::from("renamed"));
    let create = || store.put_opts(&path, "1".into(), PutMode::Create.into());
    let first = create().await.expect("created");
    assert!(matches!(create().await, Err(Error::AlreadyExists { .. })));
    let update = PutMode::Update(UpdateVersion::from(first));
    let put = |body: &'static str| store.put_opts(&path, body.into(), update.clone().into());
    put("2").await.expect("updated");
    assert!(matches!(put("3").await, Err(Error::Precondition { .. })));
    store.rename(&path, &other).await.expect("renamed");
    assert!(matches!(store.head(&path).await, Err(Error::NotFound { .. })));
    assert_eq!(store.get(&other).await.expect("read").bytes().await.expect("whole"), "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn object_store_stores_and_reads_back_over_http() {
    stores_and_reads_back(ClientEndpoint::http(), false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn object_store_stores_and_reads_back_over_https() {
    stores_and_reads_back(ClientEndpoint::https(), false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn object_store_stores_and_reads_back_over_http2() {
    stores_and_reads_back(ClientEndpoint::http(), true).await;
    stores_and_reads_back(ClientEndpoint::https(), true).await;
}
