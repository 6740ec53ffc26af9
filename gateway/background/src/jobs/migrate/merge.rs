//! Merges the listings of two origins in byte order, pairing the objects with equal keys.

use super::super::JobStop;
use super::super::listing::{self, JobListingPart, JobListingSource, Pages};
use super::super::running_job::RunningJob;
use super::copy::MigrationSide;
use futures_util::stream::{self, Stream};
use mlgw_common::Clock;
use mlgw_formats::schema::ObjectVersion;
use mlgw_remote::origin::{ListLine, ListQuery, Origin, OriginError};
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;

/// Keys of a page.
const PAGE_KEYS: usize = 1000;

/// A key and its listed versions.
pub(super) enum MergedKey {
    /// Key that the old origin has; the new origin may have it, too.
    Compare { key: String, from: Box<ObjectVersion>, to: Option<Box<ObjectVersion>> },
    /// Key that only the new origin has.
    Extra { key: String },
}

impl MergedKey {
    pub(super) fn key(&self) -> &str {
        match self {
            Self::Compare { key, .. } | Self::Extra { key } => key,
        }
    }

    /// Returns the bytes at the old origin.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Compare { from, .. } => from.size,
            Self::Extra { .. } => 0,
        }
    }
}

type MergeEntry = (String, Box<ObjectVersion>);

/// Merge of the listings of the old and the new origin.
pub(super) struct ListingMerge {
    pages: Pages,
    prefix: String,
    from: VecDeque<MergeEntry>,
    to: TargetListing,
}

/// Listing of the new origin, as far as it was read.
struct TargetListing {
    side: MigrationSide,
    query: ListQuery,
    lines: VecDeque<MergeEntry>,
    is_last: bool,
}

impl ListingMerge {
    /// Starts the merge; totals of the old origin are counted ahead.
    pub(super) fn begin(
        from: &MigrationSide,
        to: &MigrationSide,
        live: Arc<RunningJob>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let part = JobListingPart {
            source: JobListingSource::Origin(from.origin.clone()),
            prefix: from.prefix.clone(),
        };
        let query = ListQuery { prefix: to.prefix.clone(), max_keys: PAGE_KEYS, ..ListQuery::default() };
        Self {
            pages: listing::begin(vec![part], live, clock, |_| Ok(())),
            prefix: from.prefix.clone(),
            from: VecDeque::new(),
            to: TargetListing { side: to.clone(), query, lines: VecDeque::new(), is_last: false },
        }
    }

    /// Returns every key of either origin, in byte order.
    pub(super) fn pairs(self) -> impl Stream<Item = Result<MergedKey, JobStop>> + Send {
        stream::try_unfold(self, |mut walk| async move { Ok(walk.next().await?.map(|pair| (pair, walk))) })
    }

    async fn next(&mut self) -> Result<Option<MergedKey>, JobStop> {
        while self.from.is_empty() {
            let Some(page) = self.pages.recv().await else { break };
            for (name, object) in page?.objects {
                let key = stripped(&self.prefix, &name)?;
                self.from.push_back((key, Box::new(object)));
            }
        }
        self.to.fill().await?;
        let order = match (self.from.front(), self.to.lines.front()) {
            (None, None) => return Ok(None),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((here, _)), Some((there, _))) => here.as_bytes().cmp(there.as_bytes()),
        };
        let extra = match order {
            Ordering::Less => None,
            Ordering::Equal | Ordering::Greater => self.to.lines.pop_front(),
        };
        if let (Ordering::Greater, Some((key, _))) = (order, &extra) {
            return Ok(Some(MergedKey::Extra { key: key.clone() }));
        }
        let to = extra.map(|(_, object)| object);
        Ok(self.from.pop_front().map(|(key, from)| MergedKey::Compare { key, from, to }))
    }
}

impl TargetListing {
    /// Fetches pages until an entry is available or the listing ends.
    async fn fill(&mut self) -> Result<(), JobStop> {
        while self.lines.is_empty() && !self.is_last {
            let page = self.side.origin.list(&self.query).await.map_err(|error| {
                JobStop::Failed(format!(
                    "the upstream {:?} cannot be listed: {error}",
                    self.side.origin.name()
                ))
            })?;
            for line in page.lines {
                if let ListLine::Object(name, object) = line {
                    self.lines.push_back((stripped(&self.side.prefix, &name)?, object));
                }
            }
            self.is_last = page.next.is_none();
            self.query.token = page.next;
        }
        Ok(())
    }
}

fn stripped(prefix: &str, name: &str) -> Result<String, JobStop> {
    let key = name.strip_prefix(prefix).map(str::to_owned);
    key.ok_or_else(|| {
        JobStop::Failed(format!("the listing contains {name:?}, which does not begin with {prefix:?}"))
    })
}

/// Returns true if an origin has no object under a prefix.
///
/// # Errors
/// Errors of the origin.
pub async fn is_empty(origin: &dyn Origin, prefix: &str) -> Result<bool, OriginError> {
    let mut query = ListQuery { prefix: prefix.to_owned(), max_keys: 1, ..ListQuery::default() };
    loop {
        let page = origin.list(&query).await?;
        if !page.lines.is_empty() || page.next.is_none() {
            return Ok(page.lines.is_empty());
        }
        query.token = page.next;
    }
}
