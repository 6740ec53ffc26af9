//! How far scrubbing is and what it found, in a file of this node: replaced whole and synced.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::objects::ObjectPlace;
use super::quarantine::BadBlock;
use crate::hot::state_file;

/// Format of the file.
pub(crate) const FORMAT: u32 = 1;

/// How far scrubbing is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// Format of the file.
    format: u32,
    /// Whether a pass is under way.
    pub running: bool,
    /// When the newest pass began, milliseconds since the Unix epoch.
    pub began_ms: i64,
    /// The last segment that it has done.
    pub after: u64,
    /// Where it is among the objects, once the segments are done; none when it has compared its share.
    #[serde(default)]
    pub(super) objects: Option<ObjectPlace>,
    /// Objects that all passes have compared with their checksums.
    #[serde(default)]
    pub compared_objects: u64,
    /// Bytes that it has read.
    pub read_bytes: u64,
    /// Passes that came to their end.
    pub passes: u64,
    /// When the newest of them did, milliseconds since the Unix epoch.
    pub ended_ms: i64,
    /// Segments that are to be looked at closely.
    pub(super) suspects: BTreeSet<u64>,
    /// What is bad.
    pub bad: Vec<BadBlock>,
}

impl ScrubStatus {
    /// The bodies that are listed because they do not have their checksum.
    pub(super) fn whole_objects(&self) -> BTreeSet<u64> {
        self.bad.iter().filter(|bad| bad.whole).map(|bad| bad.body).collect()
    }

    /// Replaces the file at `path`.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        state_file::replace(path, &Self { format: FORMAT, ..self.clone() })
    }

    /// What the file at `path` says; the beginning when there is none. One that is damaged says
    /// nothing worth stopping for: a new pass, which is due then, finds again what it listed.
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let damaged = || Self { began_ms: i64::from(path.exists()), ..Self::default() };
        Ok(state_file::read(path, FORMAT)?.unwrap_or_else(damaged))
    }
}

#[cfg(test)]
mod tests {
    use super::ScrubStatus;

    #[test]
    fn the_file_comes_back_a_damaged_one_begins_anew_and_a_newer_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scrub.json");
        assert_eq!(ScrubStatus::read(&path).unwrap(), ScrubStatus::default());
        let status = ScrubStatus { running: true, after: 7, suspects: [3].into(), ..ScrubStatus::default() };
        status.write(&path).unwrap();
        assert_eq!(ScrubStatus::read(&path).unwrap(), ScrubStatus { format: 1, ..status });
        std::fs::write(&path, b"{").unwrap();
        assert_eq!(ScrubStatus::read(&path).unwrap().began_ms, 1, "a pass is due");
        std::fs::write(&path, b"{\"format\":2,\"other\":0}").unwrap();
        assert!(ScrubStatus::read(&path).unwrap_err().to_string().contains("newer"));
    }
}
