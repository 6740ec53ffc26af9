//! Lists objects: pages of keys in byte order, rolled up at a delimiter.
//!
//! A page reads the catalogue in one scan. A common prefix costs one seek, regardless of the number of keys
//! under it. A page is read from one snapshot. The next page may see a different state.

use crate::{ObjectError, ObjectLayer};
use mlgw_common::{BucketId, ObjectKey};
use mlgw_formats::schema::ObjectSummary;
use mlgw_metadata::StoredVersion;
use std::borrow::Cow;
use std::ops::Bound;

/// Selects the keys of a page.
#[derive(Clone, Debug, Default)]
pub struct Selection<'a> {
    /// Prefix of all keys of the page.
    pub prefix: Cow<'a, str>,
    /// Keys are rolled up after the first occurrence of the delimiter after the prefix.
    pub delimiter: Option<Cow<'a, str>>,
    /// Maximum number of items of a page.
    pub max_keys: usize,
}

impl Selection<'_> {
    /// Returns the common prefix that `key` is rolled up in, if the delimiter occurs after the prefix.
    #[must_use]
    pub fn common_prefix<'k>(&self, key: &'k str) -> Option<&'k str> {
        let delimiter = self.delimiter.as_deref()?;
        let rest = key.get(self.prefix.len()..)?;
        let at = rest.find(delimiter)?;
        key.get(..self.prefix.len() + at + delimiter.len())
    }

    /// Returns the start of the page that follows `after`, or `None` if no key can follow.
    fn page_start(&self, after: &str) -> Option<Bound<Vec<u8>>> {
        let is_group = self.common_prefix(after).is_some_and(|group| group == after);
        if is_group && after.starts_with(&*self.prefix) {
            return after_prefix(after).map(Bound::Included);
        }
        if after >= &*self.prefix && !after.is_empty() {
            return Some(Bound::Excluded(after.as_bytes().to_vec()));
        }
        Some(Bound::Included(self.prefix.as_bytes().to_vec()))
    }

    fn item(&self, key: &ObjectKey, entry: &StoredVersion) -> Result<Option<ListedItem>, ObjectError> {
        if let Some(group) = self.common_prefix(key.as_str()) {
            return Ok(Some(ListedItem::CommonPrefix(group.to_owned())));
        }
        let summary = entry.summary()?;
        Ok((!summary.delete_marker).then(|| ListedItem::Object(key.clone(), summary)))
    }
}

/// Item of a page.
pub enum ListedItem {
    /// An object.
    Object(ObjectKey, ObjectSummary),
    /// A group of keys that begin with this string.
    CommonPrefix(String),
}

impl ListedItem {
    /// Returns the key, or the common prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Object(key, _) => key.as_str(),
            Self::CommonPrefix(prefix) => prefix,
        }
    }
}

/// A page of a listing.
#[derive(Default)]
pub struct Page {
    /// Its items, in byte order of their names.
    pub items: Vec<ListedItem>,
    /// True if another page follows.
    pub truncated: bool,
}

/// Returns the smallest byte string that is greater than every string that begins with `prefix`, or `None` if
/// no such string exists.
#[must_use]
pub fn after_prefix(prefix: &str) -> Option<Vec<u8>> {
    let mut bytes = prefix.as_bytes().to_vec();
    while let Some(last) = bytes.pop() {
        if last < u8::MAX {
            bytes.push(last + 1);
            return Some(bytes);
        }
    }
    None
}

impl ObjectLayer {
    /// Returns the page of `bucket` that follows `after` in byte order. If `after` is a common prefix, the
    /// page begins after its whole group.
    ///
    /// # Errors
    /// Those of the catalogue.
    pub fn list(
        &self,
        bucket: BucketId,
        selection: &Selection<'_>,
        after: &str,
    ) -> Result<Page, ObjectError> {
        let mut page = Page { items: Vec::new(), truncated: false };
        if selection.max_keys == 0 {
            return Ok(page);
        }
        let prefix = &*selection.prefix;
        let Some(begin) = selection.page_start(after) else { return Ok(page) };
        let reader = self.catalogue.reader();
        let mut scan = reader.scan(bucket, begin.as_ref().map(Vec::as_slice));
        while let Some((key, entry)) = scan.next().transpose()? {
            if !key.as_str().starts_with(prefix) {
                break;
            }
            let Some(item) = selection.item(&key, &entry)? else { continue };
            if page.items.len() == selection.max_keys {
                page.truncated = true;
                break;
            }
            if let ListedItem::CommonPrefix(group) = &item {
                match after_prefix(group) {
                    Some(next) => scan.seek(Bound::Included(&next)),
                    None => break,
                }
            }
            debug_assert!(
                page.items.last().is_none_or(|last| last.name() < item.name()),
                "the names of a page ascend, and no common prefix is repeated"
            );
            page.items.push(item);
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::{Selection, after_prefix};
    use std::borrow::Cow;
    use std::ops::Bound;

    fn selection(prefix: &'static str, delimiter: &'static str) -> Selection<'static> {
        Selection {
            prefix: Cow::Borrowed(prefix),
            delimiter: (!delimiter.is_empty()).then_some(Cow::Borrowed(delimiter)),
            max_keys: 10,
        }
    }

    #[test]
    fn a_group_ends_at_the_first_delimiter_after_the_prefix() {
        assert_eq!(selection("a/", "/").common_prefix("a/b/c/d"), Some("a/b/"));
        assert_eq!(selection("a/", "/").common_prefix("a/b"), None);
        assert_eq!(selection("", "::").common_prefix("x::y"), Some("x::"));
        assert_eq!(selection("", "").common_prefix("a/b"), None);
    }

    #[test]
    fn a_page_begins_after_a_whole_group_or_a_key() {
        assert_eq!(selection("", "/").page_start("a/"), Some(Bound::Included(b"a0".to_vec())));
        assert_eq!(selection("", "/").page_start("a/b"), Some(Bound::Excluded(b"a/b".to_vec())));
        assert_eq!(selection("p", "/").page_start(""), Some(Bound::Included(b"p".to_vec())));
        assert_eq!(selection("p", "/").page_start("a"), Some(Bound::Included(b"p".to_vec())));
    }

    #[test]
    fn the_successor_of_a_prefix_follows_every_key_with_that_prefix() {
        assert_eq!(after_prefix("a"), Some(b"b".to_vec()));
        assert_eq!(after_prefix(""), None);
        let next = after_prefix("\u{10FFFF}").unwrap();
        assert!(next.as_slice() > "\u{10FFFF}\u{10FFFF}".as_bytes());
    }
}
