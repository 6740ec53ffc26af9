//! Two of three voters are down: requests are refused, the probe and the status name the reason, and the node
//! that is left stops when it is asked to. It serves again when one of the others returns.

use std::time::Duration;

use http::Method;
use mlgw_common::time::{Instant, timeout};

use super::testbed::{
    BUCKET, FIRST, STORAGE, TestCluster, assert_reads, keys_before, node_of_head, put, wait_until,
};
use crate::raw::RawExchange;
use crate::s3::{CallFailure, full_body};

/// Longest time until a request is refused: a barrier of two seconds, and the request itself.
const REFUSAL_MAX: Duration = Duration::from_secs(4);
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
        (Method::PUT, format!("/{BUCKET}/refused")),
        (Method::GET, format!("/{BUCKET}/with-majority")),
        (Method::GET, format!("/{BUCKET}?list-type=2")),
        (Method::DELETE, format!("/{BUCKET}/with-majority")),
    ] {
        let begun = Instant::now();
        let call = client.call(method.clone(), &target, &[], full_body(""));
        let ended = cluster.block_on(async { timeout(END_MAX, call).await });
        let failure = ended.unwrap_or_else(|_| panic!("{method} {target} hangs"));
        let elapsed = begun.elapsed();
        let Err(CallFailure::Refused { status, body }) = failure else {
            panic!("{method} {target} through node {left}: {failure:?}")
        };
        assert_eq!(status, 503, "{method} {target}: {body}");
        assert!(elapsed < REFUSAL_MAX, "{method} {target} took {elapsed:?}");
        assert!(body.contains("<Reason>No"), "{method} {target}: {body}");
    }
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
