//! Clear and evict jobs: remove clean copies of remote-backed buckets. Objects of local buckets are never
//! removed, because this server has their only copy.

use super::{JobOutcome, JobRun, JobStop, covered_prefixes};
use mlgw_common::ObjectKey;
use mlgw_formats::schema::JobKind;
use std::time::Duration;

impl JobRun {
    pub(super) async fn evict_copies(&self) -> JobOutcome {
        let Some(bound) = self.bound_bucket()? else {
            let bucket = &self.dataset.bucket;
            return Err(JobStop::Failed(format!(
                "the bucket {bucket:?} is not remote-backed: it has no copies"
            )));
        };
        let unread = match self.job.kind() {
            JobKind::Evict => Some(Duration::from_millis(self.job.params.older_than_ms.unwrap_or(0))),
            JobKind::Clear | JobKind::Warm | JobKind::Sync | JobKind::Migrate => None,
        };
        let from = self.live.cursor().unwrap_or_default();
        let parts = covered_prefixes(&self.dataset, &self.job.params.prefix);
        for (number, slice) in parts.iter().enumerate().skip(from.part as usize) {
            let is_first = number == from.part as usize;
            let mut after = if is_first { ObjectKey::new(&from.after).ok() } else { None };
            loop {
                self.live.check()?;
                let (bound, slice) = (bound.clone(), slice.clone());
                let step =
                    tokio::task::spawn_blocking(move || bound.drop_copies(&slice, after.as_ref(), unread));
                let dropped = step.await.map_err(|error| JobStop::Failed(error.to_string()))?;
                let next = dropped.next.as_ref().map_or("", ObjectKey::as_str);
                self.live.advance_to(number as u32, next, |progress| {
                    progress.objects_done += dropped.objects;
                    progress.bytes_done += dropped.bytes;
                    progress.moved_objects += dropped.objects;
                    progress.moved_bytes += dropped.bytes;
                });
                if dropped.next.is_none() {
                    break;
                }
                after = dropped.next;
            }
        }
        self.live.update(|progress| {
            (progress.objects_total, progress.bytes_total) = (progress.objects_done, progress.bytes_done);
            progress.is_counted = true;
        });
        bound.release().await;
        Ok(None)
    }
}
