//! The server turns transparent huge pages off for its process, whatever the machine's setting is.

use std::fs;

use crate::server::ServerSetup;

#[test]
fn huge_pages_are_turned_off_for_the_process() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = ServerSetup::new(dir.path().join("mlgw-data")).start();
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("a child process");
    let line = status.lines().find(|line| line.starts_with("THP_enabled:"));
    assert_eq!(line.map(|line| line.split_whitespace().last()), Some(Some("0")), "{status}");
    server.stop();
}
