//! Copy of a closed store that can be opened and changed without touching the store.
//!
//! Tables never change, so links to them suffice. The links are symbolic, which does not change the files and
//! works across file systems. RocksDB removes the links where it would remove tables. The other files are
//! copied: they are small, or opening changes them.

use mlgw_formats::store_files;
use std::fs;
use std::io;
use std::path::Path;

/// Makes `to` such a copy of the store in `from`.
pub(crate) fn link_store(from: &Path, to: &Path) -> io::Result<()> {
    store_files::make_dir(to)?;
    let from = fs::canonicalize(from)?;
    for entry in fs::read_dir(&from)? {
        let entry = entry?;
        let name = entry.file_name();
        let text = name.to_string_lossy();
        if is_process_file(&text) || !entry.file_type()?.is_file() {
            continue;
        }
        if is_table(&text) {
            std::os::unix::fs::symlink(entry.path(), to.join(&name))?;
        } else {
            fs::copy(entry.path(), to.join(&name))?;
        }
    }
    Ok(())
}

/// True if a file of a store is a table.
pub(crate) fn is_table(name: &str) -> bool {
    name.ends_with(".sst")
}

/// True if a file belongs to the process that has the store open: the information log and the lock.
pub(crate) fn is_process_file(name: &str) -> bool {
    name == "LOCK" || name.starts_with("LOG")
}
