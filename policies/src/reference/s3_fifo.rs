//! S3-FIFO: a small probationary queue for new blocks, a main queue, and a ghost queue of evicted block
//! numbers.
//!
//! Yang et al., "FIFO Queues are All You Need for Cache Eviction" (SOSP 2023): the small queue has a tenth
//! of the bytes. Blocks that leave it with more than one hit move to the main queue; the others leave the
//! cache, and their numbers enter a ghost queue that covers as many bytes as the main queue. A block that
//! is requested again while it is in the ghost queue goes directly to the main queue. The main queue keeps
//! each block for one more round per hit, at most three.

use super::links::{BlockQueue, Links, NONE};
use super::{ReferenceCache, weight};
use crate::access::Op;

/// Maximum hit count, which fits into two bits.
const HITS_MAX: u8 = 3;
/// Number of hits in the small queue above which a block moves to the main queue.
const HITS_TO_STAY: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FifoQueueKind {
    Absent,
    Small,
    Main,
    Ghost,
}

#[derive(Clone, Copy, Debug)]
struct FifoBlockState {
    queue: FifoQueueKind,
    hits: u8,
}

/// A cache of three queues.
#[derive(Debug)]
pub struct S3Fifo {
    capacity: u64,
    small_bytes_max: u64,
    links: Links,
    states: Vec<FifoBlockState>,
    small: BlockQueue,
    main: BlockQueue,
    ghost: BlockQueue,
    written: u64,
}

impl S3Fifo {
    /// Creates a cache of `capacity` bytes.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self {
            capacity,
            small_bytes_max: (capacity / 10).max(1),
            links: Links::default(),
            states: Vec::new(),
            small: BlockQueue::default(),
            main: BlockQueue::default(),
            ghost: BlockQueue::default(),
            written: 0,
        }
    }

    /// Changes the capacity; excess blocks are evicted when the next block is admitted.
    pub fn set_capacity(&mut self, bytes: u64) {
        self.capacity = bytes;
        self.small_bytes_max = (bytes / 10).max(1);
    }

    fn main_bytes_max(&self) -> u64 {
        self.capacity.saturating_sub(self.small_bytes_max)
    }

    fn queue_of(&self, block: u32) -> FifoQueueKind {
        self.states.get(block as usize).map_or(FifoQueueKind::Absent, |state| state.queue)
    }

    fn insert(&mut self, place: FifoQueueKind, block: u32, bytes: u32) {
        self.states[block as usize] = FifoBlockState { queue: place, hits: 0 };
        let queue = match place {
            FifoQueueKind::Small => &mut self.small,
            FifoQueueKind::Main => &mut self.main,
            FifoQueueKind::Ghost => &mut self.ghost,
            FifoQueueKind::Absent => return,
        };
        self.links.push(queue, block, bytes);
    }

    fn remove(&mut self, block: u32) -> u32 {
        let queue = match std::mem::replace(&mut self.states[block as usize].queue, FifoQueueKind::Absent) {
            FifoQueueKind::Small => &mut self.small,
            FifoQueueKind::Main => &mut self.main,
            FifoQueueKind::Ghost => &mut self.ghost,
            FifoQueueKind::Absent => return 0,
        };
        self.links.remove(queue, block)
    }

    fn make_room(&mut self, bytes: u32) {
        while self.small.bytes() + self.main.bytes() + u64::from(bytes) > self.capacity {
            let small_is_full = self.small.bytes() >= self.small_bytes_max || self.main.oldest() == NONE;
            if small_is_full && self.small.oldest() != NONE {
                self.evict_small();
            } else {
                self.evict_main();
            }
        }
    }

    fn evict_small(&mut self) {
        let block = self.small.oldest();
        let hits = self.states[block as usize].hits;
        let bytes = self.remove(block);
        if hits > HITS_TO_STAY {
            self.insert(FifoQueueKind::Main, block, bytes);
            self.trim_main();
            return;
        }
        self.insert(FifoQueueKind::Ghost, block, bytes);
        while self.ghost.bytes() > self.main_bytes_max() {
            self.remove(self.ghost.oldest());
        }
    }

    fn trim_main(&mut self) {
        while self.main.bytes() > self.main_bytes_max() {
            self.evict_main();
        }
    }

    /// Evicts one block: the oldest that has no rounds left.
    fn evict_main(&mut self) {
        loop {
            let block = self.main.oldest();
            if block == NONE {
                return;
            }
            let hits = self.states[block as usize].hits;
            let bytes = self.remove(block);
            if hits == 0 {
                return;
            }
            self.insert(FifoQueueKind::Main, block, bytes);
            self.states[block as usize].hits = hits - 1;
        }
    }
}

impl ReferenceCache for S3Fifo {
    fn access(&mut self, block: u32, bytes: u32, op: Op) -> bool {
        let bytes = weight(bytes);
        if matches!(self.queue_of(block), FifoQueueKind::Small | FifoQueueKind::Main) {
            if self.links.bytes(block) == bytes {
                let state = &mut self.states[block as usize];
                state.hits = (state.hits + 1).min(HITS_MAX);
                return true;
            }
            self.remove(block);
        }
        if u64::from(bytes) > self.capacity {
            return false;
        }
        self.make_room(bytes);
        self.links.grow_to(block);
        if block as usize >= self.states.len() {
            self.states.resize(block as usize + 1, FifoBlockState { queue: FifoQueueKind::Absent, hits: 0 });
        }
        if self.queue_of(block) == FifoQueueKind::Ghost {
            self.remove(block);
            self.insert(FifoQueueKind::Main, block, bytes);
            self.trim_main();
        } else {
            self.insert(FifoQueueKind::Small, block, bytes);
        }
        self.written += if op == Op::Read { u64::from(bytes) } else { 0 };
        false
    }

    fn invalidate(&mut self, block: u32) {
        if self.queue_of(block) != FifoQueueKind::Absent {
            self.remove(block);
        }
    }

    fn bytes_written(&self) -> u64 {
        self.written
    }
}
