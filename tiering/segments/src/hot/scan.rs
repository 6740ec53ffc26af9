//! Scan of a segment file, record by record, through a sliding window in memory.
//!
//! Where no record begins, the scan continues at the next magic number: damage costs only the records that it
//! hit. Recovery, compaction, scrub, repair, salvage and copies of other nodes all read segments through this
//! scan.
//!
//! A scan ends at the end of the file, as it was when the scan was created. After the last intact record
//! there may be the padding of a direct write, space that was allocated and not written, or a hole: all read
//! as zeros, in which no record begins. Other bytes are those of a torn write, or of damaged records. Which
//! of the two cannot be seen in the file.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use mlgw_common::ids::{SegmentId, SegmentSeed};

use crate::fair::{DiskQueue, Lane};
use mlgw_formats::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use mlgw_formats::segment_record::{
    HEAD_BYTES_MAX, HEAD_FIXED_BYTES, MAGIC, MAGIC_AT, RecordAddress, RecordHead, RecordOwner, peek_lengths,
};
use rustix::fs::{Advice, fadvise};

/// Maximum bytes of the file in memory, except for longer records.
const WINDOW_BYTES: usize = 4 << 20;
/// Bytes of the first read: a start reads only one or two records of most segments. Also the maximum of scans
/// that skip most records, because the headers of large ones are far apart.
const SMALL_WINDOW_BYTES: usize = 64 << 10;

/// Maximum bytes per read from a disk that others use, without readahead: their reads and syncs wait for
/// those in progress at the device. A read of this size takes less than a millisecond.
pub(super) const SHARED_READ_BYTES: usize = 256 << 10;

const PAGE_BYTES: u64 = 4096;

const _: () = assert!(HEAD_BYTES_MAX <= SMALL_WINDOW_BYTES && SMALL_WINDOW_BYTES < WINDOW_BYTES);

/// The result of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanSummary {
    /// End of the last record that verifies; 0 if not even the segment's header does.
    pub length: u64,
    /// Number of records that verify, of those that were read: records before the start of the scan do not
    /// count.
    pub records: u64,
    /// Bytes before `length` outside of such records.
    pub damaged_bytes: u64,
}

/// Callback before a range of the file is read, with its offset and length: may wait, or end the scan with an
/// error.
pub(super) type BeforeRead = Box<dyn FnMut(&File, u64, u64) -> io::Result<()> + Send>;

/// A scan in progress.
pub(super) struct SegmentScan {
    window: ScanWindow,
    segment: SegmentId,
    seed: SegmentSeed,
    /// Offset at which the scan started.
    from: u64,
    offset: u64,
}

/// A record whose header verifies.
pub(super) struct ScannedRecord<'s> {
    /// Offset of its first byte in the file.
    pub(super) offset: u64,
    /// Offset of the first byte after the record, if all of it is there.
    pub(super) end: u64,
    /// The record header; `None` if its format is unknown to this program.
    pub(super) head: Option<RecordHead<'s>>,
    /// The payload as stored, truncated where the file ends.
    pub(super) payload: &'s [u8],
    /// True if all of the record is there and every block verifies, as far as its format is known.
    pub(super) whole: bool,
}

/// The result of one step of a scan.
pub(super) enum ScanStep<'s> {
    /// A selected record.
    Record(ScannedRecord<'s>),
    /// A record of this many bytes that was not selected, or whose owner is unknown: only its header was
    /// read.
    Passed(u64),
    /// The end of the file.
    End,
}

impl SegmentScan {
    /// Creates a scan of `file` from offset `from`, where a record begins or may begin; 0 is the beginning.
    pub(super) fn new(file: File, segment: SegmentId, seed: SegmentSeed, from: u64) -> io::Result<Self> {
        let file_bytes = file.metadata()?.len();
        let window = ScanWindow {
            file,
            start: 0,
            bytes: Vec::new(),
            file_bytes,
            fill_bytes: SMALL_WINDOW_BYTES,
            fill_bytes_max: WINDOW_BYTES,
            read_bytes: 0,
            before_read: None,
            places: None,
        };
        Ok(Self { window, segment, seed, from, offset: from.max(SEGMENT_HEADER_BYTES) })
    }

    /// Sets a callback before each read from the file.
    pub(super) fn with_throttle(mut self, before_read: BeforeRead) -> Self {
        self.window.before_read = Some(before_read);
        self
    }

    /// Makes each read from the file wait for a slot at the disk, in the background lane. Reads are short
    /// then.
    pub(super) fn with_disk_queue(mut self, places: DiskQueue) -> Self {
        disable_readahead(&self.window.file);
        self.window.places = Some(places);
        self
    }

    /// Reads little at a time, for scans that skip most records.
    pub(super) fn with_small_window(mut self) -> Self {
        self.window.fill_bytes_max = SMALL_WINDOW_BYTES;
        self
    }

    /// Bytes read from the file so far.
    pub(super) fn read_bytes(&self) -> u64 {
        self.window.read_bytes
    }

    /// Reads to the end of the file and returns the totals. `each` is called with every record that verifies
    /// as a whole.
    pub(super) fn survey(mut self, each: &mut dyn FnMut(&ScannedRecord<'_>)) -> io::Result<ScanSummary> {
        self.survey_records(each)
    }

    /// Reads to the end of the file and returns the totals, and the number of bytes after the last record
    /// that verifies, up to the last one that is not zero.
    pub(super) fn survey_with_tail(mut self) -> io::Result<(ScanSummary, u64)> {
        let scanned = self.survey_records(&mut |_| {})?;
        let tail_bytes = self.tail_bytes(scanned.length)?;
        Ok((scanned, tail_bytes))
    }

    fn survey_records(&mut self, each: &mut dyn FnMut(&ScannedRecord<'_>)) -> io::Result<ScanSummary> {
        let mut scanned = ScanSummary { length: self.from, ..ScanSummary::default() };
        let header = SegmentHeader::decode(self.window.bytes_at(0, SEGMENT_HEADER_BYTES as usize)?);
        if header.is_ok_and(|header| header.id == self.segment && header.seed == self.seed) {
            scanned.length = scanned.length.max(SEGMENT_HEADER_BYTES);
        }
        while let Some(record) = self.next()? {
            if record.whole {
                scanned.records += 1;
                scanned.damaged_bytes += record.offset - scanned.length.max(SEGMENT_HEADER_BYTES);
                scanned.length = record.end;
                each(&record);
            }
        }
        Ok(scanned)
    }

    /// Returns the number of bytes from `from` to the last byte of the file that is not zero. Reads back from
    /// the end of the file, in pieces.
    fn tail_bytes(&mut self, from: u64) -> io::Result<u64> {
        let mut end = self.window.file_bytes;
        while end > from {
            let begin = end.saturating_sub(WINDOW_BYTES as u64).max(from);
            let piece = self.window.bytes_at(begin, (end - begin) as usize)?;
            if let Some(last) = piece.iter().rposition(|byte| *byte != 0) {
                return Ok(begin + last as u64 + 1 - from);
            }
            end = begin;
        }
        Ok(0)
    }

    /// Reads the file and returns the ranges of its first `length` bytes that belong to no intact record and
    /// not to the header.
    pub(super) fn damaged_ranges(mut self, length: u64) -> io::Result<Vec<Range<u64>>> {
        let header = SegmentHeader::decode(self.window.bytes_at(0, SEGMENT_HEADER_BYTES as usize)?);
        let is_intact = header.is_ok_and(|of| of.id == self.segment && of.seed == self.seed);
        let mut intact_end = if is_intact { SEGMENT_HEADER_BYTES } else { 0 };
        let mut damaged = Vec::new();
        while intact_end < length
            && let Some(record) = self.next()?
        {
            if !record.whole {
                continue;
            }
            if record.offset > intact_end {
                damaged.push(intact_end..record.offset.min(length));
            }
            intact_end = record.end;
        }
        if intact_end < length {
            damaged.push(intact_end..length);
        }
        Ok(damaged)
    }

    /// Returns the next record; `None` at the end of the file.
    pub(super) fn next(&mut self) -> io::Result<Option<ScannedRecord<'_>>> {
        match self.next_place()? {
            Some((place, length)) => self.record(place, length).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the next record if `wanted` returns true for its offset and owner.
    pub(super) fn step(
        &mut self,
        wanted: &mut dyn FnMut(u64, &RecordOwner) -> bool,
    ) -> io::Result<ScanStep<'_>> {
        let Some((place, length)) = self.next_place()? else { return Ok(ScanStep::End) };
        let head = RecordHead::decode(place, self.window.bytes_at(place.offset, HEAD_BYTES_MAX)?);
        let owner = head.ok().and_then(|head| head.owner());
        if owner.is_some_and(|owner| wanted(place.offset, &owner)) {
            return self.record(place, length).map(ScanStep::Record);
        }
        Ok(ScanStep::Passed(length as u64))
    }

    /// Returns the place and the length of the next record.
    fn next_place(&mut self) -> io::Result<Option<(RecordAddress, usize)>> {
        while self.offset < self.window.file_bytes {
            let place = RecordAddress { segment: self.segment, seed: self.seed, offset: self.offset };
            match length_at(self.window.bytes_at(self.offset, HEAD_BYTES_MAX)?, place) {
                Some(length) => {
                    self.offset += length as u64;
                    return Ok(Some((place, length)));
                }
                None => self.offset = self.next_magic(self.offset + 1)?,
            }
        }
        Ok(None)
    }

    fn record(&mut self, place: RecordAddress, length: usize) -> io::Result<ScannedRecord<'_>> {
        let bytes = self.window.bytes_at(place.offset, length)?;
        let head = RecordHead::decode(place, bytes).ok();
        let head_bytes = match &head {
            Some(head) => head.head_bytes,
            None => peek_lengths(bytes).map_or(0, |(head, _)| head),
        };
        let payload = bytes.get(head_bytes..).unwrap_or_default();
        let verifies = head.as_ref().is_none_or(|head| head.bad_block(payload).is_none());
        let whole = bytes.len() == length && verifies;
        Ok(ScannedRecord { offset: place.offset, end: place.offset + length as u64, head, payload, whole })
    }

    /// Returns the next offset, not before `from`, at which a record may begin, or the end of the file.
    fn next_magic(&mut self, from: u64) -> io::Result<u64> {
        let mut offset = from;
        loop {
            let bytes = self.window.bytes_at(offset, WINDOW_BYTES)?;
            if bytes.len() < HEAD_FIXED_BYTES {
                return Ok(self.window.file_bytes);
            }
            let here = bytes[MAGIC_AT..].windows(MAGIC.len()).position(|four| four == MAGIC);
            if let Some(position) = here {
                return Ok(offset + position as u64);
            }
            offset += (bytes.len() - MAGIC_AT - MAGIC.len() + 1) as u64;
        }
    }
}

/// Returns the length of the record that begins with `bytes`, if its header verifies. A record of a later
/// format counts: its writer may have acknowledged it.
fn length_at(bytes: &[u8], place: RecordAddress) -> Option<usize> {
    match RecordHead::decode(place, bytes) {
        Err(fault) if !fault.is_of_another_format() => None,
        _ => peek_lengths(bytes).ok().map(|(head, stored)| head + stored),
    }
}

/// Makes the kernel read no more of a file than is asked for. Without effect on file systems that do not
/// support it.
pub(super) fn disable_readahead(file: &File) {
    // The read of a header may have begun a readahead. A page that is marked for the next one triggers that
    // although reads are random now, and so on through the whole file. So these pages are dropped.
    let begin = NonZeroU64::new(SHARED_READ_BYTES as u64);
    let _ = fadvise(file, 0, None, Advice::Random);
    let _ = fadvise(file, 0, begin, Advice::DontNeed);
}

/// A range of the file in memory.
struct ScanWindow {
    file: File,
    start: u64,
    bytes: Vec<u8>,
    file_bytes: u64,
    /// Bytes of the next read; doubles with each, up to the maximum.
    fill_bytes: usize,
    fill_bytes_max: usize,
    /// Bytes read so far.
    read_bytes: u64,
    before_read: Option<BeforeRead>,
    /// Queue of the disk in which reads wait, if other users share the disk.
    places: Option<DiskQueue>,
}

impl ScanWindow {
    /// Returns up to `length` bytes from `offset`: fewer only at the end of the file.
    fn bytes_at(&mut self, offset: u64, length: usize) -> io::Result<&[u8]> {
        let length = self.file_bytes.saturating_sub(offset).min(length as u64) as usize;
        let held = offset.checked_sub(self.start).map(|from| from as usize);
        if let Some(from) = held.filter(|from| from + length <= self.bytes.len()) {
            return Ok(&self.bytes[from..from + length]);
        }
        let fill = self.file_bytes.saturating_sub(offset).min(self.fill_bytes.max(length) as u64) as usize;
        self.fill_bytes = (self.fill_bytes * 2).min(self.fill_bytes_max);
        // The beginning of a record that crosses the end of the window is not read again.
        let kept = held.map_or(0, |from| self.bytes.len().saturating_sub(from));
        self.bytes.drain(..self.bytes.len() - kept);
        self.start = offset;
        self.bytes.resize(fill, 0);
        self.read_rest(kept)?;
        self.read_bytes += (self.bytes.len() - kept) as u64;
        Ok(&self.bytes[..self.bytes.len().min(length)])
    }

    /// Reads the bytes of the window after the first `filled`. It ends where the file ends, or at an error.
    fn read_rest(&mut self, mut filled: usize) -> io::Result<()> {
        let read = loop {
            if filled == self.bytes.len() {
                break Ok(());
            }
            match self.read_piece(filled) {
                Ok(0) => break Ok(()),
                Ok(more) => filled += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        self.bytes.truncate(filled);
        read
    }

    /// Reads once after the first `filled` bytes, as much as one read may.
    fn read_piece(&mut self, filled: usize) -> io::Result<usize> {
        let at = self.start + filled as u64;
        // To the end of a page: the next read begins with another one.
        let shared_max = SHARED_READ_BYTES - (at % PAGE_BYTES) as usize;
        let bytes_max = if self.places.is_some() { shared_max } else { usize::MAX };
        let bytes = bytes_max.min(self.bytes.len() - filled);
        if let Some(before_read) = &mut self.before_read {
            before_read(&self.file, at, bytes as u64)?;
        }
        let places = self.places.as_ref();
        let _place = places.map(|places| places.acquire_blocking(Lane::Background, bytes as u64));
        self.file.read_at(&mut self.bytes[filled..filled + bytes], at)
    }
}

#[cfg(test)]
mod tests {
    use super::{SHARED_READ_BYTES, SMALL_WINDOW_BYTES, ScanSummary, SegmentScan, WINDOW_BYTES};
    use crate::fair::DiskQueue;
    use mlgw_common::ids::{SegmentId, SegmentSeed};
    use rustix::fs::Advice;
    use std::io::Write as _;
    use std::os::unix::fs::FileExt as _;

    #[test]
    fn a_scan_begins_with_a_small_read_and_reads_every_byte_once() {
        let content: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&content).unwrap();
        let mut scan = SegmentScan::new(file, SegmentId(1), SegmentSeed::default(), 0).unwrap();
        assert_eq!(scan.window.bytes_at(0, 64).unwrap(), &content[..64]);
        assert_eq!(scan.read_bytes(), SMALL_WINDOW_BYTES as u64);
        let (mut offset, mut length) = (0, 1);
        while offset < content.len() {
            let end = content.len().min(offset + length);
            assert_eq!(scan.window.bytes_at(offset as u64, length).unwrap(), &content[offset..end]);
            offset = end;
            length = length * 3 % 400_000 + 1;
        }
        assert_eq!(scan.read_bytes(), content.len() as u64);
    }

    /// Bytes that this thread made the disk read.
    fn bytes_from_disk() -> usize {
        let io = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        let line = io.lines().find_map(|line| line.strip_prefix("read_bytes: "));
        line.unwrap().parse().unwrap()
    }

    #[test]
    fn reads_from_a_shared_disk_are_short_and_read_nothing_ahead() {
        let content: Vec<u8> = (0..16_u32 << 20).map(|at| (at % 251) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&content).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        let before = bytes_from_disk();
        // As by the check of its header.
        file.read_exact_at(&mut [0; 64], 0).unwrap();
        let scan = SegmentScan::new(file, SegmentId(1), SegmentSeed::default(), 0).unwrap();
        let short = |_: &_, _, bytes| {
            assert!(bytes <= SHARED_READ_BYTES as u64);
            Ok(())
        };
        let mut scan = scan.with_disk_queue(DiskQueue::new(1)).with_throttle(Box::new(short));
        let read = 4 * SHARED_READ_BYTES + 1;
        assert!(scan.window.bytes_at(0, read).unwrap() == &content[..read]);
        let from_disk = bytes_from_disk() - before;
        assert!(from_disk <= 5 * SHARED_READ_BYTES, "{from_disk} bytes for {read}");
    }

    #[test]
    fn the_tail_ends_at_the_last_byte_that_is_not_zero() {
        let tail_of = |last: Option<u64>, file_bytes: u64| {
            let file = tempfile::tempfile().unwrap();
            // The rest is a hole.
            file.set_len(file_bytes).unwrap();
            if let Some(last) = last {
                file.write_all_at(&[7], last).unwrap();
            }
            let scan = SegmentScan::new(file, SegmentId(1), SegmentSeed::default(), 100).unwrap();
            let (scanned, tail_bytes) = scan.survey_with_tail().unwrap();
            assert_eq!(scanned, ScanSummary { length: 100, ..ScanSummary::default() });
            tail_bytes
        };
        let window = WINDOW_BYTES as u64;
        for file_bytes in [50, 100, 101, 2 * window + 5000] {
            assert_eq!(tail_of(None, file_bytes), 0);
        }
        for last in [100, 4095, window + 99, window + 100] {
            for after in [1, 4096, window, window + 1] {
                assert_eq!(tail_of(Some(last), last + after), last + 1 - 100, "{last} {after}");
            }
        }
    }

    #[test]
    fn a_refused_read_leaves_the_window_as_the_file_is() {
        let content: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&content).unwrap();
        let mut reads = 0;
        let refuse_second = move |_: &_, _, _| {
            reads += 1;
            if reads == 2 { Err(std::io::Error::other("refused")) } else { Ok(()) }
        };
        let scan = SegmentScan::new(file, SegmentId(1), SegmentSeed::default(), 0).unwrap();
        let mut scan = scan.with_throttle(Box::new(refuse_second));
        assert_eq!(scan.window.bytes_at(0, 64).unwrap(), &content[..64]);
        let crossing = SMALL_WINDOW_BYTES - 10;
        assert!(scan.window.bytes_at(crossing as u64, 100).is_err());
        assert_eq!(scan.window.bytes_at(crossing as u64, 10).unwrap(), &content[crossing..][..10]);
        assert_eq!(scan.window.bytes_at(crossing as u64, 100).unwrap(), &content[crossing..][..100]);
    }
}
