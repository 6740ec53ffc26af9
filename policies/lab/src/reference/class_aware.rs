//! Upper bound for the engine: a cache that receives the class of each block, which measures the value of
//! classes, apart from the task of inferring them.
//!
//! The cache has no knowledge of the future. Scans are not admitted. Only the newest checkpoint is kept.
//! Data that is read repeatedly (a validation set, a model) stays. Data that trainers share in lock-step is
//! dropped after its last reader. Training sets fill the remaining space and are never evicted in favor of
//! their own blocks. A training set gives way to any other class, newest block first, and one that is no
//! longer read gives way to its successor. The result is the reference for an engine that infers the
//! classes.

use mlgw_policies::reference::weight;

/// Class of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockClass {
    /// Read once by a pass over a whole dataset.
    Scan,
    /// Part of a checkpoint.
    Checkpoint {
        /// Number of the checkpoint.
        generation: u32,
    },
    /// Part of a training set that is read in epochs.
    Train {
        /// Number of the training set.
        dataset: u16,
    },
    /// Read by several trainers, one shortly after the other.
    Shared {
        /// Number of trainers.
        readers: u8,
    },
    /// Read repeatedly.
    Kept,
}

/// Number of reads of another training set after which the current one counts as finished.
const READS_TO_SWITCH: u32 = 200;

#[derive(Clone, Copy, Debug, Default)]
struct ClassCacheEntry {
    /// Weight; 0 for a block that is not cached.
    bytes: u32,
    /// Number of trainers that have read the block.
    readers: u8,
}

/// A cache that receives classes.
#[derive(Debug)]
pub struct ClassAwareCache {
    capacity: u64,
    used: u64,
    entries: Vec<ClassCacheEntry>,
    /// Current checkpoint; the next field lists its cached blocks.
    generation: Option<u32>,
    checkpoint: Vec<u32>,
    /// Current training set; the next field counts reads of other training sets since it became current.
    dataset: Option<u16>,
    other_dataset_reads: u32,
    /// Cached blocks of the current training set, in order of admission; the next field has those of
    /// earlier training sets.
    training: Vec<u32>,
    retired: Vec<u32>,
}

impl ClassAwareCache {
    /// Creates a cache of `capacity` bytes.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self {
            capacity,
            used: 0,
            entries: Vec::new(),
            generation: None,
            checkpoint: Vec::new(),
            dataset: None,
            other_dataset_reads: 0,
            training: Vec::new(),
            retired: Vec::new(),
        }
    }

    /// Processes an access, read or write, to a block of this class with a weight of `bytes`, and returns
    /// true if it was a hit. The weight and the class of a block must not change.
    pub fn access(&mut self, block: u32, bytes: u32, class: BlockClass) -> bool {
        if block as usize >= self.entries.len() {
            self.entries.resize(block as usize + 1, ClassCacheEntry::default());
        }
        let bytes = weight(bytes);
        let hit = self.entries[block as usize].bytes != 0;
        match class {
            BlockClass::Scan => {}
            BlockClass::Shared { readers } if hit => self.count_reader(block, readers),
            BlockClass::Train { dataset } => {
                self.track_dataset(dataset);
                if !hit && self.make_room_for_training(bytes) {
                    self.insert(block, bytes);
                    self.training.push(block);
                }
            }
            _ if hit => {}
            BlockClass::Checkpoint { generation } => self.checkpoint(block, bytes, generation),
            BlockClass::Shared { .. } | BlockClass::Kept => {
                if self.make_room(bytes) {
                    self.insert(block, bytes);
                }
            }
        }
        hit
    }

    fn free(&self) -> u64 {
        self.capacity - self.used
    }

    fn insert(&mut self, block: u32, bytes: u32) {
        self.used += u64::from(bytes);
        assert!(self.used <= self.capacity, "room is made before a block is inserted");
        self.entries[block as usize] = ClassCacheEntry { bytes, readers: 1 };
    }

    fn evict(&mut self, block: u32) {
        self.used -= u64::from(std::mem::take(&mut self.entries[block as usize]).bytes);
    }

    /// Makes room by evicting blocks of training sets, those of finished sets first. Returns false if that
    /// is not enough.
    fn make_room(&mut self, bytes: u32) -> bool {
        while self.free() < u64::from(bytes) {
            match self.retired.pop().or_else(|| self.training.pop()) {
                Some(block) => self.evict(block),
                None => return false,
            }
        }
        true
    }

    fn make_room_for_training(&mut self, bytes: u32) -> bool {
        while self.free() < u64::from(bytes) {
            match self.retired.pop() {
                Some(block) => self.evict(block),
                None => return false,
            }
        }
        true
    }

    fn count_reader(&mut self, block: u32, readers_max: u8) {
        let readers = &mut self.entries[block as usize].readers;
        *readers += 1;
        if *readers >= readers_max {
            self.evict(block);
        }
    }

    fn checkpoint(&mut self, block: u32, bytes: u32, generation: u32) {
        if self.generation != Some(generation) {
            self.generation = Some(generation);
            for block in std::mem::take(&mut self.checkpoint) {
                self.evict(block);
            }
        }
        if self.make_room(bytes) {
            self.insert(block, bytes);
            self.checkpoint.push(block);
        }
    }

    fn track_dataset(&mut self, dataset: u16) {
        if *self.dataset.get_or_insert(dataset) == dataset {
            return;
        }
        self.other_dataset_reads += 1;
        if self.other_dataset_reads > READS_TO_SWITCH {
            self.retired.append(&mut self.training);
            self.dataset = Some(dataset);
            self.other_dataset_reads = 0;
        }
    }
}
