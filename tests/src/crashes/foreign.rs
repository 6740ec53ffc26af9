//! Another client writes at the origin of a remote-backed bucket while copies come and go, connections break
//! and the server is killed: each read returns one version of an object, and that version is not older than
//! the TTL of the origin's responses allows.

use mlgw_common::time::Instant;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::content::TestContent;
use crate::proxy::{Fault, FaultProxy, Rule};
use crate::s3::{CallFailure, S3TestClient, full_body};
use crate::seed::{Rng, seeded_rng, setting};
use crate::server::{ServerProcess, ServerSetup, runtime};

const ROUNDS: u64 = 4;
const ORIGIN_BUCKET: &str = "lake";
const LOCAL_BUCKET: &str = "bound";
const KEYS: usize = 6;
const READERS: u64 = 4;
/// Time for which a response of the origin is valid.
const TTL: Duration = Duration::from_millis(300);
/// Lateness allowed to a slow machine: the age of a response includes the time that the origin took for it.
const LATENESS_MAX: Duration = Duration::from_secs(3);
/// Maximum time without any successful read while others write.
const READ_WAIT_MAX: Duration = Duration::from_secs(60);
/// Sizes of one block and of several blocks.
const SIZES: &[usize] = &[100, 5_000, 300_000, 3 << 20, 9 << 20, 18 << 20];
/// Commands that are run on the copies meanwhile.
const COPY_COMMANDS: &[&[&str]] = &[
    &["dataset", "warm", "all"],
    &["dataset", "clear", "all"],
    &["dataset", "evict", "all", "--older-than", "0s"],
    &["bucket", "refresh", LOCAL_BUCKET],
];

#[test]
fn foreign_writes_are_read_whole_and_within_the_ttl() {
    let mut rng = seeded_rng("foreign writes", 1);
    let room = tempfile::tempdir().expect("a directory");
    let origin = ServerSetup::new(room.path().join("origin")).start();
    let proxy = FaultProxy::start(origin.s3);
    let runtime = runtime();
    runtime.block_on(origin.client().create_bucket(ORIGIN_BUCKET)).expect("made");
    let setup = ServerSetup::new(room.path().join("data"))
        .with_upstream("far", proxy.addr(), ORIGIN_BUCKET, "5s")
        .with("bound.ttl", "300ms")
        .with("bound.stale_max", "0s")
        .with("hot.segment_bytes", "16MiB");
    let versions = Arc::new(ForeignVersions::default());
    let mut server = setup.start();
    for words in [
        &["bucket", "bind", LOCAL_BUCKET, "--upstream", "far"][..],
        &["dataset", "create", "all", "--bucket", LOCAL_BUCKET],
    ] {
        let (output, status) = setup.command(words);
        assert_eq!(status, Some(0), "{output}");
    }
    for round in 0..setting("MLGW_CRASH_ROUNDS", ROUNDS) {
        proxy.set_rules(faults(&mut rng));
        let reads = runtime.block_on(read_while_others_write(
            (&server, &origin),
            &setup,
            &versions,
            rng.fork(round),
            Duration::from_millis(700 + rng.below(800)),
        ));
        eprintln!("foreign writes: round {round}: {reads} reads");
        assert!(reads > 0, "nothing was read");
        server.kill();
        server = setup.start();
    }
    server.stop();
}

fn faults(rng: &mut Rng) -> Vec<Rule> {
    let seed = rng.next();
    let slow_down = Fault::Status { status: 503, code: "SlowDown".to_owned() };
    vec![
        Rule::new(Fault::CutAnswer { after: rng.below(4 << 20) }).method("GET").probability(0.1, seed),
        Rule::new(Fault::Stall { after: 70_000, pause: Duration::from_millis(40) })
            .probability(0.2, seed + 1),
        Rule::new(slow_down).method("GET").probability(0.05, seed + 2),
        Rule::new(Fault::Delay { by: Duration::from_millis(1 + rng.below(20)) }).probability(0.3, seed + 3),
    ]
}

/// The versions written under each key.
#[derive(Default)]
struct ForeignVersions {
    keys: [Mutex<Vec<ForeignVersion>>; KEYS],
    read: AtomicU64,
}

struct ForeignVersion {
    content: TestContent,
    etag: String,
    acknowledged: Option<Instant>,
}

impl ForeignVersions {
    /// The oldest version that a read sent at `sent_at` may return.
    fn oldest_allowed(&self, key: usize, sent_at: Instant) -> u64 {
        let versions = self.keys[key].lock().expect("lock is not poisoned");
        let holds = |version: &&ForeignVersion| {
            version.acknowledged.is_some_and(|at| at + TTL + LATENESS_MAX < sent_at)
        };
        versions.iter().rev().find(holds).map_or(0, |version| version.content.id)
    }

    fn content_of(&self, key: usize, etag: &str) -> Option<TestContent> {
        let versions = self.keys[key].lock().expect("lock is not poisoned");
        versions.iter().find(|version| version.etag == etag).map(|version| version.content)
    }

    /// Records that a new version is about to be written.
    fn begin_version(&self, key: usize, length: usize) -> TestContent {
        let id = self.keys[key].lock().expect("lock is not poisoned").len() as u64 + 1;
        let content = TestContent { id, length };
        let version = ForeignVersion { content, etag: content.etag(), acknowledged: None };
        self.keys[key].lock().expect("lock is not poisoned").push(version);
        content
    }

    /// Records that the newest version was acknowledged.
    fn acknowledge(&self, key: usize) {
        if let Some(last) = self.keys[key].lock().expect("lock is not poisoned").last_mut() {
            last.acknowledged = Some(Instant::now());
        }
    }
}

async fn read_while_others_write(
    (server, origin): (&ServerProcess, &ServerProcess),
    setup: &ServerSetup,
    versions: &Arc<ForeignVersions>,
    rng: Rng,
    duration: Duration,
) -> u64 {
    let stop = Arc::new(AtomicBool::new(false));
    let before = versions.read.load(Ordering::Relaxed);
    let mut tasks = Vec::new();
    for writer in 0..2 {
        tasks.push(tokio::spawn(write(
            origin.client(),
            versions.clone(),
            rng.fork(100 + writer),
            writer,
            stop.clone(),
        )));
    }
    for reader in 0..READERS {
        tasks.push(tokio::spawn(read(
            server.client(),
            versions.clone(),
            rng.fork(200 + reader),
            stop.clone(),
        )));
    }
    let mover = {
        let (setup, stop, mut rng) = (setup.clone(), stop.clone(), rng.fork(300));
        tokio::task::spawn_blocking(move || {
            while !stop.load(Ordering::Relaxed) {
                let words: &[&str] = rng.pick::<&[&str]>(COPY_COMMANDS);
                // A command that is sent while another job runs is refused.
                drop(setup.command(words));
            }
        })
    };
    mlgw_common::time::sleep(duration).await;
    // On a busy machine a round continues until something was read. A task that ended early has failed, which
    // is reported below.
    let deadline = Instant::now() + READ_WAIT_MAX;
    let has_read = || versions.read.load(Ordering::Relaxed) > before;
    while !has_read() && !tasks.iter().any(JoinHandle::is_finished) && Instant::now() < deadline {
        mlgw_common::time::sleep(Duration::from_millis(20)).await;
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("every guarantee holds");
    }
    mover.await.expect("the move succeeded");
    versions.read.load(Ordering::Relaxed) - before
}

/// Overwrites keys at the origin; each key has one writer.
async fn write(
    client: S3TestClient,
    versions: Arc<ForeignVersions>,
    mut rng: Rng,
    writer: u64,
    stop: Arc<AtomicBool>,
) {
    while !stop.load(Ordering::Relaxed) {
        let key = usize::try_from(rng.below(KEYS as u64 / 2) * 2 + writer).expect("small");
        let content = versions.begin_version(key, *rng.pick(SIZES));
        client
            .put(ORIGIN_BUCKET, &key.to_string(), full_body(content.bytes()))
            .await
            .expect("the origin works");
        versions.acknowledge(key);
        mlgw_common::time::sleep(Duration::from_millis(rng.below(60))).await;
    }
}

/// Reads whole objects and ranges of them. A read of an object that changes meanwhile may break off, and a
/// read may fail if the origin fails.
async fn read(client: S3TestClient, versions: Arc<ForeignVersions>, mut rng: Rng, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let key = rng.index(KEYS);
        let oldest = versions.oldest_allowed(key, Instant::now());
        let first = rng.below(4) * rng.below(10 << 20);
        let answer = match first {
            0 => client.get(LOCAL_BUCKET, &key.to_string()).await,
            first => client.get_range(LOCAL_BUCKET, &key.to_string(), (first, first + 100_000)).await,
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(CallFailure::NoResponse(_)) => continue,
            Err(CallFailure::Refused { status, .. }) if status.is_server_error() || status == 416 => continue,
            Err(CallFailure::Refused { status, .. }) if status == 404 && oldest == 0 => continue,
            Err(failure) => panic!("key {key}: {failure:?}"),
        };
        let etag = answer.etag();
        let version = versions.content_of(key, &etag);
        let version = version.unwrap_or_else(|| panic!("key {key}: {etag} was never written"));
        assert!(
            version.id >= oldest,
            "key {key}: read version {}, but {oldest} was stored long before",
            version.id
        );
        let from = usize::try_from(first).expect("fits");
        let expected = version.bytes().slice(from..version.length.min(from + answer.body.len().max(1)));
        assert!(
            answer.body == expected,
            "key {key}: {} bytes from {first} are not of {version}",
            answer.body.len()
        );
        let whole_length =
            if first == 0 { version.length } else { version.length.saturating_sub(from).min(100_001) };
        assert_eq!(answer.body.len(), whole_length, "key {key} from {first}");
        versions.read.fetch_add(1, Ordering::Relaxed);
    }
}
