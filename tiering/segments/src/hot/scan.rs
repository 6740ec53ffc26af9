//! Reads a segment file record by record, from a window of memory that slides over it.
//!
//! Where no record begins the search goes on at the next magic: damage costs what it hit and
//! nothing behind it. Recovery, compaction, scrub, repair and salvage read segments in this one way.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use mlgw_common::ids::{SegmentId, SegmentSeed};

use crate::fair::{Fair, Lane};
use mlgw_formats::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use mlgw_formats::segment_record::{
    HEAD_BYTES_MAX, HEAD_FIXED_BYTES, Head, MAGIC, MAGIC_AT, Owner, Place, peek_lengths,
};

/// Bytes read from the file at a time.
const WINDOW_BYTES: usize = 4 << 20;
/// The same where few records are wanted: the heads of large ones are far apart.
const SMALL_WINDOW_BYTES: usize = 64 << 10;

/// What a scan found in a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// Where the last record ends that verifies; 0 when not even the segment's header does.
    pub length: u64,
    /// Records that verify, of those that were read: what was marked as whole is not.
    pub records: u64,
    /// Bytes before `length` that belong to no such record.
    pub damaged_bytes: u64,
}

/// Called before a stretch of the file is read, with its offset and length: waits, or ends the scan
/// with an error.
pub(super) type BeforeRead = Box<dyn FnMut(&File, u64, u64) -> io::Result<()> + Send>;

/// A segment file that is being read.
pub(super) struct Scan {
    window: Window,
    segment: SegmentId,
    seed: SegmentSeed,
    /// Where the scan began.
    from: u64,
    offset: u64,
}

/// A record whose head verifies.
pub(super) struct Record<'s> {
    /// Offset of its first byte in the file.
    pub(super) offset: u64,
    /// Offset of the first byte behind it, when all of it is there.
    pub(super) end: u64,
    /// What its head says; nothing when it is of a format that this program does not read.
    pub(super) head: Option<Head<'s>>,
    /// Its payload as stored, cut off where the file ends.
    pub(super) payload: &'s [u8],
    /// Whether every block verifies, as far as can be told.
    pub(super) whole: bool,
}

/// What a step of a scan came to.
pub(super) enum Step<'s> {
    /// A record that is wanted.
    Record(Record<'s>),
    /// One of so many bytes that is not, or that nobody can say the owner of: no more of it was read than
    /// what it begins with.
    Passed(u64),
    /// The end of the file.
    End,
}

impl Scan {
    /// A scan of `file` from `from` on, where a record begins or may begin; 0 is the beginning.
    pub(super) fn new(file: File, segment: SegmentId, seed: SegmentSeed, from: u64) -> io::Result<Self> {
        let file_bytes = file.metadata()?.len();
        let window = Window {
            file,
            start: 0,
            bytes: Vec::new(),
            file_bytes,
            fill_bytes: WINDOW_BYTES,
            read_bytes: 0,
            before_read: None,
            places: None,
        };
        Ok(Self { window, segment, seed, from, offset: from.max(SEGMENT_HEADER_BYTES) })
    }

    /// Has `before_read` called before each read from the file.
    pub(super) fn paced(mut self, before_read: BeforeRead) -> Self {
        self.window.before_read = Some(before_read);
        self
    }

    /// Has each read from the file wait for its turn at the disk, in the lane of the background.
    pub(super) fn in_background(mut self, places: Fair) -> Self {
        self.window.places = Some(places);
        self
    }

    /// Reads little at a time, for who wants few records.
    pub(super) fn sparing(mut self) -> Self {
        self.window.fill_bytes = SMALL_WINDOW_BYTES;
        self
    }

    /// Bytes that were read from the file so far.
    pub(super) fn read_bytes(&self) -> u64 {
        self.window.read_bytes
    }

    /// Reads to the end of the file and says what there is. `each` hears of every record that
    /// verifies whole.
    pub(super) fn survey(mut self, each: &mut dyn FnMut(&Record<'_>)) -> io::Result<Scanned> {
        let mut scanned = Scanned { length: self.from, ..Scanned::default() };
        let header = SegmentHeader::decode(self.window.at(0, SEGMENT_HEADER_BYTES as usize)?);
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

    /// The next record; nothing at the end of the file.
    pub(super) fn next(&mut self) -> io::Result<Option<Record<'_>>> {
        match self.next_place()? {
            Some((place, length)) => self.record(place, length).map(Some),
            None => Ok(None),
        }
    }

    /// The next record, if it is `wanted`, given its offset and its owner.
    pub(super) fn step(&mut self, wanted: &mut dyn FnMut(u64, &Owner) -> bool) -> io::Result<Step<'_>> {
        let Some((place, length)) = self.next_place()? else { return Ok(Step::End) };
        let head = Head::decode(place, self.window.at(place.offset, HEAD_BYTES_MAX)?);
        let owner = head.ok().and_then(|head| head.owner());
        if owner.is_some_and(|owner| wanted(place.offset, &owner)) {
            return self.record(place, length).map(Step::Record);
        }
        Ok(Step::Passed(length as u64))
    }

    /// Where the next record is, and how long it is.
    fn next_place(&mut self) -> io::Result<Option<(Place, usize)>> {
        while self.offset < self.window.file_bytes {
            let place = Place { segment: self.segment, seed: self.seed, offset: self.offset };
            match length_at(self.window.at(self.offset, HEAD_BYTES_MAX)?, place) {
                Some(length) => {
                    self.offset += length as u64;
                    return Ok(Some((place, length)));
                }
                None => self.offset = self.next_magic(self.offset + 1)?,
            }
        }
        Ok(None)
    }

    fn record(&mut self, place: Place, length: usize) -> io::Result<Record<'_>> {
        let bytes = self.window.at(place.offset, length)?;
        let head = Head::decode(place, bytes).ok();
        let head_bytes = match &head {
            Some(head) => head.head_bytes,
            None => peek_lengths(bytes).map_or(0, |(head, _)| head),
        };
        let payload = bytes.get(head_bytes..).unwrap_or_default();
        let verifies = head.as_ref().is_none_or(|head| head.bad_block(payload).is_none());
        let whole = bytes.len() == length && verifies;
        Ok(Record { offset: place.offset, end: place.offset + length as u64, head, payload, whole })
    }

    /// The next offset from `from` on at which a record may begin, or the end of the file.
    fn next_magic(&mut self, from: u64) -> io::Result<u64> {
        let mut offset = from;
        loop {
            let bytes = self.window.at(offset, WINDOW_BYTES)?;
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

/// The length of the record that begins with `bytes`, if its head verifies. One of a later format
/// counts: its writer may have acknowledged it.
fn length_at(bytes: &[u8], place: Place) -> Option<usize> {
    match Head::decode(place, bytes) {
        Err(fault) if !fault.is_of_another_format() => None,
        _ => peek_lengths(bytes).ok().map(|(head, stored)| head + stored),
    }
}

/// A stretch of the file in memory.
struct Window {
    file: File,
    start: u64,
    bytes: Vec<u8>,
    file_bytes: u64,
    /// Bytes that are read at a time.
    fill_bytes: usize,
    /// Bytes that were.
    read_bytes: u64,
    before_read: Option<BeforeRead>,
    /// Where it has to wait for its turn, where others use the disk.
    places: Option<Fair>,
}

impl Window {
    /// Up to `length` bytes from `offset`: fewer only at the end of the file.
    fn at(&mut self, offset: u64, length: usize) -> io::Result<&[u8]> {
        let length = self.file_bytes.saturating_sub(offset).min(length as u64) as usize;
        let held = offset.checked_sub(self.start).map(|from| from as usize);
        if let Some(from) = held.filter(|from| from + length <= self.bytes.len()) {
            return Ok(&self.bytes[from..from + length]);
        }
        let fill = self.file_bytes.saturating_sub(offset).min(self.fill_bytes.max(length) as u64) as usize;
        if let Some(before_read) = &mut self.before_read {
            before_read(&self.file, offset, fill as u64)?;
        }
        let _place = self.places.as_ref().map(|places| places.enter_blocking(Lane::Background, fill as u64));
        self.bytes.resize(fill, 0);
        self.start = offset;
        let mut filled = 0;
        while filled < fill {
            match self.file.read_at(&mut self.bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.bytes.truncate(filled);
        self.read_bytes += filled as u64;
        Ok(&self.bytes[..filled.min(length)])
    }
}
