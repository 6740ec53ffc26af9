//! Quarantine: finds bad blocks by verifying referenced records on the disk, and lists them until nothing
//! refers to them any more.

use mlgw_common::time::Instant;
use std::collections::BTreeSet;
use std::io;

use mlgw_common::ObjectKey;
use mlgw_common::ids::{BodyId, BucketId, PartNumber, SegmentId};
use mlgw_common::limits::{BLOCK_BYTES, QUARANTINED_MAX};
use mlgw_formats::schema::{Replica, SegmentRecord};
use mlgw_metadata::offline::ReferencedExtent;
use mlgw_metadata::store_error::StoreError;
use mlgw_metadata::{Catalogue, ChunkOwner};
use serde::{Deserialize, Serialize};

use super::ScrubShared;
use crate::hot::location::RecordLocation;
use crate::hot::verify::{RecordDamage, verify_record};
use mlgw_common::SegmentTier;

/// Maximum number of new bad blocks logged per search.
const LOGGED_BLOCKS_MAX: usize = 100;

/// A range of an object that is damaged on the disk.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BadBlock {
    /// The segment.
    pub segment: u64,
    /// Offset of the block in the segment's file.
    pub offset: u64,
    /// Offset of its record in the segment's file.
    pub record: u64,
    /// The bucket's id.
    pub bucket: u64,
    /// The key.
    pub key: String,
    /// The body.
    pub body: u64,
    /// The part if the object was uploaded in parts, to which the byte range then refers; otherwise 0.
    pub part: u16,
    /// First byte of the object, or part, that the record holds.
    pub begin: u64,
    /// First bad byte of the object, or part.
    pub first: u64,
    /// Last bad byte.
    pub last: u64,
    /// Description of the damage.
    pub what: String,
    /// True if the object as a whole does not match its checksum, although each of its blocks does.
    #[serde(default)]
    pub whole: bool,
}

impl BadBlock {
    /// True if an object still refers to the block, or if that cannot be determined.
    fn is_referred_to(&self, catalogue: &Catalogue) -> bool {
        let Ok(key) = ObjectKey::new(&self.key) else { return false };
        if self.whole {
            let object = catalogue.object(BucketId(self.bucket), &key);
            return object.map_or(true, |found| found.is_some_and(|found| found.body_id == self.body));
        }
        let owner = ChunkOwner {
            bucket: BucketId(self.bucket),
            key,
            body: BodyId(self.body),
            part: PartNumber::new(u32::from(self.part)),
            offset: self.begin,
        };
        let named = catalogue.reference(&owner, SegmentId(self.segment), self.record);
        named.map_or(true, |named| named.is_some())
    }
}

impl ScrubShared {
    /// Verifies all referenced extents in these segments, and lists the bad blocks.
    pub(super) fn search_bad_blocks(&self, segments: &BTreeSet<u64>) -> io::Result<()> {
        let mut found = Vec::new();
        let mut record = Vec::new();
        let walked = self.catalogue.each_extent(&mut |referenced| {
            if self.state.lock().stop {
                return Err(StoreError("stopping".to_owned()));
            }
            if segments.contains(&referenced.extent.segment) && found.len() < QUARANTINED_MAX {
                found.extend(self.bad_blocks(referenced, &mut record));
            }
            Ok(())
        });
        self.state.lock().searched = Some(Instant::now());
        match walked {
            Ok(elsewhere) if elsewhere.is_empty() => {}
            Ok(groups) => tracing::info!(?groups, "objects in groups of other nodes are not searched here"),
            Err(error) => {
                self.state.lock().status.suspects.extend(segments);
                return Err(io::Error::other(error));
            }
        }
        found.sort();
        let mut state = self.state.lock();
        let known: BTreeSet<BadBlock> = state.status.bad.drain(..).collect();
        let new: Vec<&BadBlock> = found.iter().filter(|bad| !known.contains(bad)).collect();
        self.hot.count_corrupt(new.len() as u64);
        for BadBlock { segment, offset, key, first, last, what, .. } in
            new.into_iter().take(LOGGED_BLOCKS_MAX)
        {
            tracing::error!(
                segment,
                offset,
                key,
                first,
                last,
                what,
                "a stored block is corrupt; quarantined"
            );
        }
        let others = known.into_iter().filter(|bad| bad.whole || !segments.contains(&bad.segment));
        state.status.bad = others.chain(found).take(QUARANTINED_MAX).collect();
        Ok(())
    }

    /// Removes blocks from the list that nothing refers to any more, and those of segments that this node has
    /// no replica of any more.
    pub(super) fn drop_unreferenced(&self) {
        let bad = self.state.lock().status.bad.clone();
        let is_elsewhere = |bad: &BadBlock| {
            let record = self.catalogue.segment_record(SegmentId(bad.segment));
            let listed = |record: SegmentRecord| record.replica_of(self.hot.node()).is_some();
            !bad.whole && record.is_ok_and(|record| record.is_some_and(|record| !listed(record)))
        };
        let gone: BTreeSet<BadBlock> =
            bad.into_iter().filter(|bad| is_elsewhere(bad) || !bad.is_referred_to(&self.catalogue)).collect();
        let mut state = self.state.lock();
        state.status.bad.retain(|bad| !gone.contains(bad));
        state.forgotten = Instant::now();
    }

    /// True if the segment has a replica on a local disk of this node, or if that cannot be determined.
    fn is_local(&self, segment: SegmentId) -> bool {
        let node = self.hot.node();
        let is_local = |replica: &Replica| replica.tier() != Ok(SegmentTier::Upstream);
        let record = self.catalogue.segment_record(segment);
        let has_file = |of: SegmentRecord| of.replica_of(node).is_some_and(is_local);
        record.map_or(true, |record| record.is_some_and(has_file))
    }

    fn bad_blocks(&self, referenced: &ReferencedExtent<'_>, record: &mut Vec<u8>) -> Vec<BadBlock> {
        let ReferencedExtent { bucket, key, body, part, offset, extent } = *referenced;
        let bad = |at: u64, first: u64, bytes: u64, what: String| BadBlock {
            segment: extent.segment,
            offset: extent.offset + at,
            record: extent.offset,
            bucket: bucket.0,
            key: String::from_utf8_lossy(key).into_owned(),
            body: body.0,
            part: part.map_or(0, |part| part.get()),
            begin: offset,
            first: offset + first,
            last: offset + first + bytes.max(1) - 1,
            what,
            whole: false,
        };
        let all = |what: String| vec![bad(0, 0, extent.logical_bytes, what)];
        let Some(location) = RecordLocation::of(extent) else {
            return all("invalid extent".to_owned());
        };
        let segment = SegmentId(extent.segment);
        let Some(known) = self.catalogue.segment(segment) else { return Vec::new() };
        let opened = self.options.segments.open(segment, known.tier);
        match opened.and_then(|file| verify_record(&file, known.seed, location, referenced, record)) {
            Ok(None) => Vec::new(),
            Ok(Some(RecordDamage::Head(what))) => all(what),
            Ok(Some(RecordDamage::Blocks(blocks))) => {
                let block = |(index, stored_at): (usize, usize)| {
                    let first = index as u64 * BLOCK_BYTES;
                    let bytes = BLOCK_BYTES.min(extent.logical_bytes - first);
                    let at = u64::from(location.head_bytes) + stored_at as u64;
                    bad(at, first, bytes, "it does not match its checksum".to_owned())
                };
                blocks.into_iter().map(block).collect()
            }
            // The segment was moved since the catalogue was read, or is not on a local disk.
            Err(_) if !self.is_local(segment) => Vec::new(),
            Err(error) => all(error.to_string()),
        }
    }
}
