//! Tests of the file of starts: what is accepted survives a restart, and nothing else is accepted.

use super::{NodeStart, PeerStarts, StartVerdict, StartsFileError, decode_starts, encode_starts};
use crate::starts::StartRefusal;
use mlgw_common::limits::{NODES_MAX, STARTS_FILE_BYTES_MAX};
use mlgw_common::{ClusterId, Incarnation, NodeId};
use proptest::prelude::*;
use std::collections::BTreeMap;

const CLUSTER: ClusterId = ClusterId(5);

fn start(counter: u64, nonce: u64) -> NodeStart {
    NodeStart { incarnation: Incarnation(3), counter, nonce }
}

#[test]
fn accepted_starts_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let starts = PeerStarts::create(dir.path(), CLUSTER).unwrap();
    assert_eq!(starts.admit(NodeId(7), start(4, 1)).unwrap(), StartVerdict::Newer);
    assert_eq!(starts.admit(NodeId(7), start(4, 1)).unwrap(), StartVerdict::Known);
    assert_eq!(starts.admit(NodeId(8), start(1, 2)).unwrap(), StartVerdict::Newer);
    assert_eq!(starts.admit(NodeId(7), start(5, 6)).unwrap(), StartVerdict::Newer);
    drop(starts);
    let starts = PeerStarts::open(dir.path(), CLUSTER).unwrap();
    assert_eq!(starts.known(NodeId(7)), Some(start(5, 6)));
    let refused = starts.admit(NodeId(7), start(4, 1)).unwrap_err();
    let older = StartRefusal::Older { node: NodeId(7), stated: 4, known: 5 };
    assert!(matches!(refused, StartsFileError::Refused(refusal) if refusal == older), "{refused}");
    let again = PeerStarts::create(dir.path(), CLUSTER).unwrap();
    assert_eq!(again.known(NodeId(8)), Some(start(1, 2)), "an existing file stays");
    again.forget(&[NodeId(8), NodeId(9)]).unwrap();
    assert_eq!(PeerStarts::open(dir.path(), CLUSTER).unwrap().known(NodeId(8)), None);
}

#[test]
fn a_start_that_cannot_be_stored_is_not_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let starts = PeerStarts::create(dir.path(), CLUSTER).unwrap();
    let moved = dir.path().join("moved");
    std::fs::create_dir(&moved).unwrap();
    let path = dir.path().join("starts.json");
    std::fs::rename(&path, moved.join("starts.json")).unwrap();
    std::fs::create_dir_all(path.join("in the way")).unwrap();
    let refused = starts.admit(NodeId(7), start(1, 1)).unwrap_err();
    assert!(matches!(refused, StartsFileError::Io { .. }), "{refused}");
    assert_eq!(starts.known(NodeId(7)), None);
}

#[test]
fn a_missing_or_foreign_file_is_refused_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let missing = PeerStarts::open(dir.path(), CLUSTER).unwrap_err().to_string();
    assert!(
        missing.contains("starts.json is missing") && missing.contains("join under a new id"),
        "{missing}"
    );
    PeerStarts::create(dir.path(), CLUSTER).unwrap();
    let foreign = PeerStarts::open(dir.path(), ClusterId(6)).unwrap_err().to_string();
    assert!(foreign.contains("is of cluster 0000000000000005"), "{foreign}");
}

#[test]
fn the_number_of_nodes_is_limited() {
    let dir = tempfile::tempdir().unwrap();
    let many = (1..=NODES_MAX as u64).map(|node| (NodeId(node), start(u64::MAX, u64::MAX))).collect();
    let text = encode_starts(CLUSTER, &many).unwrap();
    assert!((text.len() as u64) < STARTS_FILE_BYTES_MAX, "{}", text.len());
    std::fs::write(dir.path().join("starts.json"), &text).unwrap();
    let starts = PeerStarts::open(dir.path(), CLUSTER).unwrap();
    let node = NodeId(NODES_MAX as u64 + 1);
    let refused = starts.admit(node, start(1, 1)).unwrap_err();
    assert!(
        matches!(refused, StartsFileError::Refused(StartRefusal::TooManyNodes { node: of }) if of == node)
    );
    let mut more: BTreeMap<_, _> = many;
    more.insert(node, start(1, 1));
    let more = encode_starts(CLUSTER, &more).unwrap();
    assert!(decode_starts(more.as_bytes(), CLUSTER).unwrap_err().contains("more than"));
}

#[test]
fn golden_contents() {
    let known = BTreeMap::from([(NodeId(7), start(4, 0xff))]);
    let golden = "{\"format\":1,\"cluster\":\"0000000000000005\",\"nodes\":[{\"node\":7,\"incarnation\":\
                  \"0000000000000003\",\"counter\":4,\"nonce\":\"00000000000000ff\"}]}\n";
    assert_eq!(encode_starts(CLUSTER, &known).unwrap(), golden);
    assert_eq!(decode_starts(golden.as_bytes(), CLUSTER).unwrap(), known);
    for (from, to, reason) in [
        ("\"format\":1", "\"format\":2", "format 2"),
        ("\"node\":7", "\"node\":0", "node 0"),
        ("\"counter\":4", "\"counter\":-4", "invalid value"),
        ("00ff", "00FF", "16 hexadecimal digits"),
    ] {
        let error = decode_starts(golden.replace(from, to).as_bytes(), CLUSTER).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
    let long = vec![b' '; usize::try_from(STARTS_FILE_BYTES_MAX).unwrap() + 1];
    assert!(decode_starts(&long, CLUSTER).unwrap_err().contains("more than"));
}

proptest! {
    #[test]
    fn contents_are_read_back(nodes in proptest::collection::btree_map(1_u64.., any::<[u64; 3]>(), 0..20)) {
        let of = |of: [u64; 3]| NodeStart { incarnation: Incarnation(of[0]), counter: of[1], nonce: of[2] };
        let nodes = nodes.into_iter();
        let known: BTreeMap<_, _> = nodes.map(|(node, start)| (NodeId(node), of(start))).collect();
        let text = encode_starts(CLUSTER, &known).unwrap();
        prop_assert_eq!(decode_starts(text.as_bytes(), CLUSTER), Ok(known));
    }
}
