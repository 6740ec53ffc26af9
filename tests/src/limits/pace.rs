//! Clients that keep a connection and transfer almost nothing. Their memory is released: a slow writer gets
//! an error response, and a slow reader's connection is closed.

use std::time::Duration;

use http::Method;

use super::{BUCKET, runtime};
use crate::content::TestContent;
use crate::raw::RawExchange;
use crate::s3::full_body;
use crate::server::ServerSetup;

const LARGE: TestContent = TestContent { id: 1, length: 64 << 20 };
/// Ten milliseconds apart, which takes five seconds; one second is too slow already.
const SLOW_READS: usize = 500;

#[test]
fn a_slow_writer_gets_a_timeout_and_a_slow_reader_is_disconnected() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = ServerSetup::new(dir.path().join("mlgw-data"))
        .with("limits.body_timeout", "1s")
        .with("limits.body_rate_min", "64KiB")
        .start();
    runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        client.put(BUCKET, "large", full_body(LARGE.bytes())).await.expect("stored");
        let target = format!("/{BUCKET}/dripped");
        let mut writer =
            RawExchange::begin(&client, server.s3, Method::PUT, &target, 1 << 20).await.expect("connected");
        let answer = loop {
            if let Some(answer) = writer.send_or_answer(b"drop").await.expect("answered") {
                break answer;
            }
            mlgw_common::time::sleep(Duration::from_millis(10)).await;
        };
        let body = writer.read_rest(&answer).await.expect("the reason");
        assert_eq!(answer.status, 400, "{}", answer.head);
        assert!(String::from_utf8_lossy(&body).contains("<Code>RequestTimeout</Code>"));
        let refused = client.get(BUCKET, "dripped").await.expect_err("nothing was stored");
        assert!(refused.is_not_found());

        let target = format!("/{BUCKET}/large");
        let mut reader =
            RawExchange::begin(&client, server.s3, Method::GET, &target, 0).await.expect("connected");
        assert_eq!(reader.answer().await.expect("answered").status, 200);
        for _ in 0..SLOW_READS {
            assert_eq!(reader.read_some(1).await.expect("a byte of the running answer"), 1);
            mlgw_common::time::sleep(Duration::from_millis(10)).await;
        }
        // The server has closed the connection by now, so only the buffers of the system are left to read.
        reader.skip(LARGE.length).await.expect_err("the answer was cut off");
    });
    server.stop();
}
