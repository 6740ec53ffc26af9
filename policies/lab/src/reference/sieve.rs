//! SIEVE: a queue and a hand that skips blocks that were used since its last pass.
//!
//! Zhang et al., "SIEVE is Simpler than LRU: an Efficient Turn-Key Eviction Algorithm for Web Caches" (NSDI
//! 2024). A hit marks a block and moves nothing; the hand goes from old to new, unmarks marked blocks and
//! evicts the first unmarked one.

use mlgw_policies::access::Op;
use mlgw_policies::reference::links::{BlockQueue, Links, NONE};
use mlgw_policies::reference::{ReferenceCache, weight};

/// A cache that evicts with a hand that moves over a queue.
#[derive(Debug)]
pub struct Sieve {
    capacity: u64,
    links: Links,
    queue: BlockQueue,
    visited: Vec<bool>,
    /// Block at which the hand continues, or [`NONE`] for the oldest.
    hand: u32,
    written: u64,
}

impl Sieve {
    /// Creates a cache of `capacity` bytes.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self {
            capacity,
            links: Links::default(),
            queue: BlockQueue::default(),
            visited: Vec::new(),
            hand: NONE,
            written: 0,
        }
    }

    fn evict(&mut self) {
        let mut at = if self.hand == NONE { self.queue.oldest() } else { self.hand };
        while std::mem::take(&mut self.visited[at as usize]) {
            at = match self.links.newer(at) {
                NONE => self.queue.oldest(),
                newer => newer,
            };
        }
        self.hand = at;
        self.remove(at);
    }

    fn remove(&mut self, block: u32) {
        if self.hand == block {
            self.hand = self.links.newer(block);
        }
        self.links.remove(&mut self.queue, block);
    }
}

impl ReferenceCache for Sieve {
    fn access(&mut self, block: u32, bytes: u32, op: Op) -> bool {
        let bytes = weight(bytes);
        let held = self.links.bytes(block);
        if held == bytes {
            self.visited[block as usize] = true;
            return true;
        }
        self.invalidate(block);
        if u64::from(bytes) > self.capacity {
            return false;
        }
        while self.queue.bytes() + u64::from(bytes) > self.capacity {
            self.evict();
        }
        self.links.grow_to(block);
        if block as usize >= self.visited.len() {
            self.visited.resize(block as usize + 1, false);
        }
        self.visited[block as usize] = false;
        self.links.push(&mut self.queue, block, bytes);
        self.written += if op == Op::Read { u64::from(bytes) } else { 0 };
        false
    }

    fn invalidate(&mut self, block: u32) {
        if self.links.bytes(block) != 0 {
            self.remove(block);
        }
    }

    fn bytes_written(&self) -> u64 {
        self.written
    }
}
