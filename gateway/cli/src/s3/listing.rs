//! Listings, page by page.
//!
//! Invariant: the names of a listing begin with its prefix and ascend in byte order over all pages, so a
//! listing ends. A server that breaks this ends the command with an error.

use super::client::{S3Client, S3Request};
use super::failure::S3Failure;
use super::path::RemotePath;
use super::xml::{BucketLine, KeyLine, KeyPage, parse_bucket_page, parse_key_page};
use crate::CliError;
use futures_util::stream::{self, Stream, StreamExt as _, TryStreamExt as _};
use http::Method;
use std::collections::HashSet;

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

/// Names and tokens of a listing, as far as they prove that the next page is another one.
#[derive(Default)]
struct ListingOrder {
    /// Last name, of an object or a common prefix.
    last: Option<String>,
    /// Tokens since the last name. A page may be empty.
    tokens: HashSet<String>,
}

impl ListingOrder {
    /// Checks the next page.
    ///
    /// # Errors
    /// A name is outside the prefix or does not follow the earlier ones, or a token is repeated.
    fn check(&mut self, page: &KeyPage, prefix: &str) -> Result<(), String> {
        let objects = page.objects.iter().map(|line| line.key.as_str());
        let prefixes = page.prefixes.iter().map(String::as_str);
        let before = self.last.as_deref();
        let last = last_of(objects, before, prefix)?.max(last_of(prefixes, before, prefix)?);
        if last.is_some() {
            self.last = last;
            self.tokens.clear();
        }
        check_token(&mut self.tokens, page.next.as_deref())
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

/// Checks that the token of the next page was not returned before.
fn check_token(seen: &mut HashSet<String>, next: Option<&str>) -> Result<(), String> {
    match next.is_none_or(|next| seen.insert(next.to_owned())) {
        true => Ok(()),
        false => Err("the listing makes no progress".to_owned()),
    }
}

/// Returns all buckets.
///
/// # Errors
/// The request failed.
pub(super) async fn buckets(client: &S3Client) -> Result<Vec<BucketLine>, CliError> {
    let root = RemotePath::new("", "");
    let failed = |failure| client.error(failure, &root);
    let (mut buckets, mut token, mut tokens) = (Vec::new(), None::<String>, HashSet::new());
    loop {
        let mut request = S3Request::new(Method::GET, root.clone());
        if let Some(token) = &token {
            request = request.with_query("continuation-token", token);
        }
        let document = client.document(&request).await.map_err(failed)?.into_body();
        let page = parse_bucket_page(&document).map_err(|error| failed(S3Failure::InvalidResponse(error)))?;
        check_token(&mut tokens, page.next.as_deref())
            .map_err(|problem| failed(S3Failure::InvalidResponse(problem)))?;
        buckets.extend(page.buckets);
        token = page.next;
        if token.is_none() {
            return Ok(buckets);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ListingOrder, buckets};
    use crate::s3::canned_server::{CannedServer, response};
    use crate::s3::xml::{KeyLine, KeyPage};

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
    fn a_circle_of_tokens_ends() {
        let empty = |next| page(&[], &[], next);
        assert!(check(&[empty("a"), empty("b"), empty("c")]).is_ok());
        assert!(check(&[empty("a"), empty("b"), empty("a")]).unwrap_err().contains("no progress"));
        assert!(check(&[empty("a"), page(&[], &["p/1"], "a")]).is_ok(), "a name is progress");
    }

    #[test]
    fn a_circle_of_buckets_ends() {
        let page = |token: &str| {
            let text = format!(
                "<ListAllMyBucketsResult><Buckets><Bucket><Name>b</Name></Bucket></Buckets>\
                 <ContinuationToken>{token}</ContinuationToken></ListAllMyBucketsResult>"
            );
            response("200 OK", &[("content-length", &text.len().to_string())], &text)
        };
        let list = |tokens: &[&str]| {
            let server = CannedServer::start(tokens.iter().map(|token| page(token)).collect());
            let client = server.client();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let listed = runtime.block_on(buckets(&client));
            drop(server.requests());
            listed.map(|buckets| buckets.len()).map_err(|error| error.to_string())
        };
        assert_eq!(list(&["x", "y", ""]), Ok(3));
        assert!(list(&["x", "y", "x"]).unwrap_err().contains("no progress"));
    }
}
