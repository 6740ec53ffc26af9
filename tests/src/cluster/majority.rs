//! Two of three voters are down: requests are refused, the probe and the status name the reason, and the node
//! that is left stops when it is asked to. It serves again when one of the others returns.

use std::time::Duration;

use http::Method;
use mlgw_common::time::{Instant, timeout};

use super::testbed::{BUCKET, STORE, TestCluster, assert_reads, keys_before, put, wait_until};
use crate::s3::{CallFailure, full_body};

/// Longest time until a request is refused: a barrier of two seconds, and the request itself.
const REFUSAL_MAX: Duration = Duration::from_secs(4);
/// Longest time until a request ends. It is reached only if something is broken.
const END_MAX: Duration = Duration::from_secs(30);

#[test]
fn without_a_majority_requests_are_refused_and_the_store_stops_and_returns() {
    let mut cluster = TestCluster::three();
    let client = cluster.client(STORE);
    cluster.block_on(async { put(&client, "with-majority").await.expect("stored") });
    cluster.kill(2);
    cluster.kill(3);
    everything_is_refused(&cluster);
    the_store_names_the_reason(&cluster);

    cluster.start(2);
    let client = cluster.client(STORE);
    wait_until("the store serves with two of three voters", || {
        cluster.block_on(async { put(&client, "with-two").await.is_ok() })
    });
    everything_is_there(&cluster, STORE);
    everything_is_there(&cluster, 2);

    cluster.kill(2);
    everything_is_refused(&cluster);
    // A stop does not wait for the others: it exits with 0.
    cluster.stop(STORE);
    cluster.spawn(STORE);
    cluster.spawn(3);
    cluster.until_ready(STORE);
    cluster.until_ready(3);
    everything_is_there(&cluster, STORE);
    everything_is_there(&cluster, 3);
}

fn everything_is_refused(cluster: &TestCluster) {
    let client = cluster.client(STORE);
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
            panic!("{method} {target}: {failure:?}")
        };
        assert_eq!(status, 503, "{method} {target}: {body}");
        assert!(elapsed < REFUSAL_MAX, "{method} {target} took {elapsed:?}");
        assert!(body.contains("<Reason>No"), "{method} {target}: {body}");
    }
}

fn the_store_names_the_reason(cluster: &TestCluster) {
    let probe = cluster.process(STORE).admin_client();
    wait_until("the store is not ready, and names the voters", || {
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
