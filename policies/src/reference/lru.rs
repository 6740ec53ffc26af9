//! LRU: evicts the least recently used block.

use super::links::{BlockQueue, Links};
use super::{ReferenceCache, weight};
use crate::access::Op;

/// A cache that evicts the block that was not used for the longest time.
#[derive(Debug)]
pub struct Lru {
    capacity: u64,
    links: Links,
    queue: BlockQueue,
    written: u64,
}

impl Lru {
    /// Creates a cache of `capacity` bytes.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self { capacity, links: Links::default(), queue: BlockQueue::default(), written: 0 }
    }

    /// Changes the capacity; excess blocks are evicted when the next block is admitted.
    pub fn set_capacity(&mut self, bytes: u64) {
        self.capacity = bytes;
    }
}

impl ReferenceCache for Lru {
    fn access(&mut self, block: u32, bytes: u32, op: Op) -> bool {
        let bytes = weight(bytes);
        let held = self.links.bytes(block);
        if held != 0 {
            self.links.remove(&mut self.queue, block);
            if held == bytes {
                self.links.push(&mut self.queue, block, bytes);
                return true;
            }
        }
        if u64::from(bytes) > self.capacity {
            return false;
        }
        while self.queue.bytes() + u64::from(bytes) > self.capacity {
            let oldest = self.queue.oldest();
            self.links.remove(&mut self.queue, oldest);
        }
        self.links.grow_to(block);
        self.links.push(&mut self.queue, block, bytes);
        self.written += if op == Op::Read { u64::from(bytes) } else { 0 };
        false
    }

    fn invalidate(&mut self, block: u32) {
        if self.links.bytes(block) != 0 {
            self.links.remove(&mut self.queue, block);
        }
    }

    fn bytes_written(&self) -> u64 {
        self.written
    }
}
