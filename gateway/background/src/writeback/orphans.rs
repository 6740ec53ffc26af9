//! Uploads at an origin whose id this server never learned: a crash, or an answer that was lost, came
//! between the upload's beginning and the note of its id.
//!
//! Before an upload is begun the write's record notes that it is about to be, and which uploads of the key
//! are there already ([`UploadBegins`]). Whatever of the key appeared since and has no part is that upload,
//! and is aborted; one that has parts is somebody else's, because no part is sent before the id is noted.
//! Always: the note is durable before the upload begins, and goes only with the note of the id or with the
//! write.

use super::Inner;
use super::persist::Trouble;
use mlgw_cache::bound::BoundBucket;
use mlgw_cache::writeback::record::UploadBegins;
use mlgw_cache::writeback::{Queue, Write};
use mlgw_common::ObjectKey;
use mlgw_remote::origin::{ListQuery, OriginError, UploadLine, UploadPage, UploadsQuery};

/// Uploads of one key that are looked at. With more, nothing is noted and nothing is aborted.
const LOOKED_AT_MAX: usize = 1000;

impl Inner {
    /// Notes that an upload is about to be begun for a write, after the end of one that was begun before
    /// for it and is not known. An origin that does not list uploads is left with what a crash leaves.
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

    /// Ends the uploads that were begun for a write that is not sent any more and are not known. What
    /// cannot be asked for now stays at the origin.
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

/// The uploads of a key at the origin; nothing where they cannot be listed, or are too many.
async fn uploads_of(bound: &BoundBucket, key: &ObjectKey) -> Result<Option<Vec<UploadLine>>, OriginError> {
    let keys = ListQuery { prefix: key.as_str().to_owned(), max_keys: LOOKED_AT_MAX, ..ListQuery::default() };
    let query = UploadsQuery { keys, id_marker: String::new() };
    match bound.list_uploads(query).await {
        Ok(page) => Ok(of_key(page, key)),
        Err(OriginError::Refused { .. } | OriginError::Denied(_) | OriginError::Nonsense(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The uploads of a key on a page that begins with them; nothing when the page ends before they do.
fn of_key(page: UploadPage, key: &ObjectKey) -> Option<Vec<UploadLine>> {
    let ends_before = page.next.as_ref().is_some_and(|(last, _)| last.as_str() <= key.as_str());
    let uploads = page.uploads.into_iter().filter(|upload| upload.key == key.as_str());
    (!ends_before).then(|| uploads.collect())
}

/// Which uploads of a key appeared since `before` was noted, and which did not.
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
    fn only_what_appeared_since_the_note_is_ours() {
        let there = || vec![upload("k", "1"), upload("k", "2"), upload("k", "3")];
        let before = UploadBegins::beside(vec!["2".into()], 7).unwrap();
        let (ours, others) = split(there(), Some(&before));
        assert_eq!((ids(ours), ids(others)), (vec!["1".into(), "3".into()], vec!["2".to_owned()]));
        let (ours, others) = split(there(), None);
        assert!(ours.is_empty() && others.len() == 3, "without a note none is");
    }

    #[test]
    fn a_page_names_all_uploads_of_a_key_or_is_not_believed() {
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
