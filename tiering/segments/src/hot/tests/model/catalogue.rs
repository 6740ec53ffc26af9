//! The catalogue of the model: a log that can lose its tail, and rows written by the real `apply`.

use mlgw_common::ids::{BodyId, BucketId, PartNumber};
use mlgw_formats::command::{Change, Command, CreateBucket, MirrorBucket, Reject, Reply, SetBucketState};
use mlgw_formats::key::Family;
use mlgw_formats::schema::{
    Extent, ExtentPage, ObjectVersion, PartRange, PartRecord, Release, SegmentRecord, SegmentUsage, decode,
    extent, meta, object, part, release, segment, upload, usage,
};
use mlgw_metadata::apply::{apply, seq_of};
use mlgw_metadata::view::{MemoryRows, RowReader, View};

use super::disk::Chunk;

pub(super) const BUCKET: BucketId = BucketId(1);

/// An extent and the row that names it.
#[derive(Clone, Debug)]
pub(super) struct Named {
    pub(super) chunk: Chunk,
    pub(super) key: String,
    pub(super) page: Option<u64>,
    pub(super) extent: Extent,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Catalogue {
    pub(super) log: Vec<Command>,
    /// Number of log entries applied to the rows.
    pub(super) applied: usize,
    /// Number of log entries that survive power loss.
    pub(super) synced: usize,
    pub(super) rows: MemoryRows,
    /// Rows on the disk, and the number of entries applied to them.
    pub(super) flushed: (MemoryRows, usize),
}

impl Catalogue {
    pub(super) fn new() -> Self {
        let mut catalogue = Self::default();
        let create = CreateBucket {
            name: "data".into(),
            owner: "o".into(),
            created_ms: 0,
            region: String::new(),
            binding: None,
            group: None,
            splits: vec![],
        };
        let mirror = MirrorBucket { bucket_id: 1, epoch: 1, ..MirrorBucket::default() };
        let state = SetBucketState { name: "data".into(), bucket_id: 1, state: 1 };
        let begin =
            [Change::CreateBucket(create), Change::MirrorBucket(mirror), Change::SetBucketState(state)];
        for change in begin {
            catalogue.commit(change, true).unwrap();
        }
        catalogue
    }

    /// Applies the next entry of the log.
    pub(super) fn apply_next(&mut self) -> Result<Reply, Reject> {
        let mut view = View::new(&self.rows);
        let outcome = apply(&mut view, &self.log[self.applied], seq_of(self.applied as u64 + 1, 0)).unwrap();
        let (changes, _) = view.into_changes();
        self.rows.write(changes);
        self.applied += 1;
        outcome
    }

    /// Appends a command and applies it immediately; all earlier entries must be applied.
    pub(super) fn commit(&mut self, change: Change, sync: bool) -> Result<Reply, Reject> {
        assert_eq!(self.applied, self.log.len(), "a commit overtakes nothing");
        self.log.push(Command::from(change));
        if sync {
            self.synced = self.log.len();
        }
        self.apply_next()
    }

    pub(super) fn flush(&mut self) {
        self.flushed = (self.rows.clone(), self.applied);
    }

    /// Restores the state after a kill or a power loss, with the log truncated to `length`.
    pub(super) fn recover(&mut self, length: usize) {
        self.log.truncate(length.max(self.flushed.1));
        (self.rows, self.applied) = self.flushed.clone();
        while self.applied < self.log.len() {
            drop(self.apply_next());
        }
        self.synced = self.log.len();
    }

    fn get<M: prost::Message + Default>(&self, row: &[u8]) -> Option<M> {
        self.rows.get(row).unwrap().map(|value| decode(&value).unwrap())
    }

    fn all(&self, family: Family) -> impl Iterator<Item = (&Vec<u8>, &Vec<u8>)> {
        self.rows.0.range(family.start()..family.end())
    }

    pub(super) fn object(&self, key: &str) -> Option<ObjectVersion> {
        self.get(&object::row(BUCKET, key.as_bytes()))
    }

    pub(super) fn segment(&self, id: u64) -> Option<SegmentRecord> {
        self.get(&segment::row(id.into()))
    }

    pub(super) fn segments(&self) -> Vec<SegmentRecord> {
        self.all(Family::Segment).map(|(_, value)| decode(value).unwrap()).collect()
    }

    pub(super) fn usage(&self, id: u64) -> SegmentUsage {
        self.get(&usage::segment_row(id.into())).unwrap_or_default()
    }

    pub(super) fn next_segment(&self) -> u64 {
        self.get::<meta::Counter>(&meta::MetaRow::NextSegment.row()).unwrap_or_default().next.max(1)
    }

    pub(super) fn uploads(&self) -> Vec<(String, u64)> {
        let keys = self.all(Family::Upload).map(|(row, _)| upload::key_of(row).unwrap());
        keys.map(|(_, key, body)| (String::from_utf8(key.into_owned()).unwrap(), body.0)).collect()
    }

    /// Bodies whose extents wait to be released, with the scope of the release.
    pub(super) fn waiting_bodies(&self) -> Vec<(u64, i32)> {
        let waiting = self
            .all(Family::Release)
            .map(|(row, value)| (release::key_of(row).unwrap().0, decode::<Release>(value).unwrap().scope));
        waiting.collect()
    }

    pub(super) fn fences(&self) -> usize {
        self.all(Family::Fence).count()
    }

    pub(super) fn parts(&self, body: u64) -> Vec<(u32, u64)> {
        let rows = self.rows.0.range(part::rows_start(BodyId(body))..part::rows_end(BodyId(body)));
        rows.map(|(row, value)| {
            let part: PartRecord = decode(value).unwrap();
            (u32::from(part::key_of(row).unwrap().1.get()), part.seq)
        })
        .collect()
    }

    /// Returns the page of a body's map that covers byte `at`: its extents, or its parts.
    pub(super) fn page(&self, body: u64, at: u64) -> Option<(u64, ExtentPage)> {
        let first = extent::row(BodyId(body), 0);
        let (row, value) = self.rows.0.range(first..=extent::row(BodyId(body), at)).next_back()?;
        Some((extent::key_of(row).unwrap().1, decode(value).unwrap()))
    }

    /// Returns a part's extents, including those on pages.
    pub(super) fn part_extents(&self, body: u64, range: PartRange) -> Option<(u64, Vec<Extent>)> {
        let number = PartNumber::new(range.number).unwrap();
        let part: PartRecord = self.get(&part::row(BodyId(body), number))?;
        let pages = part::page_row(BodyId(body), number, 0)..part::pages_end(BodyId(body), number);
        let paged =
            self.rows.0.range(pages).flat_map(|(_, page)| decode::<ExtentPage>(page).unwrap().extents);
        Some((writing(&part), part.extents.iter().cloned().chain(paged).collect()))
    }

    /// Returns every extent that a row refers to.
    pub(super) fn references(&self) -> Vec<Named> {
        let mut found = Vec::new();
        let mut note = |key: String, (body, part, writing), page: Option<u64>, extents: &[Extent]| {
            let mut at = page.unwrap_or(0);
            for extent in extents {
                let (key, extent) = (key.clone(), extent.clone());
                let logical_bytes = extent.logical_bytes;
                found.push(Named { chunk: (body, part, writing, at), key, page, extent });
                at += logical_bytes;
            }
        };
        for (row, value) in self.all(Family::Object) {
            let key = String::from_utf8(object::key_of(row).unwrap().1.into_owned()).unwrap();
            let version: ObjectVersion = decode(value).unwrap();
            note(key, (version.body_id, 0, 0), None, &version.extents);
        }
        for (row, value) in self.all(Family::Extent) {
            let (body, first) = extent::key_of(row).unwrap();
            note("paged".into(), (body.0, 0, 0), Some(first), &decode::<ExtentPage>(value).unwrap().extents);
        }
        for (row, value) in self.all(Family::Part) {
            let (body, number) = part::key_of(row).unwrap();
            let part: PartRecord = decode(value).unwrap();
            note("part".into(), (body.0, number.get().into(), writing(&part)), None, &part.extents);
        }
        for (row, value) in self.all(Family::PartExtent) {
            let (body, number, first) = part::page_key_of(row).unwrap();
            let part: PartRecord = self.get(&part::row(body, number)).unwrap();
            let page: ExtentPage = decode(value).unwrap();
            let of = (body.0, number.get().into(), writing(&part));
            note("part".into(), of, Some(first), &page.extents);
        }
        found
    }
}

/// Identifies the upload of a part among uploads with the same part number.
fn writing(part: &PartRecord) -> u64 {
    part.etag.parse().unwrap()
}
