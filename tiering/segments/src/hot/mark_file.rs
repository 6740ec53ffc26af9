//! The file `owner` of a segment directory, which names the server that owns it, and the look for segments.
//!
//! A mark is one line, `mlgw-owner 1 CRC IDENTITY`, with `incomplete` at its end if the directory was adopted
//! although segments were missing. It is written under another name, synced, renamed, and the directory
//! synced: a power loss leaves the old mark or the new one.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use mlgw_common::checksum::crc32c;
use mlgw_common::{Identity, regular};
use rustix::fs::{Advice, fadvise};

use super::file_names::segment_of_file_name;

/// Name of a directory's mark.
pub const MARK_FILE_NAME: &str = "owner";
/// Name of a mark that is being written.
pub(super) const MARK_TEMP_NAME: &str = "owner.new";
const MAGIC: &str = "mlgw-owner 1 ";
/// Suffix of a mark that was written by adopting a directory although segments were missing.
const INCOMPLETE: &str = " incomplete";
/// Maximum bytes to read of a mark; any mark is shorter.
const MARK_BYTES_MAX: u64 = 256;

/// Content of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DirectoryMark {
    pub(super) owner: Identity,
    /// True if the directory was adopted although segments that belong there were missing.
    pub(super) incomplete: bool,
}

/// Returns the identity in the mark of a directory; `None` if there is no mark.
///
/// # Errors
/// Of kind `InvalidData` when the mark is damaged.
pub fn read_mark(dir: &Path) -> io::Result<Option<Identity>> {
    Ok(mark_of(dir)?.map(|mark| mark.owner))
}

/// Returns the mark of a directory; `None` if there is none.
///
/// # Errors
/// Of kind `InvalidData` when the mark is damaged.
pub(super) fn mark_of(dir: &Path) -> io::Result<Option<DirectoryMark>> {
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the mark is damaged");
    let path = dir.join(MARK_FILE_NAME);
    let file = match regular::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        // Something else than a file is there.
        Err(error) if error.raw_os_error().is_none() => return Err(damaged()),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(MARK_BYTES_MAX).read_to_end(&mut bytes)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| damaged())?;
    let line = text.strip_prefix(MAGIC).and_then(|rest| rest.strip_suffix('\n')).ok_or_else(damaged)?;
    let (crc, stated) = line.split_once(' ').ok_or_else(damaged)?;
    if crc != format!("{:08x}", crc32c(stated.as_bytes())) {
        return Err(damaged());
    }
    let (identity, incomplete) = match stated.strip_suffix(INCOMPLETE) {
        Some(identity) => (identity, true),
        None => (stated, false),
    };
    let owner = identity.parse().map_err(|_| damaged())?;
    Ok(Some(DirectoryMark { owner, incomplete }))
}

/// Like [`mark_of`], from the disk instead of the page cache.
///
/// # Errors
/// As for [`mark_of`].
pub(super) fn mark_on_disk(dir: &Path) -> io::Result<Option<DirectoryMark>> {
    if let Ok(file) = regular::open(&dir.join(MARK_FILE_NAME)) {
        // A file system without pages to drop reads from its own memory.
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
    }
    mark_of(dir)
}

/// Writes the mark of a directory, durably.
pub fn write_mark(dir: &Path, owner: &Identity) -> io::Result<()> {
    store_mark(dir, DirectoryMark { owner: *owner, incomplete: false })
}

/// Writes the mark of an empty directory in which segments are expected, durably.
pub(super) fn write_incomplete_mark(dir: &Path, owner: &Identity) -> io::Result<()> {
    store_mark(dir, DirectoryMark { owner: *owner, incomplete: true })
}

/// Replaces the mark `from` of a directory by `to`, durably. A directory with any other mark stays as it is.
pub fn replace_mark(dir: &Path, from: &Identity, to: &Identity) -> io::Result<()> {
    match mark_of(dir) {
        Ok(Some(mark)) if mark.owner == *from => store_mark(dir, DirectoryMark { owner: *to, ..mark }),
        _ => Ok(()),
    }
}

pub(super) fn store_mark(dir: &Path, mark: DirectoryMark) -> io::Result<()> {
    let stated = format!("{}{}", mark.owner, if mark.incomplete { INCOMPLETE } else { "" });
    let line = format!("{MAGIC}{:08x} {stated}\n", crc32c(stated.as_bytes()));
    let new = dir.join(MARK_TEMP_NAME);
    let mut options = OpenOptions::new();
    let mut file = regular::open_with(options.write(true).create(true).truncate(true).mode(0o600), &new)?;
    file.write_all(line.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, dir.join(MARK_FILE_NAME))?;
    File::open(dir)?.sync_all()
}

/// True if the directory has a segment file.
pub(super) fn has_segments(dir: &Path) -> io::Result<bool> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    for entry in entries {
        if entry?.file_name().to_str().and_then(segment_of_file_name).is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}
