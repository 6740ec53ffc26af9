//! Properties that hold for the references on any trace, with any weights.

use crate::reference::{Event, OptimumOutcome, Sieve, optimum};
use mlgw_policies::access::Op;
use mlgw_policies::reference::{Lru, NeverEvict, ReferenceCache, S3Fifo};
use proptest::prelude::*;
use std::collections::HashMap;

fn all(capacity: u64) -> [(&'static str, Box<dyn ReferenceCache>); 4] {
    [
        ("lru", Box::new(Lru::new(capacity))),
        ("never-evict", Box::new(NeverEvict::new(capacity))),
        ("s3-fifo", Box::new(S3Fifo::new(capacity))),
        ("sieve", Box::new(Sieve::new(capacity))),
    ]
}

/// Reads with this probability, otherwise writes.
fn op(reads: f64) -> impl Strategy<Value = Op> {
    prop::bool::weighted(reads).prop_map(|is_read| if is_read { Op::Read } else { Op::Write })
}

fn events(weights: impl Strategy<Value = u32>) -> impl Strategy<Value = Vec<Event>> {
    let event = (0..40_u32, weights, op(0.9));
    let event = event.prop_map(|(block, bytes, op)| Event { block, bytes, op });
    prop::collection::vec(event, 0..600)
}

/// Hits of the best possible cache for blocks of weight 1, by exhaustive search: a longest path over the
/// sets of blocks that can be cached at each step.
fn hits_by_search(events: &[Event], capacity: usize) -> u32 {
    let mut states = HashMap::from([(0_u32, 0_u32)]);
    for event in events {
        let bit = 1 << event.block;
        let mut after = HashMap::new();
        for (held, hits) in states {
            let hits = hits + u32::from(event.op == Op::Read && held & bit != 0);
            let mut reach = |held: u32| {
                let known = after.entry(held).or_insert(0);
                *known = hits.max(*known);
            };
            // A write invalidates the old copy.
            let kept = if event.op == Op::Read { held } else { held & !bit };
            reach(kept);
            let with = kept | bit;
            if with.count_ones() as usize <= capacity {
                reach(with);
            } else {
                (0..32).filter(|b| kept >> b & 1 == 1).for_each(|b| reach(with & !(1 << b)));
            }
        }
        states = after;
    }
    states.into_values().max().unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// With equal weights, no policy beats the optimum, and every block that it admits is read again.
    #[test]
    fn no_policy_beats_the_optimum(events in events(Just(1)), capacity in 1..30_u64) {
        let outcomes = optimum(&events, capacity);
        let hits = outcomes.iter().filter(|outcome| **outcome == OptimumOutcome::Hit).count();
        for (name, mut cache) in all(capacity) {
            let found =
                events.iter().filter(|e| cache.access(e.block, e.bytes, e.op) && e.op == Op::Read).count();
            prop_assert!(found <= hits, "{name}: {found} and {hits}");
        }
        let admitted = outcomes.iter().filter(|outcome| **outcome == OptimumOutcome::Admitted).count();
        prop_assert!(admitted <= hits);
    }

    #[test]
    fn the_optimum_matches_an_exhaustive_search(
        events in prop::collection::vec((0..6_u32, op(0.8)), 0..40), capacity in 1..4_u64,
    ) {
        let events: Vec<_> =
            events.into_iter().map(|(block, op)| Event { block, bytes: 1, op }).collect();
        let outcomes = optimum(&events, capacity);
        let hits = outcomes.iter().filter(|outcome| **outcome == OptimumOutcome::Hit).count();
        prop_assert_eq!(hits as u32, hits_by_search(&events, capacity as usize));
    }

    /// A block is hit only if it occurred before with the same weight and was not invalidated. Bytes
    /// written never exceed the bytes missed, and the cached blocks fit into the capacity.
    #[test]
    fn hits_are_of_known_blocks(events in events(0..50_u32), capacity in 0..400_u64, forget in 1..20_usize) {
        for (name, mut cache) in all(capacity) {
            let mut came: HashMap<u32, u32> = HashMap::new();
            let mut missed = 0;
            for (at, event) in events.iter().enumerate() {
                if at % forget == 0 {
                    cache.invalidate(event.block);
                    came.remove(&event.block);
                }
                let hit = cache.access(event.block, event.bytes, event.op);
                let before = came.insert(event.block, event.bytes.max(1));
                prop_assert!(!hit || before == Some(event.bytes.max(1)), "{name}");
                missed += if hit || event.op != Op::Read { 0 } else { u64::from(event.bytes.max(1)) };
            }
            prop_assert!(cache.bytes_written() <= missed, "{name}");
            // Bytes cached at the end are checked for never-evict alone: with the other policies the check
            // itself would evict blocks.
            if name == "never-evict" {
                let held = came.iter().filter(|(b, w)| cache.access(**b, **w, Op::Read));
                let held: u64 = held.map(|(_, w)| u64::from(*w)).sum();
                prop_assert!(held <= capacity);
            }
        }
    }

    /// A cache with room for everything misses each block once.
    #[test]
    fn blocks_that_fit_are_missed_once(events in events(Just(7)), capacity in 2800..9999_u64) {
        let mut blocks: Vec<_> = events.iter().map(|event| event.block).collect();
        blocks.sort_unstable();
        blocks.dedup();
        for (name, mut cache) in all(capacity) {
            let misses = events.iter().filter(|e| !cache.access(e.block, e.bytes, e.op)).count();
            prop_assert_eq!(misses, blocks.len(), "{}", name);
        }
    }
}

/// Three blocks of different weights: the large one is read later, so it is not admitted unless there is
/// room for all.
#[test]
fn the_optimum_weighs_bytes() {
    let read = |block, bytes| Event { block, bytes, op: Op::Read };
    let events = [read(0, 8), read(1, 4), read(2, 4), read(1, 4), read(2, 4), read(0, 8)];
    use OptimumOutcome::{Admitted, Bypassed, Hit};
    assert_eq!(optimum(&events, 8), [Bypassed, Admitted, Admitted, Hit, Hit, Bypassed]);
    assert_eq!(optimum(&events, 16), [Admitted, Admitted, Admitted, Hit, Hit, Hit]);
    assert_eq!(optimum(&events, 3), [Bypassed; 6]);
}

#[test]
fn a_copy_from_before_a_write_is_stale() {
    use Op::{Read, Write};
    let event = |block, op| Event { block, bytes: 1, op };
    // Block 0 is written before it is read again: the cache of one block is better used for block 1.
    let events = [event(0, Read), event(1, Read), event(1, Read), event(0, Write), event(0, Read)];
    use OptimumOutcome::{Admitted, Bypassed, Hit};
    assert_eq!(optimum(&events, 1), [Bypassed, Admitted, Hit, Admitted, Hit]);
}
