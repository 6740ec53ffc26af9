//! Verification of bytes from an origin against the ETag and the length that it states.
//!
//! Invariants: if the ETag of an object is an MD5, and the object is read as a whole or has only one block,
//! no reader gets the last bytes before all bytes were compared. Bytes that do not match are not kept. A
//! range of a larger object, and an object whose ETag is not an MD5, are checked only for their length and
//! for an unchanged ETag.

use super::CachedBucket;
use crate::copies::is_same_version;
use mlgw_common::ObjectKey;
use mlgw_common::limits::{COPY_BLOCK_BYTES, FETCH_SMALL_BYTES_MAX};
use mlgw_formats::schema::{CopyRecord, ObjectVersion};
use mlgw_remote::origin::{OriginError, md5_of, opaque_etag_hint};
use std::ops::Range;

/// Number of bytes withheld from a reader until all were compared. A small object is withheld as a whole, so
/// that its response can be an error.
const WITHHELD_BYTES: u64 = FETCH_SMALL_BYTES_MAX;

/// Returns the offset from which a block is withheld until it was compared; the end of the block if it is not
/// compared separately.
pub(super) fn withheld_from(object: &ObjectVersion, block: &Range<u64>) -> u64 {
    match is_compared_by_block(object) {
        true => block.end.saturating_sub(WITHHELD_BYTES).max(block.start),
        false => block.end,
    }
}

/// True if the object is one block whose MD5 is known.
pub(super) fn is_compared_by_block(object: &ObjectVersion) -> bool {
    object.size <= COPY_BLOCK_BYTES && md5_of(object).is_some()
}

impl CachedBucket {
    /// Handles bytes whose MD5 differs from the ETag of their object: forgets the copy.
    ///
    /// # Errors
    /// [`OriginError::WrongBytes`], which names the setting if the same bytes came before;
    /// [`OriginError::Changed`] if the object is another version by now. `Ok` if the origin now reports that
    /// the ETag is not an MD5.
    pub(super) async fn handle_md5_mismatch(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        sum: [u8; 16],
    ) -> Result<(), OriginError> {
        if let Ok(now) = self.origin.head(&self.origin_key(key)).await {
            if now.etag != object.etag {
                self.inner.copies.forget(self.id, key);
                return Err(OriginError::Changed);
            }
            if is_same_version(&now, object) && md5_of(&now).is_none() {
                return Ok(());
            }
        }
        let place = (self.id, key.clone());
        let is_again = self.inner.suspects.get(&place) == Some(sum);
        self.inner.suspects.insert(place, sum);
        self.inner.copies.forget(self.id, key);
        let what = format!("their MD5 differs from the ETag {:?}", object.etag);
        let why = match is_again {
            true => format!("{what}, as in the previous response; {}", opaque_etag_hint(self.origin.name())),
            false => what,
        };
        tracing::warn!(origin = self.origin.name(), %key, why, "an origin sent wrong bytes");
        Err(OriginError::WrongBytes(why))
    }

    /// Checks that a response does not state another length under the known ETag. If it does, the origin is
    /// asked for the metadata again to find the right length.
    pub(super) async fn check_length(
        &self,
        key: &ObjectKey,
        known: Option<&CopyRecord>,
        reported: &ObjectVersion,
    ) -> Result<(), OriginError> {
        let is_other = |known: &ObjectVersion| known.etag == reported.etag && known.size != reported.size;
        if !known.is_some_and(|known| is_other(&known.object)) {
            return Ok(());
        }
        let now = self.origin.head(&self.origin_key(key)).await?;
        match is_other(&now) {
            true => Err(OriginError::WrongBytes(format!(
                "{} bytes for the ETag {:?}, whose object has {}",
                reported.size, reported.etag, now.size
            ))),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{WITHHELD_BYTES, withheld_from};
    use crate::remote_backed::block;
    use mlgw_common::limits::COPY_BLOCK_BYTES as BLOCK;
    use mlgw_formats::schema::{EtagKind, ObjectVersion};

    #[test]
    fn a_block_compared_separately_is_withheld_at_its_end() {
        let md5 = "5d41402abc4b2a76b9719d911017c592";
        let of = |etag: &str, kind: EtagKind, size: u64| {
            let etag_kind = kind.into();
            let object = ObjectVersion { etag: etag.into(), etag_kind, size, ..ObjectVersion::default() };
            withheld_from(&object, &block::range(0, size))
        };
        assert_eq!(of(md5, EtagKind::Plain, 5), 0, "a short response can be an error document");
        assert_eq!(of(md5, EtagKind::Plain, WITHHELD_BYTES), 0);
        assert_eq!(of(md5, EtagKind::Plain, BLOCK), BLOCK - WITHHELD_BYTES);
        assert_eq!(of(md5, EtagKind::Plain, BLOCK + 1), BLOCK, "the reader compares it");
        for (etag, kind) in [(md5, EtagKind::Opaque), (md5, EtagKind::Weak), ("x-2", EtagKind::Plain)] {
            assert_eq!(of(etag, kind, 5), 5, "{etag} {kind:?}");
        }
    }
}
