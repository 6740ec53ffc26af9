//! Rows with valid checksums and wrong contents: each contradiction is found, and counters are recomputed.

use super::tests::{check, open, work};
use super::{FindingKind, recount, stores};
use crate::catalogue::model_tests::copy_dir;
use crate::catalogue::testing::bucket;
use crate::store::options;
use crate::store::state::StateDb;
use crate::view::{Row, RowChanges, RowReader as _};
use mlgw_common::{BodyId, SegmentId};
use mlgw_formats::key::Family;
use mlgw_formats::schema::fence::{self, FencedRange};
use mlgw_formats::schema::meta::{Counter, MetaRow, UploadKey};
use mlgw_formats::schema::{
    AuthorityRecord, BucketUsage, Dataset, ExtentPage, GroupSet, Job, JoinTokenRecord, Mirror, Node, NodeSet,
    ObjectVersion, Payer, PolicyFiles, PolicyVersion, SegmentRecord, SegmentUsage, authority, dataset,
    decode, encode, extent, job, join_token, part, policy, quota, segment, set, usage,
};
use prost::Message;
use std::path::Path;

/// Description, the kind of the finding, true if a recount repairs it, and the rows that cause it.
type WrongRows = (&'static str, FindingKind, bool, fn(&StateDb) -> RowChanges);

const WRONG: &[WrongRows] = &[
    ("a bucket's counter", FindingKind::Counter, true, |state| {
        changed(state, Family::BucketUsage, |usage: &mut BucketUsage| usage.objects += 1)
    }),
    ("a bucket's counter is missing", FindingKind::Counter, true, |state| {
        without(first(state, Family::BucketUsage))
    }),
    ("a segment's counter", FindingKind::Counter, true, |state| {
        changed(state, Family::SegmentUsage, |usage: &mut SegmentUsage| usage.bytes -= 1)
    }),
    ("a segment's counter is missing", FindingKind::Counter, true, |state| {
        without(first(state, Family::SegmentUsage))
    }),
    ("a counter of a segment that nothing refers to", FindingKind::Counter, true, |_| {
        let usage = SegmentUsage { bytes: 1, extents: 1, fenced: false };
        row(usage::segment_row(SegmentId(9999)), &usage)
    }),
    ("a fenced segment's counter does not say so", FindingKind::Counter, true, |state| {
        let fenced = rows(state, Family::SegmentUsage)
            .into_iter()
            .find(|(_, value)| decode::<SegmentUsage>(value).unwrap().fenced);
        let (key, value) = fenced.unwrap();
        row(key, &SegmentUsage { fenced: false, ..decode(&value).unwrap() })
    }),
    ("what counts for an access key", FindingKind::Counter, true, |state| {
        changed(state, Family::Payer, |payer: &mut Payer| payer.usage.upload_bytes += 1)
    }),
    ("what counts for an access key is missing", FindingKind::Counter, true, |state| {
        without(first(state, Family::Payer))
    }),
    ("a counter of an access key that nothing counts for", FindingKind::Counter, true, |_| {
        let usage = BucketUsage { versions: 1, ..BucketUsage::default() };
        row(quota::payer_row("none"), &Payer { usage, ..Payer::default() })
    }),
    ("another quota than its access key has", FindingKind::Counter, true, |state| {
        changed(state, Family::Payer, |payer: &mut Payer| payer.quota = None)
    }),
    ("another quota than its bucket has", FindingKind::Row, false, |state| {
        changed(state, Family::Mirror, |mirror: &mut Mirror| mirror.quota = None)
    }),
    ("fences that touch", FindingKind::Row, false, |state| {
        let (key, _) = first(state, Family::Fence);
        let last = fence::key_of(&key).unwrap().0;
        row(fence::row(SegmentId(last + 1)), &FencedRange { first: last + 1 })
    }),
    ("a fence around segments that were never created", FindingKind::Row, false, |_| {
        row(fence::row(SegmentId(9999)), &FencedRange { first: 9999 })
    }),
    ("a fence that ends before it begins", FindingKind::Row, false, |state| {
        changed(state, Family::Fence, |range: &mut FencedRange| range.first = 9999)
    }),
    ("a dataset under the name of another", FindingKind::Row, false, |_| {
        row(dataset::row("one"), &Dataset { name: "two".into(), ..Dataset::default() })
    }),
    ("a dataset whose job has no record", FindingKind::Row, false, |_| {
        row(dataset::row("d"), &Dataset { name: "d".into(), active_job: 5, ..Dataset::default() })
    }),
    ("a job of no dataset", FindingKind::Row, false, |_| {
        row(job::row("none", 1), &Job { id: 1, dataset: "none".into(), state: 2, ..Job::default() })
    }),
    ("a job that has not ended and that its dataset does not know", FindingKind::Row, false, |_| {
        let mut rows = row(dataset::row("d"), &Dataset { name: "d".into(), ..Dataset::default() });
        rows.extend(row(job::row("d", 1), &Job { id: 1, dataset: "d".into(), ..Job::default() }));
        rows
    }),
    ("a version of the policy under the number of another", FindingKind::Row, false, |_| {
        row(policy::row(1), &PolicyVersion { number: 2, ..PolicyVersion::default() })
    }),
    ("a version of the policy without its files", FindingKind::Row, false, |_| {
        row(policy::row(1), &PolicyVersion { number: 1, files: 1, ..PolicyVersion::default() })
    }),
    ("files of a policy that no version names", FindingKind::Row, false, |_| {
        row(policy::files_row(1), &PolicyFiles::default())
    }),
    ("an object in an unknown segment", FindingKind::Row, false, |state| {
        changed(state, Family::Object, |object: &mut ObjectVersion| object.extents[0].segment = 9999)
    }),
    ("an object with a body that was never assigned", FindingKind::Row, false, |state| {
        changed(state, Family::Object, |object: &mut ObjectVersion| object.body_id = u64::MAX / 2)
    }),
    ("an object longer than its map", FindingKind::Row, false, |state| {
        changed(state, Family::Object, |object: &mut ObjectVersion| object.size += 1)
    }),
    ("objects of a bucket that does not exist", FindingKind::Row, false, |state| {
        without(first(state, Family::Mirror))
    }),
    ("a page is missing", FindingKind::Row, false, |state| without(first(state, Family::Extent))),
    ("a page of a body that nothing names", FindingKind::Row, false, |_| {
        let page = ExtentPage { extents: vec![crate::catalogue::testing::extent(1, 5)], parts: vec![] };
        row(extent::row(BodyId(9999), 0), &page)
    }),
    ("a part that an index names is missing", FindingKind::Row, false, |state| {
        let named = rows(state, Family::Extent).into_iter().find_map(|(key, value)| {
            let page: ExtentPage = decode(&value).unwrap();
            let number = page.parts.first()?.number;
            Some(part::row(extent::key_of(&key).unwrap().0, mlgw_common::PartNumber::new(number)?))
        });
        RowChanges::from([(named.unwrap(), None)])
    }),
    ("a part of another length", FindingKind::Row, false, |state| {
        changed(state, Family::Part, |part: &mut mlgw_formats::schema::PartRecord| part.size += 1)
    }),
    ("an upload under another key", FindingKind::Row, false, |state| {
        changed(state, Family::Upload, |upload: &mut mlgw_formats::schema::Upload| upload.key.push('x'))
    }),
    ("a segment under another id", FindingKind::Row, false, |state| {
        changed(state, Family::Segment, |segment: &mut SegmentRecord| segment.id += 1000)
    }),
    ("a segment that is referred to is missing", FindingKind::Row, false, |_| {
        RowChanges::from([(segment::row(SegmentId(1)), None)])
    }),
    ("a bucket under another name", FindingKind::Row, false, |state| {
        changed(state, Family::Bucket, |bucket: &mut mlgw_formats::schema::Bucket| bucket.name.push('x'))
    }),
    ("bodies that were not assigned yet", FindingKind::Row, false, |_| {
        row(MetaRow::NextBody.row(), &Counter { next: 1 })
    }),
    ("a key of upload IDs of the wrong length", FindingKind::Row, false, |_| {
        row(MetaRow::UploadKey.row(), &UploadKey { key: vec![1; 15], bodies_from: 1 })
    }),
    ("a node under another id", FindingKind::Row, false, |state| {
        changed(state, Family::Node, |node: &mut Node| node.id += 1)
    }),
    ("a node in a state that does not exist", FindingKind::Row, false, |state| {
        changed(state, Family::Node, |node: &mut Node| node.state = 99)
    }),
    ("a node whose id would be allocated again", FindingKind::Row, false, |_| {
        row(MetaRow::NextNode.row(), &Counter { next: 1 })
    }),
    ("a join token under another id", FindingKind::Row, false, |_| {
        let token = JoinTokenRecord { id: 2, secret_hash: vec![1; 32], ..JoinTokenRecord::default() };
        row(join_token::row(1), &token)
    }),
    ("a join token without the hash of its secret", FindingKind::Row, false, |_| {
        row(join_token::row(1), &JoinTokenRecord { id: 1, ..JoinTokenRecord::default() })
    }),
    ("an authority under another number", FindingKind::Row, false, |_| {
        row(authority::row(1), &AuthorityRecord { number: 2, ..AuthorityRecord::default() })
    }),
    ("a set under another id", FindingKind::Row, false, |_| {
        row(set::row(1), &NodeSet { id: 2, nodes: vec![1], changes: 1 })
    }),
    ("a set without nodes", FindingKind::Row, false, |_| {
        row(set::row(1), &NodeSet { id: 1, nodes: vec![], changes: 1 })
    }),
    ("a set with a node twice", FindingKind::Row, false, |_| {
        row(set::row(1), &NodeSet { id: 1, nodes: vec![1, 1], changes: 1 })
    }),
    ("the set of a group under another id", FindingKind::Row, false, |_| {
        row(set::group_row(1), &GroupSet::first(2))
    }),
    ("a group that is a guest of its own set", FindingKind::Row, false, |_| {
        row(set::group_row(1), &GroupSet { group: 1, set: 2, guest_of: vec![2], changes: 1 })
    }),
    ("a row that does not decode", FindingKind::Row, false, |state| {
        RowChanges::from([(first(state, Family::Object).0, Some(vec![0xFF; 9]))])
    }),
    ("a row of no family", FindingKind::Row, false, |_| RowChanges::from([(vec![0x7E, 1], Some(vec![]))])),
];

fn rows(state: &StateDb, family: Family) -> Vec<Row> {
    state.range(&family.start(), &family.end(), 1 << 20).unwrap()
}

fn first(state: &StateDb, family: Family) -> Row {
    rows(state, family).into_iter().next().unwrap_or_else(|| panic!("no row of {family:?}"))
}

fn without((key, _): Row) -> RowChanges {
    RowChanges::from([(key, None)])
}

fn row(key: Vec<u8>, record: &impl Message) -> RowChanges {
    RowChanges::from([(key, Some(encode(record)))])
}

fn changed<M: Message + Default>(state: &StateDb, family: Family, change: fn(&mut M)) -> RowChanges {
    let (key, value) = first(state, family);
    let mut record: M = decode(&value).unwrap();
    change(&mut record);
    row(key, &record)
}

fn state(dir: &Path) -> StateDb {
    let newest = stores::newest_state(&dir.join("catalogue/group-0")).unwrap();
    StateDb::open(&newest, &options::cache(1 << 20), 1 << 20).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_contradiction_is_found_and_wrong_counters_are_recomputed() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    let catalogue = open(&whole).await;
    let b = bucket(&catalogue, "data").await;
    work(&catalogue, &b, 0).await;
    catalogue.shutdown().await;
    let (findings, dump) = check(&whole);
    assert_eq!(findings, []);
    for (what, kind, counted, wrong) in WRONG {
        let damaged = dir.path().join("damaged");
        copy_dir(&whole, &damaged);
        let store = state(&damaged);
        store.write(&wrong(&store)).unwrap();
        store.flush().unwrap();
        drop(store);
        let (findings, _) = check(&damaged);
        assert!(
            findings.iter().any(|found| found.is_damage() && found.kind == *kind),
            "{what}: {findings:#?}"
        );
        if *counted {
            assert_eq!(recount(&damaged.join("catalogue")).unwrap().len(), 1, "{what}");
            assert_eq!(check(&damaged), (vec![], dump.clone()), "{what}");
        }
        std::fs::remove_dir_all(&damaged).unwrap();
    }
}
