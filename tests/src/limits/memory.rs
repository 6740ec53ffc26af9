//! 512 MiB of memory under thousands of clients: each request is served or refused with 503, and the server
//! is never killed.
//!
//! The load runs at the same time: 10,000 idle connections, 2,000 slow uploads of 64 MiB, a 100 MB XML body
//! and a complete of 10,000 parts. Afterwards the refused requests are repeated one at a time and succeed.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::iter;
use http::Method;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpStream;
use tokio::sync::Barrier;

use super::cgroup::MemoryLimit;
use super::{BUCKET, runtime};
use crate::content::TestContent;
use crate::raw::RawExchange;
use crate::s3::{S3TestClient, full_body};
use crate::seed::setting;
use crate::server::ServerSetup;

const MEMORY_BYTES: u64 = 512 << 20;
const IDLE: usize = 10_000;
const UPLOADS: u64 = 2_000;
const UPLOAD_BYTES: usize = 64 << 20;
const PIECE_BYTES: usize = 64 << 10;
/// Pieces that each slow upload sends before it waits: more than the one chunk that is buffered.
const PIECES_SENT: usize = 20;
/// Slow uploads that continue to their end while the others keep their memory.
const FINISHED: usize = 4;
const XML_BYTES: u64 = 100_000_000;
const PARTS: u32 = 10_000;
/// Minimum size of a part that is not the last. Real parts (`MLGW_PART_BYTES`) take 50 GB and a long time.
const PART_BYTES_MIN: u64 = 5 << 20;
const FILES: u64 = 20_000;

#[test]
fn within_512_mib_each_request_is_served_or_refused_and_nothing_is_killed() {
    let limit = match MemoryLimit::new(MEMORY_BYTES) {
        Ok(limit) => limit,
        Err(why) => return eprintln!("SKIPPED the 512 MiB test: cgroups cannot be created here: {why}"),
    };
    raise_open_files();
    let dir = tempfile::tempdir_in(super::on_disk()).expect("a directory");
    let mut server = ServerSetup::new(dir.path().join("mlgw-data"))
        .with("limits.connections", IDLE as u64 + UPLOADS + 500)
        .with("limits.idle_timeout", "10m")
        .with("limits.body_timeout", "10m")
        .with_preparation(&format!("ulimit -n {FILES} || exit 98"))
        .with_preparation(&limit.enter())
        .start();
    runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        let upload = put_many_parts(&client).await;
        let idle = open_idle(server.s3).await;
        server.assert_running("with idle connections");
        let slow = slow_uploads(&client, server.s3).await;
        eprintln!(
            "memory: {} slow uploads under way, {} refused with a retry, at most {} MiB taken",
            slow.open.len(),
            slow.refused.len(),
            limit.peak() >> 20
        );
        server.assert_running("with slow uploads");
        assert!(
            slow.failed.is_empty(),
            "{} cut off: {:?}",
            slow.failed.len(),
            &slow.failed[..slow.failed.len().min(5)]
        );
        let statuses = join_all([
            Box::pin(large_xml(&client, server.s3)) as futures_util::future::BoxFuture<'_, u16>,
            Box::pin(complete_many(&client, server.s3, &upload)),
        ])
        .await;
        eprintln!(
            "memory: a 100 MB XML body got {}, a complete of {PARTS} parts {}",
            statuses[0], statuses[1]
        );
        assert!([400, 413, 503].contains(&statuses[0]), "{statuses:?}");
        assert!([200, 400, 503].contains(&statuses[1]), "{statuses:?}");
        finish_some(slow.open).await;
        drop(idle);
        server.assert_running("after the pressure");
        retry_alone(&client, &slow.refused).await;
        complete_alone(&client, server.s3, &upload).await;
    });
    eprintln!("memory: at most {} MiB of {} taken", limit.peak() >> 20, MEMORY_BYTES >> 20);
    assert_eq!(limit.kills(), 0, "{}", server.log());
    server.stop();
}

pub(super) fn raise_open_files() {
    let now = getrlimit(Resource::Nofile);
    let wanted = Some(now.maximum.map_or(FILES, |maximum| maximum.max(FILES)));
    setrlimit(Resource::Nofile, Rlimit { current: wanted, maximum: wanted })
        .expect("20,000 open files: raise the hard limit (ulimit -Hn) or run as root");
}

async fn open_idle(server: SocketAddr) -> Vec<TcpStream> {
    let connect = |_| async move { TcpStream::connect(server).await.expect("an idle connection") };
    iter(0..IDLE).map(connect).buffer_unordered(64).collect().await
}

const fn body_of(id: u64) -> TestContent {
    TestContent { id, length: UPLOAD_BYTES }
}

fn name(id: u64) -> String {
    format!("slow-{id}")
}

/// Outcomes of the slow uploads.
#[derive(Default)]
struct SlowUploads {
    open: Vec<(u64, RawExchange)>,
    refused: Vec<u64>,
    /// Errors of uploads that got neither a connection nor a 503; must stay empty.
    failed: Vec<String>,
}

/// Starts all uploads before any of them continues.
async fn slow_uploads(client: &S3TestClient, server: SocketAddr) -> SlowUploads {
    let begun = Arc::new(Barrier::new(usize::try_from(UPLOADS).expect("small")));
    let tasks = (0..UPLOADS).map(|id| {
        let (client, begun) = (client.clone(), begun.clone());
        tokio::spawn(async move { (id, slow_upload(&client, server, id, &begun).await) })
    });
    let tasks: Vec<_> = tasks.collect();
    let mut slow = SlowUploads::default();
    for task in tasks {
        match task.await.expect("no panic") {
            (id, Ok(Ok(exchange))) => slow.open.push((id, exchange)),
            (id, Ok(Err(503))) => slow.refused.push(id),
            (id, Ok(Err(status))) => slow.failed.push(format!("upload {id} is refused with {status}")),
            (id, Err(error)) => slow.failed.push(format!("upload {id}: {error}")),
        }
    }
    slow
}

/// Returns the first pieces of an upload, which share one buffer. Two thousand bodies of 64 MiB would
/// exceed the memory of the test itself.
fn first_pieces(id: u64) -> Vec<Bytes> {
    let start = TestContent { id, length: PIECE_BYTES }.bytes();
    (0..PIECES_SENT).map(|_| start.clone()).collect()
}

/// Sends the first pieces. Returns the open connection, or the status of the refusal.
async fn slow_upload(
    client: &S3TestClient,
    server: SocketAddr,
    id: u64,
    begun: &Barrier,
) -> std::io::Result<Result<RawExchange, u16>> {
    let target = format!("/{BUCKET}/{}", name(id));
    let begin = RawExchange::begin(client, server, Method::PUT, &target, UPLOAD_BYTES as u64).await;
    begun.wait().await;
    let mut exchange = begin?;
    for piece in first_pieces(id) {
        if let Some(answer) = exchange.send_or_answer(&piece).await? {
            return Ok(Err(answer.status));
        }
    }
    Ok(Ok(exchange))
}

/// Completes a few uploads and drops the others, as clients do.
async fn finish_some(open: Vec<(u64, RawExchange)>) {
    let rest = vec![7; UPLOAD_BYTES - PIECES_SENT * PIECE_BYTES];
    for (id, mut exchange) in open.into_iter().take(FINISHED) {
        let early = exchange.send_or_answer(&rest).await.expect("sent, or answered");
        let answer = match early {
            Some(answer) => answer,
            None => exchange.answer().await.expect("answered"),
        };
        assert!([200, 503].contains(&answer.status), "upload {id} ends in {}", answer.status);
        eprintln!("memory: slow upload {id} ends in {}", answer.status);
    }
}

async fn retry_alone(client: &S3TestClient, refused: &[u64]) {
    for id in refused.iter().take(FINISHED) {
        let content = body_of(*id);
        client.put(BUCKET, &name(*id), full_body(content.bytes())).await.expect("the upload succeeds alone");
        let body = client.get(BUCKET, &name(*id)).await.expect("read").body;
        assert_eq!(content.difference(&body), None);
    }
}

/// Sends a DeleteObjects of 100 MB.
async fn large_xml(client: &S3TestClient, server: SocketAddr) -> u16 {
    let target = format!("/{BUCKET}?delete=");
    let mut exchange =
        RawExchange::begin(client, server, Method::POST, &target, XML_BYTES).await.expect("connected");
    let row = "<Object><Key>k</Key></Object>".repeat(2000);
    let mut sent = 0;
    while sent < XML_BYTES {
        let length = row.len().min(usize::try_from(XML_BYTES - sent).expect("fits"));
        if let Some(answer) = exchange.send_or_answer(&row.as_bytes()[..length]).await.expect("answered") {
            return answer.status;
        }
        sent += length as u64;
    }
    exchange.answer().await.expect("answered").status
}

fn part(number: u32) -> TestContent {
    let length = usize::try_from(setting("MLGW_PART_BYTES", 1000)).expect("fits");
    TestContent { id: u64::from(number), length }
}

async fn put_many_parts(client: &S3TestClient) -> String {
    let upload = client.create_upload(BUCKET, "many").await.expect("created");
    let put = |number| {
        let (client, upload) = (client.clone(), upload.clone());
        async move {
            let body = full_body(part(number).bytes());
            client.put_part(BUCKET, "many", &upload, number, body).await.expect("stored");
        }
    };
    iter(1..=PARTS).map(put).buffer_unordered(64).collect::<Vec<()>>().await;
    upload
}

/// Sends a complete that names every part, and returns its status.
async fn complete_many(client: &S3TestClient, server: SocketAddr, upload: &str) -> u16 {
    let rows: String = (1..=PARTS)
        .map(|number| {
            let etag = part(number).etag();
            format!("<Part><PartNumber>{number}</PartNumber><ETag>\"{etag}\"</ETag></Part>")
        })
        .collect();
    let body = format!("<CompleteMultipartUpload>{rows}</CompleteMultipartUpload>");
    let target = format!("/{BUCKET}/many?uploadId={}", crate::s3::encode(upload));
    let mut exchange = RawExchange::begin(client, server, Method::POST, &target, body.len() as u64)
        .await
        .expect("connected");
    match exchange.send_or_answer(body.as_bytes()).await.expect("answered") {
        Some(answer) => answer.status,
        None => exchange.answer().await.expect("answered").status,
    }
}

/// Repeats the complete alone. It succeeds with real parts; small parts are refused by the minimum size
/// only.
async fn complete_alone(client: &S3TestClient, server: SocketAddr, upload: &str) {
    let status = complete_many(client, server, upload).await;
    let expected = if part(1).length as u64 >= PART_BYTES_MIN { 200 } else { 400 };
    assert_eq!(status, expected, "a complete of {PARTS} parts, alone");
}
