//! Tests of the client against sockets of their own.

use crate::{Authorities, Client, ClientSettings, Credentials, SendError, SignableBody, SigningScope, sign};
use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt as _, Empty};
use mlgw_common::Timestamp;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

fn settings(proxy: Option<&str>) -> ClientSettings<'_> {
    let timeout = Duration::from_secs(20);
    ClientSettings { authorities: Authorities::None, proxy, connect_timeout: timeout, idle_timeout: timeout }
}

fn get(url: &str) -> Request<Empty<Bytes>> {
    Request::builder().uri(url).body(Empty::new()).unwrap()
}

/// Accepts one connection, answers its first request with `response`, and returns that request's head.
async fn answer_once(listener: TcpListener, response: &str) -> String {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    stream.write_all(response.as_bytes()).await.unwrap();
    String::from_utf8(head).unwrap().to_lowercase()
}

async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

#[tokio::test]
async fn a_proxy_forwards_plain_requests_with_their_whole_url() {
    let (listener, port) = listener().await;
    let client = Client::new(&settings(Some(&format!("http://user:pass@127.0.0.1:{port}")))).unwrap();
    let server = tokio::spawn(answer_once(listener, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"));
    let response = client.send(get("http://store.invalid/bucket/key?x=1")).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "ok");
    let head = server.await.unwrap();
    assert!(head.starts_with("get http://store.invalid/bucket/key?x=1 http/1.1\r\n"), "{head}");
    assert!(head.contains("\r\nproxy-authorization: basic dxnlcjpwyxnz\r\n"), "{head}");
    assert!(head.contains("\r\nhost: store.invalid\r\n"), "{head}");
}

#[tokio::test]
async fn a_proxy_tunnels_requests_with_tls() {
    let (listener, port) = listener().await;
    let client = Client::new(&settings(Some(&format!("http://user:pass@127.0.0.1:{port}")))).unwrap();
    let server = tokio::spawn(answer_once(listener, "HTTP/1.1 502 Bad Gateway\r\n\r\n"));
    let error = client.send(get("https://store.invalid/bucket/key")).await.unwrap_err();
    assert!(matches!(error, SendError::Connect(_)), "{error:?}");
    let head = server.await.unwrap();
    assert!(head.starts_with("connect store.invalid:443 http/1.1\r\n"), "{head}");
    assert!(head.contains("\r\nproxy-authorization: basic dxnlcjpwyxnz\r\n"), "{head}");
}

#[tokio::test]
async fn metadata_services_are_reached_without_the_proxy() {
    let proxy = crate::proxy::Proxy::parse("http://127.0.0.1:1").unwrap();
    assert!(!proxy.serves(&"http://169.254.169.254/latest".parse().unwrap()));
    assert!(proxy.serves(&"http://169.254.1.1/".parse().unwrap()));
}

#[tokio::test]
async fn failures_before_and_after_the_connection_differ() {
    let (refusing, port) = listener().await;
    drop(refusing);
    let client = Client::new(&settings(None)).unwrap();
    let error = client.send(get(&format!("http://127.0.0.1:{port}/"))).await.unwrap_err();
    assert!(matches!(&error, SendError::Connect(why) if why.contains("refused")), "{error:?}");

    let (listener, port) = listener().await;
    let server = tokio::spawn(answer_once(listener, ""));
    let error = client.send(get(&format!("http://127.0.0.1:{port}/"))).await.unwrap_err();
    assert!(matches!(error, SendError::Broken(_)), "{error:?}");
    server.await.unwrap();
}

#[test]
fn unusable_settings_are_named_without_their_secrets() {
    for proxy in ["not a url :user:pass-hush@", "socks5://user:pass-hush@h:1", "ftp://h", ""] {
        let error = Client::<Empty<Bytes>>::new(&settings(Some(proxy))).unwrap_err();
        assert_eq!(error.setting, "proxy", "{proxy}");
        assert!(!error.to_string().contains("hush"), "{error}");
    }
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty.pem");
    std::fs::write(&empty, "no certificate\n").unwrap();
    for file in [&*empty, Path::new("/no/such/file.pem")] {
        let with_file = ClientSettings { authorities: Authorities::File(file), ..settings(None) };
        let error = Client::<Empty<Bytes>>::new(&with_file).unwrap_err();
        assert_eq!(error.setting, "ca_file");
        assert!(error.problem.contains(&*file.to_string_lossy()), "{error}");
    }
}

#[test]
fn signatures_cover_the_host_the_types_and_the_headers_of_s3() {
    let mut request = get("http://h:9000/b/a%20b?list-type=2");
    for (name, value) in
        [("content-type", "text/plain"), ("x-amz-meta-a", "b"), ("range", "bytes=0-1"), ("host", "h:9000")]
    {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    let scope =
        SigningScope { region: "us-east-1", service: "s3", time: Timestamp::from_secs(1_700_000_000) };
    let credentials = Credentials::new("AK", "SK", Some("token".to_owned()), None, "test");
    sign(&mut request, SignableBody::UnsignedPayload, credentials, scope).unwrap();
    let authorization = request.headers()[header::AUTHORIZATION].to_str().unwrap();
    let covered = "content-type;host;x-amz-content-sha256;x-amz-date;x-amz-meta-a;x-amz-security-token";
    assert!(authorization.contains("Credential=AK/20231114/us-east-1/s3/aws4_request"), "{authorization}");
    assert!(authorization.contains(&format!("SignedHeaders={covered},")), "{authorization}");
    assert_eq!(request.headers()["x-amz-content-sha256"], "UNSIGNED-PAYLOAD");
}
