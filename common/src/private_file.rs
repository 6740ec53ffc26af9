//! Files that only their owner may read, replaced atomically.
//!
//! Invariant: a power loss leaves the old file or the new one, never a part of either.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Writes `bytes` to `path`, readable by its owner only. Durable when it returns; a power loss before leaves
/// the old file or the new one.
///
/// # Errors
/// The error of the operating system.
pub fn write(dir: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    // Remains of an interrupted write; that file was never used.
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    File::open(dir)?.sync_all()
}
