//! A cache that receives the class of every block: a measure of the value of classes, apart from the task
//! of inferring them.
//!
//! The cache has no knowledge of the future. Scans are not admitted. Only the newest checkpoint is kept.
//! Data that is read repeatedly (a validation set, a model) stays. Data that trainers share in lock-step is
//! dropped after its last reader. Training sets fill the remaining space and are never evicted in favour of
//! their own blocks. A training set gives way to any other class, newest block first, and one that is no
//! longer read gives way to its successor. The result is the reference for an engine that infers the
//! classes.

use super::weight;

/// Class of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
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
struct Held {
    /// Weight; 0 for a block that is not cached.
    bytes: u32,
    /// Number of trainers that have read the block.
    readers: u8,
}

/// A cache that receives classes.
#[derive(Debug)]
pub struct Told {
    capacity: u64,
    used: u64,
    held: Vec<Held>,
    /// Current checkpoint; the next field lists its cached blocks.
    generation: Option<u32>,
    checkpoint: Vec<u32>,
    /// Current training set; the next field counts reads of other training sets since it became current.
    dataset: Option<u16>,
    strangers: u32,
    /// Cached blocks of the current training set, in order of admission; the next field has those of
    /// earlier training sets.
    training: Vec<u32>,
    retired: Vec<u32>,
}

impl Told {
    /// Creates a cache of `capacity` bytes.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self {
            capacity,
            used: 0,
            held: Vec::new(),
            generation: None,
            checkpoint: Vec::new(),
            dataset: None,
            strangers: 0,
            training: Vec::new(),
            retired: Vec::new(),
        }
    }

    /// Processes an access, read or write, to a block of this class with a weight of `bytes`, and returns
    /// true if it was a hit. The weight and the class of a block must not change.
    pub fn access(&mut self, block: u32, bytes: u32, class: Class) -> bool {
        if block as usize >= self.held.len() {
            self.held.resize(block as usize + 1, Held::default());
        }
        let bytes = weight(bytes);
        let hit = self.held[block as usize].bytes != 0;
        match class {
            Class::Scan => {}
            Class::Shared { readers } if hit => self.pass_on(block, readers),
            Class::Train { dataset } => {
                self.notice(dataset);
                if !hit && self.room_for_training(bytes) {
                    self.hold(block, bytes);
                    self.training.push(block);
                }
            }
            _ if hit => {}
            Class::Checkpoint { generation } => self.checkpoint(block, bytes, generation),
            Class::Shared { .. } | Class::Kept => {
                if self.room(bytes) {
                    self.hold(block, bytes);
                }
            }
        }
        hit
    }

    fn free(&self) -> u64 {
        self.capacity - self.used
    }

    fn hold(&mut self, block: u32, bytes: u32) {
        self.used += u64::from(bytes);
        self.held[block as usize] = Held { bytes, readers: 1 };
    }

    fn drop(&mut self, block: u32) {
        self.used -= u64::from(std::mem::take(&mut self.held[block as usize]).bytes);
    }

    /// Makes room by evicting blocks of training sets, those of finished sets first. Returns false if that
    /// is not enough.
    fn room(&mut self, bytes: u32) -> bool {
        while self.free() < u64::from(bytes) {
            match self.retired.pop().or_else(|| self.training.pop()) {
                Some(block) => self.drop(block),
                None => return false,
            }
        }
        true
    }

    fn room_for_training(&mut self, bytes: u32) -> bool {
        while self.free() < u64::from(bytes) {
            match self.retired.pop() {
                Some(block) => self.drop(block),
                None => return false,
            }
        }
        true
    }

    fn pass_on(&mut self, block: u32, readers_max: u8) {
        let readers = &mut self.held[block as usize].readers;
        *readers += 1;
        if *readers >= readers_max {
            self.drop(block);
        }
    }

    fn checkpoint(&mut self, block: u32, bytes: u32, generation: u32) {
        if self.generation != Some(generation) {
            self.generation = Some(generation);
            for block in std::mem::take(&mut self.checkpoint) {
                self.drop(block);
            }
        }
        if self.room(bytes) {
            self.hold(block, bytes);
            self.checkpoint.push(block);
        }
    }

    fn notice(&mut self, dataset: u16) {
        if *self.dataset.get_or_insert(dataset) == dataset {
            return;
        }
        self.strangers += 1;
        if self.strangers > READS_TO_SWITCH {
            self.retired.append(&mut self.training);
            self.dataset = Some(dataset);
            self.strangers = 0;
        }
    }
}
