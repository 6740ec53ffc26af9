//! Appends past the page cache: whole blocks, from memory of our own.
//!
//! A body that has a segment to itself is large, and its bytes are rarely read while they would still
//! be cached. Through the page cache each of its pages is found, charged and written back, which costs
//! ten times the processor time of handing the bytes to the device (1 GiB with syncs: 1.6 s and 0.16 s),
//! and pushes out what is read over and over. So its batches are gathered in blocks here, and written
//! from here.
//!
//! Always: what is written begins and ends at a multiple of [`BLOCK`], in the file and in memory. The
//! last block of a batch is filled up with zeros; the next batch writes it once more, with the same
//! bytes where records were. So a write that is cut short by power loss leaves those bytes as they were,
//! as far as a device changes a block at once, which the page cache relies on as well.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use mlgw_common::limits::DIRECT_BUFFER_BYTES;
use mlgw_common::regular;
use rustix::fs::OFlags;

/// What devices and file systems ask direct writes to be multiples of.
pub(super) const BLOCK: usize = 4096;

/// The file of one segment, and the blocks that its next write begins with.
pub(super) struct Direct {
    file: File,
    blocks: Blocks,
}

impl Direct {
    /// Opens the segment file at `path` for direct writes behind `begins_with`, which is all that is in
    /// it. Nothing when its file system has none.
    pub(super) fn open(path: &Path, begins_with: &[u8]) -> Option<Self> {
        let file = regular::open_with_flags(OpenOptions::new().write(true), OFlags::DIRECT, path).ok()?;
        Some(Self { file, blocks: Blocks::new(begins_with) })
    }

    /// Writes `pieces` behind all that was written before, through `write`, which is given this file,
    /// blocks, and where in the file they belong.
    pub(super) fn append<'a>(
        &mut self,
        pieces: impl Iterator<Item = &'a [u8]>,
        mut write: impl FnMut(&File, &[u8], u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let file = &self.file;
        self.blocks.append(pieces, |blocks, at| write(file, blocks, at))
    }
}

/// Bytes of a file, gathered to whole blocks.
struct Blocks {
    /// Longer than needed by a block, so that an aligned stretch of it is as long as needed. Empty until
    /// the first append.
    memory: Vec<u8>,
    /// Where that stretch begins.
    aligned: usize,
    /// Where in the file it belongs.
    at: u64,
    /// How much of it is filled.
    filled: usize,
    /// What the file began with before the first append.
    begins_with: Vec<u8>,
}

impl Blocks {
    fn new(begins_with: &[u8]) -> Self {
        assert!(begins_with.len() < BLOCK, "a segment begins with less than a block");
        Self { memory: Vec::new(), aligned: 0, at: 0, filled: 0, begins_with: begins_with.to_vec() }
    }

    fn append<'a>(
        &mut self,
        pieces: impl Iterator<Item = &'a [u8]>,
        mut write: impl FnMut(&[u8], u64) -> io::Result<()>,
    ) -> io::Result<()> {
        self.allocate();
        for mut piece in pieces {
            while !piece.is_empty() {
                let (now, later) = piece.split_at(piece.len().min(DIRECT_BUFFER_BYTES - self.filled));
                let from = self.aligned + self.filled;
                self.memory[from..from + now.len()].copy_from_slice(now);
                self.filled += now.len();
                piece = later;
                if self.filled == DIRECT_BUFFER_BYTES {
                    write(self.stretch(self.filled), self.at)?;
                    self.at += self.filled as u64;
                    self.filled = 0;
                }
            }
        }
        self.write_rest(write)
    }

    /// Writes what is left, filled up with zeros, and keeps its last block if it is not whole.
    fn write_rest(&mut self, mut write: impl FnMut(&[u8], u64) -> io::Result<()>) -> io::Result<()> {
        let padded = self.filled.next_multiple_of(BLOCK);
        if padded == 0 {
            return Ok(());
        }
        self.memory[self.aligned + self.filled..self.aligned + padded].fill(0);
        write(self.stretch(padded), self.at)?;
        let whole = self.filled - self.filled % BLOCK;
        let last = self.aligned + whole..self.aligned + self.filled;
        self.memory.copy_within(last, self.aligned);
        self.at += whole as u64;
        self.filled -= whole;
        Ok(())
    }

    fn stretch(&self, length: usize) -> &[u8] {
        &self.memory[self.aligned..self.aligned + length]
    }

    fn allocate(&mut self) {
        if self.memory.is_empty() {
            self.memory = vec![0; DIRECT_BUFFER_BYTES + BLOCK];
            self.aligned = self.memory.as_ptr().align_offset(BLOCK);
            self.filled = self.begins_with.len();
            self.memory[self.aligned..self.aligned + self.filled].copy_from_slice(&self.begins_with);
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
        fn whole_aligned_blocks_give_the_file_that_was_appended(
            begins_with in prop::collection::vec(1u8.., 0..BLOCK),
            // Batches of pieces, some longer than all of the buffer.
            batches in prop::collection::vec(prop::collection::vec(0usize..3 << 20, 0..4), 0..6),
        ) {
            let mut blocks = Blocks::new(&begins_with);
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
                    // What was written before stays as it is.
                    let again = synced.min(at + stretch.len()).saturating_sub(at);
                    aligned &= stretch[..again] == expected[at..at + again];
                    file.resize(file.len().max(at + stretch.len()), 0);
                    file[at..at + stretch.len()].copy_from_slice(stretch);
                    Ok(())
                }).unwrap();
                prop_assert!(aligned);
            }
            if !file.is_empty() {
                prop_assert!(file.len() < expected.len() + BLOCK);
                prop_assert_eq!(&file[..expected.len()], &expected[..]);
                prop_assert!(file[expected.len()..].iter().all(|byte| *byte == 0));
            }
        }
    }

    #[test]
    fn nothing_to_append_writes_what_is_there_or_nothing() {
        let writes = |begins_with: &[u8]| {
            let mut writes = Vec::new();
            let mut blocks = Blocks::new(begins_with);
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
