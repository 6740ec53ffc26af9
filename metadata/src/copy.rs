//! Copies of files with a list of their lengths and checksums.
//!
//! Catalogue checkpoints and backups are such copies. The file `contents` lists the files of a copy. It is
//! written last, synced and renamed into place, so a copy without it is incomplete. The files are synced
//! before it, so after a power loss a copy is complete or has no list. docs/FORMATS.md describes the list.

use crate::offline::{CheckFinding, FindingKind, ProgressCallback};
use mlgw_common::Timestamp;
use mlgw_common::checksum::Crc32c;
use mlgw_common::regular;
use mlgw_formats::backup_contents::{BackupContents, BackupFileEntry};
use mlgw_formats::store_files;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Name of the list.
pub const CONTENTS: &str = "contents";
/// Bytes copied at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Reason that a directory is not a complete copy.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// An operation on a file failed.
    #[error("{path}: {source}")]
    Io {
        /// The path.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// The list is invalid or damaged.
    #[error("{path}: {why}")]
    Contents {
        /// The list.
        path: PathBuf,
        /// Description of the problem.
        why: String,
    },
}

impl CopyError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}

/// A copy in progress.
pub struct Copier {
    dir: PathBuf,
    files: BTreeMap<String, BackupFileEntry>,
    /// An earlier copy on the same file system; unchanged files are linked from it.
    earlier: Option<(PathBuf, BackupContents)>,
    /// Bytes that were copied, not linked.
    pub copied_bytes: u64,
}

impl Copier {
    /// Begins a copy in `dir`, which is created. Files that are unchanged since `earlier` are linked from
    /// there.
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub fn new(dir: &Path, earlier: Option<(PathBuf, BackupContents)>) -> Result<Self, CopyError> {
        store_files::make_dir(dir).map_err(CopyError::io(dir))?;
        Ok(Self { dir: dir.to_owned(), files: BTreeMap::new(), earlier, copied_bytes: 0 })
    }

    /// Adds the file at `from` as the path `name` of the copy.
    ///
    /// # Errors
    /// If it cannot be read or the copy cannot be written.
    pub fn add(&mut self, from: &Path, name: &str) -> Result<(), CopyError> {
        let mut file = regular::open(from).map_err(CopyError::io(from))?;
        let metadata = file.metadata().map_err(CopyError::io(from))?;
        let source = format!("{}.{}.{}", metadata.ino(), metadata.mtime(), metadata.mtime_nsec());
        let to = self.target_path(name)?;
        if let Some((dir, contents)) = &self.earlier
            && let Some(known) = contents.files.get(name)
            && known.source == source
            && known.bytes == metadata.len()
            && fs::hard_link(dir.join(name), &to).is_ok()
        {
            self.files.insert(name.to_owned(), known.clone());
            return Ok(());
        }
        self.write(&mut file, u64::MAX, &to, name, source, &mut |_| {})
    }

    /// Adds at most `bytes` of an open file as the path `name` of the copy. `each` is called with the length
    /// of every piece.
    ///
    /// # Errors
    /// If it cannot be read or the copy cannot be written.
    pub fn add_open(
        &mut self,
        file: &mut File,
        bytes: u64,
        name: &str,
        each: &mut dyn FnMut(u64),
    ) -> Result<(), CopyError> {
        let to = self.target_path(name)?;
        self.write(file, bytes, &to, name, "-".to_owned(), each)
    }

    /// Adds a file with these bytes as the path `name` of the copy.
    ///
    /// # Errors
    /// If the copy cannot be written.
    pub fn add_bytes(&mut self, mut bytes: &[u8], name: &str) -> Result<(), CopyError> {
        let to = self.target_path(name)?;
        self.write(&mut bytes, u64::MAX, &to, name, "-".to_owned(), &mut |_| {})
    }

    /// Length and checksum of the file that was added as `name`.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<&BackupFileEntry> {
        self.files.get(name)
    }

    fn target_path(&self, name: &str) -> Result<PathBuf, CopyError> {
        let to = self.dir.join(name);
        if let Some(parent) = to.parent() {
            store_files::make_dir(parent).map_err(CopyError::io(parent))?;
        }
        Ok(to)
    }

    fn write(
        &mut self,
        from: &mut impl Read,
        bytes: u64,
        to: &Path,
        name: &str,
        source: String,
        each: &mut dyn FnMut(u64),
    ) -> Result<(), CopyError> {
        let failed = |error| CopyError::io(to)(error);
        let mut out =
            fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(to).map_err(failed)?;
        let mut crc = Crc32c::default();
        let mut piece = vec![0; PIECE_BYTES];
        let mut written = 0;
        while written < bytes {
            let want = piece.len().min(usize::try_from(bytes - written).unwrap_or(usize::MAX));
            let got = from.read(&mut piece[..want]).map_err(failed)?;
            if got == 0 {
                break;
            }
            crc.update(&piece[..got]);
            out.write_all(&piece[..got]).map_err(failed)?;
            written += got as u64;
            each(got as u64);
        }
        out.sync_all().map_err(failed)?;
        self.copied_bytes += written;
        self.files.insert(name.to_owned(), BackupFileEntry { crc: crc.finish(), bytes: written, source });
        Ok(())
    }

    /// Writes the list and makes the copy durable.
    ///
    /// # Errors
    /// If the list cannot be written.
    pub fn finish(self, now: Timestamp) -> Result<BackupContents, CopyError> {
        let contents = BackupContents { written: now.to_string(), files: self.files };
        let path = self.dir.join(CONTENTS);
        let new = self.dir.join(format!("{CONTENTS}.new"));
        let failed = |error| CopyError::io(&path)(error);
        let mut folders: Vec<&Path> =
            contents.files.keys().filter_map(|name| Path::new(name).parent()).collect();
        folders.sort();
        folders.dedup();
        for folder in folders {
            store_files::sync_dir(&self.dir.join(folder)).map_err(failed)?;
        }
        let mut file = File::create(&new).map_err(failed)?;
        file.write_all(contents.encode().as_bytes()).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        fs::rename(&new, &path).map_err(failed)?;
        store_files::sync_dir(&self.dir).map_err(failed)?;
        Ok(contents)
    }
}

/// Returns the list of the copy in `dir`.
///
/// # Errors
/// If there is none, or it is damaged or of a newer version.
pub fn read_contents(dir: &Path) -> Result<BackupContents, CopyError> {
    let path = dir.join(CONTENTS);
    let text = regular::read_to_string(&path).map_err(CopyError::io(&path))?;
    BackupContents::decode(&text).map_err(|why| CopyError::Contents { path, why })
}

/// Reads every file of the copy in `dir` whose path begins with `prefix` and compares it with the list.
pub fn verify_contents(
    contents: &BackupContents,
    dir: &Path,
    prefix: &str,
    findings: &mut Vec<CheckFinding>,
    watch: ProgressCallback<'_>,
) {
    let (mut done, total) = (0, contents.bytes());
    for (name, listed) in contents.files.iter().filter(|(name, _)| name.starts_with(prefix)) {
        let path = dir.join(name);
        let what = match checksum(&path, &mut |bytes| {
            done += bytes;
            watch("verifying the copy", done, total);
        }) {
            Ok(found) if found == (listed.crc, listed.bytes) => continue,
            Ok((_, bytes)) if bytes != listed.bytes => format!("{bytes} bytes, not {}", listed.bytes),
            Ok(_) => "it does not match its checksum".to_owned(),
            Err(error) => error.to_string(),
        };
        findings.push(CheckFinding::damage(FindingKind::Copy, path.display(), what));
    }
}

/// Checksum and length of a file.
fn checksum(path: &Path, each: &mut dyn FnMut(u64)) -> io::Result<(u32, u64)> {
    let mut file = regular::open(path)?;
    let (mut crc, mut bytes) = (Crc32c::default(), 0);
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok((crc.finish(), bytes)),
            got => {
                crc.update(&piece[..got]);
                bytes += got as u64;
                each(got as u64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CONTENTS, Copier, read_contents, verify_contents};
    use crate::offline::ignore_progress;
    use mlgw_common::Timestamp;
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn a_copy_is_verified_byte_by_byte_and_its_list_too() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("a"), dir.path().join("copy"));
        fs::write(&from, vec![7; 3 << 20]).unwrap();
        let mut copier = Copier::new(&to, None).unwrap();
        copier.add(&from, "deep/with space").unwrap();
        let contents = copier.finish(Timestamp(0)).unwrap();
        assert_eq!(read_contents(&to).unwrap(), contents);
        let mut findings = Vec::new();
        verify_contents(&contents, &to, "", &mut findings, &ignore_progress);
        assert_eq!(findings, []);
        let copied = to.join("deep/with space");
        let mut bytes = fs::read(&copied).unwrap();
        bytes[2 << 20] ^= 1;
        fs::write(&copied, bytes).unwrap();
        verify_contents(&contents, &to, "deep/", &mut findings, &ignore_progress);
        fs::remove_file(&copied).unwrap();
        verify_contents(&contents, &to, "", &mut findings, &ignore_progress);
        verify_contents(&contents, &to, "elsewhere/", &mut findings, &ignore_progress);
        assert_eq!(findings.len(), 2, "{findings:?}");
        let list = fs::read(to.join(CONTENTS)).unwrap();
        for at in 0..list.len() {
            let mut damaged = list.clone();
            damaged[at] ^= 1;
            fs::write(to.join(CONTENTS), damaged).unwrap();
            assert!(read_contents(&to).is_err(), "byte {at}");
        }
        fs::write(to.join(CONTENTS), "mlgw-copy 2\n").unwrap();
        assert!(read_contents(&to).unwrap_err().to_string().contains("newer"));
    }

    #[test]
    fn unchanged_files_are_linked_and_changed_ones_copied() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        for name in ["same", "changed"] {
            fs::write(file(name), name).unwrap();
        }
        let make = |to: &str, earlier| {
            let mut copier = Copier::new(&file(to), earlier).unwrap();
            copier.add(&file("same"), "same").unwrap();
            copier.add(&file("changed"), "changed").unwrap();
            (copier.copied_bytes, copier.finish(Timestamp(0)).unwrap())
        };
        let (_, first) = make("1", None);
        fs::remove_file(file("changed")).unwrap();
        fs::write(file("changed"), "another").unwrap();
        let (copied, second) = make("2", Some((file("1"), first)));
        assert_eq!(copied, 7);
        let inode = |path| fs::metadata(path).unwrap().ino();
        assert_eq!(inode(file("1/same")), inode(file("2/same")));
        assert_ne!(inode(file("1/changed")), inode(file("2/changed")));
        assert_eq!(second.files["same"].bytes, 4);
    }
}
