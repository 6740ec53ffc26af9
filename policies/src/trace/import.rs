//! Imports accesses from logs that were not designed for replay: S3 server access logs and the access log of
//! mlgw.
//!
//! Input is lines of a log; output is accesses in order of time. Logs are only roughly in order: up to
//! [`REORDERED_LINES_MAX`] lines are held back for earlier ones, and an access that arrives later than that
//! gets the time of the last returned access. A log has the number of bytes that were read from an object but
//! not their position: a part is assumed to follow the part that the same caller read last, and to start at
//! the beginning of the object if that one reached its end. If a log has no sizes, an object is assumed to be
//! as large as the part of it that was read. Requests that failed, and requests that neither read nor change
//! an object, are skipped. A bad line is counted and skipped; the first few are kept with their line numbers.
//! Memory is bounded: a map that reaches its limit is cleared.

use super::log_line::{BadLine, LogLineAccess, LoggedOperation};
use super::{json_log, s3_log};
use crate::access::{Access, Caller, Op};
use crate::stable_hash::{hash, mix};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;

/// Maximum number of lines that are held back for earlier ones.
pub const REORDERED_LINES_MAX: usize = 65_536;
/// Number of bad lines that are kept in the report.
const BAD_LINES_KEPT: usize = 5;
/// Maximum number of objects, of positions in them, and of uploads that are remembered.
const REMEMBERED_MAX: usize = 1 << 20;

/// Format of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// S3 server access log.
    S3,
    /// Access log of mlgw.
    Own,
}

/// Statistics of the imported lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportReport {
    /// Lines that are not empty.
    pub lines: u64,
    /// Lines that are accesses.
    pub imported: u64,
    /// Lines of requests that failed, or that neither read nor change an object.
    pub skipped: u64,
    /// Lines that cannot be parsed.
    pub bad: u64,
    /// The first bad lines, with their line numbers, from 1.
    pub first_bad: Vec<(u64, BadLine)>,
    /// Accesses that arrived too late to be put in order and got a later time.
    pub late: u64,
}

/// An access from a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedAccess {
    /// Microseconds since 1970.
    pub at_us: u64,
    /// Caller: hashes of requester, user agent and, for the id, address.
    pub caller: Caller,
    /// Hash of the bucket's name.
    pub bucket: u64,
    /// Key of the object.
    pub key: String,
    /// Operation.
    pub op: Op,
    /// Size of the object in bytes, as far as the log has it.
    pub size: u64,
    /// Requested bytes.
    pub range: Range<u64>,
}

impl ImportedAccess {
    /// The access as an engine receives it.
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

/// Converts the lines of a log to accesses.
#[derive(Debug)]
pub struct LogImport {
    log: LogFormat,
    report: ImportReport,
    line: u64,
    reordered: BinaryHeap<Reverse<LogLineAccess>>,
    /// True at the end of the log, so that no lines are held back.
    ended: bool,
    now_us: u64,
    history: ImportHistory,
}

impl LogImport {
    /// Creates an import of a log of this format.
    #[must_use]
    pub fn new(log: LogFormat) -> Self {
        Self {
            log,
            report: ImportReport::default(),
            line: 0,
            reordered: BinaryHeap::new(),
            ended: false,
            now_us: 0,
            history: ImportHistory::default(),
        }
    }

    /// Adds the next line. Afterwards [`Self::take`] must be called until it returns `None`.
    pub fn line(&mut self, line: &str) {
        self.line += 1;
        let line = line.trim();
        if line.is_empty() {
            return;
        }
        self.report.lines += 1;
        let entry = match self.log {
            LogFormat::S3 => s3_log::entry(line),
            LogFormat::Own => json_log::entry(line),
        };
        match entry {
            Ok(Some(entry)) => self.reordered.push(Reverse(LogLineAccess { line: self.line, ..entry })),
            Ok(None) => self.report.skipped += 1,
            Err(bad) => {
                self.report.bad += 1;
                if self.report.first_bad.len() < BAD_LINES_KEPT {
                    self.report.first_bad.push((self.line, bad));
                }
            }
        }
    }

    /// Marks the end of the log.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Returns the next access, or `None` if a later line may precede it.
    pub fn take(&mut self) -> Option<ImportedAccess> {
        while self.ended || self.reordered.len() > REORDERED_LINES_MAX {
            let Reverse(mut entry) = self.reordered.pop()?;
            if entry.at_us < self.now_us {
                self.report.late += 1;
                entry.at_us = self.now_us;
            }
            self.now_us = entry.at_us;
            match self.history.resolve(entry) {
                Some(imported) => {
                    self.report.imported += 1;
                    return Some(imported);
                }
                None => self.report.skipped += 1,
            }
        }
        None
    }

    /// Statistics of the lines so far.
    #[must_use]
    pub fn report(&self) -> &ImportReport {
        &self.report
    }
}

/// Facts from earlier lines that complete later ones, by hash of the object.
#[derive(Debug, Default)]
struct ImportHistory {
    sizes: HashMap<u64, KnownSize>,
    /// End and length of the last part that a caller read of an object.
    positions: HashMap<u64, (u64, u64)>,
    /// Total bytes of the parts of an upload.
    uploads: HashMap<u64, u64>,
}

/// Size of an object in bytes.
#[derive(Clone, Copy, Debug)]
struct KnownSize {
    bytes: u64,
    /// True if a line has reported the size; false if it is only the number of bytes read so far.
    is_reported: bool,
}

impl ImportHistory {
    /// Returns the access of a line, or `None` if the line only updates the history or lacks information.
    fn resolve(&mut self, entry: LogLineAccess) -> Option<ImportedAccess> {
        let object = hash(entry.bucket, &entry.key);
        let known = self.sizes.get(&object).map(|size| size.bytes);
        let (op, size, range) = match entry.operation {
            LoggedOperation::WritePart => {
                *make_room(&mut self.uploads).entry(object).or_default() += entry.bytes;
                return None;
            }
            LoggedOperation::Read { is_part: true } => {
                let range = self.part(object, &entry);
                (Op::Read, self.sizes.get(&object)?.bytes, range)
            }
            LoggedOperation::Read { is_part: false } => {
                // A response that was cut short contains the beginning of the object.
                let size = self.record_size(object, entry.size.unwrap_or(entry.bytes));
                (Op::Read, size, 0..entry.bytes.min(size))
            }
            LoggedOperation::Write | LoggedOperation::Complete => {
                let parts =
                    self.uploads.remove(&object).filter(|_| entry.operation == LoggedOperation::Complete);
                let size = self.record_size(object, entry.size.or(parts).or(known)?);
                (Op::Write, size, 0..size)
            }
            LoggedOperation::Delete => {
                self.sizes.remove(&object);
                let size = entry.size.or(known).unwrap_or_default();
                (Op::Delete, size, 0..size)
            }
        };
        let caller = Caller { id: entry.caller.0, family: entry.caller.1 };
        Some(ImportedAccess {
            at_us: entry.at_us,
            caller,
            bucket: entry.bucket,
            key: entry.key,
            op,
            size,
            range,
        })
    }

    fn record_size(&mut self, object: u64, bytes: u64) -> u64 {
        make_room(&mut self.sizes).insert(object, KnownSize { bytes, is_reported: true });
        bytes
    }

    /// Range of a partial read, derived from the caller's previous part. While no line has reported the
    /// size of the object, a part that is shorter than the previous one is assumed to be the last.
    fn part(&mut self, object: u64, entry: &LogLineAccess) -> Range<u64> {
        if let Some(size) = entry.size {
            self.record_size(object, size);
        }
        let size =
            make_room(&mut self.sizes).entry(object).or_insert(KnownSize { bytes: 0, is_reported: false });
        let place = make_room(&mut self.positions).entry(object ^ mix(entry.caller.0)).or_default();
        let mut begin = place.0;
        if size.is_reported && begin.saturating_add(entry.bytes) > size.bytes {
            begin = 0;
        }
        let mut end = begin.saturating_add(entry.bytes);
        let mut is_last = begin > 0 && entry.bytes < place.1;
        if size.is_reported {
            end = end.min(size.bytes);
            is_last = end == size.bytes;
        } else {
            size.bytes = size.bytes.max(end);
        }
        *place = (if is_last { 0 } else { end }, entry.bytes);
        begin..end
    }
}

/// Clears a map that has reached its limit.
fn make_room<T>(map: &mut HashMap<u64, T>) -> &mut HashMap<u64, T> {
    if map.len() >= REMEMBERED_MAX {
        map.clear();
    }
    map
}

#[cfg(test)]
mod tests;
