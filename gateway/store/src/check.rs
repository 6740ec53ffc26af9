//! The subcommand `mlgw store check`: verifies that a data directory is complete and undamaged.

use super::{StoreLocation, StoreVerbError, checkpoint_dir, expected, is_unborn, scratch, unfit_files};
use crate::data_dir::DataDir;
use crate::node_file::{DataDirError, NODE_FILE, NodeDescription};
use mlgw_common::NodeId;
use mlgw_credentials::{Sealer, SealerError};
use mlgw_metadata::identity::ExpectedServer;
use mlgw_metadata::offline::{
    CheckFinding, FindingKind, GroupRows, Offline, ProgressCallback, check_checkpoint,
};
use mlgw_segments::hot::{check_marks, check_segments};
use serde::Serialize;
use std::path::Path;

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// Damage, and notes.
    pub findings: Vec<CheckFinding>,
    /// Rows of the catalogue.
    pub rows: u64,
    /// Objects.
    pub objects: u64,
    /// Segments.
    pub segments: u64,
    /// Referenced bytes of segments.
    pub bytes: u64,
    /// The rows of each group of the catalogue, with a digest that is equal on all nodes of a cluster that
    /// have applied the same commands.
    pub groups: Vec<GroupRows>,
}

impl Checked {
    /// Returns the number of findings that are damage.
    #[must_use]
    pub fn damaged(&self) -> usize {
        self.findings.iter().filter(|finding| finding.is_damage()).count()
    }
}

/// Checks a data directory. Writes nothing in it.
///
/// # Errors
/// When a server uses it, when it is of a newer format or no data directory, or when the scratch copy cannot
/// be written.
pub fn check(place: &StoreLocation, watch: ProgressCallback<'_>) -> Result<Checked, StoreVerbError> {
    let (dir, segments) = (&place.dir, &place.segments);
    let _held = DataDir::hold(dir)?;
    if !dir.join(NODE_FILE).exists() && !place.catalogue().exists() {
        return Err(StoreVerbError::NoDataDir(dir.to_owned()));
    }
    let mut checked = Checked::default();
    let findings = &mut checked.findings;
    let node = description(dir, findings)?;
    let sealer = sealer(dir, findings);
    for unfit in unfit_files(dir) {
        findings.push(CheckFinding::damage(FindingKind::OwnFile, unfit.path.display(), unfit.source));
    }
    if is_unborn(place)? {
        let what = "the first start was interrupted before it wrote data; the next start begins again";
        findings.push(CheckFinding::note(FindingKind::Store, dir.display(), what));
        return Ok(checked);
    }
    let expected = match expected(place, node.as_ref()) {
        Err(StoreVerbError::Floor(what)) => {
            findings.push(CheckFinding::damage(
                FindingKind::OwnFile,
                place.catalogue().join("floor").display(),
                what,
            ));
            return Ok(checked);
        }
        expected => expected?,
    };
    let lineage = expected.as_ref().map(|expected| &expected.lineage);
    if let Some(lineage) = lineage
        && let Err(error) = checkpoint_dir::is_own(place, lineage)
    {
        findings.push(CheckFinding::damage(FindingKind::Foreign, place.checkpoints.display(), error));
    }
    check_checkpoint(checkpoint_dir::described(&place.checkpoints, lineage), lineage, findings, watch);
    let id = node.map_or(NodeId::SINGLE, |node| node.node_id());
    let catalogue = Offline::open(&place.catalogue(), &scratch()?, id, expected.as_ref(), findings, watch)
        .map_err(|error| StoreVerbError::Catalogue(error.0))?;
    let Some(catalogue) = catalogue else { return Ok(checked) };
    if let Some(sealer) = sealer {
        secrets(&sealer, &catalogue, findings);
    }
    if let Some(ExpectedServer { lineage, .. }) = &expected {
        check_marks(segments, &catalogue, lineage, findings);
    }
    check_segments(segments, &catalogue, findings, watch).map_err(StoreVerbError::io(segments.hot()))?;
    checked.rows = catalogue.facts.rows;
    checked.objects = catalogue.facts.objects;
    checked.segments = catalogue.facts.segments.len() as u64;
    checked.groups.clone_from(&catalogue.facts.groups);
    checked.bytes = catalogue.facts.usage.values().map(|usage| usage.bytes).sum();
    Ok(checked)
}

/// Reads the description. A newer format ends the check, because this version might report false damage.
fn description(
    dir: &Path,
    findings: &mut Vec<CheckFinding>,
) -> Result<Option<NodeDescription>, StoreVerbError> {
    let path = dir.join(NODE_FILE);
    let what = match DataDir::description(dir) {
        Ok(Some(node)) => return Ok(Some(node)),
        Ok(None) => "missing".to_owned(),
        Err(newer @ DataDirError::Newer { .. }) => return Err(newer.into()),
        Err(error) => error.to_string(),
    };
    findings.push(CheckFinding::damage(FindingKind::NodeDescription, path.display(), what));
    Ok(None)
}

fn sealer(dir: &Path, findings: &mut Vec<CheckFinding>) -> Option<Sealer> {
    match Sealer::open(dir) {
        Ok(sealer) => Some(sealer),
        Err(error) => {
            let path = dir.join(mlgw_credentials::sealer::FILE_NAME);
            findings.push(CheckFinding::damage(FindingKind::SecretsKey, path.display(), error));
            None
        }
    }
}

/// Opens every secret, because a readable key file may still belong to another directory.
fn secrets(sealer: &Sealer, catalogue: &Offline, findings: &mut Vec<CheckFinding>) {
    for credential in &catalogue.facts.credentials {
        let opened = sealer.open_secret(&credential.access_key, &credential.secret_sealed);
        if let Err(error @ SealerError::DoesNotOpen { .. }) = opened {
            let place = format!("access key {}", credential.access_key);
            findings.push(CheckFinding::damage(FindingKind::SealedSecret, place, error));
        }
    }
}
