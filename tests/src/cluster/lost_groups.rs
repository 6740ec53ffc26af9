//! Two of five storage nodes are lost: groups that have a majority are served through every node that is
//! left, and requests for the others are refused with a reason, within two seconds. A node that is restarted
//! meanwhile serves again. When one of the lost nodes returns, everything is served.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::Method;
use mlgw_common::time::{Instant, timeout};

use super::testbed::{FIRST, SPREAD, SYSTEM_GROUP, TestCluster, wait_at_most, wait_until};
use crate::s3::{CallFailure, S3TestClient, full_body};

/// All storage nodes.
const FIVE: [usize; 5] = [FIRST, 2, 3, 4, 5];
/// Voters of a group.
const VOTERS: usize = 3;
/// Longest time until a request is answered, unless the machine is loaded.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Tries to be answered in that time: on a loaded machine some take longer.
const ANSWER_TRIES: usize = 20;
/// Longest time until a request ends. It is reached only if something is broken.
const END_MAX: Duration = Duration::from_secs(30);
/// Longest wait until no group moves any more.
const MOVES_MAX: Duration = Duration::from_secs(240);

/// The bucket of a group: they are made in the order of the groups.
fn bucket_of(group: u32) -> &'static str {
    SPREAD[usize::try_from(group).expect("a small number") - 1]
}

/// Makes a cluster of five storage nodes with a bucket in each object group, and spreads the groups over
/// them.
fn five() -> TestCluster {
    let mut cluster = TestCluster::three();
    cluster.create_spread_buckets();
    let client = cluster.client(FIRST);
    cluster.block_on(async {
        for bucket in SPREAD {
            store(&client, bucket, "before").await.expect("stored");
        }
    });
    for id in [4, 5] {
        cluster.join("storage");
        cluster.until_active(id);
    }
    wait_at_most(MOVES_MAX, "there is nothing to move any more", || {
        let (output, _) = cluster.member(FIRST).setup.command(&["cluster", "rebalance"]);
        output.contains("othing to move")
    });
    wait_at_most(MOVES_MAX, "the voters of each group are known", || {
        let voters = voters(&cluster);
        let is_complete = |group: u32, count| voters.get(&group).is_some_and(|of| of.len() == count);
        is_complete(SYSTEM_GROUP, FIVE.len()) && object_groups().all(|group| is_complete(group, VOTERS))
    });
    cluster
}

/// Groups with a bucket of the test.
fn object_groups() -> impl Iterator<Item = u32> {
    (1..).take(SPREAD.len())
}

/// Voters of each group whose leader runs.
fn voters(cluster: &TestCluster) -> BTreeMap<u32, BTreeSet<usize>> {
    let of = |group| Some((group, cluster.group(group)?.with_part("voter")));
    std::iter::once(SYSTEM_GROUP).chain(object_groups()).filter_map(of).collect()
}

/// The nodes that are lost, and the groups without a majority then.
struct Loss {
    nodes: [usize; 2],
    groups: BTreeSet<u32>,
}

/// Chooses nodes whose loss takes the majority from some object groups and not from others. The first node is
/// kept, if that is possible.
fn choose_loss(voters: &BTreeMap<u32, BTreeSet<usize>>) -> Loss {
    let pairs = FIVE.into_iter().rev().flat_map(|high| (FIRST..high).map(move |low| [low, high]));
    let mut pairs: Vec<[usize; 2]> = pairs.collect();
    pairs.sort_by_key(|nodes| nodes.contains(&FIRST));
    let loss = |nodes: [usize; 2]| {
        let is_lost = |group: &u32| nodes.iter().all(|node| voters[group].contains(node));
        Loss { nodes, groups: object_groups().filter(is_lost).collect() }
    };
    let is_partial = |loss: &Loss| (1..SPREAD.len()).contains(&loss.groups.len());
    pairs.into_iter().map(loss).find(is_partial).expect("two nodes share some groups and not all")
}

async fn store(client: &S3TestClient, bucket: &str, key: &str) -> Result<(), CallFailure> {
    client.call(Method::PUT, &format!("/{bucket}/{key}"), &[], full_body(key.to_owned())).await.map(drop)
}

fn is_served(cluster: &TestCluster, id: usize, bucket: &str) -> bool {
    let (client, key) = (cluster.client(id), format!("through-{id}"));
    cluster.block_on(async {
        let is_stored = store(&client, bucket, &key).await.is_ok();
        let list = client.call(Method::GET, &format!("/{bucket}?list-type=2"), &[], full_body("")).await;
        is_stored && list.is_ok() && client.get(bucket, "before").await.is_ok()
    })
}

fn is_ready(cluster: &TestCluster, id: usize) -> bool {
    let probe = cluster.process(id).admin_client();
    cluster.block_on(probe.call(Method::GET, "/readyz", &[], full_body(""))).is_ok()
}

/// Asserts that requests for a bucket are refused in time through a node.
fn assert_refused(cluster: &TestCluster, id: usize, bucket: &str) {
    let client = cluster.client(id);
    for (method, target) in [
        (Method::PUT, format!("/{bucket}/refused")),
        (Method::GET, format!("/{bucket}/before")),
        (Method::GET, format!("/{bucket}?list-type=2")),
        (Method::DELETE, format!("/{bucket}/before")),
    ] {
        let is_in_time = (0..ANSWER_TRIES).any(|_| {
            let begun = Instant::now();
            let call = client.call(method.clone(), &target, &[], full_body(""));
            let ended = cluster.block_on(async { timeout(END_MAX, call).await });
            let answer = ended.unwrap_or_else(|_| panic!("{method} {target} through node {id} hangs"));
            let Err(CallFailure::Refused { status, body }) = answer else {
                panic!("{method} {target} through node {id}: {answer:?}")
            };
            assert_eq!(status, 503, "{method} {target} through node {id}: {body}");
            assert!(body.contains("<Reason>"), "{method} {target} through node {id}: {body}");
            begun.elapsed() < ANSWER_MAX
        });
        assert!(is_in_time, "{method} {target} through node {id} is never answered in {ANSWER_MAX:?}");
    }
}

/// Asserts what each node that is left answers.
fn only_lost_groups_are_refused(cluster: &TestCluster, loss: &Loss) {
    for id in cluster.running() {
        for group in object_groups().filter(|group| !loss.groups.contains(group)) {
            let what = format!("group {group} is served through node {id}");
            wait_until(&what, || is_served(cluster, id, bucket_of(group)));
        }
        for group in &loss.groups {
            assert_refused(cluster, id, bucket_of(*group));
        }
        wait_until(&format!("the status of node {id} names the groups"), || {
            let findings = cluster.view(id).findings;
            loss.groups.iter().all(|group| {
                let named = format!("roup {group} of the catalogue");
                findings.iter().any(|finding| finding.what.contains(&named))
            })
        });
    }
}

#[test]
fn two_lost_nodes_of_five_take_along_the_groups_in_which_both_vote_and_no_other() {
    let mut cluster = five();
    let voters = voters(&cluster);
    let loss = choose_loss(&voters);
    loss.nodes.into_iter().for_each(|id| cluster.kill(id));
    only_lost_groups_are_refused(&cluster, &loss);
    copies_between_served_groups_are_made(&cluster, &loss);

    // Nodes that vote in a group with a majority are ready, also after a restart.
    let votes = |id: usize, is_lost: bool| {
        let of_kind = |(group, of): (&u32, &BTreeSet<usize>)| {
            *group != SYSTEM_GROUP && loss.groups.contains(group) == is_lost && of.contains(&id)
        };
        voters.iter().any(of_kind)
    };
    let ready: Vec<usize> = cluster.running().into_iter().filter(|id| votes(*id, false)).collect();
    for id in &ready {
        wait_until(&format!("node {id} is ready"), || is_ready(&cluster, *id));
    }
    let restarted = ready.iter().copied().max_by_key(|id| votes(*id, true)).expect("a group has a majority");
    cluster.kill(restarted);
    cluster.start(restarted);
    only_lost_groups_are_refused(&cluster, &loss);

    cluster.start(loss.nodes[0]);
    for id in cluster.running() {
        for bucket in SPREAD {
            wait_until(&format!("{bucket} is served through node {id}"), || is_served(&cluster, id, bucket));
        }
    }
    cluster.start(loss.nodes[1]);
}

/// Asserts that a copy needs no other groups than those of both keys.
fn copies_between_served_groups_are_made(cluster: &TestCluster, loss: &Loss) {
    let served: Vec<&str> =
        object_groups().filter(|group| !loss.groups.contains(group)).map(bucket_of).collect();
    let (from, to) = (served[0], served[served.len() - 1]);
    for id in cluster.running() {
        let (client, source) = (cluster.client(id), [("x-amz-copy-source", format!("{from}/before"))]);
        wait_until(&format!("a copy from {from} to {to} through node {id}"), || {
            let target = format!("/{to}/copy-{id}");
            cluster.block_on(client.call(Method::PUT, &target, &source, full_body(""))).is_ok()
        });
    }
}
