//! Hostile load on the listeners: silent connections, incomplete requests, more connections than open
//! files.

use mlgw_common::time::Instant;
use std::net::SocketAddr;
use std::time::Duration;

use mlgw_common::time::timeout;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{BUCKET, runtime};
use crate::s3::full_body;
use crate::server::{ServerSetup, StartFailure};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Connections beyond the limit of the administration listener.
const CROWD: usize = 400;
const HALF_HEAD: &str = "GET /healthz HTTP/1.1\r\nhost: h\r\n";
const HALF_REQUEST: &str = "GET /v1/status HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\n";

async fn crowd(address: SocketAddr, count: usize, text: &str) -> Vec<TcpStream> {
    let mut crowd = Vec::new();
    for _ in 0..count {
        if let Ok(Ok(mut stream)) = timeout(TIMEOUT, TcpStream::connect(address)).await {
            drop(stream.write_all(text.as_bytes()).await);
            crowd.push(stream);
        }
    }
    crowd
}

/// Requests `path` on a new connection. Returns the status, or 0 if there is no response in time.
async fn status(address: SocketAddr, path: &str) -> u16 {
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer.split(' ').nth(1).and_then(|text| text.parse().ok()).unwrap_or(0))
    };
    timeout(Duration::from_secs(20), ask).await.map_or(0, |answer| answer.unwrap_or(0))
}

#[test]
fn probes_are_answered_beside_many_silent_or_slow_connections() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = ServerSetup::new(dir.path().join("mlgw-data")).start();
    runtime().block_on(async {
        for text in ["", HALF_HEAD, HALF_REQUEST] {
            let held = crowd(server.admin, CROWD, text).await;
            for path in ["/healthz", "/readyz", "/metrics"] {
                assert_eq!(status(server.admin, path).await, 200, "{path} beside {} of {text:?}", held.len());
            }
            assert_eq!(status(server.admin, "/v1/status").await, 403, "the API answers too");
        }
    });
    server.stop();
}

#[test]
fn connections_beyond_the_file_limit_are_refused_without_flooding_the_log() {
    let dir = tempfile::tempdir().expect("a directory");
    let server =
        ServerSetup::new(dir.path().join("mlgw-data")).with_preparation("ulimit -n 600 || exit 98").start();
    assert!(server.log().contains("up to 300 connections"), "{}", server.log());
    super::memory::raise_open_files();
    runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        // Used connections keep their slots, so the limit is really reached.
        let used = crowd(server.s3, 700, "GET / HTTP/1.1\r\nhost: h\r\n\r\n").await;
        assert_eq!(status(server.s3, "/").await, 503, "beside {} connections", used.len());
        assert_eq!(status(server.admin, "/healthz").await, 200);
        drop(used);
        let start = Instant::now();
        while let Err(error) = client.put(BUCKET, "k", full_body("bytes")).await {
            assert!(start.elapsed() < TIMEOUT, "{error:?}");
        }
    });
    let lines = server.log().lines().count();
    assert!(lines < 100, "{lines} lines");
    server.stop();
}

#[test]
fn a_low_limit_of_open_files_is_refused_with_advice() {
    let dir = tempfile::tempdir().expect("a directory");
    let setup = ServerSetup::new(dir.path().join("mlgw-data")).with_preparation("ulimit -n 200 || exit 98");
    let Err(StartFailure { status, log }) = setup.try_start() else { panic!("the server started") };
    assert_eq!(status.and_then(|status| status.code()), Some(1), "{log}");
    assert!(log.contains("the limit of open files is 200, but at least 512 is required"), "{log}");
}
