//! Reads of a range of a segment, which fetch only the bytes of the store that contain it.
//!
//! The result has exactly the requested length, or the read fails; the content of an encrypted object is also
//! verified. The content of a plain object is verified by the caller: the records of a segment carry their
//! own checksums. Each read is one request; a caller that reads much requests several ranges concurrently,
//! and the gate limits the number in flight.

use std::ops::Range;

use bytes::Bytes;

use super::error::{UpstreamError, UpstreamFault};
use super::metrics::{UpstreamOp, add};
use super::objects::object_name;
use super::{SegmentObject, Upstream};

impl Upstream {
    /// Reads `length` bytes from `offset` of the segment file.
    ///
    /// # Errors
    /// [`UpstreamError::Missing`], [`UpstreamError::Unreachable`] after several tries,
    /// [`UpstreamError::Refused`], [`UpstreamError::Truncated`], or [`UpstreamError::Corrupt`] if the content
    /// differs from what was stored or the range exceeds the segment.
    pub async fn read(
        &self,
        object: &SegmentObject<'_>,
        offset: u64,
        length: u64,
    ) -> Result<Bytes, UpstreamError> {
        let corrupt = |fault: String| UpstreamError::Corrupt {
            upstream: self.name.clone(),
            segment: object.id.segment,
            fault,
        };
        let Some(end) = offset.checked_add(length).filter(|end| *end <= object.bytes) else {
            return Err(corrupt(format!(
                "bytes {offset} to {} are outside the object of {} bytes",
                offset.saturating_add(length),
                object.bytes
            )));
        };
        if length == 0 {
            return Ok(Bytes::new());
        }
        let read = match object.frames() {
            None => self.fetch(object, offset..end).await,
            Some(frames) => {
                let stored = self.fetch(object, frames.stored_range(&(offset..end))).await?;
                frames.open(&(offset..end), &stored).map_err(|fault| corrupt(fault.to_string()))
            }
        };
        let is_exact = read.as_ref().map_or(true, |bytes| bytes.len() as u64 == length);
        assert!(is_exact, "a read returns exactly the requested bytes");
        if matches!(read, Err(UpstreamError::Truncated { .. } | UpstreamError::Corrupt { .. })) {
            add(&self.meter.metrics.corrupt_reads, 1);
        }
        read
    }

    /// Reads a range of the object completely.
    pub(super) async fn fetch(
        &self,
        object: &SegmentObject<'_>,
        range: Range<u64>,
    ) -> Result<Bytes, UpstreamError> {
        assert!(range.start <= range.end, "a range ends no earlier than it begins");
        let (wanted, offset) = (range.end - range.start, range.start);
        if wanted == 0 {
            return Ok(Bytes::new());
        }
        let name = object_name(object.id);
        let read = || self.operator.read_with(&name).range(range.clone());
        let got = match self.with_retries(UpstreamOp::Read, 0, wanted, read).await {
            Ok(bytes) if bytes.len() as u64 == wanted => bytes.to_bytes(),
            Ok(_) | Err(UpstreamFault::Truncated) => {
                let (upstream, segment) = (self.name.clone(), object.id.segment);
                return Err(UpstreamError::Truncated { upstream, segment, offset, wanted });
            }
            Err(fault) => return Err(fault.into_error(&self.name, object.id.segment)),
        };
        Ok(got)
    }
}
