//! The other members of the catalogue's groups, over the transport.
//!
//! The transport starts after the catalogue has opened and stops before it closes. Outside of that time each
//! call fails as not sent.

use crate::services::{CATALOGUE, SNAPSHOT};
use arc_swap::ArcSwapOption;
use bytes::Bytes;
use futures_util::StreamExt as _;
use http_body::Frame;
use http_body_util::{BodyExt as _, Limited, StreamBody};
use mlgw_common::NodeId;
use mlgw_common::time::{Instant, sleep};
use mlgw_metadata::{MemberLane, MemberPeers, PeerError, PeerFuture, SnapshotBytes};
use mlgw_transport::{CallError, Channel, ClusterTransport, PeerBody, PeerBodyError, StreamClass};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Longest time until another node accepts the head of a snapshot.
const SNAPSHOT_ACCEPT_MAX: Duration = Duration::from_secs(10);

/// Longest time in which a snapshot makes no progress. The end of it is the installation, which links files.
const SNAPSHOT_STALL_MAX: Duration = Duration::from_secs(60);

/// Longest answer to a snapshot.
const SNAPSHOT_ANSWER_BYTES_MAX: usize = 64 << 10;

/// The transport of this node while it runs.
#[derive(Debug, Default)]
pub(crate) struct RunningTransport(ArcSwapOption<ClusterTransport>);

impl RunningTransport {
    /// Makes a started transport available.
    pub(crate) fn set(&self, transport: ClusterTransport) {
        self.0.store(Some(Arc::new(transport)));
    }

    /// Takes the transport, so that later calls fail.
    pub(crate) fn take(&self) -> Option<Arc<ClusterTransport>> {
        self.0.swap(None)
    }

    /// The transport; `None` before its start and after its end.
    pub(crate) fn get(&self) -> Option<Arc<ClusterTransport>> {
        self.0.load_full()
    }

    fn running(&self) -> Result<Arc<ClusterTransport>, PeerError> {
        self.get().ok_or_else(|| PeerError::NotSent("the transport of this node does not run".to_owned()))
    }
}

/// The other nodes, as the catalogue calls them.
#[derive(Debug)]
pub(crate) struct TransportPeers {
    transport: Arc<RunningTransport>,
}

impl TransportPeers {
    pub(crate) const fn new(transport: Arc<RunningTransport>) -> Self {
        Self { transport }
    }

    async fn send(&self, node: NodeId, head: Bytes, body: SnapshotBytes) -> Result<Bytes, PeerError> {
        let transport = self.transport.running()?;
        let progress = Arc::new(AtomicU64::new(0));
        let body = counted_body(body, Arc::clone(&progress));
        let deadline = Instant::now() + SNAPSHOT_ACCEPT_MAX;
        let opened = transport.stream(node, StreamClass::Transfer, SNAPSHOT, head, body, deadline).await;
        let answer = Limited::new(opened.map_err(peer_error)?.body, SNAPSHOT_ANSWER_BYTES_MAX).collect();
        tokio::select! {
            collected = answer => match collected {
                Ok(collected) => Ok(collected.to_bytes()),
                Err(error) => Err(PeerError::Unknown(error.to_string())),
            },
            () = stalled(&progress) => Err(PeerError::Unknown("the snapshot makes no progress".to_owned())),
        }
    }
}

impl MemberPeers for TransportPeers {
    fn call(&self, node: NodeId, lane: MemberLane, call: Bytes, deadline: Instant) -> PeerFuture<'_> {
        let channel = match lane {
            MemberLane::Control => Channel::Control,
            MemberLane::Log => Channel::Log,
        };
        Box::pin(async move {
            let transport = self.transport.running()?;
            transport.call(node, channel, CATALOGUE, call, deadline).await.map_err(peer_error)
        })
    }

    fn send_snapshot(&self, node: NodeId, head: Bytes, body: SnapshotBytes) -> PeerFuture<'_> {
        Box::pin(self.send(node, head, body))
    }
}

/// The bytes of a snapshot as the body of a stream. Each piece that the transport takes is counted.
fn counted_body(body: SnapshotBytes, progress: Arc<AtomicU64>) -> PeerBody {
    let frames = body.map(move |piece| {
        progress.fetch_add(1, Ordering::Relaxed);
        piece.map(Frame::data).map_err(|error| PeerBodyError::Failed(error.to_string()))
    });
    PeerBody::new(StreamBody::new(frames))
}

/// Completes when nothing was counted for [`SNAPSHOT_STALL_MAX`].
async fn stalled(progress: &AtomicU64) {
    loop {
        let before = progress.load(Ordering::Relaxed);
        sleep(SNAPSHOT_STALL_MAX).await;
        if progress.load(Ordering::Relaxed) == before {
            return;
        }
    }
}

/// The error of a call by what the catalogue may do next.
fn peer_error(error: CallError) -> PeerError {
    match error {
        CallError::NotSent { .. } | CallError::PeerRefused { .. } => PeerError::NotSent(error.to_string()),
        CallError::Refused { refusal, .. } => PeerError::Refused(refusal.message),
        CallError::Unknown { .. } => PeerError::Unknown(error.to_string()),
    }
}
