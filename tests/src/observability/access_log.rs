//! The access log of the shipped binary: off at first, on by SIGHUP, one JSON line per request.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{BUCKET, runtime};
use crate::s3::full_body;
use crate::server::{ACCESS_KEY, ServerSetup};

/// Returns the lines of a server whose access log is in its data directory.
pub(crate) fn lines(data_dir: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(data_dir.join("access/access.log")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

#[test]
fn each_request_has_one_line_after_the_log_is_enabled() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = dir.path().join("mlgw.toml");
    std::fs::write(&config, "").expect("written");
    let setup = ServerSetup::new(dir.path().join("mlgw-data"))
        .with_preparation(&format!("export MLGW_CONFIG={}", config.display()));
    let server = setup.start();
    let (client, runtime) = (server.client(), runtime());
    runtime.block_on(async { client.create_bucket(BUCKET).await.expect("made") });
    assert!(!setup.data_dir.join("access").exists(), "the access log is off by default");

    std::fs::write(&config, "[access_log]\none_in = 1\n").expect("written");
    let pid = Pid::from_raw(i32::try_from(server.pid()).expect("a pid")).expect("a pid");
    kill_process(pid, Signal::HUP).expect("our child");
    while !server.log().contains("configuration reloaded") {
        mlgw_common::time::block_for(std::time::Duration::from_millis(2));
    }
    runtime.block_on(async {
        client.put(BUCKET, "dir/a b", full_body("twelve bytes")).await.expect("stored");
        let body = client.get(BUCKET, "dir/a b").await.expect("read");
        let timing = body.header("server-timing").expect("a header").to_owned();
        assert!(timing.starts_with("total;dur=") && !timing.contains(','), "{timing}");
        client.get(BUCKET, "missing").await.expect_err("does not exist");
    });
    // A stop flushes buffered lines.
    server.stop();

    let lines = lines(&setup.data_dir);
    let entries: Vec<_> = lines
        .iter()
        .map(|line| (line["operation"].as_str().unwrap_or_default(), line["status"].as_u64().unwrap_or(0)))
        .collect();
    assert_eq!(entries, [("PutObject", 200), ("GetObject", 200), ("GetObject", 404)]);
    assert_eq!((&lines[2]["error"], lines[2].get("short_of")), (&Value::from("NoSuchKey"), None));
    assert_eq!(lines[1].get("error"), None, "{}", lines[1]);
    let put = &lines[0];
    assert_eq!((put["path"].as_str(), put["bucket"].as_str()), (Some("/observed/dir/a%20b"), Some(BUCKET)));
    assert_eq!((put["bytes_in"].as_u64(), lines[1]["bytes_out"].as_u64()), (Some(12), Some(12)));
    assert_eq!(put["access_key"], ACCESS_KEY);
    assert!(put["from"].as_str().is_some_and(|from| from.starts_with("127.0.0.1:")), "{put}");
    assert_eq!(put["request_id"].as_str().map(str::len), Some(18), "{put}");
    assert!(put["took_ms"].as_f64() >= put["first_byte_ms"].as_f64() && put["time"].is_string(), "{put}");
}
