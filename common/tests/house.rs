//! The rules of the house, kept by a test: which crate may use which, who may name whom, how long
//! a file and a function may be, and that every module tells its story.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What each crate may use of ours. Tests use the binary, not the crates of the engine.
const ARROWS: &[(&str, &[&str])] = &[
    ("mlgw-common", &[]),
    ("mlgw-metadata", &["mlgw-common"]),
    ("base2histogram", &[]),
    ("mlgw-policies", &["mlgw-common"]),
    ("mlgw-tiering", &["mlgw-common", "mlgw-metadata", "mlgw-policies"]),
    ("mlgw-objects", &["mlgw-common", "mlgw-metadata", "mlgw-tiering"]),
    ("mlgw-api", &[]),
    (
        "mlgw-gateway",
        &["mlgw-api", "mlgw-common", "mlgw-metadata", "mlgw-policies", "mlgw-tiering", "mlgw-objects"],
    ),
    ("mlgw", &["mlgw-gateway"]),
    ("mlgw-tests", &["mlgw-common"]),
];

/// Crates that know no protocol: they depend on no crate of HTTP.
const WITHOUT_HTTP: &[&str] = &["mlgw-api", "mlgw-common", "mlgw-metadata", "mlgw-objects", "mlgw-policies"];

/// Crates that only some folders may name.
const NAMED_ONLY_IN: &[(&str, &[&str])] = &[
    ("openraft", &["metadata/src/raft"]),
    ("rocksdb", &["metadata/src/store"]),
    ("hyper", &["gateway/src", "tests", "tiering/src/origin"]),
    ("axum", &["gateway/src"]),
    ("opendal", &["tiering/src/upstream"]),
    ("reqsign_aws_v4", &["tiering/src/upstream"]),
    ("reqsign_core", &["tiering/src/upstream"]),
    ("reqwest", &["tiering/src/upstream", "tiering/src/origin"]),
];

const FILE_LINES_MAX: usize = 700;
const FUNCTION_LINES_MAX: usize = 70;

fn root() -> PathBuf {
    // As it is now: what was compiled in another clone may be run in this one.
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&package).parent().unwrap().to_owned()
}

/// Every Rust file of the workspace, by its path from the root.
fn sources() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for folder in ["common", "metadata", "tiering", "policies", "gateway", "tests", "fuzz"] {
        let mut folders = vec![root().join(folder)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|e| e == "rs") {
                    let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
                    found.insert(name, std::fs::read_to_string(&path).unwrap());
                }
            }
        }
    }
    assert!(found.len() > 20, "the sources were not found");
    found
}

/// A file without the tests at its end.
fn without_tests(text: &str) -> &str {
    let ends = ["#[cfg(test)]\nmod ", "#[cfg(test)]\npub(crate) mod "].map(|mark| text.find(mark));
    &text[..ends.into_iter().flatten().min().unwrap_or(text.len())]
}

/// Files that are only compiled for tests.
fn test_files(sources: &BTreeMap<String, String>) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in sources {
        let folder = path.trim_end_matches(".rs");
        for line in text.split("#[cfg(test)]\n").skip(1).filter_map(|rest| rest.lines().next()) {
            let name = line.trim().trim_start_matches("pub(crate) ").strip_prefix("mod ");
            if let Some(name) = name.and_then(|name| name.strip_suffix(';')) {
                found.push(format!("{folder}/{name}.rs"));
                found.push(format!("{}/{name}.rs", folder.rsplit_once('/').map_or("", |(parent, _)| parent)));
            }
        }
    }
    found
}

fn is_test(path: &str, test_files: &[String]) -> bool {
    path.starts_with("tests/") || path.contains("/tests/") || test_files.iter().any(|file| file == path)
}

#[test]
fn crates_use_each_other_along_the_arrows_only() {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        let (_, allowed) =
            ARROWS.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("{name} has no row"));
        for dependency in package["dependencies"].as_array().unwrap() {
            let dependency = dependency["name"].as_str().unwrap();
            let ours = dependency == "mlgw" || dependency.starts_with("mlgw-");
            assert!(!ours || allowed.contains(&dependency), "{name} uses {dependency}");
            let is_http = ["http", "hyper", "axum"].iter().any(|prefix| dependency.starts_with(prefix));
            assert!(!is_http || !WITHOUT_HTTP.contains(&name), "{name} uses {dependency}");
        }
    }
}

#[test]
fn what_is_behind_a_seam_is_named_only_there() {
    for (path, text) in sources().iter().filter(|(path, _)| !path.ends_with("house.rs")) {
        for (name, folders) in NAMED_ONLY_IN {
            let named = text.contains(&format!("{name}::")) || text.contains(&format!("use {name};"));
            assert!(!named || folders.iter().any(|f| path.starts_with(f)), "{path} names {name}");
        }
    }
}

/// The command line asks a server by the types of the admin API, whoever handles them.
#[test]
fn the_command_line_names_no_handler() {
    for (path, text) in sources().iter().filter(|(path, _)| path.starts_with("gateway/src/cli")) {
        assert!(!text.contains("crate::admin"), "{path} names a handler of the admin API");
    }
}

/// Largest corpus that is kept for one fuzz target.
const CORPUS_BYTES_MAX: u64 = 100 << 10;

#[test]
fn fuzz_targets_have_small_corpora_and_link_no_rocksdb() {
    let lock = std::fs::read_to_string(root().join("fuzz/Cargo.lock")).unwrap();
    assert!(!lock.contains("rocksdb"), "the fuzz workspace compiles RocksDB");
    let targets = std::fs::read_dir(root().join("fuzz/fuzz_targets")).unwrap();
    for target in targets.map(|entry| entry.unwrap().path()) {
        let corpus = root().join("fuzz/corpus").join(target.file_stem().unwrap());
        let inputs =
            std::fs::read_dir(&corpus).unwrap_or_else(|error| panic!("{}: {error}", corpus.display()));
        let bytes: u64 = inputs.map(|input| input.unwrap().metadata().unwrap().len()).sum();
        assert!((1..=CORPUS_BYTES_MAX).contains(&bytes), "{} has {bytes} bytes", corpus.display());
    }
}

/// Modules that may hold unsafe code. What stands here has to run under valgrind or a sanitizer too.
const UNSAFE_IN: &[&str] = &[];

#[test]
fn unsafe_code_is_where_it_is_said_to_be() {
    let lints = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    assert!(lints.contains("unsafe_code = \"deny\""), "the compiler looks too");
    for (path, text) in sources() {
        let word = concat!("un", "safe");
        let has =
            [" {", " fn", " impl", " extern"].iter().any(|after| text.contains(&format!("{word}{after}")));
        assert!(!has || UNSAFE_IN.contains(&&*path), "{path} has {word} code");
    }
}

#[test]
fn every_module_opens_with_its_story() {
    for (path, text) in sources() {
        assert!(text.starts_with("//!"), "{path} does not open with //!");
    }
}

#[test]
fn files_and_functions_stay_readable() {
    let (sources, test_files) = (sources(), test_files(&sources()));
    for (path, text) in sources {
        let lines = if is_test(&path, &test_files) {
            text.lines().count()
        } else {
            without_tests(&text).lines().count()
        };
        assert!(lines <= FILE_LINES_MAX, "{path} has {lines} lines");
        for (name, lines) in functions(without_tests(&text)) {
            assert!(lines <= FUNCTION_LINES_MAX, "{path}: {name} has {lines} lines");
        }
    }
}

/// Functions with their lengths, as rustfmt lays them out: they end where a closing brace has the
/// indentation of their first line.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let start = line.trim_start();
        let indentation = &line[..line.len() - start.len()];
        let is_function =
            ["fn ", "pub fn ", "async fn ", "pub async fn ", "pub(crate) fn ", "pub(super) fn "]
                .iter()
                .any(|f| start.starts_with(f));
        if !is_function {
            continue;
        }
        let close = format!("{indentation}}}");
        if let Some(length) = lines[at..].iter().position(|l| *l == close) {
            found.push((start.chars().take(60).collect(), length + 1));
        }
    }
    found
}

#[test]
fn nothing_is_left_for_later() {
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("todo", "!("), concat!("dbg", "!(")];
    let (sources, test_files) = (sources(), test_files(&sources()));
    for (path, text) in sources {
        for mark in marks {
            assert!(!text.contains(mark), "{path} has {mark}");
        }
        assert!(is_test(&path, &test_files) || !without_tests(&text).contains(".unwrap()"), "{path} unwraps");
    }
}

/// Every test that a table of promises names is there, in the folder that it names.
#[test]
fn every_test_behind_a_cell_of_a_table_of_promises_is_there() {
    let folders = [
        ("s", "tests/src/"),
        ("u", "tiering/src/"),
        ("m", "metadata/src/"),
        ("p", "policies/src/"),
        ("g", "gateway/src/"),
    ];
    let sources = sources();
    for (document, least) in [("docs/FAULTS.md", 40), ("docs/POLICIES.md", 60)] {
        let table = std::fs::read_to_string(root().join(document)).unwrap();
        let named = table.split('`').filter_map(|piece| {
            let (letter, test) = piece.split_once(':').filter(|(_, test)| test.contains('_'))?;
            Some((folders.iter().find(|(known, _)| *known == letter)?.1, test))
        });
        let mut count = 0;
        for (folder, test) in named {
            let declared = format!("fn {test}(");
            let is_there =
                sources.iter().any(|(path, text)| path.starts_with(folder) && text.contains(&declared));
            assert!(is_there, "{document} names {test}, which is not in {folder}");
            count += 1;
        }
        assert!(count > least, "the table of {document} was not read: {count}");
    }
}
