//! Tests of disk slots, measured in turns instead of time.

use super::{DiskQueue, DiskSlot, Lane, ServiceClass};
use mlgw_policies::language::Priority;
use mlgw_policies::language::Word as _;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};

type Waiting<'f> = Pin<Box<dyn Future<Output = DiskSlot<'f>> + 'f>>;

fn poll<'f>(waiting: &mut Waiting<'f>) -> Option<DiskSlot<'f>> {
    match waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(place) => Some(place),
        Poll::Pending => None,
    }
}

/// Starts to wait for a slot.
fn ask(fair: &DiskQueue, lane: Lane, bytes: u64) -> Waiting<'_> {
    let mut waiting: Waiting<'_> = Box::pin(fair.acquire(lane, bytes));
    assert!(poll(&mut waiting).is_none(), "all slots are in use");
    waiting
}

#[test]
fn a_free_slot_is_taken_immediately_and_released() {
    let fair = DiskQueue::new(2);
    let (one, two) = (fair.try_acquire(Lane::Training), fair.try_acquire(Lane::Background));
    assert!(one.is_some() && two.is_some() && fair.try_acquire(Lane::Checkpoint).is_none());
    assert_eq!(fair.metrics().slots_in_use, 2);
    drop(one);
    assert!(fair.try_acquire(Lane::Checkpoint).is_some());
    drop(two);
    assert_eq!(fair.metrics().slots_in_use, 0);
    let lanes = fair.metrics().lanes;
    assert_eq!(lanes.iter().map(|(name, ..)| *name).collect::<Vec<_>>(), Lane::WORDS);
    assert_eq!(lanes.iter().map(|(.., waits)| waits.count()).collect::<Vec<_>>(), [1, 0, 1, 1]);
}

#[test]
fn waiters_are_not_overtaken_and_dropped_waiters_are_skipped() {
    let fair = DiskQueue::new(1);
    let place = fair.try_acquire(Lane::Training);
    let (gone, mut next) = (ask(&fair, Lane::Training, 1), ask(&fair, Lane::Training, 1));
    let mut granted_and_gone = ask(&fair, Lane::Training, 1);
    assert_eq!(fair.metrics().lanes[2].1, 3);
    drop(gone);
    drop(place);
    assert!(fair.try_acquire(Lane::Checkpoint).is_none(), "the slot is reserved");
    let place = poll(&mut next).expect("the next request gets the slot");
    assert!(poll(&mut granted_and_gone).is_none());
    drop(place);
    drop(granted_and_gone);
    assert_eq!(fair.metrics().slots_in_use, 0, "an unclaimed slot is returned");
    assert!(fair.try_acquire(Lane::Checkpoint).is_some(), "no request waits");
}

/// Simulates a slow disk: all requests wait for it, and one is completed per turn. Returns the lanes of the
/// requests that were admitted in `turns` turns of a flood of training reads, with one request of `other` at
/// a time, whose first arrives during the flood.
fn turns_of(other: Lane, turns: usize) -> Vec<Lane> {
    let fair = DiskQueue::new(4);
    let mut taken: VecDeque<DiskSlot<'_>> = (0..4).filter_map(|_| fair.try_acquire(Lane::Training)).collect();
    let mut waiting: Vec<(Lane, Waiting<'_>)> =
        (0..500).map(|_| (Lane::Training, ask(&fair, Lane::Training, 1 << 20))).collect();
    waiting.push((other, ask(&fair, other, 1 << 20)));
    let mut went = Vec::new();
    for _ in 0..turns {
        drop(taken.pop_front());
        let due = waiting.iter_mut().enumerate().find_map(|(at, (_, one))| Some((at, poll(one)?)));
        let (at, place) = due.expect("a free slot is assigned");
        let (lane, _) = waiting.remove(at);
        went.push(lane);
        taken.push_back(place);
        // The flood does not end, and the other lane sends its next request.
        waiting.push((Lane::Training, ask(&fair, Lane::Training, 1 << 20)));
        if lane == other {
            waiting.push((other, ask(&fair, other, 1 << 20)));
        }
    }
    went
}

#[test]
fn a_flood_of_training_reads_does_not_starve_other_lanes() {
    for (lane, share) in [(Lane::Checkpoint, 2), (Lane::Inference, 2), (Lane::Background, 5)] {
        let went = turns_of(lane, 200);
        let first = went.iter().position(|went| *went == lane);
        assert!(first.is_some_and(|first| first <= 1), "{lane:?} waits for the flood: {first:?}");
        let count = went.iter().filter(|went| **went == lane).count();
        assert!((200 / share - 2..=200 / share + 2).contains(&count), "{lane:?} went {count} times in 200");
    }
}

#[test]
fn many_threads_share_the_slots_and_each_is_served() {
    let fair = DiskQueue::new(3);
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (fair, inside, most) = (fair.clone(), inside.clone(), most.clone());
            scope.spawn(move || {
                for turn in 0..2000 {
                    let place = fair.acquire_blocking(Lane::ALL[(thread + turn) % 4], 4096);
                    most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                    inside.fetch_sub(1, SeqCst);
                    drop(place);
                }
            });
        }
    });
    assert!(most.load(SeqCst) <= 3);
    let metrics = fair.metrics();
    assert_eq!(
        (metrics.slots_in_use, metrics.lanes.iter().map(|(_, waiting, _)| waiting).sum::<u64>()),
        (0, 0)
    );
    assert_eq!(metrics.lanes.iter().map(|(.., waits)| waits.count()).sum::<u64>(), 16_000);
    assert!(fair.try_acquire(Lane::Training).is_some());
}

#[test]
fn in_a_flooded_lane_urgent_requests_go_first_and_low_ones_are_not_starved() {
    let fair = DiskQueue::new(1);
    let place = fair.try_acquire(Lane::Training);
    let turn = |rank| ServiceClass { lane: Lane::Training, rank };
    let mut waiting: Vec<(Priority, Waiting<'_>)> = Vec::new();
    for rank in [Priority::Low].into_iter().chain([Priority::Normal; 40]).chain([Priority::Urgent; 2]) {
        let mut one: Waiting<'_> = Box::pin(fair.acquire(turn(rank), 4096));
        assert!(poll(&mut one).is_none());
        waiting.push((rank, one));
    }
    drop(place);
    let mut went = Vec::new();
    while !waiting.is_empty() {
        let due = waiting.iter_mut().enumerate().find_map(|(at, (_, one))| Some((at, poll(one)?)));
        let (at, place) = due.expect("a free slot is assigned");
        went.push(waiting.remove(at).0);
        drop(place);
    }
    let last = |rank| went.iter().rposition(|went| *went == rank);
    assert!(last(Priority::Urgent) <= Some(4), "{went:?}");
    assert!(last(Priority::Low) <= Some(6), "it came before the others of its rank: {went:?}");
    assert_eq!(went.len(), 43);
}
