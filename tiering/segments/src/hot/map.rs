//! What the hot tier needs of the catalogue: the segment map.
//!
//! A trait, so that the tier is tested against an obvious map in memory. Ids are never reused; a
//! seal is final and decides a segment's length for everyone.

use std::future::Future;
use std::pin::Pin;

use mlgw_common::Timestamp;
use mlgw_common::ids::{SegmentId, SegmentSeed};
use mlgw_formats::schema::{SegmentClass, SegmentRecord};

pub use mlgw_formats::segment_header::NewSegment;

/// A segment that the catalogue holds for open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenSegment {
    /// The segment.
    pub id: SegmentId,
    /// What seeds its checksums.
    pub seed: SegmentSeed,
    /// When it was created.
    pub created: Timestamp,
    /// Its first so many bytes are known to be whole records on stable media.
    pub marked: u64,
}

/// Where a segment is, as its record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whereabouts {
    /// What seeds its checksums.
    pub seed: SegmentSeed,
    /// When it was created; none where that is not known.
    pub created: Option<Timestamp>,
    /// The tier: 0 is hot, 1 is cold, 2 is an upstream.
    pub tier: u32,
}

impl Whereabouts {
    /// The place that a record has.
    #[must_use]
    pub fn of(record: &SegmentRecord) -> Self {
        let created = Some(Timestamp(record.created_ms));
        Self { seed: record.seed(), created, tier: record.summary().tier }
    }
}

/// Why the catalogue did not change the segment map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// It is shutting down: nothing more will change.
    #[error("the catalogue is stopping")]
    Stopping,
    /// Too much is waiting: try again a little later.
    #[error("the catalogue is overloaded")]
    Overloaded,
    /// It refused the command: trying again does not help.
    #[error("the catalogue refused: {0}")]
    Refused(String),
}

/// An answer that arrives later.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The part of the catalogue that says which segments exist.
pub trait SegmentMap: Send + Sync + 'static {
    /// Mints a segment, in state open; durable when it answers.
    fn create(&self, class: SegmentClass) -> Later<'_, Result<NewSegment, MapError>>;

    /// Seals a segment at `length`. Sealing a sealed segment again is not an error.
    fn seal(&self, id: SegmentId, length: u64) -> Later<'_, Result<(), MapError>>;

    /// Notes that the first `length` bytes of an open segment are whole records on stable media.
    fn mark(&self, id: SegmentId, length: u64) -> Later<'_, Result<(), MapError>>;

    /// The segments of this tier in state open.
    ///
    /// # Errors
    /// When the catalogue cannot be read.
    fn open_segments(&self) -> Result<Vec<OpenSegment>, MapError>;

    /// The records of this node's segments in other tiers than the hot one. A map that knows of no other has
    /// none.
    ///
    /// # Errors
    /// When the catalogue cannot be read.
    fn elsewhere(&self) -> Result<Vec<SegmentRecord>, MapError> {
        Ok(Vec::new())
    }

    /// The record of a segment. A map that knows of the hot tier only has none.
    ///
    /// # Errors
    /// When the catalogue cannot be read.
    fn record(&self, _id: SegmentId) -> Result<Option<SegmentRecord>, MapError> {
        Ok(None)
    }

    /// The segments of this node in a tier whose bytes something refers to. A map that is not asked has none.
    ///
    /// # Errors
    /// When the catalogue cannot be read.
    fn referenced(&self, _tier: u32) -> Result<Vec<SegmentId>, MapError> {
        Ok(Vec::new())
    }

    /// Where a segment is, or nothing when the catalogue does not know it.
    fn place(&self, id: SegmentId) -> Option<Whereabouts>;

    /// Whether the id was ever given to a segment.
    ///
    /// # Errors
    /// When the catalogue cannot be read.
    fn was_minted(&self, id: SegmentId) -> Result<bool, MapError>;

    /// Log entries of the catalogue that are on stable media. A map without a log has none.
    fn synced_entries(&self) -> u64 {
        0
    }

    /// Waits until everything that the catalogue said so far survives power loss. Blocks.
    ///
    /// # Errors
    /// When it does not.
    fn settle(&self) -> Result<(), MapError>;
}
