//! Sync jobs: import a dataset from its sources into a local bucket.
//!
//! The listing of a source is compared with the objects here. An object that was imported from the source
//! with the same ETag and size is left unchanged; all others are imported through the write path of client
//! PUTs. A concurrent client write is never overwritten unseen. Objects that are gone at the source are
//! deleted only on request, and only if they were imported from that source.
//!
//! In a cluster all changes carry the term of the duty node. A job that continues on another one begins the
//! next term in its bucket first, so late changes of the former node are rejected.

use super::import::{Import, ImportError, ImportOutcome};
use super::listing::{self, JobListingPage, JobListingPart};
use super::runner::OVERLOAD_PAUSE;
use super::running_job::UnfinishedBytes;
use super::{JobOutcome, JobRun, JobStop};
use futures_util::{StreamExt as _, stream};
use mlgw_common::limits::SYNC_OBJECTS_MAX;
use mlgw_common::{BucketId, ObjectKey};
use mlgw_formats::command::Reject;
use mlgw_formats::command::{Conditions, DeleteObject, EtagCondition, ObjectChange};
use mlgw_formats::decision_entry::{DecisionCause, DecisionSubject, PlacementDecision};
use mlgw_formats::decision_words::{DecisionKind, DecisionPlace};
use mlgw_formats::schema::{Bucket, DatasetSize, ImportSource};
use mlgw_metadata::{ProposeError, ReadError};
use mlgw_segments::decisions;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

/// Rows visited in one step of the search for deleted objects.
const STEP: usize = 1000;

/// Range of local keys that a source's page covers: after `after`, or from the first key, up to `last`, or to
/// the end.
#[derive(Debug, PartialEq, Eq)]
struct CoveredKeys {
    /// Local keys in the range whose objects are at the source.
    kept: BTreeSet<String>,
    after: Option<String>,
    last: Option<String>,
}

impl CoveredKeys {
    /// Returns the range that a page covers; `None` if it covers no key. Only a last page covers the keys
    /// after those that it lists.
    fn by(source: &ImportSource, page: &JobListingPage) -> Option<Self> {
        let here =
            |there: &str| there.strip_prefix(&source.prefix).map(|rest| format!("{}{rest}", source.into));
        let kept = page.objects.iter().filter_map(|(there, _)| here(there)).collect();
        let after = if page.after.is_empty() { None } else { Some(here(&page.after)?) };
        let last = match (page.is_last, page.objects.last()) {
            (true, _) => None,
            (false, last) => Some(here(&last?.0)?),
        };
        Some(Self { kept, after, last })
    }
}

impl JobRun {
    pub(super) async fn sync(&self) -> JobOutcome {
        let bucket = self.bucket()?;
        if bucket.binding.is_some() {
            return Err(JobStop::Failed(format!(
                "the bucket {:?} is remote-backed: sync is for local buckets",
                bucket.name
            )));
        }
        self.begin_term(&bucket).await?;
        let sources: Vec<ImportSource> = self.dataset.sources.clone();
        let mut parts = Vec::new();
        for source in &sources {
            let origin = self.jobs.bound.origin(&source.upstream).ok_or_else(|| {
                JobStop::Failed(format!("the upstream {:?} is no longer configured", source.upstream))
            })?;
            parts.push(JobListingPart {
                source: listing::JobListingSource::Origin(origin),
                prefix: source.prefix.clone(),
            });
        }
        let clock = self.jobs.clock.clone();
        let mut pages = listing::begin(parts, Arc::clone(&self.live), clock, |_| Ok(()));
        while let Some(page) = pages.recv().await {
            let page = page?;
            let source = &sources[page.part as usize];
            if self.job.params.delete {
                self.delete_gone(&bucket, source, &page).await?;
            }
            self.import_page(&bucket, source, page).await?;
        }
        self.live.check_errors()?;
        let progress = self.live.progress();
        let at_ms = self.jobs.clock.now().as_millis();
        Ok(Some(DatasetSize { objects: progress.objects_total, bytes: progress.bytes_total, at_ms }))
    }

    /// Rejects what a former duty node still sends for this job, before anything is listed: it would import
    /// or delete by an earlier listing. A cancelled job does so too, because nothing may follow its end.
    async fn begin_term(&self, bucket: &Bucket) -> Result<(), JobStop> {
        while !self.live.is_frozen() {
            match self.context.objects.begin_term_in(bucket).await {
                Ok(()) => return Ok(()),
                Err(ProposeError::Overloaded) => mlgw_common::time::sleep(OVERLOAD_PAUSE).await,
                Err(ProposeError::Rejected(Reject::TermEnded { .. })) => return Err(JobStop::Stopping),
                Err(error) => {
                    let why = format!("the term of the duty does not begin in {:?}: {error}", bucket.name);
                    return Err(JobStop::Failed(why));
                }
            }
        }
        Err(JobStop::Stopping)
    }

    async fn import_page(
        &self,
        bucket: &Arc<Bucket>,
        source: &ImportSource,
        page: JobListingPage,
    ) -> Result<(), JobStop> {
        let part = page.part;
        let origin = self.jobs.bound.origin(&source.upstream);
        let origin =
            origin.ok_or_else(|| JobStop::Failed("the upstream is no longer configured".to_owned()))?;
        let mut imports = stream::iter(page.objects)
            .map(|(there, object)| {
                let import = Import {
                    objects: Arc::clone(&self.context.objects),
                    policies: Arc::clone(&self.context.policies),
                    memory: self.jobs.memory.account([127, 0, 0, 1].into()),
                    origin: Arc::clone(&origin),
                    bucket: Arc::clone(bucket),
                    source: source.clone(),
                    clock: self.jobs.clock.clone(),
                    unfinished: UnfinishedBytes::of(&self.live),
                };
                async move {
                    let imported = import.import(&there, &object).await;
                    (there, object.size, imported, import)
                }
            })
            .buffered(SYNC_OBJECTS_MAX)
            .boxed();
        loop {
            let next = tokio::select! {
                next = imports.next() => next,
                stop = self.live.stop_reason() => return Err(stop),
            };
            let Some((there, size, imported, _import)) = next else { return Ok(()) };
            self.record_import(bucket.bucket_id(), &there, size, &imported);
            let moved = match imported {
                Ok(ImportOutcome::Same | ImportOutcome::Gone) => None,
                Ok(ImportOutcome::New { bytes }) => Some(bytes),
                Err(error) if error.ends_all() => return Err(JobStop::Failed(format!("{there:?}: {error}"))),
                Err(error) => {
                    self.live.record_failure(|| format!("{there:?}: {error}"));
                    None
                }
            };
            self.live.advance_to(part, &there, |progress| {
                progress.objects_done += 1;
                progress.bytes_done += size;
                progress.moved_objects += u64::from(moved.is_some());
                progress.moved_bytes += moved.unwrap_or(0);
            });
        }
    }

    /// Records the result of an import in the decision log, unless nothing was done.
    fn record_import(
        &self,
        bucket: BucketId,
        there: &str,
        size: u64,
        imported: &Result<ImportOutcome, ImportError>,
    ) {
        let (bytes, outcome) = match imported {
            Ok(ImportOutcome::Same | ImportOutcome::Gone) => return,
            Ok(ImportOutcome::New { bytes }) => (*bytes, decisions::DecisionOutcome::Done),
            Err(error) if error.is_out_of_room() => (size, decisions::DecisionOutcome::NoRoom),
            Err(_) => (size, decisions::DecisionOutcome::Failed),
        };
        let decided = PlacementDecision {
            kind: DecisionKind::Import,
            subject: DecisionSubject::Object(bucket, there),
            from: DecisionPlace::Origin,
            to: DecisionPlace::Hot,
            bytes,
            cause: DecisionCause::job(self.job.id),
            outcome,
        };
        match imported {
            Err(error) => self.jobs.decisions.record_because(&decided, error),
            Ok(_) => self.jobs.decisions.record(&decided),
        }
    }

    /// Deletes objects that were imported from a source and are gone there, in the range of keys that a page
    /// covers.
    async fn delete_gone(
        &self,
        bucket: &Arc<Bucket>,
        source: &ImportSource,
        page: &JobListingPage,
    ) -> Result<(), JobStop> {
        let Some(CoveredKeys { kept, mut after, last }) = CoveredKeys::by(source, page) else {
            return Ok(());
        };
        loop {
            self.live.check()?;
            let gone = self.gone_objects(bucket, source, after.as_deref(), last.as_deref(), &kept);
            let (gone, next) = gone.map_err(|error| JobStop::Failed(error.to_string()))?;
            for (key, etag, seq) in gone {
                self.delete(bucket, &key, etag, seq).await?;
            }
            if next.is_none() {
                return Ok(());
            }
            after = next;
        }
    }

    /// Returns the objects that are gone at the source, from one step of rows after `after` and up to `last`,
    /// and the key after which the next step begins.
    #[expect(clippy::type_complexity, reason = "deleted keys, and the next position")]
    fn gone_objects(
        &self,
        bucket: &Bucket,
        source: &ImportSource,
        after: Option<&str>,
        last: Option<&str>,
        kept: &BTreeSet<String>,
    ) -> Result<(Vec<(ObjectKey, String, u64)>, Option<String>), ReadError> {
        let from = match after {
            Some(key) => Bound::Excluded(key.as_bytes()),
            None => Bound::Included(source.into.as_bytes()),
        };
        let reader = self.jobs.catalogue.background_reader();
        let (mut gone, mut seen) = (Vec::new(), None);
        for (number, found) in reader.scan(bucket.bucket_id(), from).enumerate() {
            let (key, entry) = found?;
            let is_beyond = last.is_some_and(|last| key.as_str() > last);
            if is_beyond || !key.as_str().starts_with(&source.into) {
                return Ok((gone, None));
            }
            if number == STEP {
                return Ok((gone, seen));
            }
            if !kept.contains(key.as_str()) {
                let object = entry.version()?;
                if object.imported.is_some_and(|imported| imported.upstream == source.upstream) {
                    gone.push((key.clone(), object.etag, object.seq));
                }
            }
            seen = Some(key.as_str().to_owned());
        }
        Ok((gone, None))
    }

    /// Deletes the version with this ETag and sequence number. A duty node of an earlier term does not delete
    /// what a later one has imported again.
    async fn delete(&self, bucket: &Bucket, key: &ObjectKey, etag: String, seq: u64) -> Result<(), JobStop> {
        let if_match = Some(EtagCondition::one_of(vec![etag]));
        let conditions = Conditions { if_match, if_match_seq: Some(seq), ..Conditions::default() };
        let change = ObjectChange::Delete(DeleteObject { conditions });
        match self.context.objects.propose_object(bucket, key, self.jobs.clock.now(), change).await {
            Ok(_) => self.live.update(|progress| progress.deleted_objects += 1),
            // A client overwrote or deleted it.
            Err(ProposeError::Rejected(Reject::PreconditionFailed | Reject::NoSuchKey)) => {}
            Err(error) => {
                if !matches!(error, ProposeError::Overloaded) {
                    return Err(JobStop::Failed(format!("deleting {:?}: {error}", key.as_str())));
                }
                self.live.record_failure(|| format!("deleting {:?}: {error}", key.as_str()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{CoveredKeys, ImportSource, JobListingPage};
    use mlgw_common::Timestamp;
    use mlgw_formats::schema::ObjectVersion;

    fn covered(
        after: &str,
        objects: &[&str],
        is_last: bool,
    ) -> Option<(Vec<String>, Option<String>, Option<String>)> {
        let source =
            ImportSource { prefix: "there/".to_owned(), into: "here/".to_owned(), ..ImportSource::default() };
        let objects = objects.iter().map(|key| ((*key).to_owned(), ObjectVersion::default())).collect();
        let page = JobListingPage {
            part: 0,
            listed: Timestamp::default(),
            after: after.to_owned(),
            objects,
            is_last,
        };
        CoveredKeys::by(&source, &page)
            .map(|covered| (covered.kept.into_iter().collect(), covered.after, covered.last))
    }

    fn some(key: &str) -> Option<String> {
        Some(key.to_owned())
    }

    #[test]
    fn a_page_covers_the_keys_between_the_previous_page_and_its_last_key() {
        let kept = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            covered("", &["there/a", "there/b"], false),
            Some((kept(&["here/a", "here/b"]), None, some("here/b")))
        );
        assert_eq!(covered("there/b", &["there/c"], true), Some((kept(&["here/c"]), some("here/b"), None)));
        assert_eq!(
            covered("there/b", &[], true),
            Some((vec![], some("here/b"), None)),
            "no later key at the origin"
        );
        assert_eq!(covered("", &[], true), Some((vec![], None, None)), "an empty origin");
    }

    #[test]
    fn an_empty_page_that_is_not_the_last_covers_no_key() {
        assert_eq!(covered("there/b", &[], false), None);
        assert_eq!(covered("", &[], false), None);
        assert_eq!(covered("", &["elsewhere"], false), None, "a last key outside of the source");
        assert_eq!(
            covered("elsewhere", &["there/a"], true),
            None,
            "a page that begins outside of the source"
        );
    }
}
