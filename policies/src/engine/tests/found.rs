//! What it finds out about labelled traffic, from seeds that nothing was tuned on.

use crate::engine::{Engine, Options, Order, Pattern as Found, Seen};
use crate::rehearse::labelled::Traffic;
use crate::rehearse::scene::{Pattern, Request};
use std::collections::BTreeMap;

const BLOCK_BYTES: u64 = 8 << 20;
/// By when it has to be told, as a share of an epoch.
const DUE_SHARE: usize = 10;

fn label(found: Found) -> Pattern {
    match found {
        Found::Epochs(Order::Sequential) => Pattern::Sequential,
        Found::Epochs(Order::Shuffled) => Pattern::Shuffled,
        Found::Epochs(Order::ShardShuffled) => Pattern::ShardShuffled,
        Found::Epochs(Order::Ranged) => Pattern::Columnar,
        Found::OnePass => Pattern::OnePass,
        Found::Skewed => Pattern::Skewed,
        Found::Checkpoint => Pattern::Checkpoint,
        Found::Validation => Pattern::Validation,
    }
}

/// What is known of a stream of one traffic.
#[derive(Default)]
struct Stream {
    /// Requests by epoch, and when each began.
    epochs: BTreeMap<u32, (usize, u64)>,
    last: Option<(Seen, u64)>,
}

/// Truth and what was found, and by how much the begin of each stream's last epoch was missed.
fn replay(seed: u64, pairs: &mut Vec<(Pattern, Option<Pattern>)>, misses: &mut Vec<f64>) {
    let made = Traffic::new(seed).generate();
    let requests: Vec<Request> = made.requests.collect();
    let mut whole: BTreeMap<u16, Stream> = BTreeMap::new();
    for request in &requests {
        let epochs = &mut whole.entry(request.stream).or_default().epochs;
        epochs.entry(request.epoch).or_insert((0, request.at_us)).0 += 1;
    }
    let options = Options { capacity_bytes: 1 << 34, blocks_max: 1 << 18, block_bytes: BLOCK_BYTES, seed: 0 };
    let mut engine = Engine::new(options);
    let mut counts: BTreeMap<(u16, u32), usize> = BTreeMap::new();
    for request in &requests {
        let access = made.scene.access(request);
        let seen = engine.observe(&access);
        for block in request.range.start / BLOCK_BYTES..=(request.range.end.max(1) - 1) / BLOCK_BYTES {
            engine.read(seen, &access, block as u32);
        }
        let pattern = made.scene.stream(request).pattern;
        let count = counts.entry((request.stream, request.epoch)).or_default();
        *count += 1;
        // What only repetition shows has a tenth of the first repeat.
        let told_in = u32::from(matches!(pattern, Pattern::Validation | Pattern::Checkpoint));
        let stream = whole.entry(request.stream).or_default();
        let due = stream.epochs.get(&told_in).map_or(0, |(requests, _)| (requests / DUE_SHARE).max(1));
        if request.epoch == told_in && *count == due && pattern != Pattern::OnePass {
            pairs.push((pattern, engine.pattern(seen, request.at_us).map(label)));
        }
        stream.last = Some((seen, request.at_us));
    }
    let end_us = requests.last().map_or(0, |request| request.at_us);
    for (number, stream) in &whole {
        let Some((seen, _)) = stream.last else { continue };
        let pattern = made.scene.streams[usize::from(*number)].pattern;
        if pattern == Pattern::OnePass {
            // Others have come back by then.
            pairs.push((pattern, engine.pattern(seen, end_us + end_us / DUE_SHARE as u64).map(label)));
        }
        let is_epochs = matches!(pattern, Pattern::Sequential | Pattern::Shuffled | Pattern::ShardShuffled);
        let begins: Vec<u64> = stream.epochs.values().map(|(_, begin_us)| *begin_us).collect();
        if let (true, [.., before, last], Some(passes)) = (is_epochs, &begins[..], engine.passes(seen)) {
            misses.push(passes.began_us.abs_diff(*last) as f64 / (last - before) as f64);
        }
    }
}

#[test]
fn nineteen_of_twenty_are_told_in_time() {
    let (mut pairs, mut misses) = (Vec::new(), Vec::new());
    for seed in 1000..1012 {
        replay(seed, &mut pairs, &mut misses);
    }
    let patterns = [
        Pattern::Sequential,
        Pattern::Shuffled,
        Pattern::ShardShuffled,
        Pattern::Columnar,
        Pattern::OnePass,
        Pattern::Skewed,
        Pattern::Checkpoint,
        Pattern::Validation,
    ];
    let score = |pattern: Pattern| {
        let right = pairs.iter().filter(|pair| **pair == (pattern, Some(pattern))).count();
        let are = pairs.iter().filter(|(truth, _)| *truth == pattern).count();
        let said = pairs.iter().filter(|(_, found)| *found == Some(pattern)).count();
        2.0 * right as f64 / (are + said).max(1) as f64
    };
    let scores = patterns.map(|pattern| (pattern, score(pattern)));
    let mean = scores.iter().map(|(_, score)| score).sum::<f64>() / scores.len() as f64;
    assert!(mean >= 0.95, "{mean} {scores:?}");
    misses.sort_by(f64::total_cmp);
    let (median, ninth) = (misses[misses.len() / 2], misses[misses.len() * 9 / 10]);
    println!("F1 {mean:.3} {scores:?}; boundaries missed by {median:.4}, at the ninth decile {ninth:.4}");
    assert!(median <= 0.02, "{median}");
}
