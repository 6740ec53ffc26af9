//! Opens regular files only, so that a pipe or a device in a file's place never blocks the caller.
//!
//! Opening a named pipe waits for its other end, forever if there is none. Every file of a data directory is
//! therefore opened here: without blocking, and refused unless it is a regular file or a symbolic link to
//! one. Nothing is written, so a crash changes nothing.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file for reading.
///
/// # Errors
/// If it cannot be opened, or the path is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(OpenOptions::new().read(true), path)
}

/// Opens a regular file with `options`.
///
/// # Errors
/// As [`open`].
pub fn open_with(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    open_with_flags(options, OFlags::empty(), path)
}

/// Opens a regular file with `options` and these flags of the operating system.
///
/// # Errors
/// As [`open`].
pub fn open_with_flags(options: &mut OpenOptions, flags: OFlags, path: &Path) -> io::Result<File> {
    // `O_NONBLOCK` has no effect on regular files.
    let flags = flags | OFlags::NONBLOCK;
    let file = match options.custom_flags(flags.bits().cast_signed()).open(path) {
        Ok(file) => file,
        // The operating system's own errors for pipes and directories are less specific.
        Err(error) => {
            return Err(file_type(path).and_then(|kind| require_regular(kind).err()).unwrap_or(error));
        }
    };
    require_regular(file.metadata()?.file_type())?;
    Ok(file)
}

/// Reads a whole regular file.
///
/// # Errors
/// As [`open`], or if it cannot be read.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a whole regular file of text.
///
/// # Errors
/// As [`read`], or if it is not UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// Checks that a path is a regular file, without opening it.
///
/// # Errors
/// If it is something else or does not exist.
pub fn check(path: &Path) -> io::Result<()> {
    require_regular(std::fs::metadata(path)?.file_type())
}

fn file_type(path: &Path) -> Option<FileType> {
    std::fs::metadata(path).ok().map(|found| found.file_type())
}

fn require_regular(kind: FileType) -> io::Result<()> {
    let what = match kind {
        kind if kind.is_file() => return Ok(()),
        kind if kind.is_dir() => "a directory",
        kind if kind.is_fifo() => "a named pipe",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{what} is at the path of a file")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType as Kind, Mode, mknodat};
    use std::fs;

    /// Tries every kind of file, opened for reading and for writing; no attempt blocks.
    #[test]
    fn only_regular_files_are_opened_without_blocking() {
        let dir = std::env::temp_dir().join(format!("mlgw-regular-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let at = |name: &str| dir.join(name);
        fs::write(at("file"), "text").unwrap();
        fs::create_dir_all(at("directory")).unwrap();
        drop(fs::remove_file(at("pipe")));
        mknodat(CWD, at("pipe"), Kind::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        drop(fs::remove_file(at("socket")));
        let _listener = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        for (link, to) in
            [("to-file", "file"), ("to-pipe", "pipe"), ("to-nothing", "nothing"), ("device", "/dev/zero")]
        {
            drop(fs::remove_file(at(link)));
            std::os::unix::fs::symlink(to, at(link)).unwrap();
        }
        let cases = [
            ("file", Ok(())),
            ("to-file", Ok(())),
            ("directory", Err("a directory is at the path of a file")),
            ("pipe", Err("a named pipe is at the path of a file")),
            ("to-pipe", Err("a named pipe is at the path of a file")),
            ("socket", Err("a socket is at the path of a file")),
            ("device", Err("a device is at the path of a file")),
        ];
        for (name, expected) in cases {
            let with_text = |result: io::Result<()>| result.map_err(|error| error.to_string());
            let expected = expected.map_err(str::to_owned);
            assert_eq!(with_text(open(&at(name)).map(drop)), expected, "{name}");
            assert_eq!(
                with_text(open_with(OpenOptions::new().write(true), &at(name)).map(drop)),
                expected,
                "{name}"
            );
            assert_eq!(with_text(check(&at(name))), expected, "{name}");
        }
        for name in ["nothing", "to-nothing"] {
            assert_eq!(open(&at(name)).unwrap_err().kind(), io::ErrorKind::NotFound, "{name}");
        }
        assert_eq!(
            (read(&at("file")).unwrap(), read_to_string(&at("to-file")).unwrap()),
            (b"text".to_vec(), "text".into())
        );
        fs::remove_dir_all(dir).unwrap();
    }
}
