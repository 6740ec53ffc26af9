//! Objects in upstreams that no record may name: a file of this node that lists them until they are gone.
//!
//! Whatever is about to be stored, or to be named no more, is noted here first, synced. A round later each noted object that
//! no record names is removed, and whatever is named or removed is struck off. So when power fails, nothing is left in an
//! upstream that nobody knows of. The list is as long as moves are under way, plus what could not be removed while an upstream was unreachable.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use mlgw_common::ids::SegmentId;
use serde::{Deserialize, Serialize};

use super::super::catalogue::UPSTREAM;
use super::super::map::SegmentMap;
use super::super::state_file;
use super::Upstreams;
use crate::upstream::ObjectId;

/// The format of the file.
const FORMAT: u32 = 1;

/// An object that a record may name, or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Noted {
    upstream: String,
    segment: u64,
    copy: u64,
}

impl Noted {
    fn new(upstream: &str, id: ObjectId) -> Self {
        Self { upstream: upstream.to_owned(), segment: id.segment.0, copy: id.copy }
    }

    fn id(&self) -> ObjectId {
        ObjectId { segment: SegmentId(self.segment), copy: self.copy }
    }
}

#[derive(Serialize, Deserialize)]
struct Listed {
    format: u32,
    objects: BTreeSet<Noted>,
}

/// The list.
pub(in crate::hot) struct Leftovers {
    /// None where there are no upstreams.
    path: Option<PathBuf>,
    noted: BTreeSet<Noted>,
}

impl Leftovers {
    /// Reads the list; there is none before the first move.
    ///
    /// # Errors
    /// When the file cannot be read, or is of a newer format.
    pub(in crate::hot) fn open(path: Option<PathBuf>) -> io::Result<Self> {
        let Some(file) = &path else { return Ok(Self { path, noted: BTreeSet::new() }) };
        let noted =
            state_file::read::<Listed>(file, FORMAT)?.map(|listed| listed.objects).unwrap_or_default();
        Ok(Self { path, noted })
    }

    /// Notes an object, before anything of it is sent or its record names something else. Blocks for a sync.
    ///
    /// # Errors
    /// When the list cannot be written; then nothing may be done to the object.
    pub(in crate::hot) fn note(&mut self, upstream: &str, id: ObjectId) -> io::Result<()> {
        if self.noted.insert(Noted::new(upstream, id)) { self.write() } else { Ok(()) }
    }

    /// Whether nothing is on the list.
    pub(in crate::hot) fn is_empty(&self) -> bool {
        self.noted.is_empty()
    }

    /// Objects on the list.
    pub(in crate::hot) fn len(&self) -> usize {
        self.noted.len()
    }

    /// Removes every listed object that no record names, as far as upstreams can be reached, and strikes off what is gone or
    /// named. Nothing may be under way with any of them, and what records say must survive power loss.
    ///
    /// # Errors
    /// When the catalogue cannot be read or the list not be written.
    pub(in crate::hot) async fn sweep(
        &mut self,
        map: &dyn SegmentMap,
        upstreams: &Upstreams,
    ) -> io::Result<()> {
        let mut left = BTreeSet::new();
        for noted in &self.noted {
            if is_named(map, noted)? {
                continue;
            }
            let Some(upstream) = upstreams.get(&noted.upstream) else {
                left.insert(noted.clone());
                continue;
            };
            match upstream.remove(noted.id()).await {
                Ok(()) => {
                    tracing::debug!(segment = %noted.id().segment, upstream = noted.upstream, "an object that nothing names is gone")
                }
                Err(error) => {
                    tracing::warn!(%error, "an object that nothing names was not removed; it will be tried again");
                    left.insert(noted.clone());
                }
            }
        }
        if left == self.noted {
            return Ok(());
        }
        self.noted = left;
        self.write()
    }

    fn write(&self) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let listed = Listed { format: FORMAT, objects: self.noted.clone() };
        state_file::replace(path, &listed)
    }
}

fn is_named(map: &dyn SegmentMap, noted: &Noted) -> io::Result<bool> {
    let record = map.record(SegmentId(noted.segment)).map_err(io::Error::other)?;
    Ok(record.is_some_and(|record| {
        record.replicas.iter().any(|place| {
            place.tier == UPSTREAM && place.location == noted.upstream && place.copy == noted.copy
        })
    }))
}
