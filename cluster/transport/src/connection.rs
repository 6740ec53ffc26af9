//! A connection that this node made and whose handshake passed.

use crate::address::PeerAddress;
use crate::body::SentBody;
use crate::exclusive::ExclusivePool;
use crate::metered::StreamFacts;
use crate::multiplexed::MultiplexedSlot;
use hyper::client::conn::http2::SendRequest;
use mlgw_common::NodeId;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Connection that passed the handshake.
pub(crate) struct OpenConnection {
    pub(crate) node: NodeId,
    pub(crate) address: PeerAddress,
    pub(crate) sender: SendRequest<SentBody>,
    pub(crate) facts: StreamFacts,
    pub(crate) cancel: CancellationToken,
    /// The exclusive connections beside it.
    pub(crate) exclusive: Arc<ExclusivePool>,
    /// The multiplexed connection beside it.
    pub(crate) multiplexed: MultiplexedSlot,
}

impl OpenConnection {
    /// True until this side has detected that the connection is closed.
    pub(crate) fn is_open(&self) -> bool {
        !self.cancel.is_cancelled() && !self.sender.is_closed()
    }
}
