//! Small files of JSON that are replaced whole: what a node knows and the catalogue does not.
//!
//! When power fails there is the old one or the new one. Each says its format; one that is of a newer format
//! is not touched, one that is damaged counts as absent, for nothing that is acknowledged depends on it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use mlgw_common::regular;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What every such file has.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// Replaces the file at `path`; durable when it returns.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn replace(path: &Path, content: &impl Serialize) -> io::Result<()> {
    let new = path.with_extension("json.new");
    let mut file = regular::open_with(OpenOptions::new().write(true).create(true).truncate(true), &new)?;
    serde_json::to_writer(&file, content)?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// What the file at `path` says, of a format up to `format`; nothing when there is none, or a damaged one.
///
/// # Errors
/// When it cannot be read, or is of a newer format.
pub(crate) fn read<T: DeserializeOwned>(path: &Path, format: u32) -> io::Result<Option<T>> {
    let Some(text) = text(path, format)? else { return Ok(None) };
    match serde_json::from_slice(&text) {
        Ok(content) => Ok(Some(content)),
        Err(error) => {
            tracing::error!(path = %path.display(), %error, "a damaged state file; it starts empty");
            Ok(None)
        }
    }
}

/// Gives the file at `path` a name under which nothing reads it, and returns that.
///
/// # Errors
/// When it cannot be renamed.
pub(crate) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let names = (1_u64..).map(|number| PathBuf::from(format!("{}.set-aside-{number}", path.display())));
    let Some(aside) = names.into_iter().find(|aside| !aside.exists()) else {
        return Err(io::Error::from(io::ErrorKind::AlreadyExists));
    };
    std::fs::rename(path, &aside)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(aside)
}

/// The text of the file at `path`, if there is one, of a format up to `format` as far as it says.
fn text(path: &Path, format: u32) -> io::Result<Option<Vec<u8>>> {
    let text = match regular::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // A newer format may be one that nothing else of which is understood.
    let found = serde_json::from_slice::<Format>(&text).map_or(format, |found| found.format);
    if found > format {
        let path = path.display();
        let what = format!("{path} has format {found}, which a newer mlgw wrote: use that one");
        return Err(io::Error::other(what));
    }
    Ok(Some(text))
}

/// Checks that a start can use the file at `path`: that it is not there, or can be read and is of a format up
/// to `format`.
///
/// # Errors
/// As [`read`].
pub(crate) fn check(path: &Path, format: u32) -> io::Result<()> {
    text(path, format).map(drop)
}
