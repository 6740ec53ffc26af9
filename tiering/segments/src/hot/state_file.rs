//! Small JSON files that are replaced atomically: state of a node outside of the catalogue.
//!
//! After a power loss the file has its old or its new content. Each file contains its format version; a file
//! of a newer format is not touched, a damaged file counts as absent, since no acknowledged data depends on
//! it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use mlgw_common::regular;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The field that every state file has.
#[derive(Deserialize)]
struct StateFileFormat {
    format: u32,
}

/// Replaces the file at `path`; durable when the call returns.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn replace(path: &Path, content: &impl Serialize) -> io::Result<()> {
    let new = path.with_extension("json.new");
    let mut file = regular::open_with(OpenOptions::new().write(true).create(true).truncate(true), &new)?;
    serde_json::to_writer(&file, content)?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// Reads the file at `path`, of a format up to `format`; `None` if there is no file or a damaged one.
///
/// # Errors
/// When the file cannot be read, or is of a newer format.
pub(crate) fn read<T: DeserializeOwned>(path: &Path, format: u32) -> io::Result<Option<T>> {
    let Some(text) = text(path, format)? else { return Ok(None) };
    match serde_json::from_slice(&text) {
        Ok(content) => Ok(Some(content)),
        Err(error) => {
            tracing::error!(path = %path.display(), %error,
                "a state file is damaged; starting with an empty one");
            Ok(None)
        }
    }
}

/// Renames the file at `path` to an unused name and returns that name.
///
/// # Errors
/// When the file cannot be renamed.
pub(crate) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let names = (1_u64..).map(|number| PathBuf::from(format!("{}.set-aside-{number}", path.display())));
    let Some(aside) = names.into_iter().find(|aside| !aside.exists()) else {
        return Err(io::Error::from(io::ErrorKind::AlreadyExists));
    };
    std::fs::rename(path, &aside)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(aside)
}

/// Returns the text of the file at `path`, if it exists, after checking its format version.
fn text(path: &Path, format: u32) -> io::Result<Option<Vec<u8>>> {
    let text = match regular::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // Parsed separately, since all other fields of a newer format may be unknown.
    let found = serde_json::from_slice::<StateFileFormat>(&text).map_or(format, |found| found.format);
    if found > format {
        let path = path.display();
        let what =
            format!("{path} has format {found}, written by a newer mlgw; use that version or a newer one");
        return Err(io::Error::other(what));
    }
    Ok(Some(text))
}

/// Checks that a server can start with the file at `path`: it does not exist, or is readable and of a format
/// up to `format`.
///
/// # Errors
/// As for [`read`].
pub(crate) fn check(path: &Path, format: u32) -> io::Result<()> {
    text(path, format).map(drop)
}
