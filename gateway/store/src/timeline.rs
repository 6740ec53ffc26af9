//! New timelines of a data directory, and adoption of segment directories into one.
//!
//! A rebuild, continuing without the lost end of the log, and the recovery of the last node of a cluster
//! begin a new incarnation: ids may repeat from that point on. `node.json` is replaced first, then the marks.
//! A crash in between leaves marks of the earlier incarnation, which a start refuses by name. Adopting such a
//! directory continues.

use super::{StoreLocation, StoreVerbError, expected, scratch};
use crate::data_dir::DataDir;
use crate::node_file::NodeDescription;
use mlgw_common::{Identity, Lineage};
use mlgw_metadata::identity::ExpectedServer;
use mlgw_metadata::offline::{self, LogTail, Offline, ProgressCallback};
use mlgw_segments::hot::{AdoptedDirectory, adopt as adopt_dir, replace_mark, unnamed_chunks_after};
use std::collections::HashSet;
use std::path::Path;

/// Data that is lost by continuing without the end of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostTail {
    /// Log entries that were synced and are missing.
    pub entries: u64,
    /// Keys with chunks that were written with the missing entries or shortly before, as bucket id and key.
    /// Deletes and changes of metadata leave no trace.
    pub keys: Vec<(u64, String)>,
}

/// Verifies a directory of segments and marks it as this server's.
///
/// # Errors
/// When a server uses the data directory, when `dir` is none of its directories of segments, or when a file
/// cannot be read or written.
pub fn adopt(
    place: &StoreLocation,
    dir: &Path,
    watch: ProgressCallback<'_>,
) -> Result<AdoptedDirectory, StoreVerbError> {
    let _held = DataDir::hold(&place.dir)?;
    let lineage = require_description(place)?.lineage().unwrap_or_default();
    let catalogue = open_offline(place, watch)?;
    adopt_dir(dir, &place.segments, &catalogue, &lineage, watch).map_err(StoreVerbError::io(dir))
}

/// Begins a new timeline without the entries that the end of the log has lost, and returns the missing ones.
///
/// # Errors
/// When nothing is missing, or a file cannot be read or written. No file was changed then.
pub fn accept_lost_tail(
    place: &StoreLocation,
    watch: ProgressCallback<'_>,
) -> Result<LostTail, StoreVerbError> {
    let _held = DataDir::hold(&place.dir)?;
    let node = require_description(place)?;
    super::refuse_member(&node)?;
    let expected = expected(place, Some(&node))?.unwrap_or_else(|| ExpectedServer {
        lineage: Lineage { marking: true, ..Lineage::default() },
        floor: 0,
    });
    let dir = place.catalogue();
    match offline::check_tail(&dir, &expected, &scratch()?)? {
        LogTail::Lost => {}
        LogTail::Complete => {
            let what = "the log is complete: no lost end to accept";
            return Err(StoreVerbError::Catalogue(what.to_owned()));
        }
        LogTail::Other(why) => return Err(StoreVerbError::Catalogue(why)),
    }
    offline::restart_log(&dir, &scratch()?)?;
    let catalogue = open_offline(place, watch)?;
    let end = offline::log_entries(&dir, &scratch()?).map_err(|error| StoreVerbError::Catalogue(error.0))?;
    let mut named = HashSet::new();
    catalogue
        .each_extent(&mut |of| {
            named.insert((of.extent.segment, of.extent.offset));
            Ok(())
        })
        .map_err(|error| StoreVerbError::Catalogue(error.0))?;
    let hot = StoreVerbError::io(place.segments.hot());
    let keys = unnamed_chunks_after(&place.segments, node.incarnation, end, &named).map_err(hot)?;
    begin_timeline(place, node)?;
    Ok(LostTail { entries: expected.floor.saturating_sub(end), keys })
}

/// Begins the next timeline of a directory: in its description, and in the marks of its directories of
/// segments.
pub(super) fn begin_timeline(place: &StoreLocation, node: NodeDescription) -> Result<(), StoreVerbError> {
    let Some(before) = node.lineage() else { return Ok(()) };
    replace_identity(place, &before.own, &node.next_incarnation()?)
}

/// Replaces the description of a directory by one of the next timeline, and then the marks that name the
/// identity `before`.
pub(super) fn replace_identity(
    place: &StoreLocation,
    before: &Identity,
    next: &NodeDescription,
) -> Result<(), StoreVerbError> {
    let own = next.lineage().unwrap_or_default().own;
    assert_ne!(own, *before, "a new timeline has an identity of its own");
    next.write(&place.dir)?;
    for dir in place.segments.all().chain([place.all_checkpoints.as_path()]) {
        replace_mark(dir, before, &own).map_err(StoreVerbError::io(dir))?;
    }
    Ok(())
}

fn require_description(place: &StoreLocation) -> Result<NodeDescription, StoreVerbError> {
    DataDir::description(&place.dir)?.ok_or_else(|| StoreVerbError::NoDataDir(place.dir.clone()))
}

/// Opens the catalogue without requiring that it is complete.
fn open_offline(place: &StoreLocation, watch: ProgressCallback<'_>) -> Result<Offline, StoreVerbError> {
    let mut findings = Vec::new();
    let node = DataDir::node_id(&place.dir)?;
    let catalogue = Offline::open(&place.catalogue(), &scratch()?, node, None, &mut findings, watch)
        .map_err(|error| StoreVerbError::Catalogue(error.0))?;
    catalogue.ok_or_else(|| {
        let why = findings.iter().find(|finding| finding.is_damage());
        let why = why.map_or_else(String::new, |finding| format!(": {}: {}", finding.place, finding.what));
        StoreVerbError::Catalogue(format!("cannot be read{why}; see `mlgw store check`"))
    })
}
