//! Rests of bodies that peers request on another connection.
//!
//! An answer on a multiplexed connection is short ([`crate::multiplexed_serve`]). If its body is longer, or
//! not complete in time, the answer has a key. The peer requests the rest at once, as a stream of its own,
//! which has flow control. Only the peer that got the key gets the rest, once. A body that is not requested
//! within [`KEPT_MAX`] is dropped, and its request is cancelled. Each peer has a limit. Nothing is stored.

use crate::error::ServiceRefusal;
use crate::service::{PeerBody, StreamAnswer};
use bytes::Bytes;
use mlgw_common::NodeId;
use mlgw_common::limits::PEER_REQUEST_STREAMS_MAX;
use mlgw_common::time::Instant;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;

/// Service number of a stream for the rest of a body; its head is the key.
pub(crate) const REST_OF_BODY: u16 = u16::MAX;
/// Time for which a body waits for its peer.
pub(crate) const KEPT_MAX: Duration = Duration::from_secs(5);

/// The rests of bodies that wait for their peers.
#[derive(Default)]
pub(crate) struct RestsOfBodies(Mutex<KeptBodies>);

#[derive(Default)]
struct KeptBodies {
    last_key: u64,
    by_peer: BTreeMap<NodeId, BTreeMap<u64, KeptBody>>,
    /// True while a task removes those that wait for too long.
    is_swept: bool,
}

struct KeptBody {
    body: PeerBody,
    until: Instant,
}

/// A body that is kept.
pub(crate) struct KeptRest {
    pub(crate) key: u64,
    /// True if the caller begins the task that calls [`RestsOfBodies::sweep`].
    pub(crate) begins_sweep: bool,
}

impl RestsOfBodies {
    /// Keeps a body for a peer. `None` if too many wait for it.
    pub(crate) fn keep(&self, peer: NodeId, body: PeerBody) -> Option<KeptRest> {
        let mut kept = self.0.lock();
        kept.last_key += 1;
        let key = kept.last_key;
        let of_peer = kept.by_peer.entry(peer).or_default();
        if of_peer.len() >= PEER_REQUEST_STREAMS_MAX {
            return None;
        }
        of_peer.insert(key, KeptBody { body, until: Instant::now() + KEPT_MAX });
        let begins_sweep = !std::mem::replace(&mut kept.is_swept, true);
        Some(KeptRest { key, begins_sweep })
    }

    /// Drops the bodies that have waited for too long. Returns false if none is left: the task ends then.
    pub(crate) fn sweep(&self) -> bool {
        let (now, mut expired) = (Instant::now(), Vec::new());
        let is_swept = {
            let mut kept = self.0.lock();
            for of_peer in kept.by_peer.values_mut() {
                expired.extend(of_peer.extract_if(.., |_, kept| kept.until <= now));
            }
            kept.by_peer.retain(|_, of_peer| !of_peer.is_empty());
            kept.is_swept = !kept.by_peer.is_empty();
            kept.is_swept
        };
        drop(expired);
        is_swept
    }

    /// Drops a body whose request was cancelled.
    pub(crate) fn remove(&self, peer: NodeId, key: u64) {
        let removed = self.0.lock().by_peer.get_mut(&peer).and_then(|of_peer| of_peer.remove(&key));
        drop(removed);
    }

    /// The rest of the body whose key this head is.
    ///
    /// # Errors
    /// If none waits for this peer.
    pub(crate) fn take(&self, peer: NodeId, head: &[u8]) -> Result<StreamAnswer, ServiceRefusal> {
        let key = head.try_into().map(u64::from_be_bytes).ok();
        let taken = key.and_then(|key| self.0.lock().by_peer.get_mut(&peer)?.remove(&key));
        match taken {
            Some(KeptBody { body, .. }) => Ok(StreamAnswer { head: Bytes::new(), body }),
            None => Err(ServiceRefusal { code: 0, message: "no body waits with this key".to_owned() }),
        }
    }
}
