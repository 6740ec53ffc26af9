//! Never-evict: keeps the blocks that were admitted first.
//!
//! For one job that reads everything once per epoch, this policy is optimal: its hit ratio is the cache's
//! share of the dataset. Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training" (VLDB 2021),
//! call it MinIO.

use super::{ReferenceCache, weight};
use crate::access::Op;

/// A cache that admits blocks while there is room and never evicts.
#[derive(Debug)]
pub struct NeverEvict {
    capacity: u64,
    used: u64,
    /// Weight of each cached block, 0 for other blocks.
    held: Vec<u32>,
    written: u64,
}

impl NeverEvict {
    /// Creates a cache of `capacity` bytes.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self { capacity, used: 0, held: Vec::new(), written: 0 }
    }

    /// Changes the capacity; excess blocks stay, and no blocks are admitted until there is room.
    pub fn set_capacity(&mut self, bytes: u64) {
        self.capacity = bytes;
    }
}

impl ReferenceCache for NeverEvict {
    fn access(&mut self, block: u32, bytes: u32, op: Op) -> bool {
        let bytes = weight(bytes);
        match self.held.get(block as usize) {
            Some(held) if *held == bytes => return true,
            Some(_) => self.invalidate(block),
            None => self.held.resize(block as usize + 1, 0),
        }
        if self.used + u64::from(bytes) <= self.capacity {
            self.used += u64::from(bytes);
            self.held[block as usize] = bytes;
            self.written += if op == Op::Read { u64::from(bytes) } else { 0 };
        }
        false
    }

    fn invalidate(&mut self, block: u32) {
        if let Some(held) = self.held.get_mut(block as usize) {
            self.used -= u64::from(std::mem::take(held));
        }
    }

    fn bytes_written(&self) -> u64 {
        self.written
    }
}
