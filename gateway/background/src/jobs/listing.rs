//! Lists remote objects ahead of the work on them, so that totals and the remaining time are known as early
//! as possible.
//!
//! Pages wait in a bounded queue; a million objects are never in memory at once.

use super::JobStop;
use super::running_job::RunningJob;
use mlgw_cache::remote_backed::CachedBucket;
use mlgw_common::{Clock, Timestamp};
use mlgw_formats::schema::{JobCursor, ObjectVersion};
use mlgw_remote::origin::{ListLine, ListPage, ListQuery, Origin, OriginError};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Pages in the queue, of a thousand objects each: a few megabytes.
const PAGES_AHEAD: usize = 16;
/// Keys of a page.
const PAGE_KEYS: usize = 1000;

/// A part of a dataset at a remote store.
pub(super) struct JobListingPart {
    pub(super) source: JobListingSource,
    /// Prefix of the keys at the remote store.
    pub(super) prefix: String,
}

/// Remote store of a part.
#[derive(Clone)]
pub(super) enum JobListingSource {
    RemoteBacked(CachedBucket),
    Origin(Arc<dyn Origin>),
}

impl JobListingSource {
    async fn list(&self, query: &ListQuery) -> Result<ListPage, OriginError> {
        match self {
            Self::RemoteBacked(bound) => bound.list(query.clone()).await,
            Self::Origin(origin) => origin.list(query).await,
        }
    }

    fn upstream(&self) -> &str {
        match self {
            Self::RemoteBacked(bound) => bound.upstream(),
            Self::Origin(origin) => origin.name(),
        }
    }
}

/// A page of objects.
pub(super) struct JobListingPage {
    /// Number of the part that the page is from.
    pub(super) part: u32,
    /// Time before the request for the page.
    pub(super) listed: Timestamp,
    /// Last key of the previous page; empty for the first page.
    pub(super) after: String,
    /// Objects with their remote keys, in byte order.
    pub(super) objects: Vec<(String, ObjectVersion)>,
    /// True for the last page of the part.
    pub(super) is_last: bool,
}

impl JobListingPage {
    /// Returns the number of objects and their bytes.
    pub(super) fn size(&self) -> (u64, u64) {
        let bytes = self.objects.iter().fold(0u64, |sum, (_, object)| sum.saturating_add(object.size));
        (self.objects.len() as u64, bytes)
    }

    /// Returns the objects one by one.
    pub(super) fn into_objects(self) -> impl Iterator<Item = JobObject> {
        let Self { part, listed, objects, .. } = self;
        objects.into_iter().map(move |(name, object)| JobObject { part, name, object, listed })
    }
}

/// An object of a page.
pub(super) struct JobObject {
    /// Number of the part that the object is from.
    pub(super) part: u32,
    /// Remote key of the object.
    pub(super) name: String,
    pub(super) object: ObjectVersion,
    /// Time before the request for its page.
    pub(super) listed: Timestamp,
}

/// Queue of pages; an error is always the last item.
pub(super) type Pages = mpsc::Receiver<Result<JobListingPage, JobStop>>;

/// Starts listing in key order, from the cursor of the job. Totals are updated on the way; `check` may refuse
/// the total number of bytes.
pub(super) fn begin(
    parts: Vec<JobListingPart>,
    live: Arc<RunningJob>,
    clock: Arc<dyn Clock>,
    check: impl Fn(u64) -> Result<(), JobStop> + Send + Sync + 'static,
) -> Pages {
    let (send, pages) = mpsc::channel(PAGES_AHEAD);
    let from = live.cursor().unwrap_or_default();
    // Objects that were listed and not processed before an interruption are listed again.
    live.update(|progress| {
        (progress.objects_total, progress.bytes_total) = (progress.objects_done, progress.bytes_done);
        progress.is_counted = false;
    });
    let lister = Lister { parts, live, clock };
    tokio::spawn(async move {
        if let Err(stop) = lister.send_all(&from, &send, &check).await {
            let _ = send.send(Err(stop)).await;
        }
    });
    pages
}

/// Lister of the parts of a dataset.
pub(super) struct Lister {
    pub(super) parts: Vec<JobListingPart>,
    pub(super) live: Arc<RunningJob>,
    pub(super) clock: Arc<dyn Clock>,
}

/// Sequence of the pages of one part.
pub(super) struct JobListingPages<'a> {
    lister: &'a Lister,
    part: u32,
    after: String,
    /// `None` after the last page.
    query: Option<ListQuery>,
}

impl Lister {
    async fn send_all(
        &self,
        from: &JobCursor,
        send: &mpsc::Sender<Result<JobListingPage, JobStop>>,
        check: &impl Fn(u64) -> Result<(), JobStop>,
    ) -> Result<(), JobStop> {
        for part in from.part..self.parts.len() as u32 {
            let after = if part == from.part { from.after.as_str() } else { "" };
            let mut walk = self.pages_of(part, after);
            while let Some(page) = walk.next().await? {
                check(self.count(&page))?;
                if send.send(Ok(page)).await.is_err() {
                    return Ok(());
                }
            }
        }
        self.live.update(|progress| progress.is_counted = true);
        Ok(())
    }

    /// Returns the pages of a part after a key.
    pub(super) fn pages_of(&self, part: u32, after: &str) -> JobListingPages<'_> {
        let query = ListQuery {
            prefix: self.parts[part as usize].prefix.clone(),
            start_after: after.to_owned(),
            max_keys: PAGE_KEYS,
            ..ListQuery::default()
        };
        JobListingPages { lister: self, part, after: after.to_owned(), query: Some(query) }
    }

    /// Adds a page to the totals. Returns the total bytes so far.
    pub(super) fn count(&self, page: &JobListingPage) -> u64 {
        let (objects, bytes) = page.size();
        let mut total = 0;
        self.live.update(|progress| {
            progress.objects_total += objects;
            progress.bytes_total = progress.bytes_total.saturating_add(bytes);
            total = progress.bytes_total;
        });
        total
    }
}

impl JobListingPages<'_> {
    /// Returns the next page; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<JobListingPage>, JobStop> {
        let Some(query) = self.query.take() else { return Ok(None) };
        self.lister.live.check()?;
        let listed = self.lister.clock.now();
        let place = &self.lister.parts[self.part as usize].source;
        let page = place.list(&query).await.map_err(|error| {
            JobStop::Failed(format!("the upstream {:?} cannot be listed: {error}", place.upstream()))
        })?;
        let objects: Vec<_> = page.lines.into_iter().filter_map(object).collect();
        let last = objects.last().map_or_else(|| self.after.clone(), |(key, _)| key.clone());
        let after = std::mem::replace(&mut self.after, last);
        let is_last = page.next.is_none();
        let next = |token| ListQuery { token: Some(token), start_after: String::new(), ..query };
        self.query = page.next.map(next);
        Ok(Some(JobListingPage { part: self.part, listed, after, objects, is_last }))
    }
}

fn object(line: ListLine) -> Option<(String, ObjectVersion)> {
    match line {
        ListLine::Object(key, object) => Some((key, *object)),
        ListLine::Group(_) => None,
    }
}
