//! Epochs of a segment, and the proposal that seals it.
//!
//! An epoch names who may act on an open segment: its creation has one, and so has each attempt to recover
//! it. Attempts of one leader are counted, and leaders of the segment group have distinct terms, so no two
//! attempts share an epoch.

use mlgw_common::{NodeId, SegmentId};
use std::fmt;

/// Epoch of a segment. Epochs are ordered by term, then by attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentEpoch {
    /// Term of the leader of the segment group.
    pub term: u64,
    /// Attempt within that term; 0 for the creation of the segment.
    pub attempt: u32,
}

impl fmt::Display for SegmentEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term, self.attempt)
    }
}

/// The command that seals a segment. It is refused if the record names a higher epoch, and changes nothing if
/// the segment is sealed: the first seal decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealProposal {
    /// Id of the segment.
    pub segment: SegmentId,
    /// Epoch of the primary or of the recovery.
    pub epoch: SegmentEpoch,
    /// Length of the sealed segment.
    pub length: u64,
    /// Nodes with a replica of that length, in the order of the record: the first becomes the owner.
    pub replicas: Vec<NodeId>,
}
