//! Direct I/O for appends and copies: whole blocks from a buffer of our own, past the page cache.
//!
//! A body with a segment of its own is large, and its bytes are rarely read while they would still be cached.
//! The page cache finds, charges and writes back each page, which costs ten times the CPU time of handing the
//! bytes to the device (1 GiB with syncs: 1.6 s and 0.16 s), and evicts data that is read often. So the
//! batches of such a body are gathered into blocks here and written directly. So are copies of segments.
//!
//! Invariant: every write begins and ends at a multiple of [`BLOCK`], in the file and in memory. The last
//! block of a batch is padded with zeros; the next batch writes it again, with the same bytes where records
//! were. So a write cut short by power loss leaves those bytes as they were, provided that the device writes
//! a block atomically, on which the page cache relies as well.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use mlgw_common::limits::DIRECT_BUFFER_BYTES;
use mlgw_common::regular;
use rustix::fs::OFlags;

/// Alignment of direct writes required by devices and file systems.
pub(super) const BLOCK: usize = 4096;

const _: () = assert!(DIRECT_BUFFER_BYTES.is_multiple_of(BLOCK), "a full buffer is whole blocks");

/// The file of one segment, and the unwritten or partly filled blocks at its end.
pub(super) struct DirectFile {
    file: File,
    blocks: DirectBlocks,
}

impl DirectFile {
    /// Opens the segment file at `path` for direct writes after `begins_with`, which is its whole content.
    /// `None` if its file system does not support them.
    pub(super) fn open(path: &Path, begins_with: &[u8]) -> Option<Self> {
        Some(Self { file: open_direct(path)?, blocks: DirectBlocks::new(begins_with) })
    }

    /// Offset in the file at which the next piece is written.
    pub(super) fn end(&self) -> u64 {
        self.blocks.end()
    }

    /// Frees the buffer until the next append.
    pub(super) fn release_buffer(&mut self) {
        self.blocks.release();
    }

    /// Appends `pieces` after all earlier ones. `write` is called with the file, whole blocks, and their
    /// offset in the file.
    pub(super) fn append<'a>(
        &mut self,
        pieces: impl Iterator<Item = &'a [u8]>,
        mut write: impl FnMut(&File, &[u8], u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let file = &self.file;
        self.blocks.append(pieces, |blocks, at| write(file, blocks, at))
    }
}

/// Opens an existing file for direct writes. `None` if its file system does not support them.
pub(super) fn open_direct(path: &Path) -> Option<File> {
    regular::open_with_flags(OpenOptions::new().write(true), OFlags::DIRECT, path).ok()
}

/// Memory for `bytes` that begin at an aligned address, and the index of that address, up to which it is
/// filled. The bytes are not zeroed: each is written once.
fn aligned_memory(bytes: usize) -> (Vec<u8>, usize) {
    let mut memory: Vec<u8> = Vec::with_capacity(bytes + BLOCK);
    let aligned = memory.as_ptr().align_offset(BLOCK);
    memory.resize(aligned, 0);
    (memory, aligned)
}

/// A copy of whole blocks, where direct writes accept them.
pub(super) struct AlignedBlocks {
    /// Longer than the blocks, so that it contains an aligned part of their length.
    memory: Vec<u8>,
    aligned: usize,
}

impl AlignedBlocks {
    pub(super) fn copy_of(blocks: &[u8]) -> Self {
        assert!(blocks.len().is_multiple_of(BLOCK), "direct writes are whole blocks");
        let (mut memory, aligned) = aligned_memory(blocks.len());
        memory.extend_from_slice(blocks);
        Self { memory, aligned }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[self.aligned..]
    }
}

/// Bytes of a file, gathered into whole blocks.
struct DirectBlocks {
    /// The buffer, longer than needed by a block so that it contains an aligned part of the needed length.
    /// Its length is that of what is filled. Without capacity until the first append, and after a release.
    memory: Vec<u8>,
    /// Index at which the aligned part begins.
    aligned: usize,
    /// Offset of the aligned part in the file.
    at: u64,
    /// Content of the file from the offset `at`, while there is no buffer: less than a block.
    rest: Vec<u8>,
}

impl DirectBlocks {
    fn new(begins_with: &[u8]) -> Self {
        assert!(begins_with.len() < BLOCK, "a segment begins with less than a block");
        Self { memory: Vec::new(), aligned: 0, at: 0, rest: begins_with.to_vec() }
    }

    fn end(&self) -> u64 {
        let filled = if self.has_buffer() { self.filled() } else { self.rest.len() };
        self.at + filled as u64
    }

    fn has_buffer(&self) -> bool {
        self.memory.capacity() > 0
    }

    /// Filled bytes of the aligned part.
    fn filled(&self) -> usize {
        self.memory.len() - self.aligned
    }

    fn append<'a>(
        &mut self,
        pieces: impl Iterator<Item = &'a [u8]>,
        mut write: impl FnMut(&[u8], u64) -> io::Result<()>,
    ) -> io::Result<()> {
        self.allocate();
        for mut piece in pieces {
            while !piece.is_empty() {
                let (now, later) = piece.split_at(piece.len().min(DIRECT_BUFFER_BYTES - self.filled()));
                self.memory.extend_from_slice(now);
                piece = later;
                if self.filled() == DIRECT_BUFFER_BYTES {
                    write(&self.memory[self.aligned..], self.at)?;
                    self.at += DIRECT_BUFFER_BYTES as u64;
                    self.memory.truncate(self.aligned);
                }
            }
        }
        self.write_rest(write)
    }

    /// Writes the remaining bytes, padded with zeros, and keeps the last block if it is not full.
    fn write_rest(&mut self, mut write: impl FnMut(&[u8], u64) -> io::Result<()>) -> io::Result<()> {
        let filled = self.filled();
        if filled == 0 {
            return Ok(());
        }
        self.memory.resize(self.aligned + filled.next_multiple_of(BLOCK), 0);
        write(&self.memory[self.aligned..], self.at)?;
        let whole = filled - filled % BLOCK;
        self.memory.copy_within(self.aligned + whole..self.aligned + filled, self.aligned);
        self.memory.truncate(self.aligned + filled - whole);
        self.at += whole as u64;
        Ok(())
    }

    fn allocate(&mut self) {
        if !self.has_buffer() {
            // It never grows.
            (self.memory, self.aligned) = aligned_memory(DIRECT_BUFFER_BYTES);
            self.memory.append(&mut self.rest);
        }
    }

    fn release(&mut self) {
        if self.has_buffer() {
            self.rest = self.memory[self.aligned..].to_vec();
            (self.memory, self.aligned) = (Vec::new(), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::prop;
    use proptest::{prop_assert, prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn aligned_blocks_reproduce_the_appended_file(
            begins_with in prop::collection::vec(1u8.., 0..BLOCK),
            // Batches of pieces, some longer than the whole buffer.
            batches in prop::collection::vec(prop::collection::vec(0usize..3 << 20, 0..4), 0..6),
            is_released in proptest::bool::ANY,
        ) {
            let mut blocks = DirectBlocks::new(&begins_with);
            let (mut file, mut expected, mut value) = (Vec::new(), begins_with.clone(), 0u8);
            for batch in batches {
                let pieces: Vec<Vec<u8>> = batch.iter().map(|length| {
                    value = value % 250 + 1;
                    vec![value; *length]
                }).collect();
                let synced = expected.len();
                expected.extend(pieces.concat());
                let mut aligned = true;
                blocks.append(pieces.iter().map(Vec::as_slice), |stretch, at| {
                    aligned &= stretch.len().is_multiple_of(BLOCK) && at.is_multiple_of(BLOCK as u64);
                    aligned &= stretch.as_ptr().align_offset(BLOCK) == 0;
                    let at = at as usize;
                    // Bytes written before are rewritten unchanged.
                    let again = synced.min(at + stretch.len()).saturating_sub(at);
                    aligned &= stretch[..again] == expected[at..at + again];
                    file.resize(file.len().max(at + stretch.len()), 0);
                    file[at..at + stretch.len()].copy_from_slice(stretch);
                    Ok(())
                }).unwrap();
                prop_assert!(aligned);
                if is_released {
                    blocks.release();
                    prop_assert!(!blocks.has_buffer() && blocks.rest.len() < BLOCK);
                }
                prop_assert!(blocks.end() == expected.len() as u64);
            }
            if !file.is_empty() {
                prop_assert!(file.len() < expected.len() + BLOCK);
                prop_assert_eq!(&file[..expected.len()], &expected[..]);
                prop_assert!(file[expected.len()..].iter().all(|byte| *byte == 0));
            }
        }
    }

    #[test]
    fn a_copy_of_blocks_is_aligned() {
        for blocks in 0..40 {
            let bytes: Vec<u8> = (0..blocks * BLOCK).map(|at| (at % 251) as u8).collect();
            let copy = AlignedBlocks::copy_of(&bytes);
            assert!(copy.bytes() == bytes && copy.bytes().as_ptr().align_offset(BLOCK) == 0);
        }
    }

    #[test]
    fn an_empty_append_writes_the_initial_bytes_if_any() {
        let writes = |begins_with: &[u8]| {
            let mut writes = Vec::new();
            let mut blocks = DirectBlocks::new(begins_with);
            blocks
                .append(std::iter::empty(), |stretch, at| {
                    writes.push((stretch.len(), at));
                    Ok(())
                })
                .unwrap();
            writes
        };
        assert_eq!(writes(b""), []);
        assert_eq!(writes(b"header"), [(BLOCK, 0)]);
    }
}
