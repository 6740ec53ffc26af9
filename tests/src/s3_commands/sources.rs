//! Sources that are corrupt, replaced, empty or overlap their copy, and ends that are closed.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use mlgw_common::time::{Instant, block_for};
use rustix::process::{Pid, Signal, kill_process};

use super::{BUCKET, CommandHost, MIB, start};
use crate::content::TestContent;
use crate::proxy::{Fault, FaultProxy, Rule};
use crate::s3::full_body;
use crate::server::runtime;

/// Puts objects; the body of each is its key.
fn put_keys(host: &CommandHost, keys: &[&str]) {
    runtime().block_on(async {
        let client = host.server.client();
        for key in keys {
            client.put(BUCKET, key, full_body((*key).to_owned())).await.expect("stored");
        }
    });
}

fn body(host: &CommandHost, key: &str) -> String {
    String::from_utf8(host.done(&["cat", &format!("s3://{BUCKET}/{key}")])).expect("UTF-8")
}

#[test]
fn a_copy_to_a_parent_replaces_no_source() {
    let host = CommandHost::with_bucket();
    put_keys(&host, &["p/q/q/x", "p/q/x", "p/q/y"]);
    let copied = host.run(&["cp", "-r", "--parallel", "1", "s3://commands/p/q/", "s3://commands/p/"]);
    assert_eq!(copied.status, Some(1), "{}", copied.stderr);
    assert!(
        copied.stderr.contains("s3://commands/p/q/q/x: the copy s3://commands/p/q/x"),
        "{}",
        copied.stderr
    );
    assert!(copied.stderr.contains("copied 2 objects"), "{}", copied.stderr);
    for (key, source) in [("p/q/x", "p/q/x"), ("p/x", "p/q/x"), ("p/y", "p/q/y")] {
        assert_eq!(body(&host, key), source);
    }
    host.server.stop();
}

#[test]
fn a_corrupt_object_does_not_end_a_copy() {
    let host = CommandHost::with_bucket();
    put_keys(&host, &["p/a", "p/bad", "p/c", "p/d"]);
    let proxy = FaultProxy::start(host.server.s3);
    proxy.set_rules(vec![Rule::new(Fault::Corrupt { at: 3 }).method("GET").path("bad")]);
    let copied = host.run_through(&proxy, &["cp", "-r", "--parallel", "1", "s3://commands/p", "d"]);
    assert_eq!(copied.status, Some(1), "{}", copied.stderr);
    assert!(copied.stderr.contains("s3://commands/p/bad: the bytes"), "{}", copied.stderr);
    let report = "mlgw: copied 3 objects, 9 B; 1 could not be copied";
    assert!(copied.stderr.contains(report), "the bytes of complete objects: {}", copied.stderr);
    let mut names: Vec<_> =
        fs::read_dir(host.path("d")).expect("made").map(|entry| entry.expect("read").file_name()).collect();
    names.sort();
    assert_eq!(names, ["a", "c", "d"]);
    host.server.stop();
}

#[test]
fn a_device_in_the_target_directory_is_not_written() {
    let host = CommandHost::with_bucket();
    put_keys(&host, &["p/a", "p/b"]);
    fs::create_dir(host.path("d")).expect("made");
    symlink("/dev/null", host.path("d/a")).expect("made");
    let copied = host.run(&["cp", "-r", "s3://commands/p", "d"]);
    assert_eq!(copied.status, Some(1), "{}", copied.stderr);
    assert!(copied.stderr.contains("d/a: a device or a pipe"), "{}", copied.stderr);
    assert!(copied.stderr.contains("mlgw: copied 1 object, 3 B; 1 could not be copied"), "{}", copied.stderr);
    assert_eq!(fs::read(host.path("d/b")).expect("copied"), b"p/b");
    host.server.stop();
}

#[test]
fn the_parts_of_a_copy_are_those_of_one_version() {
    let host = CommandHost::with_bucket();
    let content = TestContent { id: 1, length: 12 * MIB };
    fs::write(host.path("f"), content.bytes()).expect("written");
    host.done(&["cp", "f", "s3://commands/k"]);
    let proxy = FaultProxy::start(host.server.s3);
    let etag = |value: &str| Fault::Header { name: "etag".to_owned(), value: value.to_owned() };
    proxy.set_rules(vec![Rule::new(etag("\"of an earlier version\"")).method("HEAD")]);
    let copy = ["cp", "--part-size", "5MiB", "s3://commands/k", "s3://commands/copy"];
    let replaced = host.run_through(&proxy, &copy);
    let words = "s3://commands/k: the object was replaced";
    assert!(replaced.status == Some(1) && replaced.stderr.contains(words), "{}", replaced.stderr);
    assert_eq!(host.uploads(), [""; 0]);
    assert_eq!(host.run(&["ls", "commands/copy"]).status, Some(1), "nothing is stored");
    proxy.set_rules(Vec::new());
    let copied = host.run_through(&proxy, &copy);
    assert_eq!(copied.status, Some(0), "{}", copied.stderr);
    host.server.stop();
}

#[test]
fn a_directory_marker_is_a_source_without_objects() {
    let host = CommandHost::with_bucket();
    runtime().block_on(async {
        host.server.client().put(BUCKET, "p/", full_body("")).await.expect("stored");
    });
    for to in ["d", "s3://commands/q"] {
        let copied = String::from_utf8(host.done(&["cp", "-r", "s3://commands/p", to])).expect("UTF-8");
        assert_eq!(copied, "copied 0 objects, 0 B\n", "{to}");
    }
    host.server.stop();
}

#[test]
fn a_closed_standard_error_does_not_end_a_copy() {
    let host = CommandHost::with_bucket();
    fs::create_dir(host.path("tree")).expect("made");
    symlink("nothing", host.path("tree/a")).expect("made");
    fs::write(host.path("tree/b"), "b").expect("written");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut child = start(host.command(&["cp", "-r", "tree", "s3://commands/t"]).stderr(writer));
    assert_eq!(child.wait().expect("it ends").code(), Some(1), "a panic has another status");
    assert_eq!(body(&host, "t/b"), "b");
    host.server.stop();
}

#[test]
fn a_copy_that_waits_for_its_reader_is_interrupted() {
    let host = CommandHost::with_bucket();
    let content = TestContent { id: 1, length: 24 * MIB };
    runtime().block_on(async {
        let client = host.server.client();
        client.put(BUCKET, "large", full_body(content.bytes())).await.expect("stored");
    });
    let mut child = start(&mut host.command(&["cp", "s3://commands/large", "-"]));
    let mut stdout = child.stdout.take().expect("a pipe");
    stdout.read_exact(&mut [0; 1000]).expect("read");
    kill_process(Pid::from_child(&child), Signal::INT).expect("our child");
    let begun = Instant::now();
    let ended = loop {
        if let Some(ended) = child.try_wait().expect("our child") {
            break ended;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "the signal is swallowed");
        block_for(Duration::from_millis(10));
    };
    assert_eq!(ended.signal(), Some(Signal::INT.as_raw()));
    drop(stdout);
    host.server.stop();
}
