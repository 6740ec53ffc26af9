//! Quotas across restarts, deletions and groups.

use super::allotments::owner_of_key;
use super::model_tests::four_groups;
use super::testing::{NOW, bucket, delete, do_put, key, name, options, put, version};
use super::{Catalogue, ProposeError, read};
use mlgw_formats::cluster_version::SLICES_CLUSTER_VERSION;
use mlgw_formats::command::{
    Change, Command, PutCredential, QuotaSubject, Reject, Reply, SetBucketQuota, SetKeyQuota, SetSlice,
};
use mlgw_formats::schema::quota::payer_row;
use mlgw_formats::schema::{
    Bucket, Credential, Excess, Measure, Mirror, ObjectVersion, Payer, Quota, bucket as bucket_schema,
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

/// Repeats a write that had to wait too long for room in its slice, as on a busy machine.
async fn pay_in_time(
    catalogue: &Catalogue,
    of: &Bucket,
    object: &str,
    size: u64,
) -> Result<Reply, ProposeError> {
    loop {
        match pay(catalogue, of, object, size).await {
            Err(ProposeError::Overloaded) => {}
            outcome => return outcome,
        }
    }
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

/// Slices of bytes of the key in each group; 0 without one.
fn slices(catalogue: &Catalogue) -> Vec<u64> {
    let groups = catalogue.inner.groups.all();
    let slices = groups.iter().map(|group| {
        let payer: Option<Payer> = read(&group.state(), &payer_row("AK")).unwrap();
        payer.and_then(|payer| payer.slice?.limits.bytes).unwrap_or_default()
    });
    slices.collect()
}

/// The slices of the key together, or the usage of a group where that is higher.
fn held(catalogue: &Catalogue) -> u64 {
    let groups = catalogue.inner.object_groups();
    let states = groups.iter().map(|group| catalogue.inner.slice_in(&owner_of_key("AK"), *group).unwrap().0);
    states.map(|state| state.limits.bytes.unwrap_or_default().max(state.used_bytes)).sum()
}

/// First letters of keys in each of the four groups.
const SPREAD: [&str; 4] = ["A", "b", "m", "z"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writes_to_several_groups_use_exactly_the_quota() {
    const QUOTA: u64 = 1000;
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(four_groups(dir.path())).await.unwrap();
    let alpha = bucket(&catalogue, "alpha").await;
    credential(&catalogue, "AK").await;
    assert_eq!(catalogue.cluster_version(), 1);
    catalogue.change_key_quota("AK", |_| bytes(QUOTA)).await.unwrap();
    assert_eq!(slices(&catalogue), [QUOTA / 4; 4], "it is divided when the change returns");
    assert!(catalogue.cluster_version() >= SLICES_CLUSTER_VERSION);

    // Three quarters of what they write does not fit.
    let writes = (0..80).map(|number| {
        let (catalogue, alpha) = (catalogue.clone(), Arc::clone(&alpha));
        tokio::spawn(async move {
            let object = format!("{}{number}", SPREAD[number % 4]);
            pay_in_time(&catalogue, &alpha, &object, 50).await
        })
    });
    let mut written = 0;
    for write in writes.collect::<Vec<_>>() {
        match write.await.unwrap() {
            Ok(_) => written += 50,
            outcome => assert!(is_refused(&outcome), "{outcome:?}"),
        }
    }
    assert_eq!((written, catalogue.payer_usage("AK").unwrap().bytes), (QUOTA, QUOTA));
    assert_eq!(held(&catalogue), QUOTA);

    // All of what is freed in one group can be used in another one.
    let by_letter = SPREAD.map(|letter| alpha_objects(&catalogue, &alpha, letter));
    let freed = by_letter.iter().position(|objects| !objects.is_empty()).unwrap();
    for object in &by_letter[freed] {
        catalogue.propose(Command::object(&alpha, &key(object), NOW, delete())).await.unwrap();
    }
    let (free, other) = (50 * by_letter[freed].len() as u64, SPREAD[(freed + 1) % SPREAD.len()]);
    pay_in_time(&catalogue, &alpha, &format!("{other}-large"), free).await.unwrap();
    let refused = pay_in_time(&catalogue, &alpha, "m-small", 1).await;
    let excess = Excess { measure: Measure::Bytes, limit: QUOTA, used: QUOTA };
    let of = QuotaSubject::Key("AK".to_owned());
    assert_eq!(refused, Err(Reject::QuotaExceeded { of, excess }.into()), "it names the whole quota");
    catalogue.shutdown().await;
}

/// Keys of the bucket that begin with a letter.
fn alpha_objects(catalogue: &Catalogue, of: &Bucket, letter: &str) -> Vec<String> {
    let names = (0..80).map(|number| format!("{letter}{number}"));
    names.filter(|name| catalogue.object(of.bucket_id(), &key(name)).unwrap().is_some()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_change_of_a_quota_divides_it_and_its_end_removes_the_slices() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(four_groups(dir.path())).await.unwrap();
    let alpha = bucket(&catalogue, "alpha").await;
    credential(&catalogue, "AK").await;
    catalogue.change_key_quota("AK", |_| bytes(40)).await.unwrap();
    pay_in_time(&catalogue, &alpha, "a", 35).await.unwrap();
    let sum = |slices: Vec<u64>| slices.iter().sum::<u64>();
    assert_eq!(sum(slices(&catalogue)), 40);
    catalogue.change_key_quota("AK", |_| bytes(80)).await.unwrap();
    assert_eq!(sum(slices(&catalogue)), 80);
    assert!(slices(&catalogue).iter().all(|slice| *slice >= 11), "{:?}", slices(&catalogue));
    catalogue.change_key_quota("AK", |_| bytes(20)).await.unwrap();
    assert_eq!(sum(slices(&catalogue)), 35, "the usage, and nothing more");
    for object in ["b", "m", "z"] {
        assert!(is_refused(&pay(&catalogue, &alpha, object, 1).await), "{object}");
    }
    catalogue.change_key_quota("AK", |_| Quota::default()).await.unwrap();
    assert_eq!(slices(&catalogue), [0; 4]);
    pay_in_time(&catalogue, &alpha, "b", 1000).await.unwrap();
    catalogue.change_key_quota("AK", |_| bytes(5000)).await.unwrap();
    catalogue.delete_credential("AK").await.unwrap();
    assert_eq!(slices(&catalogue), [0; 4]);
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_that_do_not_fit_are_found_and_lower_numbers_of_allotments_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(four_groups(dir.path())).await.unwrap();
    let alpha = bucket(&catalogue, "alpha").await;
    credential(&catalogue, "AK").await;
    catalogue.change_key_quota("AK", |_| bytes(40)).await.unwrap();
    // As in a backup whose groups were copied at different times: one group has taken part in an allotment
    // that the system group does not know, and has more than its share.
    for (grows, slice) in [(false, 40), (true, 40)] {
        let owner = owner_of_key("AK");
        let set = SetSlice { owner, allotment: 700, slice: bytes(slice), grows };
        catalogue.inner.propose_to(2, Arc::new(Command::from(Change::SetSlice(set)))).await.unwrap();
    }
    assert_eq!(slices(&catalogue), [10, 10, 40, 10]);
    catalogue.inner.divide_due_quotas().await.unwrap();
    assert_eq!(slices(&catalogue), [10; 4]);
    let allotment = |group| catalogue.inner.slice_in(&owner_of_key("AK"), group).unwrap().1;
    assert_eq!([0, 1, 2, 3].map(allotment), [701; 4]);
    catalogue.inner.divide_due_quotas().await.unwrap();
    assert_eq!([0, 1, 2, 3].map(allotment), [701; 4], "nothing is due");
    pay_in_time(&catalogue, &alpha, "a", 40).await.unwrap();
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_in_one_group_is_not_divided() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
    let data = bucket(&catalogue, "data").await;
    credential(&catalogue, "AK").await;
    catalogue.change_key_quota("AK", |_| bytes(10)).await.unwrap();
    catalogue.change_bucket_quota("data", |_| bytes(20)).await.unwrap();
    pay_in_time(&catalogue, &data, "a", 10).await.unwrap();
    catalogue.inner.divide_due_quotas().await.unwrap();
    assert_eq!((slices(&catalogue), catalogue.cluster_version()), (vec![0], 1));
    catalogue.shutdown().await;
}
