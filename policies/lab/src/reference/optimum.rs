//! The offline optimum: the hits of a cache that knows all future accesses.
//!
//! Belady, "A study of replacement algorithms for a virtual-storage computer" (1966): evict the block whose
//! next read is last, and do not admit a block that is read again later than all cached blocks (bypass).
//! For blocks of equal weight, no policy achieves more hits. For different weights the exact optimum is
//! NP-hard (Chrobak et al., "Caching is hard — even in the fault model", 2012), and this greedy choice is
//! an approximation: another cache may achieve slightly more hits or hit bytes.
//!
//! Only reads count. A write may admit its block; a copy from before a write is stale.

use mlgw_policies::access::Op;
use mlgw_policies::reference::weight;
use std::collections::BinaryHeap;

/// An access in a recorded sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Number of the block.
    pub block: u32,
    /// Weight of the block in bytes.
    pub bytes: u32,
    /// Operation. A deletion makes copies stale, like a write.
    pub op: Op,
}

/// Result of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum OptimumOutcome {
    /// The block was cached.
    Hit,
    /// Miss; the block is admitted and stays until its next read.
    Admitted,
    /// The block was not cached and is not admitted.
    Bypassed,
}

/// Next read of a block that is never read again.
const NEVER: u32 = u32::MAX;

/// Computes the result of each event in a cache of `capacity` bytes that knows all events. Bytes are
/// written to flash for reads that are [`OptimumOutcome::Admitted`].
///
/// Takes 5 bytes of memory for each event, 16 for each block, and 8 for each heap entry, with at most about
/// twice as many entries as blocks cached at the same time.
///
/// # Panics
/// If there are 2³² − 1 events or more.
#[must_use]
pub fn optimum(events: &[Event], capacity: u64) -> Vec<OptimumOutcome> {
    let next = next_reads(events);
    let blocks = events.iter().map(|event| event.block as usize + 1).max().unwrap_or(0);
    let mut cache = OptimumCache {
        capacity,
        used: 0,
        count: 0,
        entries: vec![ABSENT; blocks],
        farthest: BinaryHeap::new(),
        outcomes: vec![OptimumOutcome::Bypassed; events.len()],
    };
    for (at, event) in events.iter().enumerate() {
        cache.process(at as u32, event, next[at]);
    }
    cache.outcomes
}

/// For each event, the index of the next read of its block, or [`NEVER`] if the block is written before or
/// not read again.
fn next_reads(events: &[Event]) -> Vec<u32> {
    assert!(events.len() < NEVER as usize, "events are numbered in 32 bits");
    let blocks = events.iter().map(|event| event.block as usize + 1).max().unwrap_or(0);
    let mut upcoming = vec![NEVER; blocks];
    let mut next = vec![NEVER; events.len()];
    for (at, event) in events.iter().enumerate().rev() {
        next[at] = upcoming[event.block as usize];
        upcoming[event.block as usize] = if event.op == Op::Read { at as u32 } else { NEVER };
    }
    next
}

#[derive(Clone, Copy)]
struct OptimumEntry {
    /// Weight; 0 for a block that is not cached.
    bytes: u32,
    /// Index of the next read.
    next: u32,
    /// Index of the access that admitted the block, or [`NEVER`] once it was hit.
    admitted: u32,
}

const ABSENT: OptimumEntry = OptimumEntry { bytes: 0, next: NEVER, admitted: NEVER };

struct OptimumCache {
    capacity: u64,
    used: u64,
    count: usize,
    entries: Vec<OptimumEntry>,
    /// Next read and block of all cached blocks, plus stale entries.
    farthest: BinaryHeap<(u32, u32)>,
    outcomes: Vec<OptimumOutcome>,
}

impl OptimumCache {
    fn process(&mut self, at: u32, event: &Event, next: u32) {
        let bytes = weight(event.bytes);
        let before = std::mem::replace(&mut self.entries[event.block as usize], ABSENT);
        self.used -= u64::from(before.bytes);
        self.count -= usize::from(before.bytes != 0);
        // A block whose size changed is another version.
        let hit = before.bytes == bytes && event.op == Op::Read;
        if before.bytes != 0 && !hit {
            self.revoke_admission(before.admitted);
        }
        if hit {
            self.outcomes[at as usize] = OptimumOutcome::Hit;
        }
        // Blocks that are never read again are dropped immediately, which costs nothing.
        if next == NEVER || !self.make_room(bytes, next) {
            return;
        }
        let admitted = if hit { NEVER } else { at };
        if !hit {
            self.outcomes[at as usize] = OptimumOutcome::Admitted;
        }
        self.insert(event.block, OptimumEntry { bytes, next, admitted });
    }

    fn insert(&mut self, block: u32, held: OptimumEntry) {
        self.entries[block as usize] = held;
        self.used += u64::from(held.bytes);
        assert!(self.used <= self.capacity, "room is made before a block is inserted");
        self.count += 1;
        // Entries of blocks that were read since sink to the bottom; they are removed when they outnumber
        // the others.
        if self.farthest.len() > 2 * self.count + 1024 {
            let held = &self.entries;
            self.farthest.retain(|(next, block)| {
                held[*block as usize].bytes != 0 && held[*block as usize].next == *next
            });
        }
        self.farthest.push((held.next, block));
    }

    /// Evicts blocks that are read later than `next` until there is room. Evicts nothing and returns false
    /// if that does not make enough room.
    fn make_room(&mut self, bytes: u32, next: u32) -> bool {
        let mut victims = Vec::new();
        let mut left = self.used;
        while left + u64::from(bytes) > self.capacity {
            match self.farthest.peek().copied() {
                Some((farthest, _)) if farthest <= next => break,
                None => break,
                Some((farthest, block)) => {
                    self.farthest.pop();
                    let held = self.entries[block as usize];
                    if held.bytes != 0 && held.next == farthest {
                        left -= u64::from(held.bytes);
                        victims.push((farthest, block));
                    }
                }
            }
        }
        let fits = left + u64::from(bytes) <= self.capacity;
        if !fits {
            self.farthest.extend(victims);
            return false;
        }
        for (_, block) in victims {
            let held = std::mem::replace(&mut self.entries[block as usize], ABSENT);
            self.used -= u64::from(held.bytes);
            self.count -= 1;
            self.revoke_admission(held.admitted);
        }
        true
    }

    /// Undoes the admission of a block that was evicted before it was read.
    fn revoke_admission(&mut self, admitted: u32) {
        if admitted != NEVER {
            self.outcomes[admitted as usize] = OptimumOutcome::Bypassed;
        }
    }
}
