//! Queues of blocks that share one array of links. A block is in at most one queue at a time.

/// Marks the absence of a block.
pub const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct QueueLink {
    newer: u32,
    older: u32,
    /// Weight of the block; 0 for a block in no queue.
    bytes: u32,
}

const UNLINKED: QueueLink = QueueLink { newer: NONE, older: NONE, bytes: 0 };

/// Links of all blocks, 12 bytes each.
#[derive(Debug, Default)]
pub struct Links(Vec<QueueLink>);

/// Ends of a queue and the total weight of its blocks.
#[derive(Debug)]
pub struct BlockQueue {
    newest: u32,
    oldest: u32,
    bytes: u64,
}

impl Default for BlockQueue {
    fn default() -> Self {
        Self { newest: NONE, oldest: NONE, bytes: 0 }
    }
}

impl BlockQueue {
    /// Total weight of its blocks.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The block that was added first, or [`NONE`].
    pub fn oldest(&self) -> u32 {
        self.oldest
    }
}

impl Links {
    /// Grows the array to cover `block`.
    pub fn grow_to(&mut self, block: u32) {
        if block as usize >= self.0.len() {
            self.0.resize(block as usize + 1, UNLINKED);
        }
    }

    /// Weight of a block that is in a queue; 0 for other blocks.
    pub fn bytes(&self, block: u32) -> u32 {
        self.0.get(block as usize).map_or(0, |link| link.bytes)
    }

    /// The block that was added after this one, or [`NONE`].
    pub fn newer(&self, block: u32) -> u32 {
        self.0[block as usize].newer
    }

    /// Adds a covered block that is in no queue at the new end.
    pub fn push(&mut self, queue: &mut BlockQueue, block: u32, bytes: u32) {
        assert_eq!(self.bytes(block), 0, "a block is in one queue");
        self.0[block as usize] = QueueLink { newer: NONE, older: queue.newest, bytes };
        match queue.newest {
            NONE => queue.oldest = block,
            newest => self.0[newest as usize].newer = block,
        }
        queue.newest = block;
        queue.bytes += u64::from(bytes);
    }

    /// Removes a block from its queue and returns its weight.
    pub fn remove(&mut self, queue: &mut BlockQueue, block: u32) -> u32 {
        let QueueLink { newer, older, bytes } = std::mem::replace(&mut self.0[block as usize], UNLINKED);
        assert!(bytes > 0, "a block that is removed is in a queue");
        match newer {
            NONE => queue.newest = older,
            newer => self.0[newer as usize].older = older,
        }
        match older {
            NONE => queue.oldest = newer,
            older => self.0[older as usize].newer = newer,
        }
        queue.bytes -= u64::from(bytes);
        bytes
    }

    /// Moves all blocks of `from` after the newest block of `to`.
    pub fn append(&mut self, to: &mut BlockQueue, from: &mut BlockQueue) {
        let from = std::mem::take(from);
        if from.oldest == NONE {
            return;
        }
        match to.newest {
            NONE => to.oldest = from.oldest,
            newest => {
                self.0[newest as usize].newer = from.oldest;
                self.0[from.oldest as usize].older = newest;
            }
        }
        to.newest = from.newest;
        to.bytes += from.bytes;
    }
}
