//! Uploads in parts: creates them, stores their parts, completes and aborts them.
//!
//! An upload is identified by the id of the body that it becomes. Parts stay where they were stored.
//! Completing an upload writes one record and an index of the parts, and reads no bytes. After a power
//! failure an upload is either unchanged or complete.

use crate::body_target::BodyTarget;
use crate::put::{STORAGE_CLASS, UncommittedBody, condition_name, lost_race};
use crate::quota::WriteAttribution;
use crate::{ObjectError, ObjectLayer, etag};
use crc_fast::CrcAlgorithm;
use mlgw_common::{BodyId, ObjectKey, PartNumber, Timestamp};
use mlgw_formats::checksum::{self, Algorithm, stored_checksum};
use mlgw_formats::command::{
    AbortUpload, CompleteUpload, Conditions, CreateUpload, NamedPart, ObjectChange, PutPart, Reject, Reply,
};
use mlgw_formats::schema::{
    Bucket, Checksum, ChecksumAlgorithm, ChecksumKind, ObjectVersion, Pair, PartRecord, Upload,
};
use mlgw_metadata::ProposeError;
use std::sync::Arc;

/// An upload by its bucket, the key of its record and the body that it becomes.
#[derive(Clone)]
pub struct UploadHandle {
    /// The bucket.
    pub bucket: Arc<Bucket>,
    /// The key of its record. In a bucket with write-back, clients use a different key.
    pub key: ObjectKey,
    /// The body.
    pub body: BodyId,
}

impl UploadHandle {
    /// Returns part `number` as the target of a new body.
    #[must_use]
    pub fn part(&self, number: PartNumber) -> BodyTarget<'_> {
        BodyTarget { bucket: &self.bucket, key: &self.key, part: Some((self.body, number)) }
    }
}

/// Parts that become an object, with the derived size, ETag and checksum.
pub struct Completion {
    parts: Vec<NamedPart>,
    bytes: u64,
    etag: String,
    checksum: Option<Checksum>,
}

impl Completion {
    /// Returns the completion of `parts`. `checksum` was derived from the checksums of the parts.
    #[must_use]
    pub fn new(parts: &[(PartNumber, PartRecord)], checksum: Option<Checksum>) -> Self {
        assert!(!parts.is_empty(), "a completed upload has a part");
        assert!(parts.is_sorted_by(|(a, _), (b, _)| a < b), "the parts of a completion ascend");
        let named = |(number, part): &(PartNumber, PartRecord)| NamedPart {
            number: number.get().into(),
            seq: part.seq,
        };
        let etags = parts.iter().map(|(_, part)| part.etag.as_str());
        Self {
            parts: parts.iter().map(named).collect(),
            bytes: parts.iter().map(|(_, part)| part.size).sum(),
            etag: etag::of_parts(etags, count(parts.len())),
            checksum,
        }
    }

    /// Returns the length of the object in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn count(parts: usize) -> u32 {
    u32::try_from(parts).unwrap_or(u32::MAX)
}

impl ObjectLayer {
    /// Returns the record of an upload.
    ///
    /// # Errors
    /// [`ObjectError::NoSuchUpload`].
    pub fn upload(&self, of: &UploadHandle) -> Result<Upload, ObjectError> {
        let upload = self.catalogue.upload(of.bucket.bucket_id(), &of.key, of.body)?;
        upload.ok_or(ObjectError::NoSuchUpload(of.body))
    }

    /// Creates the upload `of`. Its object will have the description in `upload`.
    ///
    /// # Errors
    /// [`ObjectError::NoRoom`]; [`Reject::QuotaExceeded`]; those of [`ObjectLayer::propose_object`].
    pub async fn create_upload(
        &self,
        of: &UploadHandle,
        upload: Upload,
        writer: WriteAttribution,
        checksum: Option<(Algorithm, ChecksumKind)>,
        now: Timestamp,
    ) -> Result<(), ObjectError> {
        self.room_for(0).await?;
        self.check_quota_of_upload(&of.bucket, &of.key, &writer.payer)?;
        let upload = Upload {
            body_id: of.body.get(),
            key: of.key.as_str().to_owned(),
            initiated_ms: now.as_millis(),
            owner: writer.owner,
            payer: writer.payer,
            storage_class: STORAGE_CLASS.to_owned(),
            checksum_algorithm: checksum.map(|(algorithm, _)| ChecksumAlgorithm::from(algorithm) as i32),
            checksum_kind: checksum.map(|(_, kind)| kind as i32),
            ..upload
        };
        let change = ObjectChange::CreateUpload(CreateUpload { upload });
        self.propose_object(&of.bucket, &of.key, now, change).await?;
        Ok(())
    }

    /// Makes `stored` part `number` of an upload.
    ///
    /// # Errors
    /// [`Reject::NoSuchUpload`] when the upload has ended; those of [`ObjectLayer::propose_object`].
    pub async fn put_part(
        &self,
        of: &UploadHandle,
        number: PartNumber,
        now: Timestamp,
        stored: UncommittedBody,
    ) -> Result<(), ObjectError> {
        let UncommittedBody { bytes, etag, checksums, extents, holds: _holds, body: _ } = stored;
        let part = PartRecord {
            size: bytes,
            etag,
            modified_ms: now.as_millis(),
            checksums,
            extents,
            ..PartRecord::default()
        };
        let change =
            ObjectChange::PutPart(PutPart { body_id: of.body.get(), number: number.get().into(), part });
        self.propose_object(&of.bucket, &of.key, now, change).await?;
        Ok(())
    }

    /// Aborts an upload and frees its parts.
    ///
    /// # Errors
    /// [`Reject::NoSuchUpload`]; those of [`ObjectLayer::propose_object`].
    pub async fn abort_upload(&self, of: &UploadHandle, now: Timestamp) -> Result<(), ObjectError> {
        let change = ObjectChange::AbortUpload(AbortUpload { body_id: of.body.get() });
        self.propose_object(&of.bucket, &of.key, now, change).await?;
        self.tiers.hot.seal_own(of.body);
        Ok(())
    }

    /// Completes an upload to an object, with `headers` in addition to those of its record. Returns the known
    /// fields of the object, and its sequence number in the order of versions.
    ///
    /// # Errors
    /// [`Reject::InvalidPart`] when a part was replaced since it was read; those of
    /// [`ObjectLayer::put_version`].
    pub async fn complete_upload(
        &self,
        of: &UploadHandle,
        completion: Completion,
        conditions: Conditions,
        headers: Vec<Pair>,
        now: Timestamp,
    ) -> Result<(ObjectVersion, u64), ObjectError> {
        let condition = condition_name(&conditions);
        let Completion { parts, bytes, etag, checksum } = completion;
        let object = ObjectVersion {
            body_id: of.body.get(),
            size: bytes,
            modified_ms: now.as_millis(),
            etag: etag.clone(),
            checksums: checksum.into_iter().collect(),
            part_count: count(parts.len()),
            ..ObjectVersion::default()
        };
        let change = ObjectChange::CompleteUpload(CompleteUpload {
            body_id: of.body.get(),
            parts,
            etag,
            checksums: object.checksums.clone(),
            conditions,
            modified_ms: now.as_millis(),
            headers,
        });
        let proposed = self.propose_object(&of.bucket, &of.key, now, change).await;
        let reply = proposed.map_err(|error| match error {
            error @ ProposeError::Rejected(Reject::InvalidPart { .. }) => error.into(),
            error => lost_race(error, condition),
        })?;
        match reply {
            Reply::Written(written) => Ok((object, written.seq)),
            other => Err(ObjectError::internal(format!("unexpected reply to a complete: {other:?}"))),
        }
    }
}

/// Returns the checksum of the whole from those of its parts, or `None` if it cannot be derived: a part has
/// no checksum by `algorithm`, or a whole hash is requested.
///
/// # Errors
/// [`ObjectError::Internal`] when a stored checksum has the wrong length.
pub fn combine(
    algorithm: Algorithm,
    kind: ChecksumKind,
    parts: &[(PartNumber, PartRecord)],
) -> Result<Option<Checksum>, ObjectError> {
    let mut values = Vec::with_capacity(parts.len());
    for (_, part) in parts {
        let found =
            part.checksums.iter().find(|one| checksum::algorithm_from_stored(one.algorithm()) == algorithm);
        let Some(checksum) = found else { return Ok(None) };
        values.push((checksum.value.as_slice(), part.size));
    }
    let value = match kind {
        ChecksumKind::Composite => {
            let all: Vec<u8> = values.iter().flat_map(|(value, _)| value.iter().copied()).collect();
            Some(algorithm.digest(&all))
        }
        // A hash of the whole cannot be derived from the hashes of its parts.
        ChecksumKind::FullObject if !algorithm.is_crc() => return Ok(None),
        ChecksumKind::FullObject => crc_of_all(algorithm, &values),
    };
    let value = value.ok_or_else(|| ObjectError::internal("a part's checksum has the wrong length"))?;
    Ok(Some(stored_checksum(algorithm, kind, value)))
}

/// Combines CRCs of consecutive pieces into the CRC of the whole.
fn crc_of_all(algorithm: Algorithm, values: &[(&[u8], u64)]) -> Option<Vec<u8>> {
    let crc = match algorithm {
        Algorithm::Crc32 => CrcAlgorithm::Crc32IsoHdlc,
        Algorithm::Crc32c => CrcAlgorithm::Crc32Iscsi,
        Algorithm::Crc64Nvme => CrcAlgorithm::Crc64Nvme,
        Algorithm::Sha1 | Algorithm::Sha256 => return None,
    };
    let bytes = algorithm.value_bytes();
    let mut whole: Option<u64> = None;
    for (value, length) in values {
        if value.len() != bytes {
            return None;
        }
        let part = value.iter().fold(0, |n, b| n << 8 | u64::from(*b));
        whole = Some(match whole {
            None => part,
            Some(before) => crc_fast::checksum_combine(crc, before, part, *length),
        });
    }
    Some(whole?.to_be_bytes()[8 - bytes..].to_vec())
}

#[cfg(test)]
mod tests {
    use super::{Algorithm, crc_of_all};

    #[test]
    fn crcs_of_parts_make_the_crc_of_the_whole() {
        let (a, b) = (b"the first part, ".as_slice(), b"and the second".as_slice());
        for algorithm in [Algorithm::Crc32, Algorithm::Crc32c, Algorithm::Crc64Nvme] {
            let (of_a, of_b) = (algorithm.digest(a), algorithm.digest(b));
            let whole = crc_of_all(algorithm, &[(&of_a, a.len() as u64), (&of_b, b.len() as u64)]);
            assert_eq!(whole, Some(algorithm.digest(&[a, b].concat())), "{algorithm:?}");
            assert_eq!(crc_of_all(algorithm, &[(&[1, 2], 2)]), None);
        }
    }
}
