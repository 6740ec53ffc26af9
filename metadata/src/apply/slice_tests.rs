//! Slices of quotas: what a group refuses, and which commands of allotments it accepts.

use super::memory_group::MemoryGroup;
use crate::catalogue::testing::{delete, put, version};
use crate::view::RowReader as _;
use mlgw_common::{BodyId, BucketId};
use mlgw_formats::command::{
    BeginAllotment, Change, DeleteCredential, MirrorBucket, ObjectChange, ObjectCommand, PutCredential,
    PutObject, QuotaOwner, QuotaSubject, Reject, Reply, SetBucketQuota, SetKeyQuota, SetSlice,
};
use mlgw_formats::schema::quota::payer_row;
use mlgw_formats::schema::{
    Credential, Excess, Measure, Mirror, ObjectVersion, Payer, Quota, QuotaSlice, SliceState, bucket, decode,
};

const KEY: &str = "AK";

/// A group with a bucket.
struct TestGroup {
    group: MemoryGroup,
}

impl TestGroup {
    fn new() -> Self {
        let mut group = Self { group: MemoryGroup::default() };
        let credential = Credential { access_key: KEY.into(), ..Credential::default() };
        group.apply(Change::PutCredential(PutCredential { credential })).unwrap();
        group
            .apply(Change::MirrorBucket(MirrorBucket { bucket_id: 1, epoch: 1, ..MirrorBucket::default() }))
            .unwrap();
        group
    }

    fn apply(&mut self, change: Change) -> Result<Reply, Reject> {
        self.group.apply(change)
    }

    fn limit_key(&mut self, quota: Option<Quota>) {
        self.apply(Change::SetKeyQuota(SetKeyQuota { access_key: KEY.into(), quota })).unwrap();
    }

    fn limit_bucket(&mut self, quota: Option<Quota>) {
        let set = SetBucketQuota { name: "data".into(), bucket_id: 1, quota };
        self.apply(Change::SetBucketQuota(set)).unwrap();
    }

    fn object(&mut self, key: &str, change: ObjectChange) -> Result<Reply, Reject> {
        let (key, change) = (key.to_owned(), Some(change));
        let command = ObjectCommand { bucket_id: 1, epoch: 1, key, change, ..ObjectCommand::default() };
        self.apply(Change::Object(command))
    }

    /// Writes an object of the access key.
    fn write(&mut self, key: &str, size: u64) -> Result<Reply, Reject> {
        let version = ObjectVersion { payer: KEY.into(), ..version(BodyId(self.group.index + 1), size) };
        self.object(key, put(version))
    }

    fn set(&mut self, owner: QuotaOwner, allotment: u64, slice: Quota, grows: bool) -> Result<Reply, Reject> {
        self.apply(Change::SetSlice(SetSlice { owner, allotment, slice, grows }))
    }

    /// Claims the slice of the access key; returns the limit of bytes.
    fn claim(&mut self, allotment: u64, slice: u64) -> Result<Option<u64>, Reject> {
        self.set(of_key(), allotment, bytes(slice), false).map(|reply| state(&reply).limits.bytes)
    }

    fn grant(&mut self, allotment: u64, slice: u64) -> Result<Option<u64>, Reject> {
        self.set(of_key(), allotment, bytes(slice), true).map(|reply| state(&reply).limits.bytes)
    }

    fn payer(&self) -> Option<Payer> {
        self.group.rows.get(&payer_row(KEY)).unwrap().map(|row| decode(&row).unwrap())
    }
}

fn of_key() -> QuotaOwner {
    QuotaOwner { bucket_id: 0, access_key: KEY.into() }
}

fn bytes(bytes: u64) -> Quota {
    Quota { bytes: Some(bytes), objects: None }
}

fn state(reply: &Reply) -> SliceState {
    let Reply::Slice { state, .. } = reply else { panic!("{reply:?}") };
    *state
}

/// The rejection of a write of these bytes.
fn full(of: QuotaSubject, bytes: u64, allotment: u64) -> Result<Reply, Reject> {
    Err(Reject::SliceFull { of, bytes, objects: 1, allotment })
}

#[test]
fn a_group_grows_up_to_its_slice_and_without_one_up_to_the_quota() {
    let mut group = TestGroup::new();
    group.limit_key(Some(bytes(30)));
    group.write("a", 11).unwrap();
    assert_eq!(group.claim(1, 10), Ok(Some(10)), "also below the usage");
    let of = QuotaSubject::Key(KEY.to_owned());
    assert_eq!(group.write("b", 2), full(of.clone(), 2, 1));
    group.write("empty", 0).unwrap();
    assert_eq!(group.grant(1, 13), Ok(Some(13)));
    group.write("b", 2).unwrap();
    let excess = Excess { measure: Measure::Bytes, limit: 30, used: 13 };
    let exceeded = Err(Reject::QuotaExceeded { of: of.clone(), excess });
    assert_eq!(group.write("c", 18), exceeded, "no other group has room for it");
    assert_eq!(group.write("c", 17), full(of, 17, 1));
    // What does not grow is accepted.
    group.write("a", 10).unwrap();
    group.object("b", delete()).unwrap();
    group.write("b", 3).unwrap();
    let exempt = PutObject { version: version(BodyId(900), 50), is_exempt: true, ..PutObject::default() };
    let exempt =
        PutObject { version: ObjectVersion { payer: KEY.into(), ..exempt.version.clone() }, ..exempt };
    group.object("exempt", ObjectChange::Put(exempt)).unwrap();
    let state = state(&group.set(of_key(), 2, bytes(20), false).unwrap());
    assert_eq!((state.limits.bytes, state.used_bytes), (Some(13), 63), "a claim does not raise a slice");
}

#[test]
fn a_slice_of_a_split_bucket_limits_its_part_of_the_bucket() {
    let mut group = TestGroup::new();
    group.limit_bucket(Some(Quota { bytes: Some(30), objects: Some(4) }));
    let owner = QuotaOwner { bucket_id: 1, access_key: String::new() };
    let slice = Quota { bytes: Some(10), objects: Some(2) };
    let claimed = state(&group.set(owner.clone(), 3, slice, false).unwrap());
    assert_eq!((claimed.limits, claimed.used_bytes, claimed.used_objects), (slice, 0, 0));
    group.write("a", 1).unwrap();
    group.write("b", 1).unwrap();
    assert_eq!(group.write("c", 1), full(QuotaSubject::Bucket, 1, 3));
    assert_eq!(
        group.write("b", 12),
        Err(Reject::SliceFull { of: QuotaSubject::Bucket, bytes: 11, objects: 0, allotment: 3 })
    );
    let granted = group.set(owner.clone(), 3, Quota { bytes: None, objects: Some(3) }, true).unwrap();
    assert_eq!(state(&granted).limits, Quota { bytes: Some(10), objects: Some(3) });
    group.write("c", 1).unwrap();
    // A new epoch of the bucket keeps the slice.
    group
        .apply(Change::MirrorBucket(MirrorBucket { bucket_id: 1, epoch: 2, ..MirrorBucket::default() }))
        .unwrap();
    let mirror = group.group.rows.get(&bucket::mirror_row(BucketId(1))).unwrap().unwrap();
    let limits = Quota { bytes: Some(10), objects: Some(3) };
    assert_eq!(decode::<Mirror>(&mirror).unwrap().slice, Some(QuotaSlice { limits, allotment: 3 }));
    let other = QuotaOwner { bucket_id: 2, access_key: String::new() };
    assert_eq!(group.set(other, 4, slice, false), Err(Reject::NoSuchBucket));
}

#[test]
fn a_group_accepts_grants_of_the_newest_allotment_that_claimed_its_slice() {
    let mut group = TestGroup::new();
    assert_eq!(group.claim(5, 10), Err(Reject::NoQuota));
    group.limit_key(Some(bytes(30)));
    assert_eq!(group.grant(5, 10), Err(Reject::AllotmentEnded { allotment: 0 }), "it was not claimed");
    assert_eq!(group.claim(5, 10), Ok(Some(10)));
    assert_eq!(group.claim(7, 20), Ok(Some(10)), "only a grant raises a slice");
    for late in [group.grant(5, 30), group.claim(5, 30), group.claim(6, 1)] {
        assert_eq!(late, Err(Reject::AllotmentEnded { allotment: 7 }));
    }
    assert_eq!(group.grant(8, 30), Err(Reject::AllotmentEnded { allotment: 7 }), "not claimed yet");
    assert_eq!(group.grant(7, 20), Ok(Some(20)));
    assert_eq!(group.grant(7, 15), Ok(Some(20)), "a grant lowers no slice");
    assert_eq!(group.claim(7, 15), Ok(Some(15)), "a claim that is repeated");
}

#[test]
fn slices_end_with_their_quota_and_their_access_key() {
    let mut group = TestGroup::new();
    group.limit_key(Some(Quota { bytes: Some(30), objects: Some(9) }));
    group.write("a", 5).unwrap();
    let slice = Quota { bytes: Some(10), objects: Some(3) };
    group.set(of_key(), 1, slice, false).unwrap();
    group.limit_key(Some(bytes(8)));
    let kept = QuotaSlice { limits: bytes(10), allotment: 1 };
    assert_eq!(group.payer().unwrap().slice, Some(kept));
    let excess = Excess { measure: Measure::Bytes, limit: 8, used: 5 };
    let of = QuotaSubject::Key(KEY.to_owned());
    assert_eq!(
        group.write("b", 4),
        Err(Reject::QuotaExceeded { of, excess }),
        "the lower limit holds at once"
    );
    group.limit_key(None);
    assert_eq!(group.payer().unwrap().slice, None);
    assert_eq!(group.grant(1, 20), Err(Reject::NoQuota), "a late command of the allotment");

    group.limit_key(Some(bytes(30)));
    group.claim(2, 10).unwrap();
    group.object("a", delete()).unwrap();
    group.apply(Change::DeleteCredential(DeleteCredential { access_key: KEY.into() })).unwrap();
    assert_eq!(group.payer(), None, "nothing is left of it");
    assert_eq!(group.claim(3, 10), Err(Reject::NoQuota));
    assert_eq!(group.payer(), None);
}

#[test]
fn numbers_of_allotments_grow() {
    let mut group = TestGroup::new();
    let mut begin = |after| {
        let begin = BeginAllotment { owner: of_key(), after, needed: None };
        match group.apply(Change::BeginAllotment(begin)) {
            Ok(Reply::Allotment { number }) => Some(number),
            other => panic!("{other:?}"),
        }
    };
    let numbers: Vec<_> = [0, 0, 0, 9, 9, 5, 0].into_iter().map(&mut begin).collect();
    assert_eq!(numbers, [1, 2, 3, 10, 11, 12, 13].map(Some));
    let last = BeginAllotment { after: u64::MAX, ..BeginAllotment::default() };
    assert!(matches!(group.apply(Change::BeginAllotment(last)), Err(Reject::Malformed { .. })));
}
