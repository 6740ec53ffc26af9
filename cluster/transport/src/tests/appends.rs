//! Tests of streams of appends on exclusive connections: bodies in both directions at the same time, and what
//! ends them.

use super::nodes::{
    BROKEN, ECHO, REFUSE, SINK, TestCluster, TransportNode, body_of, empty_body, late, read, take, until,
    zeros,
};
use crate::{CallError, Channel, PeerBody, PeerBodyError, StreamAnswer, StreamClass};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use mlgw_common::NodeId;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const TWO: NodeId = NodeId(2);

async fn open(one: &TransportNode, service: u16, body: PeerBody) -> Result<StreamAnswer, CallError> {
    one.transport.stream(TWO, StreamClass::Append, service, Bytes::from_static(b"head"), body, late()).await
}

/// Number of exclusive connections for appends and log entries.
fn exclusive(node: &TransportNode) -> u64 {
    node.transport.counters().get(Channel::Log.index()).map_or(0, |counters| counters.exclusive)
}

/// A body of these pieces, and what follows them.
fn pieces(pieces: Vec<Bytes>, end: Option<PeerBodyError>) -> PeerBody {
    let pieces = stream::iter(pieces).map(|piece| Ok(Frame::data(piece)));
    StreamBody::new(pieces.chain(stream::iter(end.map(Err)))).boxed_unsync()
}

/// A body that never ends, after a piece.
fn endless() -> PeerBody {
    let piece = stream::once(async { Ok(Frame::data(Bytes::from_static(b"piece"))) });
    StreamBody::new(Box::pin(piece.chain(stream::pending()))).boxed_unsync()
}

/// The end of the body that [`SINK`] has read.
async fn sunk(two: &TransportNode) -> Result<usize, PeerBodyError> {
    two.services.gate.add_permits(1 << 10);
    take(&two.services.sunk_end).await;
    two.services.sunk.lock().take().unwrap()
}

#[tokio::test]
async fn bodies_of_any_pieces_go_both_ways_at_once_on_a_connection_of_their_own() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    let sizes = [1, 40_000, 3 << 20, 0, 32 << 10, (32 << 10) - 1, 100, 5 << 20, 64 << 10];
    let sent: Vec<Bytes> =
        sizes.iter().enumerate().map(|(at, size)| Bytes::from(vec![at as u8 + 1; *size])).collect();
    for _ in 0..3 {
        let answer = open(&one, ECHO, pieces(sent.clone(), None)).await.unwrap();
        assert_eq!(&answer.head[..], b"re: head");
        assert_eq!((exclusive(&one), exclusive(&two)), (1, 1));
        assert!(read(answer.body).await.unwrap() == sent.concat());
        until(|| exclusive(&one) == 0 && exclusive(&two) == 0).await;
    }
    // Large bodies do not wait in memory.
    let taken = Arc::new(AtomicUsize::new(0));
    let mut answer = open(&one, ECHO, zeros(1 << 30, taken.clone())).await.unwrap();
    answer.body.frame().await.unwrap().unwrap();
    assert!(taken.load(Ordering::SeqCst) < 64 << 20);
}

#[tokio::test]
async fn a_refused_stream_sends_no_body_and_a_failed_answer_is_cut() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    let taken = Arc::new(AtomicUsize::new(0));
    let refused = open(&one, REFUSE, zeros(1 << 20, taken.clone())).await.unwrap_err();
    assert!(matches!(refused, CallError::Refused { .. }), "{refused}");
    assert_eq!(taken.load(Ordering::SeqCst), 0);
    let mut answer = open(&one, BROKEN, endless()).await.unwrap();
    let piece = answer.body.frame().await.unwrap().unwrap();
    assert_eq!(&piece.data_ref().unwrap()[..], b"piece");
    two.services.gate.add_permits(1);
    let cut = read(answer.body).await.unwrap_err();
    assert!(matches!(cut, PeerBodyError::Cut(_)), "{cut}");
    until(|| exclusive(&one) == 0 && exclusive(&two) == 0).await;
}

#[tokio::test]
async fn a_body_without_its_end_is_cut_for_the_service() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    // It fails.
    let failure = PeerBodyError::Failed("on purpose".to_owned());
    let answer = open(&one, ECHO, pieces(vec![Bytes::from_static(b"piece")], Some(failure))).await.unwrap();
    read(answer.body).await.unwrap_err();
    // The stream is given up, and the answer has not ended.
    let answer = open(&one, SINK, endless()).await.unwrap();
    drop(answer);
    let cut = sunk(&two).await.unwrap_err();
    assert!(matches!(cut, PeerBodyError::Cut(_)), "{cut}");
    // The node of the writer dies.
    let _answer = open(&one, SINK, endless()).await.unwrap();
    one.crash().await;
    let cut = sunk(&two).await.unwrap_err();
    assert!(matches!(cut, PeerBodyError::Cut(_)), "{cut}");
}

#[tokio::test]
async fn a_peer_that_dies_cuts_the_answer() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    let answer = open(&one, BROKEN, endless()).await.unwrap();
    two.crash().await;
    let cut = read(answer.body).await.unwrap_err();
    assert!(matches!(cut, PeerBodyError::Cut(_)), "{cut}");
}

#[tokio::test]
async fn removal_closes_the_streams() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    let answer = open(&one, BROKEN, endless()).await.unwrap();
    two.transport.set_removed([NodeId(1)].into());
    let cut = read(answer.body).await.unwrap_err();
    assert!(matches!(cut, PeerBodyError::Cut(_)), "{cut}");
}

#[tokio::test]
async fn appends_share_a_connection_while_exclusive_ones_cannot_be_made() {
    let cluster = TestCluster::new();
    let [one, _two] = cluster.pair().await;
    one.transport.call(TWO, Channel::Log, ECHO, Bytes::new(), late()).await.unwrap();
    let peer = one.transport.state.peer(TWO);
    until(|| peer.link(Channel::Log).opened().is_some_and(|of| of.exclusive.take().is_some())).await;
    peer.link(Channel::Log).opened().unwrap().exclusive.pause_dials();
    until(|| exclusive(&one) == 0).await;
    let answer = open(&one, ECHO, body_of("piece")).await.unwrap();
    assert_eq!(exclusive(&one), 0);
    assert_eq!(read(answer.body).await.unwrap(), b"piece");
    let answer = open(&one, ECHO, empty_body()).await.unwrap();
    assert_eq!(read(answer.body).await.unwrap(), b"");
}
