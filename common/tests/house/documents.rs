//! Rules for Markdown documents: links lead to files and headings that exist, paths name existing files, and
//! members of types exist.

use std::collections::BTreeSet;

use crate::source::Source;
use crate::tree::{Tree, root};

/// Folders at the root of the repository whose paths are checked.
const FOLDERS: &[&str] =
    &["cluster", "common", "deploy", "docs", "fuzz", "gateway", "metadata", "policies", "tests", "tiering"];

/// Checks that every relative link leads to a file, and to a heading if it has an anchor.
pub(crate) fn links_lead_somewhere(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in documents(tree) {
        for target in links(text).filter(|target| !target.contains("://")) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { path.to_owned() } else { resolved(path, file) };
            if !root().join(&file).exists() {
                found.push(format!("{path} links to {target}, which does not exist"));
            } else if !anchor.is_empty() && !has_heading(tree.texts.get(&file), anchor) {
                found.push(format!("{path} links to {target}, which has no such heading"));
            }
        }
    }
    found
}

/// Checks that paths from the root of the repository exist. Decision records are of their time: they may name
/// files that are gone.
pub(crate) fn paths_exist(tree: &Tree) -> Vec<String> {
    let mut found = BTreeSet::new();
    for (path, text) in documents(tree).filter(|(path, _)| !path.starts_with("docs/decisions/")) {
        for named in paths(text).filter(|named| !root().join(named).exists()) {
            found.insert(format!("{path} names {named}, which does not exist"));
        }
    }
    found.into_iter().collect()
}

/// Checks that each `Type::member` exists if the type is one of this repository. Decision records are left
/// out, as for paths.
pub(crate) fn members_exist(tree: &Tree) -> Vec<String> {
    let sources = || tree.sources.values();
    let types: BTreeSet<&str> = sources().flat_map(|of| of.types.iter().map(|(name, _)| &**name)).collect();
    let exists = |owner: &str, member: &str| {
        let path = [owner.to_owned(), member.to_owned()];
        // The compiler has checked the paths that code names. Macros generate some of their members.
        let named = |source: &Source| source.paths.keys().any(|mention| mention.path.ends_with(&path));
        sources().any(|source| source.members.contains(&path) || named(source))
    };
    let mut found = BTreeSet::new();
    for (path, text) in documents(tree).filter(|(path, _)| !path.starts_with("docs/decisions/")) {
        for (owner, member) in members(text).filter(|(owner, _)| types.contains(owner)) {
            if !exists(owner, member) {
                found.insert(format!("{path} names {owner}::{member}, which does not exist"));
            }
        }
    }
    found.into_iter().collect()
}

/// Types in code spans, each with the member that is named.
fn members(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split('`').skip(1).step_by(2).filter_map(|code| {
        let mut parts = code.trim_end_matches("()").rsplit("::");
        let (member, owner) = (parts.next()?, parts.next()?);
        let is_name = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || c == '_');
        (is_name(member) && is_name(owner) && owner.starts_with(char::is_uppercase))
            .then_some((owner, member))
    })
}

fn documents(tree: &Tree) -> impl Iterator<Item = (&str, &str)> {
    let documents = tree.texts.iter().filter(|(path, _)| path.ends_with(".md"));
    documents.map(|(path, text)| (&**path, &**text))
}

/// Targets of `[text](target)`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("](")
        .filter_map(|(start, _)| text[start + 2..].split_once(')').map(|(target, _)| target))
}

/// A path relative to the folder of a document, from the root.
fn resolved(document: &str, target: &str) -> String {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// True if a document has a heading with this anchor, which is made as GitHub makes it.
fn has_heading(text: Option<&String>, anchor: &str) -> bool {
    let headings = text.into_iter().flat_map(|text| text.lines()).filter_map(|line| {
        let title = line.trim_start_matches('#');
        (title.len() < line.len()).then_some(title.trim())
    });
    headings.into_iter().any(|title| {
        let kept =
            title.to_lowercase().chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c)).collect();
        let slug: String = kept;
        slug.replace(' ', "-") == anchor
    })
}

/// Words that are paths into one of the [`FOLDERS`]. Patterns and placeholders are left out.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    let is_of_path = |c: char| c.is_alphanumeric() || "_-./{}*".contains(c);
    let words = text.split(move |c| !is_of_path(c)).map(|word| word.trim_end_matches(['.', '/']));
    words.filter(|word| {
        let folder = word.split_once('/').map(|(folder, _)| folder);
        let has_capitals = word.split('/').any(|part| part.len() > 2 && part.chars().all(char::is_uppercase));
        folder.is_some_and(|folder| FOLDERS.contains(&folder))
            && !word.contains(['{', '}', '*'])
            && !has_capitals
    })
}

#[test]
fn links_and_paths_are_found() {
    let text = "See [a](../b.md#one-two) and `gateway/x.rs`, gateway/y.rs. Not tests/{a,b} or tests/NAME.";
    assert_eq!(links(text).collect::<Vec<_>>(), ["../b.md#one-two"]);
    assert_eq!(paths(text).collect::<Vec<_>>(), ["gateway/x.rs", "gateway/y.rs"]);
    assert_eq!(resolved("docs/a/c.md", "../b.md"), "docs/b.md");
    let heading = "# Title\n\n## One, `two`\n".to_owned();
    assert!(has_heading(Some(&heading), "one-two") && !has_heading(Some(&heading), "three"));
    assert!(!has_heading(None, "one"));
}

#[test]
fn members_of_types_that_do_not_exist_are_found() {
    let text =
        "`Log::open`, `a::Log::end()`, `Log`, `log::open`, Log::x, `Log::*`, `Log::ALL` and `Other::x`.";
    assert_eq!(
        members(text).collect::<Vec<_>>(),
        [("Log", "open"), ("Log", "end"), ("Log", "ALL"), ("Other", "x")]
    );
    let log = "//! L.\nstruct Log;\nimpl Log {\n    fn open() { end(Log::ALL); }\n}\nstruct Unit;\n\
        fn end(_: u8) {}\n";
    let tree = Tree::of(&[("log.rs", log), ("a.md", text), ("b.md", "`Unit::x`")]);
    let expected = ["a.md names Log::end, which does not exist", "b.md names Unit::x, which does not exist"];
    assert_eq!(members_exist(&tree), expected);
}
