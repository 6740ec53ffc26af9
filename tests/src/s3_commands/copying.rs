//! Files and objects of all names and sizes, copied in every direction.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::{BUCKET, CommandHost, MIB, text};
use crate::content::TestContent;
use crate::s3::full_body;
use crate::server::runtime;

/// Names that a client encodes wrongly if it encodes twice, or not at all.
const NAMES: [&str; 7] =
    ["plain.json", "a b+c", "100%25.txt", "ü/日本語 🦀", "q?x=1&y#z", "deep/er/file", "empty"];

/// Length of the object that is copied in three parts.
const LARGE: usize = 40 * MIB + 7;

/// Writes the files of a tree; returns their contents.
fn write_tree(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for (id, name) in (0..).zip(NAMES.iter().chain(&["large.bin"])) {
        let length = match *name {
            "empty" => 0,
            "large.bin" => LARGE,
            _ => 1000 + id as usize,
        };
        let path = root.join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        let bytes = TestContent { id, length }.bytes().to_vec();
        fs::write(path, &bytes).expect("written");
        files.insert((*name).to_owned(), bytes);
    }
    files
}

/// Asserts that a directory has these files and no others.
fn assert_tree(root: &Path, expected: &BTreeMap<String, Vec<u8>>) {
    let mut found = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.strip_prefix(root).expect("below").to_str().expect("UTF-8").to_owned();
                found.insert(name, fs::read(path).expect("read"));
            }
        }
    }
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    assert!(found == *expected, "the bytes of a file differ");
}

#[test]
fn a_tree_survives_the_way_to_the_server_through_it_and_back() {
    let host = CommandHost::with_bucket();
    let files = write_tree(&host.path("tree"));
    let summary = host.done(&["cp", "-r", "tree", "s3://commands/p"]);
    assert_eq!(String::from_utf8_lossy(&summary), "copied 8 objects, 40.0 MiB\n");

    let listed = host.json_lines(&["ls", "-r", "commands/p/"]);
    let sizes: BTreeMap<_, _> = listed
        .iter()
        .map(|line| (line["key"].as_str().expect("a key").to_owned(), line["size"].as_u64()))
        .collect();
    let expected: BTreeMap<_, _> =
        files.iter().map(|(name, bytes)| (format!("p/{name}"), Some(bytes.len() as u64))).collect();
    assert_eq!(sizes, expected);
    let large = listed.iter().find(|line| line["key"] == "p/large.bin").expect("listed");
    assert!(large["etag"].as_str().expect("an ETag").ends_with("-3"), "three parts: {large}");
    let head = runtime().block_on(host.server.client().head(BUCKET, "p/plain.json")).expect("stored");
    assert_eq!(head.header("content-type"), Some("application/json"));

    for (name, bytes) in &files {
        let printed = host.done(&["cat", &format!("s3://commands/p/{name}")]);
        assert!(printed == *bytes, "{name}: {} bytes", printed.len());
    }
    host.done(&["cp", "-r", "--part-size", "16MiB", "s3://commands/p/", "s3://commands/q/r"]);
    let copied = host.json_lines(&["ls", "commands/q/r/large.bin"]);
    assert!(copied[0]["etag"].as_str().expect("an ETag").ends_with("-3"), "in parts: {copied:?}");
    host.done(&["cp", "-r", "s3://commands/q/r", text(&host.path("back"))]);
    assert_tree(&host.path("back"), &files);
    assert_eq!(host.uploads(), [""; 0]);
    host.server.stop();
}

#[test]
fn single_objects_take_names_from_either_end() {
    let host = CommandHost::with_bucket();
    fs::write(host.path("f.bin"), "file").expect("written");
    for to in ["s3://commands", "s3://commands/p/", "s3://commands/k"] {
        host.done(&["cp", "f.bin", to]);
    }
    host.done(&["cp", "s3://commands/k", "s3://commands/q/"]);
    let keys: Vec<_> =
        host.json_lines(&["ls", "-r", "commands"]).iter().map(|line| line["key"].clone()).collect();
    assert_eq!(keys, ["f.bin", "k", "p/f.bin", "q/k"]);
    host.done(&["cp", "s3://commands/p/f.bin", "g.bin"]);
    host.done(&["cp", "s3://commands/p/f.bin", "new/dir/"]);
    host.done(&["cp", "s3://commands/k", "."]);
    host.done(&["--quiet", "cp", "s3://commands/k", "/dev/null"]);
    for name in ["g.bin", "new/dir/f.bin", "k"] {
        assert_eq!(fs::read(host.path(name)).expect(name), b"file");
    }
    let quiet = host.done(&["cp", "--quiet", "f.bin", "s3://commands/k"]);
    assert_eq!(quiet, b"");
    let report = host.done(&["cp", "--output", "json", "f.bin", "s3://commands/k"]);
    let report: serde_json::Value = serde_json::from_slice(&report).expect("JSON");
    assert_eq!(report, serde_json::json!({"objects": 1, "bytes": 4}));
    host.server.stop();
}

#[test]
fn standard_input_and_output_are_ends() {
    let host = CommandHost::with_bucket();
    for (key, length) in [("empty", 0), ("small", 1000), ("exact", 16 * MIB), ("large", 33 * MIB + 1)] {
        let content = TestContent { id: 9, length };
        let object = format!("s3://commands/{key}");
        let sent = host.run_with_input(&["cp", "-", &object], &content.bytes());
        assert_eq!(sent.status, Some(0), "{key}: {}", sent.stderr);
        assert!(host.done(&["cp", &object, "-"]) == content.bytes(), "{key}");
    }
    assert!(host.done(&["cat", "--range", "0-9", "commands/large"]).len() == 10);
    let content = TestContent { id: 9, length: 1000 }.bytes();
    assert!(host.done(&["cat", "--range", "990-", "commands/small"]) == content[990..]);
    assert!(host.done(&["cat", "--range", "-5", "commands/small", "commands/small"]).len() == 10);
    assert_eq!(host.uploads(), [""; 0]);
    host.server.stop();
}

#[test]
fn a_copy_in_parts_keeps_metadata_and_tags() {
    let host = CommandHost::with_bucket();
    runtime().block_on(async {
        let headers = [
            ("content-type", "text/x-test".to_owned()),
            ("x-amz-meta-owner", "a b".to_owned()),
            ("x-amz-tagging", "team=x%20y&empty=".to_owned()),
        ];
        let body = full_body(TestContent { id: 3, length: 6 * MIB }.bytes());
        let target = format!("/{BUCKET}/source");
        host.server.client().call(http::Method::PUT, &target, &headers, body).await.expect("stored");
    });
    for (to, part_size) in [("whole", "8MiB"), ("parts", "5MiB")] {
        host.done(&["cp", "--part-size", part_size, "s3://commands/source", &format!("s3://commands/{to}")]);
        let head = runtime().block_on(host.server.client().head(BUCKET, to)).expect("copied");
        assert_eq!(head.etag().ends_with("-2"), to == "parts", "{head:?}");
        let described = ["content-type", "x-amz-meta-owner", "x-amz-tagging-count", "content-length"];
        let described = described.map(|name| head.header(name).unwrap_or_default().to_owned());
        assert_eq!(described, ["text/x-test", "a b", "2", "6291456"], "{to}");
    }
    host.server.stop();
}

#[test]
fn listings_of_many_pages_are_complete() {
    let host = CommandHost::with_bucket();
    let many = 1100;
    for n in 0..many {
        let dir = host.path(&format!("many/{}", n % 3));
        fs::create_dir_all(&dir).expect("made");
        fs::write(dir.join(format!("{n:04}")), "12345").expect("written");
    }
    host.done(&["cp", "-r", "many", "s3://commands/m", "--parallel", "16"]);
    let table = String::from_utf8(host.done(&["ls", "--recursive", "s3://commands/m/"])).expect("UTF-8");
    assert_eq!(table.lines().count(), many + 1, "a header and a row for each");
    let grouped = String::from_utf8(host.done(&["ls", "commands/m/"])).expect("UTF-8");
    let names: Vec<_> = grouped.lines().map(|line| line.rsplit_once("  ").expect("columns").1).collect();
    assert_eq!(names, ["KEY", "0/", "1/", "2/"]);
    let usage = host.json_lines(&["du", "commands/m", "--depth", "1"]);
    let rows: Vec<_> = usage
        .iter()
        .map(|row| format!("{} {} {}", row["path"].as_str().expect("a path"), row["objects"], row["bytes"]))
        .collect();
    let expected = ["s3://commands/m/ 1100 5500", "s3://commands/m 1100 5500"];
    assert_eq!(rows, expected);
    let deeper = host.json_lines(&["du", "commands/m/", "--depth", "1"]);
    let counts: Vec<_> = deeper.iter().map(|row| row["objects"].as_u64().expect("a count")).collect();
    assert_eq!(counts, [367, 367, 366, 1100]);
    let buckets = String::from_utf8(host.done(&["ls"])).expect("UTF-8");
    assert!(buckets.starts_with("CREATED") && buckets.trim_end().ends_with("  commands"), "{buckets}");
    host.server.stop();
}
