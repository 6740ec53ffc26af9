//! Bytes of a group in segments of other sets than its own, and the end of a guest.

use super::testing::{LoggedWarnings, NOW, bucket, delete, extent, key, options, put, version};
use super::{Catalogue, CatalogueOptions, ChunkOwner, ProposeError};
use mlgw_common::limits::MOVE_BATCH_CHUNKS_MAX;
use mlgw_common::{BodyId, NodeId, PartNumber, SegmentId, SegmentTier};
use mlgw_formats::cluster_version::SETS_CLUSTER_VERSION;
use mlgw_formats::command::{
    Change, Command, CreateSegment, CreateUpload, ObjectChange, PutNode, PutObject, PutPart, Reject, Reply,
    SealSegment,
};
use mlgw_formats::schema::set::FIRST_SET;
use mlgw_formats::schema::{
    Bucket, Extent, ExtentPage, Node, ObjectVersion, PartRecord, Replica, SegmentUsage, Upload, fence,
};
use std::sync::Arc;

/// The group that has the keys of the bucket.
const GROUP: u32 = 1;

/// A catalogue whose only node is in the sets 0 to 2.
struct Bench {
    catalogue: Catalogue,
    bucket: Arc<Bucket>,
    _dir: tempfile::TempDir,
}

impl Bench {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = CatalogueOptions { groups: 2, ..options(dir.path()) };
        let catalogue = Catalogue::open(options).await.unwrap();
        let bucket = bucket(&catalogue, "data").await;
        catalogue.raise_cluster_version(SETS_CLUSTER_VERSION).await.unwrap();
        for set in 0..3 {
            catalogue.put_set(set, &[NodeId::SINGLE], 0).await.unwrap();
        }
        Self { catalogue, bucket, _dir: dir }
    }

    async fn segment(&self, set: u32) -> SegmentId {
        let create = CreateSegment { node: 1, location: "d".into(), set, ..CreateSegment::default() };
        match self.catalogue.propose(Command::from(Change::CreateSegment(create))).await {
            Ok(Reply::Segment(record)) => record.segment_id(),
            other => panic!("{other:?}"),
        }
    }

    async fn seal(&self, segment: SegmentId) {
        let seal = SealSegment { segment: segment.0, length: 4096, ..SealSegment::default() };
        self.catalogue.propose(Command::from(Change::SealSegment(seal))).await.unwrap();
    }

    async fn on(&self, object: &str, change: ObjectChange) -> Result<Reply, ProposeError> {
        self.catalogue.propose(Command::object(&self.bucket, &key(object), NOW, change)).await
    }

    /// Puts an object with these extents.
    async fn put(&self, object: &str, extents: Vec<Extent>) -> Result<BodyId, ProposeError> {
        let body = self.catalogue.body_id().await.unwrap();
        let size = extents.iter().map(|extent| extent.logical_bytes).sum();
        let version = ObjectVersion { extents, ..version(body, size) };
        self.on(object, put(version)).await.map(|_| body)
    }

    fn owner(&self, object: &str, body: BodyId) -> ChunkOwner {
        ChunkOwner { bucket: self.bucket.bucket_id(), key: key(object), body, part: None, offset: 0 }
    }

    /// Moves the only chunk of an object from a segment to another one.
    async fn relocate(&self, object: &str, body: BodyId, from: SegmentId, to: SegmentId) {
        let owner = self.owner(object, body);
        let found = self.catalogue.reference(&owner, from, extent(from.0, 10).offset).unwrap().unwrap();
        assert_eq!(self.catalogue.relocate(&owner, found, extent(to.0, 10)).await, Ok(true));
    }

    fn off_set(&self) -> Vec<(SegmentId, SegmentUsage)> {
        let of = self.catalogue.off_set_groups().remove(0);
        self.catalogue.off_set_usages(&of).unwrap().segments.into_iter().collect()
    }

    async fn end_guest(&self, set: u32) -> Result<bool, ProposeError> {
        let of = self.catalogue.inner.resident.set_of_group(GROUP);
        self.catalogue.end_guest(&of, set).await
    }

    fn guest_of(&self) -> Vec<u32> {
        self.catalogue.inner.resident.set_of_group(GROUP).guest_of
    }
}

/// A request got its chunk stored under the old placement, and its command comes after the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_from_before_the_move_cannot_refer_to_a_segment_that_is_removed_after_the_end() {
    let bench = Bench::new().await;
    let catalogue = &bench.catalogue;
    catalogue.assign_group(GROUP, 1, 0).await.unwrap();
    let (former, other) = (bench.segment(1).await, bench.segment(1).await);
    let body = bench.put("a", vec![extent(former.0, 10)]).await.unwrap();
    catalogue.assign_group(GROUP, 2, 1).await.unwrap();
    assert_eq!(bench.end_guest(1).await, Ok(false), "an object refers to a segment of the set");
    assert_eq!(bench.guest_of(), [1]);
    bench.put("b", vec![extent(other.0, 10)]).await.expect("nothing was fenced for that");
    bench.on("b", delete()).await.unwrap();

    let new = bench.segment(2).await;
    bench.relocate("a", body, former, new).await;
    let put = PutNode { node: Node { id: 2, ..Node::default() } };
    catalogue.propose(Command::from(Change::PutNode(put))).await.unwrap();
    catalogue.put_set(2, &[NodeId(2)], 1).await.unwrap();
    assert_eq!(bench.end_guest(1).await, Ok(false), "the vote has not moved to the node of the set");
    catalogue.put_set(2, &[NodeId(2), NodeId::SINGLE], 2).await.unwrap();
    assert_eq!(bench.end_guest(1).await, Ok(true));
    assert_eq!(bench.guest_of(), [0; 0]);
    let refers =
        [FIRST_SET, 1, 2].map(|set| catalogue.may_refer_to(bench.bucket.bucket_id(), &key("a"), set));
    assert_eq!(refers, [true, false, true], "the chunks of later appends");
    for segment in [former, other] {
        let late = bench.put("late", vec![extent(segment.0, 10)]).await;
        let fenced = Reject::SegmentFenced { segment: segment.0 };
        assert_eq!(late, Err(ProposeError::Rejected(fenced)));
        bench.seal(segment).await;
        catalogue.remove_segment(segment).await.expect("the group is no guest any more");
    }
    bench.put("late", vec![extent(new.0, 10)]).await.unwrap();
    assert!(matches!(bench.end_guest(1).await, Err(ProposeError::Rejected(Reject::Malformed { .. }))));
    bench.catalogue.clone().shutdown().await;
}

/// Rows that cannot be read count as references, and the cause is logged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proof_that_fails_because_of_a_store_logs_the_cause() {
    let bench = Bench::new().await;
    let catalogue = &bench.catalogue;
    catalogue.assign_group(GROUP, 1, 0).await.unwrap();
    let segment = bench.segment(1).await;
    catalogue.fence_segment(segment).await.unwrap();
    bench.seal(segment).await;
    catalogue.assign_group(GROUP, 2, 1).await.unwrap();
    let damaged = (fence::row(SegmentId(segment.0 + 9)), Some(vec![0xff]));
    let state = catalogue.inner.groups.get(GROUP).unwrap().state();
    // Covers the segments before it, as the row of a range does.
    state.write(&[(fence::row(segment), None), damaged].into()).unwrap();
    let warnings = LoggedWarnings::default();
    let _logged = tracing::subscriber::set_default(warnings.clone());
    let in_use = Err(ProposeError::Rejected(Reject::SegmentInUse));
    assert_eq!(bench.end_guest(1).await, in_use);
    let [line] = &warnings.take()[..] else { panic!("one line is logged") };
    assert!(line.contains("stays a guest") && line.contains("the catalogue cannot be read"), "{line}");
    assert_eq!(catalogue.remove_segment(segment).await.map(|()| true), in_use);
    let [line] = &warnings.take()[..] else { panic!("one line is logged") };
    assert!(line.contains("a segment stays") && line.contains("the catalogue cannot be read"), "{line}");
    bench.catalogue.clone().shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_moves_bytes_of_the_groups_that_it_leads_in_their_set() {
    let bench = Bench::new().await;
    let catalogue = &bench.catalogue;
    let groups = || catalogue.off_set_groups().iter().map(|of| of.group).collect::<Vec<_>>();
    assert_eq!(groups(), [0; 0], "all groups are in the first set");
    assert_eq!(catalogue.off_set_bytes(), Ok(0));
    let first = bench.segment(FIRST_SET).await;
    bench.put("a", vec![extent(first.0, 10)]).await.unwrap();
    catalogue.assign_group(GROUP, 1, 0).await.unwrap();
    let second = bench.segment(1).await;
    bench.put("b", vec![extent(second.0, 20), extent(second.0, 30)]).await.unwrap();
    let usage = |extents: &[Extent]| SegmentUsage {
        bytes: extents.iter().map(Extent::record_bytes).sum(),
        extents: extents.len() as u64,
        ..SegmentUsage::default()
    };
    let in_first = usage(&[extent(1, 10)]);
    assert_eq!((groups(), bench.off_set()), (vec![GROUP], vec![(first, in_first)]));
    catalogue.assign_group(GROUP, 2, 1).await.unwrap();
    let in_second = usage(&[extent(1, 20), extent(1, 30)]);
    assert_eq!(bench.off_set(), [(first, in_first), (second, in_second)]);
    assert_eq!(catalogue.off_set_bytes(), Ok(in_first.bytes + in_second.bytes));
    // It stays a guest of no set when it returns to the first one, but for the other two.
    catalogue.assign_group(GROUP, 0, 2).await.unwrap();
    assert_eq!((groups(), bench.off_set()), (vec![GROUP], vec![(second, in_second)]));
    catalogue.assign_group(GROUP, 2, 3).await.unwrap();

    // Nodes store nothing of a segment at an upstream.
    bench.seal(first).await;
    let own = catalogue.segment_record(first).unwrap().unwrap().replicas.remove(0);
    let tier = SegmentTier::Upstream.number();
    let upstream = Replica { tier, location: "far".into(), ..own.clone() };
    catalogue.place_segment(first, 0, own, upstream).await.unwrap();
    assert_eq!(bench.off_set(), [(second, in_second)]);

    let of = catalogue.off_set_groups().remove(0);
    assert!(catalogue.leads_off_set(&of));
    let put = PutNode { node: Node { id: 2, ..Node::default() } };
    catalogue.propose(Command::from(Change::PutNode(put))).await.unwrap();
    catalogue.put_set(2, &[NodeId(2)], 1).await.unwrap();
    assert_eq!((groups(), catalogue.leads_off_set(&of)), (vec![], false), "it is not in the set any more");
    bench.catalogue.clone().shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_of_the_chunks_of_a_group_continues_within_an_object() {
    let bench = Bench::new().await;
    let catalogue = &bench.catalogue;
    let (wanted, kept) = (bench.segment(FIRST_SET).await, bench.segment(FIRST_SET).await);
    let at = |offset: u64| {
        let segment = if offset.is_multiple_of(5) { kept } else { wanted };
        Extent { offset, ..extent(segment.0, 10) }
    };
    bench.put("a", vec![at(101), at(102)]).await.unwrap();
    let long = catalogue.body_id().await.unwrap();
    let page = |number: u64| ExtentPage {
        extents: (0..60).map(|n| at(1_000 + number * 60 + n)).collect(),
        parts: vec![],
    };
    let version = ObjectVersion { extents: vec![], ..version(long, 6_000) };
    let pages = (0..10).map(page).collect();
    bench.on("b", ObjectChange::Put(PutObject { version, pages, ..PutObject::default() })).await.unwrap();
    let upload = catalogue.body_id().await.unwrap();
    let create = Upload { body_id: upload.0, key: "c".into(), ..Upload::default() };
    bench.on("c", ObjectChange::CreateUpload(CreateUpload { upload: create })).await.unwrap();
    for (number, count) in [(1, 3), (2, 300), (7, 2)] {
        let extents: Vec<Extent> = (0..count).map(|n| at(10_000 * u64::from(number) + n)).collect();
        let part = PartRecord { size: 10 * count, extents, ..PartRecord::default() };
        bench.on("c", ObjectChange::PutPart(PutPart { body_id: upload.0, number, part })).await.unwrap();
    }
    bench.put("d", vec![at(104)]).await.unwrap();

    let mut expected = Vec::new();
    let walked = catalogue.each_extent(&mut |found| {
        if found.extent.segment_id() == wanted {
            expected.push((found.key.to_vec(), found.body, found.part, found.offset, found.extent.offset));
        }
        Ok(())
    });
    assert!(walked.unwrap().is_empty());
    assert_eq!(expected.len(), 2 + 480 + 243 + 1);
    assert!(expected.iter().any(|(_, _, part, offset, _)| (*part, *offset) == (PartNumber::new(2), 2_990)));
    let segments = [(wanted, SegmentUsage::default())].into();
    let (mut found, mut from, mut reads) = (Vec::new(), None, 0);
    loop {
        let some = catalogue.chunks_of_group(GROUP, from.as_ref(), &segments).unwrap();
        assert!(some.chunks.len() <= MOVE_BATCH_CHUNKS_MAX);
        found.extend(some.chunks);
        reads += 1;
        match some.next {
            Some(next) => from = Some(next),
            None => break,
        }
    }
    let found: Vec<_> = found
        .into_iter()
        .map(|of| {
            let ChunkOwner { key, body, part, offset, .. } = of.owner;
            (key.as_bytes().to_vec(), body, part, offset, of.extent.offset)
        })
        .collect();
    assert_eq!((found, reads), (expected, 6));
    bench.catalogue.clone().shutdown().await;
}
