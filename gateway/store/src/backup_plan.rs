//! From where a backup takes each segment to which its copied catalogue refers. Writes nothing.
//!
//! A local file is copied if it has every referenced byte, as far as its record promises. While the cluster
//! serves, other nodes have what a local replica lacks: the end of an open segment that another node writes,
//! bytes in which damage was found, and segments without a replica here.

use super::StoreVerbError;
use crate::incomplete::MissingSegments;
use mlgw_common::{NodeId, SegmentId};
use mlgw_formats::schema::{SegmentRecord, SegmentState};
use mlgw_metadata::offline::{Offline, ignore_progress};
use mlgw_segments::hot::is_whole;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

/// Directory of the catalogue in a copy.
pub(super) const CATALOGUE: &str = "catalogue/";

/// Treatment of data in upstreams by a backup, which cannot copy it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamData {
    /// The data stays in its upstream, and the backup refers to it.
    LeftInPlace,
    /// The backup fails if there is any.
    Refused,
}

/// True if the backup can read the replicas of other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OtherNodes {
    /// The server has no peers, or does not run.
    Unread,
    /// The cluster serves.
    Read,
}

/// Place from which a segment is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SegmentSource {
    /// The local file.
    Local,
    /// Replicas of all nodes, up to this length.
    AllNodes(u64),
    /// It stays in its upstream.
    Upstream,
}

/// The segments of a backup.
pub(super) struct BackupPlan {
    /// Files of this node.
    pub(super) local: BTreeMap<SegmentId, File>,
    /// Referenced segments that no local file has completely, with the length up to which they are needed.
    pub(super) elsewhere: BTreeMap<SegmentId, u64>,
}

impl BackupPlan {
    /// Returns the plan for the copied catalogue of `node`, which has these files.
    ///
    /// # Errors
    /// When a file or the catalogue cannot be read, or data is in upstreams and not left there.
    pub(super) fn of(
        catalogue: &Offline,
        node: NodeId,
        mut files: BTreeMap<SegmentId, File>,
        others: OtherNodes,
        upstream_data: UpstreamData,
    ) -> Result<Self, StoreVerbError> {
        let known = &catalogue.facts.segments;
        let (mut elsewhere, mut in_upstreams) = (BTreeMap::new(), 0);
        let ends = catalogue.referenced_ends().map_err(|error| StoreVerbError::Catalogue(error.0))?;
        for (id, end) in ends {
            let segment = SegmentId(id);
            let source = match known.get(&id) {
                Some(record) => source_of(record, node, files.get(&segment), end, others)?,
                None => SegmentSource::AllNodes(end),
            };
            match source {
                SegmentSource::Local => {}
                SegmentSource::AllNodes(length) => drop(elsewhere.insert(segment, length)),
                SegmentSource::Upstream => in_upstreams += 1,
            }
        }
        if in_upstreams > 0 && upstream_data == UpstreamData::Refused {
            return Err(StoreVerbError::InUpstreams(in_upstreams));
        }
        files.retain(|id, _| known.contains_key(&id.0) && !elsewhere.contains_key(id));
        Ok(Self { local: files, elsewhere })
    }

    /// Returns the local files, if they are all that the backup needs.
    ///
    /// # Errors
    /// [`StoreVerbError::Missing`] with the segments that no local file has completely.
    pub(super) fn only_local(self, catalogue: &Offline) -> Result<BTreeMap<SegmentId, File>, StoreVerbError> {
        if self.elsewhere.is_empty() {
            return Ok(self.local);
        }
        let missing = MissingSegments::of(catalogue, self.elsewhere.into_keys().collect());
        Err(StoreVerbError::Missing(missing.map_err(|error| StoreVerbError::Catalogue(error.0))?))
    }
}

fn source_of(
    record: &SegmentRecord,
    node: NodeId,
    file: Option<&File>,
    end: u64,
    others: OtherNodes,
) -> Result<SegmentSource, StoreVerbError> {
    if record.is_at_upstream() && (file.is_none() || !record.is_owned_by(node)) {
        return Ok(SegmentSource::Upstream);
    }
    let (from_all, is_intact) = match record.state() {
        SegmentState::Open => {
            let io = StoreVerbError::io(format!("segment {}", record.id));
            let is_complete = |file| Ok(record.is_owned_by(node) || is_whole(file, record, end)?);
            (end, file.map_or(Ok(false), is_complete).map_err(io)?)
        }
        SegmentState::Sealed => {
            let is_suspect = record.replica_of(node).is_none_or(|replica| replica.is_suspect);
            (record.length, file.is_some() && (others == OtherNodes::Unread || !is_suspect))
        }
    };
    Ok(if is_intact { SegmentSource::Local } else { SegmentSource::AllNodes(from_all) })
}

/// Opens the catalogue that was copied to `out`, as a start would.
///
/// # Errors
/// When it is damaged or cannot be read.
pub(super) fn open_copied(out: &Path, node: NodeId) -> Result<Offline, StoreVerbError> {
    let mut findings = Vec::new();
    // In the copy itself, because a server may have no other writable directory.
    let scratch = out.join("proving");
    let catalogue =
        Offline::open(&out.join(CATALOGUE), &scratch, node, None, &mut findings, &ignore_progress)
            .map_err(|error| StoreVerbError::Catalogue(error.0))?;
    if let Some(damage) = findings.iter().find(|finding| finding.is_damage()) {
        return Err(StoreVerbError::Catalogue(format!("{}: {}", damage.place, damage.what)));
    }
    catalogue.ok_or_else(|| StoreVerbError::Catalogue("it cannot be read".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::{OtherNodes, SegmentSource, source_of};
    use mlgw_common::{NodeId, SegmentTier};
    use mlgw_formats::schema::{Replica, SegmentRecord, SegmentState};
    use std::fs::File;

    /// A record with replicas on these nodes; that of node 2 is suspect if `is_suspect` is true.
    fn record(state: SegmentState, nodes: &[u64], is_suspect: bool) -> SegmentRecord {
        let replica =
            |node: &u64| Replica { node: *node, is_suspect: is_suspect && *node == 2, ..Replica::default() };
        let replicas = nodes.iter().map(replica).collect();
        SegmentRecord { id: 7, state: state as i32, length: 100, replicas, ..SegmentRecord::default() }
    }

    /// The source of a segment for a backup of node 2, whose file has 80 referenced bytes.
    fn source(record: &SegmentRecord, file: Option<&File>, others: OtherNodes) -> SegmentSource {
        source_of(record, NodeId(2), file, 80, others).unwrap()
    }

    #[test]
    fn what_the_local_replica_may_not_have_is_read_from_all_nodes() {
        let file = tempfile::tempfile().unwrap();
        let read = |record: &SegmentRecord, file| source(record, file, OtherNodes::Read);
        let sealed = |nodes: &[u64], is_suspect| record(SegmentState::Sealed, nodes, is_suspect);
        assert_eq!(read(&sealed(&[1, 2], false), Some(&file)), SegmentSource::Local);
        let whole = SegmentSource::AllNodes(100);
        assert_eq!(read(&sealed(&[1, 2], false), None), whole, "its file is lost");
        assert_eq!(read(&sealed(&[1, 2], true), Some(&file)), whole, "damage was found in it");
        assert_eq!(read(&sealed(&[1, 3], false), Some(&file)), whole, "no record lists the file");
        let open = |nodes: &[u64]| record(SegmentState::Open, nodes, false);
        assert_eq!(read(&open(&[2, 1]), Some(&file)), SegmentSource::Local, "this node writes it");
        let referenced = SegmentSource::AllNodes(80);
        assert_eq!(read(&open(&[1, 2]), Some(&file)), referenced, "its end has not arrived here");
        assert_eq!(read(&open(&[1, 3]), None), referenced);
    }

    #[test]
    fn a_server_that_cannot_read_other_nodes_copies_what_it_has() {
        let file = tempfile::tempfile().unwrap();
        let own = |record: &SegmentRecord, file| source(record, file, OtherNodes::Unread);
        let damaged = record(SegmentState::Sealed, &[2], true);
        assert_eq!(own(&damaged, Some(&file)), SegmentSource::Local, "its bad blocks are copied as they are");
        assert_eq!(own(&damaged, None), SegmentSource::AllNodes(100));
        let open = record(SegmentState::Open, &[1, 2], false);
        assert_eq!(own(&open, Some(&file)), SegmentSource::AllNodes(80), "no bytes are left out silently");
    }

    #[test]
    fn a_segment_at_an_upstream_stays_there() {
        let file = tempfile::tempfile().unwrap();
        let mut spilled = record(SegmentState::Sealed, &[1], false);
        spilled.replicas[0].tier = SegmentTier::Upstream.number();
        for file in [None, Some(&file)] {
            assert_eq!(source(&spilled, file, OtherNodes::Read), SegmentSource::Upstream);
        }
        spilled.replicas[0].node = 2;
        assert_eq!(source(&spilled, None, OtherNodes::Unread), SegmentSource::Upstream);
        let moved = source(&spilled, Some(&file), OtherNodes::Unread);
        assert_eq!(moved, SegmentSource::Local, "its file is not removed yet");
    }
}
