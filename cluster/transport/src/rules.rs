//! Rules by which peers are refused: removed ids, and the starts on disk.

use arc_swap::ArcSwap;
use mlgw_common::NodeId;
use mlgw_trust::PeerStarts;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Rules by which peers are refused.
pub(crate) struct PeerRules {
    /// Known starts.
    pub(crate) starts: Arc<PeerStarts>,
    removed: ArcSwap<BTreeSet<NodeId>>,
}

impl PeerRules {
    pub(crate) fn new(starts: Arc<PeerStarts>, removed: BTreeSet<NodeId>) -> Self {
        Self { starts, removed: ArcSwap::from_pointee(removed) }
    }

    /// Ids that are refused for ever.
    pub(crate) fn removed(&self) -> Arc<BTreeSet<NodeId>> {
        self.removed.load_full()
    }

    pub(crate) fn set_removed(&self, removed: Arc<BTreeSet<NodeId>>) {
        self.removed.store(removed);
    }
}
