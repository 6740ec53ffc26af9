//! `mlgw policy …`, `mlgw trace …` and `mlgw workload …`: what they say and the status they end with.
//!
//! - `acting`: what rules do with objects at rest;
//! - `compressing`: rules that compress, seen from outside;
//! - `deleting`: what rules may not delete;
//! - `documented`: each example of the documentation does something;
//! - `examining`: schema, validate and test;
//! - `kitchen`: a gateway before an origin, to try policies on;
//! - `recipes`: each of them does something;
//! - `rehearsing`: import and simulate;
//! - `running`: what a server runs, and how that is changed;
//! - `wide`: what rules say of more than one object, and plans and trials over the admin API;
//! - `workloads`: who reads what, what was told of it, and what that makes of an object.

mod acting;
mod compressing;
mod deleting;
mod documented;
mod examining;
mod kitchen;
mod recipes;
mod rehearsing;
mod running;
mod wide;
mod workloads;

use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Output, what was said beside it, and the status.
struct Said {
    out: String,
    error: String,
    status: i32,
}

impl Said {
    /// The document that was answered.
    fn document(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|_| panic!("{}{}", self.out, self.error))
    }
}

/// Runs the binary in `dir`.
fn mlgw(dir: &Path, words: &str) -> Said {
    let output = Command::new(crate::server::binary())
        .args(words.split(' '))
        .current_dir(dir)
        .env_clear()
        .output()
        .expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it writes text");
    let status = output.status.code().expect("it exits");
    Said { out: text(output.stdout), error: text(output.stderr), status }
}

fn room() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

fn write(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(name), text).expect("written");
}
