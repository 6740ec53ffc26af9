//! Locations of the parts of a data directory.

use crate::catalogue_dir::CatalogueName;
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
    /// The directory of the checkpoints of all its catalogues.
    pub all_checkpoints: PathBuf,
    /// Its catalogue.
    catalogue: CatalogueName,
}

impl StoreLocation {
    /// Returns the locations for a server with this configuration. `node.json` names the catalogue.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        Self::with_catalogue(config, CatalogueName::current(&config.data_dir))
    }

    /// Returns the locations if the catalogue were this one.
    #[must_use]
    pub(crate) fn with_catalogue(config: &Config, catalogue: CatalogueName) -> Self {
        let all_checkpoints = config.checkpoints_dir();
        Self {
            dir: config.data_dir.clone(),
            segments: SegmentDirs::new(config.segments_dir(), config.cold.dirs.clone()),
            checkpoints: catalogue.checkpoints(&all_checkpoints),
            all_checkpoints,
            catalogue,
        }
    }

    /// Returns the name of the catalogue.
    #[must_use]
    pub const fn catalogue_name(&self) -> CatalogueName {
        self.catalogue
    }

    /// Returns the directory of the catalogue.
    #[must_use]
    pub fn catalogue(&self) -> PathBuf {
        self.dir.join(self.catalogue.to_string())
    }

    /// Returns true if a server has ever begun to write a log in this directory.
    #[must_use]
    pub fn has_run(&self) -> bool {
        self.catalogue().join("log/CURRENT").exists()
    }
}
