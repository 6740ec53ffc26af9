//! Content to store for a segment, part by part: its file, or the encrypted file.
//!
//! Any part can be produced again and is then identical, so a part that is resent, or compared with stored
//! bytes, needs no memory of its own. Bytes that were read are dropped from the page cache, which is reserved
//! for bytes that clients read.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use bytes::Bytes;
use mlgw_common::checksum::crc32c;
use rustix::fs::{Advice, fadvise};

use super::SegmentObject;
use super::encrypted_frames::SegmentCipher;

/// Object content of a segment.
pub(super) struct SegmentSource {
    file: File,
    frames: Option<SegmentCipher>,
    object_bytes: u64,
}

/// Part of the content, with its checksum.
pub(super) struct SourcePart {
    pub(super) bytes: Bytes,
    pub(super) sum: u32,
}

impl SegmentSource {
    pub(super) fn new(object: &SegmentObject<'_>, file: File) -> Self {
        let frames = object.frames();
        let object_bytes = frames.as_ref().map_or(object.bytes, SegmentCipher::object_bytes);
        Self { file, frames, object_bytes }
    }

    pub(super) fn object_bytes(&self) -> u64 {
        self.object_bytes
    }

    /// Returns the bytes of the object in `range`, read and encrypted on a blocking thread.
    pub(super) async fn part(self: &Arc<Self>, range: Range<u64>) -> io::Result<SourcePart> {
        let of = self.clone();
        let read = tokio::task::spawn_blocking(move || {
            let bytes = of.read(range)?;
            Ok(SourcePart { sum: crc32c(&bytes), bytes: bytes.into() })
        });
        read.await.unwrap_or_else(|stopped| Err(io::Error::other(stopped)))
    }

    fn read(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        let is_within = range.start <= range.end && range.end <= self.object_bytes;
        assert!(is_within, "a part lies within its object");
        let bytes = range.end - range.start;
        let part = match &self.frames {
            Some(frames) => frames.seal(range.clone(), |out, at| self.file.read_exact_at(out, at))?,
            None => {
                let mut part = vec![0; bytes as usize];
                self.file.read_exact_at(&mut part, range.start)?;
                part
            }
        };
        // The range of an encrypted object differs slightly from that of the file, but all ranges together
        // cover the file.
        if bytes > 0 {
            fadvise(&self.file, range.start, NonZeroU64::new(bytes), Advice::DontNeed)?;
        }
        Ok(part)
    }
}

impl SegmentObject<'_> {
    pub(super) fn frames(&self) -> Option<SegmentCipher> {
        self.key.map(|key| SegmentCipher::new(self.id.segment, self.generation, self.bytes, key))
    }

    /// Returns the length of the object.
    #[must_use]
    pub fn object_bytes(&self) -> u64 {
        self.frames().map_or(self.bytes, |frames| frames.object_bytes())
    }
}

/// Splits `bytes` into ranges of at most `part_bytes`; one empty range if there are no bytes.
pub(super) fn part_ranges(bytes: u64, part_bytes: u64) -> impl Iterator<Item = Range<u64>> {
    (0..bytes.div_ceil(part_bytes).max(1)).map(move |n| n * part_bytes..((n + 1) * part_bytes).min(bytes))
}

#[cfg(test)]
mod tests {
    use super::part_ranges;

    #[test]
    fn parts_cover_everything_and_none_is_too_long() {
        let of = |bytes| part_ranges(bytes, 10).map(|part| (part.start, part.end)).collect::<Vec<_>>();
        assert_eq!(of(0), [(0, 0)]);
        assert_eq!(of(10), [(0, 10)]);
        assert_eq!(of(25), [(0, 10), (10, 20), (20, 25)]);
    }
}
