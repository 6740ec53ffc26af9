//! How far scrubbing is and what it found, in a file of this node: replaced whole and synced.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::quarantine::BadBlock;

/// Format of the file.
const FORMAT: u32 = 1;

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
    /// Replaces the file at `path`.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let new = path.with_extension("json.new");
        let mut file = File::create(&new)?;
        serde_json::to_writer(&file, &Self { format: FORMAT, ..self.clone() })?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        std::fs::rename(&new, path)?;
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    }

    /// What the file at `path` says; the beginning when there is none. One that is damaged says
    /// nothing worth stopping for: a new pass finds again what it listed.
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error),
        };
        // A newer format may be one that nothing else of which is understood.
        let format = serde_json::from_slice::<Format>(&text).map_or(FORMAT, |found| found.format);
        if format > FORMAT {
            let path = path.display();
            let what = format!("{path} has format {format}, which a newer mlgw wrote: use that one");
            return Err(io::Error::other(what));
        }
        serde_json::from_slice(&text).or_else(|error| {
            tracing::warn!(path = %path.display(), %error, "damaged; the segments are scrubbed anew");
            Ok(Self { began_ms: 1, ..Self::default() })
        })
    }
}

#[derive(Deserialize)]
struct Format {
    format: u32,
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
