//! Quotas across restarts, deletions and groups.

use super::model_tests::four_groups;
use super::testing::{NOW, bucket, delete, do_put, key, name, options, put, version};
use super::{Catalogue, ProposeError, read};
use mlgw_formats::command::{Change, Command, PutCredential, Reject, Reply, SetBucketQuota, SetKeyQuota};
use mlgw_formats::schema::quota::payer_row;
use mlgw_formats::schema::{
    Bucket, Credential, Mirror, ObjectVersion, Payer, Quota, bucket as bucket_schema,
};
use std::sync::Arc;

fn bytes(bytes: u64) -> Quota {
    Quota { bytes: Some(bytes), objects: None }
}

pub(super) async fn credential(catalogue: &Catalogue, access_key: &str) {
    let credential = Credential { access_key: access_key.to_owned(), ..Credential::default() };
    let change = Change::PutCredential(PutCredential { credential });
    catalogue.propose(Command::from(change)).await.unwrap();
}

async fn pay(catalogue: &Catalogue, of: &Bucket, object: &str, size: u64) -> Result<Reply, ProposeError> {
    let body = catalogue.body_id().await.unwrap();
    let version = ObjectVersion { payer: "AK".into(), ..version(body, size) };
    catalogue.propose(Command::object(of, &key(object), NOW, put(version))).await
}

fn is_refused(outcome: &Result<Reply, ProposeError>) -> bool {
    matches!(outcome, Err(ProposeError::Rejected(Reject::QuotaExceeded { .. })))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quotas_and_usage_survive_a_restart_and_end_with_their_bucket_or_key() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
    let data = bucket(&catalogue, "data").await;
    credential(&catalogue, "AK").await;
    let (before, after) = catalogue.change_bucket_quota("data", |_| bytes(10)).await.unwrap();
    assert_eq!((before.quota, after.quota, after.epoch), (None, Some(bytes(10)), before.epoch));
    let limited = catalogue.change_key_quota("AK", |_| bytes(8)).await.unwrap();
    assert_eq!(limited.quota, Some(bytes(8)));
    do_put(&catalogue, &data, "a", 1).await;
    pay(&catalogue, &data, "b", 8).await.unwrap();
    catalogue.shutdown().await;

    let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
    let data = catalogue.bucket("data").unwrap();
    assert_eq!((data.quota, catalogue.credential("AK").unwrap().quota), (Some(bytes(10)), Some(bytes(8))));
    assert_eq!(catalogue.payer_usage("AK").unwrap().bytes, 8);
    assert!(is_refused(&pay(&catalogue, &data, "c", 1).await), "of the key");
    catalogue.change_key_quota("AK", |quota| Quota { bytes: None, ..quota }).await.unwrap();
    assert!(is_refused(&pay(&catalogue, &data, "c", 2).await), "of the bucket");
    pay(&catalogue, &data, "c", 1).await.unwrap();
    for object in ["a", "b", "c"] {
        catalogue.propose(Command::object(&data, &key(object), NOW, delete())).await.unwrap();
    }
    assert_eq!(catalogue.payer_usage("AK").unwrap(), mlgw_formats::schema::BucketUsage::default());

    catalogue.delete_bucket(&name("data")).await.unwrap();
    let again = bucket(&catalogue, "data").await;
    assert_eq!(again.quota, None);
    catalogue.delete_credential("AK").await.unwrap();
    credential(&catalogue, "AK").await;
    assert_eq!(catalogue.credential("AK").unwrap().quota, None);
    pay(&catalogue, &again, "a", 1 << 30).await.unwrap();
    let none = catalogue.change_bucket_quota("none", |quota| quota).await;
    assert_eq!(none.unwrap_err(), ProposeError::Rejected(Reject::NoSuchBucket));
    let none = catalogue.change_key_quota("none", |quota| quota).await;
    assert_eq!(none.unwrap_err(), ProposeError::Rejected(Reject::NoSuchCredential));
    assert_eq!(
        catalogue.delete_credential("none").await,
        Err(ProposeError::Rejected(Reject::NoSuchCredential))
    );
    catalogue.shutdown().await;
}

/// Quotas of the bucket and of the key in each group.
fn known(catalogue: &Catalogue, of: &Bucket) -> Vec<(Option<Quota>, Option<Quota>)> {
    let groups = catalogue.inner.groups.all();
    let quotas = groups.iter().map(|group| {
        let state = group.state();
        let mirror: Mirror = read(&state, &bucket_schema::mirror_row(of.bucket_id())).unwrap().unwrap();
        let payer: Option<Payer> = read(&state, &payer_row("AK")).unwrap();
        (mirror.quota, payer.unwrap_or_default().quota)
    });
    quotas.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_group_has_a_quota_by_the_next_open() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(four_groups(dir.path())).await.unwrap();
    let alpha = bucket(&catalogue, "alpha").await;
    credential(&catalogue, "AK").await;
    catalogue.change_bucket_quota("alpha", |_| bytes(5)).await.unwrap();
    catalogue.change_key_quota("AK", |_| bytes(6)).await.unwrap();
    assert_eq!(known(&catalogue, &alpha), [(Some(bytes(5)), Some(bytes(6))); 4]);
    for object in ["a", "b", "m", "z"] {
        assert!(is_refused(&pay(&catalogue, &alpha, object, 7).await), "{object}");
        pay(&catalogue, &alpha, object, 1).await.unwrap();
    }
    assert_eq!(catalogue.payer_usage("AK").unwrap().bytes, 4);

    // The state after a crash between group 0 and the others.
    let of_bucket = SetBucketQuota { name: "alpha".into(), bucket_id: alpha.id, quota: Some(bytes(9)) };
    for change in [
        Change::SetBucketQuota(of_bucket),
        Change::SetKeyQuota(SetKeyQuota { access_key: "AK".into(), quota: None }),
    ] {
        catalogue.inner.propose_to(0, Arc::new(Command::from(change))).await.unwrap();
    }
    assert_eq!(known(&catalogue, &alpha)[3], (Some(bytes(5)), Some(bytes(6))));
    catalogue.shutdown().await;
    let catalogue = Catalogue::open(four_groups(dir.path())).await.unwrap();
    assert_eq!(known(&catalogue, &alpha), [(Some(bytes(9)), None); 4]);
    catalogue.delete_credential("AK").await.unwrap();
    catalogue.shutdown().await;
}
