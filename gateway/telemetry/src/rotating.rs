//! Log file of bounded length with rotation: a full file is renamed, and the oldest files are deleted.
//!
//! `NAME` is the current file, `NAME.1` the previous one, and so on. A line that a power loss left incomplete
//! is terminated at the next opening, so that no later line is appended to it.

use mlgw_common::regular;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The current file and its rotation settings.
#[derive(Debug)]
pub(crate) struct RotatingFile {
    dir: PathBuf,
    name: &'static str,
    file: File,
    bytes: u64,
    bytes_max: u64,
    files_max: u64,
}

impl RotatingFile {
    /// Opens or creates `name` in `dir`, which is created if it does not exist. A file has at most
    /// `bytes_max` bytes (or one line); `files_max` files are kept.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub(crate) fn open(dir: &Path, name: &'static str, bytes_max: u64, files_max: u64) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let mut file = open_file(dir, name)?;
        let mut bytes = file.seek(SeekFrom::End(0))?;
        if bytes > 0 && !ends_in_newline(&mut file)? {
            file.write_all(b"\n")?;
            bytes += 1;
        }
        file.sync_all()?;
        File::open(dir)?.sync_all()?;
        dir.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())?;
        Ok(Self { dir: dir.to_owned(), name, file, bytes, bytes_max, files_max })
    }

    /// Appends whole lines.
    ///
    /// # Errors
    /// Returns the error of the operating system; a part of the lines may have been written.
    pub(crate) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.bytes > 0 && self.bytes + lines.len() as u64 > self.bytes_max {
            self.rotate()?;
        }
        self.bytes += lines.len() as u64;
        self.file.write_all(lines)
    }

    /// Syncs the written lines to stable media.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Renames `NAME` to `NAME.1`, `NAME.1` to `NAME.2`, and so on; the last file is replaced.
    fn rotate(&mut self) -> io::Result<()> {
        let numbered = |n: u64| match n {
            0 => self.dir.join(self.name),
            n => self.dir.join(format!("{}.{n}", self.name)),
        };
        // With a single file allowed the file is removed; otherwise the highest number is replaced.
        for n in (1..self.files_max).rev() {
            match std::fs::rename(numbered(n - 1), numbered(n)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if self.files_max == 1 {
            std::fs::remove_file(numbered(0))?;
        }
        self.file = open_file(&self.dir, self.name)?;
        self.bytes = 0;
        File::open(&self.dir)?.sync_all()
    }
}

fn open_file(dir: &Path, name: &str) -> io::Result<File> {
    regular::open_with(OpenOptions::new().read(true).append(true).create(true).mode(0o600), &dir.join(name))
}

fn ends_in_newline(file: &mut File) -> io::Result<bool> {
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}
