//! Files of the repository that are generated from tables.
//!
//! `UPDATE_PRINTED=1` writes them instead of comparing.

use std::path::{Path, PathBuf};

/// Returns the root of the clone: `MLGW_REPO` if the steps run the test, which compile a copy of the clone,
/// otherwise the root of the workspace of the test.
#[must_use]
pub fn root() -> PathBuf {
    if let Some(root) = std::env::var_os("MLGW_REPO") {
        return root.into();
    }
    let is_root = |dir: &&Path| dir.join("Cargo.lock").exists();
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().find(is_root).unwrap_or(Path::new(".")).to_owned()
}

/// Asserts that the repository's file `name` has exactly `text` between its lines `<!-- begin MARK -->` and
/// `<!-- end MARK -->`.
///
/// # Panics
/// When the text differs.
pub fn assert_section_is(name: &str, mark: &str, text: &str) {
    let path = root().join(name);
    let whole = std::fs::read_to_string(path).expect("a page of the repository");
    let (begin, end) = (format!("<!-- begin {mark} -->\n"), format!("<!-- end {mark} -->\n"));
    let (before, rest) = whole.split_once(&begin).expect("a page of the repository");
    let (_, after) = rest.split_once(&end).expect("a page of the repository");
    assert_file_is(name, &format!("{before}{begin}\n{text}\n{end}{after}"));
}

/// Asserts that the repository's file `name` is exactly `text`.
///
/// # Panics
/// When the text differs.
pub fn assert_file_is(name: &str, text: &str) {
    let path = root().join(name);
    if std::env::var_os("UPDATE_PRINTED").is_some() {
        std::fs::create_dir_all(path.parent().expect("a page of the repository"))
            .expect("a page of the repository");
        std::fs::write(&path, text).expect("a page of the repository");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == text, "{name} is out of date: run the tests once with UPDATE_PRINTED=1");
}
