//! Proves that an object is what was sent: its length, and every byte of it, read back and compared by
//! checksum.
//!
//! This costs as much coming down as it cost going up. A store's own checksums would cost nothing, but they
//! are not all of the same kind, many that speak S3 ignore what is sent along, and an ETag of several parts
//! says nothing that could be compared without having read them.

use std::ops::Range;
use std::sync::Arc;

use mlgw_common::checksum::crc32c;

use super::error::UpstreamError;
use super::metrics::add;
use super::put::Before;
use super::source::{Source, parts};
use super::{SegmentObject, Upstream};

/// What an object must be.
pub(super) enum Sums<'a> {
    /// These checksums, part by part, of what was sent.
    Sent(&'a [u32]),
    /// What would be sent.
    Of(&'a Arc<Source>),
}

/// Whether it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// Every byte of it.
    Same,
    /// There is none.
    Missing,
    /// Its length is another one.
    Length(u64),
    /// It differs in the part that begins here.
    Differs(u64),
}

impl Upstream {
    /// Compares the object of a segment with what it must be. `before` may end it, but is not told of any
    /// bytes: it is about what is read from the disk.
    pub(super) async fn prove(
        &self,
        object: &SegmentObject<'_>,
        sums: Sums<'_>,
        before: &mut Before<'_>,
    ) -> Result<Proof, UpstreamError> {
        let bytes = object.object_bytes();
        match self.length(object.id).await? {
            None => return Ok(Proof::Missing),
            Some(length) if length != bytes => return Ok(Proof::Length(length)),
            Some(_) => {}
        }
        for (n, range) in parts(bytes, self.tuning.part_bytes).enumerate() {
            before(0).await.map_err(|source| self.source_error(object, source))?;
            let sum = self.sum(object, &sums, n, range.clone()).await?;
            let stored = match self.fetch(object, range.clone()).await {
                Ok(stored) => stored,
                Err(UpstreamError::Gone { .. }) => return Ok(Proof::Missing),
                Err(UpstreamError::Short { .. }) => return Ok(Proof::Differs(range.start)),
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
        sums: &Sums<'_>,
        part: usize,
        range: Range<u64>,
    ) -> Result<u32, UpstreamError> {
        match sums {
            Sums::Sent(sums) => Ok(sums[part]),
            Sums::Of(source) => {
                let part = source.part(range).await.map_err(|source| self.source_error(object, source))?;
                Ok(part.sum)
            }
        }
    }
}
