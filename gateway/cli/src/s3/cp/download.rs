//! Downloads of objects to files.
//!
//! An object is written to a temporary file beside its target, which is renamed when the object is complete,
//! verified and on the disk. A download that fails, is interrupted or meets a power loss leaves the target as
//! it was.

use super::copy_run::{CopyRun, ItemFailure};
use crate::s3::path::RemotePath;
use crate::s3::reader::ObjectReader;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Mode of a new file; the process's umask restricts it.
const FILE_MODE: u32 = 0o666;
/// Bits of a mode that a replaced file passes on: all but those that run a program as its owner.
const ACCESS_BITS: u32 = 0o777;

/// Downloads an object. `listed_bytes` is its size, if it is known.
///
/// # Errors
/// The object cannot be read, or the file cannot be written.
pub(super) async fn object(
    run: &CopyRun<'_>,
    from: &RemotePath,
    listed_bytes: Option<u64>,
    to: &Path,
) -> Result<(), ItemFailure> {
    let _slot = run.slot(0).await;
    let failed = |failure| run.failure(failure, from);
    let mut reader = ObjectReader::open(run.client, from, listed_bytes).await.map_err(failed)?;
    if listed_bytes.is_none() {
        run.set_total(reader.bytes_left());
    }
    let local = |error: io::Error| ItemFailure::local(to, &error);
    let mut target = TargetFile::create(to).map_err(local)?;
    while let Some(bytes) = reader.next().await.map_err(failed)? {
        target.write_all(&bytes).map_err(local)?;
        run.add_bytes(bytes.len() as u64);
    }
    // Other downloads continue while the disk writes.
    let finished = tokio::task::spawn_blocking(move || target.finish()).await;
    finished.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(local)
}

/// A temporary file, and the file that it replaces.
struct ReplacingFile {
    temporary: NamedTempFile,
    path: PathBuf,
    /// Directory of both.
    folder: PathBuf,
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
    fn create(path: &Path) -> io::Result<Self> {
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => Err(io::Error::from(io::ErrorKind::IsADirectory)),
            // A symbolic link stays: its target is replaced.
            Ok(metadata) if metadata.is_file() => {
                let mode = metadata.permissions().mode() & ACCESS_BITS;
                ReplacingFile::create(fs::canonicalize(path)?, Some(Permissions::from_mode(mode)))
            }
            Ok(_) => Ok(Self::InPlace(OpenOptions::new().write(true).open(path)?)),
            Err(error) if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink()) => {
                Err(io::Error::new(error.kind(), format!("a symbolic link to no file: {error}")))
            }
            Err(_) => ReplacingFile::create(path.to_owned(), None),
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
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).to_owned();
        fs::create_dir_all(&folder)?;
        let mut builder = tempfile::Builder::new();
        // The temporary file is as private as the one that it replaces.
        let first = permissions.clone().unwrap_or(Permissions::from_mode(FILE_MODE));
        builder.prefix(".mlgw-").permissions(first);
        let temporary = builder.tempfile_in(&folder)?;
        Ok(TargetFile::Temporary(Self { temporary, path, folder, permissions }))
    }

    /// Gives the temporary file its name. Durable when it returns.
    fn replace(self) -> io::Result<()> {
        let file = self.temporary.as_file();
        if let Some(permissions) = self.permissions {
            file.set_permissions(permissions)?;
        }
        file.sync_all()?;
        self.temporary.persist(self.path).map_err(|error| error.error)?;
        File::open(self.folder)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::TargetFile;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    fn names(dir: &Path) -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        names.map(|name| name.into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_appears_when_it_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/file");
        let mut file = TargetFile::create(&path).unwrap();
        file.write_all(b"new").unwrap();
        assert!(!path.exists());
        file.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        TargetFile::create(&path).unwrap().write_all(b"half").unwrap();
        assert_eq!(
            (fs::read(&path).unwrap(), names(&dir.path().join("sub"))),
            (b"new".to_vec(), vec!["file".to_owned()])
        );
    }

    #[test]
    fn a_replaced_file_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        for old in [0o600, 0o666, 0o755] {
            let path = dir.path().join("file");
            fs::write(&path, "old").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(old)).unwrap();
            let mut target = TargetFile::create(&path).unwrap();
            let hidden = names(dir.path()).into_iter().find(|name| name != "file").unwrap();
            assert_eq!(mode(&dir.path().join(hidden)) & !old, 0);
            target.write_all(b"new").unwrap();
            target.finish().unwrap();
            assert_eq!((mode(&path), fs::read(&path).unwrap()), (old, b"new".to_vec()));
        }
    }

    #[test]
    fn a_dangling_link_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        for target in ["nothing", "link"] {
            std::os::unix::fs::symlink(target, &link).unwrap();
            let refused = TargetFile::create(&link).err().unwrap();
            assert!(refused.to_string().contains("a symbolic link to no file"), "{refused}");
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
        let mut target = TargetFile::create(&link).unwrap();
        target.write_all(b"new").unwrap();
        target.finish().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"new");
        let mut null = TargetFile::create(Path::new("/dev/null")).unwrap();
        null.write_all(b"bytes").unwrap();
        null.finish().unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        assert!(TargetFile::create(dir.path()).is_err());
    }
}
