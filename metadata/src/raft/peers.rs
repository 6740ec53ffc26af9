//! Seam to the transport between the nodes of a cluster: calls and snapshots to other members.
//!
//! The transport connects members of the cluster only, and names the node at the other end truthfully. The
//! error of a call states if the other node may have received it: such a proposal is never sent to it again.

use crate::store_error::StoreError;
use bytes::Bytes;
use futures_util::Stream;
use mlgw_common::NodeId;
use mlgw_common::time::Instant;
use mlgw_formats::format_error::FormatError;
use std::io;
use std::pin::Pin;

/// Connection that a call uses. Calls of one lane never wait for bytes of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberLane {
    /// Votes, heartbeats, read indexes: small, and needed in time.
    Control,
    /// Log entries, proposals, sagas and questions about readers.
    Log,
}

/// Failure of a call or of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// Nothing of the call reached the other node; it may be sent again.
    #[error("the node is not reachable: {0}")]
    NotSent(String),
    /// The other node may have carried out the call.
    #[error("the node did not answer: {0}")]
    Unknown(String),
    /// The other node refused the call and did nothing.
    #[error("the node refused the call: {0}")]
    Refused(String),
}

/// Result of a call, when it is there.
pub type PeerFuture<'a> = Pin<Box<dyn Future<Output = Result<Bytes, PeerError>> + Send + 'a>>;

/// Bytes of a snapshot, in pieces.
pub type SnapshotBytes = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// The other nodes of the cluster.
pub trait MemberPeers: Send + Sync + 'static {
    /// Sends a call to the catalogue of `node`, which answers by
    /// [`Catalogue::serve_call`](crate::catalogue::Catalogue::serve_call).
    fn call(&self, node: NodeId, lane: MemberLane, call: Bytes, deadline: Instant) -> PeerFuture<'_>;

    /// Sends a snapshot to the catalogue of `node`, which accepts the head by
    /// [`Catalogue::accept_snapshot`](crate::catalogue::Catalogue::accept_snapshot) and answers when it has
    /// installed the snapshot. The body is not polled before the head is accepted.
    fn send_snapshot(&self, node: NodeId, head: Bytes, body: SnapshotBytes) -> PeerFuture<'_>;
}

/// Refusal of a call from another node: nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CallRefused(pub String);

impl From<StoreError> for CallRefused {
    fn from(error: StoreError) -> Self {
        Self(error.0)
    }
}

impl From<FormatError> for CallRefused {
    fn from(error: FormatError) -> Self {
        Self(error.0)
    }
}
