//! Files of the repository: Rust files parsed, others as text.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::source::Source;

/// Top-level folders with files of ours.
const FOLDERS: &[&str] = &[
    ".ci", ".config", "cluster", "common", "deploy", "docs", "fuzz", "gateway", "metadata", "policies",
    "tests", "tiering",
];

/// Folders at any depth that are skipped.
const SKIPPED: &[&str] = &["__pycache__", "corpus", "node_modules", "target"];

/// Stack size of a parsing thread: expressions nest deeply.
const STACK_BYTES: usize = 32 << 20;

/// Every file of the repository by its path from the root.
pub(crate) struct Tree {
    /// Rust files.
    pub(crate) sources: BTreeMap<String, Source>,
    /// Rust files that are compiled for tests only.
    pub(crate) test_files: BTreeSet<String>,
    /// Files of other kinds: documents, scripts, settings.
    pub(crate) texts: BTreeMap<String, String>,
}

impl Tree {
    /// The files of the repository, read once per process.
    pub(crate) fn get() -> &'static Tree {
        static TREE: OnceLock<Tree> = OnceLock::new();
        TREE.get_or_init(Tree::read)
    }

    /// A tree of literal Rust files.
    pub(crate) fn of(files: &[(&str, &str)]) -> Tree {
        Tree::new(files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect())
    }

    /// Rust files that are not for tests, including fuzz targets.
    pub(crate) fn outside_tests(&self) -> impl Iterator<Item = (&str, &Source)> {
        let outside = self.sources.iter().filter(|(path, _)| !self.test_files.contains(*path));
        outside.map(|(path, source)| (&**path, source))
    }

    /// Rust files that are shipped: neither for tests nor fuzz targets. Most measures use these.
    pub(crate) fn shipped(&self) -> impl Iterator<Item = (&str, &Source)> {
        self.outside_tests().filter(|(path, _)| !path.starts_with("fuzz/"))
    }

    fn read() -> Tree {
        let mut texts = BTreeMap::new();
        let mut folders: Vec<PathBuf> = FOLDERS.iter().map(|folder| root().join(folder)).collect();
        let read = |path: PathBuf, texts: &mut BTreeMap<String, String>| {
            let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
            if is_ours(&name) {
                texts.insert(name, std::fs::read_to_string(&path).unwrap());
            }
        };
        for entry in std::fs::read_dir(root()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                read(path, &mut texts);
            }
        }
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).into_iter().flatten() {
                let entry = entry.unwrap();
                let path = entry.path();
                if !path.is_dir() {
                    read(path, &mut texts);
                } else if !SKIPPED.contains(&&*entry.file_name().to_string_lossy()) {
                    folders.push(path);
                }
            }
        }
        let tree = Tree::new(texts);
        assert!(tree.sources.len() > 20 && tree.texts.len() > 20, "the files were not found");
        tree
    }

    fn new(files: BTreeMap<String, String>) -> Tree {
        let (rust, texts): (BTreeMap<_, _>, _) =
            files.into_iter().partition(|(path, _)| path.ends_with(".rs"));
        let sources = parse(rust.into_iter().collect());
        let test_files = test_files(&sources);
        Tree { sources, test_files, texts }
    }
}

/// Root of the clone: `MLGW_REPO` if the steps run the test, which compile a copy of the clone.
pub(crate) fn root() -> PathBuf {
    let root = std::env::var_os("MLGW_REPO").map(PathBuf::from);
    root.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned())
}

/// True for the kinds of files that are read. Scripts of the steps have no extension.
fn is_ours(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    match name.rsplit_once('.') {
        Some((_, extension)) => ["md", "py", "rs", "sh", "toml", "yaml", "yml"].contains(&extension),
        None => path.starts_with("tests/steps/") || path.starts_with(".ci/"),
    }
}

/// Parses all files, on every processor.
fn parse(files: Vec<(String, String)>) -> BTreeMap<String, Source> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(files.len().max(1));
    let mut shares: Vec<Vec<(String, String)>> = (0..workers).map(|_| Vec::new()).collect();
    for (at, file) in files.into_iter().enumerate() {
        shares[at % workers].push(file);
    }
    let parse_share = |share: Vec<(String, String)>| {
        let parse_one = |(path, text)| {
            let parsed = Source::parse(text).unwrap_or_else(|error| {
                panic!("{path}:{}: {error}", error.span().start().line);
            });
            // Spans are kept for each thread until they are invalidated.
            proc_macro2::extra::invalidate_current_thread_spans();
            (path, parsed)
        };
        share.into_iter().map(parse_one).collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let start = |share| {
            let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
            builder.spawn_scoped(scope, move || parse_share(share)).unwrap()
        };
        let workers: Vec<_> = shares.into_iter().map(start).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    })
}

/// File of a submodule that is declared in another file, if it exists.
pub(crate) fn submodule_file(
    sources: &BTreeMap<String, Source>,
    declared_in: &str,
    submodule: &crate::source::Submodule,
) -> Option<String> {
    let (folder, file_name) = declared_in.rsplit_once('/').unwrap_or(("", declared_in));
    if let Some(path) = &submodule.path {
        let file = format!("{folder}/{path}");
        return (submodule.inside.is_empty() && sources.contains_key(&file)).then_some(file);
    }
    let own_folder = declared_in.trim_end_matches(".rs");
    // A root file (`lib.rs`, `main.rs`, a binary or an integration test) has its modules beside it.
    let bases = match file_name {
        "lib.rs" | "main.rs" | "mod.rs" => vec![folder],
        _ => vec![own_folder, folder],
    };
    let inside = submodule.inside.split("::").filter(|name| !name.is_empty());
    let inside: String = inside.map(|name| format!("{name}/")).collect();
    let name = &submodule.name;
    let files = bases
        .iter()
        .flat_map(|base| [format!("{base}/{inside}{name}.rs"), format!("{base}/{inside}{name}/mod.rs")]);
    files.into_iter().find(|file| file != declared_in && sources.contains_key(file))
}

/// Files in folders for tests, and files that a module for tests declares, at any depth.
fn test_files(sources: &BTreeMap<String, Source>) -> BTreeSet<String> {
    let in_folder = |path: &&String| path.starts_with("tests/") || path.contains("/tests/");
    let mut found: BTreeSet<String> = sources.keys().filter(in_folder).cloned().collect();
    let mut open: Vec<String> = found.iter().cloned().collect();
    for (path, source) in sources {
        let for_tests = source.submodules.iter().filter(|submodule| submodule.for_tests);
        open.extend(for_tests.filter_map(|submodule| submodule_file(sources, path, submodule)));
    }
    while let Some(path) = open.pop() {
        let submodules = sources[&path].submodules.iter();
        let files = submodules.filter_map(|submodule| submodule_file(sources, &path, submodule));
        open.extend(files.filter(|file| !found.contains(file)));
        found.insert(path);
    }
    found
}

#[test]
fn files_for_tests_are_found_by_their_declarations() {
    let tree = Tree::of(&[
        ("a/src/lib.rs", "mod b;\n#[cfg(test)]\nmod proofs;\n#[cfg(test)]\n#[path = \"odd.rs\"]\nmod tests;"),
        ("a/src/b.rs", "mod c;\n#[cfg(test)]\nmod model { mod d; }"),
        ("a/src/b/c.rs", ""),
        ("a/src/b/model/d.rs", "mod e;"),
        ("a/src/b/model/d/e.rs", ""),
        ("a/src/proofs.rs", ""),
        ("a/src/odd.rs", ""),
        ("a/tests/all.rs", "mod f;"),
    ]);
    let shipped: Vec<&str> = tree.shipped().map(|(path, _)| path).collect();
    assert_eq!(shipped, ["a/src/b.rs", "a/src/b/c.rs", "a/src/lib.rs"]);
}
