//! Accesses from logs that were not written to be replayed: those of S3 and this program's own.
//!
//! Lines come in, accesses come out in the order of time. Logs are in order only about: up to [`WAITING_MAX`]
//! lines wait for earlier ones, and what comes later than that is told at the time of the last access that
//! was given out. A log says how many bytes of an object were read but not which: a part is taken to follow
//! the part that the same caller read last, and to begin the object anew where that one ended it. Where a log
//! does not tell sizes, an object is taken to be as large as what was read of it. Requests that failed, and
//! those that neither read nor change an object, are passed over. A bad line is counted and passed over; the
//! first few are kept with their numbers. What is remembered is bounded, and forgotten all at once when it is
//! too much.

use super::KEY_BYTES_MAX;
use super::{json_log, s3_log};
use crate::access::{Access, Caller, Op};
use crate::rehearse::naming::{hash, mix};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;
use thiserror::Error;

/// Lines that wait for earlier ones.
pub const WAITING_MAX: usize = 65_536;
/// Bad lines that are kept.
const BAD_LINES_KEPT: usize = 5;
/// Objects, places in them and uploads that are remembered.
const REMEMBERED_MAX: usize = 1 << 20;

/// Whose log it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// Server access logs of S3.
    S3,
    /// This program's access log.
    Own,
}

/// What is wrong with a line.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BadLine {
    /// A field of it is missing.
    #[error("there is no field for {0}")]
    Missing(&'static str),
    /// A field of it says something else.
    #[error("the field for {0} cannot be understood")]
    Field(&'static str),
    /// It is no object of JSON with the fields of an access log.
    #[error("it is no line of JSON with the fields of an access log")]
    Json,
}

/// What became of the lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// All of them, but for empty ones.
    pub lines: u64,
    /// Those that are accesses.
    pub taken: u64,
    /// Those of requests that failed, or that neither read nor change an object.
    pub passed_over: u64,
    /// Those that make no sense.
    pub bad: u64,
    /// The first bad ones, with their numbers, counted from 1.
    pub first_bad: Vec<(u64, BadLine)>,
    /// Accesses that came too late for their place and got a later time.
    pub late: u64,
}

/// An access that a log told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Microseconds since 1970.
    pub at_us: u64,
    /// Who: hashes of requester, user agent and, for the id, address.
    pub caller: Caller,
    /// A hash of the bucket's name.
    pub bucket: u64,
    /// The key.
    pub key: String,
    /// What was done.
    pub op: Op,
    /// Bytes of the object, as far as the log tells.
    pub size: u64,
    /// Bytes of it that were asked for.
    pub range: Range<u64>,
}

impl Imported {
    /// As an engine is told of it.
    #[must_use]
    pub fn access(&self) -> Access<'_> {
        Access {
            at_us: self.at_us,
            caller: self.caller,
            bucket: self.bucket,
            key: &self.key,
            op: self.op,
            size: self.size,
            range: self.range.clone(),
        }
    }
}

/// What a line says was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Deed {
    /// Bytes of an object were sent; whether a range was asked for.
    Read { is_part: bool },
    /// An object was written.
    Write,
    /// A part was written of an object that is not there yet.
    WritePart,
    /// An object was put together of its parts.
    Complete,
    /// An object was deleted.
    Delete,
}

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) at_us: u64,
    /// Of lines of one time the earlier one comes first.
    line: u64,
    pub(super) deed: Deed,
    pub(super) caller: (u64, u64),
    pub(super) bucket: u64,
    pub(super) key: String,
    /// That were sent, or came.
    pub(super) bytes: u64,
    /// Of the whole object, if the line tells.
    pub(super) size: Option<u64>,
}

/// Who asked, when, and for what, as a log has it.
pub(super) struct Request<'a> {
    pub(super) at_ms: i64,
    pub(super) requester: &'a str,
    pub(super) address: &'a str,
    pub(super) user_agent: &'a str,
    pub(super) bucket: &'a str,
    pub(super) key: String,
}

impl Entry {
    /// # Errors
    /// When there cannot be such a request.
    pub(super) fn new(
        request: Request<'_>,
        deed: Deed,
        bytes: u64,
        size: Option<u64>,
    ) -> Result<Self, BadLine> {
        if request.key.is_empty() || request.key.len() > KEY_BYTES_MAX {
            return Err(BadLine::Field("the key"));
        }
        let at_us =
            u64::try_from(request.at_ms).map_err(|_| BadLine::Field("the time"))?.saturating_mul(1000);
        let family = hash(hash(0, request.requester), request.user_agent);
        Ok(Self {
            at_us,
            line: 0,
            deed,
            caller: (hash(family, request.address), family),
            bucket: hash(0, request.bucket),
            key: request.key,
            bytes,
            size,
        })
    }
}

/// Takes the lines of a log and gives out accesses.
#[derive(Debug)]
pub struct LogImport {
    log: Log,
    report: Report,
    line: u64,
    waiting: BinaryHeap<Reverse<Entry>>,
    /// Lines are at their end, so that nothing has to wait.
    ended: bool,
    now_us: u64,
    memory: Memory,
}

impl LogImport {
    /// One for a log of this kind.
    #[must_use]
    pub fn new(log: Log) -> Self {
        Self {
            log,
            report: Report::default(),
            line: 0,
            waiting: BinaryHeap::new(),
            ended: false,
            now_us: 0,
            memory: Memory::default(),
        }
    }

    /// Takes the next line. Then [`Self::take`] is to be called until it gives nothing.
    pub fn line(&mut self, line: &str) {
        self.line += 1;
        let line = line.trim();
        if line.is_empty() {
            return;
        }
        self.report.lines += 1;
        let entry = match self.log {
            Log::S3 => s3_log::entry(line),
            Log::Own => json_log::entry(line),
        };
        match entry {
            Ok(Some(entry)) => self.waiting.push(Reverse(Entry { line: self.line, ..entry })),
            Ok(None) => self.report.passed_over += 1,
            Err(bad) => {
                self.report.bad += 1;
                if self.report.first_bad.len() < BAD_LINES_KEPT {
                    self.report.first_bad.push((self.line, bad));
                }
            }
        }
    }

    /// There are no more lines.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// The next access; none if that may be in a line to come.
    pub fn take(&mut self) -> Option<Imported> {
        while self.ended || self.waiting.len() > WAITING_MAX {
            let Reverse(mut entry) = self.waiting.pop()?;
            if entry.at_us < self.now_us {
                self.report.late += 1;
                entry.at_us = self.now_us;
            }
            self.now_us = entry.at_us;
            match self.memory.resolve(entry) {
                Some(imported) => {
                    self.report.taken += 1;
                    return Some(imported);
                }
                None => self.report.passed_over += 1,
            }
        }
        None
    }

    /// What became of the lines so far.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }
}

/// What lines before tell about what a line leaves open, by hashes.
#[derive(Debug, Default)]
struct Memory {
    sizes: HashMap<u64, Size>,
    /// Where in an object a caller's last part ended, and how long it was.
    places: HashMap<u64, (u64, u64)>,
    /// Bytes of the parts of uploads.
    uploads: HashMap<u64, u64>,
}

/// Bytes of an object.
#[derive(Clone, Copy, Debug)]
struct Size {
    bytes: u64,
    /// Told by a line, and not only as much as was read.
    is_told: bool,
}

impl Memory {
    /// The access, or nothing if the line tells only of something to remember or too little.
    fn resolve(&mut self, entry: Entry) -> Option<Imported> {
        let object = hash(entry.bucket, &entry.key);
        let known = self.sizes.get(&object).map(|size| size.bytes);
        let (op, size, range) = match entry.deed {
            Deed::WritePart => {
                *room(&mut self.uploads).entry(object).or_default() += entry.bytes;
                return None;
            }
            Deed::Read { is_part: true } => {
                let range = self.part(object, &entry);
                (Op::Read, self.sizes.get(&object)?.bytes, range)
            }
            Deed::Read { is_part: false } => {
                // Of an answer that was cut short the beginning was read.
                let size = self.told(object, entry.size.unwrap_or(entry.bytes));
                (Op::Read, size, 0..entry.bytes.min(size))
            }
            Deed::Write | Deed::Complete => {
                let parts = self.uploads.remove(&object).filter(|_| entry.deed == Deed::Complete);
                let size = self.told(object, entry.size.or(parts).or(known)?);
                (Op::Write, size, 0..size)
            }
            Deed::Delete => {
                self.sizes.remove(&object);
                let size = entry.size.or(known).unwrap_or_default();
                (Op::Delete, size, 0..size)
            }
        };
        let caller = Caller { id: entry.caller.0, family: entry.caller.1 };
        Some(Imported { at_us: entry.at_us, caller, bucket: entry.bucket, key: entry.key, op, size, range })
    }

    fn told(&mut self, object: u64, bytes: u64) -> u64 {
        room(&mut self.sizes).insert(object, Size { bytes, is_told: true });
        bytes
    }

    /// The part of an object that was read, going by the one before. While no line has told the size of the
    /// object, it is taken to end with a part that is shorter than the one before.
    fn part(&mut self, object: u64, entry: &Entry) -> Range<u64> {
        if let Some(size) = entry.size {
            self.told(object, size);
        }
        let size = room(&mut self.sizes).entry(object).or_insert(Size { bytes: 0, is_told: false });
        let place = room(&mut self.places).entry(object ^ mix(entry.caller.0)).or_default();
        let mut begin = place.0;
        if size.is_told && begin.saturating_add(entry.bytes) > size.bytes {
            begin = 0;
        }
        let mut end = begin.saturating_add(entry.bytes);
        let mut is_last = begin > 0 && entry.bytes < place.1;
        if size.is_told {
            end = end.min(size.bytes);
            is_last = end == size.bytes;
        } else {
            size.bytes = size.bytes.max(end);
        }
        *place = (if is_last { 0 } else { end }, entry.bytes);
        begin..end
    }
}

/// Forgets everything when it is too much.
fn room<T>(map: &mut HashMap<u64, T>) -> &mut HashMap<u64, T> {
    if map.len() >= REMEMBERED_MAX {
        map.clear();
    }
    map
}

#[cfg(test)]
mod tests;
