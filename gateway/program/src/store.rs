//! The command `mlgw store …`: works on a data directory without a server (`backup` also on one in use).

use crate::recovered::{VerifiedParts, recovered_document, remaining_steps, require_complete};
use clap::{Args, Subcommand};
use http::Method;
use mlgw_api::{BackupState, BackupStatus, NewBackup};
use mlgw_cli::client::Client;
use mlgw_cli::output::{Out, columns, text_line};
use mlgw_cli::progress::CommandProgress;
use mlgw_cli::{CliError, ConfigFile, discover, write_stderr};
use mlgw_common::ByteSize;
use mlgw_common::SystemClock;
use mlgw_config::{Config, ConfigSources, LoadedConfig};
use mlgw_metadata::offline::{CheckFinding, FindingKind, RebuildLog, Severity};
use mlgw_segments::hot::{AdoptedDirectory, SalvageReport, SalvagedBody};
use mlgw_store::node_file::DataDirError;
use mlgw_store::{
    BackedUp, Checked, LostTail, RecoveredServer, Repaired, Restored, StoreLocation, StoreVerbError,
    UpstreamData,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Debug, Subcommand)]
pub(super) enum StoreCommand {
    /// Find damaged, missing and stale data. Writes nothing.
    Check(DataDirArgs),
    /// Repair the damage that can be repaired. Referenced data is never dropped.
    Repair {
        #[command(flatten)]
        place: DataDirArgs,
        /// Verify this directory of segments, and mark it as this server's if all of its segments are.
        #[arg(long, value_name = "DIR", conflicts_with = "accept_lost_tail")]
        adopt: Option<PathBuf>,
        /// List the keys of the lost end of the log, and continue without it.
        #[arg(long)]
        accept_lost_tail: bool,
    },
    /// Rebuild the catalogue from its newest checkpoint and the log.
    Rebuild {
        #[command(flatten)]
        place: DataDirArgs,
        /// Use the log of the checkpoint as well, because the catalogue's own log is lost. Changes after
        /// the checkpoint are lost with it.
        #[arg(long)]
        without_log: bool,
    },
    /// List the objects that can be recovered from segments alone, without a catalogue. Writes nothing.
    Salvage(DataDirArgs),
    /// Back up a data directory, also while a server uses it: then that of a node backs up the whole cluster.
    Backup {
        #[command(flatten)]
        place: DataDirArgs,
        /// Destination directory, empty or absent.
        out: PathBuf,
        /// Leave data in upstreams: the backup then needs the upstreams in their present state.
        #[arg(long)]
        leave_upstreams: bool,
    },
    /// Create a data directory from a backup: that of a cluster becomes a server without peers.
    Restore {
        /// The backup.
        #[arg(value_name = "IN")]
        from: PathBuf,
        #[command(flatten)]
        place: DataDirArgs,
    },
}

/// Arguments that select a data directory.
#[derive(Debug, Args)]
pub(super) struct DataDirArgs {
    /// The data directory.
    #[arg(value_name = "D")]
    dir: PathBuf,
    #[command(flatten)]
    file: ConfigFile,
}

impl DataDirArgs {
    /// Selects a data directory.
    pub(super) const fn new(dir: PathBuf, file: ConfigFile) -> Self {
        Self { dir, file }
    }

    /// Returns the configuration with this data directory.
    pub(super) fn config(&self) -> Result<Config, CliError> {
        let loaded = LoadedConfig::load(&ConfigSources::from_process(self.file.config.clone()));
        let config = loaded.map_err(|error| CliError::Usage(error.to_string()))?.config;
        Ok(Config { data_dir: self.dir.clone(), ..config })
    }

    /// Returns the locations of this data directory, by the configuration.
    fn location(&self) -> Result<StoreLocation, CliError> {
        Ok(StoreLocation::of(&self.config()?))
    }
}

pub(super) fn run(command: StoreCommand, out: Out) -> Result<(), CliError> {
    let progress = CommandProgress::new(out.quiet);
    let watch = |stage, done, total| progress.step(stage, done, total);
    match command {
        StoreCommand::Check(place) => {
            let checked = mlgw_store::check(&place.location()?, &watch);
            progress.done();
            let checked = checked.map_err(failure)?;
            out.document(&checked, check_summary)?;
            remaining_damage(&checked, &place.dir, Some("mlgw store repair"))
        }
        StoreCommand::Repair { place, adopt: Some(dir), .. } => {
            // Its totals are numbers of files.
            let watch = |stage, done, total| progress.count(stage, done, total);
            let adopted = mlgw_store::adopt(&place.location()?, &dir, &watch);
            progress.done();
            show_adopted(&dir, &adopted.map_err(failure)?, out)
        }
        StoreCommand::Repair { place, accept_lost_tail: true, .. } => {
            let lost = mlgw_store::accept_lost_tail(&place.location()?, &watch);
            progress.done();
            show_lost_tail(&lost.map_err(failure)?, out)
        }
        StoreCommand::Repair { place, .. } => {
            let repaired = mlgw_store::repair(&place.location()?, &SystemClock, &watch);
            progress.done();
            let repaired = repaired.map_err(failure)?;
            out.document(&repaired, repair_summary)?;
            remaining_damage(&repaired.left, &place.dir, None)
        }
        StoreCommand::Rebuild { place, without_log } => {
            let log = if without_log { RebuildLog::Checkpoint } else { RebuildLog::Own };
            rebuild(&place, log, &progress, out)
        }
        StoreCommand::Salvage(place) => {
            let found = mlgw_store::salvage(&place.location()?, &watch);
            progress.done();
            let found = found.map_err(failure)?;
            out.document(&salvage_document(&found), |_| salvage_table(&found))
        }
        StoreCommand::Backup { place, out: to, leave_upstreams } => {
            let source = place.location()?;
            let upstream_data =
                if leave_upstreams { UpstreamData::LeftInPlace } else { UpstreamData::Refused };
            let made = match mlgw_store::backup_closed(&source, &to, upstream_data, &SystemClock, &watch) {
                Err(StoreVerbError::DataDir(DataDirError::InUse { .. })) => {
                    mlgw_cli::run_async(ask_server(&place.dir, &to, upstream_data, &progress))?
                }
                made => made.map_err(failure)?,
            };
            progress.done();
            copied(&made, &format!("Backed up {} to {}", place.dir.display(), to.display()), out)
        }
        StoreCommand::Restore { from, place } => {
            let made = mlgw_store::restore(&from, &place.location()?, &SystemClock, &watch);
            progress.done();
            let done = format!("Restored {} from {}", place.dir.display(), from.display());
            restored(&made.map_err(failure)?, &done, out)
        }
    }
}

fn repair_summary(done: &Repaired) -> String {
    let lines = |what: &str, lines: &[String]| -> String {
        lines.iter().map(|line| text_line(&format!("{what:<10}{line}"))).collect()
    };
    let (mut repairs, failed) = (lines("repaired", &done.repaired), lines("failed", &done.failed));
    if repairs.is_empty() && done.left.damaged() > 0 {
        repairs = lines("repaired", &["nothing".to_owned()]);
    }
    repairs + &failed + &check_summary(&done.left)
}

/// Returns an error if the check found damage. It states the next steps: a repair, if `repair` is given and
/// can repair some of it, and remedies for the rest.
fn remaining_damage(checked: &Checked, dir: &Path, repair: Option<&str>) -> Result<(), CliError> {
    let kinds: BTreeSet<FindingKind> =
        checked.findings.iter().filter(|f| f.is_damage()).map(|f| f.kind).collect();
    if kinds.is_empty() {
        return Ok(());
    }
    let dir = dir.display();
    let mut message = format!("{dir} is damaged");
    let lost: BTreeSet<&str> = kinds.iter().filter_map(|kind| remedy(*kind)).collect();
    if let Some(repair) = repair.filter(|_| kinds.iter().any(|kind| remedy(*kind).is_none())) {
        message += &format!("\n  `{repair} {dir}` repairs what can be repaired");
    }
    for next in &lost {
        message += &format!("\n  {next}");
    }
    Err(CliError::Failed(message + "\n  see \"Check, scrub, repair\" in docs/OPERATIONS.md"))
}

/// Returns the remedy for damage that a repair cannot fix, or `None` if a repair fixes it.
fn remedy(kind: FindingKind) -> Option<&'static str> {
    match kind {
        FindingKind::Block
        | FindingKind::RecordHead
        | FindingKind::SegmentShort
        | FindingKind::SegmentMissing => {
            Some("data of the objects above is lost: write them again or delete them; the rest can be served")
        }
        FindingKind::Replica => {
            Some("other nodes have replicas of the segments above: this node copies them again when it runs")
        }
        FindingKind::Log => Some(
            "the newest writes in the log are damaged: `mlgw store rebuild --without-log` returns to the \
             newest checkpoint",
        ),
        FindingKind::StaleLog => Some(
            "the log ends too early: `mlgw store repair` may find the rest in its own files; otherwise \
             restore the right log",
        ),
        FindingKind::StaleCatalogue => {
            Some("the directory mixes files of different times: restore the right ones, or a backup")
        }
        FindingKind::Foreign => Some(
            "the files above belong to another server or another timeline: restore this server's files; \
             mark a directory of its own segments with `mlgw store repair --adopt DIR`",
        ),
        FindingKind::LostTail => Some(
            "restore the log that belongs here; `mlgw store repair --accept-lost-tail` lists the missing \
             keys and continues without them",
        ),
        FindingKind::SecretsKey | FindingKind::SealedSecret => {
            Some("restore the secrets.key that belongs here, or create the access keys again")
        }
        FindingKind::NodeDescription
        | FindingKind::OwnFile
        | FindingKind::Store
        | FindingKind::Current
        | FindingKind::Manifest
        | FindingKind::Table
        | FindingKind::StaleState
        | FindingKind::LeftGroup
        | FindingKind::Row
        | FindingKind::Counter
        | FindingKind::SegmentHeader
        | FindingKind::RemoteSegment
        | FindingKind::Stray
        | FindingKind::Copy => None,
    }
}

/// Shows the result of adopting a directory of segments.
fn show_adopted(dir: &Path, adopted: &AdoptedDirectory, out: Out) -> Result<(), CliError> {
    let missing: Vec<u64> = adopted.missing.iter().map(|id| id.0).collect();
    let document = json!({
        "verified": adopted.verified, "unknown": adopted.unknown, "missing": missing,
    });
    out.document(&document, |_| {
        let unknown = |name: &String| text_line(&format!("unknown    {name}"));
        let unknown: String = adopted.unknown.iter().map(unknown).collect();
        let missing: String = missing.iter().map(|id| format!("missing    segment {id}\n")).collect();
        format!(
            "{} belongs to this server: {} segments verified\n{unknown}{missing}",
            dir.display(),
            adopted.verified
        )
    })
}

/// Shows the loss from continuing without the end of the log.
fn show_lost_tail(lost: &LostTail, out: Out) -> Result<(), CliError> {
    let keys: Vec<Value> = lost.keys.iter().map(|(id, key)| json!({ "bucket_id": id, "key": key })).collect();
    out.document(&json!({ "entries": lost.entries, "keys": keys }), |_| {
        let keys: String =
            lost.keys.iter().map(|(id, key)| format!("missing  bucket {id}, key {key:?}\n")).collect();
        format!(
            "{} log entries are missing. They wrote these keys; lost deletes are unknown:\n{keys}\
             The next start continues without them, on a new timeline.\n",
            lost.entries
        )
    })
}

fn rebuild(
    place: &DataDirArgs,
    log: RebuildLog,
    progress: &CommandProgress,
    out: Out,
) -> Result<(), CliError> {
    let watch = |stage, done, total| progress.step(stage, done, total);
    let mut unusable = Vec::new();
    let rebuilt = mlgw_store::rebuild(&place.location()?, log, &mut unusable, &watch);
    progress.done();
    write_stderr(&findings(&unusable));
    let rebuilt = rebuilt.map_err(failure)?;
    let document = json!({
        "checkpoint": rebuilt.checkpoint.display().to_string(),
        "written": rebuilt.written,
        "entries": rebuilt.entries,
        "rows": rebuilt.rows,
        "aside": rebuilt.old_state_dir.display().to_string(),
    });
    let sentence = format!(
        "Rebuilt {} rows from {} ({}) and {} log entries after it. The old state is in {}.",
        rebuilt.rows,
        rebuilt.checkpoint.display(),
        rebuilt.written,
        rebuilt.entries,
        rebuilt.old_state_dir.display()
    );
    out.done(&document, &sentence)
}

fn copied(made: &BackedUp, done: &str, out: Out) -> Result<(), CliError> {
    out.done(made, &format!("{done}: {} files, {}.", made.files, ByteSize(made.bytes).human()))
}

/// Shows a restored directory. That of a cluster is one of a recovered server.
fn restored(made: &Restored, done: &str, out: Out) -> Result<(), CliError> {
    let Some(recovered) = &made.recovered else { return copied(&made.copy, done, out) };
    let BackedUp { files, bytes } = made.copy;
    let mut document = recovered_document(recovered);
    (document["files"], document["bytes"]) = (files.into(), bytes.into());
    out.document(&document, |_| {
        let RecoveredServer { cluster, former, objects, .. } = recovered;
        let size = ByteSize(bytes).human();
        format!(
            "{done}: {files} files, {size}.\nIt is a server of its own, made from cluster {former}, with the \
             cluster id {cluster}: {objects} objects.\n{}",
            remaining_steps(recovered, VerifiedParts::Backup(made.copy))
        )
    })?;
    require_complete(recovered)
}

/// Requests the backup from the server that uses `dir`, and waits for it.
async fn ask_server(
    dir: &Path,
    to: &Path,
    upstream_data: UpstreamData,
    progress: &CommandProgress,
) -> Result<BackedUp, CliError> {
    const POLL_INTERVAL: Duration = Duration::from_millis(200);
    let client = Client::new(discover::server_of(dir)?)?;
    let to = std::path::absolute(to).map_err(|e| CliError::Usage(format!("{}: {e}", to.display())))?;
    let leave_upstreams = upstream_data == UpstreamData::LeftInPlace;
    let new = NewBackup { out: to.display().to_string(), leave_upstreams };
    let mut status: BackupStatus = client.call(Method::POST, "/v1/store/backup", Some(&new)).await?;
    while status.state == BackupState::Running {
        progress.step("copying", status.done_bytes, status.total_bytes);
        mlgw_common::time::sleep(POLL_INTERVAL).await;
        status = client.get("/v1/store/backup").await?;
    }
    match status.error {
        None => Ok(BackedUp { files: status.files, bytes: status.done_bytes }),
        Some(error) => Err(CliError::Failed(error)),
    }
}

pub(super) fn failure(error: StoreVerbError) -> CliError {
    match error {
        StoreVerbError::DataDir(DataDirError::InUse { path, process }) => CliError::Refused(format!(
            "{} is in use by a server{process}: stop it first, or use a copy made by `mlgw store backup`",
            path.display()
        )),
        StoreVerbError::DataDir(DataDirError::Newer { .. })
        | StoreVerbError::Member(_)
        | StoreVerbError::Gateway(_) => CliError::Refused(error.to_string()),
        _ => CliError::Failed(error.to_string()),
    }
}

fn check_summary(checked: &Checked) -> String {
    let looked_at = match checked.rows {
        0 => "the catalogue cannot be read, so nothing else was checked".to_owned(),
        rows => format!(
            "checked {rows} rows of {} objects in {} segments and verified {}",
            checked.objects,
            checked.segments,
            ByteSize(checked.bytes).human()
        ),
    };
    let (damage, all) = (checked.damaged(), checked.findings.len());
    let counted = format!("{damage} damaged, {} notes", all - damage);
    findings(&checked.findings) + &format!("{counted}; {looked_at}\n")
}

/// Maximum number of findings of each kind in text output. JSON output has all.
const SHOWN_MAX: usize = 20;

/// Returns a line for each finding, and one with the number of those of a kind beyond [`SHOWN_MAX`].
fn findings(findings: &[CheckFinding]) -> String {
    let mut text = String::new();
    let mut counts = BTreeMap::<FindingKind, usize>::new();
    for finding in findings {
        let count = counts.entry(finding.kind).or_default();
        *count += 1;
        if *count <= SHOWN_MAX {
            text += &line(finding);
        }
    }
    for (kind, count) in counts.into_iter().filter(|(_, count)| *count > SHOWN_MAX) {
        text += &format!("        {kind}  {} more: --output json lists all\n", count - SHOWN_MAX);
    }
    text
}

fn line(CheckFinding { severity, kind, place, what }: &CheckFinding) -> String {
    let severity = match severity {
        Severity::Damage => "damage",
        Severity::Info => "note",
    };
    text_line(&format!("{severity:6}  {kind}  {place}: {what}"))
}

/// Returns the result of a salvage as JSON.
fn salvage_document(found: &SalvageReport) -> Value {
    let body = |body: &SalvagedBody| {
        json!({
            "bucket_id": body.bucket,
            "key": body.key,
            "body": body.body.0,
            "part": (body.part != 0).then_some(body.part),
            "bytes": body.bytes,
            "contiguous": body.contiguous,
            "written": body.written.to_string(),
        })
    };
    json!({
        "bodies": found.bodies.iter().map(body).collect::<Vec<_>>(),
        "segments": found.segments,
        "records": found.records,
        "damaged_bytes": found.damaged_bytes,
        "unreadable": found
            .unreadable
            .iter()
            .map(|(name, why)| json!({"file": name, "why": why}))
            .collect::<Vec<_>>(),
        "unknown": UNKNOWN,
    })
}

/// Facts that segments do not contain.
const UNKNOWN: &str = "names of buckets; whether an object was deleted, overwritten or acknowledged; \
                       its total length; headers, metadata, tags and ETag";

fn salvage_table(found: &SalvageReport) -> String {
    let row = |body: &SalvagedBody| {
        let part = if body.part == 0 { String::new() } else { body.part.to_string() };
        let gaps = if body.contiguous { "" } else { "with gaps" };
        vec![
            body.bucket.to_string(),
            body.key.clone(),
            body.body.to_string(),
            part,
            body.bytes.to_string(),
            body.written.to_string(),
            gaps.to_owned(),
        ]
    };
    let rows: Vec<_> = found.bodies.iter().map(row).collect();
    let mut text = columns(&["BUCKET", "KEY", "BODY", "PART", "BYTES", "WRITTEN", ""], &rows);
    for (name, why) in &found.unreadable {
        text += &text_line(&format!("cannot read {name}: {why}"));
    }
    text + &format!(
        "{} bodies in {} intact records of {} segments; {} between them are damaged. Unknown: {UNKNOWN}.\n",
        found.bodies.len(),
        found.records,
        found.segments,
        ByteSize(found.damaged_bytes).human()
    )
}

#[cfg(test)]
mod tests {
    use super::{SHOWN_MAX, findings};
    use mlgw_metadata::offline::{CheckFinding, FindingKind};

    #[test]
    fn findings_of_a_kind_beyond_the_limit_are_counted_and_other_kinds_stay_visible() {
        let lost =
            |n: usize| CheckFinding::damage(FindingKind::SegmentMissing, format!("s3://b/{n}"), "lost");
        let mut found: Vec<CheckFinding> = (0..SHOWN_MAX + 7).map(lost).collect();
        found.push(CheckFinding::note(FindingKind::Stray, "notes.txt", "not a segment file"));
        let shown = findings(&found);
        assert_eq!(shown.lines().count(), SHOWN_MAX + 2, "{shown}");
        assert!(shown.contains("segment-missing  7 more"), "{shown}");
        assert!(shown.contains("note    stray  notes.txt: not a segment file"), "{shown}");
    }
}
