//! Downloads of objects to files.
//!
//! An object is written to a temporary file beside its target, which is renamed when the object is complete,
//! verified and synced. A download that fails or is interrupted leaves the target as it was.
//!
//! Once a download has returned, its file and the directories that it created are durable. After a power
//! failure before that, the target is the previous file or the whole object. A power failure, or the end of a
//! killed process, may leave the temporary file, whose name begins with `.mlgw-`.
//!
//! A device or a pipe is written in place, so a failed download leaves the bytes that were written before.

use super::copy_run::{CopyRun, ItemFailure};
use crate::s3::path::RemotePath;
use crate::s3::reader::ObjectReader;
use mlgw_formats::store_files::{make_dir_with_mode, parent_of};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Mode of a new file; the process's umask restricts it.
const FILE_MODE: u32 = 0o666;
/// Mode of a new directory; the process's umask restricts it.
const DIRECTORY_MODE: u32 = 0o777;
/// Bits of a mode that a replaced file passes on: all but those that run a program as its owner.
const ACCESS_BITS: u32 = 0o777;

/// Treatment of a target that is a device or a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpecialTarget {
    /// The object is written to it. A pipe waits for its reader.
    Write,
    /// The object is not copied: in a directory, a pipe would stop the copy of the other objects.
    Refuse,
}

/// Downloads an object. `listed_bytes` is its size, if it is known. Returns its size.
///
/// # Errors
/// The object cannot be read, or the file cannot be written.
pub(super) async fn object(
    run: &CopyRun<'_>,
    from: &RemotePath,
    listed_bytes: Option<u64>,
    to: &Path,
    special: SpecialTarget,
) -> Result<u64, ItemFailure> {
    let _slot = run.slot(0).await;
    let failed = |failure| run.failure(failure, from);
    let mut reader = ObjectReader::open(run.client, from, listed_bytes).await.map_err(failed)?;
    if listed_bytes.is_none() {
        run.set_total(reader.bytes_left());
    }
    let local = |error: io::Error| ItemFailure::local(to, &error);
    let mut target = TargetFile::create(to, special).map_err(local)?;
    let mut written = 0;
    while let Some(bytes) = reader.next().await.map_err(failed)? {
        target.write_all(&bytes).map_err(local)?;
        written += bytes.len() as u64;
        run.add_progress(bytes.len() as u64);
    }
    // Other downloads continue while the disk writes.
    let finished = tokio::task::spawn_blocking(move || target.finish()).await;
    finished.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(local)?;
    Ok(written)
}

/// Creates the directory of a directory marker, and its parents. Durable when it returns.
///
/// # Errors
/// The directory cannot be created.
pub(super) fn directory(path: &Path) -> Result<(), ItemFailure> {
    make_dir_with_mode(path, DIRECTORY_MODE).map_err(|error| ItemFailure::local(path, &error))
}

/// A temporary file, and the file that it replaces.
struct ReplacingFile {
    temporary: NamedTempFile,
    path: PathBuf,
    /// Permissions of the replaced file.
    permissions: Option<Permissions>,
}

/// A file that is being written.
enum TargetFile {
    Temporary(ReplacingFile),
    /// A device or a pipe, which is written in place.
    InPlace(File),
}

impl TargetFile {
    fn create(path: &Path, special: SpecialTarget) -> io::Result<Self> {
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(error) if fs::symlink_metadata(path).is_ok() => {
                return Err(io::Error::new(error.kind(), "a dangling symbolic link"));
            }
            Err(_) => return ReplacingFile::create(path.to_owned(), None),
        };
        if metadata.is_dir() {
            return Err(io::Error::from(io::ErrorKind::IsADirectory));
        }
        if metadata.is_file() {
            let mode = metadata.permissions().mode() & ACCESS_BITS;
            // A symbolic link stays: its target is replaced.
            return ReplacingFile::create(fs::canonicalize(path)?, Some(Permissions::from_mode(mode)));
        }
        match special {
            SpecialTarget::Write => Ok(Self::InPlace(OpenOptions::new().write(true).open(path)?)),
            SpecialTarget::Refuse => {
                let problem = "a device or a pipe: only the copy of a single object writes to it";
                Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
            }
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Temporary(file) => file.temporary.write_all(bytes),
            Self::InPlace(file) => file.write_all(bytes),
        }
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Self::Temporary(file) => file.replace(),
            Self::InPlace(_) => Ok(()),
        }
    }
}

impl ReplacingFile {
    fn create(path: PathBuf, permissions: Option<Permissions>) -> io::Result<TargetFile> {
        make_dir_with_mode(parent_of(&path), DIRECTORY_MODE)?;
        let mut builder = tempfile::Builder::new();
        // The temporary file is as private as the one that it replaces.
        let first = permissions.clone().unwrap_or(Permissions::from_mode(FILE_MODE));
        builder.prefix(".mlgw-").permissions(first);
        let temporary = builder.tempfile_in(parent_of(&path))?;
        Ok(TargetFile::Temporary(Self { temporary, path, permissions }))
    }

    /// Gives the temporary file its name. Durable when it returns.
    fn replace(self) -> io::Result<()> {
        let file = self.temporary.as_file();
        if let Some(permissions) = self.permissions {
            file.set_permissions(permissions)?;
        }
        file.sync_all()?;
        // A directory that cannot be synced fails the download while the target is still the previous file.
        let directory = File::open(parent_of(&self.path))?;
        self.temporary.persist(&self.path).map_err(|error| error.error)?;
        directory.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::{SpecialTarget, TargetFile};
    use std::fs;
    use std::io;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    fn create(path: &Path) -> io::Result<TargetFile> {
        TargetFile::create(path, SpecialTarget::Write)
    }

    fn names(dir: &Path) -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        names.map(|name| name.into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_appears_when_it_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/file");
        let mut file = create(&path).unwrap();
        file.write_all(b"new").unwrap();
        assert!(!path.exists());
        file.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        create(&path).unwrap().write_all(b"half").unwrap();
        assert_eq!(
            (fs::read(&path).unwrap(), names(&dir.path().join("sub"))),
            (b"new".to_vec(), vec!["file".to_owned()])
        );
    }

    #[test]
    fn a_replaced_file_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        for (old, new) in [(0o600, 0o600), (0o666, 0o666), (0o755, 0o755), (0o4755, 0o755)] {
            let path = dir.path().join("file");
            fs::write(&path, "old").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(old)).unwrap();
            let mut target = create(&path).unwrap();
            let hidden = names(dir.path()).into_iter().find(|name| name != "file").unwrap();
            assert_eq!(mode(&dir.path().join(hidden)) & !new, 0);
            target.write_all(b"new").unwrap();
            target.finish().unwrap();
            assert_eq!((mode(&path), fs::read(&path).unwrap()), (new, b"new".to_vec()), "{old:o}");
        }
    }

    #[test]
    fn a_link_without_a_file_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        for (target, is_dangling) in [("nothing", true), ("link", false)] {
            std::os::unix::fs::symlink(target, &link).unwrap();
            let refused = create(&link).err().unwrap();
            assert_eq!(refused.to_string() == "a dangling symbolic link", is_dangling, "{refused}");
            assert!(names(dir.path()) == ["link"] && fs::symlink_metadata(&link).unwrap().is_symlink());
            fs::remove_file(&link).unwrap();
        }
    }

    #[test]
    fn links_and_devices_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let mut target = create(&link).unwrap();
        target.write_all(b"new").unwrap();
        target.finish().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"new");
        let mut null = create(Path::new("/dev/null")).unwrap();
        null.write_all(b"bytes").unwrap();
        null.finish().unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        assert!(create(dir.path()).is_err());
    }

    #[test]
    fn one_of_several_objects_is_not_written_to_a_device() {
        let refused = TargetFile::create(Path::new("/dev/null"), SpecialTarget::Refuse).err().unwrap();
        assert!(refused.to_string().starts_with("a device or a pipe"), "{refused}");
        let dir = tempfile::tempdir().unwrap();
        let mut file = TargetFile::create(&dir.path().join("file"), SpecialTarget::Refuse).unwrap();
        file.write_all(b"new").unwrap();
        file.finish().unwrap();
        assert_eq!(names(dir.path()), ["file"]);
    }
}
