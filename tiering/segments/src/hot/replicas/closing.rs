//! Closes the replicas of open segments: ends the right to append to them, and states what they have.
//!
//! The answer does not change any more: the right has ended, the write in progress is awaited, and nothing
//! opens the replica again. A replica without a file gets an empty one, the *closed marker*, which is durable
//! before the answer: it prevents that a late request of the writer creates the replica. The marker is
//! removed with the files of redundant replicas, or replaced by a copy, after the segment is sealed.
//!
//! A file that this process has written without an error is read from the length that the record marks as
//! whole. Any other one is synced and read whole from the device, past damage. Bytes after the last intact
//! record are stated as uncertain, except zeros: they may be a damaged record that was acknowledged. At a
//! power loss the next request repeats this.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use bytes::Bytes;
use mlgw_common::SegmentTier;
use mlgw_common::ids::SegmentId;
use mlgw_formats::segment_calls::{CloseReplica, ClosedReplica};
use mlgw_formats::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};

use super::follower::{ReplicaRefused, blocking};
use super::home::ReplicaHome;
use crate::hot::map::SegmentLocation;
use crate::hot::scan::SegmentScan;
use crate::hot::{HotTier, HotTierInner};

impl HotTier {
    /// Ends all appends to the local replica of a segment, and returns its state, an encoded
    /// [`ClosedReplica`]. `request` is an encoded [`CloseReplica`]. The answer to a repeated request is the
    /// same.
    ///
    /// # Errors
    /// See [`ReplicaRefused`]. The right to append has ended nevertheless, unless the request is malformed or
    /// the tier stops.
    pub async fn close_replica(&self, request: &[u8]) -> Result<Bytes, ReplicaRefused> {
        let request = CloseReplica::decode_request(request)?;
        let (inner, segment) = (&self.inner, request.segment_id());
        if inner.compaction.is_stopped() {
            return Err(ReplicaRefused::Stopping);
        }
        // Before the writer of this node is looked up, so that the replica is not opened in between.
        let replica = inner.replicas.followed.close(segment);
        // Files are read once, and not once for each coordinator that asks meanwhile.
        let Ok(mut answer) = replica.closing.clone().try_lock_owned() else {
            return Err(ReplicaRefused::InClosing(segment));
        };
        if let Some(closed) = *answer {
            return Ok(closed.encode_answer());
        }
        if let Some(length) = inner.shared.segments.close_local(segment).await {
            let closed = ClosedReplica { has_file: true, length, damaged_bytes: 0, uncertain_bytes: 0 };
            *answer = Some(closed);
            return Ok(closed.encode_answer());
        }
        let known = replica.final_length().await.filter(|known| *known > 0);
        let of = inner.clone();
        let closed = blocking(move || {
            let closed = of.closed_replica(&request, known)?;
            // Also if the caller has given up.
            *answer = Some(closed);
            Ok(closed)
        });
        let closed = closed.await?;
        if closed.damaged_bytes > 0 {
            self.report_damage([segment]);
        }
        let ClosedReplica { has_file, length, damaged_bytes, uncertain_bytes } = closed;
        tracing::info!(%segment, has_file, length, damaged_bytes, uncertain_bytes, "closed a replica");
        Ok(closed.encode_answer())
    }
}

impl HotTierInner {
    /// Returns the state of a replica that nothing is appended to. `known` is its synced length if this
    /// process has written all of the file.
    fn closed_replica(&self, request: &CloseReplica, known: Option<u64>) -> io::Result<ClosedReplica> {
        let (segment, tier) = (request.segment_id(), SegmentTier::Hot);
        let place = SegmentLocation { seed: request.seed(), created: None, tier };
        self.volumes.set_foreign_aside(segment, &place)?;
        let cold = (0..self.volumes.cold.len()).map(ReplicaHome::Cold);
        for home in std::iter::once(ReplicaHome::Hot).chain(cold) {
            let file = match home.disk(self).open_uncached(segment) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            // An earlier process may have left the name in a directory that it did not sync.
            home.disk(self).sync_named(&file, segment)?;
            if file.metadata()?.len() > 0 {
                let from = known.map_or(Ok(0), |known| self.marked_bytes(segment, known))?;
                return self.scan_closed(home, file, request, from);
            }
        }
        self.volumes.hot.ensure_closed_marker(segment)?;
        Ok(ClosedReplica { has_file: false, length: 0, damaged_bytes: 0, uncertain_bytes: 0 })
    }

    /// Length that the record marks as whole records, if `known` bytes that equal the writer's reach as far.
    fn marked_bytes(&self, segment: SegmentId, known: u64) -> io::Result<u64> {
        let record = self.shared.segments.map.record(segment).map_err(io::Error::other)?;
        let marked = record.map_or(0, |record| record.marked);
        Ok(if marked <= known { marked } else { 0 })
    }

    /// Reads a file from the offset `from`, at which a record begins, or from its beginning.
    fn scan_closed(
        &self,
        home: ReplicaHome,
        file: File,
        request: &CloseReplica,
        from: u64,
    ) -> io::Result<ClosedReplica> {
        let compaction = self.compaction.clone();
        let before = move |_: &File, _: u64, _: u64| {
            if compaction.is_stopped() { Err(io::Error::other("the node stops")) } else { Ok(()) }
        };
        let has_header = has_header_of(&file, request)?;
        let scan = SegmentScan::new(file, request.segment_id(), request.seed(), from)?;
        let scan = scan.with_disk_queue(home.queue(self).clone()).with_throttle(Box::new(before));
        let (summary, tail_bytes) = scan.survey_with_tail()?;
        let has_file = summary.length > 0;
        // Records verify without the header: the file has them, and the header counts as damaged.
        let header_bytes = if has_header || !has_file { 0 } else { SEGMENT_HEADER_BYTES };
        Ok(ClosedReplica {
            has_file,
            length: summary.length,
            damaged_bytes: summary.damaged_bytes + header_bytes,
            uncertain_bytes: if has_file { tail_bytes } else { 0 },
        })
    }
}

/// True if a file begins with the header of the segment.
fn has_header_of(file: &File, request: &CloseReplica) -> io::Result<bool> {
    let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
    match file.read_exact_at(&mut bytes, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        read => read?,
    }
    let header = SegmentHeader::decode(&bytes);
    Ok(header.is_ok_and(|of| (of.id, of.seed) == (request.segment_id(), request.seed())))
}
