//! Tokens, and the directories of new nodes: a token admits one node, and whatever is refused uses nothing.

use std::fs;

use super::testbed::{STORE, TestCluster, assert_reads, keys_before, wait_until};

#[test]
fn a_token_admits_one_node_and_the_same_node_again() {
    let mut cluster = TestCluster::first();
    let (second, other) = (cluster.new_member("node-2"), cluster.new_member("other"));
    let token = cluster.token();
    for wrong in wrong_tokens(&token) {
        let (output, status) = cluster.run_join(&second, &wrong.text, "storage");
        assert!(status.is_some_and(|status| status != 0), "{output}");
        assert!(output.contains(wrong.refusal), "{output}");
        assert!(!second.setup.data_dir.join("node.json").exists(), "{output}");
    }
    for _ in 0..2 {
        let (output, status) = cluster.run_join(&second, &token, "storage");
        assert_eq!(status, Some(0), "{output}");
    }
    let (output, status) = cluster.run_join(&other, &token, "storage");
    assert_eq!(status, Some(1), "{output}");
    assert!(output.contains("the join token was used by another node"), "{output}");
    assert!(!other.setup.data_dir.join("node.json").exists(), "{output}");

    cluster.add(second);
    cluster.start(2);
    let client = cluster.client(2);
    cluster.block_on(async {
        for key in keys_before() {
            assert_reads(&client, &key).await;
        }
    });
    // Also the node that runs gave its own answer to the token: no other node has joined.
    let view = cluster.view(STORE);
    assert_eq!(view.nodes.iter().map(|node| node.id).collect::<Vec<_>>(), [1, 2]);
    cluster.stop(2);
    let (output, status) = cluster.run_join(cluster.member(2), &token, "storage");
    assert_eq!(status, Some(0), "a node that has served: {output}");
    cluster.start(2);
    wait_until("the node is active", || {
        cluster.view(STORE).node(2).is_some_and(|node| node.state == "active")
    });
}

/// A token that no cluster accepts.
struct WrongToken {
    text: String,
    refusal: &'static str,
}

/// Tokens with an error in one part each: `mlgw-join-1.AUTHORITY.ID.SECRET`.
fn wrong_tokens(token: &str) -> [WrongToken; 4] {
    let parts: Vec<&str> = token.split('.').collect();
    assert_eq!(parts.len(), 4, "a token has four parts");
    let with = |at: usize, part: &str, refusal| {
        let mut parts = parts.clone();
        parts[at] = part;
        WrongToken { text: parts.join("."), refusal }
    };
    // 32 bytes in base64url, of which a random token has none.
    let zeros = "A".repeat(43);
    [
        with(3, &zeros, "the join token is not valid"),
        with(2, "0123456789abcdef", "the join token is not valid"),
        with(1, &zeros, ""),
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
    let store = cluster.member(STORE).setup.data_dir.clone();
    for member in [&used, cluster.member(STORE)] {
        let (output, status) = cluster.run_join(member, &token, "storage");
        assert_eq!(status, Some(1), "{output}");
        assert!(output.contains("already"), "{output}");
    }
    assert!(fs::read(used.setup.data_dir.join("node.json")).expect("read") == description, "unchanged");
    assert!(store.join("node.json").exists());

    // A directory without a description, in which something was stored.
    let leftover = cluster.new_member("leftover");
    fs::create_dir_all(leftover.setup.data_dir.join("catalogue")).expect("made");
    fs::write(leftover.setup.data_dir.join("catalogue/log"), "kept").expect("written");
    let (output, status) = cluster.run_join(&leftover, &token, "storage");
    assert_eq!(status, Some(1), "{output}");
    assert!(output.contains("is not empty"), "{output}");

    let empty = cluster.new_member("node-2");
    let (output, status) = cluster.run_join(&empty, &token, "gateway");
    assert_eq!(status, Some(0), "the token is still unused: {output}");
    cluster.add(empty);
    cluster.start(2);
    let view = cluster.view(STORE);
    let roles: Vec<(usize, &str)> = view.nodes.iter().map(|node| (node.id, node.role.as_str())).collect();
    assert_eq!(roles, [(1, "storage"), (2, "gateway")], "a refusal takes no id");
}
