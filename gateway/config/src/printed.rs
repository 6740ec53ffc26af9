//! For tests: files of the repository that are printed from tables.
//!
//! `UPDATE_PRINTED=1` writes them anew instead of comparing.

use std::path::Path;

/// Asserts that the repository's file `name` has exactly `text` between its lines `<!-- begin MARK -->` and
/// `<!-- end MARK -->`.
pub(crate) fn assert_section_is(name: &str, mark: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    let whole = std::fs::read_to_string(path).unwrap();
    let (begin, end) = (format!("<!-- begin {mark} -->\n"), format!("<!-- end {mark} -->\n"));
    let (before, rest) = whole.split_once(&begin).unwrap();
    let (_, after) = rest.split_once(&end).unwrap();
    assert_file_is(name, &format!("{before}{begin}\n{text}\n{end}{after}"));
}

/// Asserts that the repository's file `name` is exactly `text`.
pub(crate) fn assert_file_is(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    if std::env::var_os("UPDATE_PRINTED").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == text, "{name} is out of date: run the tests once with UPDATE_PRINTED=1");
}
