//! Files of a directory that hold what the policy engine hears, `000001.mlgwtrace` and so on, each a trace by
//! itself.
//!
//! Always: of so many files as were asked for the newest are there. When power fails, what was not on the
//! disk is lost, and a block that is torn at the end of the last file.

use mlgw_cache::policy::Piece;
use mlgw_common::regular;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::mpsc::Receiver;

/// Pieces that wait for the disk: some 4 MiB.
pub(crate) const PIECES_WAITING_MAX: usize = 64;
const EXTENSION: &str = "mlgwtrace";

/// What file `number` is called.
pub(crate) fn file_name(number: u64) -> String {
    format!("{number:06}.{EXTENSION}")
}

/// The files of a directory: their numbers and lengths.
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

/// Writes pieces until there are no more, into files behind the one of the number `after`; the oldest files
/// go when there are too many.
pub(crate) fn write(dir: &Path, after: u64, files_max: u64, pieces: &Receiver<Piece>) -> io::Result<()> {
    let (mut file, mut number): (Option<File>, u64) = (None, after);
    for piece in pieces {
        match (piece, &mut file) {
            (Piece::File, last) => {
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
            (Piece::Bytes(bytes), Some(file)) => file.write_all(&bytes)?,
            (Piece::Bytes(_), None) => {}
        }
    }
    file.map_or(Ok(()), |file| file.sync_data())?;
    File::open(dir)?.sync_all()
}

fn create(path: &Path) -> io::Result<File> {
    regular::open_with(OpenOptions::new().write(true).create(true).truncate(true), path)
}
