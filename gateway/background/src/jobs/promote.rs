//! Warm jobs for local buckets: promote the segments that hold a dataset's objects to the hot tier.

use super::census::{self, Census};
use super::{JobOutcome, JobRun, JobStop, covered_prefixes, shuffle};
use mlgw_common::{SegmentId, SegmentTier};
use mlgw_formats::decision_entry::{DecisionCause, DecisionSubject, PlacementDecision};
use mlgw_formats::decision_words::{DecisionKind, DecisionPlace};
use mlgw_formats::schema::{DatasetSize, JobOrder};
use mlgw_segments::decisions;
use mlgw_segments::hot::PlacingOrder;
use std::sync::Arc;
use std::time::Duration;

/// Segments of one order. The job can be cancelled between orders.
const SEGMENTS_AT_ONCE: usize = 8;
/// Interval at which completion of an order is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Interval at which the flash budget is polled.
pub(super) const BUDGET_POLL_INTERVAL: Duration = Duration::from_secs(1);

impl JobRun {
    pub(super) async fn promote_all(&self) -> JobOutcome {
        let census = self.count().await?;
        let found = DatasetSize {
            objects: census.objects,
            bytes: census.bytes,
            at_ms: self.jobs.clock.now().as_millis(),
        };
        let below: u64 = census.below.values().sum();
        let mut segments: Vec<SegmentId> = census.below.keys().copied().collect();
        if self.job.params.order() != JobOrder::Sequential {
            shuffle::shuffle(&mut segments);
        }
        self.live.update(|progress| {
            (progress.objects_total, progress.bytes_total) = (census.objects, census.bytes);
            (progress.objects_done, progress.bytes_done) =
                (census.objects, census.bytes - below.min(census.bytes));
            progress.is_counted = true;
        });
        let length = |id: &SegmentId| self.jobs.catalogue.segment(*id).map_or(0, |segment| segment.length);
        let wanted: u64 = segments.iter().map(length).sum();
        if !self.jobs.tiers.hot.has_room(wanted) {
            return Err(JobStop::Failed(format!(
                "the hot tier has no room for the {wanted} bytes of its segments; no further segment was \
                 promoted"
            )));
        }
        for some in segments.chunks(SEGMENTS_AT_ONCE) {
            self.wait_for_promotion_budget(some, length).await?;
            self.promote(some).await?;
            let bytes: u64 = some.iter().filter_map(|segment| census.below.get(segment)).sum();
            self.live.update(|progress| {
                progress.bytes_done += bytes;
                progress.moved_bytes += bytes;
            });
        }
        let is_whole = self.job.params.prefix.is_empty();
        Ok(is_whole.then_some(found))
    }

    /// Counts the dataset.
    pub(super) async fn count(&self) -> Result<Census, JobStop> {
        let bucket = self.bucket()?;
        let parts = covered_prefixes(&self.dataset, &self.job.params.prefix);
        let (catalogue, live) = (self.jobs.catalogue.clone(), Arc::clone(&self.live));
        let counted = tokio::task::spawn_blocking(move || {
            let mut census = Census::default();
            for prefix in parts {
                let mut after = None;
                loop {
                    live.check()?;
                    let next = census::step(&catalogue, &bucket, &prefix, after.as_ref(), &mut census);
                    after = next.map_err(|error| JobStop::Failed(error.to_string()))?;
                    if after.is_none() {
                        break;
                    }
                }
            }
            Ok(census)
        });
        counted.await.map_err(|error| JobStop::Failed(error.to_string()))?
    }

    /// Waits until the flash budget permits writes.
    async fn wait_for_promotion_budget(
        &self,
        segments: &[SegmentId],
        length: impl Fn(&SegmentId) -> u64,
    ) -> Result<(), JobStop> {
        while !self.jobs.tiers.hot.flash().can_start_own_write() {
            for segment in segments {
                self.jobs.decisions.record(&PlacementDecision {
                    kind: DecisionKind::Promote,
                    subject: DecisionSubject::Segment(*segment),
                    from: self.place_of(*segment),
                    to: DecisionPlace::Hot,
                    bytes: length(segment),
                    cause: DecisionCause::job(self.job.id),
                    outcome: decisions::DecisionOutcome::OverBudget,
                });
            }
            tokio::select! {
                () = mlgw_common::time::sleep(BUDGET_POLL_INTERVAL) => {}
                stop = self.live.stop_reason() => return Err(stop),
            }
        }
        Ok(())
    }

    fn place_of(&self, segment: SegmentId) -> DecisionPlace {
        match self.jobs.catalogue.segment(segment).map(|segment| segment.tier) {
            Some(SegmentTier::Upstream) => DecisionPlace::Upstream,
            Some(SegmentTier::Cold | SegmentTier::Hot) | None => DecisionPlace::Cold,
        }
    }

    async fn promote(&self, segments: &[SegmentId]) -> Result<(), JobStop> {
        self.live.check()?;
        let hot = &self.jobs.tiers.hot;
        let until = hot.order(PlacingOrder::Promote {
            segments: segments.to_vec(),
            why: DecisionCause::job(self.job.id),
        });
        while hot.placing().orders_done < until {
            tokio::select! {
                () = mlgw_common::time::sleep(POLL_INTERVAL) => {}
                stop = self.live.stop_reason() => return Err(stop),
            }
        }
        // A missing segment was emptied meanwhile: its live data is elsewhere in the hot tier.
        let is_below = |id: &&SegmentId| {
            self.jobs.catalogue.segment(**id).is_some_and(|segment| segment.tier != SegmentTier::Hot)
        };
        let left = segments.iter().filter(is_below).count();
        match left {
            0 => Ok(()),
            left => Err(JobStop::Failed(format!(
                "{left} segments could not be promoted; the server's log has the reasons; start the job \
                 again to retry them"
            ))),
        }
    }
}
