//! Checks the rows of every group for contradictions.
//!
//! There is one pass in the order of keys, so counters come after the records that they count. A row that
//! does not decode is a finding and the pass continues; a table that cannot be read ends it.

use super::bodies::{self, MapFault};
use super::finding::{CheckFinding, FindingKind, ProgressCallback, ignore_progress};
use super::group_rows::GroupDigest;
use super::scratch::ScratchState;
use super::{CatalogueFacts, cluster_rows, problem};
use crate::store::state::StateDb;
use crate::store_error::StoreError;
use crate::view::RowChanges;
use mlgw_common::limits::{POLICY_FILES_KEPT_MAX, UPLOAD_KEY_BYTES};
use mlgw_common::{BucketId, SegmentId};
use mlgw_formats::key::{BadKey, Family, parse_number_key};
use mlgw_formats::schema::meta::{Counter, MetaRow, UploadKey};
use mlgw_formats::schema::{
    BadRecord, Bucket, BucketState, BucketUsage, Credential, Dataset, Extent, ExtentPage, FencedRange, Job,
    Mirror, ObjectVersion, PartRecord, Partition, Payer, PolicyFiles, PolicyVersion, Quota, Release,
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
pub(super) fn check<'s>(
    states: impl Iterator<Item = &'s ScratchState>,
    dir: &Path,
    findings: &mut Vec<CheckFinding>,
    watch: ProgressCallback<'_>,
) -> Option<CatalogueFacts> {
    let mut known = CatalogueFacts::default();
    let mut readable = true;
    for opened in states {
        let (group, state, known) = (opened.group, &opened.state, &mut known);
        let mut pass = RowPass { group, state, known, findings, sums: GroupSums::default() };
        if let Err(error) = pass.run(watch) {
            readable = false;
            findings.push(problem::finding_of(&error.0, &opened.from, &opened.to));
            check_tables(opened, findings);
        }
    }
    if !readable {
        return None;
    }
    check_references(&known, dir, findings);
    Some(known)
}

/// Reads the key range of each table separately, so that one damaged table does not hide the next.
fn check_tables(opened: &ScratchState, findings: &mut Vec<CheckFinding>) {
    for (from, last) in opened.state.table_ranges().unwrap_or_default() {
        let mut rows = opened.state.rows(&from, &[last.as_slice(), &[0]].concat());
        let failed = loop {
            match rows.next() {
                Ok(Some(_)) => {}
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        let finding = failed.map(|error| problem::finding_of(&error.0, &opened.from, &opened.to));
        findings.extend(finding.filter(|new| findings.iter().all(|known| known.place != new.place)));
    }
}

/// Wrong counters of a group, with their correct values.
pub(super) fn correct_counters(group: u32, state: &StateDb) -> Result<RowChanges, StoreError> {
    let (mut known, mut findings) = (CatalogueFacts::default(), Vec::new());
    let own = GroupSums::default();
    let mut pass = RowPass { group, state, known: &mut known, findings: &mut findings, sums: own };
    pass.run(&ignore_progress)?;
    Ok(pass.sums.corrections)
}

/// Sums and facts of one group's rows.
#[derive(Default)]
struct GroupSums {
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
    /// The next node's id, if a node ever joined.
    next_node: Option<u64>,
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
    corrections: RowChanges,
}

impl GroupSums {
    fn is_fenced(&self, segment: u64) -> bool {
        self.fences.range(segment..).next().is_some_and(|(_, first)| *first <= segment)
    }
}

/// Fault of a row.
enum RowFault {
    Row(String),
    /// Another row could not be read.
    Store(StoreError),
}

impl From<BadRecord> for RowFault {
    fn from(bad: BadRecord) -> Self {
        Self::Row(bad.to_string())
    }
}

impl From<BadKey> for RowFault {
    fn from(bad: BadKey) -> Self {
        Self::Row(bad.to_string())
    }
}

impl From<MapFault> for RowFault {
    fn from(fault: MapFault) -> Self {
        match fault {
            MapFault::Store(error) => Self::Store(error),
            MapFault::Wrong(what) => Self::Row(what),
        }
    }
}

struct RowPass<'a> {
    group: u32,
    state: &'a StateDb,
    known: &'a mut CatalogueFacts,
    findings: &'a mut Vec<CheckFinding>,
    sums: GroupSums,
}

impl RowPass<'_> {
    fn run(&mut self, watch: ProgressCallback<'_>) -> Result<(), StoreError> {
        let state = self.state;
        let mut rows = state.rows(&[0], &[u8::MAX]);
        let mut digest = GroupDigest::default();
        while let Some((key, value)) = rows.next()? {
            self.known.rows += 1;
            digest.add(key, value);
            if self.known.rows.is_multiple_of(WATCH_ROWS) {
                watch("reading the catalogue", self.known.rows, 0);
            }
            match self.row(key, value) {
                Err(RowFault::Row(what)) => self.wrong(key, &what),
                Err(RowFault::Store(error)) => return Err(error),
                Ok(()) => {}
            }
        }
        self.known.groups.push(digest.finish(self.group));
        self.check_sums();
        Ok(())
    }

    fn wrong(&mut self, key: &[u8], what: &str) {
        let place = format!("group {} row {}", self.group, hex_key(key));
        self.findings.push(CheckFinding::damage(FindingKind::Row, place, what));
    }

    fn row(&mut self, key: &[u8], value: &[u8]) -> Result<(), RowFault> {
        let family =
            family(key[0]).ok_or_else(|| RowFault::Row("the row belongs to no known family".into()))?;
        match family {
            Family::Meta => self.meta(key, value),
            Family::Bucket => self.bucket(key, value),
            Family::Credential => {
                let credential: Credential = decode(value)?;
                self.sums.quotas.extend(credential.quota.map(|quota| (credential.access_key.clone(), quota)));
                self.known.credentials.push(credential);
                Ok(())
            }
            Family::Node => cluster_rows::check_node(key, value, self.sums.next_node).map_err(RowFault::Row),
            Family::JoinToken => cluster_rows::check_join_token(key, value).map_err(RowFault::Row),
            Family::Authority => cluster_rows::check_authority(key, value).map_err(RowFault::Row),
            Family::Set => cluster_rows::check_set(key, value).map_err(RowFault::Row),
            Family::GroupSet => cluster_rows::check_group_set(key, value).map_err(RowFault::Row),
            Family::Partition => {
                partition::parse_row_key(key)?;
                read::<Partition>(value)
            }
            Family::Segment => self.segment(key, value),
            Family::Dataset => self.dataset(key, value),
            Family::Job => self.job(key, value),
            Family::Policy => self.policy(key, value),
            Family::PolicyFiles => {
                self.sums.policy_files.insert(parse_number_key(Family::PolicyFiles, key)?);
                read::<PolicyFiles>(value)
            }
            Family::Mirror => self.mirror(key, value),
            Family::Object => {
                let (bucket, name) = object::key_of(key)?;
                self.object(family, bucket, &name, &decode(value)?)
            }
            Family::Version => {
                let (bucket, name, _) = version::key_of(key)?;
                self.object(family, bucket, &name, &decode(value)?)
            }
            Family::Extent => {
                self.sums.mapped.insert(extent::key_of(key)?.0.0);
                self.page(value)
            }
            Family::Upload => self.upload(key, value),
            Family::Part => self.part(key, value),
            Family::PartExtent => {
                self.sums.mapped.insert(part::page_key_of(key)?.0.0);
                self.page(value)
            }
            Family::BucketUsage => self.bucket_usage(key, value),
            Family::SegmentUsage => {
                self.sums.counted.insert(usage::segment_key_of(key)?.0, decode(value)?);
                Ok(())
            }
            Family::Release => {
                self.sums.owners.insert(release::key_of(key)?.0);
                read::<Release>(value)
            }
            Family::Fence => self.fence(key, value),
            Family::Payer => self.payer(key, value),
            Family::Copy | Family::CopyBlock | Family::CopySegment | Family::CopyName => {
                Err(RowFault::Row("the row belongs to a family that no group contains".into()))
            }
        }
    }

    fn meta(&mut self, key: &[u8], value: &[u8]) -> Result<(), RowFault> {
        if key == MetaRow::NextSegment.row() {
            self.known.next_segment = decode::<Counter>(value)?.next;
        } else if key == MetaRow::NextBody.row() {
            self.known.next_body = decode::<Counter>(value)?.next;
        } else if key == MetaRow::NextNode.row() {
            self.sums.next_node = Some(decode::<Counter>(value)?.next);
        } else if key == MetaRow::UploadKey.row() && decode::<UploadKey>(value)?.key.len() != UPLOAD_KEY_BYTES
        {
            return Err(RowFault::Row("the key of upload IDs has the wrong length".into()));
        }
        Ok(())
    }

    fn bucket(&mut self, key: &[u8], value: &[u8]) -> Result<(), RowFault> {
        let bucket: Bucket = decode(value)?;
        if key[1..] != *bucket.name.as_bytes() {
            return Err(RowFault::Row(format!("the record is that of bucket {:?}", bucket.name)));
        }
        self.known.buckets.insert(bucket.id, bucket);
        Ok(())
    }

    fn mirror(&mut self, key: &[u8], value: &[u8]) -> Result<(), RowFault> {
        let (id, mirror) = (number(key)?, decode::<Mirror>(value)?);
        self.sums.mirrors.insert(id, mirror.frozen);
        self.known.mirrored.insert(id);
        // Other groups get a quota after group 0.
        match self.known.buckets.get(&id).filter(|_| self.group == 0) {
            Some(bucket) if bucket.quota != mirror.quota => {
                Err(RowFault::Row(format!("the bucket {:?} has another quota", bucket.name)))
            }
            _ => Ok(()),
        }
    }

    fn segment(&mut self, key: &[u8], value: &[u8]) -> Result<(), RowFault> {
        let record: SegmentRecord = decode(value)?;
        if segment::key_of(key)? != record.segment_id() {
            return Err(RowFault::Row(format!("the record is that of segment {}", record.id)));
        }
        for replica in &record.replicas {
            replica.tier()?;
        }
        self.known.segments.insert(record.id, record);
        Ok(())
    }

    fn dataset(&mut self, key: &[u8], value: &[u8]) -> Result<(), RowFault> {
        let dataset: Dataset = decode(value)?;
        if key[1..] != *dataset.name.as_bytes() {
            return Err(RowFault::Row(format!("the record is that of dataset {:?}", dataset.name)));
        }
        self.sums.datasets.insert(dataset.name, dataset.active_job);
        Ok(())
    }

    fn job(&mut self, key: &[u8], value: &[u8]) -> Result<(), RowFault> {
        let job: Job = decode(value)?;
        let (dataset, id) = job::key_of(key)?;
        if *dataset != *job.dataset.as_bytes() || id != job.id {
            return Err(RowFault::Row(format!(
                "the record is that of job {} of dataset {:?}",
                job.id, job.dataset
            )));
        }
        let Some(active) = self.sums.datasets.get_mut(&job.dataset) else {
            return Err(RowFault::Row(format!("its dataset {:?} does not exist", job.dataset)));
        };
        if job.has_ended() == (*active == id) {
            return Err(RowFault::Row(format!("the dataset names the unfinished job {active}")));
        }
        if *active == id {
            *active = 0;
        }
        Ok(())
    }

    fn policy(&mut self, key: &[u8], value: &[u8]) -> Result<(), RowFault> {
        let version: PolicyVersion = decode(value)?;
        let number = parse_number_key(Family::Policy, key)?;
        if version.number != number || version.files > number {
            return Err(RowFault::Row(format!("the record is that of policy version {}", version.number)));
        }
        self.sums.policies.insert(number, version.files);
        Ok(())
    }

    /// Checks that exactly the files of the newest versions are stored.
    fn check_policy_files(&mut self) {
        let newest = self.sums.policies.values().rev().take(POLICY_FILES_KEPT_MAX);
        let named: BTreeSet<u64> = newest.copied().filter(|files| *files != 0).collect();
        for files in named.symmetric_difference(&self.sums.policy_files) {
            let place = format!("group {} policy {files}", self.group);
            let what =
                if named.contains(files) { "its files are missing" } else { "no version names these files" };
            self.findings.push(CheckFinding::damage(FindingKind::Row, place, what));
        }
    }

    /// Adds a version. Only a current one, of the family of objects, counts as an object.
    fn object(
        &mut self,
        family: Family,
        bucket: BucketId,
        name: &[u8],
        version: &ObjectVersion,
    ) -> Result<(), RowFault> {
        let objects = u64::from(family == Family::Object);
        self.add_references(&version.extents);
        let usage = self.sums.usage.entry(bucket.0).or_default();
        usage.objects += objects;
        usage.versions += 1;
        usage.bytes += version.size;
        if !version.payer.is_empty() {
            let payer = self.sums.payers.entry(version.payer.clone()).or_default();
            payer.objects += objects;
            payer.versions += 1;
            payer.bytes += version.size;
        }
        self.known.objects += objects;
        if !self.sums.mirrors.contains_key(&bucket.0) {
            return Err(RowFault::Row(format!("its bucket {bucket} does not exist")));
        }
        if version.body_id >= self.known.next_body && version.body_id != 0 {
            return Err(RowFault::Row(format!("its body {} was never assigned", version.body_id)));
        }
        if version.is_paged() || version.part_count > 0 {
            self.sums.owners.insert(version.body_id);
        }
        bodies::check_version_map(self.state, version).map_err(|fault| match RowFault::from(fault) {
            RowFault::Row(what) => RowFault::Row(format!("{:?}: {what}", String::from_utf8_lossy(name))),
            store @ RowFault::Store(_) => store,
        })
    }

    fn page(&mut self, value: &[u8]) -> Result<(), RowFault> {
        let page: ExtentPage = decode(value)?;
        self.add_references(&page.extents);
        if page.extents.is_empty() == page.parts.is_empty() {
            return Err(RowFault::Row("the page has neither extents nor parts, or both".into()));
        }
        Ok(())
    }

    fn upload(&mut self, key: &[u8], value: &[u8]) -> Result<(), RowFault> {
        let (bucket, name, body) = upload::key_of(key)?;
        let record: Upload = decode(value)?;
        let usage = self.sums.usage.entry(bucket.0).or_default();
        usage.uploads += 1;
        usage.upload_bytes += record.part_bytes;
        if !record.payer.is_empty() {
            let payer = self.sums.payers.entry(record.payer.clone()).or_default();
            payer.uploads += 1;
            payer.upload_bytes += record.part_bytes;
        }
        self.sums.owners.insert(body.0);
        if record.body_id != body.0 || record.key.as_bytes() != &*name {
            return Err(RowFault::Row(format!(
                "the record is that of upload {} of {:?}",
                record.body_id, record.key
            )));
        }
        Ok(())
    }

    fn part(&mut self, key: &[u8], value: &[u8]) -> Result<(), RowFault> {
        let (body, number) = part::key_of(key)?;
        let record: PartRecord = decode(value)?;
        self.sums.mapped.insert(body.0);
        self.add_references(&record.extents);
        Ok(bodies::check_part_map(self.state, body, number, &record)?)
    }

    fn bucket_usage(&mut self, key: &[u8], value: &[u8]) -> Result<(), RowFault> {
        let stored: BucketUsage = decode(value)?;
        let id = number(key)?;
        let mut summed = self.sums.usage.remove(&id).unwrap_or_default();
        if self.sums.mirrors.get(&id) == Some(&true) {
            // A bucket that is being dropped loses its uploads first and its counters at the end.
            (summed.uploads, summed.upload_bytes) = (stored.uploads, stored.upload_bytes);
        }
        if stored != summed {
            let place = format!("group {} bucket {id}", self.group);
            self.findings.push(CheckFinding::damage(
                FindingKind::Counter,
                place,
                format!("stored {stored:?}, counted {summed:?}"),
            ));
            self.sums.corrections.insert(key.to_vec(), Some(encode(&summed)));
        }
        Ok(())
    }

    fn payer(&mut self, key: &[u8], value: &[u8]) -> Result<(), RowFault> {
        let stored: Payer = decode(value)?;
        let access_key = quota::payer_key_of(key)?;
        let usage = self.sums.payers.remove(access_key).unwrap_or_default();
        // Other groups get a quota after group 0.
        let quota = if self.group == 0 { self.sums.quotas.remove(access_key) } else { stored.quota };
        let slice = stored.slice.and_then(|slice| slice.within(quota.as_ref()));
        self.check_payer(access_key, Some(&stored), &Payer { usage, quota, slice });
        Ok(())
    }

    /// Compares a payer's row with the summed usage.
    fn check_payer(&mut self, access_key: &str, stored: Option<&Payer>, summed: &Payer) {
        let expected = Some(summed).filter(|summed| **summed != Payer::default());
        if stored != expected {
            let place = format!("group {} access key {access_key}", self.group);
            let what = format!("stored {stored:?}, counted {expected:?}");
            self.findings.push(CheckFinding::damage(FindingKind::Counter, place, what));
            self.sums.corrections.insert(quota::payer_row(access_key), expected.map(encode));
        }
    }

    fn fence(&mut self, key: &[u8], value: &[u8]) -> Result<(), RowFault> {
        let (first, last) = (decode::<FencedRange>(value)?.first, fence::key_of(key)?.0);
        let before = self.sums.fences.last_key_value().map_or(0, |(last, _)| *last);
        self.sums.fences.insert(last, first);
        if first == 0 || first > last || last >= self.known.next_segment {
            return Err(RowFault::Row(format!("the range of fenced segments {first} to {last} is invalid")));
        }
        if before > 0 && first <= before + 1 {
            return Err(RowFault::Row(format!(
                "the fence that begins at {first} overlaps or touches the one that ends at {before}"
            )));
        }
        Ok(())
    }

    fn add_references(&mut self, extents: &[Extent]) {
        for extent in extents {
            for sums in [&mut self.sums.segments, &mut self.known.usage] {
                let sum = sums.entry(extent.segment).or_default();
                sum.bytes += extent.record_bytes();
                sum.extents += 1;
            }
        }
    }

    /// Compares the sums with the stored counters, once all rows are read.
    fn check_sums(&mut self) {
        self.check_policy_files();
        for (dataset, job) in self.sums.datasets.iter().filter(|(_, job)| **job != 0) {
            let place = format!("group {} dataset {dataset}", self.group);
            let what = format!("its job {job} has no record");
            self.findings.push(CheckFinding::damage(FindingKind::Row, place, what));
        }
        for (bucket, summed) in std::mem::take(&mut self.sums.usage) {
            let place = format!("group {} bucket {bucket}", self.group);
            self.findings.push(CheckFinding::damage(
                FindingKind::Counter,
                place,
                format!("stored none, counted {summed:?}"),
            ));
            self.sums.corrections.insert(usage::bucket_row(BucketId(bucket)), Some(encode(&summed)));
        }
        let (mut payers, quotas) =
            (std::mem::take(&mut self.sums.payers), std::mem::take(&mut self.sums.quotas));
        for access_key in quotas.keys() {
            payers.entry(access_key.clone()).or_default();
        }
        for (access_key, usage) in payers {
            let quota = quotas.get(&access_key).copied();
            self.check_payer(&access_key, None, &Payer { usage, quota, slice: None });
        }
        let counted = std::mem::take(&mut self.sums.counted);
        let mut summed = std::mem::take(&mut self.sums.segments);
        summed.iter_mut().for_each(|(id, usage)| usage.fenced = self.sums.is_fenced(*id));
        let ids: BTreeSet<u64> = counted.keys().chain(summed.keys()).copied().collect();
        for id in ids {
            let (counted, summed) = (counted.get(&id), summed.get(&id));
            if counted != summed {
                let place = format!("group {} segment {id}", self.group);
                self.findings.push(CheckFinding::damage(
                    FindingKind::Counter,
                    place,
                    format!("stored {counted:?}, counted {summed:?}"),
                ));
                self.sums.corrections.insert(usage::segment_row(SegmentId(id)), summed.map(encode));
            }
        }
        for body in self.sums.mapped.difference(&self.sums.owners) {
            let place = format!("group {} body {body}", self.group);
            self.findings.push(CheckFinding::damage(
                FindingKind::Row,
                place,
                "the rows belong to an unreferenced body",
            ));
        }
    }
}

/// Compares the families of group 0 with the references of all groups.
fn check_references(known: &CatalogueFacts, dir: &Path, findings: &mut Vec<CheckFinding>) {
    for id in known.usage.keys().filter(|id| !known.segments.contains_key(id)) {
        let what = format!("objects refer to segment {id}, which has no record");
        findings.push(CheckFinding::damage(FindingKind::Row, dir.display(), what));
    }
    for bucket in known.buckets.values().filter(|bucket| bucket.state() == BucketState::Active) {
        if bucket.id == 0 || bucket.epoch == 0 {
            let what = format!("the bucket {:?} has no ID or no epoch", bucket.name);
            findings.push(CheckFinding::damage(FindingKind::Row, dir.display(), what));
        }
    }
}

fn read<M: Message + Default>(value: &[u8]) -> Result<(), RowFault> {
    decode::<M>(value)?;
    Ok(())
}

/// The number in a key.
fn number(key: &[u8]) -> Result<u64, BadKey> {
    let bytes: Option<[u8; 8]> = key.get(1..).and_then(|rest| rest.try_into().ok());
    Ok(u64::from_be_bytes(bytes.ok_or(BadKey)?))
}

/// The families that groups contain.
pub(super) const FAMILIES: [Family; 26] = [
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
    Family::JoinToken,
    Family::Authority,
    Family::Set,
    Family::GroupSet,
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
];

pub(super) fn family(byte: u8) -> Option<Family> {
    FAMILIES.into_iter().find(|family| *family as u8 == byte)
}

/// A key as hexadecimal digits.
fn hex_key(key: &[u8]) -> String {
    key.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
