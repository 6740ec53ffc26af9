//! Lookups of objects without a current access. They change no state.

use super::names::OTHERS;
use super::order::ReadStart;
use super::streams::Streams;
use super::table::EntryState;
use super::{CacheEngine, DatasetId, DatasetName, ObservedAccess, UnreadBlock};
use crate::access::Caller;

/// Counts of an object's blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptBlocks {
    /// Blocks that were looked up.
    pub blocks: u32,
    /// Blocks of these that are kept.
    pub kept: u32,
    /// Kept blocks that are pinned.
    pub pinned: u32,
    /// Kept blocks that are kept because of a plan.
    pub planned: u32,
}

impl CacheEngine {
    /// Returns the dataset of a key, if the key belongs to a known dataset.
    #[must_use]
    pub fn find_dataset(&self, bucket: u64, key: &str) -> Option<DatasetId> {
        self.names.find(bucket, key).map(|number| self.names.id(number))
    }

    /// Returns the name of a dataset; `None` if it is no longer distinguished from others.
    #[must_use]
    pub fn dataset_name(&self, id: DatasetId) -> Option<&DatasetName> {
        let number = self.names.current_number(id).filter(|number| *number != OTHERS);
        number.map(|number| self.names.name(number))
    }

    /// Returns an access context of a dataset for a family of callers (same key, user agent and workload):
    /// that of the first of its callers that is known to read the dataset, or else that of the family's
    /// common job.
    pub(crate) fn access_of_family(
        &self,
        now_us: u64,
        dataset: DatasetId,
        family: u64,
        callers: impl Iterator<Item = u64>,
    ) -> ObservedAccess {
        let mut streams = callers.map(|id| Streams::stream_id(Caller { id, family }, dataset));
        let stream = streams.find(|stream| self.streams.job(*stream).is_some());
        let (stream, start) = (stream.unwrap_or_default(), ReadStart::Sequential);
        ObservedAccess { now_us, dataset, stream, family, start }
    }

    /// Returns the counts of an object's blocks; looks up at most `blocks_max` blocks.
    pub(crate) fn kept_blocks(&self, object: &UnreadBlock<'_>, blocks_max: u32) -> KeptBlocks {
        let blocks = object.size.div_ceil(self.options.block_bytes).min(blocks_max.into()) as u32;
        let mut counts = KeptBlocks { blocks, ..KeptBlocks::default() };
        for number in 0..blocks {
            let id = self.names.block_id(object.bucket, object.key, number);
            let place = self.table.find(id).map_or(EntryState::NotKept, |slot| self.table[slot].state());
            counts.kept += u32::from(place.is_kept());
            counts.pinned += u32::from(place == EntryState::Pinned);
            counts.planned += u32::from(place == EntryState::Planned);
        }
        counts
    }
}
