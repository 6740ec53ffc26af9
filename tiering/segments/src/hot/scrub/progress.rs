//! Progress and findings of the scrub, in a file of this node that is replaced atomically and synced.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::objects::ObjectPosition;
use super::quarantine::BadBlock;
use crate::hot::state_file;

/// Format version of the file.
pub(crate) const FORMAT: u32 = 1;

/// Progress of the scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// Format version of the file.
    format: u32,
    /// True while a pass is running.
    pub running: bool,
    /// Time at which the newest pass started, in milliseconds since the Unix epoch.
    pub began_ms: i64,
    /// Id of the last segment that the pass has completed.
    pub after: u64,
    /// Position among the objects, once the segments are done; `None` when the pass has compared its share.
    #[serde(default)]
    pub(super) objects: Option<ObjectPosition>,
    /// Objects compared with their checksums by all passes.
    #[serde(default)]
    pub compared_objects: u64,
    /// Bytes read by the pass.
    pub read_bytes: u64,
    /// Number of completed passes.
    pub passes: u64,
    /// Time at which the newest completed pass ended, in milliseconds since the Unix epoch.
    pub ended_ms: i64,
    /// Segments to examine against the catalogue's references.
    pub(super) suspects: BTreeSet<u64>,
    /// Quarantined blocks.
    pub bad: Vec<BadBlock>,
}

impl ScrubStatus {
    /// Returns the bodies that are listed because they do not match their checksum as a whole.
    pub(super) fn whole_objects(&self) -> BTreeSet<u64> {
        self.bad.iter().filter(|bad| bad.whole).map(|bad| bad.body).collect()
    }

    /// Replaces the file at `path`.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        state_file::replace(path, &Self { format: FORMAT, ..self.clone() })
    }

    /// Reads the file at `path`; returns the initial state if there is none. For a damaged file, an empty
    /// state with an overdue pass is returned: that pass finds the listed blocks again.
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let damaged = || Self { began_ms: i64::from(path.exists()), ..Self::default() };
        Ok(state_file::read(path, FORMAT)?.unwrap_or_else(damaged))
    }
}

#[cfg(test)]
mod tests {
    use super::ScrubStatus;

    #[test]
    fn a_damaged_file_starts_a_new_pass_and_a_newer_one_is_refused() {
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
