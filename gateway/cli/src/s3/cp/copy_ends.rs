//! Source and destination of a copy.
//!
//! A path is remote if it begins with `s3://`, so a local file and a bucket are never confused. The names
//! follow `aws s3 cp`: a destination that ends with `/` takes the name of the source, and a recursive copy
//! copies what is in the source, not the source itself.

use super::names::file_name_of;
use crate::CliError;
use crate::s3::path::{RemotePath, SCHEME, parse_prefix};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// One end of a copy, as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CopyEnd {
    Remote(RemotePath),
    Local(PathBuf),
    /// Standard input or output.
    Stream,
}

/// What is copied to where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CopyEnds {
    Upload { from: PathBuf, to: RemotePath },
    UploadAll { from: PathBuf, to: RemotePath },
    UploadStream { to: RemotePath },
    Download { from: RemotePath, to: PathBuf },
    DownloadAll { from: RemotePath, to: PathBuf },
    Print { from: RemotePath },
    Between { from: RemotePath, to: RemotePath },
    BetweenAll { from: RemotePath, to: RemotePath },
}

impl CopyEnds {
    /// Returns what a command copies as a whole.
    ///
    /// # Errors
    /// The ends do not fit each other.
    pub(super) fn single(from: &OsStr, to: &OsStr) -> Result<Self, CliError> {
        let ends = (parse_end(from)?, parse_end(to)?);
        match ends {
            (CopyEnd::Remote(from), _) if from.is_prefix() => Err(CliError::Usage(format!(
                "{from} is a prefix: add --recursive to copy the objects below it"
            ))),
            (CopyEnd::Local(from), CopyEnd::Remote(to)) => {
                check_no_directory(&from)?;
                let name = from.file_name().map(|name| name.to_str().map(str::to_owned));
                let to = match (to.is_prefix(), name.flatten()) {
                    (false, _) => to,
                    (true, Some(name)) => to.with_key(format!("{}{name}", to.key)),
                    (true, None) => return Err(usage(&from, "give the whole key of the destination")),
                };
                Ok(Self::Upload { from, to })
            }
            (CopyEnd::Stream, CopyEnd::Remote(to)) if to.is_prefix() => {
                Err(CliError::Usage(format!("{to}: standard input has no name: give the whole key")))
            }
            (CopyEnd::Stream, CopyEnd::Remote(to)) => Ok(Self::UploadStream { to }),
            (CopyEnd::Remote(from), CopyEnd::Local(to)) => {
                let to = local_target(&from, to)?;
                Ok(Self::Download { from, to })
            }
            (CopyEnd::Remote(from), CopyEnd::Stream) => Ok(Self::Print { from }),
            (CopyEnd::Remote(from), CopyEnd::Remote(to)) => {
                let name = from.key.rsplit('/').next().unwrap_or(&from.key);
                let to = match to.is_prefix() {
                    true => to.with_key(format!("{}{name}", to.key)),
                    false => to,
                };
                Ok(Self::Between { from, to })
            }
            (CopyEnd::Local(_) | CopyEnd::Stream, CopyEnd::Local(_) | CopyEnd::Stream) => {
                Err(no_remote_end())
            }
        }
    }

    /// True if the copy writes to standard output, a device or a pipe. It leaves nothing to clean up if the
    /// process is killed; it may wait for a reader, and then handles no signal.
    pub(super) fn is_written_in_place(&self) -> bool {
        match self {
            Self::Print { .. } => true,
            Self::Download { to, .. } => fs::metadata(to).is_ok_and(|m| !m.is_file() && !m.is_dir()),
            Self::Upload { .. }
            | Self::UploadAll { .. }
            | Self::UploadStream { .. }
            | Self::DownloadAll { .. }
            | Self::Between { .. }
            | Self::BetweenAll { .. } => false,
        }
    }

    /// Returns what a command copies with everything below it.
    ///
    /// # Errors
    /// The ends do not fit each other.
    pub(super) fn recursive(from: &OsStr, to: &OsStr) -> Result<Self, CliError> {
        match (parse_end(from)?, parse_end(to)?) {
            (CopyEnd::Local(path), CopyEnd::Remote(_)) if path.is_file() => Self::single(from, to),
            (CopyEnd::Local(from), CopyEnd::Remote(to)) => Ok(Self::UploadAll { from, to: to.as_prefix() }),
            (CopyEnd::Remote(from), CopyEnd::Local(to)) => {
                Ok(Self::DownloadAll { from: from.as_prefix(), to })
            }
            (CopyEnd::Remote(from), CopyEnd::Remote(to)) => {
                let (from, to) = (from.as_prefix(), to.as_prefix());
                // A source below the destination is checked object by object.
                if from.bucket == to.bucket && to.key.starts_with(&from.key) {
                    let message = format!("{to} is below {from}: the copy would copy its own results");
                    return Err(CliError::Usage(message));
                }
                Ok(Self::BetweenAll { from, to })
            }
            (CopyEnd::Local(_), CopyEnd::Local(_)) => Err(no_remote_end()),
            (CopyEnd::Stream, _) | (_, CopyEnd::Stream) => {
                Err(CliError::Usage("- holds one object: omit --recursive".to_owned()))
            }
        }
    }
}

fn parse_end(text: &OsStr) -> Result<CopyEnd, CliError> {
    let is_remote = text.as_bytes().starts_with(SCHEME.as_bytes());
    match text.to_str() {
        Some("") => Err(CliError::Usage("an empty path".to_owned())),
        Some("-") => Ok(CopyEnd::Stream),
        Some(text) if is_remote => {
            let wrong = |problem| CliError::Usage(format!("{text}: {problem}"));
            parse_prefix(text).map(CopyEnd::Remote).map_err(wrong)
        }
        None if is_remote => Err(CliError::Usage(format!("{}: a key is UTF-8", text.display()))),
        _ => Ok(CopyEnd::Local(PathBuf::from(text))),
    }
}

fn usage(path: &Path, problem: &str) -> CliError {
    CliError::Usage(format!("{}: {problem}", path.display()))
}

fn no_remote_end() -> CliError {
    CliError::Usage("neither end is remote: write an object as s3://BUCKET/KEY".to_owned())
}

fn check_no_directory(path: &Path) -> Result<(), CliError> {
    match path.is_dir() {
        true => Err(usage(path, "is a directory: add --recursive to copy the files in it")),
        false => Ok(()),
    }
}

/// Returns the file that a single object is copied to.
fn local_target(from: &RemotePath, to: PathBuf) -> Result<PathBuf, CliError> {
    let has_slash = to.as_os_str().as_bytes().ends_with(b"/");
    if !has_slash && !to.is_dir() {
        return Ok(to);
    }
    let name = file_name_of(&from.key);
    name.map(|name| to.join(name)).map_err(|problem| CliError::Usage(format!("{from}: {problem}")))
}

#[cfg(test)]
mod tests {
    use super::CopyEnds;
    use crate::CliError;
    use crate::s3::path::RemotePath;
    use std::ffi::OsStr;
    use std::path::PathBuf;

    fn single(from: &str, to: &str) -> Result<CopyEnds, CliError> {
        CopyEnds::single(OsStr::new(from), OsStr::new(to))
    }

    fn recursive(from: &str, to: &str) -> Result<CopyEnds, CliError> {
        CopyEnds::recursive(OsStr::new(from), OsStr::new(to))
    }

    fn remote(key: &str) -> RemotePath {
        RemotePath::new("b", key)
    }

    #[test]
    fn a_prefix_or_directory_takes_the_name_of_the_source() {
        let upload = |to: &str| CopyEnds::Upload { from: PathBuf::from("d/f.txt"), to: remote(to) };
        assert_eq!(single("d/f.txt", "s3://b/k"), Ok(upload("k")));
        assert_eq!(single("d/f.txt", "s3://b"), Ok(upload("f.txt")));
        assert_eq!(single("d/f.txt", "s3://b/p/"), Ok(upload("p/f.txt")));
        let download = |to: &str| CopyEnds::Download { from: remote("p/k"), to: PathBuf::from(to) };
        assert_eq!(single("s3://b/p/k", "f"), Ok(download("f")));
        assert_eq!(single("s3://b/p/k", "d/"), Ok(download("d/k")));
        assert_eq!(single("s3://b/p/k", "/"), Ok(download("/k")), "an existing directory");
        let between = |to: &str| CopyEnds::Between { from: remote("p/k"), to: remote(to) };
        assert_eq!(single("s3://b/p/k", "s3://b/q/"), Ok(between("q/k")));
        assert_eq!(single("s3://b/p/k", "s3://b/q"), Ok(between("q")));
        assert_eq!(single("-", "s3://b/k"), Ok(CopyEnds::UploadStream { to: remote("k") }));
        assert_eq!(single("s3://b/k", "-"), Ok(CopyEnds::Print { from: remote("k") }));
        for (to, is_in_place) in [("-", true), ("/dev/null", true), ("/", false), ("/nonexistent", false)] {
            assert_eq!(single("s3://b/k", to).unwrap().is_written_in_place(), is_in_place, "{to}");
        }
    }

    #[test]
    fn a_recursive_copy_takes_directories_and_prefixes() {
        let (from, to) = (PathBuf::from("/"), remote("p/"));
        assert_eq!(recursive("/", "s3://b/p"), Ok(CopyEnds::UploadAll { from, to }));
        let (from, to) = (remote("p/"), PathBuf::from("d"));
        assert_eq!(recursive("s3://b/p", "d"), Ok(CopyEnds::DownloadAll { from, to }));
        let (from, to) = (remote("p/"), remote("pq/"));
        assert_eq!(recursive("s3://b/p", "s3://b/pq"), Ok(CopyEnds::BetweenAll { from, to }));
    }

    #[test]
    fn ends_that_do_not_fit_are_wrong_usage() {
        for (ends, words) in [
            (single("f", "g"), "neither end is remote"),
            (single("f", "b/k"), "neither end is remote"),
            (single("-", "-"), "neither end is remote"),
            (single("s3://b/p/", "d"), "add --recursive"),
            (single("s3://b", "-"), "add --recursive"),
            (single("/", "s3://b/"), "add --recursive"),
            (single("-", "s3://b/p/"), "give the whole key"),
            (single("s3:///k", "d"), "expected s3://BUCKET"),
            (single("s3://b/p/..", "d/"), "no path below"),
            (single("", "s3://b/k"), "an empty path"),
            (recursive("s3://b/p/", "s3://b/p/q/"), "is below s3://b/p/"),
            (recursive("s3://b/p", "s3://b/p"), "is below"),
            (recursive("s3://b", "s3://b/p"), "is below"),
            (recursive("s3://b/p/", "-"), "omit --recursive"),
        ] {
            let error = ends.unwrap_err();
            assert!(error.status() == 2 && error.to_string().contains(words), "{words}: {error}");
        }
    }
}
