//! Rules that hold everywhere: no unsafe code, no marks of unfinished work, no `.unwrap()` outside tests,
//! small corpora, and an existing test for each promise of the documents.

use crate::tree::{Tree, root};

/// Largest size of the corpus of one fuzz target.
const CORPUS_BYTES_MAX: u64 = 100 << 10;

/// Checks that fuzz targets have small corpora, and that their workspace compiles no RocksDB.
pub(crate) fn fuzz_targets_have_small_corpora_and_link_no_rocksdb(_: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    let lock = std::fs::read_to_string(root().join("fuzz/Cargo.lock")).unwrap();
    if lock.contains("rocksdb") {
        found.push("the fuzz workspace compiles RocksDB".to_owned());
    }
    let targets = std::fs::read_dir(root().join("fuzz/fuzz_targets")).unwrap();
    for target in targets.map(|entry| entry.unwrap().path()) {
        let corpus = root().join("fuzz/corpus").join(target.file_stem().unwrap());
        let inputs = std::fs::read_dir(&corpus).into_iter().flatten();
        let bytes: u64 = inputs.map(|input| input.unwrap().metadata().unwrap().len()).sum();
        if !(1..=CORPUS_BYTES_MAX).contains(&bytes) {
            found.push(format!("{} has {bytes} bytes", corpus.display()));
        }
    }
    found
}

/// Files that may contain unsafe code. Each of them must also run under valgrind or a sanitizer.
const UNSAFE_IN: &[&str] = &[];

/// Checks that unsafe code, in tests too, is in listed files only.
pub(crate) fn unsafe_code_is_in_listed_files_only(tree: &Tree) -> Vec<String> {
    let lints = &tree.texts["Cargo.toml"];
    assert!(lints.contains("unsafe_code = \"deny\""), "the compiler also checks");
    let others = tree.sources.iter().filter(|(path, _)| !UNSAFE_IN.contains(&&***path));
    let lines = others.flat_map(|(path, source)| source.unsafe_lines.iter().map(move |line| (path, line)));
    lines.map(|(path, line)| format!("{path}:{line} is unsafe")).collect()
}

/// Checks that every file opens with `//!` and its purpose.
pub(crate) fn every_file_opens_with_its_purpose(tree: &Tree) -> Vec<String> {
    let without = tree.sources.iter().filter(|(_, source)| !source.text.starts_with("//!"));
    without.map(|(path, _)| format!("{path} does not open with //!")).collect()
}

/// Checks that there are no marks of unfinished work, including in tests, strings and comments.
pub(crate) fn nothing_is_left_for_later(tree: &Tree) -> Vec<String> {
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("todo", "!("), concat!("dbg", "!(")];
    let mut found = Vec::new();
    for (path, source) in &tree.sources {
        let marks = marks.iter().filter(|mark| source.text.contains(**mark));
        found.extend(marks.map(|mark| format!("{path} has {mark}")));
    }
    found
}

/// Checks that there is no `.unwrap()` outside tests.
pub(crate) fn nothing_unwraps_outside_tests(tree: &Tree) -> Vec<String> {
    let lines =
        tree.outside_tests().flat_map(|(path, source)| source.unwraps.iter().map(move |line| (path, line)));
    lines.map(|(path, line)| format!("{path}:{line} unwraps")).collect()
}

/// The folders of the tests of promises, by the name before theirs in the tables.
const PROOFS: &[(&str, &str)] = &[
    ("tests", "tests/src/"),
    ("tiering", "tiering/"),
    ("formats", "common/formats/"),
    ("metadata", "metadata/src/"),
    ("cluster", "cluster/"),
    ("policies", "policies/"),
    ("gateway", "gateway/"),
];

/// Checks that every test that a table of promises names exists in the folder that it names.
pub(crate) fn every_test_behind_a_promise_is_there(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (document, least) in [("docs/FAULTS.md", 40), ("docs/POLICIES.md", 60)] {
        let mut count = 0;
        for piece in tree.texts[document].split('`') {
            let Some((prefix, test)) = piece.split_once(':').filter(|(_, test)| test.contains('_')) else {
                continue;
            };
            let Some((_, folder)) = PROOFS.iter().find(|(known, _)| *known == prefix) else { continue };
            let declared = format!("fn {test}(");
            let mut files = tree.sources.iter().filter(|(path, _)| path.starts_with(folder));
            if !files.any(|(_, source)| source.text.contains(&declared)) {
                found.push(format!("{document} names {test}, which is not in {folder}"));
            }
            count += 1;
        }
        if count <= least {
            found.push(format!("the table of {document} was not read: {count}"));
        }
    }
    found
}

#[test]
fn violations_are_found_in_literal_files() {
    let tree = Tree::of(&[
        ("a.rs", "//! A.\nfn f() {\n    x.unwrap();\n}\n#[test]\nfn t() { x.unwrap(); unsafe {} }"),
        ("b.rs", concat!("fn f() {} // TO", "DO")),
        ("Cargo.toml", "unsafe_code = \"deny\""),
    ]);
    assert_eq!(nothing_unwraps_outside_tests(&tree), ["a.rs:3 unwraps"]);
    assert_eq!(unsafe_code_is_in_listed_files_only(&tree), ["a.rs:6 is unsafe"]);
    assert_eq!(every_file_opens_with_its_purpose(&tree), ["b.rs does not open with //!"]);
    assert_eq!(nothing_is_left_for_later(&tree).len(), 1);
}
