//! Completing an upload moves no bytes: parts stay where they were written.

use std::fs;

use super::{BUCKET, runtime};
use crate::content::TestContent;
use crate::s3::{S3TestClient, full_body};
use crate::server::{ServerProcess, ServerSetup};

const PART_BYTES: usize = 16 << 20;
const PARTS: u32 = 64;
const WRITTEN_MAX: u64 = 1 << 20;

#[test]
fn completing_an_upload_of_1_gib_writes_at_most_1_mib() {
    let dir = tempfile::tempdir_in(super::on_disk()).expect("a directory");
    let server = ServerSetup::new(dir.path().join("mlgw-data")).start();
    runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        let upload = client.create_upload(BUCKET, "large").await.expect("created");
        let parts = put_parts(&client, &upload).await;
        let before = io_of(&server);
        client.complete(BUCKET, "large", &upload, &parts).await.expect("completed");
        let after = io_of(&server);
        let written = (after.0 - before.0, after.1 - before.1);
        eprintln!("complete of 1 GiB: {} bytes by write calls, {} to the disk", written.0, written.1);
        assert!(written.0 <= WRITTEN_MAX && written.1 <= WRITTEN_MAX, "{written:?}");
        check_a_range_of_each_part(&client).await;
    });
    server.stop();
}

const fn part(number: u32) -> TestContent {
    TestContent { id: number as u64, length: PART_BYTES }
}

async fn put_parts(client: &S3TestClient, upload: &str) -> Vec<(u32, String)> {
    let mut parts = Vec::new();
    for number in 1..=PARTS {
        let body = full_body(part(number).bytes());
        let etag = client.put_part(BUCKET, "large", upload, number, body).await.expect("stored");
        parts.push((number, etag));
    }
    parts
}

async fn check_a_range_of_each_part(client: &S3TestClient) {
    for number in 1..=PARTS {
        let first = u64::from(number - 1) * PART_BYTES as u64;
        let body = client.get_range(BUCKET, "large", (first, first + 99)).await.expect("read").body;
        assert_eq!(body, part(number).bytes()[..100], "part {number}");
    }
}

/// Returns the bytes of a process's write calls, and its bytes written to the disk.
fn io_of(server: &ServerProcess) -> (u64, u64) {
    let text = fs::read_to_string(format!("/proc/{}/io", server.pid())).expect("a child process");
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a line of /proc/PID/io");
        line.trim().parse().expect("a number")
    };
    (field("wchar:"), field("write_bytes:"))
}
