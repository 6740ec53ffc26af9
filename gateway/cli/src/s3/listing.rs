//! Listings, page by page.
//!
//! Invariant: the names of a listing begin with its prefix and ascend in byte order over all pages. At least
//! one of [`PAGES_WITHOUT_NAME_MAX`] pages in a row has a new name, so a listing makes progress. A server
//! that breaks this ends the command with an error.

use super::client::{S3Client, S3Request};
use super::failure::S3Failure;
use super::path::RemotePath;
use super::xml::{BucketLine, BucketPage, KeyLine, KeyPage, parse_bucket_page, parse_key_page};
use crate::CliError;
use crate::terminal_text::printable;
use futures_util::stream::{self, Stream, StreamExt as _, TryStreamExt as _};
use http::Method;
use std::collections::HashSet;

/// Largest number of pages in a row without a new name. A page may be empty: a server may stop its search for
/// names after some time.
const PAGES_WITHOUT_NAME_MAX: u32 = 1000;

/// Listing of the keys with one prefix.
pub(super) struct KeyListing<'a> {
    client: &'a S3Client,
    prefix: &'a RemotePath,
    delimiter: &'static str,
    position: ListingPosition,
    order: ListingOrder,
}

enum ListingPosition {
    Start,
    After(String),
    End,
}

impl<'a> KeyListing<'a> {
    /// Returns the listing of all keys with this prefix.
    pub(super) fn recursive(client: &'a S3Client, prefix: &'a RemotePath) -> Self {
        Self::new(client, prefix, "")
    }

    /// Returns the listing that groups keys by their names up to the next `/`.
    pub(super) fn grouped(client: &'a S3Client, prefix: &'a RemotePath) -> Self {
        Self::new(client, prefix, "/")
    }

    fn new(client: &'a S3Client, prefix: &'a RemotePath, delimiter: &'static str) -> Self {
        let order = ListingOrder::default();
        Self { client, prefix, delimiter, position: ListingPosition::Start, order }
    }

    /// Returns the next page, or `None` after the last one.
    ///
    /// # Errors
    /// The request failed, or the listing makes no progress.
    pub(super) async fn next_page(&mut self) -> Result<Option<KeyPage>, CliError> {
        let bucket = self.prefix.with_key("");
        let mut request = S3Request::new(Method::GET, bucket)
            .with_query("list-type", "2")
            .with_query("encoding-type", "url")
            .with_query("prefix", &self.prefix.key);
        if !self.delimiter.is_empty() {
            request = request.with_query("delimiter", self.delimiter);
        }
        match &self.position {
            ListingPosition::Start => {}
            ListingPosition::After(token) => request = request.with_query("continuation-token", token),
            ListingPosition::End => return Ok(None),
        }
        let failed = |failure| self.client.error(failure, self.prefix);
        let document = self.client.document(&request).await.map_err(failed)?.into_body();
        let page = parse_key_page(&document).map_err(|error| failed(S3Failure::InvalidResponse(error)))?;
        let checked = self.order.check(&page, &self.prefix.key);
        checked.map_err(|problem| failed(S3Failure::InvalidResponse(problem)))?;
        self.position = page.next.clone().map_or(ListingPosition::End, ListingPosition::After);
        Ok(Some(page))
    }

    /// Returns the objects of all pages.
    pub(super) fn objects(self) -> impl Stream<Item = Result<KeyLine, CliError>> + use<'a> {
        let pages = stream::try_unfold(self, async |mut listing| {
            Ok::<_, CliError>(listing.next_page().await?.map(|page| (page, listing)))
        });
        pages.map_ok(|page| stream::iter(page.objects).map(Ok)).try_flatten()
    }
}

/// Returns the error of a command for a prefix without keys.
pub(super) fn no_key(prefix: &RemotePath) -> CliError {
    CliError::Failed(printable(&format!("{prefix}: no key begins with this")).into_owned())
}

/// Order of the names of a listing.
#[derive(Default)]
struct ListingOrder {
    /// Last name, of an object or a common prefix.
    last: Option<String>,
    progress: ListingProgress,
}

/// Progress of a listing from page to page.
#[derive(Default)]
struct ListingProgress {
    /// Number of pages since the last new name.
    pages_without_name: u32,
}

impl ListingProgress {
    /// Counts a page that a further page follows.
    ///
    /// # Errors
    /// Too many pages in a row had no new name.
    fn check(&mut self, has_new_name: bool) -> Result<(), String> {
        self.pages_without_name = if has_new_name { 0 } else { self.pages_without_name + 1 };
        match self.pages_without_name < PAGES_WITHOUT_NAME_MAX {
            true => Ok(()),
            false => Err(format!("{PAGES_WITHOUT_NAME_MAX} pages of the listing in a row had no new name")),
        }
    }
}

impl ListingOrder {
    /// Checks the next page.
    ///
    /// # Errors
    /// A name is outside the prefix or does not follow the earlier ones, or the listing makes no progress.
    fn check(&mut self, page: &KeyPage, prefix: &str) -> Result<(), String> {
        let objects = page.objects.iter().map(|line| line.key.as_str());
        let prefixes = page.prefixes.iter().map(String::as_str);
        let before = self.last.as_deref();
        let last = last_of(objects, before, prefix)?.max(last_of(prefixes, before, prefix)?);
        let has_new_name = last.is_some();
        self.last = last.or_else(|| self.last.take());
        match page.next {
            Some(_) => self.progress.check(has_new_name),
            None => Ok(()),
        }
    }
}

/// Checks names that follow `before`. Returns the last of them.
fn last_of<'n>(
    names: impl Iterator<Item = &'n str>,
    before: Option<&str>,
    prefix: &str,
) -> Result<Option<String>, String> {
    let (mut last, mut before) = (None, before);
    for name in names {
        if !name.starts_with(prefix) {
            return Err(format!("the listing has {name:?}, which is outside the prefix"));
        }
        if before.is_some_and(|before| name <= before) {
            return Err(format!("the listing has {name:?} after a name that follows it"));
        }
        (last, before) = (Some(name), Some(name));
    }
    Ok(last.map(str::to_owned))
}

/// Returns all buckets.
///
/// # Errors
/// The request failed, or the listing makes no progress.
pub(super) async fn buckets(client: &S3Client) -> Result<Vec<BucketLine>, CliError> {
    let root = RemotePath::new("", "");
    let failed = |failure| client.error(failure, &root);
    let (mut list, mut token) = (BucketCollector::default(), None::<String>);
    loop {
        let mut request = S3Request::new(Method::GET, root.clone());
        if let Some(token) = &token {
            request = request.with_query("continuation-token", token);
        }
        let document = client.document(&request).await.map_err(failed)?.into_body();
        let page = parse_bucket_page(&document).map_err(|error| failed(S3Failure::InvalidResponse(error)))?;
        token = list.add(page).map_err(|problem| failed(S3Failure::InvalidResponse(problem)))?;
        if token.is_none() {
            return Ok(list.buckets);
        }
    }
}

/// The buckets of the pages so far. Not every server lists them in an order.
#[derive(Default)]
struct BucketCollector {
    buckets: Vec<BucketLine>,
    names: HashSet<String>,
    progress: ListingProgress,
}

impl BucketCollector {
    /// Adds the buckets of a page that are new. Returns the token of the next page.
    ///
    /// # Errors
    /// The listing makes no progress.
    fn add(&mut self, page: BucketPage) -> Result<Option<String>, String> {
        let known = self.buckets.len();
        let names = &mut self.names;
        self.buckets.extend(page.buckets.into_iter().filter(|bucket| names.insert(bucket.name.clone())));
        if page.next.is_some() {
            self.progress.check(self.buckets.len() > known)?;
        }
        Ok(page.next)
    }
}

#[cfg(test)]
mod tests {
    use super::{BucketCollector, ListingOrder, PAGES_WITHOUT_NAME_MAX, buckets};
    use crate::canned_server::{CannedServer, response};
    use crate::s3::xml::{BucketLine, BucketPage, KeyLine, KeyPage};

    fn page(prefixes: &[&str], keys: &[&str], next: &str) -> KeyPage {
        let line = |key: &&str| KeyLine {
            key: (*key).to_owned(),
            size: 1,
            modified: String::new(),
            etag: String::new(),
        };
        let prefixes = prefixes.iter().map(|prefix| (*prefix).to_owned()).collect();
        let next = Some(next.to_owned()).filter(|next| !next.is_empty());
        KeyPage { prefixes, objects: keys.iter().map(line).collect(), next }
    }

    fn check(pages: &[KeyPage]) -> Result<(), String> {
        let mut order = ListingOrder::default();
        pages.iter().try_for_each(|page| order.check(page, "p/"))
    }

    #[test]
    fn names_ascend_over_all_pages() {
        let good = [
            page(&["p/b/", "p/d/"], &["p/", "p/c"], "1"),
            page(&[], &[], "2"),
            page(&[], &["p/d0"], "3"),
            page(&["p/é/"], &[], ""),
        ];
        assert_eq!(check(&good), Ok(()));
        let first = page(&["p/d/"], &["p/c"], "1");
        for second in [
            page(&[], &["p/c"], ""),
            page(&[], &["p/c0"], ""),
            page(&["p/d/"], &[], ""),
            page(&[], &["p/f", "p/e"], ""),
            page(&["p/f/", "p/f/"], &[], ""),
        ] {
            let problem = check(&[page(&["p/d/"], &["p/c"], "1"), second]).unwrap_err();
            assert!(problem.contains("after a name that follows it"), "{problem}");
        }
        assert!(check(&[first, page(&[], &["q"], "")]).unwrap_err().contains("outside the prefix"));
        assert!(check(&[page(&["q/"], &[], "")]).unwrap_err().contains("outside the prefix"));
    }

    #[test]
    fn a_listing_without_progress_ends() {
        let empty = || page(&[], &[], "a token");
        let many = || (1..PAGES_WITHOUT_NAME_MAX).map(|_| empty());
        let end = |last| many().chain([last]).collect::<Vec<_>>();
        assert_eq!(check(&end(page(&[], &[], ""))), Ok(()), "the last page may be empty, too");
        let renewed = end(page(&[], &["p/1"], "a token")).into_iter().chain(many());
        assert_eq!(check(&renewed.collect::<Vec<_>>()), Ok(()));
        let problem = check(&end(empty())).unwrap_err();
        assert_eq!(problem, "1000 pages of the listing in a row had no new name");
    }

    #[test]
    fn a_listing_of_the_same_buckets_ends() {
        let page = |name: &str, next: Option<&str>| {
            let buckets = vec![BucketLine { name: name.to_owned(), creation_date: String::new() }];
            BucketPage { buckets, next: next.map(str::to_owned) }
        };
        let mut list = BucketCollector::default();
        for name in ["b", "a"] {
            assert_eq!(list.add(page(name, Some("t"))), Ok(Some("t".to_owned())));
        }
        for _ in 1..PAGES_WITHOUT_NAME_MAX {
            assert!(list.add(page("a", Some("t"))).is_ok());
        }
        assert!(list.add(page("b", Some("t"))).unwrap_err().contains("no new name"));
        let names: Vec<_> = list.buckets.iter().map(|bucket| bucket.name.as_str()).collect();
        assert_eq!(names, ["b", "a"]);
    }

    #[test]
    fn the_pages_of_buckets_follow_one_another() {
        let page = |name: &str, token: &str| {
            let text = format!(
                "<ListAllMyBucketsResult><Buckets><Bucket><Name>{name}</Name></Bucket></Buckets>\
                 <ContinuationToken>{token}</ContinuationToken></ListAllMyBucketsResult>"
            );
            response("200 OK", &[("content-length", &text.len().to_string())], &text)
        };
        let server = CannedServer::start(vec![page("a", "x"), page("b", "y"), page("c", "")]);
        let client = server.client();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listed = runtime.block_on(buckets(&client)).unwrap();
        let names: Vec<_> = listed.iter().map(|bucket| bucket.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c"]);
        let requests = server.requests();
        assert!(requests[1].starts_with("get /?continuation-token=x "), "{requests:?}");
        assert!(requests[2].starts_with("get /?continuation-token=y "), "{requests:?}");
    }
}
