//! Holes: frees the disk blocks under single records while their segment stays.
//!
//! For a tier whose chunks are evicted one by one and can be fetched again; the only copy of data is never in
//! a segment with holes. Whole blocks of the file system are freed, those that contain only dead records: for
//! a block at the edge of a record its dead bytes are counted, and it is freed when all of it is dead.
//! Invariants: no byte of a live record is in a hole, and the bytes charged for a segment are those written
//! to it less its holes.
//!
//! The counts of edge blocks are in memory. A restart forgets them, and blocks at the edges of records that
//! died before stay until their segment is released. Holes are not synced: after a power loss a hole is there
//! or not, and a record that is in one reads as zeros and does not verify.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;

use mlgw_common::ids::SegmentId;
use parking_lot::Mutex;
use rustix::io::Errno;

use super::file::SegmentDisk;
use super::file_names::segment_of_file_name;
use super::location::RecordLocation;

/// Minimum block size; smaller blocks of a file system are not used.
const BLOCK_BYTES_MIN: u64 = 4096;
/// Unit of `st_blocks`.
const COUNTED_BYTES: u64 = 512;
/// Maximum number of partly dead blocks tracked over all segments: some 40 MiB of memory. Further ones are
/// freed with their segment.
const EDGES_MAX: usize = 1 << 20;

/// The holes of all segments in a directory.
pub(super) struct Holes {
    /// Alignment of holes.
    block_bytes: u64,
    /// Locked while a file gets holes or is removed.
    state: Mutex<HolesState>,
}

#[derive(Default)]
struct HolesState {
    segments: HashMap<SegmentId, SegmentHoles>,
    /// Tracked edge blocks of all segments.
    edges: usize,
    /// True if the file system does not support holes.
    is_unsupported: bool,
}

#[derive(Default)]
struct SegmentHoles {
    /// Bytes of the segment's holes.
    bytes: u64,
    /// Dead bytes of each partly dead block.
    edges: HashMap<u64, u64>,
}

impl Holes {
    /// Determines the existing holes in the directory of `disk`.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub(super) fn open(disk: &SegmentDisk) -> io::Result<Self> {
        let block_bytes = rustix::fs::statvfs(disk.dir()).map_or(BLOCK_BYTES_MIN, |found| found.f_frsize);
        let block_bytes = block_bytes.max(BLOCK_BYTES_MIN).next_power_of_two();
        let mut state = HolesState::default();
        for entry in std::fs::read_dir(disk.dir())? {
            let entry = entry?;
            if let Some(segment) = segment_of_file_name(&entry.file_name().to_string_lossy()) {
                let bytes = holes_of(&entry.metadata()?, block_bytes);
                state.segments.insert(segment, SegmentHoles { bytes, ..SegmentHoles::default() });
            }
        }
        Ok(Self { block_bytes, state: Mutex::new(state) })
    }

    /// Creates the state of a tier that gets no holes.
    pub(super) fn disabled() -> Self {
        Self { block_bytes: BLOCK_BYTES_MIN, state: Mutex::default() }
    }

    /// Bytes of the holes in a segment.
    pub(super) fn bytes_in(&self, segment: SegmentId) -> u64 {
        self.state.lock().segments.get(&segment).map_or(0, |holed| holed.bytes)
    }

    /// True if the file system reported that it does not support holes.
    pub(super) fn is_unsupported(&self) -> bool {
        self.state.lock().is_unsupported
    }

    /// Bytes of all holes.
    pub(super) fn bytes(&self) -> u64 {
        self.state.lock().segments.values().map(|holed| holed.bytes).sum()
    }

    /// Frees the blocks under records that nothing refers to any more; each record is passed once. Returns
    /// the freed bytes. Blocks the calling thread.
    pub(super) fn punch(&self, disk: &SegmentDisk, dead: impl Iterator<Item = RecordLocation>) -> u64 {
        let mut records = BTreeMap::<SegmentId, Vec<Range<u64>>>::new();
        for location in dead {
            records.entry(location.segment).or_default().push(location.record());
        }
        let mut bytes = 0;
        for (segment, records) in records {
            let mut state = self.state.lock();
            if state.is_unsupported {
                break;
            }
            let file = match disk.open_to_punch(segment) {
                Ok(Some(file)) => file,
                // The segment was released, or its blocks will be freed with it.
                Ok(None) | Err(_) => continue,
            };
            let mut holed = state.segments.remove(&segment).unwrap_or_default();
            let (bytes_before, edges_before) = (holed.bytes, holed.edges.len());
            assert!(state.edges >= edges_before, "the edges of every segment are counted");
            let edges_max = EDGES_MAX - (state.edges - edges_before);
            let blocks = holed.mark_dead(records, self.block_bytes, edges_max);
            let punched = holed.punch(disk, segment, &file, blocks, self.block_bytes);
            bytes += holed.bytes - bytes_before;
            state.edges = state.edges - edges_before + holed.edges.len();
            assert!(state.edges <= EDGES_MAX, "the tracked edges are bounded");
            state.segments.insert(segment, holed);
            if let Err(error) = punched {
                state.is_unsupported |= is_unsupported_error(&error);
                tracing::warn!(%segment, %error,
                    "failed to punch holes; the space of evicted copies is freed with their segment");
            }
        }
        bytes
    }

    /// Removes the file of a segment and returns the bytes that it occupied.
    ///
    /// # Errors
    /// When the disk fails.
    pub(super) fn remove(&self, disk: &SegmentDisk, segment: SegmentId) -> io::Result<u64> {
        let mut state = self.state.lock();
        let length = disk.remove(segment)?.unwrap_or(0);
        let holed = state.segments.remove(&segment).unwrap_or_default();
        state.edges -= holed.edges.len();
        Ok(length.saturating_sub(holed.bytes))
    }
}

impl SegmentHoles {
    /// Punches holes for ranges of blocks.
    fn punch(
        &mut self,
        disk: &SegmentDisk,
        segment: SegmentId,
        file: &File,
        blocks: Vec<Range<u64>>,
        block_bytes: u64,
    ) -> io::Result<()> {
        for range in blocks {
            self.bytes += disk.punch(file, segment, &(range.start * block_bytes..range.end * block_bytes))?;
        }
        Ok(())
    }

    /// Marks records as dead and returns the blocks without live bytes, merged into as few ranges as
    /// possible.
    fn mark_dead(&mut self, records: Vec<Range<u64>>, block_bytes: u64, edges_max: usize) -> Vec<Range<u64>> {
        let each = records.into_iter().map(|record| self.mark_one_dead(record, block_bytes, edges_max));
        let mut blocks: Vec<Range<u64>> = each.filter(|blocks| !blocks.is_empty()).collect();
        blocks.sort_unstable_by_key(|blocks| blocks.start);
        blocks.dedup_by(|next, before| {
            let adjoins = next.start == before.end;
            if adjoins {
                before.end = next.end;
            }
            adjoins
        });
        blocks
    }

    fn mark_one_dead(&mut self, record: Range<u64>, block_bytes: u64, edges_max: usize) -> Range<u64> {
        let (first, last) = (record.start / block_bytes, (record.end - 1) / block_bytes);
        let mut is_dead = |block: u64| {
            let here = record.end.min((block + 1) * block_bytes) - record.start.max(block * block_bytes);
            let dead = self.edges.remove(&block).unwrap_or(0) + here;
            if dead < block_bytes && self.edges.len() < edges_max {
                self.edges.insert(block, dead);
            }
            dead >= block_bytes
        };
        let first_is = is_dead(first);
        let last_is = if last == first { first_is } else { is_dead(last) };
        let begin = if first_is { first } else { first + 1 };
        let end = if last_is { last + 1 } else { last };
        begin..end.max(begin)
    }
}

/// Bytes by which a file's size on disk is smaller than its length.
fn holes_of(file: &Metadata, block_bytes: u64) -> u64 {
    file.len().next_multiple_of(block_bytes).saturating_sub(file.blocks() * COUNTED_BYTES).min(file.len())
}

/// True if the error means that the file system does not support holes.
fn is_unsupported_error(error: &io::Error) -> bool {
    let refusals = [Errno::OPNOTSUPP, Errno::NOSYS];
    refusals.iter().any(|refusal| error.raw_os_error() == Some(refusal.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::SegmentHoles;
    use proptest::{prop_assert, prop_assert_eq, proptest};

    const BLOCK: u64 = 10;

    #[test]
    fn a_block_shared_by_two_records_is_freed_with_the_second() {
        let mut holed = SegmentHoles::default();
        let mut died =
            |record| holed.mark_dead(vec![record], BLOCK, 9).into_iter().flatten().collect::<Vec<_>>();
        assert_eq!(died(5..25), [1]);
        assert_eq!(died(25..47), [2, 3], "with the block that both were in");
        assert_eq!(died(48..50), [0; 0]);
        assert_eq!(died(47..48), [4]);
        assert_eq!(holed.edges.len(), 1, "the bytes before the first of them are live");
    }

    #[test]
    fn adjacent_blocks_are_merged_and_edges_are_bounded() {
        let mut holed = SegmentHoles::default();
        assert_eq!(holed.mark_dead(vec![30..52, 10..30, 75..95], BLOCK, 9), [1..5, 8..9]);
        assert_eq!(holed.mark_dead(vec![101..105, 111..115], BLOCK, 4), []);
        assert_eq!(holed.edges.len(), 4, "the fifth is not recorded");
    }

    proptest! {
        #[test]
        fn exactly_the_blocks_without_live_bytes_are_freed(
            lengths in proptest::collection::vec(1u64..35, 1..40),
            dead in proptest::collection::vec(proptest::bool::ANY, 40),
        ) {
            let (mut holed, mut gone) = (SegmentHoles::default(), Vec::new());
            let (mut at, mut lives) = (3, vec![true; 3]);
            for (length, &dead) in lengths.iter().zip(&dead) {
                lives.resize(lives.len() + *length as usize, !dead);
                if dead {
                    let record = at..at + length;
                    gone.extend(holed.mark_dead(vec![record], BLOCK, usize::MAX).into_iter().flatten());
                }
                at += length;
            }
            let blocks = lives.chunks(BLOCK as usize).enumerate();
            let expected: Vec<u64> = blocks
                .filter(|(_, block)| block.len() as u64 == BLOCK && !block.contains(&true))
                .map(|(number, _)| number as u64)
                .collect();
            gone.sort_unstable();
            prop_assert_eq!(gone, expected);
            let is_shared = |block: &u64| (*block as usize + 1) * BLOCK as usize > lives.len()
                || lives[*block as usize * BLOCK as usize..][..BLOCK as usize].contains(&true);
            prop_assert!(holed.edges.keys().all(is_shared), "only next to live bytes and at the end");
        }
    }
}
