//! Tests of joins: power loss after each step, answers that do not fit, directories that are refused, and a
//! whole join over TLS.

use super::answer::{BadJoinAnswer, check_answer};
use super::{BegunJoin, JoinClusterError, JoinedNode, begin, join_cluster};
use crate::admission::tests::{TestJoiner, TestMember, pending};
use crate::join_wire::JoinAnswer;
use mlgw_common::{ClusterId, NodeId, Timestamp};
use mlgw_credentials::Sealer;
use mlgw_formats::schema::NodeRole;
use mlgw_store::ClusterJoinError;
use mlgw_store::data_dir::DataDir;
use mlgw_store::node_file::DirectoryRole;
use mlgw_transport::{JoinError, ServiceRefusal};
use mlgw_trust::{
    CertifiedNode, ClusterAuthority, CredentialsError, IssuedCertificate, NodeFiles, NodeKey, PeerStarts,
    Validity,
};
use std::sync::Arc;

/// The error of a join whose directory is refused.
fn refused(joiner: &TestJoiner) -> JoinClusterError {
    match begin(&joiner.join()) {
        Err(error) => error,
        Ok(_) => panic!("the directory is accepted"),
    }
}

/// The node of a directory that has joined.
fn joined(joiner: &TestJoiner) -> JoinedNode {
    match begin(&joiner.join()).unwrap() {
        BegunJoin::Joined(joined) => joined,
        BegunJoin::Pending(_) => panic!("the cluster is asked again"),
    }
}

fn files(joiner: &TestJoiner) -> NodeFiles {
    NodeFiles::new(&joiner.place.dir.join("cluster")).unwrap()
}

/// Joins without a connection.
async fn join_at(member: &TestMember, joiner: &TestJoiner) -> JoinedNode {
    let join = joiner.join();
    let pending = pending(&join);
    let answer = member.answer(pending.request().unwrap()).await.unwrap();
    pending.finish(&answer.encode()).unwrap()
}

#[tokio::test]
async fn a_node_joins_over_tls_and_the_command_may_be_repeated() {
    let member = TestMember::new().await;
    let (transport, address) = member.transport(member.certify()).await;
    let token = member.token().await;
    let joiner = TestJoiner { seeds: vec![address.clone()], ..TestJoiner::new(&token) };
    let node = join_cluster(joiner.join()).await.unwrap();
    let expected =
        JoinedNode { cluster: member.description.cluster, node: NodeId(2), role: DirectoryRole::Storage };
    assert_eq!(node, expected);
    let credentials = files(&joiner).credentials().unwrap().unwrap();
    assert_eq!(credentials.node(), CertifiedNode { cluster: expected.cluster, node: expected.node });
    PeerStarts::open(files(&joiner).dir(), expected.cluster).unwrap();
    let key = Sealer::export_key(member.dir.path()).unwrap();
    assert_eq!(Sealer::export_key(&joiner.place.dir).unwrap(), key);

    let other = TestJoiner { seeds: vec![address], ..TestJoiner::new(&token) };
    let error = join_cluster(other.join()).await.unwrap_err();
    let code = match &error {
        JoinClusterError::Send(JoinError::Refused(ServiceRefusal { code, .. })) => *code,
        _ => panic!("{error}"),
    };
    assert!(code == 4 && error.to_string().contains("make another"), "{error}");
    transport.stop().await;
    assert_eq!(join_cluster(joiner.join()).await.unwrap(), expected, "without a request");
    let (open, _) = DataDir::open(&joiner.place.dir, Timestamp(0)).unwrap();
    assert_eq!(open.lineage().node, NodeId(2));
    let running = refused(&joiner);
    assert!(matches!(running, JoinClusterError::Directory(ClusterJoinError::DataDir(_))), "{running}");
    member.stop().await;
}

#[tokio::test]
async fn a_join_that_was_interrupted_after_any_step_gets_the_same_id_again() {
    let member = TestMember::new().await;
    for steps in 0..=4 {
        let joiner = TestJoiner::new(&member.token().await);
        let mut first = None;
        {
            let join = joiner.join();
            let pending = pending(&join);
            if steps >= 1 {
                let answer = member.answer(pending.request().unwrap()).await.unwrap();
                first = Some(answer.node);
                let checked = pending.check(&answer.encode()).unwrap();
                if steps >= 2 {
                    pending.store_certificate(&checked).unwrap();
                }
                if steps >= 3 {
                    pending.create_starts(&checked).unwrap();
                }
                if steps >= 4 {
                    pending.describe(&checked).unwrap();
                }
            }
        }
        let key = files(&joiner).key().unwrap().public_hash();
        let is_described = DataDir::description(&joiner.place.dir).unwrap().is_some();
        assert_eq!(is_described, steps == 4);
        let node = if is_described { joined(&joiner) } else { join_at(&member, &joiner).await };
        assert!(first.is_none_or(|first| first == node.node), "{first:?} {node:?}");
        assert_eq!(joined(&joiner), node);
        let credentials = files(&joiner).credentials().unwrap().unwrap();
        assert_eq!((credentials.node().node, credentials.key().public_hash()), (node.node, key));
        let (open, _) = DataDir::open(&joiner.place.dir, Timestamp(0)).unwrap();
        assert_eq!((open.lineage().node, open.lineage().own.cluster), (node.node, node.cluster));
    }
    assert_eq!(member.catalogue.nodes().len(), 6, "each join made one node");
    member.stop().await;
}

#[tokio::test]
async fn an_answer_for_another_key_node_or_authority_is_refused() {
    let member = TestMember::new().await;
    let joiner = TestJoiner::new(&member.token().await);
    let answer = member.answer(joiner.request()).await.unwrap();
    let (key, own) = (Arc::new(files(&joiner).key().unwrap()), member.signer());
    let foreign = ClusterAuthority::create(answer.cluster, joiner.now).unwrap();
    let [of_own, of_foreign] = [&own, &foreign].map(|authority| authority.certificate().to_vec());
    let sign = |authority: &ClusterAuthority, key: &NodeKey| -> IssuedCertificate {
        authority.sign(&key.request().unwrap(), answer.node, joiner.now).unwrap()
    };
    let with = |issued: &IssuedCertificate, authorities: Vec<Vec<u8>>| JoinAnswer {
        certificate: issued.certificate.to_vec(),
        validity: issued.validity,
        authorities,
        ..answer.clone()
    };
    let bad = |answer: JoinAnswer| check_answer(answer, &key, &joiner.token).err().unwrap();
    assert!(check_answer(answer.clone(), &key, &joiner.token).is_ok());
    let both = vec![of_own.clone(), of_foreign.clone()];
    assert!(check_answer(with(&sign(&own, &key), both.clone()), &key, &joiner.token).is_ok());

    let other_key = sign(&own, &NodeKey::generate().unwrap());
    let pair = BadJoinAnswer::Credentials(CredentialsError::Pair);
    assert_eq!(bad(with(&other_key, vec![of_own.clone()])), pair);
    let by_foreign = sign(&foreign, &key);
    assert_eq!(bad(with(&by_foreign, vec![of_foreign.clone()])), BadJoinAnswer::Token);
    for authorities in [vec![of_own.clone()], both] {
        let issuer = bad(with(&by_foreign, authorities));
        assert!(matches!(issuer, BadJoinAnswer::Issuer(_)), "{issuer}");
    }
    let not_first = bad(with(&sign(&own, &key), vec![of_foreign, of_own]));
    assert!(matches!(not_first, BadJoinAnswer::Issuer(_)), "{not_first}");
    let named = CertifiedNode { cluster: answer.cluster, node: answer.node };
    assert_eq!(bad(JoinAnswer { node: NodeId(9), ..answer.clone() }), BadJoinAnswer::Node(named));
    let other = ClusterId(answer.cluster.0 ^ 1);
    assert_eq!(bad(JoinAnswer { cluster: other, ..answer.clone() }), BadJoinAnswer::Node(named));
    let Validity { not_before_ms, not_after_ms } = answer.validity;
    let longer = Validity { not_before_ms, not_after_ms: not_after_ms + 1000 };
    let longer = bad(JoinAnswer { validity: longer, ..answer.clone() });
    assert!(matches!(longer, BadJoinAnswer::Issuer(_)), "{longer}");
    member.stop().await;
}

#[tokio::test]
async fn nothing_of_an_answer_that_is_refused_is_stored() {
    let member = TestMember::new().await;
    let joiner = TestJoiner::new(&member.token().await);
    let answer = member.answer(joiner.request()).await.unwrap();
    let finish = |joiner: &TestJoiner, answer: &[u8]| pending(&joiner.join()).finish(answer).unwrap_err();
    let wrong = JoinAnswer { node: NodeId(9), ..answer.clone() };
    let error = finish(&joiner, &wrong.encode());
    assert!(error.to_string().contains("its certificate is of node 2"), "{error}");
    let error = finish(&joiner, b"\x07");
    assert!(error.to_string().contains("version 7") && error.to_string().contains("repeat"), "{error}");
    let gateway = JoinAnswer { role: NodeRole::Gateway, ..answer.clone() };
    let error = finish(&joiner, &gateway.encode());
    assert!(matches!(error, JoinClusterError::Role { node: NodeId(2), .. }), "{error}");
    let joiner = TestJoiner { now: Timestamp(0), ..joiner };
    let error = finish(&joiner, &answer.encode());
    assert!(matches!(error, JoinClusterError::Clock { .. }) && error.to_string().contains("1970"), "{error}");
    let dir = &joiner.place.dir;
    let stored = ["node.json", "secrets.key", "cluster/certificate.json", "cluster/starts.json"];
    assert!(stored.iter().all(|file| !dir.join(file).exists()));
    member.stop().await;
}

#[tokio::test]
async fn a_directory_that_cannot_join_is_refused_before_the_cluster_is_asked() {
    let (member, other) = (TestMember::new().await, TestMember::new().await);
    let token = member.token().await;
    let joiner = TestJoiner::new(&token);
    let node = join_at(&member, &joiner).await.node;

    let joiner = TestJoiner { token: other.token().await, ..joiner };
    let error = refused(&joiner);
    assert!(matches!(error, JoinClusterError::OtherCluster { .. }), "{error}");
    let joiner = TestJoiner { token: member.token().await, ..joiner };
    assert_eq!(joined(&joiner).node, node, "another token of its cluster");
    let joiner = TestJoiner { role: DirectoryRole::Gateway, ..joiner };
    let error = refused(&joiner);
    assert!(error.to_string().contains("has the role storage"), "{error}");
    let joiner = TestJoiner { role: DirectoryRole::Storage, ..joiner };
    std::fs::remove_file(joiner.place.dir.join("cluster/certificate.json")).unwrap();
    drop(pending(&joiner.join()));
    std::fs::remove_file(joiner.place.dir.join("cluster/node.key")).unwrap();
    let error = refused(&joiner);
    assert!(matches!(error, JoinClusterError::NoKey { .. }), "{error}");

    let alone = TestJoiner::new(&token);
    drop(DataDir::open(&alone.place.dir, Timestamp(0)).unwrap());
    let error = refused(&alone);
    assert!(error.to_string().contains("a server without peers"), "{error}");
    assert!(!alone.place.dir.join("cluster").exists());
    member.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn an_unfinished_join_of_another_cluster_is_named() {
    let (member, other) = (TestMember::new().await, TestMember::new().await);
    let joiner = TestJoiner::new(&member.token().await);
    {
        let join = joiner.join();
        let pending = pending(&join);
        let answer = member.answer(pending.request().unwrap()).await.unwrap();
        pending.store_certificate(&pending.check(&answer.encode()).unwrap()).unwrap();
    }
    let joiner = TestJoiner { token: other.token().await, ..joiner };
    let error = refused(&joiner);
    assert!(error.to_string().contains("remove that folder"), "{error}");
    std::fs::remove_dir_all(joiner.place.dir.join("cluster")).unwrap();
    assert_eq!(join_at(&other, &joiner).await.cluster, other.description.cluster);
    member.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn arguments_that_no_node_can_have_are_refused() {
    let member = TestMember::new().await;
    let token = member.token().await;
    let joiner = TestJoiner { seeds: Vec::new(), ..TestJoiner::new(&token) };
    assert!(refused(&joiner).to_string().contains("--seed"));
    for address in ["0.0.0.0:9002", "[::]:9002"] {
        let joiner = TestJoiner { address: address.parse().unwrap(), ..TestJoiner::new(&token) };
        assert!(refused(&joiner).to_string().contains("set cluster.address"));
        assert!(!joiner.place.dir.exists());
    }
    let joiner = TestJoiner::new(&token);
    let long = "a".repeat(400);
    let join = super::JoinCluster { name: &long, ..joiner.join() };
    assert!(matches!(begin(&join), Err(JoinClusterError::Name(400))));
    let join = joiner.join();
    let first = pending(&join);
    let second = refused(&joiner);
    assert!(matches!(second, JoinClusterError::Directory(ClusterJoinError::DataDir(_))), "{second}");
    drop(first);
    drop(pending(&join));
    member.stop().await;
}
