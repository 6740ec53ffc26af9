//! Tokens, and the directories of new nodes: a token admits one node, and whatever is refused uses nothing.

use std::fs;

use super::testbed::{FIRST, TestCluster, TestMember, assert_reads_before};

/// Asserts that `mlgw cluster join` failed for this reason.
fn assert_refused(joined: (String, Option<i32>), reason: &str) {
    let (output, status) = joined;
    assert!(status.is_some_and(|status| status != 0), "{output}");
    assert!(output.contains(reason), "{output}");
}

/// Asserts that `mlgw cluster join` succeeded.
fn assert_joined(joined: (String, Option<i32>)) {
    let (output, status) = joined;
    assert_eq!(status, Some(0), "{output}");
}

fn is_described(member: &TestMember) -> bool {
    member.setup.data_dir.join("node.json").exists()
}

#[test]
fn a_token_admits_one_node_and_the_same_node_again() {
    let mut cluster = TestCluster::first();
    let (second, other) = (cluster.new_member("node-2"), cluster.new_member("other"));
    let token = cluster.token();
    for wrong in wrong_tokens(&token) {
        assert_refused(cluster.run_join(&second, &wrong.text, "storage"), wrong.refusal);
        assert!(!is_described(&second), "refused: {}", wrong.refusal);
    }
    assert_joined(cluster.run_join(&second, &token, "storage"));
    assert_joined(cluster.run_join(&second, &token, "storage"));
    assert_refused(cluster.run_join(&other, &token, "storage"), "the join token was used by another node");
    assert!(!is_described(&other));

    cluster.add(second);
    cluster.start(2);
    let client = cluster.client(2);
    cluster.block_on(assert_reads_before(&client));
    cluster.stop(2);
    assert_joined(cluster.run_join(cluster.member(2), &token, "storage"));
    cluster.start(2);
    cluster.until_active(2);
    let ids: Vec<usize> = cluster.view(FIRST).nodes.iter().map(|node| node.id).collect();
    assert_eq!(ids, [1, 2], "no other node has joined, and the repetitions took no id");
}

/// A token that no member accepts.
struct WrongToken {
    text: String,
    refusal: &'static str,
}

/// Tokens with an error in one part each: `mlgw-join-1.AUTHORITY.ID.SECRET`.
fn wrong_tokens(token: &str) -> [WrongToken; 3] {
    let parts: Vec<&str> = token.split('.').collect();
    assert_eq!(parts.len(), 4, "parts of a token");
    let with = |at: usize, part: &str, refusal: &'static str| {
        let mut parts = parts.clone();
        parts[at] = part;
        WrongToken { text: parts.join("."), refusal }
    };
    // 32 bytes of 0 in base64url.
    let zeros = "A".repeat(43);
    [
        with(3, &zeros, "the join token is not valid"),
        with(2, "0123456789abcdef", "the join token is not valid"),
        with(3, "short", "the secret of the join token is damaged"),
    ]
}

#[test]
fn a_directory_with_data_is_refused_before_its_token_is_used() {
    let mut cluster = TestCluster::first();
    let token = cluster.token();
    let used = cluster.new_member("used");
    used.setup.start().stop();
    let description = fs::read(used.setup.data_dir.join("node.json")).expect("read");
    assert_refused(cluster.run_join(&used, &token, "storage"), "use an empty directory");
    assert!(fs::read(used.setup.data_dir.join("node.json")).expect("read") == description, "unchanged");

    // A directory without a description, in which something was stored.
    let leftover = cluster.new_member("leftover");
    let catalogue = leftover.setup.data_dir.join("catalogue");
    fs::create_dir_all(&catalogue).expect("made");
    fs::write(catalogue.join("log"), "kept").expect("written");
    assert_refused(cluster.run_join(&leftover, &token, "storage"), "is not empty");
    assert!(!is_described(&leftover));

    let empty = cluster.new_member("node-2");
    assert_joined(cluster.run_join(&empty, &token, "gateway"));
    cluster.add(empty);
    cluster.start(2);
    let view = cluster.view(FIRST);
    let roles: Vec<(usize, &str)> = view.nodes.iter().map(|node| (node.id, node.role.as_str())).collect();
    assert_eq!(roles, [(1, "storage"), (2, "gateway")], "a refusal takes no id");
}
