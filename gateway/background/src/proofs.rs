//! Compares the bytes of objects with the checksums in the catalogue, for the scrub.
//!
//! Records on disk have checksums of their own, which reveal damage. Only a checksum of the object reveals an
//! intact record in the wrong place. The comparison uses full-object checksums; or composite ones, part by
//! part; or, without either, the MD5 in the ETag. Bytes are read from the disks, bypassing the memory tier.
//! Objects with a part in an upstream are skipped, as reading them costs traffic. Nothing is changed.

use md5::{Digest as _, Md5};
use mlgw_common::hex;
use mlgw_common::{BucketId, ObjectKey};
use mlgw_formats::checksum::{self, Algorithm, ChecksumHasher};
use mlgw_formats::schema::{ChecksumKind, ObjectVersion};
use mlgw_metadata::Catalogue;
use mlgw_objects::reader::{BodyReader, part_ranges};
use mlgw_segments::fair::Lane;
use mlgw_segments::hot::{ObjectComparison, ObjectVerifier};
use mlgw_segments::tiers::Tiers;
use std::collections::VecDeque;
use tokio::runtime::Handle;

/// Compares objects of a running server.
pub struct StoredProofs {
    catalogue: Catalogue,
    tiers: Tiers,
    runtime: Handle,
}

impl StoredProofs {
    /// Creates the comparison for the objects of a catalogue. Must be called within a tokio runtime.
    #[must_use]
    pub fn new(catalogue: Catalogue, tiers: Tiers) -> Self {
        Self { catalogue, tiers, runtime: Handle::current() }
    }

    async fn compare_object(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        object: &ObjectVersion,
        may_read: &(dyn Fn(u64) -> bool + Sync),
    ) -> ObjectComparison {
        let pin = self.catalogue.pin(object.body());
        let parts = || part_ranges(&self.catalogue, bucket, key, object, &pin).ok();
        let sizes = || Some(parts()?.into_iter().map(|part| part.bytes).collect());
        let mut comparisons = comparisons(object, sizes);
        if comparisons.is_empty() {
            return ObjectComparison::Nothing;
        }
        let range = 0..object.size;
        let mut reader =
            BodyReader::new(&self.catalogue, &self.tiers, bucket, key, object, range).from_disks();
        reader.set_turn(Lane::Background);
        loop {
            match reader.next().await {
                Ok(Some(bytes)) => {
                    comparisons.iter_mut().for_each(|comparison| comparison.update(&bytes));
                    if !may_read(bytes.len() as u64) {
                        return ObjectComparison::Stopped;
                    }
                }
                Ok(None) => break,
                // Deleted meanwhile, damaged, or in an upstream: outside the scope of this comparison.
                Err(_) => return ObjectComparison::Nothing,
            }
        }
        let wrong = comparisons.into_iter().find_map(Comparison::finish);
        wrong.map_or(ObjectComparison::Right, ObjectComparison::Wrong)
    }
}

impl ObjectVerifier for StoredProofs {
    /// One node of a cluster compares objects: the duty node.
    fn is_due(&self) -> bool {
        !self.catalogue.is_clustered() || self.catalogue.duty().node_id() == self.catalogue.node()
    }

    fn compare(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        object: &ObjectVersion,
        may_read: &(dyn Fn(u64) -> bool + Sync),
    ) -> ObjectComparison {
        self.runtime.block_on(self.compare_object(bucket, key, object, may_read))
    }
}

/// A running digest.
enum RunningDigest {
    Md5(Md5),
    Checksum(Box<ChecksumHasher>),
}

impl RunningDigest {
    fn of(algorithm: Option<Algorithm>) -> Self {
        algorithm
            .map_or_else(|| Self::Md5(Md5::new()), |of| Self::Checksum(Box::new(ChecksumHasher::new(of))))
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Md5(md5) => md5.update(bytes),
            Self::Checksum(running) => running.update(bytes),
        }
    }

    fn finish(self) -> Vec<u8> {
        match self {
            Self::Md5(md5) => md5.finalize().to_vec(),
            Self::Checksum(running) => running.finish(),
        }
    }
}

/// An expected value of the catalogue and the running digest of the bytes.
struct Comparison {
    /// Checksum algorithm; `None` for MD5, as in ETags.
    algorithm: Option<Algorithm>,
    expected: Vec<u8>,
    sum: RunningDigest,
    /// Remaining bytes of each part, if the value is a digest of the parts' digests.
    parts: VecDeque<u64>,
    of_parts: Option<RunningDigest>,
}

impl Comparison {
    fn whole(algorithm: Option<Algorithm>, expected: Vec<u8>) -> Self {
        Self {
            algorithm,
            expected,
            sum: RunningDigest::of(algorithm),
            parts: VecDeque::new(),
            of_parts: None,
        }
    }

    fn of_parts(algorithm: Option<Algorithm>, expected: Vec<u8>, sizes: Vec<u64>) -> Self {
        let of_parts = Some(RunningDigest::of(algorithm));
        let mut comparison = Self { parts: sizes.into(), of_parts, ..Self::whole(algorithm, expected) };
        comparison.end_parts();
        comparison
    }

    fn update(&mut self, mut bytes: &[u8]) {
        while let Some(left) = self.parts.front_mut() {
            let (now, rest) = bytes.split_at(bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX)));
            *left -= now.len() as u64;
            self.sum.update(now);
            bytes = rest;
            self.end_parts();
            if bytes.is_empty() {
                return;
            }
        }
        self.sum.update(bytes);
    }

    /// Adds the digests of completed parts.
    fn end_parts(&mut self) {
        while self.parts.front() == Some(&0) {
            self.parts.pop_front();
            let part = std::mem::replace(&mut self.sum, RunningDigest::of(self.algorithm));
            if let Some(of_parts) = &mut self.of_parts {
                of_parts.update(&part.finish());
            }
        }
    }

    /// Returns a description of the difference; `None` if the digests are equal.
    fn finish(self) -> Option<String> {
        let found = self.of_parts.unwrap_or(self.sum).finish();
        let name = self.algorithm.map_or("MD5", Algorithm::name);
        (found != self.expected).then(|| {
            let (found, expected) = (hex::text(&found), hex::text(&self.expected));
            format!("the {name} of the object is {found}, but was {expected} when it was stored")
        })
    }
}

/// Returns the comparisons for an object; `sizes` returns the sizes of its parts.
fn comparisons(object: &ObjectVersion, sizes: impl Fn() -> Option<Vec<u64>>) -> Vec<Comparison> {
    if object.delete_marker || object.encryption.is_some() {
        return Vec::new();
    }
    let of_checksum = |checksum: &mlgw_formats::schema::Checksum| {
        let (algorithm, value) =
            (checksum::algorithm_from_stored(checksum.algorithm()), checksum.value.clone());
        match checksum.kind() {
            ChecksumKind::FullObject => Some(Comparison::whole(Some(algorithm), value)),
            ChecksumKind::Composite => Some(Comparison::of_parts(Some(algorithm), value, sizes()?)),
        }
    };
    let stored: Vec<Comparison> = object.checksums.iter().filter_map(of_checksum).collect();
    if !stored.is_empty() || object.imported.is_some() {
        return stored;
    }
    let (digits, count) = object.etag.split_once('-').map_or((&*object.etag, None), |(d, n)| (d, Some(n)));
    let Some(md5) = hex::decode::<16>(digits.as_bytes()) else { return Vec::new() };
    let is_of_parts = count.map(|count| count == object.part_count.to_string());
    match is_of_parts {
        None if object.part_count == 0 => vec![Comparison::whole(None, md5.to_vec())],
        Some(true) => {
            sizes().map(|sizes| Comparison::of_parts(None, md5.to_vec(), sizes)).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Algorithm, Comparison, comparisons};
    use md5::{Digest as _, Md5};
    use mlgw_common::hex;
    use mlgw_formats::schema::{Checksum, ChecksumAlgorithm, ChecksumKind, Imported, ObjectVersion};

    const BYTES: &[u8] = b"the first part, and the second, and nothing in the third";
    const SIZES: [u64; 4] = [16, 0, 40, 0];

    fn of_parts(digest: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
        let mut rest = BYTES;
        let each = SIZES.map(|size| {
            let (part, after) = rest.split_at(size as usize);
            rest = after;
            digest(part)
        });
        digest(&each.concat())
    }

    fn md5(bytes: &[u8]) -> Vec<u8> {
        Md5::digest(bytes).to_vec()
    }

    fn wrong(object: &ObjectVersion, bytes: &[u8], piece: usize) -> Vec<String> {
        let mut found = comparisons(object, || Some(SIZES.to_vec()));
        assert!(!found.is_empty(), "{object:?}");
        bytes.chunks(piece).for_each(|piece| found.iter_mut().for_each(|one| one.update(piece)));
        found.into_iter().filter_map(Comparison::finish).collect()
    }

    fn objects() -> Vec<ObjectVersion> {
        let with = |kind: ChecksumKind, algorithm: ChecksumAlgorithm, value| ObjectVersion {
            checksums: vec![Checksum { algorithm: algorithm.into(), kind: kind.into(), value }],
            etag: "not an MD5".into(),
            part_count: if kind == ChecksumKind::Composite { 4 } else { 0 },
            ..ObjectVersion::default()
        };
        let etag = |etag, part_count| ObjectVersion { etag, part_count, ..ObjectVersion::default() };
        let mut objects =
            vec![etag(hex::text(&md5(BYTES)), 0), etag(format!("{}-4", hex::text(&of_parts(md5))), 4)];
        for (stored, algorithm) in [
            (ChecksumAlgorithm::Crc32, Algorithm::Crc32),
            (ChecksumAlgorithm::Crc64Nvme, Algorithm::Crc64Nvme),
            (ChecksumAlgorithm::Sha256, Algorithm::Sha256),
        ] {
            objects.push(with(ChecksumKind::FullObject, stored, algorithm.digest(BYTES)));
            objects.push(with(ChecksumKind::Composite, stored, of_parts(|part| algorithm.digest(part))));
        }
        objects
    }

    #[test]
    fn right_bytes_have_every_kind_of_checksum_and_others_have_none() {
        for object in objects() {
            for piece in [1, 7, 16, 100] {
                assert_eq!(wrong(&object, BYTES, piece), [""; 0], "{object:?} in pieces of {piece}");
                for at in 0..BYTES.len() {
                    let mut other = BYTES.to_vec();
                    other[at] ^= 1;
                    assert_eq!(wrong(&object, &other, piece).len(), 1, "{object:?}, byte {at}");
                }
                assert_eq!(wrong(&object, &BYTES[1..], piece).len(), 1, "{object:?}, a byte less");
            }
        }
    }

    #[test]
    fn objects_without_a_usable_checksum_are_not_compared() {
        let md5 = hex::text(&md5(BYTES));
        let of = |etag: &str, part_count| ObjectVersion {
            etag: etag.to_owned(),
            part_count,
            ..ObjectVersion::default()
        };
        for object in [
            of("", 0),
            of("0123", 0),
            of(&format!("{md5}-3"), 4),
            of(&md5, 2),
            ObjectVersion { delete_marker: true, ..of(&md5, 0) },
            // The ETag is the origin's.
            ObjectVersion { imported: Some(Box::new(Imported::default())), ..of(&md5, 0) },
        ] {
            assert!(comparisons(&object, || Some(SIZES.to_vec())).is_empty(), "{object:?}");
        }
    }
}
