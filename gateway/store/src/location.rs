//! Locations of the parts of a data directory.

use crate::catalogue_dir::CatalogueName;
use crate::node_file::NodeDescription;
use mlgw_config::Config;
use mlgw_segments::hot::SegmentDirs;
use std::path::{Path, PathBuf};

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
        Self::with_catalogue(config, current_catalogue(&config.data_dir))
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

/// Returns the catalogue that counts in a data directory. Without a readable `node.json`, it is the only one
/// that exists, or else the first.
fn current_catalogue(dir: &Path) -> CatalogueName {
    match NodeDescription::read(dir) {
        Ok(Some(node)) => node.catalogue,
        Ok(None) | Err(_) => match CatalogueName::list(dir).unwrap_or_default()[..] {
            [only] => only,
            _ => CatalogueName::FIRST,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::current_catalogue;
    use crate::catalogue_dir::CatalogueName;
    use crate::node_file::NodeDescription;
    use mlgw_common::Timestamp;

    #[test]
    fn the_description_decides_which_catalogue_counts() {
        let room = tempfile::tempdir().unwrap();
        let (dir, second) = (room.path(), CatalogueName::FIRST.next());
        assert_eq!(current_catalogue(dir), CatalogueName::FIRST, "an empty directory");
        std::fs::create_dir(dir.join("catalogue-1")).unwrap();
        assert_eq!(current_catalogue(dir), second, "the only one");
        std::fs::create_dir(dir.join("catalogue")).unwrap();
        assert_eq!(current_catalogue(dir), CatalogueName::FIRST, "one may be unfinished");
        let node = NodeDescription::first(Timestamp(0)).unwrap();
        node.write(dir).unwrap();
        assert_eq!(current_catalogue(dir), CatalogueName::FIRST);
        node.clustered(second).unwrap().write(dir).unwrap();
        assert_eq!(current_catalogue(dir), second);
    }
}
