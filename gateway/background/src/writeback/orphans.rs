//! Orphaned uploads at an origin: this server never learned their ids, because a crash or a lost answer came
//! between the start of the upload and the record of its id.
//!
//! Before an upload starts, the write's record receives a note of the intent and of the uploads that exist
//! for the key ([`UploadBegins`]). An upload of the key that appears afterwards and has no part is the
//! orphan, and is aborted. An upload with parts belongs to another client, because no part is sent before the
//! id is recorded. The note is durable before the upload starts, and is removed only with the record of the
//! id or with the write.

use super::Inner;
use super::persist::Trouble;
use mlgw_cache::bound::BoundBucket;
use mlgw_cache::writeback::record::UploadBegins;
use mlgw_cache::writeback::{Queue, Write};
use mlgw_common::ObjectKey;
use mlgw_remote::origin::{ListQuery, OriginError, UploadLine, UploadPage, UploadsQuery};

/// Maximum number of uploads of one key that are examined. If there are more, nothing is recorded and nothing
/// is aborted.
const LOOKED_AT_MAX: usize = 1000;

impl Inner {
    /// Records that an upload for a write is about to start, after aborting earlier orphans of the write. At
    /// an origin that does not list uploads, orphans of a crash remain.
    pub(super) async fn note_beginning(&self, queue: &Queue, write: &Write) -> Result<(), Trouble> {
        let Some(there) = uploads_of(queue.bound(), &write.facts.key).await? else { return Ok(()) };
        let before = write.upload_begins();
        let (ours, others) = split(there, before.as_ref());
        for upload in &ours {
            end_orphan(queue, write, upload).await?;
        }
        let Some(begins) = UploadBegins::beside(ids(others), write.seq) else { return Ok(()) };
        if before.as_ref() == Some(&begins) {
            return Ok(());
        }
        let noted = begins.clone();
        let noted = self.writeback.note(queue, write, |facts| facts.begins = Some(noted)).await;
        noted.map_err(|error| Trouble::Here(error.to_string()))?;
        write.set_upload_begins(Some(begins));
        Ok(())
    }

    /// Aborts the orphaned uploads of a write that is no longer sent. Orphans that cannot be listed now
    /// remain at the origin.
    pub(super) async fn end_orphans(&self, queue: &Queue, write: &Write) {
        let Some(before) = write.upload_begins() else { return };
        write.set_upload_begins(None);
        let ended = async {
            let there = uploads_of(queue.bound(), &write.facts.key).await?.unwrap_or_default();
            for upload in split(there, Some(&before)).0 {
                end_orphan(queue, write, &upload).await?;
            }
            Ok::<_, OriginError>(())
        };
        if let Err(error) = ended.await {
            let (key, upstream) = (&write.facts.key, queue.bound().upstream());
            tracing::warn!(%key, upstream, %error, "an upload may stay at its origin");
        }
    }
}

/// Aborts an upload, if it has no part.
async fn end_orphan(queue: &Queue, write: &Write, upload: &UploadLine) -> Result<(), OriginError> {
    let (key, id) = (&write.facts.key, &upload.id);
    let is_gone = |error: &OriginError| matches!(error, OriginError::Refused { status: 404, .. });
    match queue.bound().list_parts(key, id, 0, 1).await {
        Ok(page) if page.parts.is_empty() => {}
        Ok(_) => return Ok(()),
        Err(error) if is_gone(&error) => return Ok(()),
        Err(error) => return Err(error),
    }
    let upstream = queue.bound().upstream();
    tracing::info!(%key, upstream, upload = id, "an upload of a write is ended: it was never used");
    match queue.bound().abort(key, id).await {
        Err(error) if !is_gone(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Returns the uploads of a key at the origin; `None` if they cannot be listed or are too many.
async fn uploads_of(bound: &BoundBucket, key: &ObjectKey) -> Result<Option<Vec<UploadLine>>, OriginError> {
    let keys = ListQuery { prefix: key.as_str().to_owned(), max_keys: LOOKED_AT_MAX, ..ListQuery::default() };
    let query = UploadsQuery { keys, id_marker: String::new() };
    match bound.list_uploads(query).await {
        Ok(page) => Ok(of_key(page, key)),
        Err(OriginError::Refused { .. } | OriginError::Denied(_) | OriginError::Nonsense(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the uploads of a key on a page that begins with them; `None` if the page may end before they do.
fn of_key(page: UploadPage, key: &ObjectKey) -> Option<Vec<UploadLine>> {
    let ends_before = page.next.as_ref().is_some_and(|(last, _)| last.as_str() <= key.as_str());
    let uploads = page.uploads.into_iter().filter(|upload| upload.key == key.as_str());
    (!ends_before).then(|| uploads.collect())
}

/// Splits uploads of a key into those that appeared since `before` was recorded, and the others.
fn split(there: Vec<UploadLine>, before: Option<&UploadBegins>) -> (Vec<UploadLine>, Vec<UploadLine>) {
    there.into_iter().partition(|upload| before.is_some_and(|before| !before.others.contains(&upload.id)))
}

fn ids(uploads: Vec<UploadLine>) -> Vec<String> {
    uploads.into_iter().map(|upload| upload.id).collect()
}

#[cfg(test)]
mod tests {
    use super::{ids, of_key, split};
    use mlgw_cache::writeback::record::UploadBegins;
    use mlgw_common::ObjectKey;
    use mlgw_remote::origin::{UploadLine, UploadPage};

    fn upload(key: &str, id: &str) -> UploadLine {
        UploadLine { key: key.into(), id: id.into(), ..UploadLine::default() }
    }

    #[test]
    fn only_uploads_that_appeared_since_the_note_are_orphans() {
        let there = || vec![upload("k", "1"), upload("k", "2"), upload("k", "3")];
        let before = UploadBegins::beside(vec!["2".into()], 7).unwrap();
        let (ours, others) = split(there(), Some(&before));
        assert_eq!((ids(ours), ids(others)), (vec!["1".into(), "3".into()], vec!["2".to_owned()]));
        let (ours, others) = split(there(), None);
        assert!(ours.is_empty() && others.len() == 3, "without a note none is");
    }

    #[test]
    fn a_page_that_may_miss_uploads_of_the_key_is_not_used() {
        let key = ObjectKey::new("k").unwrap();
        let page = |next: Option<&str>| UploadPage {
            uploads: vec![upload("k", "1"), upload("k/2", "2")],
            groups: Vec::new(),
            next: next.map(|key| (key.to_owned(), "9".to_owned())),
        };
        assert_eq!(of_key(page(None), &key).map(ids), Some(vec!["1".to_owned()]));
        assert_eq!(of_key(page(Some("k/2")), &key).map(ids), Some(vec!["1".to_owned()]));
        assert_eq!(of_key(page(Some("k")), &key), None, "there may be more of it");
    }
}
