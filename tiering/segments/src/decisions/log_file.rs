//! The file of the decision log: one JSON line per entry, appended.
//!
//! An entry whose count changes is written again; the last line with a sequence number is valid. A full file
//! is renamed and a new one begun, so at most two files exist. Nothing is synced. After a power loss, lines
//! may be missing and the last one torn: lines that do not parse are skipped.

use mlgw_common::limits::DECISIONS_FILE_BYTES_MAX;
use mlgw_common::regular;
use mlgw_formats::decision_entry::DecisionEntry;
use mlgw_formats::decision_lines;
use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Name of the file that is appended to.
const CURRENT_FILE: &str = "decisions.jsonl";
/// Name of the previous, full file.
const PREVIOUS_FILE: &str = "decisions.1.jsonl";

/// The decision files cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}")]
pub struct DecisionFileError {
    path: PathBuf,
    source: io::Error,
}

pub(super) struct DecisionFile {
    dir: PathBuf,
    file: File,
    bytes: u64,
    /// True if the last write failed; the warning is logged once per run of failures.
    write_failed: bool,
}

impl DecisionFile {
    /// Opens the files in `dir`; returns the newest entries in order of their sequence numbers.
    pub(super) fn open(dir: &Path) -> Result<(Self, VecDeque<DecisionEntry>), DecisionFileError> {
        let mut found = BTreeMap::new();
        for name in FILE_NAMES {
            let path = dir.join(name);
            read(&path, &mut found).map_err(|source| DecisionFileError { path, source })?;
        }
        let path = dir.join(CURRENT_FILE);
        let kept = Self::open_for_append(dir, &path).map_err(|source| DecisionFileError { path, source })?;
        Ok((kept, found.into_values().collect()))
    }

    fn open_for_append(dir: &Path, path: &Path) -> io::Result<Self> {
        let mut file = regular::open_with(OpenOptions::new().create(true).append(true), path)?;
        let mut bytes = file.metadata()?.len();
        if bytes > 0 {
            // Ends a line torn by a crash.
            file.write_all(b"\n")?;
            bytes += 1;
        }
        Ok(Self { dir: dir.to_owned(), file, bytes, write_failed: false })
    }

    /// Appends entries. Entries whose write fails are not persisted, but stay in memory.
    pub(super) fn write(&mut self, entries: &[DecisionEntry]) {
        if entries.is_empty() {
            return;
        }
        let written = self.try_write(entries);
        if let Err(error) = &written
            && !self.write_failed
        {
            tracing::warn!(%error, "failed to write the decision log; decisions are lost at a restart");
        }
        self.write_failed = written.is_err();
    }

    fn try_write(&mut self, entries: &[DecisionEntry]) -> io::Result<()> {
        let lines = decision_lines::encode_lines(entries)?;
        if self.bytes > 0 && self.bytes + lines.len() as u64 > DECISIONS_FILE_BYTES_MAX {
            let path = self.dir.join(CURRENT_FILE);
            std::fs::rename(&path, self.dir.join(PREVIOUS_FILE))?;
            *self = Self::open_for_append(&self.dir, &path)?;
        }
        self.file.write_all(&lines)?;
        self.bytes += lines.len() as u64;
        Ok(())
    }
}

/// Names of the decision files in a data directory, oldest first.
pub const FILE_NAMES: [&str; 2] = [PREVIOUS_FILE, CURRENT_FILE];

/// Checks that a server can start with a decision file: the file does not exist, or is readable and has no
/// line of a newer format.
///
/// # Errors
/// The reason why a server would not start.
pub fn check_file(path: &Path) -> io::Result<()> {
    read(path, &mut BTreeMap::new())
}

/// Adds the entries of the file at `path` to `found`.
fn read(path: &Path, found: &mut BTreeMap<u64, DecisionEntry>) -> io::Result<()> {
    let text = match regular::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let newer = |format: u32| {
        io::Error::other(format!(
            "it has lines of format {format}, written by a newer mlgw; use that version or a newer one"
        ))
    };
    if let Some(why) = decision_lines::read_lines(&text, found).map_err(newer)? {
        tracing::warn!(path = %path.display(), why, "skipped invalid lines of the decision log");
    }
    Ok(())
}
