//! A client sees no difference between a node that serves a request and one that forwards it.

use super::client::{TestAnswer, TestClient, signed};
use super::cluster::{BUCKET, ForwardingCluster, TestDomains, later};
use super::network::LinkState;
use aws_sigv4::http_request::SignableBody;
use http::request::Parts;
use mlgw_common::{Clock as _, ClockComparison, NodeId};
use mlgw_forwarding::route::RangeMembers;
use mlgw_forwarding::{MapEpoch, RouteTable};
use mlgw_testing::signer::{RequestToSign, head};
use mlgw_wire::operation::Operation;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Headers that differ between two answers to the same request. A request that the first node refuses was
/// served by no member.
const OWN_HEADERS: [&str; 4] = ["x-amz-request-id", "server-timing", "date", "x-mlgw-node"];

/// Returns what two answers to the same request have in common.
fn common(answer: &TestAnswer) -> (u16, Vec<(String, String)>, String) {
    let id = answer.header("x-amz-request-id").unwrap_or_default();
    let headers = answer.headers.iter().filter(|(name, _)| !OWN_HEADERS.contains(&name.as_str()));
    (answer.status, headers.cloned().collect(), answer.text().replace(id, "ID"))
}

const NO_BODY: &[u8] = b"";

fn presigned(target: &str) -> Parts {
    let expires = Some(Duration::from_secs(60));
    RequestToSign { target, expires, ..RequestToSign::default() }.sign().0
}

/// Requests with their bodies, in the order in which they are sent.
fn requests() -> Vec<(Parts, &'static [u8])> {
    let plain = |method: &str, target: &str, headers: &[(&str, &str)], body: &'static [u8]| {
        (signed(method, target, headers, body), body)
    };
    let unsigned = |method: &str, target: &str, headers: &[(&str, &str)]| {
        let host = [("host", "localhost:9000")];
        (head(method, target, &[&host[..], headers].concat()), NO_BODY)
    };
    let mut forged = signed("GET", "/data/a%20b", &[], b"");
    forged.uri = "/data/other".parse().unwrap();
    let tags = br#"<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>"#;
    let keys = br#"<Delete><Object><Key>empty</Key></Object></Delete>"#;
    vec![
        plain("PUT", "/data/a%20b", &[("x-amz-meta-name", "v"), ("content-type", "text/plain")], b"hello"),
        plain("PUT", "/data/empty", &[], b""),
        plain("GET", "/data/a%20b", &[], b""),
        plain("GET", "/data/empty", &[], b""),
        plain("HEAD", "/data/a%20b", &[], b""),
        plain("GET", "/data/a%20b", &[("range", "bytes=1-3")], b""),
        plain("GET", "/data/a%20b", &[("range", "bytes=7-")], b""),
        plain("GET", "/data/a%20b", &[("if-none-match", "\"5d41402abc4b2a76b9719d911017c592\"")], b""),
        plain("HEAD", "/data/a%20b", &[("if-none-match", "*")], b""),
        plain("GET", "/data/a%20b", &[("if-match", "\"other\"")], b""),
        plain("GET", "/data/missing", &[], b""),
        plain("HEAD", "/data/missing", &[], b""),
        plain("GET", "/missing/a", &[], b""),
        plain("GET", "/data?list-type=2&prefix=a", &[], b""),
        plain("GET", "/", &[], b""),
        plain("PUT", "/data/copy", &[("x-amz-copy-source", "/data/a%20b")], b""),
        plain("PUT", "/data/copy?tagging", &[], tags),
        plain("GET", "/data/copy?tagging", &[], b""),
        plain("POST", "/data?delete", &[("x-amz-checksum-crc32", "AAAAAA==")], keys),
        plain("PUT", "/data/refused", &[("x-amz-acl", "public-read")], b"hello"),
        plain("PUT", "/data/refused", &[("content-md5", "XUFAKrxLKna5cZ2REBfFkw==")], b"hello"),
        plain("GET", "/data?acl", &[], b""),
        plain("GET", "/data/%ff", &[], b""),
        plain("PUT", "/data", &[], b""),
        (presigned("/data/a%20b"), NO_BODY),
        (forged, NO_BODY),
        unsigned("GET", "/data/a%20b", &[]),
        unsigned("OPTIONS", "/data", &[("origin", "http://a"), ("access-control-request-method", "PUT")]),
        unsigned("GET", "/?Action=GetCallerIdentity", &[]),
        unsigned("GET", "//key", &[]),
        plain("DELETE", "/data/copy", &[], b""),
        // A body that no handler reads.
        plain("DELETE", "/data/copy", &[], b"abcde"),
    ]
}

#[tokio::test]
async fn the_answers_are_those_of_the_member() {
    let cluster = ForwardingCluster::open(1).await;
    let (direct, forwarding) = (cluster.listen_directly().await, cluster.listen().await);
    let mut last = TestClient::connect(forwarding.address).await;
    for (head, body) in requests() {
        let own = TestClient::connect(direct.address).await.request(&head, body).await;
        let forwarded = last.request(&head, body).await;
        let request = format!("{} {} {:?}", head.method, head.uri, head.headers);
        assert_eq!(common(&forwarded), common(&own), "{request}");
        assert!(forwarded.header("x-amz-request-id").is_some_and(|id| id.len() == 18), "{request}");
        assert!(forwarded.header("server-timing").is_some(), "{request}");
        if forwarded.header("connection") == Some("close") {
            assert!(last.has_ended().await);
            last = TestClient::connect(forwarding.address).await;
        }
    }
    assert_eq!(cluster.edge.metrics.inflight_requests(), 0);
    cluster.quiet().await;
}

#[tokio::test]
async fn both_nodes_count_a_request_under_its_operation_and_share_its_id() {
    let cluster = ForwardingCluster::open(1).await;
    let forwarding = cluster.listen().await;
    let mut client = TestClient::connect(forwarding.address).await;
    assert_eq!(client.call("PUT", "/data/k", b"hello").await.status, 200);
    let got = client.call("GET", "/data/k", b"").await;
    assert_eq!(got.body, b"hello");
    cluster.quiet().await;
    for metrics in [&cluster.edge.metrics, &cluster.member().gateway.metrics] {
        let totals = metrics.totals();
        let of = |operation| totals.iter().find(|(o, _)| *o == operation).map(|(_, totals)| *totals).unwrap();
        assert_eq!((of(Operation::PutObject).requests, of(Operation::PutObject).bytes_in), (1, 5));
        assert_eq!((of(Operation::GetObject).requests, of(Operation::GetObject).bytes_out), (1, 5));
    }
    let text = mlgw_telemetry::exposition::text(cluster.edge.metrics.families()).unwrap();
    assert!(text.contains("mlgw_forwarding_total{outcome=\"accepted\"} 2"), "{text}");
    // The node that received the request makes the id, so its number is 9.
    assert_eq!(got.header("x-amz-request-id").map(|id| &id[11..14]), Some("009"));
}

#[tokio::test]
async fn a_bucket_with_invalid_split_keys_is_not_created() {
    let cluster = ForwardingCluster::open(1).await;
    let forwarding = cluster.listen().await;
    let create = |keys| signed("PUT", "/fresh", &[("x-mlgw-split-keys", keys)], b"");
    for keys in ["b,a", "a,,b", "%zz"] {
        let refused = TestClient::connect(forwarding.address).await.request(&create(keys), b"").await;
        assert_eq!(refused.status, 400, "{keys}");
        assert!(refused.text().contains("<Code>InvalidArgument</Code>"), "{}", refused.text());
    }
    let mut client = TestClient::connect(forwarding.address).await;
    assert_eq!(client.call("HEAD", "/fresh", b"").await.status, 404);
    assert_eq!(client.request(&create("a%2C,b"), b"").await.status, 200);
    let elsewhere = signed("PUT", "/fresh/k", &[("x-mlgw-split-keys", "a")], b"");
    assert_eq!(client.request(&elsewhere, b"").await.status, 501);
}

#[tokio::test]
async fn a_member_serves_all_buckets_except_remote_backed_ones() {
    let cluster = ForwardingCluster::open(2).await;
    cluster.bind_bucket("bound").await;
    let listener = cluster.listen_as_member(1).await;
    let mut client = TestClient::connect(listener.address).await;
    let own = client.call("PUT", "/data/own", b"a").await;
    assert_eq!((own.status, own.header("x-mlgw-node")), (200, Some("2")));
    assert!(cluster.members[1].0.has("own") && !cluster.member().has("own"));
    // The first node knows the bucket, and that its upstream is not configured there.
    let bound = client.call("GET", "/bound/k", b"").await;
    assert_eq!((bound.status, bound.header("x-mlgw-node")), (503, Some("1")));
    assert!(bound.text().contains("is not configured on this server"), "{}", bound.text());
    let copy = signed("PUT", "/data/copy", &[("x-amz-copy-source", "bound/k")], b"");
    assert_eq!(client.request(&copy, b"").await.header("x-mlgw-node"), Some("1"));
}

#[tokio::test]
async fn no_member_serves_a_remote_backed_bucket_without_a_lease() {
    let cluster = ForwardingCluster::open(2).await;
    cluster.bind_bucket("bound").await;
    assert!(cluster.member().fence.end(Duration::ZERO).await);
    for at in [0, 1] {
        let listener = cluster.listen_as_member(at).await;
        let mut client = TestClient::connect(listener.address).await;
        let refused = client.call("GET", "/bound/k", b"").await;
        assert_eq!((refused.status, refused.header("x-mlgw-node")), (503, None), "through member {at}");
        assert_eq!(refused.header("retry-after"), Some("1"), "{}", refused.text());
        let own = client.call("PUT", "/data/own", b"a").await;
        assert_eq!(own.status, 200, "local buckets are served");
    }
}

#[tokio::test]
async fn a_member_that_leaves_forwards_changes_and_answers_reads() {
    let cluster = ForwardingCluster::open(2).await;
    let listener = cluster.listen_as_member(1).await;
    let mut client = TestClient::connect(listener.address).await;
    assert_eq!(client.call("PUT", "/data/before", b"a").await.header("x-mlgw-node"), Some("2"));
    cluster.members[1].0.routes.send_replace(super::cluster::table_of(1, &[1], Some(1)));
    let put = client.call("PUT", "/data/k", b"a").await;
    assert_eq!((put.status, put.header("x-mlgw-node")), (200, Some("1")));
    assert!(cluster.member().has("k") && !cluster.members[1].0.has("k"));
    let read = client.call("GET", "/data/before", b"").await;
    assert_eq!((read.status, read.header("x-mlgw-node")), (200, Some("2")));
}

#[tokio::test]
async fn a_member_leaves_requests_for_groups_without_a_majority_to_the_others() {
    let cluster = ForwardingCluster::open(2).await;
    let listener = cluster.listen().await;
    let mut client = TestClient::connect(listener.address).await;
    // The only group is that of all rows.
    cluster.member().lost_groups.send_replace([0].into());
    for turn in 0..4 {
        let put = client.call("PUT", "/data/k", b"a").await;
        assert_eq!((put.status, put.header("x-mlgw-node")), (200, Some("2")), "{turn}");
    }
    cluster.member().lost_groups.send_replace([7].into());
    let mut served_by = BTreeSet::new();
    for _ in 0..4 {
        let put = client.call("PUT", "/data/k", b"a").await;
        served_by.extend(put.header("x-mlgw-node").map(str::to_owned));
    }
    assert!(served_by.contains("1"), "another group is lost: {served_by:?}");
}

#[tokio::test]
async fn a_request_for_a_group_without_a_majority_names_that_reason_through_any_node() {
    let cluster = ForwardingCluster::open(2).await;
    cluster.member().lost_groups.send_replace([0].into());
    *cluster.members[1].1.state.lock() = LinkState::Down;
    let listener = cluster.listen().await;
    let mut client = TestClient::connect(listener.address).await;
    for turn in 0..4 {
        let refused = client.call("PUT", "/data/k", b"a").await;
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{turn}");
        assert!(refused.text().contains("<Reason>NoMajority</Reason>"), "{turn}: {}", refused.text());
        assert!(refused.text().contains("cannot confirm that it has the newest state"), "{turn}");
    }
}

#[tokio::test]
async fn the_rows_of_a_member_decide_if_it_owns_a_key_and_not_its_map() {
    let cluster = ForwardingCluster::open(2).await;
    // As while the group moves from node 2 to node 1: node 2 still has the rows.
    let group = |id| RangeMembers::new(vec![NodeId(id)], None);
    let system = RangeMembers::new([1, 2].map(NodeId).into(), None);
    let mut moving = RouteTable::new(MapEpoch(1), system);
    moving.add_whole_bucket(BUCKET, group(1));
    cluster.members[1].0.routes.send_replace(Arc::new(moving.clone()));
    moving.add_whole_bucket(BUCKET, group(2));
    cluster.edge_routes.send_replace(Arc::new(moving));
    let listener = cluster.listen().await;
    let put = TestClient::connect(listener.address).await.call("PUT", "/data/k", b"a").await;
    assert_eq!((put.status, put.header("x-mlgw-node")), (200, Some("2")), "{put:?}");
}

#[tokio::test]
async fn a_member_forwards_to_the_owner_by_its_rows_although_its_map_lacks_it() {
    let cluster = ForwardingCluster::open(2).await;
    cluster.bind_bucket("bound").await;
    cluster.members[1].0.routes.send_replace(super::cluster::table_of(1, &[2], None));
    let listener = cluster.listen_as_member(1).await;
    let mut client = TestClient::connect(listener.address).await;
    assert_eq!(client.call("GET", "/bound/k", b"").await.header("x-mlgw-node"), Some("1"));
}

#[tokio::test]
async fn a_member_with_a_wrong_clock_refuses_changes_and_leaves_them_to_the_others() {
    let cluster = ForwardingCluster::open(2).await;
    let deviates_by = |skew_ms| {
        let comparison = ClockComparison::Compared { skew_ms };
        cluster.member().checks.send_modify(|check| check.comparison = comparison);
    };
    let direct = cluster.listen_as_member(0).await;
    let mut client = TestClient::connect(direct.address).await;
    deviates_by(-4_000);
    assert_eq!(client.call("PUT", "/data/k", b"a").await.status, 200);
    deviates_by(-6_000);
    for (method, target) in [("PUT", "/data/k"), ("DELETE", "/data/k"), ("POST", "/data/k?uploads")] {
        let refused = client.call(method, target, b"").await;
        assert_eq!((refused.status, refused.header("retry-after").is_some()), (503, true), "{method}");
        assert!(refused.text().contains("<Reason>ClockSkew</Reason>"), "{}", refused.text());
    }
    let read = client.call("GET", "/data/k", b"").await;
    assert_eq!((read.status, read.text().as_str()), (200, "a"));

    let forwarded = cluster.listen().await;
    let mut client = TestClient::connect(forwarded.address).await;
    for turn in 0..4 {
        let put = client.call("PUT", "/data/k", b"a").await;
        assert_eq!((put.status, put.header("x-mlgw-node")), (200, Some("2")), "{turn}");
    }
}

#[tokio::test]
async fn a_member_names_the_owner_of_a_remote_backed_bucket_that_a_map_lacks() {
    let cluster = ForwardingCluster::open(2).await;
    cluster.bind_bucket("bound").await;
    cluster.edge_routes.send_replace(super::cluster::table_of(1, &[2], None));
    let listener = cluster.listen().await;
    let mut client = TestClient::connect(listener.address).await;
    assert_eq!(client.call("GET", "/bound/k", b"").await.header("x-mlgw-node"), Some("1"));
    assert_eq!(client.call("GET", "/data/k", b"").await.header("x-mlgw-node"), Some("2"));
}

const NO_DOMAINS: &[&str] = &[];
const DOMAINS: &[&str] = &["gw.example"];

/// Returns the signed head of a request that names its bucket by this host, and has no body.
fn signed_at(host: &str, method: &str, target: &str) -> Parts {
    let mut head = signed(method, target, &[("host", host)], b"");
    head.headers.insert("host", host.parse().unwrap());
    head
}

#[tokio::test]
async fn nodes_with_other_host_names_of_buckets_change_nothing() {
    for (of_edge, of_members) in [(DOMAINS, NO_DOMAINS), (NO_DOMAINS, DOMAINS)] {
        let cluster = ForwardingCluster::open_with(1, TestDomains { of_edge, of_members }).await;
        let listener = cluster.listen().await;
        let mut client = TestClient::connect(listener.address).await;
        // With the domain it is an object of the bucket photos, without it the empty bucket.
        let delete = signed_at("photos.gw.example", "DELETE", "/data");
        let answer = client.request(&delete, b"").await;
        assert!(
            answer.status == 503 && answer.text().contains("<Reason>MemberVersion</Reason>"),
            "{answer:?}"
        );
        assert!(cluster.member().gateway.objects.bucket(BUCKET).is_ok(), "the bucket is deleted");
        assert_eq!(cluster.edge.forwarder.counters.totals().refused, 1);
        // Without such a host both read the same.
        assert_eq!(client.call("PUT", "/data/k", b"hello").await.status, 200);
    }
}

#[tokio::test]
async fn nodes_with_the_same_host_names_of_buckets_serve_a_bucket_in_the_host() {
    let domains = TestDomains { of_edge: DOMAINS, of_members: DOMAINS };
    let cluster = ForwardingCluster::open_with(1, domains).await;
    let listener = cluster.listen().await;
    let mut client = TestClient::connect(listener.address).await;
    let put = client.request(&signed_at("data.gw.example", "PUT", "/k"), b"").await;
    assert_eq!(put.status, 200, "{put:?}");
    assert!(cluster.member().has("k"));
}

#[tokio::test]
async fn the_age_of_a_signature_is_judged_by_the_clock_of_the_first_node() {
    let cluster = ForwardingCluster::open(1).await;
    let listener = cluster.listen().await;
    let mut client = TestClient::connect(listener.address).await;
    // An hour later, the request would be refused at the member.
    cluster.member().clock.set(later(3600));
    assert_eq!(client.call("PUT", "/data/k", b"hello").await.status, 200);
    let got = client.request(&presigned("/data/k"), b"").await;
    assert_eq!(got.status, 200);
    assert_eq!(got.header("last-modified"), Some("Fri, 24 May 2013 01:00:00 GMT"), "the member's time");
    cluster.member().clock.set(later(0));
    cluster.edge_clock.set(later(3600));
    let late = client.call("GET", "/data/k", b"").await;
    assert!(late.status == 403 && late.text().contains("RequestTimeTooSkewed"), "{late:?}");
    let expired = client.request(&presigned("/data/k"), b"").await;
    assert_eq!(expired.status, 403);
    assert_eq!(cluster.member().clock.now(), later(0));
}

#[tokio::test]
async fn a_form_is_forwarded_with_its_file() {
    let cluster = ForwardingCluster::open(1).await;
    let listener = cluster.listen().await;
    let mut client = TestClient::connect(listener.address).await;
    let body =
        b"--x\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\nk\r\n--x\r\nContent-Disposition: \
        form-data; name=\"file\"\r\n\r\nhello\r\n--x--\r\n";
    let length = body.len().to_string();
    let lines = [
        ("host", "localhost:9000"),
        ("content-type", "multipart/form-data; boundary=x"),
        ("content-length", &*length),
    ];
    let answer = client.request(&head("POST", "/data", &lines), body).await;
    // The form has no policy, so it is anonymous: its fields were read by the member.
    assert!(answer.status == 403 && answer.text().contains("AccessDenied"), "{answer:?}");
}

#[tokio::test]
async fn a_body_with_a_trailer_is_verified_by_the_member() {
    let cluster = ForwardingCluster::open(1).await;
    let listener = cluster.listen().await;
    let mut client = TestClient::connect(listener.address).await;
    for (checksum, status) in [("M3eFcAZSQlc=", 200), ("AAAAAAAAAAA=", 400)] {
        let body = format!("5\r\nhello\r\n0\r\nx-amz-checksum-crc64nvme:{checksum}\r\n\r\n");
        let length = body.len().to_string();
        let lines = [
            ("content-length", &*length),
            ("content-encoding", "aws-chunked"),
            ("x-amz-decoded-content-length", "5"),
            ("x-amz-trailer", "x-amz-checksum-crc64nvme"),
        ];
        let signable = SignableBody::StreamingUnsignedPayloadTrailer;
        let to_sign = RequestToSign {
            method: "PUT",
            target: "/data/trailer",
            headers: &lines,
            body: signable,
            ..RequestToSign::default()
        };
        let answer = client.request(&to_sign.sign().0, body.as_bytes()).await;
        assert_eq!(answer.status, status, "{answer:?}");
    }
    assert_eq!(client.call("GET", "/data/trailer", b"").await.body, b"hello");
}
