//! The proxy before the shipped binary: signatures stay valid, uploads arrive, and a lost response belongs to
//! a write that took effect.

use super::runtime;
use crate::content::TestContent;
use crate::proxy::{Fault, FaultProxy, Rule};
use crate::s3::{CallFailure, S3TestClient, full_body};
use crate::server::{ACCESS_KEY, SECRET_KEY, ServerSetup};

const BUCKET: &str = "behind";
const LARGE: TestContent = TestContent { id: 1, length: 6 << 20 };
const SMALL: TestContent = TestContent { id: 2, length: 1000 };

#[test]
fn proxy_works_before_mlgw() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = ServerSetup::new(dir.path().join("mlgw-data")).start();
    let proxy = FaultProxy::start(server.s3);
    let client = S3TestClient::new(proxy.addr(), ACCESS_KEY, SECRET_KEY);
    runtime().block_on(async {
        client.create_bucket(BUCKET).await.expect("made");
        let upload = client.create_upload(BUCKET, "large").await.expect("begun");
        let mut parts = Vec::new();
        for (number, content) in [(1, LARGE), (2, SMALL)] {
            let body = full_body(content.bytes());
            let etag = client.put_part(BUCKET, "large", &upload, number, body).await.expect("stored");
            parts.push((number, etag));
        }
        client.complete(BUCKET, "large", &upload, &parts).await.expect("complete");
        let read = client.get(BUCKET, "large").await.expect("read").body;
        assert!(read == [LARGE.bytes(), SMALL.bytes()].concat(), "{} bytes", read.len());
        assert_eq!(client.get_range(BUCKET, "large", (5, 9)).await.expect("read").body, read.slice(5..10));
        assert_eq!(client.list(BUCKET, 10).await.expect("listed").len(), 1);

        let lost = Rule::new(Fault::CutBeforeAnswer).method("PUT").path("/small").times(1);
        let slow = Fault::Status { status: 503, code: "SlowDown".to_owned() };
        proxy.set_rules(vec![lost, Rule::new(slow).method("DELETE")]);
        let put = client.put(BUCKET, "small", full_body(SMALL.bytes())).await;
        assert!(matches!(put, Err(CallFailure::NoResponse(_))), "{put:?}");
        assert_eq!(client.get(BUCKET, "small").await.expect("stored").body, SMALL.bytes());
        assert_eq!(client.delete(BUCKET, "small").await.expect_err("refused").status(), Some(503));
        client.head(BUCKET, "small").await.expect("still exists");
    });
    let reads = proxy.log().into_iter().filter(|line| line.range.as_deref() == Some("bytes=5-9")).count();
    assert_eq!((reads, proxy.counters().faults), (1, 2));
    server.stop();
}
