//! Never-evict: what came first stays.
//!
//! For one job that reads everything once per epoch this is the optimum: its hit ratio is the cache's share
//! of the dataset. Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training" (VLDB 2021), call it
//! MinIO.

use super::{Reference, weight};

/// A cache that admits while there is room, and keeps it all.
#[derive(Debug)]
pub struct NeverEvict {
    capacity: u64,
    used: u64,
    /// Weight of each block that is held, 0 for others.
    held: Vec<u32>,
    written: u64,
}

impl NeverEvict {
    /// A cache of `capacity` bytes.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self { capacity, used: 0, held: Vec::new(), written: 0 }
    }

    /// From now on it may hold so many bytes; what is too much stays, and nothing comes to it.
    pub fn set_capacity(&mut self, bytes: u64) {
        self.capacity = bytes;
    }
}

impl Reference for NeverEvict {
    fn access(&mut self, block: u32, bytes: u32, is_read: bool) -> bool {
        let bytes = weight(bytes);
        match self.held.get(block as usize) {
            Some(held) if *held == bytes => return true,
            Some(_) => self.forget(block),
            None => self.held.resize(block as usize + 1, 0),
        }
        if self.used + u64::from(bytes) <= self.capacity {
            self.used += u64::from(bytes);
            self.held[block as usize] = bytes;
            self.written += if is_read { u64::from(bytes) } else { 0 };
        }
        false
    }

    fn forget(&mut self, block: u32) {
        if let Some(held) = self.held.get_mut(block as usize) {
            self.used -= u64::from(std::mem::take(held));
        }
    }

    fn bytes_written(&self) -> u64 {
        self.written
    }
}
