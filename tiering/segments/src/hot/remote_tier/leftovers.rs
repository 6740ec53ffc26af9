//! The list of leftovers: objects at upstreams that no record may name, in a file of this node.
//!
//! An object is added to the file, with a sync, before it is stored and before its record stops naming it. A
//! pass later each listed object that no record names is removed, and objects that are named or removed leave
//! the list. So a power loss leaves no unknown objects at an upstream. The list is as long as the number of
//! moves in progress, plus the objects that could not be removed while an upstream was unreachable.
//!
//! An interrupted upload is listed with its object and kept for a day: the next attempt to store the segment
//! resumes it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;

use mlgw_common::ids::SegmentId;
use mlgw_common::{Identity, Incarnation, Lineage, Timestamp};
use mlgw_formats::schema::{Replica, SegmentRecord};
use serde::{Deserialize, Serialize};

use super::super::map::SegmentMap;
use super::super::options::Upstreams;
use super::super::state_file;
use super::object_of;
use mlgw_common::SegmentTier;
use mlgw_remote::upstream::{ObjectId, Upstream, UpstreamError};

/// Format version of the file.
pub(crate) const FORMAT: u32 = 2;
/// Milliseconds for which a resumable upload is kept. Its parts cost storage.
const UPLOAD_KEPT_MS: i64 = 24 * 60 * 60 * 1000;

/// An object that a record may or may not name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct LeftoverObject {
    upstream: String,
    segment: u64,
    copy: u64,
    /// Incarnation in the object's name; zero for objects of earlier versions, whose names have none.
    #[serde(default, skip_serializing_if = "is_none")]
    incarnation: Incarnation,
}

fn is_none(incarnation: &Incarnation) -> bool {
    incarnation.0 == 0
}

impl LeftoverObject {
    fn new(upstream: &str, id: ObjectId) -> Self {
        let ObjectId { segment, incarnation, copy } = id;
        Self { upstream: upstream.to_owned(), segment: segment.0, copy, incarnation }
    }

    fn id(&self) -> ObjectId {
        ObjectId { segment: SegmentId(self.segment), incarnation: self.incarnation, copy: self.copy }
    }
}

/// An unfinished upload of a listed object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::hot) struct UnfinishedUpload {
    /// Upload id that the store returned.
    pub(in crate::hot) upload: String,
    /// Generation and length of the segment: parts of other bytes must not be mixed in.
    pub(in crate::hot) generation: u32,
    pub(in crate::hot) bytes: u64,
    /// Sealed key of the object; empty if it is not encrypted.
    pub(in crate::hot) sealed_key: Vec<u8>,
    /// Time of the start of the upload, in milliseconds since 1970.
    pub(in crate::hot) begun_ms: i64,
}

impl UnfinishedUpload {
    fn has_bytes_of(&self, record: &SegmentRecord) -> bool {
        (self.generation, self.bytes) == (record.generation, record.length)
    }
}

#[derive(Serialize, Deserialize)]
struct LeftoversFile {
    format: u32,
    /// Identity of the server and timeline that wrote the list; absent in format 1.
    #[serde(default)]
    owner: Option<Identity>,
    objects: BTreeSet<LeftoverObject>,
    /// Uploads of the listed objects.
    #[serde(default)]
    uploads: Vec<(LeftoverObject, UnfinishedUpload)>,
}

/// The list of leftovers.
pub(in crate::hot) struct Leftovers {
    /// `None` if there are no upstreams.
    path: Option<PathBuf>,
    owner: Identity,
    objects: BTreeSet<LeftoverObject>,
    /// Unfinished uploads of listed objects.
    uploads: BTreeMap<LeftoverObject, UnfinishedUpload>,
}

impl Leftovers {
    /// Reads the list; the file does not exist before the first move. A list of another server or another
    /// timeline is renamed and ignored: its segment numbers are not those of this server.
    ///
    /// # Errors
    /// When the file cannot be read, or is of a newer format.
    pub(in crate::hot) fn open(path: Option<PathBuf>, lineage: &Lineage) -> io::Result<Self> {
        let mut listed = match &path {
            Some(file) => state_file::read::<LeftoversFile>(file, FORMAT)?,
            None => None,
        };
        let is_own = |of: &LeftoversFile| match &of.owner {
            Some(owner) => *owner == lineage.own,
            None => lineage.earlier.is_empty(),
        };
        if let (Some(file), Some(other)) = (&path, listed.take_if(|of| !is_own(of))) {
            let aside = state_file::set_aside(file)?;
            tracing::warn!(
                objects = other.objects.len(), list = %aside.display(),
                "the list of objects to remove from upstreams belongs to another timeline; set aside"
            );
        }
        let (objects, uploads) = listed.map(|listed| (listed.objects, listed.uploads)).unwrap_or_default();
        let uploads = uploads.into_iter().filter(|(of, _)| objects.contains(of)).collect();
        Ok(Self { path, owner: lineage.own, objects, uploads })
    }

    /// Adds an object before any byte of it is sent, or before its record names another. Blocks for a sync.
    ///
    /// # Errors
    /// When the list cannot be written; then the object must not be touched.
    pub(in crate::hot) fn add(&mut self, upstream: &str, id: ObjectId) -> io::Result<()> {
        let object = LeftoverObject::new(upstream, id);
        // The upload of an object that was stored whole and is now to be removed is not resumed.
        let was_begun = self.uploads.remove(&object).is_some();
        if self.objects.insert(object) || was_begun { self.write() } else { Ok(()) }
    }

    /// Adds the upload of a listed object before any byte of it is sent. Blocks for a sync.
    ///
    /// # Errors
    /// When the list cannot be written.
    pub(in crate::hot) fn add_upload(
        &mut self,
        upstream: &str,
        id: ObjectId,
        upload: UnfinishedUpload,
    ) -> io::Result<()> {
        let object = LeftoverObject::new(upstream, id);
        assert!(self.objects.contains(&object), "an object is listed before its upload begins");
        self.uploads.insert(object, upload);
        self.write()
    }

    /// Returns the object of a segment whose upload to `upstream` can be resumed: of the same bytes, and
    /// encrypted or not, as the upstream is now.
    pub(in crate::hot) fn unfinished(
        &self,
        upstream: &Upstream,
        record: &SegmentRecord,
    ) -> Option<(ObjectId, UnfinishedUpload)> {
        let is_it = |(of, upload): &(&LeftoverObject, &UnfinishedUpload)| {
            of.upstream == upstream.name()
                && of.id().segment == record.segment_id()
                && upload.has_bytes_of(record)
                && upload.sealed_key.is_empty() != upstream.encrypts()
        };
        self.uploads.iter().find(is_it).map(|(of, upload)| (of.id(), upload.clone()))
    }

    /// Upstreams of the listed objects.
    pub(in crate::hot) fn upstreams(&self) -> impl Iterator<Item = &str> {
        self.objects.iter().map(|object| object.upstream.as_str())
    }

    /// True if the list is empty.
    pub(in crate::hot) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Number of listed objects.
    pub(in crate::hot) fn len(&self) -> usize {
        self.objects.len()
    }

    /// Removes every listed object that no record names, as far as upstreams are reachable, and drops removed
    /// and named objects from the list. Objects of segments for which `is_in_use` is true stay. The records
    /// must already be synced, so that a power loss cannot restore a reference.
    ///
    /// # Errors
    /// When the catalogue cannot be read or the list not be written.
    pub(in crate::hot) async fn sweep(
        &mut self,
        map: &dyn SegmentMap,
        upstreams: &Upstreams,
        now: Timestamp,
        is_in_use: &(dyn Fn(SegmentId) -> bool + Sync),
    ) -> io::Result<()> {
        let (mut left, mut refused) = (BTreeSet::new(), BTreeSet::new());
        for object in &self.objects {
            if is_in_use(object.id().segment) || refused.contains(&object.upstream) {
                left.insert(object.clone());
                continue;
            }
            let record = map.record(object.id().segment).map_err(io::Error::other)?;
            if record.as_ref().is_some_and(|record| is_named(record, object)) {
                continue;
            }
            if self.can_resume(object, record.as_ref(), now) {
                left.insert(object.clone());
                continue;
            }
            match self.remove(object, upstreams).await {
                LeftoverRemoval::Gone => continue,
                LeftoverRemoval::NotNow => {}
                // Without the ownership mark of this server its other objects there are not removed either.
                LeftoverRemoval::NotOwner => drop(refused.insert(&object.upstream)),
            }
            left.insert(object.clone());
        }
        if left == self.objects {
            return Ok(());
        }
        self.uploads.retain(|of, _| left.contains(of));
        self.objects = left;
        self.write()
    }

    /// True if the upload of an object is kept for a later attempt to store its segment.
    fn can_resume(&self, object: &LeftoverObject, record: Option<&SegmentRecord>, now: Timestamp) -> bool {
        let (Some(upload), Some(record)) = (self.uploads.get(object), record) else { return false };
        let is_here =
            record.replicas.iter().any(|at| at.tier().is_ok_and(|tier| tier != SegmentTier::Upstream));
        is_here
            && upload.has_bytes_of(record)
            && now.as_millis().saturating_sub(upload.begun_ms) < UPLOAD_KEPT_MS
    }

    /// Removes an object and aborts its unfinished upload.
    async fn remove(&self, object: &LeftoverObject, upstreams: &Upstreams) -> LeftoverRemoval {
        let Some(upstream) = upstreams.get(&object.upstream) else { return LeftoverRemoval::NotNow };
        let removed = async {
            if let Some(unfinished) = self.uploads.get(object) {
                upstream.abort(object.id(), &unfinished.upload).await?;
            }
            upstream.remove(object.id()).await
        };
        match removed.await {
            Ok(()) => {
                tracing::debug!(segment = %object.id().segment, upstream = object.upstream,
                    "removed an unreferenced object");
                LeftoverRemoval::Gone
            }
            // The upstream client logged the reason when it detected this.
            Err(UpstreamError::NotOwner { .. }) => LeftoverRemoval::NotOwner,
            Err(error) => {
                tracing::warn!(%error, "failed to remove an unreferenced object; retrying later");
                LeftoverRemoval::NotNow
            }
        }
    }

    fn write(&self) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let uploads = self.uploads.iter().map(|(of, upload)| (of.clone(), upload.clone())).collect();
        let objects = self.objects.clone();
        let listed = LeftoversFile { format: FORMAT, owner: Some(self.owner), objects, uploads };
        state_file::replace(path, &listed)
    }
}

/// Result of the removal of an object.
enum LeftoverRemoval {
    /// The object does not exist any more.
    Gone,
    /// The removal is retried in the next pass.
    NotNow,
    /// The prefix does not carry this server's ownership mark.
    NotOwner,
}

fn is_named(record: &SegmentRecord, object: &LeftoverObject) -> bool {
    let is_it = |place: &Replica| {
        place.tier() == Ok(SegmentTier::Upstream)
            && place.location == object.upstream
            && object_of(record.segment_id(), place) == object.id()
    };
    record.replicas.iter().any(is_it)
}
