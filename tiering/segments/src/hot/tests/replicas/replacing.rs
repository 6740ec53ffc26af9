//! Tests of segment directories that are exchanged while the node runs, and of their replacement.

use super::super::{append, chunk, read_all};
use super::sweeping::release_all;
use super::testbed::{BlockedDisk, OBJECT_BYTES, TestNodes, UnreadableDisk};
use crate::hot::{
    DirectoryFault, FileCall, HotTier, Intercept, MARK_FILE_NAME, OnlyCopies, ReplaceDirectoryError,
    segment_file_name, segment_of_file_name, write_mark,
};
use mlgw_common::ids::SegmentId;
use mlgw_common::time::{Instant, sleep};
use mlgw_common::{Identity, Incarnation};
use mlgw_formats::schema::Extent;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A cluster of two nodes, whose directories have marks, and the tier of the second one.
async fn marked_nodes() -> (TestNodes, HotTier) {
    marked_nodes_with(None).await
}

/// Like [`marked_nodes`], with the calls of the second node on its disk controlled.
async fn marked_nodes_with(intercept: Option<Arc<dyn Intercept>>) -> (TestNodes, HotTier) {
    let nodes = TestNodes::started(Identity { incarnation: Incarnation(9), ..Identity::default() }).await;
    let second = nodes.open_with(2, intercept).await;
    nodes.cluster.set_nodes([1, 2]);
    nodes.cluster.until(|| nodes.are_all_on(&[1, 2])).await;
    (nodes, second)
}

fn names_in(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

/// Appends a chunk. After a failure appends are refused for a second.
async fn append_at_last(tier: &HotTier, body: u64) -> Extent {
    let begun = Instant::now();
    loop {
        match append(tier, chunk(body, vec![3; 100])).await {
            Ok(stored) => return stored,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(60), "{error}"),
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// Puts an empty directory in the place of another one.
fn exchange(dir: &Path) {
    std::fs::rename(dir, dir.with_extension("gone")).unwrap();
    std::fs::create_dir(dir).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exchanged_directory_is_refused_and_an_empty_one_takes_its_place() {
    let (nodes, second) = marked_nodes().await;
    let (dir, segments) = (nodes.dir(2), nodes.segments());
    append(&second, chunk(1, vec![1; 100])).await.unwrap();
    assert!(second.inner.check_directories().is_ok());
    exchange(&dir);
    assert!(second.inner.check_directories().is_err(), "before the next examination");
    nodes.cluster.until(|| !second.can_append()).await;
    let refused = second.refused_directories();
    assert_eq!((&refused[0].dir, &refused[0].fault), (&dir, &DirectoryFault::Unmarked));
    assert!(append(&second, chunk(2, vec![1; 100])).await.is_err());
    nodes.cluster.pass(2).await;
    assert_eq!(names_in(&dir), 0, "nothing is written to a directory that may be another one");
    let (object, body) = &nodes.objects[0];
    let mut bytes = Vec::new();
    for extent in nodes.bench.extents(object) {
        bytes.extend(read_all(&second, &extent, body.0).await);
    }
    assert_eq!(bytes.len(), OBJECT_BYTES, "read from the other node");

    let elsewhere = second.replace_directory(dir.parent().unwrap(), OnlyCopies::Refused).await;
    assert!(matches!(elsewhere, Err(ReplaceDirectoryError::Unknown { .. })), "{elsewhere:?}");
    std::fs::write(dir.join("something"), "else").unwrap();
    let not_empty = second.replace_directory(&dir, OnlyCopies::Accepted).await;
    assert!(matches!(not_empty, Err(ReplaceDirectoryError::NotEmpty { .. })), "{not_empty:?}");
    std::fs::remove_file(dir.join("something")).unwrap();
    write_mark(&dir, &Identity { incarnation: Incarnation(8), ..Identity::default() }).unwrap();
    let of_another = second.replace_directory(&dir, OnlyCopies::Accepted).await;
    assert!(matches!(of_another, Err(ReplaceDirectoryError::NotEmpty { .. })), "{of_another:?}");
    std::fs::remove_file(dir.join(MARK_FILE_NAME)).unwrap();
    assert!(!second.can_append() && names_in(&dir) == 0, "a refusal changes nothing");

    let replaced = second.replace_directory(&dir, OnlyCopies::Accepted).await.unwrap();
    assert!(replaced.copied_again >= segments.len() as u64, "{replaced:?}");
    assert!(second.can_append() && second.refused_directories().is_empty());
    let has_all = || segments.iter().all(|record| nodes.path(2, record.segment_id()).exists());
    nodes.cluster.until(|| has_all() && nodes.are_all_on(&[1, 2])).await;
    for record in &segments {
        let segment = record.segment_id();
        assert!(nodes.bytes(2, segment) == nodes.bytes(1, segment), "{segment}");
    }
    let stored = append_at_last(&second, 3).await;
    assert!(nodes.path(2, stored.segment_id()).exists(), "no file of the old directory is written");
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_directory_is_used_again_when_it_is_back() {
    let (nodes, second) = marked_nodes().await;
    let dir = nodes.dir(2);
    exchange(&dir);
    nodes.cluster.until(|| !second.can_append()).await;
    std::fs::remove_dir(&dir).unwrap();
    std::fs::rename(dir.with_extension("gone"), &dir).unwrap();
    nodes.cluster.until(|| second.can_append()).await;
    assert!(nodes.are_all_on(&[1, 2]), "nothing is suspect");
    append_at_last(&second, 1).await;
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_only_fails_reads_is_refused() {
    let disk = Arc::new(UnreadableDisk::default());
    let (nodes, second) = marked_nodes_with(Some(disk.clone())).await;
    disk.fail();
    nodes.cluster.until(|| !second.can_append()).await;
    let refused = second.refused_directories();
    assert!(matches!(refused[0].fault, DirectoryFault::Failed(_)), "{refused:?}");
    disk.repair();
    nodes.cluster.until(|| second.can_append()).await;
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_does_not_respond_is_refused_and_holds_one_thread() {
    let disk = Arc::new(BlockedDisk::of(FileCall::ExaminationRead));
    let (nodes, second) = marked_nodes_with(Some(disk.clone())).await;
    let blocked = disk.block();
    for _ in 0..3 {
        second.inner.examine_directories(Duration::from_millis(50)).await;
    }
    // Another examination may have begun before.
    nodes.cluster.until(|| !second.can_append()).await;
    assert_eq!(second.refused_directories()[0].fault, DirectoryFault::Hung);
    assert_eq!(disk.waiting(), 1);
    drop(blocked);
    nodes.cluster.until(|| second.can_append()).await;
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_disk_was_replaced_while_it_was_stopped_starts_and_makes_its_copies_again() {
    let (nodes, second) = marked_nodes().await;
    let (dir, count) = (nodes.dir(2), nodes.segments().len() as u64);
    for is_lost in [false, true] {
        // Nothing is decided while the node is stopped.
        nodes.cluster.set_nodes([]);
        nodes.stop(2).await;
        exchange(&dir);
        let started = nodes.open(2).await;
        nodes.cluster.set_nodes([1, 2]);
        assert!(!started.can_append(), "it does not use the directory");
        let (object, body) = &nodes.objects[0];
        for extent in nodes.bench.extents(object) {
            read_all(&started, &extent, body.0).await;
        }
        nodes.cluster.pass(2).await;
        assert!(nodes.are_all_on(&[1, 2]) && names_in(&dir) == 0, "nothing is lost yet");
        if is_lost {
            let replaced = started.replace_directory(&dir, OnlyCopies::Refused).await.unwrap();
            assert!(replaced.copied_again >= count, "{replaced:?}");
            assert!(started.can_append());
            nodes.cluster.until(|| started.replication().healed_segments >= count).await;
        } else {
            std::fs::remove_dir(&dir).unwrap();
            std::fs::rename(dir.with_extension("gone"), &dir).unwrap();
            nodes.cluster.until(|| started.can_append()).await;
            let length: u64 = nodes.segments().iter().map(|record| record.length).sum();
            nodes.cluster.until(|| started.metrics().used_bytes * 2 > length).await;
        }
        nodes.cluster.until(|| nodes.are_all_on(&[1, 2])).await;
        for record in nodes.segments() {
            let segment = record.segment_id();
            assert!(nodes.bytes(2, segment) == nodes.bytes(1, segment), "{segment}");
        }
    }
    drop(second);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_cold_directory_stops_only_what_touches_it() {
    let nodes = TestNodes::started(Identity { incarnation: Incarnation(9), ..Identity::default() }).await;
    let second = nodes.open_cold(2).await;
    let (cold, is_refused) = (nodes.cold_dir(2), || !second.refused_directories().is_empty());
    exchange(&cold);
    nodes.cluster.until(is_refused).await;
    nodes.cluster.set_nodes([1, 2]);
    nodes.cluster.until(|| nodes.are_all_on(&[1, 2])).await;

    std::fs::remove_dir(&cold).unwrap();
    std::fs::rename(cold.with_extension("gone"), &cold).unwrap();
    nodes.cluster.until(|| !is_refused()).await;
    let moved = nodes.segment_of(0).segment_id();
    std::fs::rename(nodes.path(2, moved), cold.join(segment_file_name(moved))).unwrap();
    exchange(&cold);
    nodes.cluster.until(is_refused).await;
    second.report_damage([moved]);
    nodes.cluster.pass(2).await;
    assert!(nodes.are_all_on(&[1, 2]), "what is in the directory is not lost yet");
    assert!(!nodes.path(2, moved).exists() && names_in(&cold) == 0);
    // As on the disk of another server.
    let (foreign, mut others) = (cold.join(segment_file_name(moved)), nodes.segments().into_iter());
    let other = others.find(|record| record.segment_id() != moved).unwrap().segment_id();
    std::fs::copy(nodes.path(2, other), &foreign).unwrap();
    let place = second.inner.shared.segments.map.location(moved).unwrap();
    second.inner.volumes.set_foreign_aside(moved, &place).unwrap();
    assert!(foreign.exists(), "its files are left alone");
    release_all(&nodes).await;
    let released = |segment| nodes.bench.catalogue.segment(segment).is_none();
    nodes
        .cluster
        .until(|| {
            let names = std::fs::read_dir(nodes.dir(2)).unwrap().map(|entry| entry.unwrap().file_name());
            let mut segments = names.filter_map(|name| segment_of_file_name(name.to_str().unwrap()));
            segments.all(|segment| !released(segment))
        })
        .await;
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_loss_of_only_copies_must_be_accepted() {
    let nodes = TestNodes::new().await;
    nodes.cluster.set_nodes([1]);
    let (dir, tier) = (nodes.dir(1), nodes.cluster.tier(1));
    let expected: Vec<SegmentId> = nodes.segments().iter().map(|record| record.segment_id()).collect();
    exchange(&dir);
    let refused = tier.replace_directory(&dir, OnlyCopies::Refused).await.unwrap_err();
    assert!(refused.to_string().contains(&expected[0].to_string()), "{refused}");
    let ReplaceDirectoryError::OnlyCopies { segments, .. } = refused else { panic!("{refused}") };
    assert!(expected.iter().all(|segment| segments.contains(segment)));
    assert_eq!(names_in(&dir), 0, "a refusal changes nothing");
    let replaced = tier.replace_directory(&dir, OnlyCopies::Accepted).await.unwrap();
    assert_eq!((replaced.copied_again, replaced.lost), (0, segments));
    let (refused, replaced) = tokio::join!(
        tier.replace_directory(&dir, OnlyCopies::Refused),
        tier.replace_directory(&dir, OnlyCopies::Accepted)
    );
    assert!(refused.is_err() && replaced.is_ok(), "{refused:?} {replaced:?}");
    assert!(tier.can_append(), "two replacements follow each other");
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_on_a_node_that_does_not_answer_does_not_replace_a_lost_one() {
    let (nodes, second) = marked_nodes().await;
    let dir = nodes.dir(2);
    exchange(&dir);
    nodes.cluster.set_reachable(1, false);
    let refused = second.replace_directory(&dir, OnlyCopies::Refused).await;
    assert!(matches!(refused, Err(ReplaceDirectoryError::OnlyCopies { .. })), "{refused:?}");
    assert!(second.inner.check_directories().is_err(), "the other directory is not written");
    nodes.cluster.set_reachable(1, true);
    let replaced = second.replace_directory(&dir, OnlyCopies::Refused).await.unwrap();
    assert_eq!(replaced.lost, []);
    nodes.cluster.until(|| nodes.are_all_on(&[1, 2])).await;
    nodes.close().await;
}
