//! Downloads of objects to files.
//!
//! An object is written to a temporary file beside its target, which is renamed when the object is complete
//! and verified. A failed or interrupted download leaves the target as it was.

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
    target.finish().map_err(local)
}

/// A file that is being written.
enum TargetFile {
    /// A temporary file, and the file that it replaces.
    Temporary(NamedTempFile, PathBuf),
    /// A device or a pipe, which is written in place.
    InPlace(File),
}

impl TargetFile {
    fn create(path: &Path) -> io::Result<Self> {
        let path = match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => return Err(io::Error::from(io::ErrorKind::IsADirectory)),
            // A symbolic link stays: its target is replaced.
            Ok(metadata) if metadata.is_file() => fs::canonicalize(path)?,
            Ok(_) => return Ok(Self::InPlace(OpenOptions::new().write(true).open(path)?)),
            Err(_) => path.to_owned(),
        };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let mut builder = tempfile::Builder::new();
        builder.prefix(".mlgw-").permissions(Permissions::from_mode(FILE_MODE));
        Ok(Self::Temporary(builder.tempfile_in(folder)?, path))
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Temporary(file, _) => file.write_all(bytes),
            Self::InPlace(file) => file.write_all(bytes),
        }
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Self::Temporary(file, path) => file.persist(path).map(|_| ()).map_err(|error| error.error),
            Self::InPlace(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TargetFile;
    use std::fs;
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
