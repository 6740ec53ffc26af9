//! Little memory: a server starts only with the memory that ordinary load may take, and is not killed under
//! that load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use futures_util::future::join_all;

use super::cgroup::MemoryLimit;
use super::{BUCKET, runtime};
use crate::content::TestContent;
use crate::s3::full_body;
use crate::server::{ServerSetup, StartFailure};

const CLIENTS: u64 = 12;
const ROUNDS: u64 = 4;
const OBJECT_BYTES: usize = 16 << 20;
const FORMS: usize = 800;
/// Limit of the memory that this load may take of 256 MiB. Measured: 100 MiB, or 216 to 232 MiB with huge
/// pages.
const MEMORY_USED_MAX: u64 = 160 << 20;
const SAMPLED_EVERY: Duration = Duration::from_millis(5);

#[test]
fn within_256_mib_ordinary_load_kills_nothing() {
    let limit = match MemoryLimit::named("ordinary", 256 << 20) {
        Ok(limit) => Arc::new(limit),
        Err(why) => return eprintln!("SKIPPED the 256 MiB test: cgroups cannot be created here: {why}"),
    };
    let dir = tempfile::tempdir_in(super::on_disk()).expect("a directory");
    let mut server = ServerSetup::new(dir.path().join("mlgw-data")).with_preparation(&limit.enter()).start();
    runtime().block_on(async {
        let client = &server.client();
        client.create_bucket(BUCKET).await.expect("made");
        let (mut stored, mut read) = (0, 0);
        let sampling = Sampling::start(limit.clone());
        for round in 0..ROUNDS {
            let each = (0..CLIENTS).map(|id| async move {
                let (content, key) = (TestContent { id, length: OBJECT_BYTES }, format!("{id}"));
                // A PUT that gets SlowDown is not repeated at once; the next pass overwrites the key.
                let stored = client.put(BUCKET, &key, full_body(content.bytes())).await.is_ok();
                let answer = client.get(BUCKET, &key).await;
                let read = answer.is_ok_and(|answer| content.difference(&answer.body).is_none());
                (u64::from(stored), u64::from(read))
            });
            for (one, other) in join_all(each).await {
                (stored, read) = (stored + one, read + other);
            }
            server.assert_running(&format!("in round {round}"));
        }
        let taken = sampling.finish();
        eprintln!("256 MiB: {stored} stored, {read} read, at most {} MiB taken", taken >> 20);
        assert!(taken > 0 && taken < MEMORY_USED_MAX, "{} MiB taken", taken >> 20);
        assert!(stored > CLIENTS && read > CLIENTS, "most requests succeed");
    });
    assert_eq!(limit.kills(), 0, "{}", server.log());
    server.stop();
}

/// Samples the memory of a server until the test is finished.
struct Sampling {
    is_finished: Arc<AtomicBool>,
    peak: JoinHandle<u64>,
}

impl Sampling {
    fn start(limit: Arc<MemoryLimit>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let peak = thread::spawn(move || {
            let mut peak = 0;
            while !is_over.load(Relaxed) {
                peak = limit.anonymous_bytes().max(peak);
                mlgw_common::time::block_for(SAMPLED_EVERY);
            }
            peak
        });
        Self { is_finished: over, peak }
    }

    /// Stops sampling and returns the largest sample in bytes.
    fn finish(self) -> u64 {
        self.is_finished.store(true, Relaxed);
        self.peak.join().expect("sampled")
    }
}

#[test]
fn less_than_the_minimum_memory_is_refused_with_a_reason() {
    let limit = match MemoryLimit::named("least", 100 << 20) {
        Ok(limit) => limit,
        Err(why) => return eprintln!("SKIPPED the 100 MiB test: cgroups cannot be created here: {why}"),
    };
    let dir = tempfile::tempdir_in(super::on_disk()).expect("a directory");
    let setup = ServerSetup::new(dir.path().join("mlgw-data")).with_preparation(&limit.enter());
    let Err(StartFailure { status, log }) = setup.try_start() else { panic!("the server started") };
    assert_eq!(status.and_then(|status| status.code()), Some(1), "{log}");
    assert!(log.contains("too little memory: 100.0 MiB"), "{log}");
    assert!(log.contains("this configuration needs at least"), "{log}");
    assert_eq!(limit.kills(), 0);
}

#[test]
fn half_sent_forms_of_an_address_do_not_starve_its_signed_requests() {
    let dir = tempfile::tempdir().expect("a directory");
    // 128 active connections; one address may have half of them.
    let server = ServerSetup::new(dir.path().join("mlgw-data")).with("limits.memory_bytes", "16MiB").start();
    super::memory::raise_open_files();
    runtime().block_on(async {
        use tokio::io::AsyncWriteExt as _;
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        client.put(BUCKET, "k", full_body("k")).await.expect("stored");
        let head = format!(
            "POST /{BUCKET} HTTP/1.1\r\nhost: h\r\ncontent-type: multipart/form-data; boundary=bd\r\n\
             content-length: 20000\r\n\r\n--bd\r\ncontent-disposition: form-data; name=\"key\"\r\n\r\n"
        );
        let half = [head.as_bytes(), &[b'x'; 15_000]].concat();
        let mut forms = Vec::new();
        for number in 0..FORMS {
            let mut form = tokio::net::TcpStream::connect(server.s3).await.expect("connected");
            // Includes incomplete heads, which are unsigned too.
            let sent: &[u8] = if number % 4 == 0 { &head.as_bytes()[..60] } else { &half };
            drop(form.write_all(sent).await);
            forms.push(form);
        }
        for _ in 0..5 {
            assert_eq!(client.get(BUCKET, "k").await.expect("not starved").body, "k");
        }
    });
    server.stop();
}
