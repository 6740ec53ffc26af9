//! Locations of the parts of a data directory.

use mlgw_config::Config;
use mlgw_segments::hot::SegmentDirs;
use std::path::PathBuf;

/// Locations of the parts of a data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreLocation {
    /// The data directory.
    pub dir: PathBuf,
    /// Its segments.
    pub segments: SegmentDirs,
    /// The checkpoints of its catalogue.
    pub checkpoints: PathBuf,
}

impl StoreLocation {
    /// Returns the locations for a server with this configuration.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        Self {
            dir: config.data_dir.clone(),
            segments: SegmentDirs::new(config.segments_dir(), config.cold.dirs.clone()),
            checkpoints: config.checkpoints_dir(),
        }
    }

    /// Returns the directory of the catalogue.
    #[must_use]
    pub fn catalogue(&self) -> PathBuf {
        self.dir.join("catalogue")
    }

    /// Returns true if a server has ever begun to write a log in this directory.
    #[must_use]
    pub fn has_run(&self) -> bool {
        self.catalogue().join("log/CURRENT").exists()
    }
}
