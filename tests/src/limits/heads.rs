//! The maximum size of a request's head over HTTP/2. It is the same as over HTTP/1.1, where clients in
//! Python test it.

use super::{BUCKET, runtime};
use crate::s3::{ClientBody, S3TestClient, full_body};
use crate::server::{ServerProcess, ServerSetup};
use http::uri::{PathAndQuery, Uri};
use http::{HeaderName, Method, Request};
use http_body_util::BodyExt as _;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};

/// Sends a signed GET with `lines` additional headers of `bytes` bytes each. Returns the status and the
/// document.
async fn answer(server: &ServerProcess, client: &S3TestClient, lines: usize, bytes: usize) -> (u16, String) {
    let stream = tokio::net::TcpStream::connect(server.s3).await.expect("connected");
    let connected = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = connected.expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let mut request: Request<ClientBody> =
        client.request(Method::GET, &format!("/{BUCKET}"), &[], full_body(""));
    let uri = Uri::builder().scheme("http").authority(server.s3.to_string());
    let path: PathAndQuery = request.uri().path_and_query().expect("a path").clone();
    *request.uri_mut() = uri.path_and_query(path).build().expect("a target");
    for line in 0..lines {
        let name: HeaderName = format!("x-forwarded-{line}").parse().expect("a name");
        request.headers_mut().insert(name, "v".repeat(bytes).parse().expect("a value"));
    }
    let response = sender.send_request(request).await.expect("an answer");
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.expect("a document").to_bytes();
    drop(sender);
    connection.abort();
    (status, String::from_utf8_lossy(&body).into_owned())
}

#[test]
fn a_head_over_http2_is_limited_by_its_bytes_and_refused_with_a_document() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = ServerSetup::new(dir.path().join("mlgw-data")).start();
    runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        for (lines, bytes) in [(0, 0), (200, 10), (1000, 1), (1000, 35), (1, 60_000)] {
            let (status, body) = answer(&server, &client, lines, bytes).await;
            assert_eq!(status, 200, "{lines} lines of {bytes}: {body}");
        }
        for (lines, bytes) in [(1030, 1), (2000, 1), (1000, 60), (1, 66_000), (2, 40_000)] {
            let (status, body) = answer(&server, &client, lines, bytes).await;
            assert_eq!(status, 400, "{lines} lines of {bytes}: {body}");
            assert!(body.contains("<Code>RequestHeaderSectionTooLarge</Code>"), "{body}");
            assert!(body.contains("<RequestId>"), "{body}");
        }
    });
    server.stop();
}
