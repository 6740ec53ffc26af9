//! Index of a plan's keys by the ids of their objects: eight bytes per key and a cell in the index.

use crate::block::block_id;
use crate::plan::{Plan, PlanKeys};
use std::sync::Arc;

/// Maximum load of the index: 3 of 4 cells.
const INDEX_LOAD: (usize, usize) = (4, 3);

/// Keys that plans name.
#[derive(Default)]
pub(super) struct PlanKeyIndex {
    pub(super) bucket: u64,
    pub(super) keys: Arc<PlanKeys>,
    ids: Vec<u64>,
    /// Key numbers plus one, with linear probing.
    index: Vec<u32>,
}

impl PlanKeyIndex {
    pub(super) fn new(seed: u64, bucket: u64, keys: Arc<PlanKeys>) -> Self {
        let ids: Vec<u64> = keys.iter().map(|key| block_id(seed, bucket, key, 0)).collect();
        let mut index = vec![0; (ids.len() * INDEX_LOAD.0).div_ceil(INDEX_LOAD.1) + 1];
        for (number, id) in ids.iter().enumerate() {
            let mut at = home(*id, index.len());
            while index[at] != 0 {
                at = (at + 1) % index.len();
            }
            index[at] = number as u32 + 1;
        }
        Self { bucket, keys, ids, index }
    }

    /// True if these are its keys.
    pub(super) fn has_keys(&self, bucket: u64, keys: &PlanKeys) -> bool {
        self.bucket == bucket && !keys.is_empty() && *self.keys == *keys
    }

    /// Returns the plan with key numbers of this list; `None` unless the list contains all its keys.
    pub(super) fn with_shared_keys(&self, seed: u64, bucket: u64, plan: &Plan) -> Option<Plan> {
        if self.bucket != bucket || self.keys.is_empty() {
            return None;
        }
        let numbers = plan.keys().iter().map(|key| self.find(block_id(seed, bucket, key, 0)));
        let numbers: Vec<u32> = numbers.collect::<Option<_>>()?;
        Some(plan.with_keys(&self.keys, &numbers))
    }

    /// Returns the number of the key whose first block has this id.
    pub(super) fn find(&self, id: u64) -> Option<u32> {
        let mut at = home(id, self.index.len());
        loop {
            let number = self.index.get(at)?.checked_sub(1)?;
            if self.ids[number as usize] == id {
                return Some(number);
            }
            at = (at + 1) % self.index.len();
        }
    }
}

fn home(id: u64, places: usize) -> usize {
    ((u128::from(id) * places as u128) >> 64) as usize
}
