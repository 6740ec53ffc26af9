//! Tests against a real server: mlgw itself, over HTTP, and over HTTPS with its own authority and through a
//! proxy.
//!
//! The server is the binary that `MLGW_BIN` names. Without a binary the tests do nothing.

use mlgw_common::Secret;
use mlgw_common::time::Instant;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const ACCESS_KEY: &str = "MLGWTESTROOTKEY00001";
/// Maximum wait for a start. It is generous: it is reached only if something is broken.
const PATIENCE: Duration = Duration::from_secs(60);

/// Server process that is killed when dropped.
struct Server {
    child: Child,
    port: u16,
    room: tempfile::TempDir,
}

impl Server {
    /// Starts a server with a bucket; `None` if there is no binary.
    fn start(tls: Option<(&Path, &Path)>) -> Option<Self> {
        let binary = PathBuf::from(std::env::var_os("MLGW_BIN")?);
        if !binary.exists() {
            return None;
        }
        let room = tempfile::tempdir().expect("a directory");
        let (data, log) = (room.path().join("data"), room.path().join("log"));
        let output = std::fs::File::create(&log).expect("a log");
        let mut server = Command::new(&binary);
        server
            .args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--data-dir"])
            .arg(&data)
            .env_clear()
            .env("MLGW_ROOT_ACCESS_KEY_ID", ACCESS_KEY)
            .env("MLGW_ROOT_SECRET_ACCESS_KEY", SECRET.repeat(3));
        if let Some((cert, key)) = tls {
            server.env("MLGW_TLS__CERT", cert).env("MLGW_TLS__KEY", key);
        }
        let copy = output.try_clone().expect("the log");
        let child = server.stdin(Stdio::null()).stdout(output).stderr(copy).spawn().expect("started");
        let mut server = Self { child, port: 0, room };
        let begun = Instant::now();
        while !server.is_ready(&binary, &data) {
            let log_text = std::fs::read_to_string(&log).unwrap_or_default();
            assert!(begun.elapsed() < PATIENCE, "the server does not start: {log_text}");
            server.port = port(&log_text).unwrap_or(0);
            mlgw_common::time::block_for(Duration::from_millis(2));
        }
        Some(server)
    }

    /// True once the bucket is created.
    fn is_ready(&self, binary: &Path, data: &Path) -> bool {
        let make = || {
            let mut command = Command::new(binary);
            command.args(["bucket", "create", "bucket"]).env_clear().env("MLGW_DATA_DIR", data);
            command.stdin(Stdio::null()).output().is_ok_and(|done| done.status.success())
        };
        self.port != 0 && make()
    }

    fn settings(&self, scheme: &str) -> UpstreamSettings {
        UpstreamSettings {
            endpoint: Some(format!("{scheme}://localhost:{}", self.port)),
            credentials: CredentialSource::Static {
                access_key: ACCESS_KEY.to_owned(),
                secret: Secret::new(SECRET.repeat(3)),
                session_token: None,
            },
            ..settings()
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.room.path().join("log"));
            eprintln!("--- the server's output ---\n{}---", log.unwrap_or_default());
        }
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn port(log: &str) -> Option<u16> {
    let (_, rest) = log.split_once(" serves S3 at ")?;
    let (_, rest) = rest.split_once("127.0.0.1:")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

async fn check_all_operations(upstream: &Upstream) {
    let steps = upstream.check().await;
    assert!(steps.iter().all(|step| step.fault.is_none()), "{steps:?}");
    // More than one part of the production part size.
    let (bytes, key) = (20 * MIB + 12_345, key(4));
    let content = content(bytes);
    let key = upstream.encrypts().then_some(&key);
    assert_ne!(put(upstream, &content, key).await.expect("stored").sent_bytes, 0);
    assert_eq!(put(upstream, &content, key).await.expect("there").sent_bytes, 0);
    for (offset, length) in [(0, 100), (8 * MIB - 1, 2), (bytes - 1, 1), (3_000_000, 1_000_000)] {
        let read = upstream.read(&object(bytes, key), offset, length).await.expect("read");
        assert!(read == content[offset as usize..(offset + length) as usize], "{offset}");
    }
    assert_eq!(upstream.list().await.expect("listed"), [OBJECT]);
    upstream.remove(OBJECT).await.expect("removed");
    let failed = upstream.read(&object(bytes, key), 0, 1).await.expect_err("gone");
    assert!(matches!(failed, UpstreamError::Missing { .. }), "{failed}");
    assert_eq!(upstream.list().await.expect("listed"), []);
}

#[tokio::test]
async fn an_mlgw_server_is_a_valid_upstream() {
    let Some(server) = Server::start(None) else { return };
    for encrypt in [false, true] {
        let settings = UpstreamSettings { encrypt, ..server.settings("http") };
        check_all_operations(&Upstream::open(&settings).expect("opened")).await;
    }
    let wrong = CredentialSource::Static {
        access_key: ACCESS_KEY.to_owned(),
        secret: Secret::new("another secret"),
        session_token: None,
    };
    let wrong = UpstreamSettings { credentials: wrong, ..server.settings("http") };
    let steps = Upstream::open(&wrong).expect("opened").check().await;
    let fault = steps.last().and_then(|step| step.fault.clone()).unwrap_or_default();
    assert!(steps.len() == 2 && fault.contains("SignatureDoesNotMatch"), "{steps:?}");
    let absent = UpstreamSettings { bucket: "absent".to_owned(), ..server.settings("http") };
    let failed = Upstream::open(&absent).expect("opened").read(&object(1, None), 0, 1).await;
    assert!(matches!(failed, Err(UpstreamError::Refused { .. })), "{failed:?}");
}

#[tokio::test]
async fn a_private_authority_is_trusted_and_a_proxy_is_used() {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let room = tempfile::tempdir().expect("a directory");
    let (cert, key) = (room.path().join("cert.pem"), room.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).expect("written");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("written");
    let Some(server) = Server::start(Some((&cert, &key))) else { return };
    let unknown = Upstream::open(&server.settings("https")).expect("opened").check().await;
    let fault = unknown[0].fault.clone().unwrap_or_default();
    assert!(unknown.len() == 1 && fault.starts_with("TLS: ") && fault.contains("ca_file"), "{unknown:?}");
    let known = UpstreamSettings { ca_file: Some(cert.clone()), ..server.settings("https") };
    check_all_operations(&Upstream::open(&known).expect("opened")).await;
    let (url, passed) = proxy().await;
    let through = UpstreamSettings { proxy: Some(url), ..known };
    check_all_operations(&Upstream::open(&through).expect("opened")).await;
    assert!(passed.load(Relaxed) > 0);
}

/// Starts a proxy that forwards connections. Returns its URL and a counter of forwarded connections.
async fn proxy() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let passed = Arc::new(AtomicUsize::new(0));
    let counted = passed.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            counted.fetch_add(1, Relaxed);
            tokio::spawn(forward(client));
        }
    });
    (url, passed)
}

async fn forward(mut client: TcpStream) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let Some(target) = head.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next()) else {
        return Ok(());
    };
    let mut server = TcpStream::connect(target).await?;
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}
