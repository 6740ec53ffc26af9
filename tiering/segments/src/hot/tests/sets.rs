//! Tests of the writers of several sets, on a map in memory.

use super::*;
use crate::hot::AppendError;
use crate::hot::queue::QueueClose;
use crate::hot::writer_queues::QueueKind;

/// Returns a tier whose node is in these sets. Chunks of body 1 go to set 1, those of body 2 to set 2, and
/// all others to the first set.
async fn in_sets(dir: &Path, own: &[u32]) -> (HotTier, Arc<MemoryMap>) {
    let map = Arc::new(MemoryMap::default());
    set_own(&map, own);
    map.sets.lock().of_keys = [("key-1".to_owned(), 1), ("key-2".to_owned(), 2)].into();
    (open(dir, &map).await, map)
}

fn set_own(map: &MemoryMap, own: &[u32]) {
    map.sets.lock().own = Some(own.iter().copied().collect());
}

/// Ends the writers of sets that the node has left, as housekeeping does.
fn close_left(tier: &HotTier, map: &MemoryMap) {
    tier.inner.writer_queues.close_left(&map.own_sets().unwrap());
}

async fn until_sealed(map: &MemoryMap, segment: u64) {
    while map.sealed()[&segment].is_none() {
        mlgw_common::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_segment_has_chunks_of_one_set() {
    let dir = tempfile::tempdir().unwrap();
    let (tier, map) = in_sets(dir.path(), &[0, 1, 2]).await;
    let mut segments = BTreeMap::new();
    for (body, set) in [(1, 1), (2, 2), (3, 0), (1, 1), (2, 2), (3, 0)] {
        for length in [100, mlgw_common::limits::LARGE_CHUNK_BYTES_MIN] {
            for placement in [Placement::Shared, Placement::Own] {
                let extent = append(&tier, Chunk { placement, ..chunk(body, bytes_of(body, length)) });
                let extent = extent.await.unwrap();
                assert_eq!(map.set_of(extent.segment), set);
                let class = (set, length, placement == Placement::Own);
                let first = *segments.entry(class).or_insert(extent.segment);
                assert_eq!(extent.segment, first, "chunks of the same kind share a segment");
                assert_eq!(read_all(&tier, &extent, body).await, bytes_of(body, length));
            }
        }
        let extent = append(&tier, chunk(body, bytes_of(body, 50))).await.unwrap();
        let moved = tier.append_moved(&extent, BodyId(body)).await.unwrap().extent;
        assert_eq!(map.set_of(moved.segment), set, "moved chunks too");
        assert_eq!(*segments.entry((set, 0, false)).or_insert(moved.segment), moved.segment);
    }
    tier.shutdown().await;
    assert!(map.sealed().values().all(Option::is_some), "a stop seals the segments of all sets");
}

#[tokio::test]
async fn without_sets_all_chunks_go_to_the_writers_of_the_first_set() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let tier = open(dir.path(), &map).await;
    let first = append(&tier, chunk(1, vec![1; 100])).await.unwrap();
    let second = append(&tier, chunk(2, vec![1; 100])).await.unwrap();
    assert_eq!((map.set_of(first.segment), second.segment), (0, first.segment));
    assert_eq!(map.own_sets(), None);
    tier.shutdown().await;
}

#[tokio::test]
async fn the_segments_of_a_set_that_the_node_has_left_are_sealed_and_those_of_others_stay_open() {
    let dir = tempfile::tempdir().unwrap();
    let (tier, map) = in_sets(dir.path(), &[0, 1, 2]).await;
    let own = |body| Chunk { placement: Placement::Own, ..chunk(body, vec![7; 1000]) };
    let left = [append(&tier, chunk(1, vec![1; 100])).await.unwrap(), append(&tier, own(1)).await.unwrap()];
    let kept = [append(&tier, chunk(2, vec![1; 100])).await.unwrap(), append(&tier, own(2)).await.unwrap()];
    let first = append(&tier, chunk(3, vec![1; 100])).await.unwrap();
    set_own(&map, &[2]);
    // By housekeeping.
    for extent in &left {
        until_sealed(&map, extent.segment).await;
        assert_eq!(map.sealed()[&extent.segment], Some(extent.offset + extent.record_bytes()));
    }
    assert!(kept.iter().chain([&first]).all(|extent| map.sealed()[&extent.segment].is_none()));
    assert_eq!(append(&tier, chunk(1, vec![1; 100])).await.err(), Some(AppendError::OtherSet));
    assert_eq!(append(&tier, own(1)).await.err(), Some(AppendError::OtherSet));
    assert_eq!(append(&tier, chunk(2, vec![1; 100])).await.unwrap().segment, kept[0].segment);
    set_own(&map, &[0, 1, 2]);
    let again = append(&tier, chunk(1, vec![1; 100])).await.unwrap();
    assert!(again.segment != left[0].segment && map.set_of(again.segment) == 1, "the node has returned");
    tier.shutdown().await;
}

/// A queue is closed between the choice of the set and the push of the chunk.
#[tokio::test]
async fn a_chunk_at_a_queue_that_was_just_closed_goes_to_another_one() {
    let dir = tempfile::tempdir().unwrap();
    let (tier, map) = in_sets(dir.path(), &[0, 1]).await;
    let queues = &tier.inner.writer_queues;
    let closed = queues.shared(1, QueueKind::Small).unwrap().into_owned();
    assert!(!queues.is_replaced(&closed));
    set_own(&map, &[0]);
    close_left(&tier, &map);
    assert!(queues.is_replaced(&closed));
    set_own(&map, &[0, 1]);
    assert!(!Arc::ptr_eq(&queues.shared(1, QueueKind::Small).unwrap(), &closed));
    // The queue of a writer that has ended for another reason is no other one.
    let ended = queues.shared(1, QueueKind::Large).unwrap().into_owned();
    ended.close(QueueClose::Abandon);
    assert!(!queues.is_replaced(&ended));
    let large = chunk(1, bytes_of(1, mlgw_common::limits::LARGE_CHUNK_BYTES_MIN));
    assert_eq!(append(&tier, large).await.err(), Some(AppendError::Stopping));
    queues.own(BodyId(1), 1).unwrap().close(QueueClose::Abandon);
    let own = Chunk { placement: Placement::Own, ..chunk(1, vec![7; 1000]) };
    assert_eq!(append(&tier, own).await.err(), Some(AppendError::Stopping), "it is not tried for ever");
    tier.shutdown().await;
}

#[tokio::test]
async fn the_own_segment_of_a_body_ends_when_its_group_moves_to_another_set() {
    let dir = tempfile::tempdir().unwrap();
    let (tier, map) = in_sets(dir.path(), &[0, 1, 2]).await;
    let own = || Chunk { placement: Placement::Own, ..chunk(1, vec![7; 1000]) };
    let before = append(&tier, own()).await.unwrap();
    map.sets.lock().of_keys.insert("key-1".to_owned(), 2);
    let after = append(&tier, own()).await.unwrap();
    assert_eq!([before.segment, after.segment].map(|segment| map.set_of(segment)), [1, 2]);
    until_sealed(&map, before.segment).await;
    tier.seal_own(BodyId(1));
    until_sealed(&map, after.segment).await;
    tier.shutdown().await;
}

/// The segment was created after the chunk's group had ceased to be a guest of the set, so the group does not
/// count as one that may refer to it.
#[tokio::test]
async fn a_chunk_in_a_segment_to_which_its_key_may_not_refer_is_not_stored() {
    let dir = tempfile::tempdir().unwrap();
    let (tier, map) = in_sets(dir.path(), &[0, 1]).await;
    map.sets.lock().ended.insert(1);
    for placement in [Placement::Shared, Placement::Own] {
        let chunk = Chunk { placement, ..chunk(1, vec![1; 100]) };
        assert_eq!(append(&tier, chunk).await.err(), Some(AppendError::OtherSet));
    }
    let extent = append(&tier, chunk(3, vec![1; 100])).await.unwrap();
    assert_eq!(map.set_of(extent.segment), 0, "the others are");
    map.sets.lock().of_keys.insert("key-3".to_owned(), 1);
    assert_eq!(tier.append_moved(&extent, BodyId(3)).await.err(), Some(AppendError::OtherSet));
    map.sets.lock().ended.clear();
    append(&tier, chunk(1, vec![1; 100])).await.unwrap();
    tier.shutdown().await;
}
