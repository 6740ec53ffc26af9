//! Tests of the handshake: encodings, hostile bytes, and each reason to refuse.

use super::{
    BadHandshake, HandshakeRefusal, Hello, HelloJudge, WireVersions, cut, decode_answer, encode_answer,
};
use crate::channel::Channel;
use mlgw_common::limits::{HANDSHAKE_BYTES_MAX, REFUSAL_TEXT_BYTES_MAX};
use mlgw_common::{ClusterId, Incarnation, NodeId, hex};
use mlgw_trust::{CertifiedNode, NodeStart, StartRefusal};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn hello() -> Hello {
    Hello {
        versions: WireVersions { min: 1, max: 1 },
        cluster: ClusterId(0x1122_3344_5566_7788),
        node: NodeId(7),
        start: NodeStart { incarnation: Incarnation(9), counter: 3, nonce: 5 },
        channel: Channel::Log,
        address: "node-7:7000".parse().unwrap(),
    }
}

#[test]
fn golden_bytes_of_a_hello_and_a_refusal() {
    let bytes = hello().encode();
    assert_eq!(
        hex::text(&bytes),
        "080110011988776655443322112007290900000000000000300339050000000000000040024a0b6e6f64652d373a37303030"
    );
    assert_eq!(Hello::decode(&bytes).unwrap(), hello());
    let refused = encode_answer(&Err(HandshakeRefusal::OwnNode(NodeId(2))));
    assert!(hex::text(&refused).starts_with("12") && refused[2..4] == [8, 5], "{refused:?}");
    let HandshakeRefusal::ByPeer { code: 5, message } = decode_answer(&refused).unwrap_err() else {
        panic!("not the refusal")
    };
    assert_eq!(message, HandshakeRefusal::OwnNode(NodeId(2)).to_string());
}

proptest! {
    #[test]
    fn a_hello_is_decoded_as_it_was_encoded(
        versions in (1_u32..9, 0_u32..9),
        ids in any::<[u64; 4]>(),
        node in 1_u64..,
        counter in 1_u64..,
        channel in 0_usize..3,
    ) {
        let hello = Hello {
            versions: WireVersions { min: versions.0, max: versions.0 + versions.1 },
            cluster: ClusterId(ids[0]),
            node: NodeId(node),
            start: NodeStart { incarnation: Incarnation(ids[1]), counter, nonce: ids[2] },
            channel: Channel::ALL[channel],
            address: hello().address,
        };
        prop_assert_eq!(&Hello::decode(&hello.encode()).unwrap(), &hello);
        prop_assert_eq!(decode_answer(&encode_answer(&Ok(hello.clone()))), Ok(hello));
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(hello) = Hello::decode(&bytes) {
            prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        }
        let _ = decode_answer(&bytes);
    }

    #[test]
    fn the_common_version_is_the_highest_that_both_support(
        a in (0_u32..6, 0_u32..6),
        b in (0_u32..6, 0_u32..6),
    ) {
        let (own, other) = (
            WireVersions { min: a.0, max: a.0 + a.1 },
            WireVersions { min: b.0, max: b.0 + b.1 },
        );
        let both = |version: &u32| {
            (own.min..=own.max).contains(version) && (other.min..=other.max).contains(version)
        };
        prop_assert_eq!(own.common(other), (0..20).filter(both).max());
        prop_assert_eq!(own.common(other), other.common(own));
    }
}

#[test]
fn each_invalid_field_is_named() {
    let long = vec![0; HANDSHAKE_BYTES_MAX + 1];
    assert_eq!(Hello::decode(&long), Err(BadHandshake::TooLong(HANDSHAKE_BYTES_MAX + 1)));
    assert_eq!(Hello::decode(&[0xff]), Err(BadHandshake::Encoding));
    let changed = |change: fn(&mut super::HelloMessage)| {
        let mut message = hello().message();
        change(&mut message);
        Hello::of_message(message).unwrap_err()
    };
    let versions = BadHandshake::Field("range of wire versions");
    assert_eq!(changed(|hello| hello.version_min = 0), versions);
    assert_eq!(changed(|hello| hello.version_min = 2), versions);
    assert_eq!(changed(|hello| hello.node = 0), BadHandshake::Field("node id"));
    assert_eq!(changed(|hello| hello.counter = 0), BadHandshake::Field("start counter"));
    assert_eq!(changed(|hello| hello.channel = 0), BadHandshake::Field("connection"));
    assert_eq!(changed(|hello| hello.channel = 4), BadHandshake::Field("connection"));
    assert_eq!(changed(|hello| hello.address.clear()), BadHandshake::Field("address"));
    assert_eq!(decode_answer(&[]), Err(BadHandshake::Encoding.into()));
}

#[test]
fn each_reason_to_refuse_is_found() {
    let cluster = hello().cluster;
    let removed = BTreeSet::from([NodeId(9)]);
    let judge =
        HelloJudge { versions: WireVersions { min: 1, max: 2 }, cluster, node: NodeId(1), removed: &removed };
    let seven = CertifiedNode { cluster, node: NodeId(7) };
    assert_eq!(judge.judge(seven, &hello()), Ok(1));
    let newer = WireVersions { min: 3, max: 4 };
    let refused = judge.judge(seven, &Hello { versions: newer, ..hello() }).unwrap_err();
    assert_eq!(refused, HandshakeRefusal::WireVersion { own: judge.versions, other: newer });
    let text = "this node supports wire versions 1 to 2, the other 3 to 4: upgrade the older one";
    assert_eq!(refused.to_string(), text);

    let other = ClusterId(1);
    let of_other = HandshakeRefusal::Cluster { own: cluster, other };
    assert_eq!(judge.judge(seven, &Hello { cluster: other, ..hello() }), Err(of_other.clone()));
    assert_eq!(judge.judge(CertifiedNode { cluster: other, ..seven }, &hello()), Err(of_other));

    let eight = CertifiedNode { node: NodeId(8), ..seven };
    let refused = HandshakeRefusal::NotItsCertificate { certified: NodeId(8), stated: NodeId(7) };
    assert_eq!(judge.judge(eight, &hello()), Err(refused));
    for (node, refused) in
        [(NodeId(1), HandshakeRefusal::OwnNode(NodeId(1))), (NodeId(9), HandshakeRefusal::Removed(NodeId(9)))]
    {
        let certified = CertifiedNode { node, ..seven };
        assert_eq!(judge.judge(certified, &Hello { node, ..hello() }), Err(refused));
    }
}

#[test]
fn long_texts_of_refusals_are_cut_between_characters() {
    let text = cut("é".repeat(REFUSAL_TEXT_BYTES_MAX));
    assert!(text.len() <= REFUSAL_TEXT_BYTES_MAX && text.len() + 2 > REFUSAL_TEXT_BYTES_MAX);
}

#[test]
fn only_an_old_or_copied_start_has_the_code_by_which_a_node_stops() {
    let node = NodeId(7);
    let older = StartRefusal::Older { node, stated: 1, known: 2 };
    let copied = StartRefusal::Copied { node, counter: 2 };
    for refusal in [older, copied] {
        assert_eq!(HandshakeRefusal::Start(refusal).code(), HandshakeRefusal::START_CODE);
    }
    let full = HandshakeRefusal::Start(StartRefusal::TooManyNodes { node });
    assert_ne!(full.code(), HandshakeRefusal::START_CODE);
}
