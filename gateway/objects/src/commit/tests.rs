//! Tests of commits to fenced segments, of reads of replaced bodies, and of quotas.

use crate::etag::EtagSource;
use crate::ingest::{Destination, DurableChunks, Ingest};
use crate::memory::RequestMemory;
use crate::read::FoundObject;
use crate::reader::{BodyReadError, BodyReader, part_ranges};
use crate::{ObjectError, ObjectLayer, TermedChanges};
use bytes::Bytes;
use mlgw_common::{BodyId, BucketName, Clock, ObjectKey, PartNumber, SplitKeys, SystemClock, Timestamp};
use mlgw_formats::cluster_version::DUTY_CLUSTER_VERSION;
use mlgw_formats::command::{
    Change, Command, Conditions, CreateUpload, DeleteObject, ObjectChange, PutCredential, PutPart, Reject,
};
use mlgw_formats::schema::{Bucket, Credential, ObjectVersion, PartRecord, Quota, Upload};
use mlgw_metadata::{Catalogue, CatalogueOptions, NewBucket};
use mlgw_segments::hot::{HotOptions, HotTier};
use mlgw_segments::memory::MemoryTier;
use mlgw_segments::tiers::Tiers;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

/// Returns the objects of an empty store, with a bucket.
pub(crate) async fn open(dir: &Path) -> (Arc<ObjectLayer>, Arc<Bucket>) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let options = CatalogueOptions::new(dir.join("catalogue"), clock.clone());
    let catalogue = Catalogue::open(options).await.unwrap();
    let options = HotOptions::new(dir.join("segments"), 1 << 30, clock.clone());
    let hot = HotTier::open(options, catalogue.clone()).await.unwrap();
    let new = NewBucket {
        name: BucketName::new("data").unwrap(),
        owner: "o".into(),
        region: String::new(),
        binding: None,
        split_keys: SplitKeys::default(),
    };
    let bucket = catalogue.create_bucket(new).await.unwrap();
    let tiers = Tiers::new(MemoryTier::new(1 << 20), hot);
    (Arc::new(ObjectLayer::new(catalogue, tiers, EtagSource::Md5)), bucket)
}

/// Returns `length` bytes without repetition.
pub(crate) fn bytes_of(length: usize) -> Bytes {
    (0..length).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// Stores a body and fences every segment that contains its bytes.
async fn stored_and_fenced(
    objects: &Arc<ObjectLayer>,
    bucket: &Bucket,
    key: &ObjectKey,
    part: Option<PartNumber>,
    data: &Bytes,
) -> (BodyId, DurableChunks) {
    let body = objects.catalogue.body_id().await.unwrap();
    let destination = Destination { bucket: bucket.bucket_id(), key: key.clone(), body, part };
    let memory = RequestMemory::new(64 << 20, 100, None).account(Ipv4Addr::LOCALHOST.into());
    let ingest = Ingest::begin(objects, &memory, destination, Some(data.len() as u64)).await.unwrap();
    let mut ingest = ingest.with_md5();
    ingest.push(data.clone()).await.unwrap();
    let durable = ingest.finish().await.unwrap();
    for hold in &durable.holds {
        objects.catalogue.fence_segment(hold.segment()).await.unwrap();
    }
    (body, durable)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_into_a_segment_that_was_fenced_meanwhile_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let (objects, bucket) = open(dir.path()).await;
    // The extents of the first are in its record, those of the second on pages.
    for (name, length) in [("small", 5_000), ("large", 7 << 20)] {
        let (key, data) = (ObjectKey::new(name).unwrap(), bytes_of(length));
        let (body, durable) = stored_and_fenced(&objects, &bucket, &key, None, &data).await;
        let object = ObjectVersion { body_id: body.get(), size: length as u64, ..ObjectVersion::default() };
        objects.put_version(&bucket, &key, object, durable.extents, Conditions::default()).await.unwrap();
        let object = objects.catalogue.object(bucket.bucket_id(), &key).unwrap().unwrap();
        let (catalogue, tiers) = (&objects.catalogue, &objects.tiers);
        let mut reader = BodyReader::new(catalogue, tiers, bucket.bucket_id(), &key, &object, 0..object.size);
        let mut read = Vec::new();
        while let Some(piece) = reader.next().await.unwrap() {
            read.extend_from_slice(&piece);
        }
        assert!(read == data, "{name} reads back");
    }
    close(objects).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_of_a_long_body_that_is_replaced_gets_all_of_it_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (objects, bucket) = open(dir.path()).await;
    let (key, data) = (ObjectKey::new("large").unwrap(), bytes_of(7 << 20));
    let (body, durable) = stored_and_fenced(&objects, &bucket, &key, None, &data).await;
    let object = ObjectVersion { body_id: body.get(), size: 7 << 20, ..ObjectVersion::default() };
    objects.put_version(&bucket, &key, object, durable.extents, Conditions::default()).await.unwrap();
    let object = objects.catalogue.object(bucket.bucket_id(), &key).unwrap().unwrap();
    assert!(object.is_paged());
    let (catalogue, tiers) = (&objects.catalogue, &objects.tiers);
    let reader = || BodyReader::new(catalogue, tiers, bucket.bucket_id(), &key, &object, 0..object.size);
    let incomplete = ObjectVersion { part_count: 2, ..object.clone() };
    let damaged = FoundObject { bucket: bucket.clone(), key: key.clone(), object: incomplete };
    assert!(matches!(damaged.part(&objects, 0), Err(BodyReadError::Missing(0))), "its index lacks two parts");
    let mut in_time = reader();
    let mut read = in_time.next().await.unwrap().unwrap().to_vec();
    let delete = ObjectChange::Delete(DeleteObject { conditions: Conditions::default() });
    objects.propose_object(&bucket, &key, Timestamp(0), delete).await.unwrap();
    // Some of the body may already be freed. A new reader must not return any of it.
    assert!(matches!(reader().next().await, Err(BodyReadError::Missing(0))), "it is too late");
    let pin = catalogue.pin(object.body());
    let parts = || part_ranges(catalogue, bucket.bucket_id(), &key, &object, &pin);
    assert!(matches!(parts(), Err(BodyReadError::Missing(0))), "its parts are gone too");
    while let Some(piece) = in_time.next().await.unwrap() {
        read.extend_from_slice(&piece);
    }
    assert!(read == data, "it came in time");
    drop(in_time);
    close(objects).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_in_a_segment_that_was_fenced_meanwhile_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    let (objects, bucket) = open(dir.path()).await;
    let (key, data, number) =
        (ObjectKey::new("parts").unwrap(), bytes_of(100_000), PartNumber::new(3).unwrap());
    let (body, durable) = stored_and_fenced(&objects, &bucket, &key, Some(number), &data).await;
    let upload = Upload { body_id: body.get(), key: "parts".into(), ..Upload::default() };
    let create = ObjectChange::CreateUpload(CreateUpload { upload });
    objects.propose_object(&bucket, &key, Timestamp(0), create).await.unwrap();
    let part = PartRecord { size: 100_000, extents: durable.extents, ..PartRecord::default() };
    let put = ObjectChange::PutPart(PutPart { body_id: body.get(), number: 3, part });
    objects.propose_object(&bucket, &key, Timestamp(0), put).await.unwrap();
    let part = objects.catalogue.part(bucket.bucket_id(), &key, body, number).unwrap().unwrap();
    let read = objects
        .tiers
        .hot
        .read(&part.extents[0], body, 0..100_000, mlgw_segments::fair::Lane::default())
        .await
        .unwrap();
    assert!(read == data, "the part reads back");
    close(objects).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_write_leaves_no_reference_and_is_refused_before_its_body_if_its_length_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let (objects, bucket) = open(dir.path()).await;
    let limit = Quota { bytes: Some(6000), objects: None };
    objects.catalogue.change_bucket_quota("data", |_| limit).await.unwrap();
    let refusals = || objects.metrics.quota_refused();
    let is_exceeded =
        |error: ObjectError| matches!(error, ObjectError::Rejected(Reject::QuotaExceeded { .. }));
    let put = async |name: &str, length: usize, payer: &str| {
        let (key, data) = (ObjectKey::new(name).unwrap(), bytes_of(length));
        let (body, durable) = stored_and_fenced(&objects, &bucket, &key, None, &data).await;
        let payer = payer.to_owned();
        let object =
            ObjectVersion { body_id: body.get(), size: length as u64, payer, ..ObjectVersion::default() };
        objects.put_version(&bucket, &key, object, durable.extents, Conditions::default()).await
    };
    put("a", 5000, "").await.unwrap();
    let referenced = objects.catalogue.referenced_bytes().unwrap();
    let error = put("b", 1001, "").await.unwrap_err();
    let ObjectError::Rejected(Reject::QuotaExceeded { excess, .. }) = error else { panic!("{error}") };
    assert_eq!((excess.limit, excess.used), (6000, 5000));
    assert_eq!((objects.catalogue.referenced_bytes().unwrap(), refusals()), (referenced, [1, 0]));

    let bucket = objects.catalogue.bucket("data").unwrap();
    let (a, b) = (ObjectKey::new("a").unwrap(), ObjectKey::new("b").unwrap());
    let check = |key, payer, bytes| objects.check_quota(&bucket, key, payer, bytes).map_err(is_exceeded);
    assert_eq!(check(&b, "", Some(1001)), Err(true));
    assert_eq!(refusals(), [2, 0]);
    for (key, bytes) in [(&b, Some(1000)), (&b, None), (&a, Some(6000)), (&a, Some(0))] {
        assert_eq!(check(key, "", bytes), Ok(()), "{key} {bytes:?}");
    }

    let credential = Credential { access_key: "tenant".into(), ..Credential::default() };
    let change = Change::PutCredential(PutCredential { credential });
    objects.catalogue.propose(Command::from(change)).await.unwrap();
    let limit = Quota { bytes: None, objects: Some(1) };
    objects.catalogue.change_key_quota("tenant", |_| limit).await.unwrap();
    assert_eq!(check(&b, "tenant", Some(1)), Ok(()));
    put("b", 1, "tenant").await.unwrap();
    assert_eq!(check(&a, "tenant", Some(1)), Err(true), "the object belonged to another owner");
    assert_eq!(check(&b, "tenant", Some(1)), Ok(()));
    assert!(is_exceeded(put("c", 1, "tenant").await.unwrap_err()));
    assert_eq!(refusals(), [2, 2]);
    close(objects).await;
}

async fn close(objects: Arc<ObjectLayer>) {
    let (hot, catalogue) = (objects.tiers.hot.clone(), objects.catalogue.clone());
    drop(objects);
    hot.shutdown().await;
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_change_by_a_job_of_an_earlier_term_is_rejected_and_those_of_clients_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let (objects, bucket) = open(dir.path()).await;
    objects.catalogue.raise_cluster_version(DUTY_CLUSTER_VERSION).await.unwrap();
    let of = |term, termed| {
        let duty_term = Some(term);
        ObjectLayer { duty_term, termed, ..ObjectLayer::clone(&objects) }
    };
    let put = async |objects: &ObjectLayer| {
        let key = ObjectKey::new("k").unwrap();
        let body = objects.catalogue.body_id().await.unwrap();
        let object = ObjectVersion { body_id: body.get(), ..ObjectVersion::default() };
        objects.put_version(&bucket, &key, object, Vec::new(), Conditions::default()).await.map(drop)
    };
    let (former, present) = (of(5, TermedChanges::All), of(6, TermedChanges::All));
    let client = of(5, TermedChanges::OfRemoteBacked);
    former.begin_term_in(&bucket).await.unwrap();
    put(&former).await.unwrap();
    present.begin_term_in(&bucket).await.unwrap();
    let late = put(&former).await;
    assert!(matches!(late, Err(ObjectError::Rejected(Reject::TermEnded { term: 6 }))), "{late:?}");
    put(&present).await.unwrap();
    put(&client).await.unwrap();
    let again = former.begin_term_in(&bucket).await;
    assert_eq!(again, Err(Reject::TermEnded { term: 6 }.into()));
    client.begin_term_in(&bucket).await.unwrap();
}
