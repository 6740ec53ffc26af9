//! From objects and ranges to the blocks that the reference caches are told of.
//!
//! A cache keeps blocks of one length; the last one of an object is as long as what is left. Blocks are
//! numbered densely in the order in which their objects are first seen, so that a cache can keep what it
//! knows of them in a `Vec`. An object that comes with another size is another version and gets other
//! numbers; the old ones are not used again.

use std::hint::black_box;
use std::ops::Range;

/// Numbers blocks.
#[derive(Debug)]
pub struct Blocks {
    block_bytes: u32,
    /// By number of the object.
    objects: Vec<Object>,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Object {
    size: u64,
    first: u32,
}

/// No object has this first block: not seen yet.
const UNSEEN: Object = Object { size: 0, first: u32::MAX };

impl Blocks {
    /// Blocks of `block_bytes` each.
    ///
    /// # Panics
    /// When that is 0.
    #[must_use]
    pub fn new(block_bytes: u32) -> Self {
        assert!(block_bytes > 0, "a block has bytes");
        Self { block_bytes, objects: Vec::new(), next: 0 }
    }

    /// How many numbers are given out.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.next
    }

    /// The blocks of `object`, which is `size` bytes long, that hold bytes of `range`, and the bytes in each
    /// of them. One block of no bytes stands for an empty object.
    ///
    /// # Panics
    /// When more than 2³² blocks are asked for in all: a rehearsal of so many does not fit into memory.
    pub fn of(
        &mut self,
        object: u32,
        size: u64,
        range: &Range<u64>,
    ) -> impl Iterator<Item = (u32, u32)> + use<> {
        let first = self.first_of(object, size);
        touched(size, range, self.block_bytes).map(move |(number, bytes)| (first + number, bytes))
    }

    /// Looks an object up, and nothing else.
    pub fn bring_near(&self, object: u32) {
        black_box(self.objects.get(object as usize).map(|known| known.first));
    }

    /// All blocks that `object` has had numbers for since it last changed its size, in order to forget them.
    #[must_use]
    pub fn known(&self, object: u32) -> Range<u32> {
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

/// The blocks of an object of `size` bytes that hold bytes of `range`, counted from its begin, and the bytes
/// in each of them. One block of no bytes stands for an empty object.
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

    fn of(blocks: &mut Blocks, object: u32, size: u64, range: std::ops::Range<u64>) -> Vec<(u32, u32)> {
        blocks.of(object, size, &range).collect()
    }

    #[test]
    fn a_range_takes_the_blocks_that_it_touches() {
        let mut blocks = Blocks::new(10);
        assert_eq!(of(&mut blocks, 0, 25, 0..25), [(0, 10), (1, 10), (2, 5)]);
        assert_eq!(of(&mut blocks, 0, 25, 9..11), [(0, 10), (1, 10)]);
        assert_eq!(of(&mut blocks, 0, 25, 10..20), [(1, 10)]);
        assert_eq!(of(&mut blocks, 0, 25, 20..99), [(2, 5)]);
        assert_eq!(of(&mut blocks, 3, 10, 0..10), [(3, 10)], "the next object follows densely");
        assert_eq!(of(&mut blocks, 2, 0, 0..0), [(4, 0)]);
        assert_eq!(blocks.count(), 5);
    }

    #[test]
    fn another_size_is_another_version() {
        let mut blocks = Blocks::new(10);
        of(&mut blocks, 0, 20, 0..20);
        assert_eq!(blocks.known(0), 0..2);
        assert_eq!(of(&mut blocks, 0, 21, 0..5), [(2, 10)]);
        assert_eq!(blocks.known(0), 2..5);
        assert!(blocks.known(7).is_empty());
    }
}
