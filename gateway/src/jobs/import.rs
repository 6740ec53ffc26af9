//! Imports one object of an origin: read there, verified, stored and named as a client's PUT would be.
//!
//! The condition that it is put under is what was seen here before; who writes the key meanwhile wins. A body that breaks off
//! is read on from where it was, of the same version or not at all.

use super::live::Ahead;
use crate::body::checksum::Running;
use crate::memory::Account;
use crate::s3::Gateway;
use crate::s3::checksums;
use crate::s3::compression::{Coming, Compression};
use crate::s3::error::{Code, S3Error};
use crate::s3::etag;
use crate::s3::ingest::{Destination, Durable, Ingest, append_failed};
use crate::s3::object_headers::Description;
use crate::s3::put::{self, Stored};
use crate::s3::quota::Writer;
use futures_util::StreamExt as _;
use mlgw_common::limits::GIB;
use mlgw_common::{Clock, ObjectKey};
use mlgw_metadata::command::{Conditions, EtagCondition};
use mlgw_metadata::schema::{self, Bucket, Checksum, ChecksumKind, ObjectVersion, Source};
use mlgw_tiering::origin::{GetQuery, Got, Origin, OriginError, Part, hint, md5_of};
use std::sync::Arc;
use std::time::Duration;

/// Largest object that is imported. It becomes one body with an extent for each MiB, which are named in one command: 1.6 MB of it.
const IMPORT_BYTES_MAX: u64 = 64 * GIB;
/// How often a body is read on that brings nothing new.
const TRIES: u32 = 5;
/// How often an object is tried that finds this server short of something, and how long it is left alone each time.
const SHORT_TRIES: u32 = 10;
const SHORT_WAIT: Duration = Duration::from_millis(500);

/// What it takes to import an object.
pub(super) struct Import {
    pub(super) gateway: Arc<Gateway>,
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
    Here(#[from] S3Error),
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
        matches!(self, Self::Here(error) if error.code() == Code::InsufficientStorage)
    }

    /// Whether every other object would fail likewise.
    pub(super) fn ends_all(&self) -> bool {
        match self {
            Self::Here(error) => matches!(
                error.code(),
                Code::InsufficientStorage
                    | Code::ServiceUnavailable
                    | Code::NoSuchBucket
                    | Code::QuotaExceeded
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
                Err(ImportError::Here(error)) if error.code() == Code::SlowDown && tries < SHORT_TRIES => {
                    tokio::time::sleep(SHORT_WAIT).await;
                }
                done => return done,
            }
        }
    }

    async fn try_import(&self, there: &str, listed: &ObjectVersion) -> Result<Imported, ImportError> {
        let key = self.key(there)?;
        let known = self.gateway.catalogue.object(self.bucket.bucket_id(), &key).map_err(S3Error::from)?;
        let known = known.filter(|object| !object.delete_marker);
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
        let new = Coming::with(&self.bucket.name, &key, Some(size), &description, None);
        let compression = self.gateway.compression(&new);
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
        put::put_version(&self.gateway, &self.bucket, &key, object, stored.extents, conditions).await?;
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

    /// Stores an object's bytes; they are durable when this returns.
    async fn store(
        &self,
        there: &str,
        key: &ObjectKey,
        got: Got,
        compression: Option<Compression>,
    ) -> Result<Stored, ImportError> {
        let from = got.object.clone();
        let room = self.gateway.tiers.hot.room_for(from.size).await;
        room.map_err(|error| append_failed(&self.gateway, error))?;
        self.gateway.check_quota(&self.bucket, key, "", Some(from.size))?;
        let body = self.gateway.catalogue.body_id().await.map_err(S3Error::from)?;
        let destination = Destination { bucket: self.bucket.bucket_id(), key: key.clone(), body, part: None };
        let (size, md5) = (Some(from.size), etag::wants_md5(&self.gateway));
        let ingest = Ingest::begin(&self.gateway, &self.memory, destination, size, md5).await?;
        let mut ingest = ingest.compressed(compression);
        let stated = from.checksums.iter().find(|checksum| checksum.kind() == ChecksumKind::FullObject);
        let mut running = stated.map(|stated| Running::new(checksums::algorithm(stated.algorithm())));
        self.read(there, got, &mut ingest, running.as_mut()).await?;
        let checksums = verified(stated, running)?;
        let Durable { extents, holds, md5 } = ingest.finish().await?;
        if md5.zip(md5_of(&from)).is_some_and(|(came, stated)| came != stated) {
            let (etag, hint) = (&from.etag, hint(&self.source.upstream));
            let why = format!("their MD5 is not the ETag {etag:?}; {hint}");
            return Err(OriginError::WrongBytes(why).into());
        }
        let etag = etag::of_body(md5)?;
        Ok(Stored { body, bytes: from.size, etag, checksums, extents, _holds: holds })
    }

    /// Reads all of an object, in as many answers as it takes.
    async fn read(
        &self,
        there: &str,
        got: Got,
        ingest: &mut Ingest,
        mut running: Option<&mut Running>,
    ) -> Result<(), ImportError> {
        let Got { object, mut body, .. } = got;
        let (mut at, mut tries) = (0, 0);
        while at < object.size {
            let error = match body.next().await {
                Some(Ok(mut piece)) => {
                    piece.truncate(usize::try_from(object.size - at).unwrap_or(usize::MAX));
                    if let Some(running) = &mut running {
                        running.update(&piece);
                    }
                    at += piece.len() as u64;
                    self.ahead.add(piece.len() as u64);
                    ingest.push(piece).await?;
                    tries = 0;
                    continue;
                }
                Some(Err(error)) => error,
                None => OriginError::Unreachable("it ended early".into()),
            };
            tries += 1;
            if !error.is_transient() || tries >= TRIES {
                return Err(error.into());
            }
            let part = Part::Range { first: at, end: object.size };
            let query = GetQuery { if_match: Some(object.etag.clone()), ..GetQuery::of(part) };
            let more = self.origin.get(there, &query).await?;
            if more.object.etag != object.etag || more.range.start != at {
                return Err(OriginError::Changed.into());
            }
            body = more.body;
        }
        Ok(())
    }
}

/// The checksum to be stored, when what was computed is what the origin stated.
fn verified(stated: Option<&Checksum>, computed: Option<Running>) -> Result<Vec<Checksum>, ImportError> {
    let (Some(stated), Some(computed)) = (stated, computed) else { return Ok(Vec::new()) };
    let algorithm = computed.algorithm();
    if computed.finish() != stated.value {
        return Err(ImportError::Corrupt(algorithm.name()));
    }
    Ok(vec![stated.clone()])
}
