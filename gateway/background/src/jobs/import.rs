//! Imports one object of an origin: read there, verified, stored and named as a client's PUT would be.
//!
//! The condition that it is put under is what was seen here before; who writes the key meanwhile wins. A body
//! that breaks off is read on from where it was, of the same version or not at all.

use super::live::Ahead;
use bytes::Bytes;
use futures_util::StreamExt as _;
use mlgw_common::limits::GIB;
use mlgw_common::{Clock, ObjectKey};
use mlgw_formats::checksum::{self, Running};
use mlgw_formats::command::{Conditions, EtagCondition, Reject};
use mlgw_formats::schema::{self, Bucket, Checksum, ChecksumKind, ObjectVersion, Source};
use mlgw_objects::compressor::Compression;
use mlgw_objects::memory::Account;
use mlgw_objects::put::{Description, Source as Body, Stored, Sums, Target};
use mlgw_objects::quota::Writer;
use mlgw_objects::{ObjectError, Objects};
use mlgw_policy_runtime::Policies;
use mlgw_policy_runtime::compression::NewObject;
use mlgw_remote::origin::{Body as OriginBody, GetQuery, Got, Origin, OriginError, Part, hint, md5_of};
use std::sync::Arc;
use std::time::Duration;

/// Largest object that is imported. It becomes one body with an extent for each MiB, which are named in one
/// command: 1.6 MB of it.
const IMPORT_BYTES_MAX: u64 = 64 * GIB;
/// How often a body is read on that brings nothing new.
const TRIES: u32 = 5;
/// How often an object is tried that finds this server short of something, and how long it is left alone each
/// time.
const SHORT_TRIES: u32 = 10;
const SHORT_WAIT: Duration = Duration::from_millis(500);

/// What it takes to import an object.
pub(super) struct Import {
    pub(super) objects: Arc<Objects>,
    pub(super) policies: Arc<Policies>,
    pub(super) memory: Account,
    pub(super) origin: Arc<dyn Origin>,
    pub(super) bucket: Arc<Bucket>,
    pub(super) source: Source,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) ahead: Ahead,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Imported {
    /// It is here already.
    Same,
    /// It is not there any more.
    Gone,
    /// It is here now.
    New {
        /// Its bytes.
        bytes: u64,
    },
}

/// Why an object was not imported.
#[derive(Debug, thiserror::Error)]
pub(super) enum ImportError {
    /// Its origin.
    #[error("{0}")]
    Origin(#[from] OriginError),
    /// This server.
    #[error("{0}")]
    Here(#[from] ObjectError),
    /// Its key or its size cannot be here.
    #[error("{0}")]
    Impossible(String),
    /// What came is not what the origin says it is.
    #[error("what came does not have the {0} checksum that the origin says it has")]
    Corrupt(&'static str),
}

impl ImportError {
    /// Whether this server has no room for it.
    pub(super) fn is_no_room(&self) -> bool {
        matches!(self, Self::Here(ObjectError::NoRoom))
    }

    /// Whether every other object would fail likewise.
    pub(super) fn ends_all(&self) -> bool {
        match self {
            Self::Here(error) => matches!(
                error,
                ObjectError::NoRoom
                    | ObjectError::Stopping
                    | ObjectError::NoSuchBucket(_)
                    | ObjectError::Rejected(Reject::NoSuchBucket | Reject::QuotaExceeded { .. })
            ),
            Self::Origin(error) => matches!(error, OriginError::NoSuchBucket | OriginError::Denied(_)),
            Self::Impossible(_) | Self::Corrupt(_) => false,
        }
    }
}

impl Import {
    /// Imports the object that is listed as `listed` under the key `there`.
    pub(super) async fn import(&self, there: &str, listed: &ObjectVersion) -> Result<Imported, ImportError> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.try_import(there, listed).await {
                Err(ImportError::Here(ObjectError::Short(_))) if tries < SHORT_TRIES => {
                    tokio::time::sleep(SHORT_WAIT).await;
                }
                done => return done,
            }
        }
    }

    async fn try_import(&self, there: &str, listed: &ObjectVersion) -> Result<Imported, ImportError> {
        let key = self.key(there)?;
        let known = self.objects.current(self.bucket.bucket_id(), &key)?;
        if known.as_ref().is_some_and(|known| self.is_from(known, listed)) {
            return Ok(Imported::Same);
        }
        let got = match self.origin.get(there, &GetQuery::of(Part::Whole)).await {
            Ok(got) => got,
            Err(OriginError::NoSuchKey) => return Ok(Imported::Gone),
            Err(error) => return Err(error.into()),
        };
        let size = got.object.size;
        if size > IMPORT_BYTES_MAX {
            let why = format!(
                "it has {size} bytes, and at most {IMPORT_BYTES_MAX} are imported; bind a bucket to its upstream instead"
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
        // It counts for the bucket and for nobody's key: nobody wrote it.
        let writer = Writer { owner: self.bucket.owner.clone(), payer: String::new() };
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
        Ok(Imported::New { bytes: size })
    }

    /// The key here.
    fn key(&self, there: &str) -> Result<ObjectKey, ImportError> {
        let rest = there.strip_prefix(&self.source.prefix).unwrap_or(there);
        let here = format!("{}{rest}", self.source.into);
        ObjectKey::new(&here).map_err(|why| ImportError::Impossible(why.to_string()))
    }

    /// Whether `known` was imported from what is listed.
    fn is_from(&self, known: &ObjectVersion, listed: &ObjectVersion) -> bool {
        let is_same = |imported: &schema::Imported| {
            imported.upstream == self.source.upstream && imported.etag == listed.etag
        };
        known.size == listed.size && known.imported.as_deref().is_some_and(is_same)
    }

    /// Stores an object's bytes. They are durable when this returns.
    async fn store(
        &self,
        there: &str,
        key: &ObjectKey,
        got: Got,
        compression: Option<Compression>,
    ) -> Result<Stored, ImportError> {
        self.objects.check_quota(&self.bucket, key, "", Some(got.object.size))?;
        let target = Target { bucket: &self.bucket, key, part: None };
        let body = ImportBody::new(self, there, got);
        self.objects.store(&self.memory, target, body, compression).await
    }
}

/// The bytes of an object of an origin, read in as many answers as it takes.
struct ImportBody<'a> {
    import: &'a Import,
    there: &'a str,
    object: ObjectVersion,
    body: OriginBody,
    /// The first byte that has not come.
    at: u64,
    /// Answers since the last byte.
    tries: u32,
    /// The checksum that the origin states, and what the bytes give so far.
    stated: Option<(Checksum, Running)>,
}

impl<'a> ImportBody<'a> {
    fn new(import: &'a Import, there: &'a str, got: Got) -> Self {
        let Got { object, body, .. } = got;
        let stated = object.checksums.iter().find(|checksum| checksum.kind() == ChecksumKind::FullObject);
        let running = |stated: &Checksum| Running::new(checksum::algorithm(stated.algorithm()));
        let stated = stated.map(|stated| (stated.clone(), running(stated)));
        Self { import, there, object, body, at: 0, tries: 0, stated }
    }

    /// Continues behind the last byte that came, if `error` allows that.
    async fn resume(&mut self, error: OriginError) -> Result<(), ImportError> {
        self.tries += 1;
        if !error.is_transient() || self.tries >= TRIES {
            return Err(error.into());
        }
        let part = Part::Range { first: self.at, end: self.object.size };
        let query = GetQuery { if_match: Some(self.object.etag.clone()), ..GetQuery::of(part) };
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

    fn wants_md5(&self) -> bool {
        self.import.objects.md5_etags
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
                    self.import.ahead.add(piece.len() as u64);
                    self.tries = 0;
                    return Ok(Some(piece));
                }
                Some(Err(error)) => error,
                None => OriginError::Unreachable("it ended early".into()),
            };
            self.resume(error).await?;
        }
        Ok(None)
    }

    fn finish(self, md5: Option<[u8; 16]>) -> Result<Sums, ImportError> {
        let mut checksums = Vec::new();
        if let Some((stated, running)) = self.stated {
            let (algorithm, value) = (running.algorithm(), running.finish());
            if value != stated.value {
                return Err(ImportError::Corrupt(algorithm.name()));
            }
            checksums.push((algorithm, value));
        }
        if md5.zip(md5_of(&self.object)).is_some_and(|(came, stated)| came != stated) {
            let (etag, hint) = (&self.object.etag, hint(&self.import.source.upstream));
            let why = format!("their MD5 is not the ETag {etag:?}; {hint}");
            return Err(OriginError::WrongBytes(why).into());
        }
        Ok(Sums { bytes: self.object.size, md5, checksums })
    }
}
