//! Listings, page by page.

use super::client::{S3Client, S3Request};
use super::failure::S3Failure;
use super::path::RemotePath;
use super::xml::{BucketLine, KeyLine, KeyPage, parse_bucket_page, parse_key_page};
use crate::CliError;
use futures_util::stream::{self, Stream, StreamExt as _, TryStreamExt as _};
use http::Method;

/// Listing of the keys with one prefix.
pub(super) struct KeyListing<'a> {
    client: &'a S3Client,
    prefix: &'a RemotePath,
    delimiter: &'static str,
    position: ListingPosition,
}

enum ListingPosition {
    Start,
    After(String),
    End,
}

impl<'a> KeyListing<'a> {
    /// Returns the listing of all keys with this prefix.
    pub(super) fn recursive(client: &'a S3Client, prefix: &'a RemotePath) -> Self {
        Self { client, prefix, delimiter: "", position: ListingPosition::Start }
    }

    /// Returns the listing that groups keys by their names up to the next `/`.
    pub(super) fn grouped(client: &'a S3Client, prefix: &'a RemotePath) -> Self {
        Self { client, prefix, delimiter: "/", position: ListingPosition::Start }
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
        let page = parse_key_page(&document).map_err(|error| failed(S3Failure::Nonsense(error)))?;
        self.position = match (&page.next, &self.position) {
            (Some(next), ListingPosition::After(token)) if next == token => {
                return Err(failed(S3Failure::Nonsense("the listing makes no progress".to_owned())));
            }
            (Some(next), _) => ListingPosition::After(next.clone()),
            (None, _) => ListingPosition::End,
        };
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

/// Returns all buckets.
///
/// # Errors
/// The request failed.
pub(super) async fn buckets(client: &S3Client) -> Result<Vec<BucketLine>, CliError> {
    let root = RemotePath::new("", "");
    let failed = |failure| client.error(failure, &root);
    let (mut buckets, mut token) = (Vec::new(), None::<String>);
    loop {
        let mut request = S3Request::new(Method::GET, root.clone());
        if let Some(token) = &token {
            request = request.with_query("continuation-token", token);
        }
        let document = client.document(&request).await.map_err(failed)?.into_body();
        let page = parse_bucket_page(&document).map_err(|error| failed(S3Failure::Nonsense(error)))?;
        buckets.extend(page.buckets);
        match page.next.filter(|next| Some(next) != token.as_ref()) {
            Some(next) => token = Some(next),
            None => return Ok(buckets),
        }
    }
}
