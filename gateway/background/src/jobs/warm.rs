//! Warm jobs: load a dataset ahead of use. Objects of a remote-backed bucket are fetched into clean copies;
//! for an own bucket, the segments that hold its objects are promoted to the hot tier.

use super::listing::{self, Lister, Pages, Part, Place, Wanted};
use super::live::Ahead;
use super::promote::BUDGET_GLANCE;
use super::{Outcome, Stop, Work, parts, shuffle};
use futures_util::stream::{self, BoxStream, Stream, StreamExt as _};
use mlgw_cache::bound::{BoundBucket, Warmed};
use mlgw_cache::copies::Copies;
use mlgw_common::ObjectKey;
use mlgw_common::limits::JOB_OBJECTS_MAX;
use mlgw_formats::decision_entry::{Decided, What, Why};
use mlgw_formats::decision_words::Kind;
use mlgw_formats::schema::{Bucket, Found, JobOrder, JobProgress};
use mlgw_remote::origin::OriginError;
use mlgw_segments::decisions;
use std::sync::Arc;

/// Share of the copies' capacity that a dataset may take. Eviction begins at 92 percent, so a larger dataset
/// would evict itself.
const FITS_PERCENT: u64 = 90;
/// Consecutive transient failures after which the origin counts as unavailable.
const FAILURES_MAX: u32 = 50;

impl Work {
    pub(super) async fn warm(&self) -> Outcome {
        match self.bound_bucket()? {
            Some(bound) => self.fetch_all(bound).await,
            None => self.promote_all().await,
        }
    }

    /// Returns the bucket if it is remote-backed.
    pub(super) fn bound_bucket(&self) -> Result<Option<BoundBucket>, Stop> {
        let bucket = self.bucket()?;
        let Some(binding) = &bucket.binding else { return Ok(None) };
        let bound = self.jobs.bound.bucket(&bucket, binding);
        let gone = || Stop::Failed(format!("the upstream {:?} is not configured any more", binding.upstream));
        bound.map(|bound| Some(bound.of_job(self.job.id))).ok_or_else(gone)
    }

    pub(super) fn bucket(&self) -> Result<Arc<Bucket>, Stop> {
        let name = &self.dataset.bucket;
        let bucket = self.jobs.catalogue.bucket(name);
        bucket.ok_or_else(|| Stop::Failed(format!("its bucket {name:?} does not exist any more")))
    }

    async fn fetch_all(&self, bound: BoundBucket) -> Outcome {
        let parts = parts(&self.dataset, &self.job.params.prefix);
        let place = |prefix| Part { place: Place::Bound(bound.clone()), prefix };
        let limit_bytes = self.jobs.bound.copies().map(Copies::metrics).unwrap_or_default().limit_bytes;
        let fits = move |bytes: u64| match bytes > limit_bytes / 100 * FITS_PERCENT {
            false => Ok(()),
            true => Err(Stop::Failed(format!(
                "there is no room for it: at least {bytes} bytes, and all copies together may take {limit_bytes} (bound.capacity); \
                 choose slices, or warm a --prefix of it"
            ))),
        };
        let parts = parts.into_iter().map(place).collect();
        let mut fetched = self
            .in_order(parts, fits)
            .map(|wanted| async {
                let (wanted, ahead) = (wanted?, Ahead::of(&self.live));
                self.until_kept(&wanted).await;
                let came = |bytes| ahead.add(bytes);
                let warmed = match ObjectKey::new(&wanted.name) {
                    Ok(key) => {
                        bound.warm(&key, &wanted.object, wanted.listed, &self.jobs.blocks, &came).await
                    }
                    // An invalid key cannot be requested here, so it is skipped.
                    Err(_) => Ok(Warmed::default()),
                };
                Ok((wanted, warmed, ahead))
            })
            .buffered(JOB_OBJECTS_MAX)
            .boxed();
        let mut failures = 0;
        loop {
            let next = tokio::select! {
                next = fetched.next() => next,
                stop = self.live.ended() => return Err(stop),
            };
            if !bound.is_current() {
                return Err(Stop::Failed(
                    "the bucket was moved to another upstream meanwhile: warm it again".into(),
                ));
            }
            let Some(next) = next else { break };
            let (wanted, warmed, _ahead): (Wanted, _, Ahead) = next?;
            let is_transient = warmed.as_ref().is_err_and(OriginError::is_transient);
            failures = if is_transient { failures + 1 } else { 0 };
            self.note(&wanted, warmed);
            if failures > FAILURES_MAX {
                self.live.errors()?;
            }
        }
        self.live.errors()?;
        Ok(self.found())
    }

    /// Lists the objects of the parts in the order that the job specifies.
    fn in_order(
        &self,
        parts: Vec<Part>,
        check: impl Fn(u64) -> Result<(), Stop> + Send + Sync + 'static,
    ) -> BoxStream<'static, Result<Wanted, Stop>> {
        let (live, clock) = (Arc::clone(&self.live), self.jobs.clock.clone());
        match self.job.params.order() {
            JobOrder::Sequential => one_by_one(listing::begin(parts, live, clock, check)).boxed(),
            order @ (JobOrder::Shuffled | JobOrder::ShardShuffled) => {
                let by_shard = order == JobOrder::ShardShuffled;
                shuffle::begin(Lister { parts, live, clock }, by_shard, check).boxed()
            }
        }
    }

    /// Waits until the flash budget permits that fetched data is kept.
    async fn until_kept(&self, wanted: &Wanted) {
        while !self.jobs.tiers.hot.flash().allows() {
            let bucket = self.jobs.catalogue.bucket(&self.dataset.bucket);
            if let Some(bucket) = bucket {
                self.jobs.decisions.record(&Decided {
                    kind: Kind::Keep,
                    what: What::Object(bucket.bucket_id(), &wanted.name),
                    from: decisions::Place::Origin,
                    to: decisions::Place::Copies,
                    bytes: wanted.object.size,
                    why: Why::job(self.job.id),
                    outcome: decisions::Outcome::OverBudget,
                });
            }
            tokio::time::sleep(BUDGET_GLANCE).await;
        }
    }

    /// Records the result of an object; in key order, all objects before it are done.
    fn note(&self, wanted: &Wanted, warmed: Result<Warmed, OriginError>) {
        match &warmed {
            Ok(Warmed { refused_bytes: 0, .. }) | Err(OriginError::NoSuchKey) => {}
            Ok(_) => self.live.failed(|| format!("{:?}: there is no room to keep it", wanted.name)),
            Err(error) => self.live.failed(|| format!("{:?}: {error}", wanted.name)),
        }
        let fetched_bytes = warmed.map_or(0, |warmed| warmed.fetched_bytes);
        let change = |progress: &mut JobProgress| {
            progress.objects_done += 1;
            progress.bytes_done += wanted.object.size;
            progress.moved_bytes += fetched_bytes;
            progress.moved_objects += u64::from(fetched_bytes > 0);
        };
        match self.job.params.order() {
            JobOrder::Sequential => self.live.step_to(wanted.part, &wanted.name, change),
            JobOrder::Shuffled | JobOrder::ShardShuffled => self.live.step(change),
        }
    }

    /// Returns the totals after a job that visited all objects.
    pub(super) fn found(&self) -> Option<Found> {
        let progress = self.live.progress();
        self.job.params.prefix.is_empty().then(|| Found {
            objects: progress.objects_total,
            bytes: progress.bytes_total,
            at_ms: self.jobs.clock.now().as_millis(),
        })
    }
}

/// Flattens pages into single objects.
fn one_by_one(pages: Pages) -> impl Stream<Item = Result<Wanted, Stop>> + Send {
    let next = |mut pages: Pages| async { Some((pages.recv().await?, pages)) };
    stream::unfold(pages, next).flat_map(|page| match page {
        Err(stop) => stream::iter(vec![Err(stop)]),
        Ok(page) => stream::iter(page.into_wanted().map(Ok).collect::<Vec<_>>()),
    })
}
