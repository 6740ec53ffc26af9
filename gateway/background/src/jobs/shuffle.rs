//! Lists remote objects in random order, for a dataset that is read in random order while it is still being
//! warmed.
//!
//! The listing runs twice. The first run counts all objects and keeps only the key range of each page: some
//! megabytes for 10 million objects. The second run requests a few pages from random positions together and
//! mixes their objects. Each object is thus equally likely to come at any time, and neighbors come together
//! only through their pages: 1,000 keys are spread over the next 16,000.
//!
//! A shard is the content of one directory. A shard that crosses the end of a page comes in pieces, one per
//! page.
//!
//! A random order has no resume position. A job that restarts visits all objects and skips those that are
//! done.

use super::JobStop;
use super::listing::{JobObject, Lister};
use futures_util::{Stream, StreamExt as _, stream};
use mlgw_formats::schema::JobOrder;
use std::hash::{BuildHasher as _, Hash, RandomState};
use tokio::sync::mpsc;

/// Pages whose objects are mixed: 16,000 objects, some ten megabytes.
const WINDOW_PAGES: usize = 16;
/// Maximum number of pages remembered: a hundred million objects.
const PAGE_SPANS_MAX: usize = 100_000;
/// Objects passed on together.
const BATCH_OBJECTS: usize = 1000;
/// Batches in the queue while the next pages are requested.
const BATCHES_AHEAD: usize = 16;

/// Key range of a page.
#[derive(Clone, Debug)]
struct PageSpan {
    part: u32,
    /// Key before the first key of the page.
    after: String,
    last: String,
    /// Number of objects and their bytes.
    size: (u64, u64),
}

/// Parameters of the order.
struct Shuffle {
    /// True to keep the content of a directory together.
    by_shard: bool,
    hash: RandomState,
}

/// Lists all objects in a random order. Totals are counted first; `check` may refuse the total number of
/// bytes.
pub(super) fn begin(
    lister: Lister,
    order: JobOrder,
    check: impl Fn(u64) -> Result<(), JobStop> + Send + Sync + 'static,
) -> impl Stream<Item = Result<JobObject, JobStop>> + Send {
    assert_ne!(order, JobOrder::Sequential, "a sequential job lists its objects in order");
    let (send, batches) = mpsc::channel(BATCHES_AHEAD);
    let shuffle = Shuffle { by_shard: order == JobOrder::ShardShuffled, hash: RandomState::new() };
    tokio::spawn(async move {
        if let Err(stop) = shuffle.send_all(&lister, &send, &check).await {
            let _ = send.send(vec![Err(stop)]).await;
        }
    });
    let next = |mut batches: mpsc::Receiver<Vec<_>>| async { Some((batches.recv().await?, batches)) };
    stream::unfold(batches, next).flat_map(stream::iter)
}

/// Sorts items in a new random order.
pub(super) fn shuffle<T: Hash>(things: &mut [T]) {
    let hash = RandomState::new();
    things.sort_by_cached_key(|thing| hash.hash_one(thing));
}

impl Shuffle {
    async fn send_all(
        &self,
        lister: &Lister,
        send: &mpsc::Sender<Vec<Result<JobObject, JobStop>>>,
        check: &impl Fn(u64) -> Result<(), JobStop>,
    ) -> Result<(), JobStop> {
        lister.live.restart();
        let mut marks = page_spans(lister, check).await?;
        marks.sort_by_cached_key(|mark| self.hash.hash_one((mark.part, &mark.after)));
        for window in marks.chunks(WINDOW_PAGES) {
            let mut pages = Vec::with_capacity(window.len());
            for mark in window {
                pages.push(list_again(lister, mark).await?);
            }
            let mut objects = self.mix(pages).into_iter().map(Ok).peekable();
            while objects.peek().is_some() {
                if send.send(objects.by_ref().take(BATCH_OBJECTS).collect()).await.is_err() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn mix(&self, pages: Vec<Vec<JobObject>>) -> Vec<JobObject> {
        let numbered = pages.into_iter().enumerate();
        let mut objects: Vec<_> = numbered
            .flat_map(|(page, objects)| objects.into_iter().map(move |object| (page, object)))
            .collect();
        // The sort is stable: objects with equal sort keys remain in listing order.
        objects.sort_by_cached_key(|(page, object)| self.sort_key(*page, &object.name));
        objects.into_iter().map(|(_, object)| object).collect()
    }

    /// Returns the sort key of a page's object.
    fn sort_key(&self, page: usize, name: &str) -> u64 {
        self.hash.hash_one((page, if self.by_shard { directory(name) } else { name }))
    }
}

/// Returns the part of a key before its last slash.
fn directory(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(directory, _)| directory)
}

/// Counts all objects and returns the key ranges of pages.
async fn page_spans(
    lister: &Lister,
    check: &impl Fn(u64) -> Result<(), JobStop>,
) -> Result<Vec<PageSpan>, JobStop> {
    let mut marks = Vec::new();
    for part in 0..lister.parts.len() as u32 {
        let mut walk = lister.pages_of(part, "");
        while let Some(page) = walk.next().await? {
            check(lister.count(&page))?;
            let size = page.size();
            let Some((last, _)) = page.objects.into_iter().next_back() else { continue };
            if marks.len() == PAGE_SPANS_MAX {
                return Err(JobStop::Failed(format!(
                    "more than {PAGE_SPANS_MAX} pages of keys cannot be shuffled: warm a --prefix, or use \
                     the order sequential"
                )));
            }
            marks.push(PageSpan { part, after: page.after, last, size });
        }
    }
    lister.live.update(|progress| progress.is_counted = true);
    Ok(marks)
}

/// Lists a page again and corrects the totals.
async fn list_again(lister: &Lister, mark: &PageSpan) -> Result<Vec<JobObject>, JobStop> {
    let mut walk = lister.pages_of(mark.part, &mark.after);
    let mut found = Vec::new();
    let is_within = |name: &str| name.as_bytes() <= mark.last.as_bytes();
    while let Some(page) = walk.next().await? {
        let goes_on = page.objects.last().is_none_or(|(name, _)| name.as_bytes() < mark.last.as_bytes());
        found.extend(page.into_objects().filter(|wanted| is_within(&wanted.name)));
        if !goes_on {
            break;
        }
    }
    let bytes = found.iter().fold(0u64, |sum, wanted| sum.saturating_add(wanted.object.size));
    let (objects_before, bytes_before) = mark.size;
    lister.live.update(|progress| {
        let now = |total: u64, before: u64, after: u64| total.saturating_sub(before).saturating_add(after);
        progress.objects_total = now(progress.objects_total, objects_before, found.len() as u64);
        progress.bytes_total = now(progress.bytes_total, bytes_before, bytes);
    });
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::{JobObject, Shuffle, directory, shuffle};
    use mlgw_common::Timestamp;
    use mlgw_formats::schema::ObjectVersion;
    use std::collections::BTreeSet;
    use std::hash::RandomState;

    fn page(names: impl Iterator<Item = String>) -> Vec<JobObject> {
        let wanted =
            |name| JobObject { part: 0, name, object: ObjectVersion::default(), listed: Timestamp(0) };
        names.map(wanted).collect()
    }

    fn mixed(by_shard: bool) -> Vec<String> {
        let pages: Vec<_> = (0..4)
            .map(|page_no| page((0..100).map(move |n| format!("{page_no}/{}/{n:03}", n / 10))))
            .collect();
        let all: BTreeSet<String> = pages.iter().flatten().map(|wanted| wanted.name.clone()).collect();
        let mixed = Shuffle { by_shard, hash: RandomState::new() }.mix(pages);
        let names: Vec<String> = mixed.into_iter().map(|wanted| wanted.name).collect();
        assert_eq!(names.iter().cloned().collect::<BTreeSet<_>>(), all, "each comes");
        assert_eq!(names.len(), all.len(), "and once");
        names
    }

    /// Returns the number of neighbors in one directory.
    fn neighbours(names: &[String]) -> usize {
        names.windows(2).filter(|pair| directory(&pair[0]) == directory(&pair[1])).count()
    }

    #[test]
    fn shuffled_objects_of_a_directory_do_not_come_together() {
        let names = mixed(false);
        // Of 399 pairs, 40 x 9 were neighbors before; 9 are expected at random, and 60 are practically
        // impossible.
        assert!(neighbours(&names) < 60, "{names:?}");
        assert_ne!(names, mixed(false), "another order each time");
    }

    #[test]
    fn shards_stay_whole_and_sorted_but_are_not_consecutive() {
        let names = mixed(true);
        assert_eq!(neighbours(&names), 40 * 9);
        for shard in names.chunks(10) {
            assert!(shard.is_sorted(), "{shard:?}");
        }
        let shards: Vec<&str> = names.iter().step_by(10).map(|name| directory(name)).collect();
        assert!(!shards.is_sorted(), "{shards:?}");
    }

    #[test]
    fn shuffle_changes_the_order() {
        let mut numbers: Vec<u32> = (0..100).collect();
        shuffle(&mut numbers);
        assert!(!numbers.is_sorted());
        numbers.sort_unstable();
        assert_eq!(numbers, (0..100).collect::<Vec<_>>());
    }
}
