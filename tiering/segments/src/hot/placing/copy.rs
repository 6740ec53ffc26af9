//! Copies the file of a sealed segment to another directory and verifies the copy.
//!
//! The copy is synced in pieces, so that the kernel never has many dirty bytes to write at once. Each piece
//! is then dropped from the page cache, read back from the disk, and compared by checksum, before the copy
//! gets its final name. It is identical byte for byte, damage included: a copy neither hides nor spreads
//! damage, and reads of the same ranges fail as before. No copied bytes stay in the page cache, which is left
//! to data that is read.

use std::fs::File;
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt as _;

use mlgw_common::checksum::crc32c;
use mlgw_common::ids::SegmentId;
use mlgw_common::limits::MIB;
use rustix::fs::{Advice, fadvise};

use crate::fair::{DiskQueue, Lane};
use crate::hot::file::SegmentDisk;

/// Bytes per read and per write.
const WINDOW_BYTES: u64 = MIB;
/// Bytes that are synced and verified at a time.
const PIECE_BYTES: u64 = 32 * MIB;

const _: () = assert!(PIECE_BYTES.is_multiple_of(WINDOW_BYTES), "a piece consists of whole windows");

/// Queues of the disks that a copy reads from and writes to.
#[derive(Clone, Copy)]
pub(super) struct CopyQueues<'t> {
    pub(super) read: &'t DiskQueue,
    pub(super) write: &'t DiskQueue,
}

/// Copies `length` bytes of `from` to a file for `segment` in `to`; the copy is durable and has its final
/// name when the call returns. `before` is called with the number of bytes before each read; it may wait, or
/// abort the copy with an error.
///
/// # Errors
/// When either disk fails, or the copy differs from the bytes read; then there is no copy.
pub(super) fn copy_segment(
    from: &File,
    length: u64,
    to: &SegmentDisk,
    segment: SegmentId,
    turns: CopyQueues<'_>,
    before: &mut dyn FnMut(u64) -> io::Result<()>,
) -> io::Result<()> {
    let made = copy_unnamed(from, length, to, segment, turns, before)
        .and_then(|file| to.finish_copy(&file, segment));
    if made.is_err() {
        to.discard_copy(segment);
    }
    made
}

fn copy_unnamed(
    from: &File,
    length: u64,
    to: &SegmentDisk,
    segment: SegmentId,
    turns: CopyQueues<'_>,
    before: &mut dyn FnMut(u64) -> io::Result<()>,
) -> io::Result<File> {
    let file = to.begin_copy(segment)?;
    let mut window = vec![0; WINDOW_BYTES as usize];
    let mut sums = Vec::with_capacity((PIECE_BYTES / WINDOW_BYTES) as usize);
    let mut at = 0;
    while at < length {
        let piece = PIECE_BYTES.min(length - at);
        sums.clear();
        for offset in windows(at, piece) {
            let bytes = &mut window[..WINDOW_BYTES.min(at + piece - offset) as usize];
            let size = bytes.len() as u64;
            before(size)?;
            {
                let _place = turns.read.acquire_blocking(Lane::Background, size);
                from.read_exact_at(bytes, offset)?;
            }
            sums.push(crc32c(bytes));
            let _place = turns.write.acquire_blocking(Lane::Background, size);
            to.write(&file, segment, &mut [IoSlice::new(bytes)], offset)?;
        }
        {
            let _place = turns.write.acquire_blocking(Lane::Background, 0);
            to.sync_always(&file, segment)?;
        }
        to.drop_cache(&file, segment, at..at + piece)?;
        for (offset, sum) in windows(at, piece).zip(&sums) {
            let bytes = &mut window[..WINDOW_BYTES.min(at + piece - offset) as usize];
            let _place = turns.write.acquire_blocking(Lane::Background, bytes.len() as u64);
            file.read_exact_at(bytes, offset)?;
            if crc32c(bytes) != *sum {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("the copy of segment {segment} differs at {offset}"),
                ));
            }
        }
        for file in [from, &file] {
            fadvise(file, at, NonZeroU64::new(piece), Advice::DontNeed)?;
        }
        at += piece;
    }
    Ok(file)
}

fn windows(at: u64, bytes: u64) -> impl Iterator<Item = u64> {
    (at..at + bytes).step_by(WINDOW_BYTES as usize)
}
