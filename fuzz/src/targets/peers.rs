//! Bytes and texts of other nodes: the hello of a handshake and its answer, addresses, join tokens, requests
//! for certificates, names in certificates, the file of the starts of peers, the messages of a join, and the
//! frames of exclusive connections.
//! Property: a value that is accepted is encoded to bytes that are decoded to the same value; texts have one
//! form; frames are the same whatever pieces they arrive in.

use crate::join_wire::{JoinAnswer, JoinRequest};
use mlgw_common::ClusterId;
use mlgw_transport::{HandshakeRefusal, Hello, PeerAddress, decode_answer, encode_answer, read_frames};
use mlgw_trust::{CertificateRequest, CertifiedNode, JoinToken, decode_starts};

/// Decodes the bytes as each of them.
pub fn run(data: &[u8]) {
    if let Ok(hello) = Hello::decode(data) {
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello.clone()));
        assert_eq!(decode_answer(&encode_answer(&Ok(hello.clone()))), Ok(hello));
    }
    match decode_answer(data) {
        Err(refusal @ HandshakeRefusal::ByPeer { .. }) => {
            let code = refusal.code();
            let again = decode_answer(&encode_answer(&Err(refusal)));
            assert!(matches!(again, Err(HandshakeRefusal::ByPeer { code: of, .. }) if of == code));
        }
        Err(HandshakeRefusal::Malformed(_)) => {}
        Err(other) => panic!("{other:?} is no result of decoding"),
        Ok(hello) => assert_eq!(decode_answer(&encode_answer(&Ok(hello.clone()))), Ok(hello)),
    }
    if let Ok(request) = JoinRequest::decode(data) {
        assert_eq!(JoinRequest::decode(&request.encode()), Ok(request));
    }
    if let Ok(answer) = JoinAnswer::decode(data) {
        assert_eq!(JoinAnswer::decode(&answer.encode()), Ok(answer));
    }
    if let Ok(request) = CertificateRequest::decode(data) {
        assert_eq!(request.encode(), data);
    }
    if let Ok(known) = decode_starts(data, ClusterId(5)) {
        assert!(!known.keys().any(|node| node.0 == 0));
    }
    if let [piece, bytes @ ..] = data {
        let (side, piece) = (piece % 6, usize::from(*piece));
        assert_eq!(read_frames(side, bytes, piece), read_frames(side, bytes, bytes.len()));
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(address) = text.parse::<PeerAddress>() {
        assert_eq!(address.as_str(), text);
        assert!(!address.host().is_empty() && address.port() != 0);
    }
    if let Some(node) = CertifiedNode::of_domain(text) {
        assert_eq!(node.domain(), text);
    }
    if let Ok(token) = text.parse::<JoinToken>() {
        let again: JoinToken = token.text().parse().expect("a token is read back");
        assert!(again.id() == token.id() && again.authority() == token.authority());
        assert!(again.secret() == token.secret());
    }
}
