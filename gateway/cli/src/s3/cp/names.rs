//! Names of files and keys: which key a file gets, and which file a key. Pure.

use std::path::{Component, Path, PathBuf};

/// Content types by extension. Other objects have the type that the server gives them.
const CONTENT_TYPES: &[(&str, &str)] = &[
    ("avif", "image/avif"),
    ("bmp", "image/bmp"),
    ("css", "text/css"),
    ("csv", "text/csv"),
    ("flac", "audio/flac"),
    ("gif", "image/gif"),
    ("gz", "application/gzip"),
    ("htm", "text/html"),
    ("html", "text/html"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("js", "text/javascript"),
    ("json", "application/json"),
    ("jsonl", "application/jsonl"),
    ("md", "text/markdown"),
    ("mp3", "audio/mpeg"),
    ("mp4", "video/mp4"),
    ("ogg", "audio/ogg"),
    ("parquet", "application/vnd.apache.parquet"),
    ("pdf", "application/pdf"),
    ("png", "image/png"),
    ("svg", "image/svg+xml"),
    ("tar", "application/x-tar"),
    ("tif", "image/tiff"),
    ("tiff", "image/tiff"),
    ("txt", "text/plain"),
    ("wav", "audio/wav"),
    ("webm", "video/webm"),
    ("webp", "image/webp"),
    ("xml", "application/xml"),
    ("yaml", "application/yaml"),
    ("yml", "application/yaml"),
    ("zip", "application/zip"),
    ("zst", "application/zstd"),
];

/// Returns the content type of a file by the extension of its name.
pub(super) fn content_type(path: &Path) -> Option<&'static str> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    let at = CONTENT_TYPES.binary_search_by_key(&extension.as_str(), |(known, _)| known).ok()?;
    Some(CONTENT_TYPES[at].1)
}

/// Returns the key of a file below the copied directory.
///
/// # Errors
/// The name is not UTF-8, as keys are.
pub(super) fn key_of(relative: &Path) -> Result<String, String> {
    let parts: Option<Vec<&str>> = relative.components().map(|part| part.as_os_str().to_str()).collect();
    let parts = parts.ok_or_else(|| "the name is not UTF-8, as a key must be".to_owned())?;
    Ok(parts.join("/"))
}

/// Returns the file of a key below the target directory.
///
/// # Errors
/// The file would lie elsewhere, or no file can have the name.
pub(super) fn file_of(key: &str) -> Result<PathBuf, String> {
    let parts: Vec<&str> = key.split('/').collect();
    if parts.iter().any(|part| matches!(*part, "" | "." | "..")) {
        return Err("the key is no path below the target directory; copy it to a name of its own".to_owned());
    }
    if key.contains('\0') {
        return Err("no file name has a zero byte; copy it to a name of its own".to_owned());
    }
    let path: PathBuf = parts.iter().collect();
    let is_below = path.components().all(|part| matches!(part, Component::Normal(_)));
    assert!(is_below, "a name of a file would leave the target directory");
    Ok(path)
}

/// Returns the last part of a key, as the name of a file.
///
/// # Errors
/// No file can have this name.
pub(super) fn file_name_of(key: &str) -> Result<PathBuf, String> {
    file_of(key.rsplit('/').next().unwrap_or(key))
}

#[cfg(test)]
mod tests {
    use super::{CONTENT_TYPES, content_type, file_name_of, file_of, key_of};
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::Path;

    #[test]
    fn no_key_leaves_the_target_directory() {
        for key in ["a", "a/b.c", "ü/%2e%2e/x", "..a/b..", "a\\..\\b", " "] {
            assert_eq!(file_of(key).unwrap(), Path::new(key), "{key}");
        }
        for key in ["", "..", "../a", "a/../b", "/etc/passwd", "a//b", "a/", "./a", "a/.", "a\0b"] {
            assert!(file_of(key).is_err(), "{key:?}");
        }
        assert_eq!(file_name_of("a/b").unwrap(), Path::new("b"));
        assert!(file_name_of("a/..").is_err());
    }

    #[test]
    fn keys_are_the_names_of_files() {
        assert_eq!(key_of(Path::new("a/ü/100%.txt")), Ok("a/ü/100%.txt".to_owned()));
        assert!(key_of(Path::new(OsStr::from_bytes(b"a/\xff"))).is_err());
    }

    #[test]
    fn types_are_found_by_extension() {
        assert!(CONTENT_TYPES.is_sorted_by_key(|(extension, _)| extension));
        assert_eq!(content_type(Path::new("a/B.JSON")), Some("application/json"));
        assert_eq!((content_type(Path::new("x.bin")), content_type(Path::new("json"))), (None, None));
    }
}
