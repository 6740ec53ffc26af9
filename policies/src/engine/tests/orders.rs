//! Tests: orders of small datasets, in which many requests continue by chance.

use crate::engine::order::{OrderDetector, ReadOrder};

/// A request: key, part number and number of parts of the object.
type Request = (String, u64, u64);

/// Returns the detected order after each pass.
fn orders(passes: impl Iterator<Item = Vec<Request>>) -> Vec<Option<ReadOrder>> {
    let mut finder = OrderDetector::new();
    let after = passes.map(|pass| {
        for (key, part, parts) in pass {
            finder.record(&key, &(part * 1000..(part + 1) * 1000), parts * 1000);
        }
        finder.order()
    });
    after.collect()
}

fn whole(number: usize) -> Request {
    (format!("set/{number:05}.jpg"), 0, 1)
}

fn shuffled(count: usize, random: &mut fastrand::Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    random.shuffle(&mut order);
    order
}

/// Returns the reads of shards in their given order by several workers that read one shard each and take
/// random turns.
fn by_workers(workers: usize, shards: Vec<Vec<Request>>, random: &mut fastrand::Rng) -> Vec<Request> {
    let mut shards = shards.into_iter().map(Vec::into_iter);
    let mut open: Vec<_> = shards.by_ref().take(workers).collect();
    let mut pass = Vec::new();
    while !open.is_empty() {
        let turn = random.usize(0..open.len());
        match open[turn].next() {
            Some(request) => pass.push(request),
            None => match shards.next() {
                Some(shard) => open[turn] = shard,
                None => drop(open.swap_remove(turn)),
            },
        }
    }
    pass
}

#[test]
fn a_shuffle_of_few_objects_is_not_shard_shuffled() {
    for count in [20, 30, 50, 64, 80, 100, 140, 178, 200, 400] {
        for seed in 0..20 {
            let mut random = fastrand::Rng::with_seed(seed);
            let passes = (0..8).map(|_| shuffled(count, &mut random).into_iter().map(whole).collect());
            let detected = orders(passes);
            // In less than one pass the number of objects is unknown.
            let from = if count < 100 { 2 } else { 0 };
            assert!(
                detected[from..].iter().all(|order| *order == Some(ReadOrder::Shuffled)),
                "{count} {seed}: {detected:?}"
            );
        }
    }
}

#[test]
fn a_small_dataset_in_key_order_is_sequential() {
    for count in [10, 20, 30, 50, 64, 80, 100, 200, 400] {
        let detected = orders((0..8).map(|_| (0..count).map(whole).collect()));
        assert!(
            detected[2..].iter().all(|order| *order == Some(ReadOrder::Sequential)),
            "{count}: {detected:?}"
        );
    }
}

#[test]
fn shuffled_shards_of_a_small_dataset_are_detected() {
    for (shards, samples) in [(8, 8), (10, 10), (5, 20), (20, 5), (40, 100), (4, 50)] {
        for workers in [1, 2, 4].into_iter().filter(|workers| workers * 4 <= shards) {
            for seed in 0..10 {
                let mut random = fastrand::Rng::with_seed(seed);
                let by_key = |shard: usize, one: usize| whole(shard * samples + one);
                let in_folders =
                    |shard: usize, one: usize| (format!("set/shard-{shard:03}/{one:05}.jpg"), 0, 1);
                let in_parts =
                    |shard: usize, one: usize| (format!("set/{shard:05}.tar"), one as u64, samples as u64);
                let names: [&dyn Fn(usize, usize) -> Request; 3] = [&by_key, &in_folders, &in_parts];
                // Among a few large objects, two successive ones are often neighbors.
                let names_end = if shards < 20 { 2 } else { 3 };
                // Long runs of numbers without visible shard boundaries are in order most of the time.
                let names_start = usize::from(samples > 20);
                for (at, name) in names.into_iter().enumerate().take(names_end).skip(names_start) {
                    let passes = (0..6).map(|_| {
                        let shard = |shard| (0..samples).map(|one| name(shard, one)).collect();
                        let order = shuffled(shards, &mut random).into_iter().map(shard).collect();
                        by_workers(workers, order, &mut random)
                    });
                    let detected = orders(passes);
                    // The first passes over few shards can be in order by chance.
                    let from = if shards < 8 { 3 } else { 1 };
                    assert!(
                        detected[from..].iter().all(|order| *order == Some(ReadOrder::ShardShuffled)),
                        "{shards} of {samples} by {workers}, {at}, {seed}: {detected:?}"
                    );
                }
            }
        }
    }
}
