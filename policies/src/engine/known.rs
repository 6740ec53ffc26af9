//! What the engine knows of an object that nobody asks for just now. Looking changes nothing.

use super::names::OTHERS;
use super::streams::Streams;
use super::table::Place;
use super::{DatasetId, DatasetName, Engine, Seen, Unread};
use crate::access::Caller;

/// Blocks of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptBlocks {
    /// Those that were looked for.
    pub blocks: u32,
    /// Those of them that are kept.
    pub kept: u32,
    /// Those of these that are pinned.
    pub pinned: u32,
    /// Those of these that are kept because a plan says when they are asked for.
    pub planned: u32,
}

impl Engine {
    /// The dataset that a key belongs to, if any of it was ever asked for and that is not forgotten.
    #[must_use]
    pub fn find_dataset(&self, bucket: u64, key: &str) -> Option<DatasetId> {
        self.names.find(bucket, key).map(|number| self.names.id(number))
    }

    /// What a dataset is called; nothing, when it is not told from others any more.
    #[must_use]
    pub fn dataset_name(&self, id: DatasetId) -> Option<&DatasetName> {
        let number = self.names.now(id).filter(|number| *number != OTHERS);
        number.map(|number| self.names.name(number))
    }

    /// A dataset as a family sees it, by the first of its callers who is known to read it; otherwise as all
    /// of them together do.
    pub(crate) fn unseen(
        &self,
        now_us: u64,
        dataset: DatasetId,
        family: u64,
        callers: impl Iterator<Item = u64>,
    ) -> Seen {
        let mut streams = callers.map(|id| Streams::id(Caller { id, family }, dataset));
        let stream = streams.find(|stream| self.streams.job(*stream).is_some());
        Seen { now_us, dataset, stream: stream.unwrap_or_default(), family, goes_on: true }
    }

    /// What is kept of an object, of which at most so many blocks are looked for.
    pub(crate) fn kept_of(&self, object: &Unread<'_>, blocks_max: u32) -> KeptBlocks {
        let blocks = object.size.div_ceil(self.options.block_bytes).min(blocks_max.into()) as u32;
        let mut found = KeptBlocks { blocks, ..KeptBlocks::default() };
        for number in 0..blocks {
            let id = self.names.block_id(object.bucket, object.key, number);
            let place = self.table.find(id).map_or(Place::Away, |slot| self.table[slot].place());
            found.kept += u32::from(place.is_kept());
            found.pinned += u32::from(place == Place::Pinned);
            found.planned += u32::from(place == Place::Planned);
        }
        found
    }
}
