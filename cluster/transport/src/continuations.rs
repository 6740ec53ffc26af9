//! Bodies of answers whose rest the peer requests on another connection.
//!
//! An answer on a multiplexed connection is short ([`crate::multiplexed_serve`]). If its body is longer, or
//! not complete in time, the answer carries a key. The peer requests the rest at once as a stream of its own,
//! which has flow control. Only the peer that got the key gets the rest, once. A body that is not requested
//! soon is dropped, which gives its request up. Nothing is stored.

use crate::error::ServiceRefusal;
use crate::service::{PeerBody, StreamAnswer};
use bytes::Bytes;
use mlgw_common::NodeId;
use mlgw_common::limits::PEER_REQUEST_STREAMS_MAX;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;

/// Service number of a stream for the rest of a body; its head is the key.
pub(crate) const REST_OF_BODY: u16 = u16::MAX;
/// Time after which a body is dropped that was not requested.
pub(crate) const KEPT_MAX: Duration = Duration::from_secs(5);

/// The bodies that wait for their peers.
#[derive(Default)]
pub(crate) struct Continuations(Mutex<KeptBodies>);

#[derive(Default)]
struct KeptBodies {
    last_key: u64,
    by_key: BTreeMap<u64, KeptBody>,
}

struct KeptBody {
    peer: NodeId,
    body: PeerBody,
}

impl Continuations {
    /// Keeps a body for a peer, and returns its key. `None` if too many wait.
    pub(crate) fn keep(&self, peer: NodeId, body: PeerBody) -> Option<u64> {
        let mut kept = self.0.lock();
        if kept.by_key.len() >= PEER_REQUEST_STREAMS_MAX {
            return None;
        }
        kept.last_key += 1;
        let key = kept.last_key;
        kept.by_key.insert(key, KeptBody { peer, body });
        Some(key)
    }

    /// Drops a body that was not requested.
    pub(crate) fn expire(&self, key: u64) {
        let expired = self.0.lock().by_key.remove(&key);
        drop(expired);
    }

    /// The rest of the body whose key this head has.
    ///
    /// # Errors
    /// If none waits for this peer.
    pub(crate) fn take(&self, peer: NodeId, head: &[u8]) -> Result<StreamAnswer, ServiceRefusal> {
        let mut kept = self.0.lock();
        let key = head.try_into().map(u64::from_be_bytes).ok();
        let key = key.filter(|key| kept.by_key.get(key).is_some_and(|kept| kept.peer == peer));
        match key.and_then(|key| kept.by_key.remove(&key)) {
            Some(KeptBody { body, .. }) => Ok(StreamAnswer { head: Bytes::new(), body }),
            None => Err(ServiceRefusal { code: 0, message: "no body waits with this key".to_owned() }),
        }
    }
}
