//! Tests of `mlgw store …` on data directories that the shipped server wrote, intact and damaged on purpose.
//!
//! - `directories`: a directory of a stopped server, of a killed one, and an older copy of them;
//! - `damages`: the damages applied to them, and the finding that a check must report for each;
//! - `agreeing`: a start and a check agree, whatever is in a file's place;
//! - `checking`: a check finds every damage and reports no other, and repair fixes the damage that it reports
//!   as fixed;
//! - `copying`: backups while serving, restore, rebuild, salvage;
//! - `fixtures`: directories of every released format open;
//! - `groups`: buckets in several groups through restart, backup, restore and rebuild;
//! - `scrubbing`: a block that goes bad under a running server.

mod agreeing;
mod checking;
mod copying;
mod damages;
mod directories;
mod fixtures;
mod groups;
mod scrubbing;

pub(crate) use directories::copy_directory;

use crate::server::runtime;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// Runs a `store` verb of the binary.
fn run_store(words: &[&str]) -> Output {
    Command::new(crate::server::binary())
        .args(["store"])
        .args(words)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .output()
        .expect("the binary runs")
}

/// Runs a verb that prints a document; returns the document and the exit status.
fn run_store_json(words: &[&str]) -> (Value, i32) {
    let output = run_store(&[words, &["--output", "json"]].concat());
    let status = output.status.code().expect("the process exits");
    let text = String::from_utf8_lossy(&output.stdout);
    let document = serde_json::from_str(&text)
        .unwrap_or_else(|_| panic!("{words:?}: {text}{}", String::from_utf8_lossy(&output.stderr)));
    (document, status)
}

/// The kinds of damage that a check finds.
fn damage_in(findings: &Value) -> Vec<String> {
    let findings = findings.as_array().expect("a list");
    let damage = findings.iter().filter(|finding| finding["severity"] == "damage");
    damage.map(|finding| finding["kind"].as_str().expect("a kind").to_owned()).collect()
}

/// Runs a check; returns the kinds of damage found.
pub(crate) fn check(dir: &Path) -> Vec<String> {
    let (document, status) = run_store_json(&["check", path_text(dir)]);
    let damage = damage_in(&document["findings"]);
    assert_eq!(status, i32::from(!damage.is_empty()), "{document:#}");
    damage
}

/// Asserts that a check finds no damage in an undamaged directory.
pub(crate) fn assert_undamaged(dir: &Path) {
    assert_eq!(check(dir), Vec::<String>::new(), "{}", dir.display());
}

fn path_text(path: &Path) -> &str {
    path.to_str().expect("a test path")
}
