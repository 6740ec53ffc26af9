//! Tests of the client against a server with scripted responses.

mod writing;

use super::{S3Origin, error_of_response, testing::settings};
use crate::origin::{
    GetQuery, ListQuery, ObjectPart, Origin, OriginError, OriginFence, OriginUploadRef, UploadsQuery,
};
use crate::upstream::UpstreamBudget;
use futures_util::TryStreamExt as _;
use http::{HeaderMap, StatusCode};
use mlgw_common::time::Instant;
use mlgw_common::{Secret, SystemClock};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

/// Server that answers successive connections with `answers`, and records the heads of the requests and the
/// received bytes of their bodies.
struct Server {
    endpoint: String,
    heads: Arc<Mutex<Vec<String>>>,
    bodies: Arc<Mutex<Vec<Vec<u8>>>>,
}

fn unlimited() -> Arc<UpstreamBudget> {
    Arc::new(UpstreamBudget::new(0, 0))
}

impl Server {
    async fn start(answers: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let heads = Arc::new(Mutex::new(Vec::new()));
        let answers: Vec<String> = answers.iter().map(|answer| answer.replace('\n', "\r\n")).collect();
        let bodies = Arc::new(Mutex::new(Vec::new()));
        let (kept, kept_bodies) = (heads.clone(), bodies.clone());
        tokio::spawn(async move {
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                let length: u64 = length.map_or(0, |length| length.parse().unwrap());
                kept.lock().unwrap().push(head);
                let mut body = Vec::new();
                let read = (&mut stream).take(length).read_to_end(&mut body).await;
                kept_bodies.lock().unwrap().push(body);
                if read.is_ok() {
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            }
        });
        Self { endpoint, heads, bodies }
    }

    fn origin(&self) -> S3Origin {
        self.with_budget(unlimited())
    }

    /// Creates a client of this server that is limited by `budget`.
    fn with_budget(&self, budget: Arc<UpstreamBudget>) -> S3Origin {
        self.client(budget, None)
    }

    /// Creates a client of this server whose changes are behind a fence.
    fn fenced(&self, fence: &OriginFence) -> S3Origin {
        self.client(unlimited(), Some(fence))
    }

    fn client(&self, budget: Arc<UpstreamBudget>, fence: Option<&OriginFence>) -> S3Origin {
        let credentials = crate::upstream::CredentialSource::Static {
            access_key: "AK".into(),
            secret: Secret::new("S"),
            session_token: Some(Secret::new("T")),
        };
        let timeout = Duration::from_secs(2);
        let settings = crate::upstream::UpstreamSettings { credentials, timeout, ..settings(&self.endpoint) };
        S3Origin::new(&settings, budget, Arc::new(SystemClock), fence).unwrap()
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }

    /// Waits for a number of request bodies and returns them.
    async fn bodies(&self, count: usize) -> Vec<Vec<u8>> {
        let came = async {
            while self.bodies.lock().unwrap().len() < count {
                tokio::task::yield_now().await;
            }
        };
        mlgw_common::time::timeout(Duration::from_secs(20), came).await.expect("they come");
        self.bodies.lock().unwrap().clone()
    }
}

const WHOLE: &str = "HTTP/1.1 200 OK\nETag: \"e\"\nContent-Length: 5\nConnection: close\n\nhello";
const SLOW_DOWN: &str = "HTTP/1.1 503 Slow Down\nContent-Length: 0\nConnection: close\n\n";

async fn read(origin: &S3Origin, part: ObjectPart) -> Result<String, OriginError> {
    let got = Origin::get(origin, "a//b/../c", &GetQuery::unconditional(part)).await?;
    let pieces: Vec<_> = got.body.try_collect().await?;
    Ok(String::from_utf8(pieces.concat()).unwrap())
}

#[tokio::test]
async fn a_request_is_signed_and_its_key_is_unchanged() {
    let server = Server::start(&[WHOLE]).await;
    assert_eq!(read(&server.origin(), ObjectPart::Whole).await, Ok("hello".into()));
    let head = &server.heads()[0];
    assert!(head.starts_with("GET /b/a//b/../c HTTP/1.1\r\n"), "{head}");
    for line in
        ["authorization: AWS4-HMAC-SHA256 Credential=AK/", "x-amz-security-token: T", "x-amz-checksum-mode"]
    {
        assert!(head.contains(line), "{head}");
    }
}

#[tokio::test]
async fn a_range_and_a_condition_are_sent() {
    let part = "HTTP/1.1 206 Partial\nETag: \"e\"\nContent-Range: bytes 2-3/9\nContent-Length: 2\n\
        Connection: close\n\nll";
    let server = Server::start(&[part]).await;
    let query = GetQuery {
        if_match: Some("e".into()),
        ..GetQuery::unconditional(ObjectPart::Range { first: 2, end: 4 })
    };
    let got = Origin::get(&server.origin(), "k", &query).await.unwrap();
    assert_eq!((got.object.size, got.range), (9, 2..4));
    let head = &server.heads()[0];
    assert!(head.contains("range: bytes=2-3\r\n") && head.contains("if-match: \"e\"\r\n"), "{head}");
}

#[tokio::test]
async fn a_transient_error_is_retried_and_signed_anew() {
    let server =
        Server::start(&[SLOW_DOWN, "", "HTTP/1.1 500 No\nContent-Length: 0\nConnection: close\n\n", WHOLE])
            .await;
    assert_eq!(read(&server.origin(), ObjectPart::Whole).await, Ok("hello".into()));
    assert_eq!(server.heads().len(), 4);
}

#[tokio::test]
async fn it_is_not_tried_for_ever() {
    let server = Server::start(&[SLOW_DOWN; 9]).await;
    assert_eq!(read(&server.origin(), ObjectPart::Whole).await, Err(OriginError::Throttled(None)));
    assert_eq!(server.heads().len(), 5);
}

#[tokio::test]
async fn what_will_not_change_is_asked_once() {
    let denied = "<Error><Code>AccessDenied</Code><Message>No</Message></Error>";
    let denied = format!("HTTP/1.1 403 No\nContent-Length: {}\nConnection: close\n\n{denied}", denied.len());
    let server = Server::start(&[&denied, WHOLE]).await;
    let error = read(&server.origin(), ObjectPart::Whole).await.unwrap_err();
    assert!(matches!(&error, OriginError::Denied(why) if why.contains("AccessDenied No")), "{error}");
    assert_eq!(server.heads().len(), 1);
}

#[tokio::test]
async fn a_body_that_breaks_off_is_an_error() {
    let cut = "HTTP/1.1 200 OK\nETag: \"e\"\nContent-Length: 50\n\nhello";
    let server = Server::start(&[cut]).await;
    let error = read(&server.origin(), ObjectPart::Whole).await.unwrap_err();
    assert!(matches!(error, OriginError::Unreachable(_)), "{error:?}");
}

#[tokio::test]
async fn a_listing_sends_its_parameters() {
    let page = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
    let page = format!("HTTP/1.1 200 OK\nContent-Length: {}\nConnection: close\n\n{page}", page.len());
    let server = Server::start(&[&page]).await;
    let query =
        ListQuery { prefix: "p/ä".into(), delimiter: "/".into(), max_keys: 7, ..ListQuery::default() };
    assert_eq!(Origin::list(&server.origin(), &query).await.unwrap().next, None);
    let head = &server.heads()[0];
    let request_line =
        "GET /b?list-type=2&encoding-type=url&max-keys=7&prefix=p%2F%C3%A4&delimiter=%2F HTTP/1.1";
    assert!(head.starts_with(request_line), "{head}");
}

#[tokio::test]
async fn a_page_outside_its_query_is_invalid() {
    let answer = |document: &str| {
        format!("HTTP/1.1 200 OK\nContent-Length: {}\nConnection: close\n\n{document}", document.len())
    };
    let keys = answer("<ListBucketResult><Contents><Key>q</Key><Size>1</Size></Contents></ListBucketResult>");
    let parts = answer(
        "<ListPartsResult><IsTruncated>true</IsTruncated><NextPartNumberMarker>3</NextPartNumberMarker>\
         </ListPartsResult>",
    );
    let uploads = answer(
        "<ListMultipartUploadsResult><Upload><Key>q</Key><UploadId>u</UploadId></Upload>\
         </ListMultipartUploadsResult>",
    );
    let server = Server::start(&[&keys, &parts, &uploads]).await;
    let origin = server.origin();
    let query = ListQuery { prefix: "p/".into(), max_keys: 7, ..ListQuery::default() };
    let of_uploads = UploadsQuery { keys: query.clone(), id_marker: String::new() };
    let errors = [
        Origin::list(&origin, &query).await.unwrap_err(),
        Origin::list_parts(&origin, OriginUploadRef { key: "p/k", id: "u" }, 3, 7).await.unwrap_err(),
        Origin::list_uploads(&origin, &of_uploads).await.unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, OriginError::InvalidResponse(_)), "{error:?}");
    }
}

#[tokio::test]
async fn an_origin_that_is_silent_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let settings =
        crate::upstream::UpstreamSettings { timeout: Duration::from_millis(50), ..settings(&endpoint) };
    let origin = S3Origin::new(&settings, unlimited(), Arc::new(SystemClock), None).unwrap();
    assert_eq!(read(&origin, ObjectPart::Whole).await, Err(OriginError::TimedOut));
}

#[test]
fn statuses_map_to_errors() {
    let of = |status, code: &str| {
        let document = format!("<Error><Code>{code}</Code><Message/></Error>");
        error_of_response(StatusCode::from_u16(status).unwrap(), &HeaderMap::new(), document.as_bytes())
    };
    assert_eq!(of(404, "NoSuchBucket"), OriginError::NoSuchBucket);
    assert_eq!(of(404, ""), OriginError::NoSuchKey);
    assert_eq!((of(304, ""), of(412, "")), (OriginError::NotModified(None), OriginError::Changed));
    assert_eq!((of(416, ""), of(429, "")), (OriginError::OutOfRange(None), OriginError::Throttled(None)));
    assert_eq!((of(500, ""), of(400, "SlowDown")), (OriginError::Failed(500), OriginError::Throttled(None)));
    assert!(matches!(of(400, "Bad"), OriginError::Refused { status: 400, code, .. } if code == "Bad"));
    assert!(matches!(of(404, "NoSuchUpload"), OriginError::Refused { status: 404, .. }));
    assert!(matches!(of(409, "ConditionalRequestConflict"), OriginError::Refused { status: 409, .. }));
    assert!(matches!(of(501, "NotImplemented"), OriginError::Refused { status: 501, .. }));
}

#[tokio::test]
async fn requests_and_bytes_are_charged_to_the_shared_budget() {
    let body = "x".repeat(100);
    let answer = format!(
        "HTTP/1.1 200 OK\nETag: \"e\"\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT\nContent-Length: 100\n\n\
         {body}"
    );
    let server = Server::start(&[&answer]).await;
    let budget = Arc::new(UpstreamBudget::new(1, 1));
    let origin = server.with_budget(budget.clone());
    let before = Instant::now();
    let mut got = Origin::get(&origin, "k", &GetQuery::unconditional(ObjectPart::Whole)).await.unwrap();
    assert!(budget.charge_and_schedule(before, 1, 0) > before, "a request was taken");
    let piece = got.body.try_next().await.unwrap().unwrap();
    let owed = Duration::from_secs(piece.len() as u64 - 1);
    assert!(budget.charge_and_schedule(before, 0, 1) > before + owed, "{} bytes", piece.len());
}
