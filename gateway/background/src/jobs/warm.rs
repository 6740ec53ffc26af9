//! Warm jobs: load a dataset ahead of use. Objects of a remote-backed bucket are fetched into clean copies;
//! for a local bucket, the segments that hold its objects are promoted to the hot tier.

use super::listing::{self, JobListingPart, JobListingSource, JobObject, Lister, Pages};
use super::promote::BUDGET_POLL_INTERVAL;
use super::running_job::UnfinishedBytes;
use super::{JobOutcome, JobRun, JobStop, covered_prefixes, shuffle};
use futures_util::stream::{self, BoxStream, Stream, StreamExt as _};
use mlgw_cache::copies::Copies;
use mlgw_cache::remote_backed::{CachedBucket, WarmedObject};
use mlgw_common::ObjectKey;
use mlgw_common::limits::JOB_OBJECTS_MAX;
use mlgw_formats::decision_entry::{DecisionCause, DecisionSubject, PlacementDecision};
use mlgw_formats::decision_words::DecisionKind;
use mlgw_formats::schema::{Bucket, DatasetSize, JobOrder, JobProgress};
use mlgw_remote::origin::OriginError;
use mlgw_segments::decisions;
use std::sync::Arc;

/// Share of the copies' capacity that a dataset may take. Eviction begins at 92 percent, so a larger dataset
/// would evict itself.
const FITS_PERCENT: u64 = 90;
/// Consecutive transient failures after which the origin counts as unavailable.
const FAILURES_MAX: u32 = 50;

impl JobRun {
    pub(super) async fn warm(&self) -> JobOutcome {
        match self.bound_bucket()? {
            Some(bound) => self.fetch_all(bound).await,
            None => self.promote_all().await,
        }
    }

    /// Returns the bucket if it is remote-backed.
    pub(super) fn bound_bucket(&self) -> Result<Option<CachedBucket>, JobStop> {
        let bucket = self.bucket()?;
        let Some(binding) = &bucket.binding else { return Ok(None) };
        let bound = self.jobs.bound.bucket(&bucket, binding);
        let gone = || JobStop::Failed(format!("the upstream {:?} is no longer configured", binding.upstream));
        bound.map(|bound| Some(bound.for_job(self.job.id))).ok_or_else(gone)
    }

    pub(super) fn bucket(&self) -> Result<Arc<Bucket>, JobStop> {
        let name = &self.dataset.bucket;
        let bucket = self.jobs.catalogue.bucket(name);
        bucket.ok_or_else(|| JobStop::Failed(format!("the bucket {name:?} no longer exists")))
    }

    async fn fetch_all(&self, bound: CachedBucket) -> JobOutcome {
        let parts = covered_prefixes(&self.dataset, &self.job.params.prefix);
        let place = |prefix| JobListingPart { source: JobListingSource::RemoteBacked(bound.clone()), prefix };
        let limit_bytes = self.jobs.bound.copies().map(Copies::metrics).unwrap_or_default().limit_bytes;
        let fits = move |bytes: u64| match bytes > limit_bytes / 100 * FITS_PERCENT {
            false => Ok(()),
            true => Err(JobStop::Failed(format!(
                "the dataset has at least {bytes} bytes, but all copies together may use {limit_bytes} \
                 (bound.capacity); choose slices, or warm a --prefix"
            ))),
        };
        let parts = parts.into_iter().map(place).collect();
        let mut fetched = self
            .ordered_objects(parts, fits)
            .map(|wanted| async {
                let (wanted, ahead) = (wanted?, UnfinishedBytes::of(&self.live));
                self.wait_for_copy_budget(&wanted).await;
                let came = |bytes| ahead.add(bytes);
                let warmed = match ObjectKey::new(&wanted.name) {
                    Ok(key) => {
                        bound.warm(&key, &wanted.object, wanted.listed, &self.jobs.blocks, &came).await
                    }
                    // An invalid key cannot be requested here, so it is skipped.
                    Err(_) => Ok(WarmedObject::default()),
                };
                Ok((wanted, warmed, ahead))
            })
            .buffered(JOB_OBJECTS_MAX)
            .boxed();
        let mut failures = 0;
        loop {
            let next = tokio::select! {
                next = fetched.next() => next,
                stop = self.live.stop_reason() => return Err(stop),
            };
            if !bound.is_current() {
                return Err(JobStop::Failed(
                    "the bucket was migrated to another upstream in the meantime: warm it again".into(),
                ));
            }
            let Some(next) = next else { break };
            let (wanted, warmed, _ahead): (JobObject, _, UnfinishedBytes) = next?;
            let is_transient = warmed.as_ref().is_err_and(OriginError::is_transient);
            failures = if is_transient { failures + 1 } else { 0 };
            self.record_object(&wanted, warmed);
            if failures > FAILURES_MAX {
                self.live.check_errors()?;
            }
        }
        self.live.check_errors()?;
        Ok(self.totals())
    }

    /// Lists the objects of the parts in the order that the job specifies.
    fn ordered_objects(
        &self,
        parts: Vec<JobListingPart>,
        check: impl Fn(u64) -> Result<(), JobStop> + Send + Sync + 'static,
    ) -> BoxStream<'static, Result<JobObject, JobStop>> {
        let (live, clock) = (Arc::clone(&self.live), self.jobs.clock.clone());
        match self.job.params.order() {
            JobOrder::Sequential => flatten_pages(listing::begin(parts, live, clock, check)).boxed(),
            order @ (JobOrder::Shuffled | JobOrder::ShardShuffled) => {
                shuffle::begin(Lister { parts, live, clock }, order, check).boxed()
            }
        }
    }

    /// Waits until the flash budget permits that fetched data is kept.
    async fn wait_for_copy_budget(&self, wanted: &JobObject) {
        while !self.jobs.tiers.hot.flash().can_start_own_write() {
            let bucket = self.jobs.catalogue.bucket(&self.dataset.bucket);
            if let Some(bucket) = bucket {
                self.jobs.decisions.record(&PlacementDecision {
                    kind: DecisionKind::Keep,
                    subject: DecisionSubject::Object(bucket.bucket_id(), &wanted.name),
                    from: decisions::DecisionPlace::Origin,
                    to: decisions::DecisionPlace::Copies,
                    bytes: wanted.object.size,
                    cause: DecisionCause::job(self.job.id),
                    outcome: decisions::DecisionOutcome::OverBudget,
                });
            }
            mlgw_common::time::sleep(BUDGET_POLL_INTERVAL).await;
        }
    }

    /// Records the result of an object; in key order, all objects before it are done.
    fn record_object(&self, wanted: &JobObject, warmed: Result<WarmedObject, OriginError>) {
        match &warmed {
            Ok(WarmedObject { refused_bytes: 0, .. }) | Err(OriginError::NoSuchKey) => {}
            Ok(_) => self.live.record_failure(|| format!("{:?}: no room for the copy", wanted.name)),
            Err(error) => self.live.record_failure(|| format!("{:?}: {error}", wanted.name)),
        }
        let fetched_bytes = warmed.map_or(0, |warmed| warmed.fetched_bytes);
        let change = |progress: &mut JobProgress| {
            progress.objects_done += 1;
            progress.bytes_done += wanted.object.size;
            progress.moved_bytes += fetched_bytes;
            progress.moved_objects += u64::from(fetched_bytes > 0);
        };
        match self.job.params.order() {
            JobOrder::Sequential => self.live.advance_to(wanted.part, &wanted.name, change),
            JobOrder::Shuffled | JobOrder::ShardShuffled => self.live.update(change),
        }
    }

    /// Returns the totals after a job that visited all objects.
    pub(super) fn totals(&self) -> Option<DatasetSize> {
        let progress = self.live.progress();
        self.job.params.prefix.is_empty().then(|| DatasetSize {
            objects: progress.objects_total,
            bytes: progress.bytes_total,
            at_ms: self.jobs.clock.now().as_millis(),
        })
    }
}

/// Flattens pages into single objects.
fn flatten_pages(pages: Pages) -> impl Stream<Item = Result<JobObject, JobStop>> + Send {
    let next = |mut pages: Pages| async { Some((pages.recv().await?, pages)) };
    stream::unfold(pages, next).flat_map(|page| match page {
        Err(stop) => stream::iter(vec![Err(stop)]),
        Ok(page) => stream::iter(page.into_objects().map(Ok).collect::<Vec<_>>()),
    })
}
