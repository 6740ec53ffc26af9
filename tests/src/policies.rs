//! The commands `mlgw policy …`, `mlgw trace …` and `mlgw workload …`: their output and exit status.
//!
//! - `acting`: the effects of rules on objects at rest;
//! - `compressing`: rules that compress, as clients see them;
//! - `deleting`: objects that rules must not delete;
//! - `documented`: each example of the documentation has an effect;
//! - `examining`: schema, validate and test;
//! - `kitchen`: a gateway with an origin, on which policies are tried;
//! - `recipes`: each recipe has an effect;
//! - `simulating`: import and simulate;
//! - `running`: the running policy of a server, and its changes;
//! - `wide`: rules about more than one object, and plans and trials over the admin API;
//! - `workloads`: readers and their datasets, access plans, and the facts about an object that follow from
//!   them.

mod acting;
mod compressing;
mod deleting;
mod documented;
mod examining;
mod policy_testbed;
mod recipes;
mod running;
mod simulating;
mod wide_rules;
mod workloads;

use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Standard output, standard error and exit status of a command.
struct CommandOutput {
    stdout: String,
    stderr: String,
    status: i32,
}

impl CommandOutput {
    /// Returns the output, parsed as JSON.
    fn document(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|_| panic!("{}{}", self.stdout, self.stderr))
    }
}

/// Runs the binary in `dir`.
fn mlgw(dir: &Path, words: &str) -> CommandOutput {
    let output = Command::new(crate::server::binary())
        .args(words.split(' '))
        .current_dir(dir)
        .env_clear()
        .output()
        .expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the output is UTF-8");
    let status = output.status.code().expect("the process exits");
    CommandOutput { stdout: text(output.stdout), stderr: text(output.stderr), status }
}

fn temp_dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

fn write(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(name), text).expect("written");
}
