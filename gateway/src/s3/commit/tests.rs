//! What clients do not notice: a segment that is fenced between the bytes and their name.

use crate::auth::AuthRules;
use crate::config::EtagKind;
use crate::credentials::{Keyring, NewKey, Sealer};
use crate::lockstep::Hasher;
use crate::memory::Memory;
use crate::metrics::{Metrics, exposition};
use crate::policies::{Place, Policies, Watched};
use crate::s3::error::Code;
use crate::s3::ingest::{Destination, Durable, Ingest};
use crate::s3::lanes::Lanes;
use crate::s3::put::put_version;
use crate::s3::reader::{BodyReader, ReadError};
use crate::s3::upload_ids::UploadIds;
use crate::s3::{Gateway, S3Config};
use crate::writeback::{Means, WriteBack};
use bytes::Bytes;
use mlgw_common::{BodyId, BucketName, Clock, ObjectKey, PartNumber, SystemClock, Timestamp};
use mlgw_metadata::command::{Conditions, CreateUpload, DeleteObject, ObjectChange, PutPart};
use mlgw_metadata::schema::{Bucket, ObjectVersion, Part, Quota, Upload};
use mlgw_metadata::{Catalogue, CatalogueOptions, NewBucket};
use mlgw_tiering::bound::Bound;
use mlgw_tiering::{Decisions, HotOptions, HotTier, Keeper, MemoryTier, Tiers};
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::runtime::Handle;

/// A gateway over an empty store, with a bucket.
pub(in crate::s3) async fn open(dir: &Path) -> (Arc<Gateway>, Arc<Bucket>) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let options = CatalogueOptions::new(dir.join("catalogue"), clock.clone());
    let catalogue = Catalogue::open(options).await.unwrap();
    let upload_ids = UploadIds::open(&catalogue).await.unwrap();
    let options = HotOptions::new(dir.join("segments"), 1 << 30, clock.clone());
    let hot = HotTier::open(options, catalogue.clone()).await.unwrap();
    let sealer = Sealer::open(dir, true).unwrap();
    let keyring = Keyring::open(catalogue.clone(), sealer, clock.clone(), None).await.unwrap();
    let new = NewBucket {
        name: BucketName::new("data").unwrap(),
        owner: "o".into(),
        region: String::new(),
        binding: None,
    };
    let bucket = catalogue.create_bucket(new).await.unwrap();
    let config =
        S3Config { domains: vec![], region: String::new(), etag: EtagKind::Md5, rules: AuthRules::new("s3") };
    let (tiers, bound) = (Tiers::new(MemoryTier::new(1 << 20), hot), Bound::default());
    let means = Means {
        catalogue: catalogue.clone(),
        tiers: tiers.clone(),
        bound: bound.clone(),
        decisions: Decisions::new(clock.clone()),
        clock: clock.clone(),
        bytes_max: 1 << 20,
        budgets: std::collections::HashMap::new(),
    };
    let policies = Policies::open(catalogue.clone(), clock.clone(), Place::default(), Watched::default());
    let policies = policies.await.unwrap();
    let gateway = Gateway {
        lanes: Lanes::default(),
        catalogue,
        tiers,
        bound,
        keeper: Keeper::new(
            1 << 16,
            Arc::new(mlgw_policies::language::Program::built_in().unwrap()),
            &*clock,
        ),
        policies,
        compressor: Arc::default(),
        writeback: WriteBack::open(means).unwrap(),
        hasher: Hasher::new(Handle::current()),
        keyring,
        upload_ids,
        config,
        metrics: Arc::new(Metrics::new(0)),
        clock,
        requests: AtomicU64::new(0),
    };
    (Arc::new(gateway), bucket)
}

/// Bytes that are nowhere the same.
pub(in crate::s3) fn bytes_of(length: usize) -> Bytes {
    (0..length).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// Stores a body and fences every segment that it lies in.
async fn stored_and_fenced(
    gateway: &Arc<Gateway>,
    bucket: &Bucket,
    key: &ObjectKey,
    part: Option<PartNumber>,
    data: &Bytes,
) -> (BodyId, Durable) {
    let body = gateway.catalogue.body_id().await.unwrap();
    let destination = Destination { bucket: bucket.bucket_id(), key: key.clone(), body, part };
    let memory = Memory::new(64 << 20, 100, None).account(Ipv4Addr::LOCALHOST.into());
    let mut ingest =
        Ingest::begin(gateway, &memory, destination, Some(data.len() as u64), true).await.unwrap();
    ingest.push(data.clone()).await.unwrap();
    let durable = ingest.finish().await.unwrap();
    for hold in &durable.holds {
        gateway.catalogue.fence_segment(hold.segment()).await.unwrap();
    }
    (body, durable)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_into_a_segment_that_was_fenced_meanwhile_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let (gateway, bucket) = open(dir.path()).await;
    // In the record itself, and on pages.
    for (name, length) in [("small", 5_000), ("large", 7 << 20)] {
        let (key, data) = (ObjectKey::new(name).unwrap(), bytes_of(length));
        let (body, durable) = stored_and_fenced(&gateway, &bucket, &key, None, &data).await;
        let object = ObjectVersion { body_id: body.get(), size: length as u64, ..ObjectVersion::default() };
        put_version(&gateway, &bucket, &key, object, durable.extents, Conditions::default()).await.unwrap();
        let object = gateway.catalogue.object(bucket.bucket_id(), &key).unwrap().unwrap();
        let (catalogue, tiers) = (&gateway.catalogue, &gateway.tiers);
        let mut reader = BodyReader::new(catalogue, tiers, bucket.bucket_id(), &key, &object, 0..object.size);
        let mut read = Vec::new();
        while let Some(piece) = reader.next().await.unwrap() {
            read.extend_from_slice(&piece);
        }
        assert!(read == data, "{name} reads back");
    }
    close(gateway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_a_long_body_that_is_replaced_gets_all_of_it_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (gateway, bucket) = open(dir.path()).await;
    let (key, data) = (ObjectKey::new("large").unwrap(), bytes_of(7 << 20));
    let (body, durable) = stored_and_fenced(&gateway, &bucket, &key, None, &data).await;
    let object = ObjectVersion { body_id: body.get(), size: 7 << 20, ..ObjectVersion::default() };
    put_version(&gateway, &bucket, &key, object, durable.extents, Conditions::default()).await.unwrap();
    let object = gateway.catalogue.object(bucket.bucket_id(), &key).unwrap().unwrap();
    assert!(object.is_paged());
    let (catalogue, tiers) = (&gateway.catalogue, &gateway.tiers);
    let reader = || BodyReader::new(catalogue, tiers, bucket.bucket_id(), &key, &object, 0..object.size);
    let mut in_time = reader();
    let mut read = in_time.next().await.unwrap().unwrap().to_vec();
    let delete = ObjectChange::Delete(DeleteObject { conditions: Conditions::default() });
    gateway.propose_object(&bucket, &key, Timestamp(0), delete).await.unwrap();
    // It may be freed in part by now, whatever is found of it.
    assert!(matches!(reader().next().await, Err(ReadError::Missing(0))), "it comes too late");
    while let Some(piece) = in_time.next().await.unwrap() {
        read.extend_from_slice(&piece);
    }
    assert!(read == data, "it came in time");
    drop(in_time);
    close(gateway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_in_a_segment_that_was_fenced_meanwhile_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    let (gateway, bucket) = open(dir.path()).await;
    let (key, data, number) =
        (ObjectKey::new("parts").unwrap(), bytes_of(100_000), PartNumber::new(3).unwrap());
    let (body, durable) = stored_and_fenced(&gateway, &bucket, &key, Some(number), &data).await;
    let upload = Upload { body_id: body.get(), key: "parts".into(), ..Upload::default() };
    let create = ObjectChange::CreateUpload(CreateUpload { upload });
    gateway.propose_object(&bucket, &key, Timestamp(0), create).await.unwrap();
    let part = Part { size: 100_000, extents: durable.extents, ..Part::default() };
    let put = ObjectChange::PutPart(PutPart { body_id: body.get(), number: 3, part });
    gateway.propose_object(&bucket, &key, Timestamp(0), put).await.unwrap();
    let part = gateway.catalogue.part(bucket.bucket_id(), &key, body, number).unwrap().unwrap();
    let read = gateway
        .tiers
        .hot
        .read(&part.extents[0], body, 0..100_000, mlgw_tiering::Lane::default())
        .await
        .unwrap();
    assert!(read == data, "the part reads back");
    close(gateway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_quota_refuses_names_no_bytes_and_is_refused_before_it_comes_where_that_can_be() {
    let dir = tempfile::tempdir().unwrap();
    let (gateway, bucket) = open(dir.path()).await;
    let limit = Quota { bytes: Some(6000), objects: None };
    gateway.catalogue.change_bucket_quota("data", |_| limit).await.unwrap();
    let refusals = |quota: &str| {
        let text = exposition::text(gateway.metrics.families()).unwrap();
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("mlgw_quota_refused_total{{quota=\"{quota}\"}}")));
        line.unwrap().rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let put = async |name: &str, length: usize, payer: &str| {
        let (key, data) = (ObjectKey::new(name).unwrap(), bytes_of(length));
        let (body, durable) = stored_and_fenced(&gateway, &bucket, &key, None, &data).await;
        let payer = payer.to_owned();
        let object =
            ObjectVersion { body_id: body.get(), size: length as u64, payer, ..ObjectVersion::default() };
        put_version(&gateway, &bucket, &key, object, durable.extents, Conditions::default()).await
    };
    put("a", 5000, "").await.unwrap();
    let referenced = gateway.catalogue.referenced_bytes().unwrap();
    let error = put("b", 1001, "").await.unwrap_err();
    assert_eq!(
        (error.code(), error.get("Limit"), error.get("Used")),
        (Code::QuotaExceeded, Some("6000"), Some("5000"))
    );
    assert_eq!((gateway.catalogue.referenced_bytes().unwrap(), refusals("bucket")), (referenced, 1));

    let bucket = gateway.catalogue.bucket("data").unwrap();
    let (a, b) = (ObjectKey::new("a").unwrap(), ObjectKey::new("b").unwrap());
    let check =
        |key, payer, bytes| gateway.check_quota(&bucket, key, payer, bytes).map_err(|error| error.code());
    assert_eq!(check(&b, "", Some(1001)), Err(Code::QuotaExceeded));
    assert_eq!(refusals("bucket"), 2);
    for (key, bytes) in [(&b, Some(1000)), (&b, None), (&a, Some(6000)), (&a, Some(0))] {
        assert_eq!(check(key, "", bytes), Ok(()), "{key} {bytes:?}");
    }

    let new = NewKey { access_key: Some("tenant".into()), ..NewKey::default() };
    gateway.keyring.create(new).await.unwrap();
    let limit = Quota { bytes: None, objects: Some(1) };
    gateway.catalogue.change_key_quota("tenant", |_| limit).await.unwrap();
    assert_eq!(check(&b, "tenant", Some(1)), Ok(()));
    put("b", 1, "tenant").await.unwrap();
    assert_eq!(check(&a, "tenant", Some(1)), Err(Code::QuotaExceeded), "it was another's object");
    assert_eq!(check(&b, "tenant", Some(1)), Ok(()));
    assert_eq!(put("c", 1, "tenant").await.unwrap_err().code(), Code::QuotaExceeded);
    assert_eq!(refusals("key"), 2);
    close(gateway).await;
}

async fn close(gateway: Arc<Gateway>) {
    let (hot, catalogue) = (gateway.tiers.hot.clone(), gateway.catalogue.clone());
    drop(gateway);
    hot.shutdown().await;
    catalogue.shutdown().await;
}
