//! Cuts of a catalogue, from which a server without peers is made.

use super::cluster_tests::{three_nodes, until};
use super::groups::SYSTEM_GROUP;
use super::testing::{NOW, bucket, do_put, extent, key, options, put, version};
use super::{Catalogue, CatalogueOptions, CutError};
use crate::copy::Copier;
use crate::identity::ExpectedServer;
use crate::offline::{CatalogueRecovery, CheckFinding, Offline, OldRows, ignore_progress, recover_catalogue};
use mlgw_common::{ClusterId, Identity, Incarnation, Lineage, NodeId, NodeName};
use mlgw_formats::command::{Change, Command, CreateSegment, Reply};
use mlgw_formats::schema::{Bucket, ObjectVersion, SegmentRecord};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Makes a cut in `dir/catalogue`.
async fn cut(catalogue: &Catalogue, dir: &Path) -> Result<PathBuf, CutError> {
    let copier = catalogue.copy_cut_into(Copier::new(dir, None)?, "catalogue/").await?;
    copier.finish(NOW)?;
    Ok(dir.join("catalogue"))
}

/// Opens a cut, in which nothing is wrong.
fn open(cut: &Path, node: u64) -> Offline {
    let (scratch, mut findings) = (cut.join("../proving"), Vec::new());
    let opened = Offline::open(cut, &scratch, NodeId(node), None, &mut findings, &ignore_progress).unwrap();
    assert!(!findings.iter().any(CheckFinding::is_damage), "{findings:?}");
    opened.expect("it can be read")
}

/// Creates a segment, and returns its id.
async fn create_segment(catalogue: &Catalogue) -> u64 {
    let create = CreateSegment { node: 1, location: "d".into(), ..CreateSegment::default() };
    let created = catalogue.propose(Command::from(Change::CreateSegment(create))).await.unwrap();
    let Reply::Segment(SegmentRecord { id, .. }) = created else { panic!("{created:?}") };
    id
}

/// Puts objects, each in a segment of its own, and counts them in `stored`, until `is_stopped`.
async fn write_objects(
    catalogue: Catalogue,
    bucket: Arc<Bucket>,
    stored: Arc<AtomicU64>,
    is_stopped: Arc<AtomicBool>,
) {
    let mut number = 0;
    while !is_stopped.load(SeqCst) {
        let segment = create_segment(&catalogue).await;
        let body = catalogue.body_id().await.unwrap();
        let version = ObjectVersion { extents: vec![extent(segment, 10)], ..version(body, 10) };
        let change = put(version);
        catalogue.propose(Command::object(&bucket, &key(&format!("k{number}")), NOW, change)).await.unwrap();
        number += 1;
        stored.fetch_add(1, SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copied_objects_refer_to_no_segment_that_the_copied_system_group_lacks() {
    let room = tempfile::tempdir().unwrap();
    let several = CatalogueOptions { groups: 3, ..options(&room.path().join("live")) };
    let catalogue = Catalogue::open(several).await.unwrap();
    let bucket = bucket(&catalogue, "data").await;
    let (stored, is_stopped) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let writer =
        tokio::spawn(write_objects(catalogue.clone(), bucket, Arc::clone(&stored), Arc::clone(&is_stopped)));
    for number in 0..5 {
        let before = stored.load(SeqCst);
        let made = cut(&catalogue, &room.path().join(number.to_string())).await.unwrap();
        let facts = &open(&made, 1).facts;
        assert!(facts.objects >= before, "{} of {before}", facts.objects);
        assert_eq!(facts.usage.len() as u64, facts.objects);
        until(async || (stored.load(SeqCst) > before).then_some(())).await;
    }
    is_stopped.store(true, SeqCst);
    writer.await.unwrap();
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_made_from_a_cut_of_a_node_that_does_not_lead() {
    let (cluster, bucket) = three_nodes().await;
    let leader = cluster.leader(SYSTEM_GROUP).await;
    let other = (1..=3).find(|node| *node != leader).unwrap();
    assert_eq!(create_segment(cluster.node(leader)).await, 1, "that of the objects");
    do_put(cluster.node(leader), &bucket, "last", 0).await;
    let room = tempfile::tempdir().unwrap();
    let made = cut(cluster.node(other), &room.path().join("cut")).await.unwrap();
    assert_eq!(open(&made, other).facts.objects, 51, "the follower has what the leader acknowledged");
    let own = Identity { cluster: ClusterId(8), node: NodeName(2), incarnation: Incarnation(9) };
    let lineage = Lineage { own, marking: true, ..Lineage::default() };
    let recovery = CatalogueRecovery {
        old: &made,
        new: &room.path().join("recovered"),
        node: NodeId(other),
        expected: None,
        lineage: lineage.clone(),
        now: NOW,
        old_rows: OldRows::Refuse,
    };
    let recovered = recover_catalogue(&recovery, &room.path().join("scratch"), &ignore_progress).unwrap();
    assert_eq!((recovered.catalogue.facts.objects, recovered.entries), (51, 0));
    drop(recovered);
    let expected = Some(ExpectedServer { lineage, floor: 0 });
    let alone = CatalogueOptions { expected, ..options(&room.path().join("recovered")) };
    let alone = Catalogue::open(alone).await.unwrap();
    do_put(&alone, &bucket, "after", 0).await;
    alone.shutdown().await;
    cluster.network.isolate(other);
    let refused = cut(cluster.node(other), &room.path().join("refused")).await;
    assert!(matches!(refused, Err(CutError::Barrier(_))), "it may lack what the others acknowledged");
}
