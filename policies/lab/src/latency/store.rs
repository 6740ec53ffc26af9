//! Blocks that are cached or in transit: kept blocks, and blocks that wait in memory until they are read.

use mlgw_policies::engine::Advice;
use std::collections::{HashMap, VecDeque};

/// A block fetched from upstream.
#[derive(Clone, Copy, Debug)]
pub(super) struct FetchedBlock {
    pub(super) ready_us: u64,
    pub(super) bytes: u32,
    pub(super) key: u32,
    /// Stream for which read-ahead fetched the block; `None` once a caller has read it.
    pub(super) stream: Option<u64>,
}

/// Cached and buffered blocks. A block is in at most one of `kept` and `memory`.
#[derive(Debug, Default)]
pub(super) struct SimulatedStore {
    kept: HashMap<u64, FetchedBlock>,
    memory: HashMap<u64, FetchedBlock>,
    /// Block ids in the order in which they entered memory; some have left it since.
    order: VecDeque<u64>,
    memory_bytes: u64,
}

impl SimulatedStore {
    pub(super) fn has(&self, id: u64) -> bool {
        self.kept.contains_key(&id) || self.memory.contains_key(&id)
    }

    /// Reads a block, which is kept from then on unless the advice is to bypass it. Returns its previous
    /// state.
    pub(super) fn read(&mut self, id: u64, advice: Advice) -> Option<FetchedBlock> {
        let known = self.kept.get_mut(&id).or_else(|| self.memory.get_mut(&id))?;
        let before = *known;
        known.stream = None;
        if advice != Advice::Bypass
            && let Some(fetched) = self.memory.remove(&id)
        {
            self.memory_bytes -= u64::from(fetched.bytes);
            self.kept.insert(id, fetched);
        }
        Some(before)
    }

    pub(super) fn keep(&mut self, id: u64, fetched: FetchedBlock) {
        self.kept.insert(id, fetched);
    }

    /// Adds a block that stays in memory until it is read.
    pub(super) fn buffer(&mut self, id: u64, fetched: FetchedBlock) {
        if self.memory.insert(id, fetched).is_none() {
            self.memory_bytes += u64::from(fetched.bytes);
            self.order.push_back(id);
        }
    }

    pub(super) fn evict(&mut self, id: u64) -> Option<FetchedBlock> {
        self.kept.remove(&id)
    }

    /// Removes and returns the block that has been in memory longest, if memory exceeds its bound.
    pub(super) fn trim(&mut self, bytes_max: u64) -> Option<FetchedBlock> {
        while self.memory_bytes > bytes_max {
            if let Some(fetched) = self.memory.remove(&self.order.pop_front()?) {
                self.memory_bytes -= u64::from(fetched.bytes);
                return Some(fetched);
            }
        }
        None
    }

    /// Bytes of blocks that no caller has read.
    pub(super) fn unread_bytes(&self) -> u64 {
        let unread = self.kept.values().chain(self.memory.values()).filter(|one| one.stream.is_some());
        unread.map(|one| u64::from(one.bytes)).sum()
    }
}
