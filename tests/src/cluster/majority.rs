//! Two of three voters are down: requests are refused, the probe and the status name the reason, and the node
//! that is left stops when it is asked to. It serves again when one of the others returns, also if it was
//! started while they were down. If the configuration allows it, reads are answered meanwhile, or until a
//! lease of the node ends.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Method;
use mlgw_common::time::{Instant, timeout};

use super::testbed::{
    BUCKET, FIRST, STORAGE, TestCluster, assert_reads, keys_before, node_of_head, put, wait_until,
};
use crate::raw::RawExchange;
use crate::s3::{CallFailure, full_body};
use crate::server::{ServerSetup, get_text};

/// Longest time until a request is answered, unless the machine is loaded.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Tries to be answered in that time: on a loaded machine some take longer. If the node itself waits for
/// longer, all do.
const ANSWER_TRIES: usize = 20;
/// Tries to read within a lease: on a loaded machine it may be over before the read.
const LEASE_TRIES: usize = 8;
/// Header of reads that no majority has confirmed.
const STALE: &str = "x-mlgw-stale";
/// Longest time until a request ends. It is reached only if something is broken.
const END_MAX: Duration = Duration::from_secs(30);

#[test]
fn without_a_majority_requests_are_refused_and_the_node_that_is_left_stops_and_returns() {
    let mut cluster = TestCluster::three();
    let client = cluster.client(FIRST);
    cluster.block_on(async { put(&client, "with-majority").await.expect("stored") });
    for left in [FIRST, 3] {
        one_node_is_left(&mut cluster, left);
    }
}

/// Kills all nodes but one, twice: another node returns first while it runs, and then after it stopped.
fn one_node_is_left(cluster: &mut TestCluster, left: usize) {
    let others: Vec<usize> = STORAGE.into_iter().filter(|id| *id != left).collect();
    let (second, third) = (others[0], others[1]);
    cluster.kill(second);
    cluster.kill(third);
    everything_is_refused(cluster, left);
    refusals_name_their_node(cluster, left);
    the_node_names_the_reason(cluster, left);

    cluster.start(second);
    for id in [left, second] {
        let client = cluster.client(id);
        wait_until(&format!("node {id} serves with two of three voters"), || {
            cluster.block_on(async { put(&client, "with-two").await.is_ok() })
        });
    }
    everything_is_there(cluster, left);
    everything_is_there(cluster, second);

    cluster.kill(second);
    everything_is_refused(cluster, left);
    // A stop does not wait for the others: it exits with 0.
    cluster.stop(left);
    cluster.spawn(left);
    cluster.spawn(third);
    cluster.until_ready(left);
    cluster.until_ready(third);
    everything_is_there(cluster, left);
    everything_is_there(cluster, third);
    cluster.start(second);
    cluster.until_settled();
}

fn everything_is_refused(cluster: &TestCluster, left: usize) {
    let client = cluster.client(left);
    for (method, target) in [
        // Not the PUT: it would be sent, and wait, if barriers passed less than 20 ms ago.
        (Method::GET, format!("/{BUCKET}/with-majority")),
        (Method::PUT, format!("/{BUCKET}/refused")),
        (Method::GET, format!("/{BUCKET}?list-type=2")),
        (Method::GET, "/".to_owned()),
        (Method::POST, format!("/{BUCKET}/refused?uploads")),
        (Method::DELETE, format!("/{BUCKET}/with-majority")),
    ] {
        assert_in_time(&format!("{method} {target}"), || {
            let call = client.call(method.clone(), &target, &[], full_body(""));
            let ended = cluster.block_on(async { timeout(END_MAX, call).await });
            let failure = ended.unwrap_or_else(|_| panic!("{method} {target} hangs"));
            let Err(CallFailure::Refused { status, body }) = failure else {
                panic!("{method} {target} through node {left}: {failure:?}")
            };
            assert_eq!(status, 503, "{method} {target}: {body}");
            assert!(body.contains("<Reason>No"), "{method} {target}: {body}");
        });
    }
}

/// Sends requests by `call` until one is answered in time.
fn assert_in_time(what: &str, call: impl Fn()) {
    let is_in_time = (0..ANSWER_TRIES).any(|_| {
        let begun = Instant::now();
        call();
        begun.elapsed() < ANSWER_MAX
    });
    assert!(is_in_time, "{what} is never answered in {ANSWER_MAX:?}");
}

/// Asserts that a refusal has the header with the node, also that of a bucket which may be a new one: a node
/// that does not serve remote-backed buckets refuses it before it authenticates the request.
fn refusals_name_their_node(cluster: &TestCluster, left: usize) {
    let (client, addr) = (cluster.client(left), cluster.process(left).s3);
    for target in [format!("/{BUCKET}/with-majority"), "/unknown-bucket/key".to_owned()] {
        let answered = cluster.block_on(async {
            let begun = RawExchange::begin(&client, addr, Method::GET, &target, 0).await;
            timeout(END_MAX, begun.expect("connected").answer()).await
        });
        let answer = answered.expect("it does not hang").expect("answered");
        assert_eq!((answer.status, node_of_head(&answer.head)), (503, Some(left)), "{target}");
        assert!(answer.head.to_ascii_lowercase().contains("\r\nretry-after: "), "{}", answer.head);
    }
}

fn the_node_names_the_reason(cluster: &TestCluster, left: usize) {
    let probe = cluster.process(left).admin_client();
    wait_until(&format!("node {left} is not ready, and names the voters"), || {
        let ready = cluster.block_on(probe.call(Method::GET, "/readyz", &[], full_body("")));
        let Err(CallFailure::Refused { status, body }) = ready else { return false };
        status == 503 && body.contains("voters")
    });
}

/// Settings of a node with a service manager.
fn notifying(setup: ServerSetup) -> ServerSetup {
    let socket = notify_socket(&setup.data_dir);
    setup.with_preparation(&format!("export NOTIFY_SOCKET='{}'", socket.display()))
}

/// The socket of the service manager of a node.
fn notify_socket(data_dir: &Path) -> PathBuf {
    data_dir.with_extension("notify")
}

#[test]
fn a_node_that_starts_alone_refuses_requests_until_another_one_returns() {
    const LEFT: usize = 2;
    let mut cluster = TestCluster::three_with(notifying);
    let client = cluster.client(LEFT);
    cluster.block_on(async { put(&client, "with-majority").await.expect("stored") });
    cluster.kill(FIRST);
    cluster.kill(3);
    cluster.kill(LEFT);

    let notified = UnixDatagram::bind(notify_socket(&cluster.member(LEFT).setup.data_dir)).expect("bound");
    cluster.spawn(LEFT);
    cluster.until_waiting(LEFT);
    // systemd would end a start that takes too long.
    let (mut state, limit) = ([0; 64], Duration::from_secs(30));
    notified.set_read_timeout(Some(limit)).expect("set");
    let length = notified.recv(&mut state).expect("a state");
    assert_eq!(&state[..length], b"READY=1");
    everything_is_refused(&cluster, LEFT);
    the_node_names_the_reason(&cluster, LEFT);
    let health = get_text(cluster.process(LEFT).admin, "/healthz").expect("an answer");
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    let findings = cluster.view(LEFT).findings;
    assert!(findings.iter().any(|finding| finding.what.starts_with("Node 3 ")), "{findings:?}");
    // The exit status counts the findings.
    let (output, _) = cluster.member(LEFT).setup.command(&["status"]);
    assert!(output.contains("does not answer"), "{output}");

    // It stops while it waits; then its files are checked offline.
    cluster.stop(LEFT);
    let data_dir = cluster.member(LEFT).setup.data_dir.to_str().expect("a test path").to_owned();
    let (output, status) = cluster.member(LEFT).setup.store(&["check", &data_dir]);
    assert_eq!(status, Some(0), "{output}");

    cluster.spawn(LEFT);
    cluster.until_waiting(LEFT);
    cluster.spawn(3);
    cluster.until_ready(3);
    cluster.until_ready(LEFT);
    for id in [LEFT, 3] {
        everything_is_there(&cluster, id);
    }
    cluster.start(FIRST);
    cluster.until_settled();
    everything_is_there(&cluster, FIRST);
}

#[test]
fn reads_without_a_majority_are_stale_and_writes_are_refused() {
    const LEFT: usize = 2;
    let mut cluster = TestCluster::three_with(|setup| setup.with("cluster.read_without_quorum", true));
    let client = cluster.client(LEFT);
    cluster.block_on(async { put(&client, "with-majority").await.expect("stored") });
    let read = cluster.block_on(client.get(BUCKET, "with-majority")).expect("read");
    assert_eq!(read.header(STALE), None);

    cluster.kill(FIRST);
    cluster.kill(3);
    for (method, target) in [
        (Method::GET, format!("/{BUCKET}/with-majority")),
        (Method::HEAD, format!("/{BUCKET}/with-majority")),
        (Method::GET, format!("/{BUCKET}?list-type=2")),
    ] {
        assert_in_time(&format!("{method} {target}"), || {
            let answer = cluster.block_on(client.call(method.clone(), &target, &[], full_body("")));
            let answer = answer.unwrap_or_else(|failure| panic!("{method} {target}: {failure:?}"));
            assert_eq!(answer.header(STALE), Some("true"), "{method} {target}");
        });
    }
    cluster.block_on(assert_reads(&client, "with-majority"));
    for (method, key) in
        [(Method::PUT, "refused"), (Method::DELETE, "with-majority"), (Method::GET, "not-found-here")]
    {
        let target = format!("/{BUCKET}/{key}");
        let refused = cluster.block_on(client.call(method.clone(), &target, &[], full_body("")));
        let refused = refused.as_ref().expect_err("refused");
        assert_eq!(refused.status(), Some(503), "{method} {key}: {refused:?}");
    }

    cluster.start(3);
    wait_until("reads are confirmed again", || {
        let read = cluster.block_on(client.get(BUCKET, "with-majority"));
        read.is_ok_and(|read| read.header(STALE).is_none())
    });
    everything_is_there(&cluster, LEFT);

    // A node that starts without a majority answers no reads.
    cluster.kill(3);
    cluster.kill(LEFT);
    cluster.spawn(LEFT);
    cluster.until_waiting(LEFT);
    everything_is_refused(&cluster, LEFT);
}

#[test]
fn a_leader_reads_by_lease_until_it_is_over() {
    let mut cluster = TestCluster::three_with(|setup| setup.with("cluster.lease_reads", true));
    let key = keys_before().next().expect("a key");
    let is_read = (0..LEASE_TRIES).any(|_| is_read_by_lease(&mut cluster, &key));
    assert!(is_read, "the first node never reads without a confirmation by another one");
}

/// Kills the other nodes, and returns true if the first node, which leads the group of the key, reads it once
/// more. Afterwards it must refuse the read.
fn is_read_by_lease(cluster: &mut TestCluster, key: &str) -> bool {
    let client = cluster.client(FIRST);
    cluster.kill(2);
    cluster.kill(3);
    let read = cluster.block_on(client.get(BUCKET, key));
    wait_until("a read is refused when the lease is over", || {
        let refused = cluster.block_on(client.get(BUCKET, key));
        refused.is_err_and(|failure| failure.status() == Some(503))
    });
    cluster.start(2);
    cluster.start(3);
    cluster.until_settled();
    read.is_ok()
}

fn everything_is_there(cluster: &TestCluster, id: usize) {
    let client = cluster.client(id);
    cluster.block_on(async {
        for key in keys_before().chain(["with-majority".to_owned()]) {
            assert_reads(&client, &key).await;
        }
        let refused = client.get(BUCKET, "refused").await;
        assert!(refused.as_ref().is_err_and(CallFailure::is_not_found), "{refused:?}");
    });
}
