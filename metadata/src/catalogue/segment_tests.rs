//! End of a segment in the catalogue: find references, fence, relocate, remove.

use super::model_tests::four_groups;
use super::testing::{NOW, bucket, delete, extent, key, options, put, version};
use super::{Catalogue, CatalogueOptions, ChunkOwner, ProposeError};
use mlgw_common::{BodyId, NodeId, PartNumber, SegmentId, SegmentTier};
use mlgw_formats::cluster_version::REPLICATION_CLUSTER_VERSION;
use mlgw_formats::command::{
    AbortUpload, Change, Command, CreateSegment, CreateUpload, ObjectChange, PutObject, PutPart, Reject,
    Reply, SealSegment,
};
use mlgw_formats::schema::{
    Bucket, Extent, ExtentPage, ObjectVersion, PartRecord, Replica, SegmentUsage, Upload,
};
use std::path::Path;
use std::sync::Arc;

/// Extent of `segment` that begins at `offset`.
fn at(segment: u64, offset: u64) -> Extent {
    Extent { offset, ..extent(segment, 10) }
}

struct Bench {
    catalogue: Catalogue,
    bucket: Arc<Bucket>,
    _dir: tempfile::TempDir,
}

impl Bench {
    async fn new(options: fn(&Path) -> CatalogueOptions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
        let bucket = bucket(&catalogue, "data").await;
        for _ in 0..3 {
            let create = CreateSegment {
                class: 0,
                node: 1,
                location: "d".into(),
                created_ms: 0,
                stamp: 0,
                ..CreateSegment::default()
            };
            catalogue.propose(Command::from(Change::CreateSegment(create))).await.unwrap();
        }
        Self { catalogue, bucket, _dir: dir }
    }

    async fn on(&self, object: &str, change: ObjectChange) -> Result<Reply, ProposeError> {
        self.catalogue.propose(Command::object(&self.bucket, &key(object), NOW, change)).await
    }

    async fn body(&self) -> BodyId {
        self.catalogue.body_id().await.unwrap()
    }

    async fn seal(&self, segment: u64) {
        let seal = Change::SealSegment(SealSegment { segment, length: 4096, ..SealSegment::default() });
        self.catalogue.propose(Command::from(seal)).await.unwrap();
    }

    fn owner(&self, object: &str, body: BodyId, part: u32, offset: u64) -> ChunkOwner {
        let part = PartNumber::new(part);
        ChunkOwner { bucket: self.bucket.bucket_id(), key: key(object), body, part, offset }
    }

    fn usage(&self, segment: u64) -> SegmentUsage {
        self.catalogue.segment_usage(SegmentId(segment)).unwrap()
    }

    /// Moves the chunk at `offset` of segment 1 to segment 2 and checks that it is found there.
    async fn check_relocation(&self, owner: &ChunkOwner, offset: u64) {
        let (one, two) = (SegmentId(1), SegmentId(2));
        let found = self.catalogue.reference(owner, one, offset).unwrap().expect("it is referenced");
        assert_eq!(found.extent, at(1, offset));
        let moved = self.catalogue.relocate(owner, found.clone(), at(2, offset)).await;
        assert_eq!(moved, Ok(true));
        assert_eq!(self.catalogue.reference(owner, one, offset), Ok(None));
        let there = self.catalogue.reference(owner, two, offset).unwrap().expect("it is there");
        assert_eq!((there.extent, there.page), (at(2, offset), found.page));
        let again = self.catalogue.relocate(owner, found, at(3, offset)).await;
        assert_eq!(again, Ok(false), "it is no longer at its old location");
    }
}

fn sized(body: BodyId, extents: Vec<Extent>) -> ObjectVersion {
    let size = extents.iter().map(|extent| extent.logical_bytes).sum();
    ObjectVersion { extents, ..version(body, size) }
}

async fn finds_and_relocates_wherever_a_chunk_is_named(options: fn(&Path) -> CatalogueOptions) {
    let bench = Bench::new(options).await;
    // The record of an object.
    let body = bench.body().await;
    bench.on("a", put(sized(body, vec![at(1, 100), at(1, 200)]))).await.unwrap();
    bench.check_relocation(&bench.owner("a", body, 0, 10), 200).await;
    // The second page of a long object.
    let long = bench.body().await;
    let page = |from: u64, count: u64| ExtentPage {
        extents: (0..count).map(|n| at(1, 1000 + from + n)).collect(),
        parts: vec![],
    };
    let pages = vec![page(0, 6), page(6, 7)];
    let version = ObjectVersion { extents: vec![], ..version(long, 130) };
    let put = ObjectChange::Put(PutObject { version, pages, ..PutObject::default() });
    bench.on("m", put).await.unwrap();
    bench.check_relocation(&bench.owner("m", long, 0, 80), 1008).await;
    // A part, and a page of a part.
    let upload = bench.body().await;
    let create = Upload { body_id: upload.0, key: "z".into(), ..Upload::default() };
    bench.on("z", ObjectChange::CreateUpload(CreateUpload { upload: create })).await.unwrap();
    for (number, count) in [(1, 2), (2, 200)] {
        let extents: Vec<Extent> = (0..count).map(|n| at(1, 10_000 * u64::from(number) + n)).collect();
        let part = PartRecord { size: 10 * count, extents, ..PartRecord::default() };
        bench.on("z", ObjectChange::PutPart(PutPart { body_id: upload.0, number, part })).await.unwrap();
    }
    bench.check_relocation(&bench.owner("z", upload, 1, 10), 10_001).await;
    bench.check_relocation(&bench.owner("z", upload, 2, 1500), 20_150).await;
    assert_eq!((bench.usage(1).extents, bench.usage(2).extents), (2 + 13 + 202 - 4, 4));
    // Rows that wait to be freed still name their chunks.
    let _pin = bench.catalogue.pin(upload);
    bench.on("z", ObjectChange::AbortUpload(AbortUpload { body_id: upload.0 })).await.unwrap();
    bench.check_relocation(&bench.owner("z", upload, 2, 1510), 20_151).await;
    let _pin_of_pages = bench.catalogue.pin(long);
    bench.on("m", delete()).await.unwrap();
    bench.check_relocation(&bench.owner("m", long, 0, 90), 1009).await;
    // No record names a chunk that was deleted, replaced or never referenced.
    bench.on("a", delete()).await.unwrap();
    for owner in [bench.owner("a", body, 0, 0), bench.owner("a", long, 0, 0), bench.owner("z", body, 1, 0)] {
        assert_eq!(bench.catalogue.reference(&owner, SegmentId(1), 100), Ok(None), "{owner:?}");
    }
    bench.catalogue.shutdown().await;
}

#[tokio::test]
async fn finds_and_relocates_wherever_a_chunk_is_named_in_one_group() {
    finds_and_relocates_wherever_a_chunk_is_named(options).await;
}

#[tokio::test]
async fn finds_and_relocates_wherever_a_chunk_is_named_in_four_groups() {
    finds_and_relocates_wherever_a_chunk_is_named(four_groups).await;
}

async fn a_fenced_segment_only_loses_references(options: fn(&Path) -> CatalogueOptions) {
    let bench = Bench::new(options).await;
    for object in ["a", "z"] {
        bench.on(object, put(sized(bench.body().await, vec![at(1, 64)]))).await.unwrap();
    }
    let (one, two) = (SegmentId(1), SegmentId(2));
    bench.catalogue.fence_segment(one).await.unwrap();
    bench.catalogue.fence_segment(one).await.unwrap();
    assert!(bench.usage(1).fenced && !bench.usage(2).fenced);
    let fenced = || Err(ProposeError::Rejected(Reject::SegmentFenced { segment: 1 }));
    for object in ["a", "m", "z"] {
        let late = put(sized(bench.body().await, vec![at(2, 64), at(1, 200)]));
        assert_eq!(bench.on(object, late).await, fenced(), "{object}");
    }
    assert_eq!(bench.usage(2), SegmentUsage::default(), "a refused command changes nothing");
    let in_use = || Err(ProposeError::Rejected(Reject::SegmentInUse));
    assert_eq!(bench.catalogue.remove_segment(one).await, in_use());
    bench.on("a", delete()).await.unwrap();
    bench.on("z", put(sized(bench.body().await, vec![at(2, 64)]))).await.unwrap();
    assert_eq!(bench.usage(1).extents, 0);
    assert_eq!(bench.catalogue.remove_segment(one).await, in_use(), "it is open");
    bench.seal(1).await;
    bench.catalogue.remove_segment(one).await.unwrap();
    bench.catalogue.remove_segment(one).await.unwrap();
    assert_eq!(bench.catalogue.segment(one), None);
    // A proposal that arrives long after the removal is rejected too.
    let late = put(sized(bench.body().await, vec![at(1, 200)]));
    assert_eq!(bench.on("m", late).await, fenced());
    assert_eq!(bench.catalogue.remove_segment(two).await, in_use(), "it is referred to and not fenced");
    assert_eq!(bench.catalogue.next_segment(), Ok(SegmentId(4)));
    bench.catalogue.sync_log().unwrap();
    let log = bench.catalogue.inner().log.facts().unwrap();
    assert!(log.groups.iter().all(|group| group.committed == group.end), "a start applies all: {log:?}");
    bench.catalogue.shutdown().await;
}

#[tokio::test]
async fn a_fenced_segment_only_loses_references_in_one_group() {
    a_fenced_segment_only_loses_references(options).await;
}

#[tokio::test]
async fn a_fenced_segment_only_loses_references_in_four_groups() {
    a_fenced_segment_only_loses_references(four_groups).await;
}

#[tokio::test]
async fn unreferenced_chunks_are_known_to_be_dead() {
    let bench = Bench::new(options).await;
    let known = |segment| bench.catalogue.known_dead(SegmentId(segment));
    let bodies = [bench.body().await, bench.body().await, bench.body().await];
    bench.on("replaced", put(sized(bodies[0], vec![at(1, 64), at(1, 100)]))).await.unwrap();
    bench.on("moved", put(sized(bodies[1], vec![at(1, 200)]))).await.unwrap();
    bench.on("stays", put(sized(bodies[2], vec![at(1, 300)]))).await.unwrap();
    assert!(known(1).is_empty());
    bench.on("replaced", put(sized(bench.body().await, vec![at(2, 64)]))).await.unwrap();
    bench.check_relocation(&bench.owner("moved", bodies[1], 0, 0), 200).await;
    let one = known(1);
    assert!([64, 100, 200].iter().all(|offset| one.contains(*offset)) && !one.contains(300), "{one:?}");
    assert!(known(2).is_empty());
    bench.on("stays", delete()).await.unwrap();
    bench.seal(1).await;
    bench.catalogue.fence_segment(SegmentId(1)).await.unwrap();
    bench.catalogue.remove_segment(SegmentId(1)).await.unwrap();
    assert!(known(1).is_empty(), "the segment no longer exists");
    bench.catalogue.shutdown().await;
}

#[tokio::test]
async fn only_a_sealed_segment_can_be_moved() {
    let bench = Bench::new(options).await;
    let (one, hot) = (SegmentId(1), Replica { node: 1, tier: 0, location: "d".into(), ..Replica::default() });
    let cold = Replica { tier: 1, location: "c".into(), ..hot.clone() };
    let place =
        |from: &Replica, to: &Replica| bench.catalogue.place_segment(one, 0, from.clone(), to.clone());
    let elsewhere = Err(ProposeError::Rejected(Reject::SegmentElsewhere));
    assert_eq!(place(&hot, &cold).await, elsewhere, "it is open");
    bench.seal(1).await;
    assert_eq!(place(&cold, &hot).await, Ok(()), "it is there");
    let other = Replica { node: 2, ..hot.clone() };
    assert_eq!(place(&other, &cold).await, elsewhere);
    for _ in 0..2 {
        assert_eq!(place(&hot, &cold).await, Ok(()), "repeatable");
        let record = bench.catalogue.segments().unwrap().remove(0);
        assert_eq!((record.replicas, record.length), (vec![cold.clone()], 4096));
        assert_eq!(bench.catalogue.segment(one).map(|segment| segment.tier), Some(SegmentTier::Cold));
    }
    assert_eq!(place(&hot, &other).await, elsewhere, "no longer");
    let none = bench.catalogue.place_segment(SegmentId(9), 0, hot.clone(), cold).await;
    assert_eq!(none, Err(ProposeError::Rejected(Reject::NoSuchSegment)));
    bench.catalogue.shutdown().await;
}

#[tokio::test]
async fn replicas_change_only_as_they_were_last_seen() {
    let bench = Bench::new(options).await;
    let (one, catalogue) = (SegmentId(1), &bench.catalogue);
    let at = |node| Replica { node, tier: 0, location: "d".into(), ..Replica::default() };
    let set = |changes, replicas: &[Replica]| catalogue.set_replicas(one, changes, replicas.to_vec());
    let both = [at(1), at(2)];
    let too_new = ProposeError::NotFinalized { needs: REPLICATION_CLUSTER_VERSION, has: 1 };
    assert_eq!(set(0, &both).await, Err(too_new));
    catalogue.raise_cluster_version(REPLICATION_CLUSTER_VERSION).await.unwrap();
    let elsewhere = Err(ProposeError::Rejected(Reject::SegmentElsewhere));
    assert_eq!(set(0, &both).await, elsewhere, "it is open");
    bench.seal(1).await;
    for malformed in [vec![], vec![at(1), at(1)]] {
        assert!(matches!(set(0, &malformed).await, Err(ProposeError::Rejected(Reject::Malformed { .. }))));
    }
    for _ in 0..2 {
        assert_eq!(set(0, &both).await, Ok(()), "repeatable");
    }
    assert_eq!(set(0, &[at(1), at(3)]).await, elsewhere, "the list was changed meanwhile");
    let record = || catalogue.segment_record(one).unwrap().unwrap();
    assert_eq!((record().changes, record().replicas.len()), (1, 2));
    assert!(catalogue.segment(one).is_some_and(|segment| segment.is_local));

    let place = |changes, from: &Replica, to: &Replica| {
        catalogue.place_segment(one, changes, from.clone(), to.clone())
    };
    let cold = Replica { tier: 1, location: "c".into(), ..at(1) };
    assert_eq!(place(0, &at(1), &cold).await, elsewhere, "decided on an older list");
    for _ in 0..2 {
        assert_eq!(place(1, &at(1), &cold).await, Ok(()), "repeatable");
    }
    assert_eq!(record().replicas, [cold.clone(), at(2)], "the other replica stays");
    let upstream = Replica { tier: 2, location: "u".into(), ..at(1) };
    assert_eq!(place(2, &cold, &upstream).await, Ok(()));
    assert_eq!((record().changes, record().replicas), (3, vec![upstream]), "an upstream serves all nodes");
    bench.catalogue.shutdown().await;
}

#[tokio::test]
async fn the_first_seal_of_an_open_segment_names_its_replicas() {
    let bench = Bench::new(options).await;
    let catalogue = &bench.catalogue;
    catalogue.raise_cluster_version(REPLICATION_CLUSTER_VERSION).await.unwrap();
    let at = |node| Replica { node, tier: 0, location: "d".into(), ..Replica::default() };
    let suspect = |node| Replica { is_suspect: true, ..at(node) };
    let create = |followers: &[u64], write_quorum| {
        let followers = followers.iter().map(|node| at(*node)).collect();
        let create = CreateSegment {
            node: 1,
            location: "d".into(),
            followers,
            write_quorum,
            ..CreateSegment::default()
        };
        catalogue.propose(Command::from(Change::CreateSegment(create)))
    };
    let is_malformed = |refused| matches!(refused, Err(ProposeError::Rejected(Reject::Malformed { .. })));
    assert!(is_malformed(create(&[2, 2], 2).await), "two replicas on one node");
    assert!(is_malformed(create(&[1], 2).await), "the writer follows itself");
    assert!(is_malformed(create(&[2], 3).await), "a quorum of more than all");
    let Ok(Reply::Segment(record)) = create(&[2, 3], 2).await else { panic!("it is not created") };
    assert_eq!((record.replicas.len(), record.quorum(), record.is_owned_by(NodeId(1))), (3, 2, true));

    let id = record.segment_id();
    let seal = |length, replicas| catalogue.seal_segment(id, length, replicas);
    for wrong in [vec![at(1), at(4)], vec![at(1), at(1)], vec![suspect(1), suspect(2)]] {
        let refused = seal(500, wrong).await;
        assert!(matches!(refused, Err(ProposeError::Rejected(Reject::Malformed { .. }))), "{refused:?}");
    }
    let sealed = seal(500, vec![at(1), suspect(3)]).await.unwrap();
    assert_eq!((sealed.length, &sealed.replicas, sealed.changes), (500, &vec![at(1), suspect(3)], 1));
    assert_eq!(seal(500, vec![at(1), at(2)]).await, Ok(sealed), "the first seal decides");
    assert_eq!(seal(600, vec![]).await, Err(ProposeError::Rejected(Reject::SegmentSealed)));
    bench.catalogue.shutdown().await;
}

#[tokio::test]
async fn a_tier_of_a_newer_version_stops_the_catalogue() {
    let Bench { catalogue, _dir: dir, .. } = {
        let bench = Bench::new(options).await;
        bench.seal(1).await;
        bench
    };
    let hot = Replica { node: 1, tier: 0, location: "d".into(), ..Replica::default() };
    let newer = Replica { tier: 9, ..hot.clone() };
    assert!(catalogue.place_segment(SegmentId(1), 0, hot, newer).await.is_err());
    catalogue.shutdown().await;
    let why = Catalogue::open(options(dir.path())).await.map(drop).unwrap_err().to_string();
    assert!(why.contains("tier number 9, which this version does not know"), "{why}");
}

#[tokio::test]
async fn a_mark_grows_until_the_seal() {
    let bench = Bench::new(options).await;
    let one = SegmentId(1);
    let marked = || bench.catalogue.segments().unwrap()[0].marked;
    for (length, expected) in [(500, 500), (300, 500), (900, 900)] {
        bench.catalogue.mark_segment(one, length).await.unwrap();
        assert_eq!(marked(), expected);
    }
    bench.seal(1).await;
    bench.catalogue.mark_segment(one, 4000).await.unwrap();
    assert_eq!(marked(), 0);
    bench.catalogue.shutdown().await;
}
