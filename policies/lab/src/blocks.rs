//! Maps objects and byte ranges to the blocks that the reference caches receive.
//!
//! A cache holds blocks of one length; the last block of an object has the remaining length. Blocks are
//! numbered densely in the order in which their objects first occur, so that a cache can keep its per-block
//! state in a `Vec`. An object that occurs with a different size is a new version and gets new numbers; the
//! old numbers are not reused.

use std::hint::black_box;
use std::ops::Range;

/// Assigns block numbers.
#[derive(Debug)]
pub struct Blocks {
    block_bytes: u32,
    /// Objects, indexed by object number.
    objects: Vec<Object>,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Object {
    size: u64,
    first: u32,
}

/// Marks an object that has not been seen yet: no object has this first block.
const UNSEEN: Object = Object { size: 0, first: u32::MAX };

impl Blocks {
    /// Creates a numbering with blocks of `block_bytes` each.
    ///
    /// # Panics
    /// If `block_bytes` is 0.
    #[must_use]
    pub fn new(block_bytes: u32) -> Self {
        assert!(block_bytes > 0, "block size must be positive");
        Self { block_bytes, objects: Vec::new(), next: 0 }
    }

    /// Number of block numbers assigned so far.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.next
    }

    /// Returns the blocks of `object`, which is `size` bytes long, that hold bytes of `range`, with the
    /// length of each block in bytes. An empty object has one block of 0 bytes.
    ///
    /// # Panics
    /// If there are more than 2³² blocks in total; such a simulation does not fit into memory.
    pub fn blocks_of(
        &mut self,
        object: u32,
        size: u64,
        range: &Range<u64>,
    ) -> impl Iterator<Item = (u32, u32)> + use<> {
        let first = self.first_of(object, size);
        touched(size, range, self.block_bytes).map(move |(number, bytes)| (first + number, bytes))
    }

    /// Looks an object up without any other effect, to bring its entry into the CPU cache.
    pub fn prefetch_memory(&self, object: u32) {
        black_box(self.objects.get(object as usize).map(|known| known.first));
    }

    /// All block numbers that `object` has had since its size last changed, for use when it is invalidated.
    #[must_use]
    pub fn known_blocks(&self, object: u32) -> Range<u32> {
        match self.objects.get(object as usize) {
            Some(known) if known.first != UNSEEN.first => {
                known.first..known.first + self.count_of(known.size)
            }
            _ => 0..0,
        }
    }

    fn first_of(&mut self, object: u32, size: u64) -> u32 {
        let index = object as usize;
        if index >= self.objects.len() {
            self.objects.resize(index + 1, UNSEEN);
        }
        let known = self.objects[index];
        if known.first != UNSEEN.first && known.size == size {
            return known.first;
        }
        let first = self.next;
        let count = self.count_of(size);
        self.next = first.checked_add(count).filter(|next| *next < u32::MAX).expect("fewer than 2^32 blocks");
        self.objects[index] = Object { size, first };
        first
    }

    fn count_of(&self, size: u64) -> u32 {
        let count = size.div_ceil(u64::from(self.block_bytes)).max(1);
        u32::try_from(count).expect("fewer than 2^32 blocks")
    }
}

/// Blocks of an object of `size` bytes that hold bytes of `range`, numbered from the start of the object,
/// with the length of each block in bytes. An empty object has one block of 0 bytes.
pub fn touched(size: u64, range: &Range<u64>, block_bytes: u32) -> impl Iterator<Item = (u32, u32)> + use<> {
    let block_bytes = u64::from(block_bytes);
    let end = range.end.min(size);
    let begin = range.start.min(end);
    let blocks = begin / block_bytes..end.div_ceil(block_bytes).max(begin / block_bytes + 1);
    blocks.map(move |number| {
        let bytes = size.saturating_sub(number * block_bytes).min(block_bytes);
        (number as u32, bytes as u32)
    })
}

#[cfg(test)]
mod tests {
    use super::Blocks;

    fn blocks_of(
        blocks: &mut Blocks,
        object: u32,
        size: u64,
        range: std::ops::Range<u64>,
    ) -> Vec<(u32, u32)> {
        blocks.blocks_of(object, size, &range).collect()
    }

    #[test]
    fn a_range_takes_the_blocks_that_it_touches() {
        let mut blocks = Blocks::new(10);
        assert_eq!(blocks_of(&mut blocks, 0, 25, 0..25), [(0, 10), (1, 10), (2, 5)]);
        assert_eq!(blocks_of(&mut blocks, 0, 25, 9..11), [(0, 10), (1, 10)]);
        assert_eq!(blocks_of(&mut blocks, 0, 25, 10..20), [(1, 10)]);
        assert_eq!(blocks_of(&mut blocks, 0, 25, 20..99), [(2, 5)]);
        assert_eq!(blocks_of(&mut blocks, 3, 10, 0..10), [(3, 10)], "the next object follows densely");
        assert_eq!(blocks_of(&mut blocks, 2, 0, 0..0), [(4, 0)]);
        assert_eq!(blocks.count(), 5);
    }

    #[test]
    fn another_size_is_another_version() {
        let mut blocks = Blocks::new(10);
        blocks_of(&mut blocks, 0, 20, 0..20);
        assert_eq!(blocks.known_blocks(0), 0..2);
        assert_eq!(blocks_of(&mut blocks, 0, 21, 0..5), [(2, 10)]);
        assert_eq!(blocks.known_blocks(0), 2..5);
        assert!(blocks.known_blocks(7).is_empty());
    }
}
