//! Tests of the encodings of a request to join and of its answer.

use super::{
    BadJoinMessage, JoinAnswer, JoinAnswerMessage, JoinMember, JoinRequest, JoinRequestMessage, encode,
};
use crate::join_wire::{JOIN_MEMBERS_MAX, JoinMemberMessage};
use mlgw_common::limits::{
    AUTHORITY_BYTES_MAX, INCARNATIONS_MAX, JOIN_BYTES_MAX, NODE_TEXT_BYTES_MAX, TRUSTED_AUTHORITIES_MAX,
};
use mlgw_common::{ClusterId, Incarnation, NodeId};
use mlgw_formats::schema::NodeRole;
use mlgw_trust::{TokenId, Validity};
use proptest::collection::vec;
use proptest::prelude::*;
use zeroize::Zeroizing;

fn request() -> JoinRequest {
    JoinRequest {
        token: TokenId(7),
        secret: Zeroizing::new([0xab; 32]),
        certificate_request: vec![1; 138],
        address: "node-2:9002".to_owned(),
        name: "two".to_owned(),
        role: NodeRole::Gateway as i32,
        build: "0.1.0".to_owned(),
        cluster_version: 2,
    }
}

fn answer() -> JoinAnswer {
    let member =
        |node: u64| JoinMember { node: NodeId(node), address: format!("node-{node}:9002").parse().unwrap() };
    JoinAnswer {
        cluster: ClusterId(5),
        incarnation: Incarnation(6),
        earlier: vec![Incarnation(4)],
        node: NodeId(2),
        role: NodeRole::Storage,
        certificate: vec![3; 500],
        validity: Validity { not_before_ms: 1000, not_after_ms: 2000 },
        authorities: vec![vec![4; 500], vec![5; 400]],
        cluster_key: Zeroizing::new("mlgw-secrets-key 1 00ff".to_owned()),
        members: vec![member(1), member(3)],
    }
}

fn answer_message() -> JoinAnswerMessage {
    super::decode(&answer().encode()).unwrap()
}

fn request_message() -> JoinRequestMessage {
    super::decode(&request().encode()).unwrap()
}

/// The field that is not valid.
fn field<T: std::fmt::Debug>(decoded: Result<T, BadJoinMessage>) -> &'static str {
    match decoded.unwrap_err() {
        BadJoinMessage::Field { field, .. } => field,
        other => panic!("{other}"),
    }
}

proptest! {
    #[test]
    fn a_request_is_read_back(
        token: u64,
        secret: [u8; 32],
        certificate_request in vec(any::<u8>(), 0..160),
        address in ".{0,60}",
        name in ".{0,60}",
        role: i32,
        cluster_version: u32,
    ) {
        let (token, secret) = (TokenId(token), Zeroizing::new(secret));
        let request =
            JoinRequest { token, secret, certificate_request, address, name, role, ..request() };
        let request = JoinRequest { cluster_version, ..request };
        prop_assert_eq!(JoinRequest::decode(&request.encode()), Ok(request));
    }

    #[test]
    fn an_answer_is_read_back(
        cluster in 1_u64..,
        node in 1_u64..,
        earlier in vec(1_u64.., 0..20),
        begin_ms in 0_i64..1 << 50,
        certificate in vec(any::<u8>(), 1..600),
        authorities in vec(vec(any::<u8>(), 1..600), 1..4),
    ) {
        let earlier = earlier.into_iter().map(Incarnation).collect();
        let validity = Validity { not_before_ms: begin_ms, not_after_ms: begin_ms + 1 };
        let (cluster, node) = (ClusterId(cluster), NodeId(node));
        let answer =
            JoinAnswer { cluster, node, earlier, validity, certificate, authorities, ..answer() };
        prop_assert_eq!(JoinAnswer::decode(&answer.encode()), Ok(answer));
    }

    #[test]
    fn no_bytes_make_a_decoder_panic(mut bytes in vec(any::<u8>(), 1..300)) {
        let _ = (JoinRequest::decode(&bytes), JoinAnswer::decode(&bytes));
        bytes[0] = super::VERSION;
        let _ = (JoinRequest::decode(&bytes), JoinAnswer::decode(&bytes));
    }

    #[test]
    fn a_changed_message_is_refused_or_is_another_one(at in 0_usize..1400, change in 1_u8..) {
        let mut request = request().encode().to_vec();
        let length = request.len();
        request[at % length] ^= change;
        if let Ok(read) = JoinRequest::decode(&request) {
            prop_assert!(JoinRequest::decode(&read.encode()) == Ok(read));
        }
        let mut answer = answer().encode().to_vec();
        let length = answer.len();
        answer[at % length] ^= change;
        if let Ok(read) = JoinAnswer::decode(&answer) {
            prop_assert!(JoinAnswer::decode(&read.encode()) == Ok(read));
        }
    }
}

#[test]
fn other_versions_and_lengths_are_refused() {
    let mut bytes = request().encode().to_vec();
    bytes[0] = 2;
    assert_eq!(JoinRequest::decode(&bytes), Err(BadJoinMessage::Version(2)));
    assert_eq!(JoinRequest::decode(&[]), Err(BadJoinMessage::Empty));
    assert_eq!(JoinAnswer::decode(&[]), Err(BadJoinMessage::Empty));
    let long = JOIN_BYTES_MAX + 1;
    assert_eq!(JoinAnswer::decode(&vec![1; long]), Err(BadJoinMessage::Length(long)));
    let answer = answer().encode();
    let cut = JoinAnswer::decode(&answer[..answer.len() - 1]);
    assert!(matches!(cut, Err(BadJoinMessage::Encoding(_))), "{cut:?}");
}

#[test]
fn a_field_of_a_request_outside_its_limits_is_named() {
    let decoded = |change: &dyn Fn(&mut JoinRequestMessage)| {
        let mut message = request_message();
        change(&mut message);
        field(JoinRequest::decode(&encode(&message)))
    };
    let long = || "a".repeat(NODE_TEXT_BYTES_MAX + 1);
    assert_eq!(decoded(&|of| of.secret = vec![1; 31]), "secret");
    assert_eq!(decoded(&|of| of.secret = Vec::new()), "secret");
    assert_eq!(decoded(&|of| of.certificate_request = vec![1; 161]), "certificate request");
    assert_eq!(decoded(&|of| of.address = long()), "address");
    assert_eq!(decoded(&|of| of.name = long()), "name");
    assert_eq!(decoded(&|of| of.build = long()), "build");
}

#[test]
fn a_field_of_an_answer_outside_its_limits_is_named() {
    let decoded = |change: &dyn Fn(&mut JoinAnswerMessage)| {
        let mut message = answer_message();
        change(&mut message);
        field(JoinAnswer::decode(&encode(&message)))
    };
    let member = |node: u64, address: &str| JoinMemberMessage { node, address: address.to_owned() };
    assert_eq!(decoded(&|of| of.cluster = 0), "cluster");
    assert_eq!(decoded(&|of| of.incarnation = 0), "timeline");
    assert_eq!(decoded(&|of| of.node = 0), "node");
    assert_eq!(decoded(&|of| of.role = 2), "role");
    assert_eq!(decoded(&|of| of.earlier = vec![0]), "earlier timelines");
    assert_eq!(decoded(&|of| of.earlier = vec![1; INCARNATIONS_MAX + 1]), "earlier timelines");
    assert_eq!(decoded(&|of| of.certificate = Vec::new()), "certificate");
    assert_eq!(decoded(&|of| of.certificate = vec![1; super::NODE_CERTIFICATE_BYTES_MAX + 1]), "certificate");
    assert_eq!(decoded(&|of| of.not_after_ms = of.not_before_ms), "certificate");
    assert_eq!(decoded(&|of| of.authorities = Vec::new()), "authorities");
    assert_eq!(decoded(&|of| of.authorities = vec![vec![1]; TRUSTED_AUTHORITIES_MAX + 1]), "authorities");
    assert_eq!(decoded(&|of| of.authorities = vec![vec![1; AUTHORITY_BYTES_MAX + 1]]), "authority");
    assert_eq!(decoded(&|of| of.cluster_key = String::new()), "cluster key");
    assert_eq!(decoded(&|of| of.cluster_key = "a".repeat(300)), "cluster key");
    assert_eq!(decoded(&|of| of.members = vec![member(0, "a:1")]), "members");
    assert_eq!(decoded(&|of| of.members = vec![member(1, "a")]), "members");
    assert_eq!(decoded(&|of| of.members = vec![member(1, "a:1"); JOIN_MEMBERS_MAX + 1]), "members");
}

#[test]
fn no_debug_text_has_a_secret() {
    let (request, answer) = (request(), answer());
    let text = format!("{request:?} {answer:?}");
    assert!(text.contains("token 0000000000000007") && text.contains("node 2"), "{text}");
    for secret in ["ab", "171", "00ff", "mlgw-secrets-key"] {
        assert!(!text.contains(secret), "{text}");
    }
}
