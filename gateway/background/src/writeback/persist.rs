//! Sends dirty writes to their origin, and removes their records.
//!
//! Each attempt looks up the origin's object, sends the write on the condition that the object is unchanged,
//! and then removes the record. After any failure the attempt is repeated from the lookup, without limit. A
//! power failure between the two leaves a write at the origin together with its record: the next lookup finds
//! its mark.

use super::Inner;
use super::doubt::is_sent_again;
use super::judge::{Sent, Verdict, judge};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::BytesMut;
use futures_util::StreamExt as _;
use futures_util::stream;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use mlgw_cache::writeback::record::{Foreign, Mark, Timelines};
use mlgw_cache::writeback::{Queue, Write};
use mlgw_common::BodyId;
use mlgw_common::limits::CHUNK_BYTES_MAX;
use mlgw_formats::checksum;
use mlgw_formats::decision_entry::{Decided, What};
use mlgw_formats::decision_words::{Kind, Outcome, Place, Reason};
use mlgw_formats::schema::{ChecksumKind, ObjectVersion};
use mlgw_objects::reader::BodyReader;
use mlgw_remote::origin::{Content, ListLine, ListQuery, OriginError, Streamed, hint, md5_of};
use mlgw_segments::fair::Lane;
use mlgw_wire::checksums;
use mlgw_wire::origin_headers::describe;
use mlgw_wire::values::header_value;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Pause after the first failure; each further pause is twice as long.
const WAIT: Duration = Duration::from_millis(200);
/// Longest pause: all concurrent retries together request an unavailable origin some six times a second.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Result of an attempt.
enum Tried {
    Done,
    /// The origin has another client's object, with this ETag.
    Foreign(String),
}

/// Error of an attempt.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error(transparent)]
    Origin(#[from] OriginError),
    #[error("it cannot be read here: {0}")]
    Here(String),
}

/// Starts sending the dirty writes of a bucket.
pub(super) fn begin(inner: &Arc<Inner>, queue: &Arc<Queue>) {
    let (inner, queue) = (inner.clone(), queue.clone());
    let stop = inner.stop.clone();
    inner.tasks.clone().spawn(async move { stop.run_until_cancelled(drive(inner, queue)).await });
}

/// Starts writes as the queue permits, independent ones in parallel, until the bucket's binding is removed or
/// changed.
async fn drive(inner: Arc<Inner>, queue: Arc<Queue>) {
    loop {
        let changed = queue.changed();
        let next = queue.start();
        let Some(write) = next else {
            if !inner.writeback.is_current(&queue) {
                return;
            }
            changed.await;
            continue;
        };
        // A write is started only when a slot is free.
        let Ok(slot) = queue.way().slots.clone().acquire_owned().await else { return };
        let (inner, queue, stop) = (inner.clone(), queue.clone(), inner.stop.clone());
        inner.tasks.clone().spawn(async move {
            let sent = async {
                let tried = inner.attempt(&queue, &write, 0).await;
                drop(slot);
                inner.go_on(&queue, &write, tried).await;
            };
            stop.run_until_cancelled(sent).await;
        });
    }
}

impl Inner {
    /// Continues after the first attempt until the write is done or needs an operator's decision.
    async fn go_on(&self, queue: &Queue, write: &Write, mut tried: Result<Tried, Trouble>) {
        let mut failures = 0;
        loop {
            match tried {
                Ok(Tried::Done) => return self.settle(queue, write).await,
                Ok(Tried::Foreign(etag)) => return self.set_aside(queue, write, &etag).await,
                Err(trouble) => {
                    queue.set_doubt(write, matches!(trouble, Trouble::Origin(OriginError::Unconfirmed(_))));
                    self.say(queue, write, Outcome::Failed, &trouble);
                    let (bucket, key, upstream) =
                        (&queue.bucket().name, &write.facts.key, queue.bound().upstream());
                    if failures == 0 {
                        tracing::warn!(bucket, %key, upstream, %trouble, "a dirty object is not at its origin yet");
                    }
                    queue.set_trouble(Some(format!("{key}: {trouble}")));
                    tokio::time::sleep(wait(failures)).await;
                    failures += 1;
                }
            }
            let Ok(_slot) = queue.way().slots.acquire().await else { return };
            tried = self.attempt(queue, write, failures).await;
        }
    }

    /// Looks up the origin's object, and sends the write if permitted. `failures` is the number of failed
    /// attempts before.
    async fn attempt(&self, queue: &Queue, write: &Write, failures: u32) -> Result<Tried, Trouble> {
        let (key, body) = (&write.facts.key, record_id(write));
        let mark = Mark::new(queue.bucket(), &self.timelines, body, &write.etag);
        let found = match queue.bound().look(key).await {
            Ok(found) => Some(found),
            Err(OriginError::NoSuchKey) => None,
            Err(error) => return Err(error.into()),
        };
        let sent = sent(write, &mark, &self.timelines);
        let judged = |exact_ms| judge(&sent, found.as_ref(), exact_ms);
        let mut verdict = judged(None);
        if verdict == Verdict::Unclear {
            verdict = judged(Some(exact_ms(queue, write).await?));
        }
        let (name, value) = match verdict {
            Verdict::Done => {
                self.give_up_upload(queue, write).await;
                return Ok(Tried::Done);
            }
            Verdict::Foreign | Verdict::Unclear => {
                return Ok(Tried::Foreign(found.map(|found| found.etag).unwrap_or_default()));
            }
            Verdict::IfAbsent => (header::IF_NONE_MATCH, HeaderValue::from_static("*")),
            Verdict::Damaged { why, .. } if !is_sent_again(failures) => {
                let why = format!("{why}; {}", hint(queue.bound().upstream()));
                return Err(OriginError::Unconfirmed(why).into());
            }
            Verdict::IfMatch(etag) | Verdict::Damaged { etag, .. } => {
                (header::IF_MATCH, header_value(&format!("\"{etag}\"")))
            }
        };
        let mut headers = HeaderMap::from_iter([(name, value)]);
        if write.facts.deleted {
            queue.way().budget.spend(0).await;
            queue.bound().delete(key, &headers).await?;
        } else {
            let version = self.catalogue.object(queue.bucket().bucket_id(), &write.name);
            let version = version.map_err(|error| Trouble::Here(error.to_string()))?;
            let version = version.ok_or_else(|| Trouble::Here("its record is gone".to_owned()))?;
            if version.part_count > 0 {
                self.send_parts(queue, write, &version, &mark, headers).await?;
                return self.confirm(queue, write, &mark).await;
            }
            describe(&version, &mut headers);
            prove(&version, &mut headers);
            mark.put(&mut headers);
            let content = self.content(queue, write, &version, 0..version.size).await?;
            queue.way().budget.spend(write.size).await;
            queue.bound().put(key, &headers, content).await?;
        }
        Ok(Tried::Done)
    }

    /// Looks up an object that was sent in parts, because the ETag of the completion's answer proves nothing.
    async fn confirm(&self, queue: &Queue, write: &Write, mark: &Mark) -> Result<Tried, Trouble> {
        let found = queue.bound().look(&write.facts.key).await?;
        let why = match judge(&sent(write, mark, &self.timelines), Some(&found), None) {
            Verdict::Done => return Ok(Tried::Done),
            Verdict::Damaged { why, .. } => why,
            _ => "it shows another object after it".to_owned(),
        };
        Err(OriginError::Unconfirmed(why).into())
    }

    /// Returns the bytes of a `range` of a write.
    pub(super) async fn content(
        &self,
        queue: &Queue,
        write: &Write,
        version: &ObjectVersion,
        range: Range<u64>,
    ) -> Result<Content, Trouble> {
        let (bucket, size) = (queue.bucket().bucket_id(), range.end - range.start);
        let mut reader = BodyReader::new(&self.catalogue, &self.tiers, bucket, &write.name, version, range);
        reader.set_turn(Lane::Background);
        if size > CHUNK_BYTES_MAX {
            let pieces = stream::try_unfold(reader, |mut reader| async {
                let piece = reader.next().await.map_err(|error| OriginError::Nonsense(error.to_string()))?;
                Ok(piece.map(|piece| (piece, reader)))
            });
            return Ok(Content::Stream(Streamed { bytes: size, pieces: pieces.boxed(), trailer: None }));
        }
        let mut whole = BytesMut::new();
        while let Some(piece) = reader.next().await.map_err(|error| Trouble::Here(error.to_string()))? {
            if piece.len() as u64 == size {
                return Ok(Content::Whole(piece));
            }
            whole.extend_from_slice(&piece);
        }
        Ok(Content::Whole(whole.freeze()))
    }

    /// Removes the records of a write that its origin has, and of earlier writes of the key that were set
    /// aside.
    async fn settle(&self, queue: &Queue, write: &Write) {
        let obsolete = queue.foreign_before(write);
        for write in obsolete.iter().map(|write| &**write).chain([write]) {
            let mut failures = 0;
            while let Err(error) = self.writeback.remove(queue, write).await {
                tracing::warn!(%error, "what is at its origin is not forgotten here yet");
                tokio::time::sleep(wait(failures)).await;
                failures += 1;
            }
        }
        queue.set_doubt(write, false);
        queue.set_trouble(None);
        self.say(queue, write, Outcome::Done, &"");
    }

    /// Records the result of a write in the decision log.
    fn say(&self, queue: &Queue, write: &Write, outcome: Outcome, error: &dyn std::fmt::Display) {
        let decided = Decided {
            kind: Kind::Persist,
            what: What::Object(queue.bucket().bucket_id(), write.facts.key.as_str()),
            from: Place::Hot,
            to: Place::Origin,
            bytes: write.size,
            why: Reason::WriteBack.into(),
            outcome,
        };
        self.decisions.record_because(&decided, error);
    }

    /// Sets a write aside that would overwrite another client's object. The conflict is recorded durably and
    /// waits for an operator's decision.
    async fn set_aside(&self, queue: &Queue, write: &Write, etag: &str) {
        tracing::error!(
            bucket = queue.bucket().name, key = %write.facts.key, upstream = queue.bound().upstream(),
            "somebody else wrote a dirty object at its origin: what is there stays; `mlgw bucket flush` tells what to do"
        );
        self.say(queue, write, Outcome::Foreign, &"somebody else wrote it at its origin");
        self.give_up_upload(queue, write).await;
        let noted = self.writeback.note(queue, write, |facts| {
            facts.foreign = Some(Foreign { etag: Some(etag.to_owned()), number: write.seq });
            (facts.upload, facts.begins) = (None, None);
        });
        if let Err(error) = noted.await {
            tracing::warn!(%error, "that is not noted, and will be found again");
        }
        queue.set_aside(write, etag);
    }
}

/// Returns the pause after this number of failures.
fn wait(failures: u32) -> Duration {
    WAIT.saturating_mul(1 << failures.min(16)).min(WAIT_MAX)
}

/// Returns the properties of a write that are compared with the origin's object.
fn sent<'a>(write: &'a Write, mark: &'a Mark, timelines: &'a Timelines) -> Sent<'a> {
    Sent {
        mark,
        timelines,
        deletes: write.facts.deleted,
        size: write.size,
        etag: &write.etag,
        began_ms: write.began_ms,
        knew: write.facts.knew.as_deref(),
    }
}

/// Returns the id in the name of the write's record.
fn record_id(write: &Write) -> BodyId {
    BodyId(u64::from_str_radix(write.name.as_str(), 16).unwrap_or(0))
}

/// Returns the modification time of the origin's object at the precision of its listings.
async fn exact_ms(queue: &Queue, write: &Write) -> Result<i64, Trouble> {
    let key = write.facts.key.as_str();
    let query = ListQuery { prefix: key.to_owned(), max_keys: 1, ..ListQuery::default() };
    let page = queue.bound().list(query).await?;
    page.lines
        .iter()
        .find_map(|line| match line {
            ListLine::Object(name, object) if name == key => Some(object.modified_ms),
            _ => None,
        })
        .ok_or(Trouble::Origin(OriginError::Changed))
}

/// Adds the digests of an object's bytes to the headers of its PUT.
pub(crate) fn prove(version: &ObjectVersion, headers: &mut HeaderMap) {
    let mut line = |name: &str, value: &str| {
        if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
            headers.append(name, header_value(value));
        }
    };
    for checksum in version.checksums.iter().filter(|checksum| checksum.kind() == ChecksumKind::FullObject) {
        line(checksum::algorithm(checksum.algorithm()).header(), &checksums::text(checksum, 0));
    }
    // The ETag is an MD5: with it, the origin accepts no bytes other than those acknowledged here.
    if let Some(md5) = md5_of(version) {
        line("content-md5", &BASE64.encode(md5));
    }
}

#[cfg(test)]
mod tests {
    use super::prove;
    use http::HeaderMap;
    use mlgw_formats::schema::{ObjectVersion, Pair};
    use mlgw_wire::origin_headers::describe;

    fn described(etag: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let version = ObjectVersion {
            etag: etag.to_owned(),
            headers: vec![Pair::new("content-type", "text/plain"), Pair::new(":ours", "x")],
            metadata: vec![Pair::new("by", "us")],
            ..ObjectVersion::default()
        };
        describe(&version, &mut headers);
        prove(&version, &mut headers);
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
        assert_eq!(headers.len(), 3, "what is our own stays here");
        for etag in ["5d41402abc4b2a76b9719d911017c592-1", "", "no"] {
            assert!(!described(etag).contains_key("content-md5"), "{etag}");
        }
    }
}
