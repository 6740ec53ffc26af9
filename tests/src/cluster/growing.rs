//! A server grows into a cluster: its objects are read through every node, a change through one node is seen
//! through every other one at once, every storage node serves requests itself, and each node gets its part in
//! the Raft groups.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use http::Method;
use serde_json::Value;

use super::testbed::{
    BUCKET, FIRST, GATEWAY, OBJECT_GROUP, SYSTEM_GROUP, TestCluster, assert_reads, assert_reads_before,
    content_of, keys_before, put, wait_until,
};
use super::view::NodeView;
use crate::content::TestContent;
use crate::raw::head_text;
use crate::s3::{CallFailure, S3TestClient, full_body};
use crate::server::ServerProcess;

const MIB: usize = 1 << 20;
const LARGE: TestContent = TestContent { id: 64, length: 64 * MIB + 7 };
const PARTS: [TestContent; 2] =
    [TestContent { id: 65, length: 5 * MIB }, TestContent { id: 66, length: 4321 }];
const BODY: &[u8] = b"sent after the interim response";
/// Longest wait for a byte of a response.
const RESPONSE_WAIT_MAX: Duration = Duration::from_secs(30);

/// The clients of all nodes, in turns: in each turn another node does the first step, and so on.
fn turns(clients: &[S3TestClient]) -> impl Iterator<Item = (usize, Vec<S3TestClient>)> {
    (0..clients.len()).map(move |turn| {
        let mut turned = clients.to_vec();
        turned.rotate_left(turn);
        (turn, turned)
    })
}

#[test]
fn a_server_grows_into_a_cluster_and_every_node_answers() {
    let cluster = TestCluster::whole();
    cluster.assert_all_serve();
    let clients = cluster.clients();
    assert_eq!(clients.len(), GATEWAY);
    cluster.block_on(async {
        for client in &clients {
            assert_reads_before(client).await;
            let listed = client.list(BUCKET, 5).await.expect("listed");
            assert!(listed.iter().map(|row| row.key.clone()).eq(keys_before()), "{listed:?}");
        }
        for (turn, nodes) in turns(&clients) {
            a_change_is_seen_everywhere(turn, &nodes).await;
            conditions_hold_across_nodes(turn, &nodes).await;
            an_upload_moves_between_nodes(turn, &nodes).await;
            a_copy_is_seen_everywhere(turn, &nodes).await;
            a_bucket_is_used_and_deleted_elsewhere(turn, &nodes).await;
        }
        a_large_body_passes_the_gateway(&clients).await;
        ranges_are_read_through_every_node(&clients).await;
    });
    for id in cluster.ids() {
        an_upload_awaits_its_interim_response(cluster.process(id), id);
    }
    for id in cluster.ids() {
        cluster.block_on(async {
            let read = cluster.client(id).get(BUCKET, &format!("awaited-{id}")).await.expect("stored");
            assert_eq!(read.body, BODY, "through node {id}");
        });
    }
}

async fn assert_absent(client: &S3TestClient, key: &str) {
    for found in [client.get(BUCKET, key).await, client.head(BUCKET, key).await] {
        assert!(found.as_ref().is_err_and(CallFailure::is_not_found), "{key}: {found:?}");
    }
}

async fn assert_body(client: &S3TestClient, key: &str, content: TestContent) {
    let read = client.get(BUCKET, key).await.unwrap_or_else(|failure| panic!("{key}: {failure:?}"));
    assert_eq!(content.difference(&read.body), None, "{key}");
}

async fn a_change_is_seen_everywhere(turn: usize, nodes: &[S3TestClient]) {
    let key = format!("seen-{turn}");
    put(&nodes[0], &key).await.expect("stored");
    for node in nodes {
        assert_reads(node, &key).await;
    }
    let next = TestContent { id: 1000 + turn as u64, length: 7_000 };
    nodes[1].put(BUCKET, &key, full_body(next.bytes())).await.expect("replaced");
    for node in nodes {
        assert_body(node, &key, next).await;
    }
    let listed = nodes[2].list(BUCKET, 1000).await.expect("listed");
    let row = listed.iter().find(|row| row.key == key).expect("it is listed");
    assert_eq!((row.etag.clone(), row.size), (next.etag(), next.length as u64));
    nodes[3].delete(BUCKET, &key).await.expect("deleted");
    for node in nodes {
        assert_absent(node, &key).await;
        let listed = node.list(BUCKET, 1000).await.expect("listed");
        assert!(listed.iter().all(|row| row.key != key), "{listed:?}");
    }
}

/// Puts an object if a condition holds. Returns its ETag, or the status of the refusal.
async fn put_if(
    node: &S3TestClient,
    key: &str,
    condition: (&'static str, &str),
    body: &'static str,
) -> Result<String, Option<u16>> {
    let headers = [(condition.0, condition.1.to_owned())];
    let put = node.call(Method::PUT, &format!("/{BUCKET}/{key}"), &headers, full_body(body)).await;
    put.map(|answer| answer.etag()).map_err(|failure| failure.status())
}

async fn conditions_hold_across_nodes(turn: usize, nodes: &[S3TestClient]) {
    let key = format!("condition-{turn}");
    let first = put_if(&nodes[0], &key, ("if-none-match", "*"), "first").await.expect("stored");
    assert_eq!(put_if(&nodes[1], &key, ("if-none-match", "*"), "second").await, Err(Some(412)));
    let match_first = format!("\"{first}\"");
    let second = put_if(&nodes[2], &key, ("if-match", &match_first), "second").await.expect("replaced");
    assert_eq!(put_if(&nodes[3], &key, ("if-match", &match_first), "third").await, Err(Some(412)));
    for node in nodes {
        let read = node.get(BUCKET, &key).await.expect("read");
        assert_eq!((read.etag(), &read.body[..]), (second.clone(), &b"second"[..]));
    }
}

async fn an_upload_moves_between_nodes(turn: usize, nodes: &[S3TestClient]) {
    let key = format!("parts-{turn}");
    let upload = nodes[0].create_upload(BUCKET, &key).await.expect("begun");
    assert!(nodes[1].list_uploads(BUCKET).await.expect("listed").contains(&upload));
    let mut parts = Vec::new();
    for (number, content) in (1_u32..).zip(PARTS) {
        let body = full_body(content.bytes());
        let node = &nodes[usize::try_from(number).expect("small")];
        parts.push((number, node.put_part(BUCKET, &key, &upload, number, body).await.expect("stored")));
    }
    assert_eq!(nodes[0].list_parts(BUCKET, &key, &upload).await.expect("listed").len(), PARTS.len());
    let etag = nodes[3].complete(BUCKET, &key, &upload, &parts).await.expect("complete");
    assert_eq!(etag, TestContent::etag_of_parts(&PARTS));
    let mut whole = Vec::new();
    for part in PARTS {
        whole.extend_from_slice(&part.bytes());
    }
    for node in nodes {
        let read = node.get(BUCKET, &key).await.expect("read");
        assert!(read.body == whole, "{} bytes", read.body.len());
    }
    let aborted = nodes[1].create_upload(BUCKET, &key).await.expect("begun");
    nodes[2].abort(BUCKET, &key, &aborted).await.expect("aborted");
    assert!(!nodes[3].list_uploads(BUCKET).await.expect("listed").contains(&aborted));
}

async fn a_copy_is_seen_everywhere(turn: usize, nodes: &[S3TestClient]) {
    let (from, to) = (format!("source-{turn}"), format!("copy-{turn}"));
    put(&nodes[0], &from).await.expect("stored");
    nodes[1].copy(BUCKET, &from, &to).await.expect("copied");
    for node in nodes {
        assert_body(node, &to, content_of(&from)).await;
    }
}

async fn a_bucket_is_used_and_deleted_elsewhere(turn: usize, nodes: &[S3TestClient]) {
    let bucket = format!("{BUCKET}-{turn}");
    nodes[0].create_bucket(&bucket).await.expect("made");
    for (number, node) in nodes.iter().enumerate() {
        node.put(&bucket, &format!("{number}"), full_body("body")).await.expect("stored");
    }
    for node in nodes {
        assert_eq!(node.list(&bucket, 1000).await.expect("listed").len(), nodes.len());
    }
    for (number, node) in nodes.iter().rev().enumerate() {
        node.delete(&bucket, &format!("{number}")).await.expect("deleted");
    }
    nodes[2].call(Method::DELETE, &format!("/{bucket}"), &[], full_body("")).await.expect("deleted");
    for node in nodes {
        let listed = node.list(&bucket, 1000).await;
        assert!(listed.as_ref().is_err_and(CallFailure::is_not_found), "{listed:?}");
    }
}

async fn a_large_body_passes_the_gateway(clients: &[S3TestClient]) {
    let gateway = &clients[GATEWAY - 1];
    let etag = gateway.put(BUCKET, "large", full_body(LARGE.bytes())).await.expect("stored");
    assert_eq!(etag, LARGE.etag());
    for client in clients {
        assert_body(client, "large", LARGE).await;
    }
}

async fn ranges_are_read_through_every_node(clients: &[S3TestClient]) {
    let length = LARGE.length as u64;
    let bytes = LARGE.bytes();
    for client in clients {
        for (first, last) in [(0, 0), (1, 70_000), (9_999_999, 20_000_000), (length - 5, length - 1)] {
            let read = client.get_range(BUCKET, "large", (first, last)).await.expect("read");
            let expected = format!("bytes {first}-{last}/{length}");
            assert_eq!(read.header("content-range"), Some(expected.as_str()));
            let at = |offset: u64| usize::try_from(offset).expect("fits");
            assert!(read.body == bytes.slice(at(first)..=at(last)), "{expected}");
        }
        let beyond = client.get_range(BUCKET, "large", (length, length + 9)).await;
        assert_eq!(beyond.expect_err("refused").status(), Some(416));
    }
}

/// Puts an object and waits for `100 Continue`, and is refused without it in a bucket that does not exist.
fn an_upload_awaits_its_interim_response(server: &ServerProcess, id: usize) {
    assert_eq!(put_in_two_steps(server, &format!("/{BUCKET}/awaited-{id}")), [100, 200], "node {id}");
    assert_eq!(put_in_two_steps(server, "/no-such-bucket-here/key"), [404], "node {id}");
}

/// Sends the head of a PUT, and its body after an interim response. Returns the status of each response.
fn put_in_two_steps(server: &ServerProcess, path: &str) -> Vec<u16> {
    let headers = [("content-length", BODY.len().to_string()), ("expect", "100-continue".to_owned())];
    let request = server.client().request(Method::PUT, path, &headers, full_body(""));
    let mut stream = TcpStream::connect(server.s3).expect("connected");
    stream.set_read_timeout(Some(RESPONSE_WAIT_MAX)).expect("set");
    stream.write_all(head_text(&request).as_bytes()).expect("sent");
    let mut statuses = vec![read_status(&mut stream)];
    if statuses == [100] {
        stream.write_all(BODY).expect("sent");
        statuses.push(read_status(&mut stream));
    }
    statuses
}

/// Reads the head of a response and returns its status.
fn read_status(stream: &mut TcpStream) -> u16 {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a response");
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head);
    head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status")
}

/// Voters and learners of a group, from its leader.
fn parts_of(cluster: &TestCluster, group: u32) -> (BTreeSet<usize>, BTreeSet<usize>) {
    let found = cluster.group(group);
    let found = found.map(|found| (found.with_part("voter"), found.with_part("learner")));
    let (voters, learners) = found.unwrap_or_default();
    assert!([0, 1, 3].contains(&voters.len()), "the voters of group {group} are {voters:?}");
    (voters, learners)
}

fn until_parts(cluster: &TestCluster, group: u32, voters: &[usize], learners: &[usize]) {
    let expected: (BTreeSet<usize>, BTreeSet<usize>) =
        (voters.iter().copied().collect(), learners.iter().copied().collect());
    wait_until(&format!("group {group} has the voters {voters:?} and the learners {learners:?}"), || {
        parts_of(cluster, group) == expected
    });
}

#[test]
fn three_storage_nodes_vote_in_both_groups_and_a_gateway_learns_the_system_group_alone() {
    let mut cluster = TestCluster::first();
    for (joined, voters, learners) in [(1, &[1][..], &[][..]), (2, &[1], &[2]), (3, &[1, 2, 3], &[])] {
        if joined > 1 {
            cluster.join("storage");
        }
        for group in [SYSTEM_GROUP, OBJECT_GROUP] {
            until_parts(&cluster, group, voters, learners);
        }
    }
    cluster.join("gateway");
    until_parts(&cluster, SYSTEM_GROUP, &[1, 2, 3], &[GATEWAY]);
    until_parts(&cluster, OBJECT_GROUP, &[1, 2, 3], &[]);
    for id in cluster.ids() {
        a_node_describes_all_nodes(&cluster, id);
        the_command_finds_nothing_wrong(&cluster, id);
    }
}

fn a_node_describes_all_nodes(cluster: &TestCluster, own: usize) {
    wait_until(&format!("node {own} reaches all others, which are active"), || {
        let view = cluster.view(own);
        let is_active = |node: &NodeView| node.state == "active" && node.reachable == Some(true);
        view.nodes.iter().filter(|node| !node.own).all(is_active)
    });
    let view = cluster.view(own);
    let ids: Vec<usize> = view.nodes.iter().map(|node| node.id).collect();
    assert_eq!(ids, cluster.ids());
    for node in &view.nodes {
        let role = if node.id == GATEWAY { "gateway" } else { "storage" };
        assert_eq!(
            (node.role.as_str(), node.own, node.duty),
            (role, node.id == own, node.id == FIRST),
            "{node:?}"
        );
        assert_eq!(node.address, cluster.member(node.id).address.to_string());
        // The first node has joined nothing.
        assert!(node.id == FIRST || node.name == format!("node-{}", node.id), "{node:?}");
    }
}

fn the_command_finds_nothing_wrong(cluster: &TestCluster, own: usize) {
    let mut document = Value::Null;
    wait_until(&format!("`mlgw cluster status` finds nothing wrong on node {own}"), || {
        let (output, status) = cluster.member(own).setup.command(&["cluster", "status", "--output", "json"]);
        document = serde_json::from_str(&output).unwrap_or_default();
        status == Some(0)
    });
    assert_eq!(document["node"].as_u64(), Some(own as u64), "{document:#}");
    assert_eq!(document["nodes"].as_array().map(Vec::len), Some(cluster.ids().len()), "{document:#}");
}
