//! Copies of directories and prefixes. The next names are found while earlier ones are copied.

use super::copy_run::{CopyRun, ItemFailure};
use super::download::SpecialTarget;
use super::local_files::{LocalFile, LocalFiles};
use super::names::{file_of, key_of};
use super::{download, server_copy, upload};
use crate::CliError;
use crate::s3::listing::{KeyListing, no_key};
use crate::s3::path::RemotePath;
use crate::s3::xml::KeyLine;
use futures_util::stream::{self, Stream, StreamExt as _};
use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::pin::pin;

/// Uploads all files of a directory. Returns the number of items that could not be copied.
///
/// # Errors
/// The directory cannot be read, or a failure that concerns all files.
pub(super) async fn upload(run: &CopyRun<'_>, from: &Path, to: &RemotePath) -> Result<u64, CliError> {
    let files = LocalFiles::below(from).map_err(CliError::Failed)?;
    let files = stream::iter(files.map(|file| file.map_err(|problem| ItemFailure::item(&problem))));
    let copy = async |file: LocalFile| {
        let unsuitable = |problem| ItemFailure::item(&format!("{}: {problem}", file.path.display()));
        let key = key_of(&file.relative).map_err(unsuitable)?;
        upload::file(run, &file.path, &to.with_key(format!("{}{key}", to.key))).await
    };
    copy_items(run, files, copy).await
}

/// Downloads all objects below a prefix.
///
/// # Errors
/// No object is there, or a failure that concerns all objects.
pub(super) async fn download(run: &CopyRun<'_>, from: &RemotePath, to: &Path) -> Result<u64, CliError> {
    if fs::metadata(to).is_ok_and(|metadata| !metadata.is_dir()) {
        return Err(CliError::Usage(format!("{}: not a directory", to.display())));
    }
    let copy = async |line: KeyLine| {
        let object = from.with_key(&line.key);
        let relative = &line.key[from.key.len()..];
        // Some programs store directory markers (empty objects whose keys end in `/`).
        let directory = relative.strip_suffix('/').filter(|_| line.size == 0);
        let name = directory.unwrap_or(relative);
        let file = file_of(name).map_err(|problem| ItemFailure::unsuitable(&object, &problem))?;
        let file = to.join(file);
        match directory {
            Some(_) => download::directory(&file).map(|()| 0),
            None => download::object(run, &object, Some(line.size), &file, SpecialTarget::Refuse).await,
        }
    };
    copy_objects(run, from, copy).await
}

/// Copies all objects below a prefix to another.
///
/// # Errors
/// No object is there, or a failure that concerns all objects.
pub(super) async fn between(run: &CopyRun<'_>, from: &RemotePath, to: &RemotePath) -> Result<u64, CliError> {
    let copy = async |line: KeyLine| {
        let target = target_of(&line.key, from, to)?;
        server_copy::object(run, &from.with_key(&line.key), Some(line.size), &target).await
    };
    copy_objects(run, from, copy).await
}

/// Returns the object that the object of this key is copied to.
///
/// # Errors
/// The target has no key, or it is below the source: it could replace an object that is still to be copied.
fn target_of(key: &str, from: &RemotePath, to: &RemotePath) -> Result<RemotePath, ItemFailure> {
    let target = to.with_key(format!("{}{}", to.key, &key[from.key.len()..]));
    if target.key.is_empty() {
        let problem = "the copy would have an empty key; copy the object to a key of its own";
        return Err(ItemFailure::unsuitable(&from.with_key(key), problem));
    }
    if target.bucket == from.bucket && target.key.starts_with(&from.key) {
        let problem = format!("the copy {target} would be below the source; copy the object alone");
        return Err(ItemFailure::unsuitable(&from.with_key(key), &problem));
    }
    Ok(target)
}

/// Copies the objects below a prefix, without the directory marker of the prefix itself. Returns the number
/// of objects that could not be copied.
///
/// # Errors
/// No object is there, not even the directory marker, or a failure that concerns all objects.
async fn copy_objects(
    run: &CopyRun<'_>,
    from: &RemotePath,
    copy: impl AsyncFn(KeyLine) -> Result<u64, ItemFailure>,
) -> Result<u64, CliError> {
    let has_objects = Cell::new(false);
    let objects = KeyListing::recursive(run.client, from).objects();
    let objects = objects.map(|line| line.map_err(ItemFailure::Command));
    let objects = objects.filter(|line| {
        has_objects.set(true);
        let is_marker = line.as_ref().is_ok_and(|line| line.key == from.key && line.size == 0);
        std::future::ready(!is_marker)
    });
    let failed = copy_items(run, objects, copy).await?;
    if has_objects.get() { Ok(failed) } else { Err(no_key(from)) }
}

/// Copies items, several at once, and counts those that fail. `copy` returns the size of an item. A failure
/// that concerns all ends the copy.
async fn copy_items<T>(
    run: &CopyRun<'_>,
    items: impl Stream<Item = Result<T, ItemFailure>>,
    copy: impl AsyncFn(T) -> Result<u64, ItemFailure>,
) -> Result<u64, CliError> {
    let copy = &copy;
    let copied = items.map(|item| async move { copy(item?).await }).buffer_unordered(run.parallel());
    let (mut copied, mut failed) = (pin!(copied), 0);
    while let Some(one) = copied.next().await {
        match one {
            Ok(bytes) => run.add_object(bytes),
            Err(ItemFailure::Item(error)) => {
                run.warn(&error.to_string());
                failed += 1;
            }
            Err(ItemFailure::Command(error)) => return Err(error),
        }
    }
    Ok(failed)
}

#[cfg(test)]
mod tests {
    use super::{between, download, target_of};
    use crate::canned_server::{CannedServer, response};
    use crate::s3::cp::copy_run::{CopyRun, CopySettings};
    use crate::s3::path::RemotePath;

    /// A response with a document.
    fn document(text: &str) -> String {
        response("200 OK", &[("content-length", &text.len().to_string())], text)
    }

    /// A listing of the key `p/` with an object of this size.
    fn listing_of_prefix(size: u64) -> String {
        document(&format!(
            "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>p/</Key>\
             <LastModified>2026-11-20T10:00:00.000Z</LastModified><ETag>e</ETag><Size>{size}</Size>\
             </Contents></ListBucketResult>"
        ))
    }

    /// Copies `s3://b/p/` to a prefix of the bucket `c`, or to a directory without one. Returns the number of
    /// failures, and the requests.
    fn copy(to: Option<&str>, responses: Vec<String>) -> (Result<u64, String>, Vec<String>) {
        let server = CannedServer::start(responses);
        let (client, from) = (server.client(), RemotePath::new("b", "p/"));
        let settings = CopySettings { parallel: 1, part_bytes: None, content_type: None, quiet: true };
        let (run, directory) = (CopyRun::new(&client, settings), tempfile::tempdir().unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let failed = runtime.block_on(async {
            match to {
                Some(prefix) => between(&run, &from, &RemotePath::new("c", prefix)).await,
                None => download(&run, &from, directory.path()).await,
            }
        });
        (failed.map_err(|error| error.to_string()), server.requests())
    }

    #[test]
    fn an_object_with_the_name_of_the_prefix_is_not_lost() {
        let listing = listing_of_prefix(5);
        let copied = document("<CopyObjectResult><ETag>e</ETag></CopyObjectResult>");
        assert_eq!(copy(None, vec![listing.clone()]).0, Ok(1));
        assert_eq!(copy(Some(""), vec![listing.clone()]).0, Ok(1));
        let (failed, requests) = copy(Some("q/"), vec![listing, copied]);
        assert!(failed == Ok(0) && requests[1].starts_with("put /c/q/ "), "{failed:?} {requests:?}");
    }

    #[test]
    fn one_listing_shows_that_a_prefix_has_no_objects() {
        let empty = document("<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>");
        let (failed, _) = copy(Some("q/"), vec![empty]);
        assert_eq!(failed, Err("s3://b/p/: no key begins with this".to_owned()));
        assert_eq!(copy(Some("q/"), vec![listing_of_prefix(0)]).0, Ok(0), "a directory marker");
    }

    #[test]
    fn no_copy_replaces_an_object_of_the_source() {
        let source = |bucket: &str| RemotePath::new(bucket, "p/q/");
        let target = |key: &str, bucket: &str, to: &str| {
            target_of(key, &source("b"), &RemotePath::new(bucket, to)).map(|target| target.key)
        };
        assert_eq!(target("p/q/x", "b", "p/"), Ok("p/x".to_owned()));
        assert_eq!(target("p/q/qx", "b", "p/"), Ok("p/qx".to_owned()));
        assert_eq!(target("p/q/q/x", "c", "p/"), Ok("p/q/x".to_owned()), "another bucket");
        let refused = target("p/q/q/x", "b", "p/").unwrap_err().error().to_string();
        assert!(refused.starts_with("s3://b/p/q/q/x: the copy s3://b/p/q/x would be below"), "{refused}");
        assert!(target("p/q/p/q/x", "b", "").is_err());
    }
}
