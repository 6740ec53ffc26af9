//! Records of segments in upstreams that are read whole, and ahead of who reads them.
//!
//! Bodies are sent to clients in pieces, several to a record; a request for each piece would wait for an
//! upstream each time. So a record of which much is wanted is fetched whole, once for all who want it, and
//! kept until its last piece was handed out, or for [`KEPT`]. Who knows what he reads next says so, and it is
//! fetched meanwhile. All that is kept is at most [`AHEAD_BYTES_MAX`]: when that is full, only what is wanted
//! is fetched.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mlgw_common::ids::SegmentId;
use mlgw_common::limits::MIB;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::super::read::ReadError;
use super::{Away, Remote};

/// Bytes of records that are kept, or under way.
const AHEAD_BYTES_MAX: u64 = 32 * MIB;
/// How long a record is kept that nobody reads on.
const KEPT: Duration = Duration::from_secs(10);

/// A record that is fetched once.
pub(in crate::hot) type Shared = Arc<OnceCell<Bytes>>;

#[derive(Default)]
pub(super) struct Ahead(Mutex<Records>);

#[derive(Default)]
struct Records {
    records: HashMap<(SegmentId, u64), Kept>,
    bytes: u64,
}

struct Kept {
    record: Shared,
    bytes: u64,
    until: Instant,
}

impl Records {
    fn remove(&mut self, key: (SegmentId, u64)) {
        if let Some(kept) = self.records.remove(&key) {
            self.bytes -= kept.bytes;
        }
    }

    fn forget_old(&mut self, now: Instant) {
        let old: Vec<_> =
            self.records.iter().filter(|(_, kept)| kept.until < now).map(|(key, _)| *key).collect();
        old.into_iter().for_each(|key| self.remove(key));
    }
}

impl Ahead {
    /// The record at `range` of a segment's file, to be fetched by the first who asks for it; nothing when
    /// there is no room.
    fn record(&self, segment: SegmentId, range: &Range<u64>, now: Instant) -> Option<Shared> {
        let (key, bytes) = ((segment, range.start), range.end - range.start);
        let mut records = self.0.lock();
        if let Some(kept) = records.records.get_mut(&key) {
            kept.until = now + KEPT;
            return Some(kept.record.clone());
        }
        if records.bytes + bytes > AHEAD_BYTES_MAX {
            records.forget_old(now);
        }
        if records.bytes + bytes > AHEAD_BYTES_MAX {
            return None;
        }
        let record = Shared::default();
        records.bytes += bytes;
        records.records.insert(key, Kept { record: record.clone(), bytes, until: now + KEPT });
        Some(record)
    }

    /// It is read to its end.
    fn done(&self, segment: SegmentId, offset: u64) {
        self.0.lock().remove((segment, offset));
    }
}

impl Away {
    /// The whole record at `range`, from what is kept, or fetched for all who want it; nothing when there is
    /// no room to keep it. `last` when nothing more of it will be asked for.
    ///
    /// # Errors
    /// Those of [`Away::read`].
    pub(in crate::hot) async fn read_whole(
        &self,
        remote: &Remote,
        range: Range<u64>,
        last: bool,
    ) -> Result<Option<Bytes>, ReadError> {
        let segment = remote.id.segment;
        let Some(record) = self.ahead.record(segment, &range, Instant::now()) else { return Ok(None) };
        let offset = range.start;
        let read = record.get_or_try_init(|| self.read(remote, range)).await.cloned();
        if last || read.is_err() {
            self.ahead.done(segment, offset);
        }
        read.map(Some)
    }

    /// Begins to fetch the record at `range`: it will be read next. Whether it arrives is for who reads it to
    /// see.
    pub(in crate::hot) fn read_ahead(self: &Arc<Self>, remote: Arc<Remote>, range: Range<u64>) {
        let Some(record) = self.ahead.record(remote.id.segment, &range, Instant::now()) else { return };
        // Somebody fetches it, or has.
        if record.initialized() || Arc::strong_count(&record) > 2 {
            return;
        }
        let away = self.clone();
        tokio::spawn(async move {
            if let Err(error) = record.get_or_try_init(|| away.read(&remote, range)).await {
                tracing::debug!(%error, "not read ahead");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_kept_than_there_is_room_for_and_what_nobody_reads_goes() {
        let (ahead, now) = (Ahead::default(), Instant::now());
        let range = |n: u64| n * MIB..(n + 1) * MIB;
        let segment = SegmentId(1);
        for n in 0..32 {
            assert!(ahead.record(segment, &range(n), now).is_some());
        }
        assert!(ahead.record(segment, &range(32), now).is_none());
        assert!(ahead.record(segment, &range(5), now).is_some(), "it is kept already");
        ahead.done(segment, 5 * MIB);
        assert!(ahead.record(segment, &range(32), now).is_some());
        assert!(ahead.record(segment, &range(33), now).is_none());
        let later = now + KEPT + Duration::from_secs(1);
        assert!(ahead.record(segment, &range(33), later).is_some());
        assert_eq!(ahead.0.lock().bytes, MIB, "all others are older");
    }
}
