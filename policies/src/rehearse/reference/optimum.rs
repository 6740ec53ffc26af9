//! The offline optimum: what a cache could reach that knows all accesses to come.
//!
//! Belady, "A study of replacement algorithms for a virtual-storage computer" (1966): evict what is read
//! again last, and do not admit what is read again later than everything that is held (bypass). For blocks of
//! one weight nothing reaches more hits. For different weights the exact optimum is NP-hard (Chrobak et al.,
//! "Caching is hard — even in the fault model", 2012), and this greedy choice is an approximation: another
//! cache may reach a little more, in hits or in bytes.
//!
//! Only reads count. A write may admit its block; a copy from before a write is of no use, as it is not what
//! is read after it.

use super::weight;
use std::collections::BinaryHeap;

/// One access of a recorded sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The block's number.
    pub block: u32,
    /// Its weight in bytes.
    pub bytes: u32,
    /// Whether it is read; it is written otherwise.
    pub is_read: bool,
}

/// What became of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// The block was held.
    Hit,
    /// It was not, and is from then on, until it is read again.
    Admitted,
    /// It was not, and need not be.
    Passed,
}

/// The block is never read again.
const NEVER: u32 = u32::MAX;

/// What becomes of each event in a cache of `capacity` bytes that knows them all. Bytes are written to flash
/// for reads that are [`Outcome::Admitted`].
///
/// Takes 5 bytes of memory for each event, 16 for each block and 8 for twice as many as are held at once.
///
/// # Panics
/// For 2³² − 1 events and more.
#[must_use]
pub fn optimum(events: &[Event], capacity: u64) -> Vec<Outcome> {
    let next = next_reads(events);
    let blocks = events.iter().map(|event| event.block as usize + 1).max().unwrap_or(0);
    let mut cache = Cache {
        capacity,
        used: 0,
        count: 0,
        held: vec![ABSENT; blocks],
        farthest: BinaryHeap::new(),
        outcomes: vec![Outcome::Passed; events.len()],
    };
    for (at, event) in events.iter().enumerate() {
        cache.take(at as u32, event, next[at]);
    }
    cache.outcomes
}

/// For each event, the one at which its block is next read, if it is not written before.
fn next_reads(events: &[Event]) -> Vec<u32> {
    assert!(events.len() < NEVER as usize, "events are numbered in 32 bits");
    let blocks = events.iter().map(|event| event.block as usize + 1).max().unwrap_or(0);
    let mut upcoming = vec![NEVER; blocks];
    let mut next = vec![NEVER; events.len()];
    for (at, event) in events.iter().enumerate().rev() {
        next[at] = upcoming[event.block as usize];
        upcoming[event.block as usize] = if event.is_read { at as u32 } else { NEVER };
    }
    next
}

#[derive(Clone, Copy)]
struct Held {
    /// 0 for a block that is not held.
    bytes: u32,
    /// When it is read again.
    next: u32,
    /// The access that admitted it, or [`NEVER`] once it was hit.
    admitted: u32,
}

const ABSENT: Held = Held { bytes: 0, next: NEVER, admitted: NEVER };

struct Cache {
    capacity: u64,
    used: u64,
    count: usize,
    held: Vec<Held>,
    /// Next read and block of all that is held, and entries that no longer hold.
    farthest: BinaryHeap<(u32, u32)>,
    outcomes: Vec<Outcome>,
}

impl Cache {
    fn take(&mut self, at: u32, event: &Event, next: u32) {
        let bytes = weight(event.bytes);
        let before = std::mem::replace(&mut self.held[event.block as usize], ABSENT);
        self.used -= u64::from(before.bytes);
        self.count -= usize::from(before.bytes != 0);
        let hit = before.bytes == bytes && event.is_read;
        if before.bytes != 0 && !hit {
            self.unused(before.admitted);
        }
        if hit {
            self.outcomes[at as usize] = Outcome::Hit;
        }
        // What is never read again is let go at once, which costs nothing.
        if next == NEVER || !self.make_room(bytes, next) {
            return;
        }
        let admitted = if hit { NEVER } else { at };
        if !hit {
            self.outcomes[at as usize] = Outcome::Admitted;
        }
        self.hold(event.block, Held { bytes, next, admitted });
    }

    fn hold(&mut self, block: u32, held: Held) {
        self.held[block as usize] = held;
        self.used += u64::from(held.bytes);
        self.count += 1;
        // Entries of blocks that were read since sink to the bottom and are swept when they are the most.
        if self.farthest.len() > 2 * self.count + 1024 {
            let held = &self.held;
            self.farthest.retain(|(next, block)| {
                held[*block as usize].bytes != 0 && held[*block as usize].next == *next
            });
        }
        self.farthest.push((held.next, block));
    }

    /// Evicts what is read later than `next` until there is room, or nothing if that does not make enough.
    fn make_room(&mut self, bytes: u32, next: u32) -> bool {
        let mut victims = Vec::new();
        let mut left = self.used;
        while left + u64::from(bytes) > self.capacity {
            match self.farthest.peek().copied() {
                Some((farthest, _)) if farthest <= next => break,
                None => break,
                Some((farthest, block)) => {
                    self.farthest.pop();
                    let held = self.held[block as usize];
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
            let held = std::mem::replace(&mut self.held[block as usize], ABSENT);
            self.used -= u64::from(held.bytes);
            self.count -= 1;
            self.unused(held.admitted);
        }
        true
    }

    /// What was admitted and let go before it was read need not have been admitted.
    fn unused(&mut self, admitted: u32) {
        if admitted != NEVER {
            self.outcomes[admitted as usize] = Outcome::Passed;
        }
    }
}
