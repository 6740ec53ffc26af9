//! Proof that a stored object equals the bytes sent: its length is compared, and every byte is read back and
//! compared by checksum.
//!
//! The proof downloads as many bytes as were uploaded. A store's own checksums would cost nothing, but they
//! differ between stores, many S3 stores ignore the checksums sent to them, and the ETag of a multipart
//! upload cannot be compared without reading the parts.

use std::ops::Range;
use std::sync::Arc;

use mlgw_common::checksum::crc32c;

use super::error::UpstreamError;
use super::metrics::add;
use super::source::{SegmentSource, part_ranges};
use super::throttle::ThrottleHook;
use super::{SegmentObject, Upstream};

/// Expected content of an object.
pub(super) enum ExpectedSums<'a> {
    /// Checksums of the parts that were sent.
    Sent(&'a [u32]),
    /// Segment file that would be sent.
    Source(&'a Arc<SegmentSource>),
}

/// Result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// Every byte is the same.
    Same,
    /// The object does not exist.
    Missing,
    /// The length differs; the value is the actual one.
    Length(u64),
    /// The content differs in the part that begins at this offset.
    Differs(u64),
}

impl Upstream {
    /// Compares the object of a segment with its expected content. `before` is called with 0 bytes and may
    /// end the comparison; it counts only bytes read from the disk.
    pub(super) async fn prove(
        &self,
        object: &SegmentObject<'_>,
        sums: ExpectedSums<'_>,
        before: &mut ThrottleHook<'_>,
    ) -> Result<Proof, UpstreamError> {
        let bytes = object.object_bytes();
        if let ExpectedSums::Sent(sums) = sums {
            let parts = part_ranges(bytes, self.tuning.part_bytes).count();
            assert!(sums.len() == parts, "each part that was sent has a checksum");
        }
        match self.length(object.id).await? {
            None => return Ok(Proof::Missing),
            Some(length) if length != bytes => return Ok(Proof::Length(length)),
            Some(_) => {}
        }
        for (n, range) in part_ranges(bytes, self.tuning.part_bytes).enumerate() {
            before(0).await.map_err(|source| self.source_error(object, source))?;
            let sum = self.sum(object, &sums, n, range.clone()).await?;
            let stored = match self.fetch(object, range.clone()).await {
                Ok(stored) => stored,
                Err(UpstreamError::Missing { .. }) => return Ok(Proof::Missing),
                Err(UpstreamError::Truncated { .. }) => return Ok(Proof::Differs(range.start)),
                Err(error) => return Err(error),
            };
            add(&self.meter.metrics.proven_bytes, stored.len() as u64);
            if crc32c(&stored) != sum {
                return Ok(Proof::Differs(range.start));
            }
        }
        Ok(Proof::Same)
    }

    async fn sum(
        &self,
        object: &SegmentObject<'_>,
        sums: &ExpectedSums<'_>,
        part: usize,
        range: Range<u64>,
    ) -> Result<u32, UpstreamError> {
        match sums {
            ExpectedSums::Sent(sums) => Ok(sums[part]),
            ExpectedSums::Source(source) => {
                let part = source.part(range).await.map_err(|source| self.source_error(object, source))?;
                Ok(part.sum)
            }
        }
    }
}
