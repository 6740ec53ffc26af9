//! Objects in upstreams that no record may name: a file of this node that lists them until they are gone.
//!
//! Whatever is about to be stored, or to be named no more, is noted here first, synced. A round later each
//! noted object that no record names is removed, and whatever is named or removed is struck off. So when
//! power fails, nothing is left in an upstream that nobody knows of. The list is as long as moves are under
//! way, plus what could not be removed while an upstream was unreachable.
//!
//! An upload that something cut short is noted with its object, and left for a day: who stores the segment
//! again goes on with it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;

use mlgw_common::ids::SegmentId;
use mlgw_common::{Identity, Incarnation, Lineage, Timestamp};
use mlgw_formats::schema::{Replica, SegmentRecord};
use serde::{Deserialize, Serialize};

use super::super::catalogue::UPSTREAM;
use super::super::map::SegmentMap;
use super::super::state_file;
use super::{Upstreams, object_of};
use mlgw_remote::upstream::{ObjectId, UpstreamError};

/// The format of the file.
pub(crate) const FORMAT: u32 = 2;
/// How long an upload is left that may be gone on with, in milliseconds. Its parts cost storage.
const LEFT_MS: i64 = 24 * 60 * 60 * 1000;

/// An object that a record may name, or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Noted {
    upstream: String,
    segment: u64,
    copy: u64,
    /// The incarnation in its name; none in the name of an object of an earlier version.
    #[serde(default, skip_serializing_if = "is_none")]
    incarnation: Incarnation,
}

fn is_none(incarnation: &Incarnation) -> bool {
    incarnation.0 == 0
}

impl Noted {
    fn new(upstream: &str, id: ObjectId) -> Self {
        let ObjectId { segment, incarnation, copy } = id;
        Self { upstream: upstream.to_owned(), segment: segment.0, copy, incarnation }
    }

    fn id(&self) -> ObjectId {
        ObjectId { segment: SegmentId(self.segment), incarnation: self.incarnation, copy: self.copy }
    }
}

/// An upload of a noted object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::hot) struct Unfinished {
    /// Its id, as the store gave it.
    pub(in crate::hot) upload: String,
    /// The generation and the length of the segment that it is of: other bytes are not to be mixed with them.
    pub(in crate::hot) generation: u32,
    pub(in crate::hot) bytes: u64,
    /// The sealed key of the object; empty when it is not encrypted.
    pub(in crate::hot) sealed_key: Vec<u8>,
    /// When it was begun, in milliseconds since 1970.
    pub(in crate::hot) begun_ms: i64,
}

impl Unfinished {
    fn is_of(&self, record: &SegmentRecord) -> bool {
        (self.generation, self.bytes) == (record.generation, record.length)
    }
}

#[derive(Serialize, Deserialize)]
struct Listed {
    format: u32,
    /// The server and the timeline that the list is of; lists of format 1 have none.
    #[serde(default)]
    owner: Option<Identity>,
    objects: BTreeSet<Noted>,
    /// By upstream, segment and copy.
    #[serde(default)]
    uploads: Vec<(Noted, Unfinished)>,
}

/// The list.
pub(in crate::hot) struct Leftovers {
    /// None where there are no upstreams.
    path: Option<PathBuf>,
    owner: Identity,
    noted: BTreeSet<Noted>,
    /// Of those that are noted.
    uploads: BTreeMap<Noted, Unfinished>,
}

impl Leftovers {
    /// Reads the list; there is none before the first move. A list of another server or of another timeline
    /// is set aside: its numbers of segments are not those of this one.
    ///
    /// # Errors
    /// When the file cannot be read, or is of a newer format.
    pub(in crate::hot) fn open(path: Option<PathBuf>, lineage: &Lineage) -> io::Result<Self> {
        let mut listed = match &path {
            Some(file) => state_file::read::<Listed>(file, FORMAT)?,
            None => None,
        };
        let is_own = |of: &Listed| match &of.owner {
            Some(owner) => *owner == lineage.own,
            None => lineage.earlier.is_empty(),
        };
        if let (Some(file), Some(other)) = (&path, listed.take_if(|of| !is_own(of))) {
            let aside = state_file::set_aside(file)?;
            tracing::warn!(
                objects = other.objects.len(), list = %aside.display(),
                "the list of objects to be removed from upstreams is not of this timeline: it is set aside"
            );
        }
        let (noted, uploads) = listed.map(|listed| (listed.objects, listed.uploads)).unwrap_or_default();
        let uploads = uploads.into_iter().filter(|(of, _)| noted.contains(of)).collect();
        Ok(Self { path, owner: lineage.own, noted, uploads })
    }

    /// Notes an object, before anything of it is sent or its record names something else. Blocks for a sync.
    ///
    /// # Errors
    /// When the list cannot be written; then nothing may be done to the object.
    pub(in crate::hot) fn note(&mut self, upstream: &str, id: ObjectId) -> io::Result<()> {
        let noted = Noted::new(upstream, id);
        // What was stored whole, and is to go now, is not gone on with.
        let was_begun = self.uploads.remove(&noted).is_some();
        if self.noted.insert(noted) || was_begun { self.write() } else { Ok(()) }
    }

    /// Notes the upload of a noted object, before anything of it is sent. Blocks for a sync.
    ///
    /// # Errors
    /// When the list cannot be written.
    pub(in crate::hot) fn note_upload(
        &mut self,
        upstream: &str,
        id: ObjectId,
        upload: Unfinished,
    ) -> io::Result<()> {
        self.uploads.insert(Noted::new(upstream, id), upload);
        self.write()
    }

    /// The object of a segment whose upload may be gone on with: of the same bytes, and encrypted or not as
    /// is asked for.
    pub(in crate::hot) fn unfinished(
        &self,
        upstream: &str,
        record: &SegmentRecord,
        encrypted: bool,
    ) -> Option<(ObjectId, Unfinished)> {
        let is_it = |(of, upload): &(&Noted, &Unfinished)| {
            of.upstream == upstream
                && of.id().segment == record.segment_id()
                && upload.is_of(record)
                && upload.sealed_key.is_empty() != encrypted
        };
        self.uploads.iter().find(is_it).map(|(of, upload)| (of.id(), upload.clone()))
    }

    /// The upstreams of the listed objects.
    pub(in crate::hot) fn upstreams(&self) -> impl Iterator<Item = &str> {
        self.noted.iter().map(|noted| noted.upstream.as_str())
    }

    /// Whether nothing is on the list.
    pub(in crate::hot) fn is_empty(&self) -> bool {
        self.noted.is_empty()
    }

    /// Objects on the list.
    pub(in crate::hot) fn len(&self) -> usize {
        self.noted.len()
    }

    /// Removes every listed object that no record names, as far as upstreams can be reached, and strikes off
    /// what is gone or named. Objects of segments that `is_in_use` are left as they are. What records say
    /// must survive power loss.
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
        for noted in &self.noted {
            if is_in_use(noted.id().segment) || refused.contains(&noted.upstream) {
                left.insert(noted.clone());
                continue;
            }
            let record = map.record(noted.id().segment).map_err(io::Error::other)?;
            if record.as_ref().is_some_and(|record| is_named(record, noted)) {
                continue;
            }
            if self.may_go_on(noted, record.as_ref(), now) {
                left.insert(noted.clone());
                continue;
            }
            match self.remove(noted, upstreams).await {
                Removed::Gone => continue,
                Removed::NotNow => {}
                // Without the mark of this server none of its other objects is removed either.
                Removed::NotOwner => drop(refused.insert(&noted.upstream)),
            }
            left.insert(noted.clone());
        }
        if left == self.noted {
            return Ok(());
        }
        self.uploads.retain(|of, _| left.contains(of));
        self.noted = left;
        self.write()
    }

    /// Whether an object's upload is left for who stores its segment again.
    fn may_go_on(&self, noted: &Noted, record: Option<&SegmentRecord>, now: Timestamp) -> bool {
        let (Some(upload), Some(record)) = (self.uploads.get(noted), record) else { return false };
        let is_here = record.replicas.first().is_some_and(|place| place.tier != UPSTREAM);
        is_here && upload.is_of(record) && now.as_millis().saturating_sub(upload.begun_ms) < LEFT_MS
    }

    /// Removes an object, and what an upload of it has left.
    async fn remove(&self, noted: &Noted, upstreams: &Upstreams) -> Removed {
        let Some(upstream) = upstreams.get(&noted.upstream) else { return Removed::NotNow };
        let removed = async {
            if let Some(unfinished) = self.uploads.get(noted) {
                upstream.abort(noted.id(), &unfinished.upload).await?;
            }
            upstream.remove(noted.id()).await
        };
        match removed.await {
            Ok(()) => {
                tracing::debug!(segment = %noted.id().segment, upstream = noted.upstream, "an object that nothing names is gone");
                Removed::Gone
            }
            // The upstream logged why when it found out.
            Err(UpstreamError::NotOwner { .. }) => Removed::NotOwner,
            Err(error) => {
                tracing::warn!(%error, "an object that nothing names was not removed; it will be tried again");
                Removed::NotNow
            }
        }
    }

    fn write(&self) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let uploads = self.uploads.iter().map(|(of, upload)| (of.clone(), upload.clone())).collect();
        let objects = self.noted.clone();
        let listed = Listed { format: FORMAT, owner: Some(self.owner), objects, uploads };
        state_file::replace(path, &listed)
    }
}

/// What came of removing an object.
enum Removed {
    /// Nothing of it is there.
    Gone,
    /// It is tried again with the next round.
    NotNow,
    /// The prefix does not carry this server's mark.
    NotOwner,
}

fn is_named(record: &SegmentRecord, noted: &Noted) -> bool {
    let is_it = |place: &Replica| {
        place.tier == UPSTREAM
            && place.location == noted.upstream
            && object_of(record.segment_id(), place) == noted.id()
    };
    record.replicas.iter().any(is_it)
}
