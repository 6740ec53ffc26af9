//! Policy files named in the configuration: read together, and checked every second.
//!
//! All files are read completely before they are compiled. Changes are detected by content, not by
//! modification time, so that none is missed; a file that is read while it is half written is refused or
//! applied, and checked again a second later.

use super::{Policies, PolicyFilesUpdate};
use mlgw_common::limits::{POLICY_FILE_BYTES_MAX, POLICY_FILES_MAX};
use mlgw_formats::schema::PolicyFile;
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Interval between checks of the files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Paths of the watched files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedPolicyFiles {
    /// Policies, the strongest first. If empty, the running policies stay.
    pub files: Vec<PathBuf>,
    /// Framework plugins, or directories of plugins. If empty, the running plugins stay.
    pub frameworks: Vec<PathBuf>,
}

/// Content of the watched files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedContent {
    /// The policies, if any are watched.
    pub custom: Option<Vec<PolicyFile>>,
    /// The plugins, if any are watched.
    pub frameworks: Option<Vec<PolicyFile>>,
    /// SHA-256 of all files.
    pub sum: Vec<u8>,
}

impl WatchedPolicyFiles {
    /// True if no files are watched.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.frameworks.is_empty()
    }

    /// Paths of the files, separated by commas.
    #[must_use]
    pub fn names(&self) -> String {
        let names = self.files.iter().chain(&self.frameworks).map(|path| path.display().to_string());
        names.collect::<Vec<_>>().join(", ")
    }

    /// Reads all files. Blocks the calling thread.
    ///
    /// # Errors
    /// The file that cannot be read, and the reason.
    pub fn read(&self) -> Result<WatchedContent, String> {
        let custom = self.files.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
        let mut frameworks = Vec::new();
        for path in &self.frameworks {
            for path in plugins(path).map_err(|error| format!("{}: {error}", path.display()))? {
                frameworks.push(read(&path)?);
            }
        }
        for (what, count) in [("policies", custom.len()), ("plugins", frameworks.len())] {
            if count > POLICY_FILES_MAX {
                return Err(format!("{count} {what} are watched; at most {POLICY_FILES_MAX} are allowed"));
            }
        }
        let mut sum = Sha256::new();
        for file in custom.iter().chain(&frameworks) {
            for text in [&file.name, &file.text] {
                sum.update((text.len() as u64).to_le_bytes());
                sum.update(text);
            }
        }
        let given = |paths: &[PathBuf], files| (!paths.is_empty()).then_some(files);
        Ok(WatchedContent {
            custom: given(&self.files, custom),
            frameworks: given(&self.frameworks, frameworks),
            sum: sum.finalize().to_vec(),
        })
    }
}

/// Plugin files in a directory, sorted by name; or the path itself if it is a file.
fn plugins(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path()));
    let mut found = entries.collect::<io::Result<Vec<_>>>()?;
    found.retain(|path| {
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let is_ours = path.extension().is_some_and(|of| ["yaml", "yml", "json"].iter().any(|one| of == *one));
        is_ours && !is_hidden
    });
    found.sort();
    Ok(found)
}

fn read(path: &Path) -> Result<PolicyFile, String> {
    let name = path.display().to_string();
    let mut text = String::new();
    let read = File::open(path)
        .and_then(|file| file.take(POLICY_FILE_BYTES_MAX as u64 + 1).read_to_string(&mut text));
    match read {
        Err(error) => Err(format!("{name}: {error}")),
        Ok(length) if length > POLICY_FILE_BYTES_MAX => {
            Err(format!("{name}: more than {POLICY_FILE_BYTES_MAX} bytes"))
        }
        Ok(_) => Ok(PolicyFile { name, text }),
    }
}

/// Applies changed files periodically until the future is dropped.
pub async fn watch(policies: Arc<Policies>) {
    let mut looks = mlgw_common::time::interval(CHECK_INTERVAL);
    looks.set_missed_tick_behavior(mlgw_common::time::MissedTickBehavior::Delay);
    while !policies.watched.load().is_empty() {
        looks.tick().await;
        check(&policies).await;
    }
}

/// Checksum of the watched files, or the reason why they cannot be read.
pub(super) type WatchedChecksum = Result<Vec<u8>, String>;

/// Checks the files once, and applies them if they have changed.
pub(super) async fn check(policies: &Arc<Policies>) {
    let mut seen = policies.last_check.lock().await;
    let watched = policies.watched.load_full();
    let read = tokio::task::spawn_blocking(move || watched.read()).await;
    let read = read.unwrap_or_else(|error| Err(error.to_string()));
    let found = read.as_ref().map(|held| held.sum.clone()).map_err(Clone::clone);
    if seen.as_ref() == Some(&found) {
        return;
    }
    *seen = Some(found);
    match read {
        Err(why) => policies.refuse_files(why),
        Ok(held) if policies.running().has_applied(&held.sum) => policies.clear_refused_files(),
        Ok(held) => {
            let files = PolicyFilesUpdate { custom: held.custom, frameworks: held.frameworks };
            if !policies.reload(files, held.sum).await {
                *seen = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::WatchedPolicyFiles;
    use std::fs;

    #[test]
    fn plugins_of_a_directory_are_read_by_name() {
        let room = tempfile::tempdir().unwrap();
        for name in ["b.yaml", "a.yml", "c.json", ".hidden.yaml", "notes.txt"] {
            fs::write(room.path().join(name), name).unwrap();
        }
        let watched = WatchedPolicyFiles { files: vec![], frameworks: vec![room.path().to_owned()] };
        let held = watched.read().unwrap();
        let texts: Vec<_> = held.frameworks.unwrap().into_iter().map(|file| file.text).collect();
        assert_eq!(texts, ["a.yml", "b.yaml", "c.json"]);
        assert_eq!(held.custom, None);
        fs::write(room.path().join("a.yml"), "other").unwrap();
        assert_ne!(watched.read().unwrap().sum, held.sum);
    }

    #[test]
    fn unreadable_and_oversized_files_are_reported() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("p.yaml");
        let watched = WatchedPolicyFiles { files: vec![path.clone()], frameworks: vec![] };
        assert!(watched.read().unwrap_err().contains("p.yaml: "));
        fs::write(&path, vec![b' '; super::POLICY_FILE_BYTES_MAX + 1]).unwrap();
        assert!(watched.read().unwrap_err().contains("more than"));
        fs::write(&path, [0xFF]).unwrap();
        assert!(watched.read().is_err());
    }
}
