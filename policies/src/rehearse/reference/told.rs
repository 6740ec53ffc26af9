//! A cache that is told the class of every block: what classes are worth, apart from finding them out.
//!
//! It knows nothing of the future. Scans are not admitted; of checkpoints only the newest is kept; what is
//! read again and again (a validation set, a model) stays; what trainers in lock-step share leaves after the
//! last of them; training sets fill what is left and are never evicted for their own sake. A training set
//! gives way to any of the others, newest first, and one that is no longer read gives way to its successor.
//! It is the measure for an engine that infers the classes.

use super::weight;

/// What a block is, as the cache is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Read once by a pass over everything.
    Scan,
    /// Part of a checkpoint.
    Checkpoint {
        /// Which one of them.
        generation: u32,
    },
    /// Part of a training set that is read in epochs.
    Train {
        /// Which one of them.
        dataset: u16,
    },
    /// Read by so many trainers one soon after the other.
    Shared {
        /// How many.
        readers: u8,
    },
    /// Read again and again.
    Kept,
}

/// Reads of another training set after which the one before it counts as finished.
const READS_TO_SWITCH: u32 = 200;

#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// 0 for a block that is not held.
    bytes: u32,
    /// Trainers that have read it.
    readers: u8,
}

/// A cache that knows classes.
#[derive(Debug)]
pub struct Told {
    capacity: u64,
    used: u64,
    held: Vec<Held>,
    /// The checkpoint that is kept, and its blocks.
    generation: Option<u32>,
    checkpoint: Vec<u32>,
    /// The training set that is read, and reads of another one since.
    dataset: Option<u16>,
    strangers: u32,
    /// Blocks of training sets, those of the one that is read and those of the ones before, in the order of
    /// admission.
    training: Vec<u32>,
    retired: Vec<u32>,
}

impl Told {
    /// A cache of `capacity` bytes.
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

    /// Takes an access, read or write, to a block of this class that weighs `bytes`, and says whether the
    /// cache held it. A block keeps its weight and its class.
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

    /// Lets training sets give way, those that are finished first.
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
