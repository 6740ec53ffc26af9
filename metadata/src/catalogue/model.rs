//! Reference model of the catalogue for tests: maps in memory, without groups, log or rows.

use mlgw_formats::command::{Conditions, Reject};
use std::collections::BTreeMap;

/// Version of an object, as far as the model represents it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelVersion {
    pub(crate) body: u64,
    pub(crate) size: u64,
    pub(crate) etag: String,
    pub(crate) tags: usize,
    pub(crate) parts: Vec<(u32, u64)>,
    /// Bytes that the version references, by segment.
    pub(crate) refers: Vec<(u64, u64)>,
}

/// Uploaded part.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelPart {
    pub(crate) seq: u64,
    pub(crate) size: u64,
    pub(crate) refers: Vec<(u64, u64)>,
}

/// Bucket with its objects and uploads.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ModelBucket {
    pub(crate) objects: BTreeMap<String, ModelVersion>,
    pub(crate) uploads: BTreeMap<(String, u64), BTreeMap<u32, ModelPart>>,
}

/// The whole model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) buckets: BTreeMap<String, ModelBucket>,
}

pub(crate) type ModelResult = Result<(), Reject>;

impl ModelBucket {
    fn check(&self, key: &str, conditions: &Conditions) -> ModelResult {
        let current = self.objects.get(key);
        if let Some(wanted) = &conditions.if_match {
            let current = current.ok_or(Reject::NoSuchKey)?;
            if !wanted.any && !wanted.etags.contains(&current.etag) {
                return Err(Reject::PreconditionFailed);
            }
        }
        if let (Some(unwanted), Some(current)) = (&conditions.if_none_match, current)
            && (unwanted.any || unwanted.etags.contains(&current.etag))
        {
            return Err(Reject::PreconditionFailed);
        }
        Ok(())
    }

    pub(crate) fn put(&mut self, key: &str, version: ModelVersion, conditions: &Conditions) -> ModelResult {
        self.check(key, conditions)?;
        if self.objects.get(key).is_some_and(|current| current.body == version.body) {
            return Err(Reject::BodyInUse);
        }
        self.objects.insert(key.to_owned(), version);
        Ok(())
    }

    pub(crate) fn delete(&mut self, key: &str, conditions: &Conditions) -> Result<bool, Reject> {
        self.check(key, conditions)?;
        Ok(self.objects.remove(key).is_some())
    }

    pub(crate) fn tag(&mut self, key: &str, body: u64, tags: usize) -> ModelResult {
        let current = self.objects.get_mut(key).ok_or(Reject::NoSuchKey)?;
        if current.body != body {
            return Err(Reject::PreconditionFailed);
        }
        current.tags = tags;
        Ok(())
    }

    pub(crate) fn complete(&mut self, key: &str, body: u64, named: &[(u32, u64)], etag: &str) -> ModelResult {
        const PART_BYTES_MIN: u64 = 5 << 20;
        if self.objects.get(key).is_some_and(|current| current.body == body) {
            return Ok(());
        }
        let parts = self.uploads.get(&(key.to_owned(), body)).ok_or(Reject::NoSuchUpload)?;
        let mut version = ModelVersion {
            body,
            size: 0,
            etag: etag.to_owned(),
            tags: 0,
            parts: Vec::new(),
            refers: Vec::new(),
        };
        for (at, (number, seq)) in named.iter().enumerate() {
            let part = parts.get(number).filter(|part| part.seq == *seq);
            let part = part.ok_or(Reject::InvalidPart { number: *number })?;
            if part.size < PART_BYTES_MIN && at + 1 < named.len() {
                return Err(Reject::PartTooSmall { number: *number, size: part.size });
            }
            version.size += part.size;
            version.parts.push((*number, part.size));
            version.refers.extend(&part.refers);
        }
        self.uploads.remove(&(key.to_owned(), body));
        self.objects.insert(key.to_owned(), version);
        Ok(())
    }
}

impl Model {
    /// Referenced bytes by segment, over all buckets.
    pub(crate) fn referenced(&self) -> BTreeMap<u64, u64> {
        let mut sums = BTreeMap::new();
        for bucket in self.buckets.values() {
            let versions = bucket.objects.values().flat_map(|version| &version.refers);
            let parts =
                bucket.uploads.values().flat_map(|parts| parts.values()).flat_map(|part| &part.refers);
            for (segment, bytes) in versions.chain(parts) {
                *sums.entry(*segment).or_default() += bytes;
            }
        }
        sums
    }
}
