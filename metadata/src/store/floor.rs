//! Floor of the log: the minimum number of entries that it must have, because they were synced.
//!
//! A log that was emptied, removed or replaced looks like that of a quiet server. The floor is therefore kept
//! outside the log: a log that ends below it has lost entries that may have been acknowledged. The floor
//! never exceeds the number of synced entries.
//!
//! The file `floor` has two slots of one sector, written alternately and synced, at most once a second. A
//! crash leaves the newer slot whole or torn; the older one is whole then. Slots of other timelines are
//! ignored.

use crate::store_error::StoreError;
use mlgw_common::checksum::crc32c;
use mlgw_common::{Incarnation, regular};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// File in the catalogue's directory.
pub(crate) const FLOOR_FILE: &str = "floor";
/// Size of a sector: most disks write a sector completely or not at all.
const SLOT_BYTES: usize = 512;
const SLOTS: u64 = 2;
const MAGIC: &str = "mlgw-floor 1";

/// The floor of a running catalogue.
pub(crate) struct Floor {
    path: PathBuf,
    incarnation: Incarnation,
    file: Option<File>,
    written: u64,
    slot: u64,
}

impl Floor {
    /// The floor of the catalogue in `dir`; its last written value is `written`.
    pub(crate) fn new(dir: &Path, incarnation: Incarnation, written: u64) -> Self {
        Self { path: dir.join(FLOOR_FILE), incarnation, file: None, written, slot: 0 }
    }

    /// Raises the floor to `entries`, durably. Blocks for a sync, or returns at once if the floor is not
    /// below `entries`.
    pub(crate) fn raise(&mut self, entries: u64) -> io::Result<()> {
        if entries <= self.written {
            return Ok(());
        }
        if self.file.is_none() {
            let mut options = OpenOptions::new();
            let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
            self.file = Some(regular::open_with(options, &self.path)?);
            mlgw_formats::store_files::sync_parent(&self.path)?;
        }
        let Some(file) = &self.file else { return Ok(()) };
        file.write_all_at(&encode(self.incarnation, entries), self.slot * SLOT_BYTES as u64)?;
        file.sync_data()?;
        (self.written, self.slot) = (entries, (self.slot + 1) % SLOTS);
        Ok(())
    }
}

/// The floor of the catalogue in `dir` on the timeline `incarnation`; 0 if none was written.
pub(crate) fn read(dir: &Path, incarnation: Incarnation) -> Result<u64, StoreError> {
    let path = dir.join(FLOOR_FILE);
    let failed = |error: io::Error| StoreError(format!("{}: {error}", path.display()));
    let mut bytes = [0; SLOT_BYTES * SLOTS as usize];
    let file = match regular::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(failed(error)),
    };
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], filled as u64).map_err(failed)? {
            0 => break,
            read => filled += read,
        }
    }
    let slots = bytes.chunks_exact(SLOT_BYTES).filter_map(decode);
    Ok(slots.filter(|(of, _)| *of == incarnation).map(|(_, entries)| entries).max().unwrap_or(0))
}

fn encode(incarnation: Incarnation, entries: u64) -> [u8; SLOT_BYTES] {
    let text = format!("{incarnation} {entries}");
    let line = format!("{MAGIC} {:08x} {text}\n", crc32c(text.as_bytes()));
    let mut slot = [0; SLOT_BYTES];
    slot[..line.len()].copy_from_slice(line.as_bytes());
    slot
}

fn decode(slot: &[u8]) -> Option<(Incarnation, u64)> {
    let end = slot.iter().position(|byte| *byte == b'\n')?;
    let line = std::str::from_utf8(&slot[..end]).ok()?.strip_prefix(MAGIC)?.strip_prefix(' ')?;
    let (crc, text) = line.split_once(' ')?;
    if crc != format!("{:08x}", crc32c(text.as_bytes())) {
        return None;
    }
    let (incarnation, entries) = text.split_once(' ')?;
    Some((incarnation.parse().ok()?, entries.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::{FLOOR_FILE, Floor, SLOT_BYTES, read};
    use mlgw_common::Incarnation;
    use proptest::prelude::*;

    const OWN: Incarnation = Incarnation(7);

    #[test]
    fn the_highest_floor_of_a_timeline_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path(), OWN).unwrap(), 0);
        let mut floor = Floor::new(dir.path(), OWN, 0);
        for entries in [3, 9, 8, 40] {
            floor.raise(entries).unwrap();
        }
        assert_eq!(read(dir.path(), OWN).unwrap(), 40);
        assert_eq!(read(dir.path(), Incarnation(8)).unwrap(), 0);
        Floor::new(dir.path(), Incarnation(8), 0).raise(2).unwrap();
        assert_eq!(read(dir.path(), Incarnation(8)).unwrap(), 2);
    }

    proptest! {
        #[test]
        fn a_torn_slot_leaves_the_other(
            entries in proptest::collection::vec(1u64..1 << 50, 2..6), cut in 0usize..40,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let mut entries = entries;
            entries.sort_unstable();
            entries.dedup();
            let mut floor = Floor::new(dir.path(), OWN, 0);
            for entries in &entries {
                floor.raise(*entries).unwrap();
            }
            let path = dir.path().join(FLOOR_FILE);
            let mut bytes = std::fs::read(&path).unwrap();
            let newest = (entries.len() - 1) % 2 * SLOT_BYTES;
            bytes[newest + cut] ^= 0x20;
            std::fs::write(&path, &bytes).unwrap();
            let older = if entries.len() > 1 { entries[entries.len() - 2] } else { 0 };
            prop_assert_eq!(read(dir.path(), OWN).unwrap(), older);
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..1100)) {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join(FLOOR_FILE), bytes).unwrap();
            prop_assert_eq!(read(dir.path(), OWN).unwrap(), 0);
        }
    }
}
