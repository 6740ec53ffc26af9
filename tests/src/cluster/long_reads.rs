//! Reads that last longer than their object: it is overwritten and deleted through another node while clients
//! read it slowly, and the node that frees bodies is killed. Every byte arrives, and the space is freed after
//! the last read has ended. Some readers stall meanwhile. Others read without a pause for a quarter of
//! an hour, with the default limits of a server, while leaders change.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::Method;
use mlgw_common::time::{Instant, timeout};
use tokio::task::JoinHandle;

use super::segment_files::{MINUTELY_MAX, segment_files, until_copied};
use super::testbed::{
    BUCKET, FIRST, OBJECT_GROUP, STORAGE, SYSTEM_GROUP, TestCluster, node_of_head, until_served, wait_at_most,
};
use crate::content::TestContent;
use crate::raw::{RawExchange, RawHttpResponse};
use crate::s3::{CallFailure, full_body};
use crate::server::ServerSetup;

const MIB: usize = 1 << 20;
/// Node through which all objects are written, which owns their segments.
const WRITER: usize = 3;
/// Nodes through which the object is read. The leader of the system group is killed meanwhile.
const READERS: [usize; 2] = [2, WRITER];
/// Object that is read: more than all buffers on the way, and so many extents that their list has pages.
const READ: TestContent = TestContent { id: 5_001, length: 96 * MIB };
/// Objects that are not read. They are deleted at different times, and their files show what was freed.
const FREED: [(&str, TestContent); 2] = [
    ("freed-before", TestContent { id: 5_002, length: 66 * MIB }),
    ("freed-after", TestContent { id: 5_003, length: 66 * MIB }),
];
/// Longest time until the rest of a response arrives. It is reached only if something is broken.
const END_MAX: Duration = Duration::from_secs(60);

/// Rate of a read that lasts a quarter of an hour, in bytes per second.
const TRICKLE: usize = 108 << 10;
/// Shortest time of such a read. The last megabytes are in buffers of the kernel when it ends for the server.
const TRICKLE_MIN: Duration = Duration::from_mins(15);
/// Longest time until a third of such a read has passed, and until it ends.
const TRICKLE_MAX: Duration = Duration::from_mins(20);

/// Settings for many segments that are soon removed without references.
fn small_segments(setup: ServerSetup) -> ServerSetup {
    setup.with("hot.segment_bytes", "4MiB").with("hot.compact_interval", "100ms")
}

/// The same, for readers that pause.
fn with_patience(setup: ServerSetup) -> ServerSetup {
    small_segments(setup).with("limits.body_timeout", "10m")
}

#[test]
fn a_slow_read_is_whole_although_its_object_is_overwritten_deleted_and_freed_elsewhere() {
    let mut cluster = TestCluster::three_with(with_patience);
    // No copy of another segment is made from here on.
    until_copied(&cluster, &STORAGE);
    let read_files = put_sealed(&mut cluster, "read", READ);
    let [freed_before, freed_after] = FREED.map(|(key, content)| put_sealed(&mut cluster, key, content));
    let slow: Vec<SlowRead> = READERS.into_iter().map(|id| SlowRead::begin(&cluster, id)).collect();

    let client = cluster.client(WRITER);
    cluster.block_on(async {
        client.put(BUCKET, "read", full_body("overwritten")).await.expect("stored");
        let read = cluster.client(READERS[0]).get(BUCKET, "read").await.expect("read");
        assert_eq!(read.body, "overwritten");
        client.delete(BUCKET, "read").await.expect("deleted");
        client.delete(BUCKET, FREED[0].0).await.expect("deleted");
    });
    until_removed(&cluster, &freed_before, "the first deleted object");

    assert!(cluster.groups_led_by(FIRST).contains(&SYSTEM_GROUP), "the first node frees bodies");
    cluster.kill(FIRST);
    cluster.until_led();
    let deleted = async || client.delete(BUCKET, FREED[1].0).await;
    cluster.block_on(until_served("a DELETE without the first node", deleted));
    cluster.start(FIRST);
    cluster.until_settled();
    until_removed(&cluster, &freed_after, "the second deleted object");

    cluster.block_on(async {
        for read in slow {
            read.end().await;
        }
        let read = client.get(BUCKET, "read").await;
        assert!(read.as_ref().is_err_and(CallFailure::is_not_found), "{read:?}");
    });
    until_removed(&cluster, &read_files, "the object whose reads have ended");
}

#[test]
#[ignore = "takes a quarter of an hour; make deep runs it"]
fn a_read_of_a_quarter_of_an_hour_is_whole_although_its_object_is_gone() {
    let mut cluster = TestCluster::three_with(small_segments);
    until_copied(&cluster, &STORAGE);
    let read_files = put_sealed(&mut cluster, "read", READ);
    let begun = Instant::now();
    let reads: Vec<TrickledRead> =
        READERS.into_iter().map(|id| SlowRead::begin(&cluster, id).trickle(&cluster)).collect();
    let client = cluster.client(WRITER);
    cluster.block_on(async {
        client.put(BUCKET, "read", full_body("overwritten")).await.expect("stored");
        client.delete(BUCKET, "read").await.expect("deleted");
    });

    reads.iter().for_each(|read| read.until_read(READ.length / 3));
    assert!(cluster.groups_led_by(FIRST).contains(&SYSTEM_GROUP), "the first node frees bodies");
    cluster.kill(FIRST);
    cluster.until_led();
    cluster.start(FIRST);
    cluster.until_settled();

    reads.iter().for_each(|read| read.until_read(READ.length / 3 * 2));
    let led = cluster.groups_led_by(FIRST);
    assert!(led.contains(&OBJECT_GROUP), "it leads the group of the object: {led:?}");
    // It hands its leaderships over.
    cluster.restart(&[FIRST]);
    cluster.until_settled();
    let stored: BTreeSet<String> = segment_files(&cluster, WRITER).into_keys().collect();
    assert!(read_files.is_subset(&stored), "the bytes that are read are kept");
    for read in reads {
        read.end(&cluster);
    }
    assert!(begun.elapsed() >= TRICKLE_MIN, "{:?}", begun.elapsed());
    until_removed(&cluster, &read_files, "the object whose reads have ended");
}

/// Puts an object and seals its segments. Returns the names of their files.
fn put_sealed(cluster: &mut TestCluster, key: &str, content: TestContent) -> BTreeSet<String> {
    let before = segment_files(cluster, WRITER);
    let client = cluster.client(WRITER);
    cluster.block_on(client.put(BUCKET, key, full_body(content.bytes()))).expect("stored");
    cluster.restart(&[WRITER]);
    cluster.until_settled();
    let names = segment_files(cluster, WRITER).into_keys();
    let names: BTreeSet<String> = names.filter(|name| !before.contains_key(name)).collect();
    assert!(!names.is_empty(), "{key} has segments");
    names
}

/// Waits until no storage node has any of these files.
fn until_removed(cluster: &TestCluster, names: &BTreeSet<String>, what: &str) {
    for id in STORAGE {
        wait_at_most(MINUTELY_MAX, &format!("node {id} has removed the files of {what}"), || {
            segment_files(cluster, id).keys().all(|name| !names.contains(name))
        });
    }
}

/// A GET whose first bytes were read.
struct SlowRead {
    id: usize,
    exchange: RawExchange,
    begun: RawHttpResponse,
}

impl SlowRead {
    fn begin(cluster: &TestCluster, id: usize) -> Self {
        let (client, addr) = (cluster.client(id), cluster.process(id).s3);
        cluster.block_on(async {
            let target = format!("/{BUCKET}/read");
            let begun = RawExchange::begin(&client, addr, Method::GET, &target, 0).await;
            let mut exchange = begun.expect("connected");
            let begun = exchange.answer().await.expect("begun");
            assert_eq!((begun.status, node_of_head(&begun.head)), (200, Some(id)));
            Self { id, exchange, begun }
        })
    }

    /// Reads the rest slowly, in the background.
    fn trickle(mut self, cluster: &TestCluster) -> TrickledRead {
        let (id, progress) = (self.id, Arc::new(AtomicUsize::new(0)));
        let read_so_far = Arc::clone(&progress);
        let body = cluster
            .runtime()
            .spawn(async move { self.exchange.read_rest_slowly(&self.begun, TRICKLE, &read_so_far).await });
        TrickledRead { id, progress, body }
    }

    /// Reads the rest, and asserts that every byte is that of the object.
    async fn end(mut self) {
        let rest = timeout(END_MAX, self.exchange.read_rest(&self.begun)).await;
        let body = rest.expect("it does not hang").expect("it does not break off");
        assert_eq!(READ.difference(&body), None, "through node {}", self.id);
    }
}

/// A GET whose body is read slowly, without a pause.
struct TrickledRead {
    id: usize,
    /// Bytes read so far.
    progress: Arc<AtomicUsize>,
    body: JoinHandle<std::io::Result<Vec<u8>>>,
}

impl TrickledRead {
    /// Waits until this many bytes are read.
    fn until_read(&self, bytes: usize) {
        wait_at_most(TRICKLE_MAX, &format!("{bytes} bytes are read through node {}", self.id), || {
            assert!(!self.body.is_finished(), "the read through node {} breaks off", self.id);
            self.progress.load(Ordering::Relaxed) >= bytes
        });
    }

    /// Waits for the end, and asserts that every byte is that of the object.
    fn end(self, cluster: &TestCluster) {
        let ended = cluster.block_on(async { timeout(TRICKLE_MAX, self.body).await });
        let body = ended.expect("it does not hang").expect("the task does not panic");
        let body = body.expect("it does not break off");
        assert_eq!(READ.difference(&body), None, "through node {}", self.id);
    }
}
