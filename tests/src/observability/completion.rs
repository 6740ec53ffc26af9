//! Shell completion of names that a server lists.

use mlgw_common::time::Instant;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::server::{ACCESS_KEY, SECRET_KEY, ServerSetup, binary};

/// Completes the last word of a command line as bash does at a press of TAB. Error messages are part of the
/// answer, so that a test sees them.
fn by_bash(setup: &ServerSetup, environment: &[(&str, &str)], line: &[&str]) -> Vec<String> {
    let script = r#"
        source <("$0" completions bash)
        COMP_WORDS=(mlgw "$@") COMP_CWORD=$# COMP_TYPE=9
        _clap_complete_mlgw mlgw "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", script]).arg(binary()).args(line);
    lines_of(bash, setup, environment)
}

/// Completes the last word of a command line as zsh or fish requests it.
fn by_entry(setup: &ServerSetup, shell: &str, line: &[&str]) -> Vec<String> {
    let mut entry = Command::new(binary());
    entry.args(["--", "mlgw"]).args(line);
    let index = line.len().to_string();
    lines_of(entry, setup, &[("MLGW_COMPLETE", shell), ("_CLAP_COMPLETE_INDEX", &index)])
}

fn lines_of(mut command: Command, setup: &ServerSetup, environment: &[(&str, &str)]) -> Vec<String> {
    command.env_clear().env("MLGW_DATA_DIR", &setup.data_dir).envs(environment.iter().copied());
    let done = command.stdin(Stdio::null()).output().expect("started");
    let text = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    assert!(!text.contains(SECRET_KEY), "a secret is printed: {text}");
    text.lines().map(str::to_owned).collect()
}

fn run(setup: &ServerSetup, arguments: &[&str]) -> Value {
    let (said, status) = setup.command(&[&["--output", "json"], arguments].concat());
    assert_eq!(status, Some(0), "{said}");
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// The candidates that are no options.
fn names(lines: Vec<String>) -> Vec<String> {
    lines.into_iter().filter(|line| !line.is_empty() && !line.starts_with("--")).collect()
}

#[test]
fn shells_complete_names_of_the_running_server() {
    let dir = tempfile::tempdir().expect("a directory");
    // Nobody listens at the discard port; a list of upstreams needs no connection.
    let setup = ServerSetup::new(dir.path().join("mlgw-data")).with_upstream(
        "far",
        ([127, 0, 0, 1], 9).into(),
        "lake",
        "1s",
    );
    let server = setup.start();
    for bucket in ["observed", "observed-2", "other"] {
        run(&setup, &["bucket", "create", bucket]);
    }
    run(&setup, &["dataset", "create", "train", "--bucket", "observed"]);
    let job = run(&setup, &["dataset", "warm", "train"])["id"].to_string();
    let key = run(&setup, &["access", "key", "create", "--description", "notebooks"]);
    let key = key["key"]["access_key"].as_str().expect("an id").to_owned();

    let bash = |line: &[&str]| names(by_bash(&setup, &[], line));
    assert_eq!(bash(&["bucket", "show", "obs"]), ["observed", "observed-2"]);
    assert_eq!(bash(&["bucket", "show", ""]), ["observed", "observed-2", "other"]);
    assert_eq!(bash(&["bucket", "show", "observed-2"]), ["observed-2"]);
    assert_eq!(bash(&["dataset", "show", ""]), ["train"]);
    assert_eq!(bash(&["job", "show", ""]), [job.as_str()]);
    assert_eq!(bash(&["upstream", "show", "f"]), ["far"]);
    assert_eq!(bash(&["tier", "show", "h"]), ["hot"]);
    assert_eq!(bash(&["dataset", "create", "d", "--bucket", "ot"]), ["other"]);
    assert_eq!(bash(&["bucket", "bind", "b", "--upstream", ""]), ["far"]);
    assert_eq!(bash(&["job", "list", "--dataset", ""]), ["train"]);
    let mut keys = [ACCESS_KEY.to_owned(), key.clone()];
    keys.sort();
    let mut offered = bash(&["access", "key", "show", ""]);
    offered.sort();
    assert_eq!(offered, keys);
    assert!(bash(&["bucket", ""]).contains(&"show".to_owned()), "commands are completed as well");

    assert_eq!(
        names(by_entry(&setup, "zsh", &["access", "key", "show", &key])),
        [format!("{key}:notebooks")]
    );
    let fish = names(by_entry(&setup, "fish", &["job", "wait", ""]));
    assert!(fish[0].starts_with(&format!("{job}\twarm train, ")), "{fish:?}");
    server.stop();
    assert_eq!(bash(&["bucket", "show", ""]), [""; 0], "no server runs");
}

#[test]
fn a_server_that_does_not_answer_delays_completion_briefly_and_silently() {
    let setup = ServerSetup::new("/nonexistent");
    let mute = TcpListener::bind("127.0.0.1:0").expect("bound");
    let endpoint = format!("http://{}", mute.local_addr().expect("an address"));
    let environment = [
        ("MLGW_ADMIN_ENDPOINT", endpoint.as_str()),
        ("AWS_ACCESS_KEY_ID", ACCESS_KEY),
        ("AWS_SECRET_ACCESS_KEY", SECRET_KEY),
    ];
    let begun = Instant::now();
    assert_eq!(names(by_bash(&setup, &environment, &["bucket", "show", ""])), [""; 0]);
    // A command waits for a minute.
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}
