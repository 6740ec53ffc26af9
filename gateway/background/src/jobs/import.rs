//! Imports one object of an origin: reads and verifies it, then stores and commits it as a client's PUT would
//! be.
//!
//! The commit is conditional on the version seen here before, so that a concurrent client write wins. A body
//! that breaks off is resumed at the same byte of the same version, or the import fails.

use super::running_job::UnfinishedBytes;
use bytes::Bytes;
use futures_util::StreamExt as _;
use mlgw_common::limits::GIB;
use mlgw_common::{Clock, ObjectKey};
use mlgw_formats::checksum::{self, ChecksumHasher};
use mlgw_formats::command::{Conditions, EtagCondition, Reject};
use mlgw_formats::schema::{self, Bucket, Checksum, ChecksumKind, ImportSource, ObjectVersion};
use mlgw_objects::body_target::BodyTarget;
use mlgw_objects::compressor::Compression;
use mlgw_objects::etag::EtagSource;
use mlgw_objects::memory::Account;
use mlgw_objects::put::{BodyDigests, Description, PutSource as Body, UncommittedBody};
use mlgw_objects::quota::WriteAttribution;
use mlgw_objects::{ObjectError, ObjectLayer};
use mlgw_policy_runtime::Policies;
use mlgw_policy_runtime::compression::NewObject;
use mlgw_remote::origin::{
    GetQuery, ObjectPart, Origin, OriginBody, OriginError, OriginObject, md5_of, opaque_etag_hint,
};
use std::sync::Arc;
use std::time::Duration;

/// Largest object that is imported. The object becomes one body with an extent per MiB; a single command
/// names all extents, 1.6 MB of them.
const IMPORT_BYTES_MAX: u64 = 64 * GIB;
/// Attempts to resume a body without any new byte.
const TRIES: u32 = 5;
/// Attempts for an object while this server has a shortage, and the pause between them.
const SHORTAGE_TRIES: u32 = 10;
const SHORTAGE_WAIT: Duration = Duration::from_millis(500);

/// Dependencies of the import of one object.
pub(super) struct Import {
    pub(super) objects: Arc<ObjectLayer>,
    pub(super) policies: Arc<Policies>,
    pub(super) memory: Account,
    pub(super) origin: Arc<dyn Origin>,
    pub(super) bucket: Arc<Bucket>,
    pub(super) source: ImportSource,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) unfinished: UnfinishedBytes,
}

/// Result of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ImportOutcome {
    /// The object is here already.
    Same,
    /// The object is gone at its origin.
    Gone,
    /// The object was imported.
    New {
        /// Bytes of the object.
        bytes: u64,
    },
}

/// Error of an import.
#[derive(Debug, thiserror::Error)]
pub(super) enum ImportError {
    /// The origin failed.
    #[error("{0}")]
    Origin(#[from] OriginError),
    /// This server failed.
    #[error("{0}")]
    Here(#[from] ObjectError),
    /// The key or the size of the object is not supported here.
    #[error("{0}")]
    Impossible(String),
    /// The bytes do not match the checksum stated by the origin.
    #[error("the received bytes do not match the {0} checksum of the origin")]
    Corrupt(&'static str),
}

impl ImportError {
    /// Returns true if this server has no room for the object.
    pub(super) fn is_out_of_room(&self) -> bool {
        matches!(self, Self::Here(ObjectError::NoRoom))
    }

    /// Returns true if every other object would fail in the same way.
    pub(super) fn ends_all(&self) -> bool {
        match self {
            Self::Here(error) => matches!(
                error,
                ObjectError::NoRoom
                    | ObjectError::Stopping
                    | ObjectError::NoLeader(_)
                    | ObjectError::TooFewReplicas(_)
                    | ObjectError::DiskFailed(_)
                    | ObjectError::NotFinalized(_)
                    | ObjectError::NoSuchBucket(_)
                    | ObjectError::Rejected(
                        Reject::NoSuchBucket | Reject::QuotaExceeded { .. } | Reject::TermEnded { .. }
                    )
            ),
            Self::Origin(error) => matches!(error, OriginError::NoSuchBucket | OriginError::Denied(_)),
            Self::Impossible(_) | Self::Corrupt(_) => false,
        }
    }
}

impl Import {
    /// Imports the object listed as `listed` under the remote key `there`.
    pub(super) async fn import(
        &self,
        there: &str,
        listed: &ObjectVersion,
    ) -> Result<ImportOutcome, ImportError> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.try_import(there, listed).await {
                Err(ImportError::Here(ObjectError::Short(_))) if tries < SHORTAGE_TRIES => {
                    mlgw_common::time::sleep(SHORTAGE_WAIT).await;
                }
                done => return done,
            }
        }
    }

    async fn try_import(&self, there: &str, listed: &ObjectVersion) -> Result<ImportOutcome, ImportError> {
        let key = self.key(there)?;
        let known = self.objects.current(self.bucket.bucket_id(), &key)?;
        if known.as_ref().is_some_and(|known| self.is_from(known, listed)) {
            return Ok(ImportOutcome::Same);
        }
        let got = match self.origin.get(there, &GetQuery::unconditional(ObjectPart::Whole)).await {
            Ok(got) => got,
            Err(OriginError::NoSuchKey) => return Ok(ImportOutcome::Gone),
            Err(error) => return Err(error.into()),
        };
        let size = got.object.size;
        if size > IMPORT_BYTES_MAX {
            let why = format!(
                "{size} bytes, but at most {IMPORT_BYTES_MAX} can be imported; bind a bucket to the \
                 upstream instead"
            );
            return Err(ImportError::Impossible(why));
        }
        let from = got.object.clone();
        let tags = if got.is_tagged { self.origin.tags(there).await? } else { Vec::new() };
        let description = Description { headers: from.headers, metadata: from.metadata, tags };
        let compression = self.policies.compression(|| NewObject {
            bucket: &self.bucket.name,
            key: &key,
            size: Some(size),
            metadata: &description.metadata,
            tags: &description.tags,
            agent: None,
            workload: None,
        });
        let stored = self.store(there, &key, got, compression).await?;
        // The object counts against the bucket's quota and no key's, because no client wrote it.
        let writer = WriteAttribution { owner: self.bucket.owner.clone(), payer: String::new() };
        let mut object = stored.object(description, writer, self.clock.now().as_millis());
        object.imported =
            Some(Box::new(schema::Imported { upstream: self.source.upstream.clone(), etag: from.etag }));
        let conditions = match known {
            Some(known) => Conditions {
                if_match: Some(EtagCondition::one_of(vec![known.etag])),
                ..Conditions::default()
            },
            None => Conditions { if_none_match: Some(EtagCondition::any()), ..Conditions::default() },
        };
        self.objects.put_version(&self.bucket, &key, object, stored.extents, conditions).await?;
        Ok(ImportOutcome::New { bytes: size })
    }

    /// Returns the key of the object here.
    fn key(&self, there: &str) -> Result<ObjectKey, ImportError> {
        let rest = there.strip_prefix(&self.source.prefix).unwrap_or(there);
        let here = format!("{}{rest}", self.source.into);
        ObjectKey::new(&here).map_err(|why| ImportError::Impossible(why.to_string()))
    }

    /// Returns true if `known` was imported from the listed version.
    fn is_from(&self, known: &ObjectVersion, listed: &ObjectVersion) -> bool {
        let is_same = |imported: &schema::Imported| {
            imported.upstream == self.source.upstream && imported.etag == listed.etag
        };
        known.size == listed.size && known.imported.as_deref().is_some_and(is_same)
    }

    /// Stores the bytes of an object. They are durable when this returns.
    async fn store(
        &self,
        there: &str,
        key: &ObjectKey,
        got: OriginObject,
        compression: Option<Compression>,
    ) -> Result<UncommittedBody, ImportError> {
        self.objects.check_quota(&self.bucket, key, "", Some(got.object.size))?;
        let target = BodyTarget { bucket: &self.bucket, key, part: None };
        let body = ImportBody::new(self, there, got);
        self.objects.store(&self.memory, target, body, compression).await
    }
}

/// Bytes of an origin's object, read in as many responses as necessary.
struct ImportBody<'a> {
    import: &'a Import,
    there: &'a str,
    object: ObjectVersion,
    body: OriginBody,
    /// Offset of the next byte.
    at: u64,
    /// Responses since the last received byte.
    tries: u32,
    /// Checksum stated by the origin, and the running checksum of the received bytes.
    stated: Option<(Checksum, ChecksumHasher)>,
}

impl<'a> ImportBody<'a> {
    fn new(import: &'a Import, there: &'a str, got: OriginObject) -> Self {
        let OriginObject { object, body, .. } = got;
        let stated = object.checksums.iter().find(|checksum| checksum.kind() == ChecksumKind::FullObject);
        let running =
            |stated: &Checksum| ChecksumHasher::new(checksum::algorithm_from_stored(stated.algorithm()));
        let stated = stated.map(|stated| (stated.clone(), running(stated)));
        Self { import, there, object, body, at: 0, tries: 0, stated }
    }

    /// Resumes after the last received byte, if `error` is transient.
    async fn resume(&mut self, error: OriginError) -> Result<(), ImportError> {
        self.tries += 1;
        if !error.is_transient() || self.tries >= TRIES {
            return Err(error.into());
        }
        let part = ObjectPart::Range { first: self.at, end: self.object.size };
        let query = GetQuery { if_match: Some(self.object.etag.clone()), ..GetQuery::unconditional(part) };
        let more = self.import.origin.get(self.there, &query).await?;
        if more.object.etag != self.object.etag || more.range.start != self.at {
            return Err(OriginError::Changed.into());
        }
        self.body = more.body;
        Ok(())
    }
}

impl Body for ImportBody<'_> {
    type Error = ImportError;

    fn length(&self) -> Option<u64> {
        Some(self.object.size)
    }

    fn needs_md5(&self) -> bool {
        self.import.objects.etags == EtagSource::Md5
    }

    async fn next(&mut self) -> Result<Option<Bytes>, ImportError> {
        while self.at < self.object.size {
            let error = match self.body.next().await {
                Some(Ok(mut piece)) => {
                    let left = self.object.size - self.at;
                    piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                    if let Some((_, running)) = &mut self.stated {
                        running.update(&piece);
                    }
                    self.at += piece.len() as u64;
                    self.import.unfinished.add(piece.len() as u64);
                    self.tries = 0;
                    return Ok(Some(piece));
                }
                Some(Err(error)) => error,
                None => OriginError::Unreachable("the response ended early".into()),
            };
            self.resume(error).await?;
        }
        Ok(None)
    }

    fn finish(self, md5: Option<[u8; 16]>) -> Result<BodyDigests, ImportError> {
        assert_eq!(self.at, self.object.size, "an import ends after its last byte");
        let mut checksums = Vec::new();
        if let Some((stated, running)) = self.stated {
            let (algorithm, value) = (running.algorithm(), running.finish());
            if value != stated.value {
                return Err(ImportError::Corrupt(algorithm.name()));
            }
            checksums.push((algorithm, value));
        }
        if md5.zip(md5_of(&self.object)).is_some_and(|(came, stated)| came != stated) {
            let (etag, hint) = (&self.object.etag, opaque_etag_hint(&self.import.source.upstream));
            let why = format!("the MD5 of the bytes is not the ETag {etag:?}; {hint}");
            return Err(OriginError::WrongBytes(why).into());
        }
        Ok(BodyDigests { bytes: self.object.size, md5, checksums })
    }
}
