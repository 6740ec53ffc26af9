//! Requests that are refused while their bodies are in transit. Their clients can read the response, and a
//! connection without `connection: close` accepts the next request.

use std::time::Duration;

use futures_util::future::join_all;
use mlgw_common::time::{sleep, timeout};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{BUCKET, runtime};
use crate::raw::head_text;
use crate::s3::{S3TestClient, full_body};
use crate::server::{ServerProcess, ServerSetup};
use http::Method;

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Time at which the body follows its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyTiming {
    Immediate,
    InPieces,
    Late,
    Never,
}

const BODY_TIMINGS: [BodyTiming; 4] =
    [BodyTiming::Immediate, BodyTiming::InPieces, BodyTiming::Late, BodyTiming::Never];

async fn write(stream: &mut TcpStream, body: &[u8], comes: BodyTiming) {
    let (pieces, wait) = match comes {
        BodyTiming::Immediate => (1, 0),
        BodyTiming::InPieces => (9, 3),
        BodyTiming::Late => (1, 60),
        BodyTiming::Never => return,
    };
    for piece in body.chunks(body.len().div_ceil(pieces)) {
        sleep(Duration::from_millis(wait)).await;
        // The server may have closed the connection after its response, which is read next.
        if stream.write_all(piece).await.is_err() {
            return;
        }
    }
}

/// Reads one response with its body. Returns the head in lower case.
async fn read(stream: &mut TcpStream, what: &str) -> (String, String) {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let head = head.to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return (head, body.to_owned());
            }
        }
        let read = stream.read_buf(&mut bytes).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(read > 0, "{what}: closed without a complete answer: {text}");
    }
}

/// Sends a request that is refused with `code`, and checks that the connection is closed or usable as the
/// response states.
async fn refused(
    client: &S3TestClient,
    server: &ServerProcess,
    head: &str,
    body: &[u8],
    code: &str,
    comes: BodyTiming,
) {
    let what = format!("{code}, {} bytes, {comes:?}", body.len());
    let mut stream = TcpStream::connect(server.s3).await.expect("connected");
    stream.write_all(head.as_bytes()).await.expect("sent");
    write(&mut stream, body, comes).await;
    let (answer, text) =
        timeout(RESPONSE_TIMEOUT, read(&mut stream, &what)).await.expect("an answer in time");
    assert!(text.contains(&format!("<Code>{code}</Code>")), "{what}: {answer} {text}");
    if answer.contains("connection: close") {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        return;
    }
    assert!(comes != BodyTiming::Never, "{what}: missing bytes do not count as read");
    let next = head_text(&client.request(Method::GET, &format!("/{BUCKET}/there"), &[], full_body("")));
    stream.write_all(next.as_bytes()).await.expect("the connection was kept");
    let (answer, text) =
        timeout(RESPONSE_TIMEOUT, read(&mut stream, &what)).await.expect("an answer in time");
    assert!(answer.starts_with("http/1.1 200") && text == "there", "{what}: {answer} {text}");
}

fn put_head(client: &S3TestClient, target: &str, extra: &[(&'static str, String)], bytes: usize) -> String {
    let headers = [extra, &[("content-length", bytes.to_string())]].concat();
    head_text(&client.request(Method::PUT, target, &headers, full_body("")))
}

#[test]
fn a_put_that_is_refused_early_leaves_a_usable_connection_or_announces_its_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = ServerSetup::new(dir.path().join("mlgw-data")).start();
    runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        client.put(BUCKET, "there", full_body("there")).await.expect("stored");
        let stranger = S3TestClient::new(server.s3, crate::server::ACCESS_KEY, "wrong");
        let mut cases = Vec::new();
        for (client_of, target, extra, code) in [
            (&client, format!("/{BUCKET}/there?acl="), vec![], "NotImplemented"),
            (&client, format!("/{BUCKET}/k?partNumber=1&uploadId=nope"), vec![], "NoSuchUpload"),
            (&client, "/absent-bucket/k".to_owned(), vec![], "NoSuchBucket"),
            (
                &client,
                format!("/{BUCKET}/there"),
                vec![("if-none-match", "*".to_owned())],
                "PreconditionFailed",
            ),
            (&stranger, format!("/{BUCKET}/there"), vec![], "SignatureDoesNotMatch"),
        ] {
            for bytes in [1, 400, 20_000, 1_000_000] {
                let head_text = put_head(client_of, &target, &extra, bytes);
                for comes in BODY_TIMINGS {
                    let (client, server, head_text) = (&client, &server, head_text.clone());
                    cases.push(async move {
                        refused(client, server, &head_text, &vec![b'x'; bytes], code, comes).await;
                    });
                }
            }
        }
        join_all(cases).await;
        assert_eq!(client.get(BUCKET, "there").await.expect("exists").body, "there");
    });
    server.stop();
}

/// Returns a form without a policy, with the file as the last field.
fn form(file_bytes: usize) -> (String, Vec<u8>) {
    let field = |name: &str, value: &str| {
        format!("--bd\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    let file = "--bd\r\ncontent-disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n";
    let before = field("key", "form") + file;
    let body = [before.as_bytes(), &vec![b'x'; file_bytes], b"\r\n--bd--\r\n"].concat();
    let head = format!(
        "POST /{BUCKET} HTTP/1.1\r\nhost: h\r\ncontent-type: multipart/form-data; boundary=bd\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    (head, body)
}

#[test]
fn a_refused_form_is_answered_while_its_file_is_in_transit() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = ServerSetup::new(dir.path().join("mlgw-data")).start();
    runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        client.put(BUCKET, "there", full_body("there")).await.expect("stored");
        for bytes in [10, 20_000, 200_000, 3_000_000] {
            let (head_text, body) = form(bytes);
            for comes in [BodyTiming::Immediate, BodyTiming::InPieces, BodyTiming::Late] {
                refused(&client, &server, &head_text, &body, "AccessDenied", comes).await;
            }
        }
        assert!(client.get(BUCKET, "form").await.expect_err("nothing was stored").is_not_found());
    });
    server.stop();
}
