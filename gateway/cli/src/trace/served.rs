//! Traces that a server records: started, stopped, listed and exported.

use super::partial_path;
use crate::client::Client;
use crate::output::{Out, columns};
use crate::progress::CommandProgress;
use crate::server_name::ServerName;
use crate::{CliError, Global, discover, path_segment};
use clap::Args;
use http::Method;
use mlgw_api::{NewTrace, TraceFileInfo, TraceInfo, TraceList};
use mlgw_common::ByteSize;
use mlgw_common::{Clock as _, SystemClock};
use mlgw_policies::trace::{TraceReader, TraceWriter};
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub struct StartArgs {
    /// Name of the trace. Default: the time of day.
    name: Option<String>,
    /// Maximum size in bytes. Beyond it the oldest files are removed.
    #[arg(
        long, value_name = "SIZE", default_value = "1GiB",
        value_parser = <ByteSize as std::str::FromStr>::from_str
    )]
    max_bytes: ByteSize,
}

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Name of the trace.
    #[arg(add = ServerName::Trace)]
    name: String,
    /// Destination file.
    #[arg(value_name = "OUT")]
    to: PathBuf,
}

/// Result of an export.
#[derive(Debug, Serialize)]
struct Exported {
    file: String,
    bytes: u64,
    accesses: u64,
}

pub(super) async fn start(args: StartArgs, global: &Global, out: Out) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    let name = args.name.unwrap_or_else(|| {
        let now = SystemClock.now().to_string();
        now.chars().filter(char::is_ascii_digit).take(14).collect()
    });
    let new = NewTrace { name, bytes_max: Some(args.max_bytes.0) };
    let trace: TraceInfo = client.call(Method::POST, "/v1/traces", Some(&new)).await?;
    let gone = match &trace.removed[..] {
        [] => String::new(),
        removed => format!(" Removed to make room: {}.", removed.join(", ")),
    };
    out.done(
        &trace,
        &format!("Started to record the trace {}; stop with `mlgw trace stop`.{gone}", trace.name),
    )
}

pub(super) async fn stop(global: &Global, out: Out) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    let trace: TraceInfo = client.call(Method::POST, "/v1/traces/stop", None::<&()>).await?;
    let behind = if trace.fell_behind == Some(true) {
        " The recording ended early because the disk is too slow."
    } else {
        ""
    };
    let accesses = trace.accesses.unwrap_or(0);
    let size = ByteSize(trace.bytes).human();
    // The hash for comparison with a simulation is available only now.
    let decided = trace.decisions_hash.as_ref().zip(trace.capacity_bytes);
    let decided = decided.map_or_else(String::new, |(hash, room)| {
        // In the form that `--cache` accepts: in bytes, with a unit.
        format!(" Hash of the decisions: {hash}; a simulation with `--cache {room}B` has the same.")
    });
    out.done(
        &trace,
        &format!("Stopped the trace {}: {accesses} accesses, {size}.{decided}{behind}", trace.name),
    )
}

pub(super) async fn list(global: &Global, out: Out) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    out.document(&client.get::<TraceList>("/v1/traces").await?, |list| {
        let row = |trace: &TraceInfo| {
            let state = trace.recording_since.as_ref().map(|since| format!("recording since {since}"));
            vec![
                trace.name.clone(),
                ByteSize(trace.bytes).human(),
                trace.files.len().to_string(),
                trace.accesses.map_or_else(|| "-".to_owned(), |accesses| accesses.to_string()),
                state.unwrap_or_else(|| "ended".to_owned()),
            ]
        };
        let rows: Vec<_> = list.traces.iter().map(row).collect();
        columns(&["NAME", "BYTES", "FILES", "ACCESSES", "STATE"], &rows)
    })
}

pub(super) async fn export(args: ExportArgs, global: &Global, out: Out) -> Result<(), CliError> {
    super::check_destination(&args.to)?;
    let client = Client::new(discover::target(global)?)?;
    let path = format!("/v1/traces/{}", path_segment(&args.name));
    let trace: TraceInfo = client.get(&path).await?;
    let progress = CommandProgress::new(out.quiet);
    let beside = partial_path(&args.to);
    let brought = download(&client, &path, &trace, &beside, &progress).await;
    progress.done();
    let kept = brought.and_then(|brought| {
        fs::rename(&beside, &args.to).map_err(|error| failed(&args.to, &error))?;
        Ok(brought)
    });
    let (accesses, bytes) = kept.inspect_err(|_| drop(fs::remove_file(&beside)))?;
    let file = args.to.display().to_string();
    let summary = format!("{file}: {accesses} accesses in {}.", ByteSize(bytes).human());
    out.done(&Exported { file, bytes, accesses }, &summary)
}

/// Writes all files of a trace into one. Returns the numbers of accesses and bytes.
async fn download(
    client: &Client,
    path: &str,
    trace: &TraceInfo,
    to: &Path,
    progress: &CommandProgress,
) -> Result<(u64, u64), CliError> {
    let mut file = File::create(to).map_err(|error| failed(to, &error))?;
    let (mut ready, mut accesses, mut bytes) = (Vec::new(), 0, 0);
    let mut put = |ready: &mut Vec<u8>| {
        bytes += ready.len() as u64;
        file.write_all(ready).map_err(|error| failed(to, &error))?;
        ready.clear();
        Ok::<_, CliError>(())
    };
    let mut writer = None;
    let (mut done, total) = (0, trace.files.iter().map(|file| file.bytes).sum());
    for TraceFileInfo { number, bytes } in &trace.files {
        let got = client.send(Method::GET, &format!("{path}/files/{number}"), None::<&()>).await?;
        let mut reader = TraceReader::new();
        reader.push(&got);
        let damaged = |error| CliError::Failed(format!("file {number} of the trace {}: {error}", trace.name));
        while let Some(access) = reader.read().map_err(damaged)? {
            accesses += 1;
            // The times of all files count from the same moment.
            let writer = writer.get_or_insert_with(|| TraceWriter::new(0, &mut ready));
            let _ = writer.write(&access, &mut ready);
        }
        done += bytes;
        progress.step("exporting", done, total);
        put(&mut ready)?;
    }
    let mut writer = writer.unwrap_or_else(|| TraceWriter::new(0, &mut ready));
    writer.flush(&mut ready);
    put(&mut ready)?;
    file.sync_all().map_err(|error| failed(to, &error))?;
    Ok((accesses, bytes))
}

fn failed(file: &Path, error: &io::Error) -> CliError {
    CliError::Failed(format!("{}: {error}", file.display()))
}
