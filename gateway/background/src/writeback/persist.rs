//! Sends dirty writes to their origin, and removes their records.
//!
//! Each attempt looks up the origin's object, sends the write on the condition that the object is unchanged,
//! and then removes the record. After any failure the attempt is repeated from the lookup, without limit. A
//! power failure between the two leaves a write at the origin together with its record: the next lookup finds
//! its mark.
//!
//! The origin may execute an attempt that it did not answer after a later attempt has succeeded. The
//! condition then fails, unless the next write of the key has made it true again, as a delete does for a new
//! object. So the next write of the key is not sent before that time is over.

use super::WriteBackSender;
use super::judge::{JudgedWrite, WriteBackVerdict, judge};
use super::resend_schedule::is_sent_again;
use backon::{BackoffBuilder as _, ExponentialBuilder};
use bytes::BytesMut;
use futures_util::StreamExt as _;
use futures_util::stream;
use mlgw_cache::writeback::record::{ForeignObject, Timelines, WriteMark};
use mlgw_cache::writeback::{DirtyWrite, WriteBackQueue};
use mlgw_common::BodyId;
use mlgw_common::limits::CHUNK_BYTES_MAX;
use mlgw_formats::decision_entry::{DecisionSubject, PlacementDecision};
use mlgw_formats::decision_words::{DecisionKind, DecisionOutcome, DecisionPlace, DecisionReason};
use mlgw_formats::schema::ObjectVersion;
use mlgw_objects::reader::BodyReader;
use mlgw_remote::origin::{
    ListLine, ListQuery, OriginContent, OriginError, Streamed, md5_of, opaque_etag_hint,
};
use mlgw_segments::fair::Lane;
use mlgw_wire::origin_headers::OriginHeaders;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

/// Pauses after failures. They double up to five seconds: all concurrent retries together request an
/// unavailable origin some six times a second.
const PAUSES: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(200))
    .with_max_delay(Duration::from_secs(5))
    .without_max_times();

/// Result of an attempt.
enum PersistOutcome {
    Done,
    /// The origin has another client's object, with this ETag.
    Foreign(String),
}

/// Error of an attempt.
#[derive(Debug, thiserror::Error)]
pub(super) enum PersistError {
    #[error(transparent)]
    Origin(#[from] OriginError),
    #[error("cannot read the local object: {0}")]
    Here(String),
}

/// Starts sending the dirty writes of a bucket.
pub(super) fn begin(inner: &Arc<WriteBackSender>, queue: &Arc<WriteBackQueue>) {
    let (inner, queue) = (inner.clone(), queue.clone());
    let stop = inner.stop.clone();
    inner.tasks.clone().spawn(async move { stop.run_until_cancelled(drive(inner, queue)).await });
}

/// Starts writes as the queue permits, independent ones in parallel, until the bucket's binding is removed or
/// changed.
async fn drive(inner: Arc<WriteBackSender>, queue: Arc<WriteBackQueue>) {
    loop {
        let changed = queue.changed();
        let next = queue.start_next();
        let Some(write) = next else {
            if !inner.writeback.is_current(&queue) {
                return;
            }
            changed.await;
            continue;
        };
        // A write is started only when a slot is free.
        let Ok(slot) = queue.limits().slots.clone().acquire_owned().await else { return };
        let (inner, queue, stop) = (inner.clone(), queue.clone(), inner.stop.clone());
        inner.tasks.clone().spawn(async move {
            stop.run_until_cancelled(inner.send(&queue, &write, slot)).await;
        });
    }
}

impl WriteBackSender {
    /// Sends a write until it is done or needs an operator's decision. While the origin may still execute an
    /// earlier write of the key that it did not answer, the slot is free for other writes.
    async fn send(&self, queue: &WriteBackQueue, write: &DirtyWrite, mut slot: OwnedSemaphorePermit) {
        if let Some(pause) = queue.bucket_at_origin().unanswered_for(&write.facts.key) {
            drop(slot);
            mlgw_common::time::sleep(pause).await;
            let Ok(free) = queue.limits().slots.clone().acquire_owned().await else { return };
            slot = free;
        }
        let tried = self.attempt(queue, write, 0).await;
        drop(slot);
        self.retry_until_done(queue, write, tried).await;
    }

    /// Continues after the first attempt until the write is done or needs an operator's decision.
    async fn retry_until_done(
        &self,
        queue: &WriteBackQueue,
        write: &DirtyWrite,
        mut tried: Result<PersistOutcome, PersistError>,
    ) {
        for (failures, pause) in (1..).zip(PAUSES.build()) {
            match tried {
                Ok(PersistOutcome::Done) => return self.remove_records(queue, write).await,
                Ok(PersistOutcome::Foreign(etag)) => return self.set_aside(queue, write, &etag).await,
                Err(trouble) => {
                    match trouble {
                        PersistError::Origin(OriginError::Unconfirmed(_)) => queue.mark_unconfirmed(write),
                        _ => queue.clear_unconfirmed(write),
                    }
                    self.record_decision(queue, write, DecisionOutcome::Failed, &trouble);
                    let (bucket, key, upstream) =
                        (&queue.bucket().name, &write.facts.key, queue.bucket_at_origin().upstream());
                    if failures == 1 {
                        tracing::warn!(
                            bucket, %key, upstream, %trouble,
                            "cannot send a dirty object to its origin; retrying"
                        );
                    }
                    queue.set_last_error(Some(format!("{key}: {trouble}")));
                    mlgw_common::time::sleep(pause).await;
                }
            }
            let Ok(_slot) = queue.limits().slots.acquire().await else { return };
            tried = self.attempt(queue, write, failures).await;
        }
    }

    /// Looks up the origin's object, and sends the write if permitted. `failures` is the number of failed
    /// attempts before.
    async fn attempt(
        &self,
        queue: &WriteBackQueue,
        write: &DirtyWrite,
        failures: u32,
    ) -> Result<PersistOutcome, PersistError> {
        let (key, body) = (&write.facts.key, record_id(write));
        let mark = WriteMark::new(queue.bucket(), &self.timelines, body, &write.etag);
        queue.bucket_at_origin().until_changes_allowed().await;
        let found = match queue.bucket_at_origin().head_origin(key).await {
            Ok(found) => Some(found),
            Err(OriginError::NoSuchKey) => None,
            Err(error) => return Err(error.into()),
        };
        let sent = judged_write(write, &mark, &self.timelines);
        let judged = |exact_ms| judge(&sent, found.as_ref(), exact_ms);
        let mut verdict = judged(None);
        if verdict == WriteBackVerdict::Unclear {
            verdict = judged(Some(exact_ms(queue, write).await?));
        }
        let mut headers = match verdict {
            WriteBackVerdict::Done => {
                self.give_up_upload(queue, write).await;
                return Ok(PersistOutcome::Done);
            }
            WriteBackVerdict::Foreign | WriteBackVerdict::Unclear => {
                return Ok(PersistOutcome::Foreign(found.map(|found| found.etag).unwrap_or_default()));
            }
            WriteBackVerdict::IfAbsent => OriginHeaders::if_absent(),
            WriteBackVerdict::Damaged { why, .. } if !is_sent_again(failures) => {
                let why = format!("{why}; {}", opaque_etag_hint(queue.bucket_at_origin().upstream()));
                return Err(OriginError::Unconfirmed(why).into());
            }
            WriteBackVerdict::IfMatch(etag) | WriteBackVerdict::Damaged { etag, .. } => {
                OriginHeaders::if_match(&etag)
            }
        };
        if write.facts.is_delete {
            queue.limits().budget.wait_for_request(0).await;
            queue.bucket_at_origin().delete(key, &headers).await?;
        } else {
            let version = self.catalogue.object(queue.bucket().bucket_id(), &write.name);
            let version = version.map_err(|error| PersistError::Here(error.to_string()))?;
            let version = version.ok_or_else(|| PersistError::Here("the record is missing".to_owned()))?;
            if version.part_count > 0 {
                self.send_parts(queue, write, &version, &mark, headers).await?;
                return self.confirm(queue, write, &mark).await;
            }
            headers.describe(&version);
            add_digests(&version, &mut headers);
            mark.put(&mut headers);
            let content = self.content(queue, write, &version, 0..version.size).await?;
            queue.limits().budget.wait_for_request(write.size).await;
            queue.bucket_at_origin().put(key, &headers, content).await?;
        }
        Ok(PersistOutcome::Done)
    }

    /// Looks up an object that was sent in parts, because the ETag of the completion's answer proves nothing.
    async fn confirm(
        &self,
        queue: &WriteBackQueue,
        write: &DirtyWrite,
        mark: &WriteMark,
    ) -> Result<PersistOutcome, PersistError> {
        let found = queue.bucket_at_origin().head_origin(&write.facts.key).await?;
        let why = match judge(&judged_write(write, mark, &self.timelines), Some(&found), None) {
            WriteBackVerdict::Done => return Ok(PersistOutcome::Done),
            WriteBackVerdict::Damaged { why, .. } => why,
            _ => "the origin has another object after the write".to_owned(),
        };
        Err(OriginError::Unconfirmed(why).into())
    }

    /// Returns the bytes of a `range` of a write.
    pub(super) async fn content(
        &self,
        queue: &WriteBackQueue,
        write: &DirtyWrite,
        version: &ObjectVersion,
        range: Range<u64>,
    ) -> Result<OriginContent, PersistError> {
        let (bucket, size) = (queue.bucket().bucket_id(), range.end - range.start);
        let mut reader = BodyReader::new(&self.catalogue, &self.tiers, bucket, &write.name, version, range);
        reader.set_turn(Lane::Background);
        if size > CHUNK_BYTES_MAX {
            let pieces = stream::try_unfold(reader, |mut reader| async {
                let piece =
                    reader.next().await.map_err(|error| OriginError::InvalidResponse(error.to_string()))?;
                Ok(piece.map(|piece| (piece, reader)))
            });
            return Ok(OriginContent::Streaming(Streamed {
                bytes: size,
                pieces: pieces.boxed(),
                trailer: None,
            }));
        }
        let mut whole = BytesMut::new();
        while let Some(piece) = reader.next().await.map_err(|error| PersistError::Here(error.to_string()))? {
            if piece.len() as u64 == size {
                return Ok(OriginContent::Whole(piece));
            }
            whole.extend_from_slice(&piece);
        }
        assert_eq!(whole.len() as u64, size, "a reader returns its whole range");
        Ok(OriginContent::Whole(whole.freeze()))
    }

    /// Removes the records of a write that its origin has, and of earlier writes of the key that were set
    /// aside.
    async fn remove_records(&self, queue: &WriteBackQueue, write: &DirtyWrite) {
        let obsolete = queue.foreign_before(write);
        for write in obsolete.iter().map(|write| &**write).chain([write]) {
            for pause in PAUSES.build() {
                let Err(error) = self.writeback.remove(queue, write).await else { break };
                tracing::warn!(%error, "cannot remove the record of a completed write-back; retrying");
                mlgw_common::time::sleep(pause).await;
            }
        }
        queue.clear_unconfirmed(write);
        queue.set_last_error(None);
        self.record_decision(queue, write, DecisionOutcome::Done, &"");
    }

    /// Records the result of a write in the decision log.
    fn record_decision(
        &self,
        queue: &WriteBackQueue,
        write: &DirtyWrite,
        outcome: DecisionOutcome,
        error: &dyn std::fmt::Display,
    ) {
        let decided = PlacementDecision {
            kind: DecisionKind::Persist,
            subject: DecisionSubject::Object(queue.bucket().bucket_id(), write.facts.key.as_str()),
            from: DecisionPlace::Hot,
            to: DecisionPlace::Origin,
            bytes: write.size,
            cause: DecisionReason::WriteBack.into(),
            outcome,
        };
        self.decisions.record_because(&decided, error);
    }

    /// Sets a write aside that would overwrite another client's object. The conflict is recorded durably and
    /// waits for an operator's decision.
    async fn set_aside(&self, queue: &WriteBackQueue, write: &DirtyWrite, etag: &str) {
        tracing::error!(
            bucket = queue.bucket().name, key = %write.facts.key,
            upstream = queue.bucket_at_origin().upstream(),
            "another client wrote a dirty object at its origin; the origin is left unchanged: see `mlgw \
             bucket flush`"
        );
        self.record_decision(
            queue,
            write,
            DecisionOutcome::Foreign,
            &"another client wrote it at the origin",
        );
        self.give_up_upload(queue, write).await;
        let recording = self.writeback.update_facts(queue, write, |facts| {
            facts.foreign = Some(ForeignObject { etag: Some(etag.to_owned()), number: write.seq });
            (facts.upload, facts.pending_upload) = (None, None);
        });
        if let Err(error) = recording.await {
            tracing::warn!(%error, "cannot record a conflict; it will be detected again");
        }
        queue.set_aside(write, etag);
    }
}

/// Returns the properties of a write that are compared with the origin's object.
fn judged_write<'a>(write: &'a DirtyWrite, mark: &'a WriteMark, timelines: &'a Timelines) -> JudgedWrite<'a> {
    JudgedWrite {
        mark,
        timelines,
        deletes: write.facts.is_delete,
        size: write.size,
        etag: &write.etag,
        began_ms: write.began_ms,
        known_etag: write.facts.known_etag.as_deref(),
    }
}

/// Returns the id in the name of the write's record.
fn record_id(write: &DirtyWrite) -> BodyId {
    BodyId(u64::from_str_radix(write.name.as_str(), 16).unwrap_or(0))
}

/// Returns the modification time of the origin's object at the precision of its listings.
async fn exact_ms(queue: &WriteBackQueue, write: &DirtyWrite) -> Result<i64, PersistError> {
    let key = write.facts.key.as_str();
    let query = ListQuery { prefix: key.to_owned(), max_keys: 1, ..ListQuery::default() };
    let page = queue.bucket_at_origin().list(query).await?;
    page.lines
        .iter()
        .find_map(|line| match line {
            ListLine::Object(name, object) if name == key => Some(object.modified_ms),
            _ => None,
        })
        .ok_or(PersistError::Origin(OriginError::Changed))
}

/// Adds the digests of an object's bytes to the headers of its PUT.
pub(crate) fn add_digests(version: &ObjectVersion, headers: &mut OriginHeaders) {
    headers.add_object_checksums(version);
    // The ETag is an MD5: with it, the origin accepts no bytes other than those acknowledged here.
    if let Some(md5) = md5_of(version) {
        headers.add_md5(&md5);
    }
}

#[cfg(test)]
mod tests {
    use super::add_digests;
    use mlgw_formats::schema::{ObjectVersion, Pair};
    use mlgw_wire::origin_headers::OriginHeaders;

    fn described(etag: &str) -> OriginHeaders {
        let mut headers = OriginHeaders::default();
        let version = ObjectVersion {
            etag: etag.to_owned(),
            headers: vec![Pair::new("content-type", "text/plain"), Pair::new(":ours", "x")],
            metadata: vec![Pair::new("by", "us")],
            ..ObjectVersion::default()
        };
        headers.describe(&version);
        add_digests(&version, &mut headers);
        headers
    }

    #[test]
    fn the_origin_receives_the_md5_of_an_object_if_it_is_known() {
        let headers = described("5d41402abc4b2a76b9719d911017c592");
        assert_eq!(headers["content-md5"], "XUFAKrxLKna5cZ2REBfFkg==");
        assert_eq!(
            (&headers["content-type"], &headers["x-amz-meta-by"]),
            (&"text/plain".parse().unwrap(), &"us".parse().unwrap())
        );
        assert_eq!(headers.len(), 3, "local metadata stays local");
        for etag in ["5d41402abc4b2a76b9719d911017c592-1", "", "no"] {
            assert!(!described(etag).contains_key("content-md5"), "{etag}");
        }
    }
}
