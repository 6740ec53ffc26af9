//! Read-ahead of segment records from upstreams: records are fetched whole, before they are read.
//!
//! Bodies are sent to clients in pieces, several per record; a request per piece would pay the latency of the
//! upstream each time. So a record that is read in pieces is fetched whole, once for all its readers, and
//! cached until its last piece was read, or for [`RECORD_TTL`]. A reader that knows its next reads announces
//! them, and their records are fetched in the meantime. The cache holds at most [`READ_AHEAD_BYTES_MAX`]:
//! while it is full, only the requested ranges are fetched.

use mlgw_common::time::Instant;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mlgw_common::ids::SegmentId;
use mlgw_common::limits::{CHUNK_BYTES_MAX, MIB};
use mlgw_formats::segment_record::HEAD_BYTES_MAX;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::super::read::error::SegmentReadError;
use super::{RemoteSegment, RemoteTier};

/// Maximum total bytes of records that are cached or being fetched.
const READ_AHEAD_BYTES_MAX: u64 = 32 * MIB;
/// Time after its last use for which a record is cached.
const RECORD_TTL: Duration = Duration::from_secs(10);

const _: () = assert!(CHUNK_BYTES_MAX + HEAD_BYTES_MAX as u64 <= READ_AHEAD_BYTES_MAX, "each record fits");

/// A record that is fetched once and shared by its readers.
pub(in crate::hot) type SharedRecordCell = Arc<OnceCell<Bytes>>;

#[derive(Default)]
pub(super) struct RecordReadAhead(Mutex<ReadAheadRecords>);

#[derive(Default)]
struct ReadAheadRecords {
    records: HashMap<(SegmentId, u64), ReadAheadEntry>,
    bytes: u64,
}

struct ReadAheadEntry {
    record: SharedRecordCell,
    bytes: u64,
    until: Instant,
}

impl ReadAheadRecords {
    fn remove(&mut self, segment: SegmentId, offset: u64) {
        if let Some(kept) = self.records.remove(&(segment, offset)) {
            assert!(self.bytes >= kept.bytes, "the bytes of cached records are counted");
            self.bytes -= kept.bytes;
        }
    }

    fn evict_expired(&mut self, now: Instant) {
        let old: Vec<_> =
            self.records.iter().filter(|(_, kept)| kept.until < now).map(|(key, _)| *key).collect();
        old.into_iter().for_each(|(segment, offset)| self.remove(segment, offset));
    }
}

impl RecordReadAhead {
    /// Returns the entry of the record at `range` of a segment's file, which the first reader fetches; `None`
    /// when there is no space.
    fn record(&self, segment: SegmentId, range: &Range<u64>, now: Instant) -> Option<SharedRecordCell> {
        let (key, bytes) = ((segment, range.start), range.end - range.start);
        let mut records = self.0.lock();
        if let Some(kept) = records.records.get_mut(&key) {
            kept.until = now + RECORD_TTL;
            return Some(kept.record.clone());
        }
        if records.bytes + bytes > READ_AHEAD_BYTES_MAX {
            records.evict_expired(now);
        }
        if records.bytes + bytes > READ_AHEAD_BYTES_MAX {
            return None;
        }
        let record = SharedRecordCell::default();
        records.bytes += bytes;
        records
            .records
            .insert(key, ReadAheadEntry { record: record.clone(), bytes, until: now + RECORD_TTL });
        Some(record)
    }

    /// Drops a record.
    fn remove(&self, segment: SegmentId, offset: u64) {
        self.0.lock().remove(segment, offset);
    }
}

impl RemoteTier {
    /// Returns the whole record at `range`, from the cache or fetched once for all its readers; `None` when
    /// there is no space to cache it.
    ///
    /// # Errors
    /// Those of [`RemoteTier`].
    pub(in crate::hot) async fn read_whole(
        &self,
        remote: &RemoteSegment,
        range: Range<u64>,
    ) -> Result<Option<Bytes>, SegmentReadError> {
        let segment = remote.id.segment;
        let Some(record) = self.read_ahead.record(segment, &range, Instant::now()) else { return Ok(None) };
        let offset = range.start;
        let read = record.get_or_try_init(|| self.read(remote, range)).await.cloned();
        if read.is_err() {
            self.read_ahead.remove(segment, offset);
        }
        read.map(Some)
    }

    /// Drops the record at `offset`, which was read to its end.
    pub(in crate::hot) fn drop_read_ahead(&self, remote: &RemoteSegment, offset: u64) {
        self.read_ahead.remove(remote.id.segment, offset);
    }

    /// Starts to fetch the record at `range`, which will be read next. Errors are left to the reader.
    pub(in crate::hot) fn read_ahead(self: &Arc<Self>, remote: Arc<RemoteSegment>, range: Range<u64>) {
        let Some(record) = self.read_ahead.record(remote.id.segment, &range, Instant::now()) else { return };
        // Another task is fetching it, or has done so.
        if record.initialized() || Arc::strong_count(&record) > 2 {
            return;
        }
        let remote_tier = self.clone();
        tokio::spawn(async move {
            if let Err(error) = record.get_or_try_init(|| remote_tier.read(&remote, range)).await {
                tracing::debug!(%error, "read-ahead failed");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_bounded_and_unread_records_expire() {
        let (ahead, now) = (RecordReadAhead::default(), Instant::now());
        let range = |n: u64| n * MIB..(n + 1) * MIB;
        let segment = SegmentId(1);
        for n in 0..32 {
            assert!(ahead.record(segment, &range(n), now).is_some());
        }
        assert!(ahead.record(segment, &range(32), now).is_none());
        assert!(ahead.record(segment, &range(5), now).is_some(), "it is already cached");
        ahead.remove(segment, 5 * MIB);
        assert!(ahead.record(segment, &range(32), now).is_some());
        assert!(ahead.record(segment, &range(33), now).is_none());
        let later = now + RECORD_TTL + Duration::from_secs(1);
        assert!(ahead.record(segment, &range(33), later).is_some());
        assert_eq!(ahead.0.lock().bytes, MIB, "all others are older");
    }
}
