//! The subcommand `mlgw store repair`: repairs findings of a check that can be repaired without loss.
//!
//! No file is deleted: a replaced file is set aside beside the new one. Each repair is complete in itself, so
//! after a power failure the directory is unchanged or better, and running it again continues.

use super::small_files::set_aside;
use super::{Checked, StoreLocation, StoreVerbError, check, scratch};
use crate::catalogue_dir::CatalogueName;
use crate::data_dir::DataDir;
use crate::node_file::{DataDirError, NODE_FILE, NodeDescription};
use mlgw_common::Clock;
use mlgw_metadata::offline::{self, CheckFinding, FindingKind, ProgressCallback, RebuildLog};
use mlgw_segments::hot::{read_mark, repair_headers, repair_names};
use serde::Serialize;
use std::os::unix::fs::PermissionsExt as _;

/// Result of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Repaired {
    /// Successful repairs, in order.
    pub repaired: Vec<String>,
    /// Failed repairs, with the reason.
    pub failed: Vec<String>,
    /// Result of a check afterwards.
    pub left: Checked,
}

/// Repairs a data directory.
///
/// # Errors
/// Those of [`check`](super::check()).
pub fn repair(
    place: &StoreLocation,
    clock: &dyn Clock,
    watch: ProgressCallback<'_>,
) -> Result<Repaired, StoreVerbError> {
    let mut done = RepairLog::default();
    let mut left = check(place, watch)?;
    // A repair can reveal damage that was hidden by it: a catalogue that did not open hides segments.
    for repair in [repair_small_files, repair_catalogue, repair_segment_files] {
        if left.damaged() == 0 {
            break;
        }
        let before = done.repaired.len();
        repair(place, &left.findings, clock, &mut done, watch)?;
        if done.repaired.len() > before {
            left = check(place, watch)?;
        }
    }
    Ok(Repaired { repaired: done.repaired, failed: done.failed, left })
}

#[derive(Default)]
struct RepairLog {
    repaired: Vec<String>,
    failed: Vec<String>,
}

fn has_damage(findings: &[CheckFinding], kinds: &[FindingKind]) -> bool {
    findings.iter().any(|finding| finding.is_damage() && kinds.contains(&finding.kind))
}

/// Repairs small files, `node.json`, the permissions of the key, and an unusable checkpoint.
fn repair_small_files(
    place: &StoreLocation,
    findings: &[CheckFinding],
    clock: &dyn Clock,
    done: &mut RepairLog,
    _: ProgressCallback<'_>,
) -> Result<(), StoreVerbError> {
    let _held = DataDir::hold(&place.dir)?;
    if has_damage(findings, &[FindingKind::OwnFile]) {
        done.repaired.extend(set_aside(&place.dir)?);
    }
    // All other files were read in this version's format, so the directory has that format.
    let sound = findings
        .iter()
        .all(|f| !f.is_damage() || matches!(f.kind, FindingKind::NodeDescription | FindingKind::Copy));
    if has_damage(findings, &[FindingKind::NodeDescription]) && sound {
        done.repaired.push(restore_description(place, clock)?);
    }
    if has_damage(findings, &[FindingKind::Copy]) {
        let io = StoreVerbError::io(&place.checkpoints);
        done.repaired.extend(offline::remove_checkpoint(&place.checkpoints).map_err(io)?);
    }
    let key = place.dir.join(mlgw_credentials::sealer::FILE_NAME);
    if has_damage(findings, &[FindingKind::SecretsKey]) && key.exists() {
        let private = std::fs::Permissions::from_mode(0o600);
        let open = std::fs::metadata(&key).is_ok_and(|found| found.permissions().mode() & 0o077 != 0);
        if open {
            std::fs::set_permissions(&key, private).map_err(StoreVerbError::io(&key))?;
            done.repaired.push(format!("restricted {} to its owner", key.display()));
        }
    }
    Ok(())
}

/// Writes the description of a directory that lost it. The identity is taken from the log or from the mark of
/// the hot directory. If neither has one, the server gets a new identity.
fn restore_description(place: &StoreLocation, clock: &dyn Clock) -> Result<String, StoreVerbError> {
    let path = place.dir.join(NODE_FILE);
    let catalogues = CatalogueName::list(&place.dir).map_err(StoreVerbError::io(&place.dir))?;
    if let Some(other) = catalogues.iter().find(|name| !name.is_first()) {
        let what = format!(
            "{other} exists, so this may be a node of a cluster, whose number and starts are in {NODE_FILE} \
             alone: remove it from the cluster and let it join under a new id; if it never was in a \
             cluster, move {other} to another place"
        );
        return Err(StoreVerbError::Catalogue(what));
    }
    // The log is in the directory itself, while hot.dir may be configured wrongly.
    let in_log = offline::log_identity(&place.catalogue(), &scratch()?);
    let marked = read_mark(place.segments.hot()).ok().flatten();
    if let (Some(in_log), Some(marked)) = (in_log, marked)
        && in_log != marked
    {
        let what = format!(
            "the directory belongs to {in_log}, but hot.dir belongs to {marked}: restore the foreign one"
        );
        return Err(StoreVerbError::Catalogue(what));
    }
    let known = in_log.or(marked);
    let (node, whence) = match known {
        Some(identity) => {
            (NodeDescription::of_identity(identity, clock.now()), "with the identity of its segments or log")
        }
        None => (
            NodeDescription::first(clock.now()).map_err(DataDirError::from)?,
            "with a new identity of this node",
        ),
    };
    node.write(&place.dir)?;
    Ok(format!("wrote {} again, {whence}", path.display()))
}

/// Repairs the catalogue's stores. The log is rewritten if its damaged part has no entry. Counters are
/// recounted. `CURRENT` is restored from the newest readable MANIFEST. All other damage is repaired by a
/// rebuild from the newest checkpoint and the log.
fn repair_catalogue(
    place: &StoreLocation,
    findings: &[CheckFinding],
    _: &dyn Clock,
    done: &mut RepairLog,
    watch: ProgressCallback<'_>,
) -> Result<(), StoreVerbError> {
    let _held = DataDir::hold(&place.dir)?;
    let dir = place.catalogue();
    let failed = |error: mlgw_metadata::store_error::StoreError| StoreVerbError::Catalogue(error.0);
    if has_damage(findings, &[FindingKind::Current]) {
        done.repaired.extend(offline::repair_current_files(&dir).map_err(StoreVerbError::io(&dir))?);
        return Ok(());
    }
    if has_damage(findings, &[FindingKind::Log]) && dir.join("log").is_dir() {
        match offline::repair_log(&dir, &scratch()?) {
            Ok(mended) => done.repaired.extend(mended),
            Err(error) => done.failed.push(format!("cannot repair the log: {error}")),
        }
        return Ok(());
    }
    if has_damage(findings, &[FindingKind::StaleLog, FindingKind::LostTail]) {
        match offline::rebuild_log(&dir, &scratch()?) {
            Ok(mended) => done.repaired.push(mended),
            Err(error) => done.failed.push(format!("cannot rebuild the log: {error}")),
        }
        return Ok(());
    }
    if has_damage(findings, &[FindingKind::Counter]) && !has_damage(findings, STATE_KINDS) {
        done.repaired.extend(offline::recount(&dir).map_err(failed)?);
        return Ok(());
    }
    if !has_damage(findings, STATE_KINDS) {
        return Ok(());
    }
    let node = DataDir::description(&place.dir).ok().flatten();
    let expected = super::expected(place, node.as_ref())?;
    let lineage = expected.as_ref().map(|expected| &expected.lineage);
    let checkpoints = super::checkpoint_dir::described(&place.checkpoints, lineage);
    let own = RebuildLog::Own;
    let rebuilt =
        offline::rebuild(&dir, checkpoints, own, expected.as_ref(), &scratch()?, &mut Vec::new(), watch);
    match rebuilt {
        Ok(rebuilt) => done.repaired.push(format!(
            "rebuilt the catalogue from {} and {} log entries; the old state is in {}",
            rebuilt.checkpoint.display(),
            rebuilt.entries,
            rebuilt.old_state_dir.display()
        )),
        Err(error) => done.failed.push(format!("cannot rebuild the catalogue: {error}")),
    }
    Ok(())
}

/// Damage that a rebuild of the state repairs.
const STATE_KINDS: &[FindingKind] = &[
    FindingKind::Store,
    FindingKind::Manifest,
    FindingKind::Table,
    FindingKind::StaleState,
    FindingKind::Row,
];

/// Repairs segments with exchanged names, and headers.
fn repair_segment_files(
    place: &StoreLocation,
    findings: &[CheckFinding],
    _: &dyn Clock,
    done: &mut RepairLog,
    watch: ProgressCallback<'_>,
) -> Result<(), StoreVerbError> {
    let repaired = [FindingKind::SegmentHeader, FindingKind::SegmentMissing, FindingKind::Replica];
    if !has_damage(findings, &repaired) {
        return Ok(());
    }
    let _held = DataDir::hold(&place.dir)?;
    let io = || StoreVerbError::io(place.segments.hot());
    let lineage = DataDir::description(&place.dir)?.and_then(|node| node.lineage()).unwrap_or_default();
    let (at, scratch, findings) = (place.catalogue(), scratch()?, &mut Vec::new());
    let catalogue = offline::Offline::open(&at, &scratch, lineage.node, None, findings, watch)
        .map_err(|error| StoreVerbError::Catalogue(error.0))?;
    if let Some(catalogue) = catalogue {
        done.repaired.extend(repair_names(&place.segments, &catalogue, &lineage).map_err(io())?);
        done.repaired.extend(repair_headers(&place.segments, &catalogue, &lineage).map_err(io())?);
    }
    Ok(())
}
