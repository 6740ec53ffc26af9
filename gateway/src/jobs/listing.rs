//! Lists what is elsewhere ahead of the work on it, so that there is a total, and time left, as early as may be.
//!
//! Pages wait in a bounded queue; a million objects are never in memory at once.

use super::Stop;
use super::live::Live;
use mlgw_common::{Clock, Timestamp};
use mlgw_metadata::schema::{JobCursor, ObjectVersion};
use mlgw_tiering::bound::BoundBucket;
use mlgw_tiering::origin::{ListLine, ListPage, ListQuery, Origin, OriginError};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Pages that wait, of a thousand objects each: a few megabytes.
const PAGES_AHEAD: usize = 16;
/// Keys of a page.
const PAGE_KEYS: usize = 1000;

/// Some of a dataset, elsewhere.
pub(super) struct Part {
    pub(super) place: Place,
    /// What keys there begin with.
    pub(super) prefix: String,
}

/// Where it is.
#[derive(Clone)]
pub(super) enum Place {
    Bound(BoundBucket),
    Origin(Arc<dyn Origin>),
}

impl Place {
    async fn list(&self, query: &ListQuery) -> Result<ListPage, OriginError> {
        match self {
            Self::Bound(bound) => bound.list(query.clone()).await,
            Self::Origin(origin) => origin.list(query).await,
        }
    }

    fn upstream(&self) -> &str {
        match self {
            Self::Bound(bound) => bound.upstream(),
            Self::Origin(origin) => origin.name(),
        }
    }
}

/// A page of objects.
pub(super) struct Page {
    /// The number of the part that it is of.
    pub(super) part: u32,
    /// Before it was asked for.
    pub(super) listed: Timestamp,
    /// The last key of the page before it; empty on the first.
    pub(super) after: String,
    /// Keys as they are there, in byte order.
    pub(super) objects: Vec<(String, ObjectVersion)>,
    /// Whether it is the part's last.
    pub(super) is_last: bool,
}

/// Pages, as they come; an error is the last thing that does.
pub(super) type Pages = mpsc::Receiver<Result<Page, Stop>>;

/// Begins to list, behind where the job was. Totals are counted on; `check` is asked whether so many bytes in all may be.
pub(super) fn begin(
    parts: Vec<Part>,
    live: Arc<Live>,
    clock: Arc<dyn Clock>,
    check: impl Fn(u64) -> Result<(), Stop> + Send + Sync + 'static,
) -> Pages {
    let (send, pages) = mpsc::channel(PAGES_AHEAD);
    let from = live.cursor().unwrap_or_default();
    // What was listed and not done when it was cut short is listed again.
    live.step(|progress| {
        (progress.objects_total, progress.bytes_total) = (progress.objects_done, progress.bytes_done);
        progress.is_counted = false;
    });
    tokio::spawn(async move {
        let lister = Lister { parts, from, live, clock, send: send.clone(), check };
        if let Err(stop) = lister.run().await {
            let _ = send.send(Err(stop)).await;
        }
    });
    pages
}

struct Lister<C> {
    parts: Vec<Part>,
    from: JobCursor,
    live: Arc<Live>,
    clock: Arc<dyn Clock>,
    send: mpsc::Sender<Result<Page, Stop>>,
    check: C,
}

impl<C: Fn(u64) -> Result<(), Stop>> Lister<C> {
    async fn run(&self) -> Result<(), Stop> {
        for (number, part) in self.parts.iter().enumerate().skip(self.from.part as usize) {
            let is_first = number == self.from.part as usize;
            let after = if is_first { self.from.after.as_str() } else { "" };
            self.list(number as u32, part, after).await?;
        }
        self.live.step(|progress| progress.is_counted = true);
        Ok(())
    }

    async fn list(&self, number: u32, part: &Part, after: &str) -> Result<(), Stop> {
        let mut query = ListQuery {
            prefix: part.prefix.clone(),
            start_after: after.to_owned(),
            max_keys: PAGE_KEYS,
            ..ListQuery::default()
        };
        let mut after = after.to_owned();
        loop {
            self.live.check()?;
            let listed = self.clock.now();
            let page = part.place.list(&query).await.map_err(|error| {
                Stop::Failed(format!("the upstream {:?} cannot be listed: {error}", part.place.upstream()))
            })?;
            let is_last = page.next.is_none();
            let objects: Vec<_> = page.lines.into_iter().filter_map(object).collect();
            let bytes = objects.iter().fold(0u64, |sum, (_, object)| sum.saturating_add(object.size));
            let mut total = 0;
            self.live.step(|progress| {
                progress.objects_total += objects.len() as u64;
                progress.bytes_total = progress.bytes_total.saturating_add(bytes);
                total = progress.bytes_total;
            });
            (self.check)(total)?;
            let last = objects.last().map_or_else(|| after.clone(), |(key, _)| key.clone());
            let page_of = Page { part: number, listed, after, objects, is_last };
            if self.send.send(Ok(page_of)).await.is_err() {
                return Ok(());
            }
            after = last;
            let Some(token) = page.next else { return Ok(()) };
            query = ListQuery { token: Some(token), start_after: String::new(), ..query };
        }
    }
}

fn object(line: ListLine) -> Option<(String, ObjectVersion)> {
    match line {
        ListLine::Object(key, object) => Some((key, *object)),
        ListLine::Group(_) => None,
    }
}
