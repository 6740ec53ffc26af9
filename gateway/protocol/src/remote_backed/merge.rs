//! Pages of buckets in write-back mode: the origin's pages with dirty writes merged in, in byte order.
//!
//! Dirty writes are read before the origin is listed: a write that becomes clean in between is in the
//! origin's page, so none is missed. Pages continue after the last name that was shown, because a token of
//! the origin knows nothing of names here.
//!
//! A page is full unless it is the last: if deletes remove lines from the origin's pages, further pages are
//! requested.

use super::listed_line::shown_item;
use super::listing_token::LAST_CHARACTER;
use super::{RemoteBackedBucket, origin_error};
use crate::list::ListingParameters;
use mlgw_cache::writeback::{DirtyWrite, WriteBackQueue};
use mlgw_common::limits::PAGE_KEYS_MAX;
use mlgw_formats::schema::ObjectSummary;
use mlgw_objects::list::{ListedItem, Page};
use mlgw_remote::origin::{ListLine, ListPage, ListQuery};
use mlgw_wire::error::S3Error;
use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

/// Dirty keys that are merged into one page of the origin.
const DIRTY_KEYS_MAX: usize = 4 * PAGE_KEYS_MAX;

/// Returns the page after `after`, and the name after which the next page begins.
pub(super) async fn page(
    listing: &ListingParameters<'_>,
    remote_backed: &RemoteBackedBucket,
    queue: &WriteBackQueue,
    mut after: String,
) -> Result<(Page, Option<String>), S3Error> {
    let mut lines: Vec<ListedItem> = Vec::new();
    loop {
        // A common prefix covers all keys of its group.
        if listing.keys.common_prefix(&after).is_some_and(|group| group == after) {
            after.push(LAST_CHARACTER);
        }
        let from = if after.is_empty() { Bound::Unbounded } else { Bound::Excluded(&*after) };
        let dirty = queue.latest_after(from, &listing.keys.prefix, DIRTY_KEYS_MAX);
        let query = ListQuery {
            prefix: listing.keys.prefix.to_string(),
            delimiter: listing.keys.delimiter.as_deref().unwrap_or_default().to_owned(),
            start_after: after,
            token: None,
            max_keys: listing.keys.max_keys,
        };
        let origin_page =
            remote_backed.cached.list(query).await.map_err(|error| origin_error(error, remote_backed))?;
        let MergedPage { mut items, groups, until } = merge(listing, remote_backed, &dirty, origin_page);
        for group in groups {
            if is_emptied(remote_backed, queue, &group).await? {
                items.remove(&group);
            }
        }
        lines.extend(items.into_values());
        match until {
            // Some lines of the page are deleted here.
            Some(until) if lines.len() < listing.keys.max_keys => after = until,
            until => return Ok(truncate_page(lines, listing.keys.max_keys, until.as_deref())),
        }
    }
}

/// Returns a page of the first `max` lines, and the name after which the next page begins if there are
/// more. `until` is the last name that was listed, if more names follow it.
fn truncate_page(mut lines: Vec<ListedItem>, max: usize, until: Option<&str>) -> (Page, Option<String>) {
    let truncated = until.is_some() || lines.len() > max;
    lines.truncate(max);
    let next = lines.last().filter(|_| truncated).map(|last| last.name().to_owned());
    (Page { items: lines, truncated }, next)
}

/// Result of merging a page of the origin with dirty writes.
struct MergedPage {
    items: BTreeMap<String, ListedItem>,
    /// Common prefixes of the origin in which some keys are deleted here.
    groups: Vec<String>,
    /// Last name up to which the merge is complete; `None` if there is nothing after it.
    until: Option<String>,
}

fn merge(
    listing: &ListingParameters<'_>,
    remote_backed: &RemoteBackedBucket,
    dirty: &[Arc<DirtyWrite>],
    there: ListPage,
) -> MergedPage {
    let shown = |key: &str| listing.keys.common_prefix(key).unwrap_or(key).to_owned();
    let of_dirty = (dirty.len() == DIRTY_KEYS_MAX).then(|| dirty.last()).flatten();
    let of_dirty = of_dirty.map(|write| shown(write.facts.key.as_str()));
    let of_origin =
        there.next.is_some().then(|| there.lines.last().map(|line| line.name().to_owned())).flatten();
    let until = [of_dirty, of_origin].into_iter().flatten().min();
    let is_known = |name: &str| until.as_deref().is_none_or(|until| name <= until);
    let written: HashSet<&str> = dirty.iter().map(|write| write.facts.key.as_str()).collect();
    let deleted: HashSet<String> = dirty
        .iter()
        .filter(|write| write.facts.is_delete)
        .map(|write| shown(write.facts.key.as_str()))
        .collect();
    let (mut items, mut groups) = (BTreeMap::new(), Vec::new());
    for line in there.lines.into_iter().filter(|line| is_known(line.name())) {
        match &line {
            ListLine::Object(key, _) if written.contains(key.as_str()) => continue,
            ListLine::Group(group) if deleted.contains(group) => groups.push(group.clone()),
            ListLine::Object(..) | ListLine::Group(_) => {}
        }
        let name = line.name().to_owned();
        items.extend(shown_item(line, remote_backed).map(|item| (name, item)));
    }
    for write in dirty.iter().filter(|write| !write.facts.is_delete) {
        let (key, name) = (&write.facts.key, shown(write.facts.key.as_str()));
        if !is_known(&name) {
            break;
        }
        let item = match name == key.as_str() && listing.keys.common_prefix(key.as_str()).is_none() {
            true => ListedItem::Object(key.clone(), summary(write, &remote_backed.bucket.owner)),
            false => ListedItem::CommonPrefix(name.clone()),
        };
        groups.retain(|group| *group != name);
        items.insert(name, item);
    }
    MergedPage { items, groups, until }
}

/// True if all keys that the origin has in a group are deleted here.
async fn is_emptied(
    remote_backed: &RemoteBackedBucket,
    queue: &WriteBackQueue,
    group: &str,
) -> Result<bool, S3Error> {
    let dirty = queue.latest_after(Bound::Unbounded, group, usize::MAX);
    if dirty.iter().any(|write| !write.facts.is_delete) {
        return Ok(false);
    }
    let deleted: HashSet<&str> = dirty.iter().map(|write| write.facts.key.as_str()).collect();
    let mut start_after = String::new();
    loop {
        let query = ListQuery {
            prefix: group.to_owned(),
            start_after,
            max_keys: PAGE_KEYS_MAX,
            ..ListQuery::default()
        };
        let page =
            remote_backed.cached.list(query).await.map_err(|error| origin_error(error, remote_backed))?;
        if page.lines.iter().any(|line| !deleted.contains(line.name())) {
            return Ok(false);
        }
        match page.lines.last().filter(|_| page.next.is_some()) {
            Some(last) => start_after = last.name().to_owned(),
            None => return Ok(true),
        }
    }
}

fn summary(write: &DirtyWrite, owner: &str) -> ObjectSummary {
    ObjectSummary {
        seq: write.seq,
        size: write.size,
        modified_ms: write.began_ms,
        etag: write.etag.clone(),
        owner: owner.to_owned(),
        ..ObjectSummary::default()
    }
}
