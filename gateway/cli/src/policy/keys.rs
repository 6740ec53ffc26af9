//! Sources of keys for testing a policy: a list, the files below a directory, or a trace.

use super::text::unreadable;
use crate::CliError;
use mlgw_lab::comparison::ObjectNumbers;
use mlgw_lab::examine::key_of_line;
use mlgw_lab::scenario::for_each_trace_access;
use mlgw_policies::language::OfflineObject;
use mlgw_policies::language::limits::FIRST_BYTES;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

/// Source of keys.
#[derive(Debug)]
pub(super) enum PolicyTestKeys<'a> {
    /// A file with a key on each line, or standard input for `-`. A line `s3://bucket/key` includes its
    /// bucket.
    List(&'a Path),
    /// The files below a directory. Their keys are paths relative to it.
    Files(&'a Path),
    /// A trace, each key once.
    Trace(&'a Path),
}

impl PolicyTestKeys<'_> {
    /// Passes each key to `take`.
    ///
    /// # Errors
    /// When the source cannot be read.
    pub(super) fn each(&self, take: &mut dyn FnMut(OfflineObject<'_>)) -> Result<(), CliError> {
        match self {
            Self::List(path) if *path == Path::new("-") => {
                each_line(io::stdin().lock(), take).map_err(|error| unreadable(path, &error))
            }
            Self::List(path) => File::open(path)
                .and_then(|file| each_line(BufReader::new(file), take))
                .map_err(|error| unreadable(path, &error)),
            Self::Files(root) => each_file(root, take),
            Self::Trace(path) => {
                let mut seen = ObjectNumbers::default();
                for_each_trace_access(&[path.to_path_buf()], |access| {
                    let before = seen.count();
                    seen.number(access);
                    if seen.count() > before {
                        let (key, size) = (access.key, Some(access.size));
                        take(OfflineObject { key, size, ..OfflineObject::default() });
                    }
                    Ok(())
                })
                .map_err(CliError::from)
            }
        }
    }
}

fn each_line(lines: impl BufRead, take: &mut dyn FnMut(OfflineObject<'_>)) -> io::Result<()> {
    for line in lines.lines() {
        if let Some(known) = key_of_line(&line?) {
            take(known);
        }
    }
    Ok(())
}

/// Passes the files below a directory to `take`. Links are not followed, so no directory is visited twice.
fn each_file(root: &Path, take: &mut dyn FnMut(OfflineObject<'_>)) -> Result<(), CliError> {
    let mut waiting: Vec<PathBuf> = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        let entries =
            std::fs::read_dir(&directory).and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
        let mut entries = entries.map_err(|error| unreadable(&directory, &error))?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        let mut directories = Vec::new();
        for entry in entries {
            let path = entry.path();
            let kind = entry.file_type().map_err(|error| unreadable(&path, &error))?;
            if kind.is_dir() {
                directories.push(path);
            } else if kind.is_file() {
                take_file(root, &path, take).map_err(|error| unreadable(&path, &error))?;
            }
        }
        waiting.extend(directories.into_iter().rev());
    }
    Ok(())
}

fn take_file(root: &Path, path: &Path, take: &mut dyn FnMut(OfflineObject<'_>)) -> io::Result<()> {
    let file = File::open(path)?;
    let size = Some(file.metadata()?.len());
    let mut first = Vec::with_capacity(FIRST_BYTES);
    file.take(FIRST_BYTES as u64).read_to_end(&mut first)?;
    let key = path.strip_prefix(root).unwrap_or(path).to_string_lossy();
    take(OfflineObject { key: &key, size, first_bytes: Some(&first), ..OfflineObject::default() });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{PolicyTestKeys, each_line};
    use std::fs;

    #[test]
    fn lines_may_name_buckets() {
        let mut found = Vec::new();
        let lines = b"a/b.tar\r\n\ns3://lake/c/d\n" as &[u8];
        each_line(lines, &mut |one| found.push((one.bucket.map(str::to_owned), one.key.to_owned()))).unwrap();
        assert_eq!(found, [(None, "a/b.tar".to_owned()), (Some("lake".to_owned()), "c/d".to_owned())]);
    }

    #[test]
    fn files_have_sizes_and_first_bytes() {
        let room = tempfile::tempdir().unwrap();
        fs::create_dir_all(room.path().join("b/c")).unwrap();
        fs::write(room.path().join("b/c/x.bin"), [7; 1000]).unwrap();
        fs::write(room.path().join("a.txt"), "words").unwrap();
        let mut found = Vec::new();
        let mut take = |one: super::OfflineObject<'_>| {
            found.push((one.key.to_owned(), one.size, one.first_bytes.map(<[u8]>::len)));
        };
        PolicyTestKeys::Files(room.path()).each(&mut take).unwrap();
        let expected =
            [("a.txt".to_owned(), Some(5), Some(5)), ("b/c/x.bin".to_owned(), Some(1000), Some(512))];
        assert_eq!(found, expected);
        assert!(PolicyTestKeys::List(&room.path().join("none")).each(&mut |_| ()).is_err());
    }
}
