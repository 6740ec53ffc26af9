//! Orphaned uploads at an origin: this server never learned their ids, because a crash or a lost answer came
//! between the start of the upload and the record of its id.
//!
//! Before an upload starts, the write's record receives a note of the intent and of the uploads that exist
//! for the key ([`PendingOriginUpload`]). An upload of the key that appears afterwards and has no part is the
//! orphan, and is aborted. An upload with parts belongs to another client, because no part is sent before the
//! id is recorded. The note is durable before the upload starts, and is removed only with the record of the
//! id or with the write.

use super::WriteBackSender;
use super::persist::PersistError;
use mlgw_cache::remote_backed::CachedBucket;
use mlgw_cache::writeback::record::PendingOriginUpload;
use mlgw_cache::writeback::{DirtyWrite, WriteBackQueue};
use mlgw_common::ObjectKey;
use mlgw_remote::origin::{ListQuery, OriginError, UploadLine, UploadPage, UploadsQuery};

/// Maximum number of uploads of one key that are examined. If there are more, nothing is recorded and nothing
/// is aborted.
const EXAMINED_MAX: usize = 1000;

impl WriteBackSender {
    /// Records that an upload for a write is about to start, after aborting earlier orphans of the write. At
    /// an origin that does not list uploads, orphans of a crash remain.
    pub(super) async fn record_intent(
        &self,
        queue: &WriteBackQueue,
        write: &DirtyWrite,
    ) -> Result<(), PersistError> {
        let Some(there) = uploads_of(queue.bucket_at_origin(), &write.facts.key).await? else {
            return Ok(());
        };
        let before = write.pending_upload();
        let (ours, others) = split(there, before.as_ref());
        for upload in &ours {
            abort_orphan(queue, write, upload).await?;
        }
        let Some(begins) = PendingOriginUpload::beside(ids(others), write.seq) else { return Ok(()) };
        if before.as_ref() == Some(&begins) {
            return Ok(());
        }
        let record = begins.clone();
        let recording =
            self.writeback.update_facts(queue, write, |facts| facts.pending_upload = Some(record)).await;
        recording.map_err(|error| PersistError::Here(error.to_string()))?;
        write.set_pending_upload(Some(begins));
        Ok(())
    }

    /// Aborts the orphaned uploads of a write that is no longer sent. Orphans that cannot be listed now
    /// remain at the origin.
    pub(super) async fn abort_orphans(&self, queue: &WriteBackQueue, write: &DirtyWrite) {
        let Some(before) = write.pending_upload() else { return };
        write.set_pending_upload(None);
        let ended = async {
            let there = uploads_of(queue.bucket_at_origin(), &write.facts.key).await?.unwrap_or_default();
            for upload in split(there, Some(&before)).0 {
                abort_orphan(queue, write, &upload).await?;
            }
            Ok::<_, OriginError>(())
        };
        if let Err(error) = ended.await {
            let (key, upstream) = (&write.facts.key, queue.bucket_at_origin().upstream());
            tracing::warn!(%key, upstream, %error, "an unfinished upload may remain at the origin");
        }
    }
}

/// Aborts an upload, if it has no part.
async fn abort_orphan(
    queue: &WriteBackQueue,
    write: &DirtyWrite,
    upload: &UploadLine,
) -> Result<(), OriginError> {
    let (key, id) = (&write.facts.key, &upload.id);
    let is_gone = |error: &OriginError| matches!(error, OriginError::Refused { status: 404, .. });
    match queue.bucket_at_origin().list_parts(key, id, 0, 1).await {
        Ok(page) if page.parts.is_empty() => {}
        Ok(_) => return Ok(()),
        Err(error) if is_gone(&error) => return Ok(()),
        Err(error) => return Err(error),
    }
    let upstream = queue.bucket_at_origin().upstream();
    tracing::info!(%key, upstream, upload = id, "unused upload aborted at the origin");
    match queue.bucket_at_origin().abort(key, id).await {
        Err(error) if !is_gone(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Returns the uploads of a key at the origin; `None` if they cannot be listed or are too many.
async fn uploads_of(bound: &CachedBucket, key: &ObjectKey) -> Result<Option<Vec<UploadLine>>, OriginError> {
    let keys = ListQuery { prefix: key.as_str().to_owned(), max_keys: EXAMINED_MAX, ..ListQuery::default() };
    let query = UploadsQuery { keys, id_marker: String::new() };
    match bound.list_uploads(query).await {
        Ok(page) => Ok(uploads_of_key(page, key)),
        Err(OriginError::Refused { .. } | OriginError::Denied(_) | OriginError::InvalidResponse(_)) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Returns the uploads of a key on a page that begins with them; `None` if the page may end before they do.
fn uploads_of_key(page: UploadPage, key: &ObjectKey) -> Option<Vec<UploadLine>> {
    let ends_before = page.next.as_ref().is_some_and(|(last, _)| last.as_str() <= key.as_str());
    let uploads = page.uploads.into_iter().filter(|upload| upload.key == key.as_str());
    (!ends_before).then(|| uploads.collect())
}

/// Splits uploads of a key into those that appeared since `before` was recorded, and the others.
fn split(there: Vec<UploadLine>, before: Option<&PendingOriginUpload>) -> (Vec<UploadLine>, Vec<UploadLine>) {
    there.into_iter().partition(|upload| before.is_some_and(|before| !before.others.contains(&upload.id)))
}

fn ids(uploads: Vec<UploadLine>) -> Vec<String> {
    uploads.into_iter().map(|upload| upload.id).collect()
}

#[cfg(test)]
mod tests {
    use super::{ids, split, uploads_of_key};
    use mlgw_cache::writeback::record::PendingOriginUpload;
    use mlgw_common::ObjectKey;
    use mlgw_remote::origin::{UploadLine, UploadPage};

    fn upload(key: &str, id: &str) -> UploadLine {
        UploadLine { key: key.into(), id: id.into(), ..UploadLine::default() }
    }

    #[test]
    fn only_uploads_that_appeared_since_the_note_are_orphans() {
        let there = || vec![upload("k", "1"), upload("k", "2"), upload("k", "3")];
        let before = PendingOriginUpload::beside(vec!["2".into()], 7).unwrap();
        let (ours, others) = split(there(), Some(&before));
        assert_eq!((ids(ours), ids(others)), (vec!["1".into(), "3".into()], vec!["2".to_owned()]));
        let (ours, others) = split(there(), None);
        assert!(ours.is_empty() && others.len() == 3, "no orphan without a record");
    }

    #[test]
    fn a_page_that_may_miss_uploads_of_the_key_is_not_used() {
        let key = ObjectKey::new("k").unwrap();
        let page = |next: Option<&str>| UploadPage {
            uploads: vec![upload("k", "1"), upload("k/2", "2")],
            groups: Vec::new(),
            next: next.map(|key| (key.to_owned(), "9".to_owned())),
        };
        assert_eq!(uploads_of_key(page(None), &key).map(ids), Some(vec!["1".to_owned()]));
        assert_eq!(uploads_of_key(page(Some("k/2")), &key).map(ids), Some(vec!["1".to_owned()]));
        assert_eq!(uploads_of_key(page(Some("k")), &key), None, "the list may be incomplete");
    }
}
