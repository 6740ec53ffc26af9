//! Directory of numbered trace files, `000001.mlgwtrace` and so on, each a complete trace of accesses.
//!
//! The directory keeps a limited number of files, the newest ones. A power loss destroys what was not on disk
//! yet, and a torn block at the end of the last file.

use mlgw_cache::policy_driver::RecordedTracePiece;
use mlgw_common::regular;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::mpsc::Receiver;

/// Pieces in the queue for the disk: some 4 MiB.
pub(crate) const PIECES_WAITING_MAX: usize = 64;
const EXTENSION: &str = "mlgwtrace";

/// Returns the name of file `number`.
pub(crate) fn file_name(number: u64) -> String {
    format!("{number:06}.{EXTENSION}")
}

/// Returns the numbers and lengths of the files in a directory.
pub(crate) fn files(dir: &Path) -> io::Result<Vec<(u64, u64)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        let number = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
        if let Some(number) = number.filter(|_| path.extension().is_some_and(|of| of == EXTENSION)) {
            files.push((number, entry.metadata()?.len()));
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Writes pieces until the channel closes, into files numbered from `after` + 1. Removes the oldest files
/// when there are more than `files_max`.
pub(crate) fn write(
    dir: &Path,
    after: u64,
    files_max: u64,
    pieces: &Receiver<RecordedTracePiece>,
) -> io::Result<()> {
    assert!(files_max > 0, "the file that is being written is kept");
    let (mut file, mut number): (Option<File>, u64) = (None, after);
    for piece in pieces {
        match (piece, &mut file) {
            (RecordedTracePiece::File, last) => {
                if let Some(last) = last {
                    last.sync_data()?;
                }
                number += 1;
                file = Some(create(&dir.join(file_name(number)))?);
                for (old, _) in files(dir)? {
                    if old + files_max <= number {
                        fs::remove_file(dir.join(file_name(old)))?;
                    }
                }
            }
            (RecordedTracePiece::Bytes(bytes), Some(file)) => file.write_all(&bytes)?,
            (RecordedTracePiece::Bytes(_), None) => {}
        }
    }
    file.map_or(Ok(()), |file| file.sync_data())?;
    File::open(dir)?.sync_all()
}

fn create(path: &Path) -> io::Result<File> {
    regular::open_with(OpenOptions::new().write(true).create(true).truncate(true), path)
}
