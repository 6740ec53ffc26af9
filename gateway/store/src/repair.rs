//! The verb `mlgw store repair`: repairs findings of a check that can be repaired without loss.
//!
//! No file is deleted: a replaced file is set aside beside the new one. Each repair is complete in itself, so
//! after a power failure the directory is unchanged or better, and running the verb again continues.

use super::small_files::set_aside;
use super::{Checked, Place, StoreVerbError, check, scratch};
use crate::data_dir::{DataDir, DataDirError};
use crate::node_file::{NODE_FILE, Node};
use mlgw_common::Clock;
use mlgw_metadata::offline::{self, Finding, Kind, Watch, WhichLog};
use mlgw_segments::hot::{mend_headers, put_names_right, read_mark};
use serde::Serialize;
use std::os::unix::fs::PermissionsExt as _;

/// Result of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Repaired {
    /// Successful repairs, in order.
    pub mended: Vec<String>,
    /// Failed repairs, with the reason.
    pub failed: Vec<String>,
    /// Result of a check afterwards.
    pub left: Checked,
}

/// Repairs a data directory.
///
/// # Errors
/// Those of [`check`](super::check()).
pub fn repair(place: &Place, clock: &dyn Clock, watch: Watch<'_>) -> Result<Repaired, StoreVerbError> {
    let mut done = Done::default();
    let mut left = check(place, watch)?;
    // A repair can reveal damage that was hidden by it: a catalogue that did not open hides segments.
    for mend in [small_files, catalogue, files_of_segments] {
        if left.damaged() == 0 {
            break;
        }
        let before = done.mended.len();
        mend(place, &left.findings, clock, &mut done, watch)?;
        if done.mended.len() > before {
            left = check(place, watch)?;
        }
    }
    Ok(Repaired { mended: done.mended, failed: done.failed, left })
}

#[derive(Default)]
struct Done {
    mended: Vec<String>,
    failed: Vec<String>,
}

fn found(findings: &[Finding], kinds: &[Kind]) -> bool {
    findings.iter().any(|finding| finding.is_damage() && kinds.contains(&finding.kind))
}

/// Repairs small files, `node.json`, the permissions of the key, and an unusable checkpoint.
fn small_files(
    place: &Place,
    findings: &[Finding],
    clock: &dyn Clock,
    done: &mut Done,
    _: Watch<'_>,
) -> Result<(), StoreVerbError> {
    let _held = DataDir::hold(&place.dir)?;
    if found(findings, &[Kind::OwnFile]) {
        done.mended.extend(set_aside(&place.dir)?);
    }
    // All other files were read in this version's format, so the directory has that format.
    let sound =
        findings.iter().all(|f| !f.is_damage() || matches!(f.kind, Kind::NodeDescription | Kind::Copy));
    if found(findings, &[Kind::NodeDescription]) && sound {
        done.mended.push(describe_again(place, clock)?);
    }
    if found(findings, &[Kind::Copy]) {
        let io = StoreVerbError::io(&place.checkpoints);
        done.mended.extend(offline::remove_checkpoint(&place.checkpoints).map_err(io)?);
    }
    let key = place.dir.join(mlgw_credentials::sealer::FILE_NAME);
    if found(findings, &[Kind::SecretsKey]) && key.exists() {
        let private = std::fs::Permissions::from_mode(0o600);
        let open = std::fs::metadata(&key).is_ok_and(|found| found.permissions().mode() & 0o077 != 0);
        if open {
            std::fs::set_permissions(&key, private).map_err(StoreVerbError::io(&key))?;
            done.mended.push(format!("{} is readable by its owner only again", key.display()));
        }
    }
    Ok(())
}

/// Writes the description of a directory that lost it. The identity is taken from the log or from the mark of
/// the hot directory. If neither has one, the server gets a new identity.
fn describe_again(place: &Place, clock: &dyn Clock) -> Result<String, StoreVerbError> {
    let path = place.dir.join(NODE_FILE);
    // The log is in the directory itself, while hot.dir may be configured wrongly.
    let in_log = offline::log_identity(&place.catalogue(), &scratch()?);
    let marked = read_mark(place.segments.hot()).ok().flatten();
    if let (Some(in_log), Some(marked)) = (in_log, marked)
        && in_log != marked
    {
        let what =
            format!("it belongs to {in_log}, and hot.dir to {marked}: put back what is not this server's");
        return Err(StoreVerbError::Catalogue(what));
    }
    let known = in_log.or(marked);
    let (node, whence) = match known {
        Some(identity) => {
            (Node::of_identity(identity, clock.now()), "with the identity of its segments or log")
        }
        None => (Node::first(clock.now()).map_err(DataDirError::from)?, "with a new name for this node"),
    };
    node.write(&place.dir)?;
    Ok(format!("{} was written anew, {whence}", path.display()))
}

/// Repairs the catalogue's stores. The log is rewritten if its damaged part has no entry. Counters are
/// recounted. `CURRENT` is restored from the newest readable MANIFEST. All other damage is repaired by a
/// rebuild from the newest checkpoint and the log.
fn catalogue(
    place: &Place,
    findings: &[Finding],
    _: &dyn Clock,
    done: &mut Done,
    watch: Watch<'_>,
) -> Result<(), StoreVerbError> {
    let _held = DataDir::hold(&place.dir)?;
    let dir = place.catalogue();
    let failed = |error: mlgw_metadata::store_error::StoreError| StoreVerbError::Catalogue(error.0);
    if found(findings, &[Kind::Current]) {
        done.mended.extend(offline::name_manifests(&dir).map_err(StoreVerbError::io(&dir))?);
        return Ok(());
    }
    if found(findings, &[Kind::Log]) && dir.join("log").is_dir() {
        match offline::mend_log(&dir, &scratch()?) {
            Ok(mended) => done.mended.extend(mended),
            Err(error) => done.failed.push(format!("the log was not mended: {error}")),
        }
        return Ok(());
    }
    if found(findings, &[Kind::StaleLog, Kind::LostTail]) {
        match offline::remake_log(&dir, &scratch()?) {
            Ok(mended) => done.mended.push(mended),
            Err(error) => done.failed.push(format!("the log was not made anew: {error}")),
        }
        return Ok(());
    }
    if found(findings, &[Kind::Counter]) && !found(findings, STATE_KINDS) {
        done.mended.extend(offline::recount(&dir).map_err(failed)?);
        return Ok(());
    }
    if !found(findings, STATE_KINDS) {
        return Ok(());
    }
    let node = DataDir::description(&place.dir).ok().flatten();
    let expected = super::expected(place, node.as_ref())?;
    let lineage = expected.as_ref().map(|expected| &expected.lineage);
    let checkpoints = super::checkpoint_dir::described(&place.checkpoints, lineage);
    let own = WhichLog::Own;
    let rebuilt =
        offline::rebuild(&dir, checkpoints, own, expected.as_ref(), &scratch()?, &mut Vec::new(), watch);
    match rebuilt {
        Ok(rebuilt) => done.mended.push(format!(
            "the catalogue's state was rebuilt from {} and {} log entries; the old one is in {}",
            rebuilt.checkpoint.display(),
            rebuilt.entries,
            rebuilt.aside.display()
        )),
        Err(error) => done.failed.push(format!("the catalogue's state was not rebuilt: {error}")),
    }
    Ok(())
}

/// Damage that a rebuild of the state repairs.
const STATE_KINDS: &[Kind] = &[Kind::Store, Kind::Manifest, Kind::Table, Kind::StaleState, Kind::Row];

/// Repairs segments with exchanged names, and headers.
fn files_of_segments(
    place: &Place,
    findings: &[Finding],
    _: &dyn Clock,
    done: &mut Done,
    watch: Watch<'_>,
) -> Result<(), StoreVerbError> {
    if !found(findings, &[Kind::SegmentHeader, Kind::SegmentMissing]) {
        return Ok(());
    }
    let _held = DataDir::hold(&place.dir)?;
    let io = || StoreVerbError::io(place.segments.hot());
    let catalogue = offline::Offline::open(&place.catalogue(), &scratch()?, None, &mut Vec::new(), watch)
        .map_err(|error| StoreVerbError::Catalogue(error.0))?;
    let lineage = DataDir::description(&place.dir)?.and_then(|node| node.lineage()).unwrap_or_default();
    if let Some(catalogue) = catalogue {
        done.mended.extend(put_names_right(&place.segments, &catalogue, &lineage).map_err(io())?);
        done.mended.extend(mend_headers(&place.segments, &catalogue, &lineage).map_err(io())?);
    }
    Ok(())
}
