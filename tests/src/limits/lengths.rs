//! Bodies without a length over HTTP/2. The end of the stream shows that they are complete, and the same
//! limits apply as for other bodies.

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use futures_util::stream;
use http::{Method, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::{BUCKET, runtime};
use crate::content::TestContent;
use crate::s3::{ClientBody, S3TestClient, full_body};
use crate::server::ServerSetup;

/// Returns a body of these pieces without a length. If `breaks`, it fails after them.
fn streamed(content: TestContent, piece: usize, breaks: bool) -> ClientBody {
    let bytes = content.bytes();
    let pieces = bytes.chunks(piece).map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece))));
    let end = breaks.then(|| Err(io::Error::other("broken off")));
    StreamBody::new(stream::iter(pieces.chain(end).collect::<Vec<_>>())).boxed_unsync()
}

/// Sends a PUT without a length over HTTP/2. Returns the status, or `None` if the stream breaks.
async fn put(client: &S3TestClient, server: SocketAddr, path: &str, body: ClientBody) -> Option<StatusCode> {
    let stream = TokioIo::new(TcpStream::connect(server).await.expect("connected"));
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let signed = client.request(Method::PUT, path, &[], full_body("x"));
    let mut request = http::Request::put(format!("http://{server}{path}"));
    for (name, value) in signed.headers().iter().filter(|(name, _)| *name != "host") {
        request = request.header(name, value);
    }
    let request = request.body(body).expect("a test request");
    assert!(!request.headers().contains_key("content-length"));
    let answer = sender.send_request(request).await.ok().map(|answer| answer.status());
    drop(sender);
    connection.abort();
    answer
}

#[test]
fn a_body_that_ends_with_its_stream_is_stored_whole_or_not_at_all() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = ServerSetup::new(dir.path().join("data")).start();
    runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        for (id, length) in [(1, 0), (2, 1), (3, 70_000), (4, 3 << 20), (5, 9 << 20)] {
            let (content, path) = (TestContent { id, length }, format!("/{BUCKET}/{id}"));
            let status = put(&client, server.s3, &path, streamed(content, 65_000, false)).await;
            assert_eq!(status, Some(StatusCode::OK), "{length} bytes");
            let found = client.get(BUCKET, &id.to_string()).await.expect("read");
            assert_eq!((found.etag(), content.difference(&found.body)), (content.etag(), None));
            let status =
                put(&client, server.s3, &path, streamed(TestContent { id: 9, length }, 65_000, true)).await;
            assert!(status.is_none_or(|status| !status.is_success()), "{status:?}");
            let found = client.get(BUCKET, &id.to_string()).await.expect("read");
            assert_eq!(content.difference(&found.body), None, "an aborted upload replaces nothing");
        }
        let upload = client.create_upload(BUCKET, "parts").await.expect("begun");
        let part = TestContent { id: 7, length: 6 << 20 };
        let path = format!("/{BUCKET}/parts?partNumber=1&uploadId={upload}");
        let status = put(&client, server.s3, &path, streamed(part, 100_000, false)).await;
        assert_eq!(status, Some(StatusCode::OK));
        let listed = client.list_parts(BUCKET, "parts", &upload).await.expect("listed");
        assert_eq!((listed.len(), listed[0].size, &listed[0].etag), (1, 6 << 20, &part.etag()));
    });
    server.stop();
}
