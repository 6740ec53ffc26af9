//! Warm jobs for own buckets: promote the segments that hold a dataset's objects to the hot tier.

use super::census::{self, Census};
use super::{Outcome, Stop, Work, parts, shuffle};
use mlgw_common::SegmentId;
use mlgw_formats::decision_entry::{Decided, What, Why};
use mlgw_formats::decision_words::{Kind, Place};
use mlgw_formats::schema::{Found, JobOrder};
use mlgw_segments::decisions;
use mlgw_segments::hot::Order;
use mlgw_segments::hot::UPSTREAM_TIER;
use std::sync::Arc;
use std::time::Duration;

/// Segments of one order. The job can be cancelled between orders.
const SEGMENTS_AT_ONCE: usize = 8;
/// Interval at which completion of an order is polled.
const GLANCE: Duration = Duration::from_millis(100);
/// Interval at which the flash budget is polled.
pub(super) const BUDGET_GLANCE: Duration = Duration::from_secs(1);

impl Work {
    pub(super) async fn promote_all(&self) -> Outcome {
        let census = self.count().await?;
        let found =
            Found { objects: census.objects, bytes: census.bytes, at_ms: self.jobs.clock.now().as_millis() };
        let below: u64 = census.below.values().sum();
        let mut segments: Vec<SegmentId> = census.below.keys().copied().collect();
        if self.job.params.order() != JobOrder::Sequential {
            shuffle::shuffle(&mut segments);
        }
        self.live.step(|progress| {
            (progress.objects_total, progress.bytes_total) = (census.objects, census.bytes);
            (progress.objects_done, progress.bytes_done) =
                (census.objects, census.bytes - below.min(census.bytes));
            progress.is_counted = true;
        });
        let length = |id: &SegmentId| self.jobs.catalogue.segment(*id).map_or(0, |segment| segment.length);
        let wanted: u64 = segments.iter().map(length).sum();
        if !self.jobs.tiers.hot.has_room(wanted) {
            return Err(Stop::Failed(format!(
                "the hot tier has no room for the {wanted} bytes of the segments that hold it; nothing more was promoted"
            )));
        }
        for some in segments.chunks(SEGMENTS_AT_ONCE) {
            self.until_allowed(some, length).await?;
            self.promote(some).await?;
            let bytes: u64 = some.iter().filter_map(|segment| census.below.get(segment)).sum();
            self.live.step(|progress| {
                progress.bytes_done += bytes;
                progress.moved_bytes += bytes;
            });
        }
        let is_whole = self.job.params.prefix.is_empty();
        Ok(is_whole.then_some(found))
    }

    /// Counts the dataset.
    pub(super) async fn count(&self) -> Result<Census, Stop> {
        let bucket = self.bucket()?;
        let parts = parts(&self.dataset, &self.job.params.prefix);
        let (catalogue, live) = (self.jobs.catalogue.clone(), Arc::clone(&self.live));
        let counted = tokio::task::spawn_blocking(move || {
            let mut census = Census::default();
            for prefix in parts {
                let mut after = None;
                loop {
                    live.check()?;
                    let next = census::step(&catalogue, &bucket, &prefix, after.as_ref(), &mut census);
                    after = next.map_err(|error| Stop::Failed(error.to_string()))?;
                    if after.is_none() {
                        break;
                    }
                }
            }
            Ok(census)
        });
        counted.await.map_err(|error| Stop::Failed(error.to_string()))?
    }

    /// Waits until the flash budget permits writes.
    async fn until_allowed(
        &self,
        segments: &[SegmentId],
        length: impl Fn(&SegmentId) -> u64,
    ) -> Result<(), Stop> {
        while !self.jobs.tiers.hot.flash().allows() {
            for segment in segments {
                self.jobs.decisions.record(&Decided {
                    kind: Kind::Promote,
                    what: What::Segment(*segment),
                    from: self.place_of(*segment),
                    to: Place::Hot,
                    bytes: length(segment),
                    why: Why::job(self.job.id),
                    outcome: decisions::Outcome::OverBudget,
                });
            }
            tokio::select! {
                () = tokio::time::sleep(BUDGET_GLANCE) => {}
                stop = self.live.ended() => return Err(stop),
            }
        }
        Ok(())
    }

    fn place_of(&self, segment: SegmentId) -> Place {
        match self.jobs.catalogue.segment(segment).map(|segment| segment.tier) {
            Some(UPSTREAM_TIER) => Place::Upstream,
            _ => Place::Cold,
        }
    }

    async fn promote(&self, segments: &[SegmentId]) -> Result<(), Stop> {
        self.live.check()?;
        let hot = &self.jobs.tiers.hot;
        let until = hot.order(Order::Promote { segments: segments.to_vec(), why: Why::job(self.job.id) });
        while hot.placing().orders_done < until {
            tokio::select! {
                () = tokio::time::sleep(GLANCE) => {}
                stop = self.live.ended() => return Err(stop),
            }
        }
        // A missing segment was emptied meanwhile: its live data is elsewhere in the hot tier.
        let is_below =
            |id: &&SegmentId| self.jobs.catalogue.segment(**id).is_some_and(|segment| segment.tier != 0);
        let left = segments.iter().filter(is_below).count();
        match left {
            0 => Ok(()),
            left => Err(Stop::Failed(format!(
                "segments that could not be promoted: {left}; the server's log says why, and the same job again tries again"
            ))),
        }
    }
}
