//! After SIGTERM, `/readyz` announces the stop while requests are still accepted; then requests in flight
//! finish, and the server exits successfully.

use std::net::SocketAddr;
use std::time::Duration;

use http::Method;
use tokio::net::TcpStream;

use super::{BUCKET, runtime};
use crate::content::TestContent;
use crate::raw::RawExchange;
use crate::s3::full_body;
use crate::server::{ServerSetup, get_text};

const SENT: TestContent = TestContent { id: 1, length: 8 << 20 };
const RECEIVED: TestContent = TestContent { id: 2, length: 64 << 20 };

#[test]
fn a_slow_put_and_a_slow_get_finish_after_sigterm_and_are_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let setup = ServerSetup::new(dir.path().join("mlgw-data"));
    let mut server = setup.start();
    runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        client.put(BUCKET, "large", full_body(RECEIVED.bytes())).await.expect("stored");
        let bytes = SENT.bytes();
        let target = format!("/{BUCKET}/slow");
        let mut put = RawExchange::begin(&client, server.s3, Method::PUT, &target, SENT.length as u64)
            .await
            .expect("connected");
        put.send(&bytes[..bytes.len() / 2]).await.expect("first half sent");
        let mut get = RawExchange::begin(&client, server.s3, Method::GET, &format!("/{BUCKET}/large"), 0)
            .await
            .expect("connected");
        let answer = get.answer().await.expect("the GET has begun");
        assert_eq!(answer.status, 200);

        server.send_sigterm();
        refuses_connections(server.s3).await;

        put.send(&bytes[bytes.len() / 2..]).await.expect("second half sent");
        assert_eq!(put.answer().await.expect("answered").status, 200);
        let body = get.read_rest(&answer).await.expect("the rest of the body");
        assert_eq!(RECEIVED.difference(&body), None);
    });
    assert_eq!(server.wait_exit().code(), Some(0), "{}", server.log());
    let server = setup.start();
    runtime().block_on(async {
        let body = server.client().get(BUCKET, "slow").await.expect("kept").body;
        assert_eq!(SENT.difference(&body), None);
    });
    server.stop();
}

#[test]
fn a_stop_is_announced_while_new_connections_are_still_served() {
    let dir = tempfile::tempdir().expect("a directory");
    // A second signal ends the delay.
    let setup = ServerSetup::new(dir.path().join("mlgw-data")).with("s3.shutdown_delay", "1h");
    let mut server = setup.start();
    runtime().block_on(server.client().create_bucket(BUCKET)).expect("made");
    server.send_sigterm();
    let announced = until_not_ready(server.admin);
    assert!(announced.contains("draining"), "{announced}");
    runtime().block_on(async {
        // A new client has no connection yet.
        server.client().put(BUCKET, "late", full_body(SENT.bytes())).await.expect("stored");
        let body = server.client().get(BUCKET, "late").await.expect("read").body;
        assert_eq!(SENT.difference(&body), None);
    });
    server.send_sigterm();
    assert_eq!(server.wait_exit().code(), Some(0), "{}", server.log());
}

/// Waits until `/readyz` returns 503, and returns the whole answer.
fn until_not_ready(admin: SocketAddr) -> String {
    loop {
        let answer = get_text(admin, "/readyz").expect("the admin API answers during a stop");
        if answer.starts_with("HTTP/1.1 503") {
            return answer;
        }
        mlgw_common::time::block_for(Duration::from_millis(5));
    }
}

/// Waits until the server refuses connections, which shows that draining has begun.
async fn refuses_connections(server: SocketAddr) {
    while TcpStream::connect(server).await.is_ok() {
        mlgw_common::time::sleep(Duration::from_millis(5)).await;
    }
}
