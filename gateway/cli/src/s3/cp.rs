//! The command `mlgw cp`.
//!
//! Several requests are sent at once. The memory for their bodies is bounded, whatever the sizes of the
//! objects. A download appears under its name when it is complete. Uploads that are not completed are
//! aborted, also if the command is interrupted.

mod copy_ends;
mod copy_run;
mod download;
mod local_files;
mod multipart;
mod names;
mod open_upload;
mod parts;
mod recursive;
mod server_copy;
mod upload;

use super::cat::print_object;
use super::client::S3Client;
use super::target::{S3Options, target};
use crate::stdout::StdoutStream;
use crate::{CliError, Global, Out};
use clap::Args;
use copy_ends::CopyEnds;
use copy_run::{CopyRun, CopySettings, ItemFailure};
use download::SpecialTarget;
use http::HeaderValue;
use mlgw_common::ByteSize;
use mlgw_common::limits::{GIB, PART_BYTES_MIN};
use std::ffi::OsString;
use tokio::signal::unix::{SignalKind, signal};

#[derive(Debug, Args)]
pub struct CpArgs {
    /// Source: s3://BUCKET/KEY, a local path, or - for standard input.
    #[arg(value_name = "SRC")]
    from: OsString,
    /// Destination: s3://BUCKET/KEY, a local path, or - for standard output.
    #[arg(value_name = "DST")]
    to: OsString,
    /// Copy all files of a directory, or all objects below a prefix.
    #[arg(long, short)]
    recursive: bool,
    /// Number of requests at once.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    parallel: u32,
    /// Size of the parts of a large object; larger objects are copied in parts. Default: 16 MiB or more, so
    /// that 10,000 parts suffice. Objects up to 5 GiB are copied between buckets as a whole.
    #[arg(long, value_name = "SIZE", value_parser = parse_part_size)]
    part_size: Option<u64>,
    /// Content type of the uploaded objects. Default: by the extension of the name.
    #[arg(long, value_name = "TYPE", value_parser = parse_content_type)]
    content_type: Option<HeaderValue>,
    #[command(flatten)]
    s3: S3Options,
}

fn parse_part_size(text: &str) -> Result<u64, String> {
    let ByteSize(bytes) = text.parse()?;
    match bytes {
        PART_BYTES_MIN..=GIB => Ok(bytes),
        _ => Err("a part has 5MiB to 1GiB".to_owned()),
    }
}

fn parse_content_type(text: &str) -> Result<HeaderValue, String> {
    HeaderValue::from_str(text).map_err(|error| error.to_string())
}

pub(crate) async fn run(args: CpArgs, global: &Global, out: Out) -> Result<(), CliError> {
    let ends = match args.recursive {
        true => CopyEnds::recursive(&args.from, &args.to)?,
        false => CopyEnds::single(&args.from, &args.to)?,
    };
    let client = S3Client::new(target(&args.s3, global)?)?;
    let settings = CopySettings {
        parallel: args.parallel,
        part_bytes: args.part_size,
        content_type: args.content_type,
        quiet: out.quiet,
    };
    let run = CopyRun::new(&client, settings);
    let copied = match ends.is_written_in_place() {
        true => copy(&run, &ends).await,
        false => tokio::select! {
            copied = copy(&run, &ends) => copied,
            () = interruption() => Err(CliError::Failed("interrupted".to_owned())),
        },
    };
    run.end().await;
    let failed = copied.map_err(|error| run.with_report(error))?;
    let report = run.report();
    match (failed, &ends) {
        (0, CopyEnds::Print { .. }) => Ok(()),
        (0, _) => out.done(&report, &format!("copied {report}")),
        _ => Err(CliError::Failed(format!("copied {report}; {failed} could not be copied"))),
    }
}

/// Ends when the process is asked to end.
async fn interruption() {
    let signals = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    let (Ok(mut interrupt), Ok(mut terminate)) = signals else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

/// Copies everything. Returns the number of items that could not be copied.
async fn copy(run: &CopyRun<'_>, ends: &CopyEnds) -> Result<u64, CliError> {
    let copied = match ends {
        CopyEnds::UploadAll { from, to } => return recursive::upload(run, from, to).await,
        CopyEnds::DownloadAll { from, to } => return recursive::download(run, from, to).await,
        CopyEnds::BetweenAll { from, to } => return recursive::between(run, from, to).await,
        CopyEnds::Print { from } => {
            return print_object(run.client, from, None, &mut StdoutStream::open()?).await.map(|_| 0);
        }
        CopyEnds::Upload { from, to } => {
            // A file that cannot be read is reported by the upload.
            run.set_total(from.metadata().map_or(0, |metadata| metadata.len()));
            upload::file(run, from, to).await
        }
        CopyEnds::UploadStream { to } => upload::standard_input(run, to).await,
        CopyEnds::Download { from, to } => download::object(run, from, None, to, SpecialTarget::Write).await,
        CopyEnds::Between { from, to } => server_copy::object(run, from, None, to).await,
    };
    run.add_object(copied.map_err(ItemFailure::error)?);
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::parse_part_size;

    #[test]
    fn parts_have_the_sizes_of_s3() {
        assert_eq!(parse_part_size("8MiB"), Ok(8 << 20));
        for size in ["4MiB", "2GiB", "many"] {
            assert!(parse_part_size(size).is_err(), "{size}");
        }
    }
}
