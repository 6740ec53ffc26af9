//! Tests of writes: the requests sent, and when they are retried.

use super::{SLOW_DOWN, Server};
use crate::origin::{
    ChecksumTrailer, Origin, OriginContent, OriginError, OriginFence, OriginUploadRef, Streamed, UploadsQuery,
};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use http::{HeaderMap, HeaderName, HeaderValue};
use mlgw_common::time::Instant;
use mlgw_formats::schema::Pair;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::yield_now;

const DONE: &str = "HTTP/1.1 200 OK\nETag: \"e\"\nx-amz-version-id: v\nx-amz-request-id: 1\n\
    Content-Length: 0\nConnection: close\n\n";
/// Response to a delete.
const NO_CONTENT: &str = "HTTP/1.1 204 No Content\nConnection: close\n\n";
const BROKEN: &str = "";

fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
    let line = |(name, value): &(&'static str, &str)| (HeaderName::from_static(name), value.parse().unwrap());
    lines.iter().map(line).collect()
}

fn document(text: &str) -> String {
    format!("HTTP/1.1 200 OK\nContent-Length: {}\nConnection: close\n\n{text}", text.len())
}

fn whole(text: &'static str) -> OriginContent {
    OriginContent::Whole(Bytes::from_static(text.as_bytes()))
}

fn streamed(bytes: u64, pieces: Vec<&'static str>, trailer: Option<ChecksumTrailer>) -> OriginContent {
    let pieces = pieces.into_iter().map(|piece| Ok(Bytes::from_static(piece.as_bytes())));
    OriginContent::Streaming(Streamed { bytes, pieces: stream::iter(pieces).boxed(), trailer })
}

async fn put(server: &Server, headers: &HeaderMap, content: OriginContent) -> Result<HeaderMap, OriginError> {
    Origin::put(&server.origin(), "a//b", headers, content).await.map(|written| written.headers)
}

#[tokio::test]
async fn a_put_sends_metadata_and_returns_client_headers() {
    let server = Server::start(&[DONE]).await;
    let given = headers(&[
        ("content-type", "image/png"),
        ("x-amz-meta-a", "\u{fc}"),
        ("x-amz-tagging", "a=b"),
        ("if-none-match", "*"),
    ]);
    let answer_headers = put(&server, &given, whole("hello")).await.unwrap();
    assert_eq!(answer_headers, headers(&[("etag", "\"e\""), ("x-amz-version-id", "v")]));
    let head = &server.heads()[0];
    assert!(head.starts_with("PUT /b/a//b HTTP/1.1\r\n"), "{head}");
    for line in [
        "content-length: 5\r\n",
        "content-type: image/png\r\n",
        "x-amz-meta-a: \u{fc}\r\n",
        "if-none-match: *\r\n",
        "content-type;host;x-amz-content-sha256;x-amz-date;x-amz-meta-a;x-amz-security-token;x-amz-tagging,",
    ] {
        assert!(head.contains(line), "{line} in {head}");
    }
    assert_eq!(server.bodies(1).await, [b"hello"]);
}

#[tokio::test]
async fn a_body_in_memory_is_resent_unless_a_condition_would_then_fail() {
    let server = Server::start(&[BROKEN, SLOW_DOWN, DONE]).await;
    put(&server, &HeaderMap::new(), whole("hello")).await.unwrap();
    assert_eq!(server.bodies(3).await, [b"hello"; 3]);
    let denied = "HTTP/1.1 403 No\nContent-Length: 0\nConnection: close\n\n";
    let server = Server::start(&[BROKEN, denied]).await;
    let error = put(&server, &HeaderMap::new(), whole("hello")).await.unwrap_err();
    assert!(!error.is_undone(), "the first try may have done it: {error:?}");
    let conditional = headers(&[("if-none-match", "*")]);
    let server = Server::start(&[SLOW_DOWN, BROKEN, DONE]).await;
    let error = put(&server, &conditional, whole("hello")).await.unwrap_err();
    assert!(matches!(error, OriginError::ConnectionLost(_)) && server.heads().len() == 2, "{error:?}");
}

/// Returns a fence that is open, with a lease.
fn open_fence() -> OriginFence {
    let fence = OriginFence::new();
    fence.open();
    fence.extend(Instant::now() + Duration::from_hours(1));
    fence
}

#[tokio::test]
async fn behind_a_fence_a_write_that_may_be_executed_is_not_sent_again() {
    let server = Server::start(&[SLOW_DOWN, BROKEN, DONE]).await;
    let origin = server.fenced(&open_fence());
    let error = Origin::put(&origin, "k", &HeaderMap::new(), whole("hello")).await.unwrap_err();
    assert!(!error.is_undone() && server.heads().len() == 2, "{error:?}");
    let server = Server::start(&[BROKEN, DONE]).await;
    assert!(Origin::head(&server.fenced(&open_fence()), "k").await.is_ok(), "a read is sent again");
}

#[tokio::test]
async fn behind_a_closed_fence_no_change_is_sent_and_reads_go_on() {
    let (server, fence) = (Server::start(&[DONE, DONE, DONE]).await, open_fence());
    let origin = server.fenced(&fence);
    // It waits for a part of the body that does not come.
    let pieces = stream::iter([Ok(Bytes::from_static(b"he"))]).chain(stream::pending()).boxed();
    let content = OriginContent::Streaming(Streamed { bytes: 5, pieces, trailer: None });
    let headers = HeaderMap::new();
    let put = Origin::put(&origin, "k", &headers, content);
    let end = async {
        while server.heads().is_empty() {
            yield_now().await;
        }
        fence.end(Duration::ZERO).await;
    };
    tokio::select! {
        sent = put => panic!("nothing answers: {sent:?}"),
        () = end => {}
    }
    assert!(server.bodies(1).await[0].len() < 5, "the connection was closed");
    assert!(Origin::head(&origin, "k").await.is_ok());
    let refused = Origin::put(&origin, "k", &headers, whole("hello")).await;
    assert!(matches!(refused, Err(OriginError::Unreachable(_) | OriginError::ConnectionLost(_))));
    assert_eq!(server.heads().len(), 2);
}

#[tokio::test]
async fn a_stream_is_sent_once_and_an_abandoned_one_is_incomplete() {
    let server = Server::start(&[BROKEN, DONE]).await;
    let error = put(&server, &HeaderMap::new(), streamed(5, vec!["he", "llo"], None)).await.unwrap_err();
    assert!(matches!(error, OriginError::ConnectionLost(_)) && !error.is_undone(), "{error:?}");
    assert_eq!((server.heads().len(), server.bodies(1).await), (1, vec![b"hello".to_vec()]));
    let server = Server::start(&[DONE]).await;
    // Bytes sent together with the end would not be sent at all, so the client stops only after the server
    // has received some of them.
    let heads = server.heads.clone();
    let given_up = stream::unfold(Some(heads), |heads| async move {
        let heads = heads?;
        while heads.lock().unwrap().is_empty() {
            mlgw_common::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        None
    });
    let pieces = stream::iter([Ok(Bytes::from_static(b"he"))]).chain(given_up).boxed();
    let content = OriginContent::Streaming(Streamed { bytes: 5, pieces, trailer: None });
    put(&server, &HeaderMap::new(), content).await.unwrap_err();
    assert_eq!(server.bodies(1).await, [b"he"], "the connection was closed");
    assert!(server.heads()[0].contains("content-length: 5\r\n"));
}

#[tokio::test]
async fn a_checksum_known_at_the_end_follows_the_bytes() {
    let server = Server::start(&[DONE]).await;
    let (checksum_sender, value) = oneshot::channel();
    checksum_sender.send("AAAAAA==".to_owned()).unwrap();
    let trailer =
        ChecksumTrailer { name: HeaderName::from_static("x-amz-checksum-crc32"), value_bytes: 8, value };
    let given = headers(&[("content-encoding", "gzip")]);
    put(&server, &given, streamed(5, vec!["he", "llo"], Some(trailer))).await.unwrap();
    let head = &server.heads()[0];
    for line in [
        "content-encoding: aws-chunked,gzip\r\n",
        "x-amz-decoded-content-length: 5\r\n",
        "x-amz-trailer: x-amz-checksum-crc32\r\n",
        "x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\n",
    ] {
        assert!(head.contains(line), "{line} in {head}");
    }
    assert_eq!(server.bodies(1).await, [b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"]);
}

#[tokio::test]
async fn a_copy_with_a_late_error_has_failed() {
    let failed =
        document("<?xml version=\"1.0\"?>   <Error><Code>InternalError</Code><Message>m</Message></Error>");
    let copied = document("<CopyObjectResult><ETag>\"x\"</ETag></CopyObjectResult>");
    let server = Server::start(&[&failed, &copied]).await;
    let (origin, none) = (server.origin(), HeaderMap::new());
    let copy = || Origin::copy(&origin, "to", "p/\u{e4} b", &none);
    assert_eq!(copy().await, Err(OriginError::Failed(500)));
    assert_eq!(copy().await.unwrap().etag, "x");
    let head = &server.heads()[0];
    assert!(head.contains("x-amz-copy-source: /b/p/%C3%A4%20b\r\n"), "{head}");
    assert!(head.contains("content-length: 0\r\n"), "{head}");
}

#[tokio::test]
async fn an_upload_uses_the_id_of_the_origin() {
    let begun = document("<R><UploadId>u/+=</UploadId></R>");
    let listed = document("<ListPartsResult><IsTruncated>false</IsTruncated></ListPartsResult>");
    let uploads =
        document("<ListMultipartUploadsResult><IsTruncated>false</IsTruncated></ListMultipartUploadsResult>");
    let made = document("<R><ETag>\"x-1\"</ETag></R>");
    let server = Server::start(&[&begun, DONE, &listed, &made, NO_CONTENT, &uploads]).await;
    let (origin, none) = (server.origin(), HeaderMap::new());
    assert_eq!(Origin::create_upload(&origin, "k", &none).await.unwrap().id, "u/+=");
    let upload = OriginUploadRef { key: "k", id: "u/+=" };
    Origin::put_part(&origin, upload, 7, &none, whole("p")).await.unwrap();
    assert_eq!(Origin::list_parts(&origin, upload, 3, 9).await.unwrap().next, None);
    let document = Bytes::from_static(b"<CompleteMultipartUpload/>");
    assert_eq!(Origin::complete(&origin, upload, &none, document).await.unwrap().etag, "x-1");
    Origin::abort(&origin, upload).await.unwrap();
    Origin::list_uploads(&origin, &UploadsQuery::default()).await.unwrap();
    let heads = server.heads();
    let lines: Vec<_> = heads.iter().map(|head| head.split_once(" HTTP").unwrap().0).collect();
    let expected = [
        "POST /b/k?uploads=",
        "PUT /b/k?partNumber=7&uploadId=u%2F%2B%3D",
        "GET /b/k?max-parts=9&part-number-marker=3&uploadId=u%2F%2B%3D",
        "POST /b/k?uploadId=u%2F%2B%3D",
        "DELETE /b/k?uploadId=u%2F%2B%3D",
        "GET /b?uploads=&encoding-type=url&max-uploads=0",
    ];
    assert_eq!(lines, expected);
    assert_eq!(server.bodies(4).await[3], b"<CompleteMultipartUpload/>");
}

#[tokio::test]
async fn deletes_and_tags_are_retried_and_conditions_pass_unchanged() {
    let none = HeaderMap::new();
    let server = Server::start(&[SLOW_DOWN, NO_CONTENT, BROKEN, NO_CONTENT, NO_CONTENT]).await;
    let origin = server.origin();
    let given = headers(&[("if-match", "\"x\""), ("x-amz-if-match-size", "5")]);
    Origin::delete(&origin, "k", &given).await.unwrap();
    Origin::set_tags(&origin, "k", &[Pair::new("a", "b")]).await.unwrap();
    Origin::set_tags(&origin, "k", &[]).await.unwrap();
    let heads = server.heads();
    assert!(heads[1].contains("if-match: \"x\"\r\n") && heads[1].contains("x-amz-if-match-size: 5\r\n"));
    assert!(heads[2].starts_with("PUT /b/k?tagging= ") && heads[4].starts_with("DELETE /b/k?tagging= "));
    let tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";
    assert_eq!(server.bodies(5).await[3], tags.as_bytes());
    let server = Server::start(&["HTTP/1.1 412 No\nContent-Length: 0\nConnection: close\n\n"]).await;
    assert_eq!(Origin::delete(&server.origin(), "k", &none).await, Err(OriginError::Changed));
}

#[tokio::test]
async fn an_origin_that_takes_nothing_is_given_up_and_one_that_waits_for_the_client_is_not() {
    let server = Server::start(&[DONE]).await;
    let slow = stream::iter(["he", "llo"]).then(|piece| async move {
        mlgw_common::time::sleep(std::time::Duration::from_millis(300)).await;
        Ok(Bytes::from_static(piece.as_bytes()))
    });
    let settings = crate::upstream::UpstreamSettings {
        timeout: std::time::Duration::from_millis(150),
        ..super::settings(&server.endpoint)
    };
    let origin = super::S3Origin::new(
        &settings,
        super::unlimited(),
        std::sync::Arc::new(mlgw_common::SystemClock),
        None,
    )
    .unwrap();
    let content = OriginContent::Streaming(Streamed { bytes: 5, pieces: slow.boxed(), trailer: None });
    let answer_headers = Origin::put(&origin, "k", &HeaderMap::new(), content).await.unwrap().headers;
    assert_eq!(answer_headers["etag"], HeaderValue::from_static("\"e\""));
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let settings = crate::upstream::UpstreamSettings { endpoint: Some(endpoint), ..settings };
    let origin = super::S3Origin::new(
        &settings,
        super::unlimited(),
        std::sync::Arc::new(mlgw_common::SystemClock),
        None,
    )
    .unwrap();
    let content = streamed(5, vec!["he", "llo"], None);
    let error = Origin::put(&origin, "k", &HeaderMap::new(), content).await.unwrap_err();
    assert_eq!(error, OriginError::TimedOut);
}

/// 2xx responses of an origin, or of a proxy in front of it, that do not mean that bytes were stored.
const NO_SUCCESS: [(&str, &str); 10] = [
    ("200 without an ETag", "HTTP/1.1 200 OK\nContent-Length: 0\nConnection: close\n\n"),
    ("200 with an empty ETag", "HTTP/1.1 200 OK\nETag: \"\"\nContent-Length: 0\nConnection: close\n\n"),
    (
        "200 with an error",
        "HTTP/1.1 200 OK\nContent-Length: 68\nConnection: close\n\n\
         <Error><Code>InternalError</Code><Message>No.</Message></Error>     ",
    ),
    (
        "a page",
        "HTTP/1.1 200 OK\nContent-Type: text/html\nContent-Length: 20\nConnection: close\n\n\
         <html>Log in.</html>",
    ),
    ("201", "HTTP/1.1 201 Created\nETag: \"e\"\nContent-Length: 0\nConnection: close\n\n"),
    ("202", "HTTP/1.1 202 Accepted\nETag: \"e\"\nContent-Length: 0\nConnection: close\n\n"),
    ("203", "HTTP/1.1 203 Other\nETag: \"e\"\nContent-Length: 0\nConnection: close\n\n"),
    ("204", "HTTP/1.1 204 No Content\nETag: \"e\"\nConnection: close\n\n"),
    ("206", "HTTP/1.1 206 Partial\nETag: \"e\"\nContent-Length: 0\nConnection: close\n\n"),
    (
        "the MD5 of other bytes",
        "HTTP/1.1 200 OK\nETag: \"00000000000000000000000000000000\"\n\
         Content-Length: 0\nConnection: close\n\n",
    ),
];
/// Response whose ETag is the MD5 of `hello`.
const PROVEN: &str =
    "HTTP/1.1 200 OK\nETag: \"5d41402abc4b2a76b9719d911017c592\"\nContent-Length: 0\nConnection: close\n\n";

#[tokio::test]
async fn only_an_etag_confirms_a_write() {
    let none = HeaderMap::new();
    let upload = OriginUploadRef { key: "k", id: "u" };
    for (what, answer) in NO_SUCCESS {
        let server = Server::start(&[answer; 3]).await;
        let origin = server.origin();
        let put = |content| Origin::put(&origin, "k", &none, content);
        let outcomes = [
            put(whole("hello")).await,
            put(streamed(5, vec!["he", "llo"], None)).await,
            Origin::put_part(&origin, upload, 1, &none, whole("hello")).await,
        ];
        for outcome in outcomes {
            let error = outcome.expect_err(what);
            assert!(matches!(error, OriginError::Unconfirmed(_)), "{what}: {error}");
            assert!(!error.is_undone(), "{what}: it may have been done");
        }
        assert_eq!(server.heads().len(), 3, "{what}: it is checked, not sent again");
    }
}

#[tokio::test]
async fn the_md5_of_the_bytes_proves_a_write_and_an_opaque_etag_does_not() {
    let server = Server::start(&[PROVEN, PROVEN, PROVEN, DONE]).await;
    let (origin, none) = (server.origin(), HeaderMap::new());
    let trailing = |value: &str| {
        let (checksum_sender, received) = oneshot::channel();
        checksum_sender.send(value.to_owned()).unwrap();
        let name = HeaderName::from_static("x-amz-checksum-crc32");
        Some(ChecksumTrailer { name, value_bytes: 8, value: received })
    };
    for content in [
        whole("hello"),
        streamed(5, vec!["he", "llo"], None),
        streamed(5, vec!["h", "ello"], trailing("AAAAAA==")),
    ] {
        assert!(!Origin::put(&origin, "k", &none, content).await.unwrap().is_unproven);
    }
    assert!(Origin::put(&origin, "k", &none, whole("hello")).await.unwrap().is_unproven);
}

#[tokio::test]
async fn an_answer_that_names_kms_leaves_a_write_unproven_as_does_the_setting() {
    let kms = PROVEN.replace("ETag", "x-amz-server-side-encryption: aws:kms\nETag");
    let server = Server::start(&[&kms, PROVEN]).await;
    let none = HeaderMap::new();
    assert!(Origin::put(&server.origin(), "k", &none, whole("other")).await.unwrap().is_unproven);
    let settings = crate::upstream::UpstreamSettings {
        etag: crate::upstream::EtagTrust::Opaque,
        ..super::settings(&server.endpoint)
    };
    let clock = std::sync::Arc::new(mlgw_common::SystemClock);
    let origin = super::S3Origin::new(&settings, super::unlimited(), clock, None).unwrap();
    assert!(Origin::put(&origin, "k", &none, whole("other")).await.unwrap().is_unproven);
}

#[tokio::test]
async fn a_delete_with_an_unexpected_answer_is_unconfirmed() {
    let none = HeaderMap::new();
    let error = document("<Error><Code>InternalError</Code><Message>m</Message></Error>");
    let page = document("<html><body>Log in.</body></html>");
    let accepted = "HTTP/1.1 202 Accepted\nContent-Length: 0\nConnection: close\n\n";
    for answer in [&*error, &page, accepted] {
        let server = Server::start(&[answer; 2]).await;
        let origin = server.origin();
        let deleted = Origin::delete(&origin, "k", &none).await.map(drop);
        let aborted = Origin::abort(&origin, OriginUploadRef { key: "k", id: "u" }).await;
        for outcome in [deleted, aborted] {
            assert!(matches!(outcome, Err(OriginError::Unconfirmed(_))), "{answer}: {outcome:?}");
        }
    }
    let server = Server::start(&[NO_CONTENT, DONE]).await;
    let origin = server.origin();
    for _ in 0..2 {
        Origin::delete(&origin, "k", &none).await.unwrap();
    }
}
