//! Catalogues that do not count: unfinished ones, and those that another one replaced.
//!
//! `node.json` names the catalogue that counts, which is never removed. If it has no log, nothing is removed:
//! the other one may be all that is left. A power loss leaves a part of a catalogue that does not count,
//! which the next start removes.

use crate::catalogue_dir::CatalogueName;
use crate::checkpoint_dir;
use crate::data_dir::DataDir;
use crate::location::StoreLocation;
use crate::node_file::DataDirError;
use mlgw_common::Lineage;
use mlgw_formats::store_files;
use std::io;
use std::path::{Path, PathBuf};

/// Removes the catalogues of a locked directory that do not count, and their checkpoints. `place` is its
/// location. Returns the removed paths.
///
/// # Errors
/// When a directory cannot be read or removed.
pub fn remove_leftovers(dir: &DataDir, place: &StoreLocation) -> Result<Vec<PathBuf>, DataDirError> {
    let node = dir.node();
    assert_eq!(node.catalogue, place.catalogue_name(), "the location is that of the directory");
    if !place.has_run() {
        return Ok(Vec::new());
    }
    let mut removed = remove_catalogues(&place.dir, node.catalogue)?;
    if let Some(lineage) = node.lineage()
        && checkpoint_dir::has_own_mark(&place.all_checkpoints, &lineage)
    {
        removed.extend(remove_checkpoints(place, &lineage)?);
    }
    Ok(removed)
}

/// Removes all catalogues in `dir` except `current`.
fn remove_catalogues(dir: &Path, current: CatalogueName) -> Result<Vec<PathBuf>, DataDirError> {
    let all = CatalogueName::list(dir).map_err(at(dir))?;
    let others = all.into_iter().filter(|name| *name != current).map(|name| dir.join(name.to_string()));
    others.map(|path| remove(&path).map(|()| path)).collect()
}

/// Removes the checkpoints of all catalogues except the current one.
fn remove_checkpoints(place: &StoreLocation, own: &Lineage) -> Result<Vec<PathBuf>, DataDirError> {
    let (all, current) = (&*place.all_checkpoints, place.catalogue_name());
    let mut removed = Vec::new();
    for name in CatalogueName::list(all).map_err(at(all))?.into_iter().filter(|name| *name != current) {
        let path = all.join(name.to_string());
        remove(&path)?;
        removed.push(path);
    }
    // Those of the first catalogue are in the directory itself.
    if !current.is_first() && checkpoint_dir::has_own_mark(&place.checkpoints, own) {
        for entry in std::fs::read_dir(all).map_err(at(all))? {
            let entry = entry.map_err(at(all))?;
            if entry.file_name().to_string_lossy().starts_with("checkpoint-") {
                remove(&entry.path())?;
                removed.push(entry.path());
            }
        }
    }
    Ok(removed)
}

fn remove(path: &Path) -> Result<(), DataDirError> {
    let removed = match store_files::remove_dir(path) {
        // A mount point stays, empty.
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(()),
        removed => removed,
    };
    removed.and_then(|()| store_files::sync_parent(path)).map_err(at(path))
}

fn at(path: &Path) -> impl Fn(io::Error) -> DataDirError {
    let path = path.to_owned();
    move |source| DataDirError::Io { path: path.clone(), source }
}

#[cfg(test)]
mod tests {
    use super::remove_leftovers;
    use crate::catalogue_dir::CatalogueName;
    use crate::data_dir::DataDir;
    use mlgw_common::Timestamp;
    use mlgw_config::{Config, ConfigSources, LoadedConfig};
    use mlgw_segments::hot::write_mark;
    use std::path::Path;

    fn config(dir: &Path) -> Config {
        Config { data_dir: dir.to_owned(), ..LoadedConfig::load(&ConfigSources::default()).unwrap().config }
    }

    fn catalogue(dir: &Path, name: &str) {
        std::fs::create_dir_all(dir.join(name).join("log")).unwrap();
        std::fs::write(dir.join(name).join("log/CURRENT"), "").unwrap();
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn all_catalogues_but_the_current_one_are_removed() {
        let room = tempfile::tempdir().unwrap();
        let (dir, config) = (room.path(), config(room.path()));
        let (mut held, _) = DataDir::open(dir, Timestamp(0)).unwrap();
        for name in ["catalogue", "catalogue-1", "catalogue-7", "catalogue-x", "my-catalogue"] {
            catalogue(dir, name);
        }
        let lineage = held.lineage();
        for checkpoint in ["checkpoint-3", "checkpoint-4.new", "catalogue-1/checkpoint-1", "catalogue-7"] {
            std::fs::create_dir_all(dir.join("checkpoints").join(checkpoint)).unwrap();
        }
        remove_leftovers(&held, &held.location(&config)).unwrap();
        assert_eq!(names(&dir.join("checkpoints")).len(), 4, "the directory has no mark of this server");
        write_mark(&dir.join("checkpoints"), &lineage.own).unwrap();
        catalogue(dir, "catalogue-1");
        remove_leftovers(&held, &held.location(&config)).unwrap();
        assert!(dir.join("catalogue").exists() && !dir.join("catalogue-1").exists());
        assert!(dir.join("catalogue-x").exists() && dir.join("my-catalogue").exists());
        assert_eq!(names(&dir.join("checkpoints")), ["checkpoint-3", "checkpoint-4.new", "owner"]);

        held.describe(held.node().clustered(CatalogueName::FIRST.next()).unwrap()).unwrap();
        std::fs::create_dir_all(dir.join("catalogue-1")).unwrap();
        assert!(remove_leftovers(&held, &held.location(&config)).unwrap().is_empty(), "it has no log");
        assert!(dir.join("catalogue").exists());
        catalogue(dir, "catalogue-1");
        std::fs::create_dir_all(dir.join("checkpoints/catalogue-1/checkpoint-1")).unwrap();
        write_mark(&dir.join("checkpoints/catalogue-1"), &lineage.own).unwrap();
        remove_leftovers(&held, &held.location(&config)).unwrap();
        assert!(!dir.join("catalogue").exists() && dir.join("catalogue-1/log/CURRENT").exists());
        assert_eq!(names(&dir.join("checkpoints")), ["catalogue-1", "owner"]);
        assert_eq!(names(&dir.join("checkpoints/catalogue-1")), ["checkpoint-1", "owner"]);
    }
}
