//! Checks the rows of every group for contradictions.
//!
//! There is one pass in the order of keys, so counters come after the records that they count. A row that
//! does not decode is a finding and the pass continues; a table that cannot be read ends it.

use super::bodies::{self, MapFault};
use super::finding::{Finding, Kind, Watch, unwatched};
use super::{Known, Opened, problem};
use crate::store::state::StateDb;
use crate::store_error::StoreError;
use crate::view::Changes;
use mlgw_common::limits::{POLICY_FILES_KEPT_MAX, UPLOAD_KEY_BYTES};
use mlgw_common::{BucketId, SegmentId};
use mlgw_formats::key::{BadKey, Family, number_of};
use mlgw_formats::schema::meta::{Counter, MetaRow, UploadKey};
use mlgw_formats::schema::{
    BadRecord, Bucket, BucketState, BucketUsage, Credential, Dataset, Extent, ExtentPage, FencedRange, Job,
    Mirror, Node, ObjectVersion, Part, Partition, Payer, PolicyFiles, PolicyVersion, Quota, Release,
    SegmentRecord, SegmentUsage, Upload, decode, encode, extent, fence, job, object, part, partition, quota,
    release, segment, upload, usage, version,
};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

/// Rows between two progress reports.
const WATCH_ROWS: u64 = 1 << 14;

/// Checks all rows; `None` if some cannot be read.
pub(super) fn check(
    states: &[Opened],
    dir: &Path,
    findings: &mut Vec<Finding>,
    watch: Watch<'_>,
) -> Option<Known> {
    let mut known = Known::default();
    let mut readable = true;
    for (group, opened) in states.iter().enumerate() {
        let mut pass = Pass { group, state: &opened.state, known: &mut known, findings, own: Own::default() };
        if let Err(error) = pass.run(watch) {
            readable = false;
            findings.push(problem::of(&error.0, &opened.from, &opened.to));
            tables(opened, findings);
        }
    }
    if !readable {
        return None;
    }
    references(&known, dir, findings);
    Some(known)
}

/// Reads the key range of each table separately, so that one damaged table does not hide the next.
fn tables(opened: &Opened, findings: &mut Vec<Finding>) {
    for (from, last) in opened.state.table_ranges().unwrap_or_default() {
        let mut rows = opened.state.rows(&from, &[last.as_slice(), &[0]].concat());
        let failed = loop {
            match rows.next() {
                Ok(Some(_)) => {}
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        let finding = failed.map(|error| problem::of(&error.0, &opened.from, &opened.to));
        findings.extend(finding.filter(|new| findings.iter().all(|known| known.place != new.place)));
    }
}

/// Wrong counters of a group, with their correct values.
pub(super) fn right_counters(group: usize, state: &StateDb) -> Result<Changes, StoreError> {
    let (mut known, mut findings) = (Known::default(), Vec::new());
    let own = Own::default();
    let mut pass = Pass { group, state, known: &mut known, findings: &mut findings, own };
    pass.run(&unwatched)?;
    Ok(pass.own.right)
}

/// Sums and facts of one group's rows.
#[derive(Default)]
struct Own {
    /// Mirrored buckets of this group; true if the bucket is frozen.
    mirrors: BTreeMap<u64, bool>,
    usage: BTreeMap<u64, BucketUsage>,
    /// Usage attributed to each access key.
    payers: BTreeMap<String, BucketUsage>,
    /// Quota of each access key; only in group 0.
    quotas: BTreeMap<String, Quota>,
    segments: BTreeMap<u64, SegmentUsage>,
    counted: BTreeMap<u64, SegmentUsage>,
    /// Ranges of fenced segments: the first of each by its last.
    fences: BTreeMap<u64, u64>,
    /// The active job of each dataset; 0 if there is none.
    datasets: BTreeMap<String, u64>,
    /// Versions of the policy by number, and the version that brought the files of each.
    policies: BTreeMap<u64, u64>,
    /// Versions whose files are stored.
    policy_files: BTreeSet<u64>,
    /// Bodies that may have pages or parts: of large objects, of uploads, of queued releases.
    owners: BTreeSet<u64>,
    /// Bodies that have pages or parts.
    mapped: BTreeSet<u64>,
    /// Wrong counters, with their correct values.
    right: Changes,
}

impl Own {
    fn is_fenced(&self, segment: u64) -> bool {
        self.fences.range(segment..).next().is_some_and(|(_, first)| *first <= segment)
    }
}

/// Fault of a row.
enum Wrong {
    Row(String),
    /// Another row could not be read.
    Store(StoreError),
}

impl From<BadRecord> for Wrong {
    fn from(bad: BadRecord) -> Self {
        Self::Row(bad.to_string())
    }
}

impl From<BadKey> for Wrong {
    fn from(bad: BadKey) -> Self {
        Self::Row(bad.to_string())
    }
}

impl From<MapFault> for Wrong {
    fn from(fault: MapFault) -> Self {
        match fault {
            MapFault::Store(error) => Self::Store(error),
            MapFault::Wrong(what) => Self::Row(what),
        }
    }
}

struct Pass<'a> {
    group: usize,
    state: &'a StateDb,
    known: &'a mut Known,
    findings: &'a mut Vec<Finding>,
    own: Own,
}

impl Pass<'_> {
    fn run(&mut self, watch: Watch<'_>) -> Result<(), StoreError> {
        let state = self.state;
        let mut rows = state.rows(&[0], &[u8::MAX]);
        while let Some((key, value)) = rows.next()? {
            self.known.rows += 1;
            if self.known.rows.is_multiple_of(WATCH_ROWS) {
                watch("reading the catalogue", self.known.rows, 0);
            }
            match self.row(key, value) {
                Err(Wrong::Row(what)) => self.wrong(key, &what),
                Err(Wrong::Store(error)) => return Err(error),
                Ok(()) => {}
            }
        }
        self.sums();
        Ok(())
    }

    fn wrong(&mut self, key: &[u8], what: &str) {
        let place = format!("group {} row {}", self.group, shown(key));
        self.findings.push(Finding::damage(Kind::Row, place, what));
    }

    fn row(&mut self, key: &[u8], value: &[u8]) -> Result<(), Wrong> {
        let family = family(key[0]).ok_or_else(|| Wrong::Row("of no family that is known".into()))?;
        match family {
            Family::Meta => self.meta(key, value),
            Family::Bucket => self.bucket(key, value),
            Family::Credential => {
                let credential: Credential = decode(value)?;
                self.own.quotas.extend(credential.quota.map(|quota| (credential.access_key.clone(), quota)));
                self.known.credentials.push(credential);
                Ok(())
            }
            Family::Node => read::<Node>(value),
            Family::Partition => {
                partition::key_of(key)?;
                read::<Partition>(value)
            }
            Family::Segment => self.segment(key, value),
            Family::Dataset => self.dataset(key, value),
            Family::Job => self.job(key, value),
            Family::Policy => self.policy(key, value),
            Family::PolicyFiles => {
                self.own.policy_files.insert(number_of(Family::PolicyFiles, key)?);
                read::<PolicyFiles>(value)
            }
            Family::Mirror => self.mirror(key, value),
            Family::Object => {
                let (bucket, name) = object::key_of(key)?;
                self.object(bucket, &name, &decode(value)?, true)
            }
            Family::Version => {
                let (bucket, name, _) = version::key_of(key)?;
                self.object(bucket, &name, &decode(value)?, false)
            }
            Family::Extent => {
                self.own.mapped.insert(extent::key_of(key)?.0.0);
                self.page(value)
            }
            Family::Upload => self.upload(key, value),
            Family::Part => self.part(key, value),
            Family::PartExtent => {
                self.own.mapped.insert(part::page_key_of(key)?.0.0);
                self.page(value)
            }
            Family::BucketUsage => self.bucket_usage(key, value),
            Family::SegmentUsage => {
                self.own.counted.insert(usage::segment_key_of(key)?.0, decode(value)?);
                Ok(())
            }
            Family::Release => {
                self.own.owners.insert(release::key_of(key)?.0);
                read::<Release>(value)
            }
            Family::Fence => self.fence(key, value),
            Family::Payer => self.payer(key, value),
            Family::Copy | Family::CopyBlock | Family::CopySegment | Family::CopyName => {
                Err(Wrong::Row("of a family that is in no group".into()))
            }
        }
    }

    fn meta(&mut self, key: &[u8], value: &[u8]) -> Result<(), Wrong> {
        if key == MetaRow::NextSegment.row() {
            self.known.next_segment = decode::<Counter>(value)?.next;
        } else if key == MetaRow::NextBody.row() {
            self.known.next_body = decode::<Counter>(value)?.next;
        } else if key == MetaRow::UploadKey.row() && decode::<UploadKey>(value)?.key.len() != UPLOAD_KEY_BYTES
        {
            return Err(Wrong::Row("a key of upload ids of another length".into()));
        }
        Ok(())
    }

    fn bucket(&mut self, key: &[u8], value: &[u8]) -> Result<(), Wrong> {
        let bucket: Bucket = decode(value)?;
        if key[1..] != *bucket.name.as_bytes() {
            return Err(Wrong::Row(format!("it is the bucket {:?}", bucket.name)));
        }
        self.known.buckets.insert(bucket.id, bucket);
        Ok(())
    }

    fn mirror(&mut self, key: &[u8], value: &[u8]) -> Result<(), Wrong> {
        let (id, mirror) = (number(key)?, decode::<Mirror>(value)?);
        self.own.mirrors.insert(id, mirror.frozen);
        // Other groups get a quota after group 0.
        match self.known.buckets.get(&id).filter(|_| self.group == 0) {
            Some(bucket) if bucket.quota != mirror.quota => {
                Err(Wrong::Row(format!("the bucket {:?} has another quota", bucket.name)))
            }
            _ => Ok(()),
        }
    }

    fn segment(&mut self, key: &[u8], value: &[u8]) -> Result<(), Wrong> {
        let record: SegmentRecord = decode(value)?;
        if segment::key_of(key)? != record.segment_id() {
            return Err(Wrong::Row(format!("it is the segment {}", record.id)));
        }
        self.known.segments.insert(record.id, record);
        Ok(())
    }

    fn dataset(&mut self, key: &[u8], value: &[u8]) -> Result<(), Wrong> {
        let dataset: Dataset = decode(value)?;
        if key[1..] != *dataset.name.as_bytes() {
            return Err(Wrong::Row(format!("it is the dataset {:?}", dataset.name)));
        }
        self.own.datasets.insert(dataset.name, dataset.active_job);
        Ok(())
    }

    fn job(&mut self, key: &[u8], value: &[u8]) -> Result<(), Wrong> {
        let job: Job = decode(value)?;
        let (dataset, id) = job::key_of(key)?;
        if *dataset != *job.dataset.as_bytes() || id != job.id {
            return Err(Wrong::Row(format!("it is the job {} of {:?}", job.id, job.dataset)));
        }
        let Some(active) = self.own.datasets.get_mut(&job.dataset) else {
            return Err(Wrong::Row(format!("of the dataset {:?}, which does not exist", job.dataset)));
        };
        if job.has_ended() == (*active == id) {
            return Err(Wrong::Row(format!("the dataset says that its job {active} has not ended")));
        }
        if *active == id {
            *active = 0;
        }
        Ok(())
    }

    fn policy(&mut self, key: &[u8], value: &[u8]) -> Result<(), Wrong> {
        let version: PolicyVersion = decode(value)?;
        let number = number_of(Family::Policy, key)?;
        if version.number != number || version.files > number {
            return Err(Wrong::Row(format!("it is the version {} of the policy", version.number)));
        }
        self.own.policies.insert(number, version.files);
        Ok(())
    }

    /// Checks that exactly the files of the newest versions are stored.
    fn files_of_policies(&mut self) {
        let newest = self.own.policies.values().rev().take(POLICY_FILES_KEPT_MAX);
        let named: BTreeSet<u64> = newest.copied().filter(|files| *files != 0).collect();
        for files in named.symmetric_difference(&self.own.policy_files) {
            let place = format!("group {} policy {files}", self.group);
            let what =
                if named.contains(files) { "its files are missing" } else { "files that no version names" };
            self.findings.push(Finding::damage(Kind::Row, place, what));
        }
    }

    fn object(
        &mut self,
        bucket: BucketId,
        name: &[u8],
        version: &ObjectVersion,
        current: bool,
    ) -> Result<(), Wrong> {
        self.refer(&version.extents);
        let usage = self.own.usage.entry(bucket.0).or_default();
        usage.objects += u64::from(current);
        usage.versions += 1;
        usage.bytes += version.size;
        if !version.payer.is_empty() {
            let payer = self.own.payers.entry(version.payer.clone()).or_default();
            payer.objects += u64::from(current);
            payer.versions += 1;
            payer.bytes += version.size;
        }
        self.known.objects += u64::from(current);
        if !self.own.mirrors.contains_key(&bucket.0) {
            return Err(Wrong::Row(format!("of the bucket {bucket}, which does not exist")));
        }
        if version.body_id >= self.known.next_body && version.body_id != 0 {
            return Err(Wrong::Row(format!("its body {} was never given out", version.body_id)));
        }
        if version.is_paged() || version.part_count > 0 {
            self.own.owners.insert(version.body_id);
        }
        bodies::covers(self.state, version).map_err(|fault| match Wrong::from(fault) {
            Wrong::Row(what) => Wrong::Row(format!("{:?}: {what}", String::from_utf8_lossy(name))),
            store @ Wrong::Store(_) => store,
        })
    }

    fn page(&mut self, value: &[u8]) -> Result<(), Wrong> {
        let page: ExtentPage = decode(value)?;
        self.refer(&page.extents);
        if page.extents.is_empty() == page.parts.is_empty() {
            return Err(Wrong::Row("a page with neither or both of extents and parts".into()));
        }
        Ok(())
    }

    fn upload(&mut self, key: &[u8], value: &[u8]) -> Result<(), Wrong> {
        let (bucket, name, body) = upload::key_of(key)?;
        let record: Upload = decode(value)?;
        let usage = self.own.usage.entry(bucket.0).or_default();
        usage.uploads += 1;
        usage.upload_bytes += record.part_bytes;
        if !record.payer.is_empty() {
            let payer = self.own.payers.entry(record.payer.clone()).or_default();
            payer.uploads += 1;
            payer.upload_bytes += record.part_bytes;
        }
        self.own.owners.insert(body.0);
        if record.body_id != body.0 || record.key.as_bytes() != &*name {
            return Err(Wrong::Row(format!("it is the upload {} of {:?}", record.body_id, record.key)));
        }
        Ok(())
    }

    fn part(&mut self, key: &[u8], value: &[u8]) -> Result<(), Wrong> {
        let (body, number) = part::key_of(key)?;
        let record: Part = decode(value)?;
        self.own.mapped.insert(body.0);
        self.refer(&record.extents);
        Ok(bodies::covers_part(self.state, body, number, &record)?)
    }

    fn bucket_usage(&mut self, key: &[u8], value: &[u8]) -> Result<(), Wrong> {
        let stored: BucketUsage = decode(value)?;
        let id = number(key)?;
        let mut summed = self.own.usage.remove(&id).unwrap_or_default();
        if self.own.mirrors.get(&id) == Some(&true) {
            // A bucket that is being dropped loses its uploads first and its counters at the end.
            (summed.uploads, summed.upload_bytes) = (stored.uploads, stored.upload_bytes);
        }
        if stored != summed {
            let place = format!("group {} bucket {id}", self.group);
            self.findings.push(Finding::damage(Kind::Counter, place, format!("{stored:?} is {summed:?}")));
            self.own.right.insert(key.to_vec(), Some(encode(&summed)));
        }
        Ok(())
    }

    fn payer(&mut self, key: &[u8], value: &[u8]) -> Result<(), Wrong> {
        let stored: Payer = decode(value)?;
        let access_key = quota::payer_key_of(key)?;
        let usage = self.own.payers.remove(access_key).unwrap_or_default();
        // Other groups get a quota after group 0.
        let quota = if self.group == 0 { self.own.quotas.remove(access_key) } else { stored.quota };
        self.counted_for(access_key, Some(&stored), &Payer { usage, quota });
        Ok(())
    }

    /// Compares a payer's row with the summed usage.
    fn counted_for(&mut self, access_key: &str, stored: Option<&Payer>, summed: &Payer) {
        let told = Some(summed).filter(|summed| **summed != Payer::default());
        if stored != told {
            let place = format!("group {} access key {access_key}", self.group);
            let what = format!("{stored:?} is {told:?}");
            self.findings.push(Finding::damage(Kind::Counter, place, what));
            self.own.right.insert(quota::payer_row(access_key), told.map(encode));
        }
    }

    fn fence(&mut self, key: &[u8], value: &[u8]) -> Result<(), Wrong> {
        let (first, last) = (decode::<FencedRange>(value)?.first, fence::key_of(key)?.0);
        let before = self.own.fences.last_key_value().map_or(0, |(last, _)| *last);
        self.own.fences.insert(last, first);
        if first == 0 || first > last || last >= self.known.next_segment {
            return Err(Wrong::Row(format!("a fence around the segments {first} to {last}")));
        }
        if before > 0 && first <= before + 1 {
            return Err(Wrong::Row(format!("the fence from {first} on touches the one up to {before}")));
        }
        Ok(())
    }

    fn refer(&mut self, extents: &[Extent]) {
        for extent in extents {
            for sums in [&mut self.own.segments, &mut self.known.usage] {
                let sum = sums.entry(extent.segment).or_default();
                sum.bytes += extent.record_bytes();
                sum.extents += 1;
            }
        }
    }

    /// Compares the sums with the stored counters, once all rows are read.
    fn sums(&mut self) {
        self.files_of_policies();
        for (dataset, job) in self.own.datasets.iter().filter(|(_, job)| **job != 0) {
            let place = format!("group {} dataset {dataset}", self.group);
            let what = format!("its job {job} has no record");
            self.findings.push(Finding::damage(Kind::Row, place, what));
        }
        for (bucket, summed) in std::mem::take(&mut self.own.usage) {
            let place = format!("group {} bucket {bucket}", self.group);
            self.findings.push(Finding::damage(Kind::Counter, place, format!("none is {summed:?}")));
            self.own.right.insert(usage::bucket_row(BucketId(bucket)), Some(encode(&summed)));
        }
        let (mut payers, quotas) =
            (std::mem::take(&mut self.own.payers), std::mem::take(&mut self.own.quotas));
        for access_key in quotas.keys() {
            payers.entry(access_key.clone()).or_default();
        }
        for (access_key, usage) in payers {
            let quota = quotas.get(&access_key).copied();
            self.counted_for(&access_key, None, &Payer { usage, quota });
        }
        let counted = std::mem::take(&mut self.own.counted);
        let mut summed = std::mem::take(&mut self.own.segments);
        summed.iter_mut().for_each(|(id, usage)| usage.fenced = self.own.is_fenced(*id));
        let ids: BTreeSet<u64> = counted.keys().chain(summed.keys()).copied().collect();
        for id in ids {
            let (counted, summed) = (counted.get(&id), summed.get(&id));
            if counted != summed {
                let place = format!("group {} segment {id}", self.group);
                self.findings.push(Finding::damage(
                    Kind::Counter,
                    place,
                    format!("{counted:?} is {summed:?}"),
                ));
                self.own.right.insert(usage::segment_row(SegmentId(id)), summed.map(encode));
            }
        }
        for body in self.own.mapped.difference(&self.own.owners) {
            let place = format!("group {} body {body}", self.group);
            self.findings.push(Finding::damage(Kind::Row, place, "rows of a body that nothing names"));
        }
    }
}

/// Compares the families of group 0 with the references of all groups.
fn references(known: &Known, dir: &Path, findings: &mut Vec<Finding>) {
    for id in known.usage.keys().filter(|id| !known.segments.contains_key(id)) {
        let what = format!("objects refer to the segment {id}, which the catalogue does not know");
        findings.push(Finding::damage(Kind::Row, dir.display(), what));
    }
    for bucket in known.buckets.values().filter(|bucket| bucket.state() == BucketState::Active) {
        if bucket.id == 0 || bucket.epoch == 0 {
            let what = format!("the bucket {:?} has no id or no epoch", bucket.name);
            findings.push(Finding::damage(Kind::Row, dir.display(), what));
        }
    }
}

fn read<M: Message + Default>(value: &[u8]) -> Result<(), Wrong> {
    decode::<M>(value)?;
    Ok(())
}

/// The number in a key.
fn number(key: &[u8]) -> Result<u64, BadKey> {
    let bytes: Option<[u8; 8]> = key.get(1..).and_then(|rest| rest.try_into().ok());
    Ok(u64::from_be_bytes(bytes.ok_or(BadKey)?))
}

fn family(byte: u8) -> Option<Family> {
    [
        Family::Meta,
        Family::Bucket,
        Family::Credential,
        Family::Node,
        Family::Partition,
        Family::Segment,
        Family::Dataset,
        Family::Job,
        Family::Policy,
        Family::PolicyFiles,
        Family::Mirror,
        Family::Object,
        Family::Version,
        Family::Extent,
        Family::Upload,
        Family::Part,
        Family::PartExtent,
        Family::BucketUsage,
        Family::SegmentUsage,
        Family::Release,
        Family::Fence,
        Family::Payer,
    ]
    .into_iter()
    .find(|family| *family as u8 == byte)
}

/// A key as hexadecimal digits.
fn shown(key: &[u8]) -> String {
    key.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
