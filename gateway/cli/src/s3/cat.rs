//! `mlgw cat`: writes objects, or a range of each, to standard output as their bytes arrive.
//!
//! The first object that cannot be read ends the command with its error. Bytes that were written before
//! remain in the output, so output is complete only if the exit status is 0; a checksum that does not match
//! is known after the last byte. If the reader of standard output closes the pipe, the command ends without
//! an error.

use super::client::S3Client;
use super::path::{RemotePath, parse_object};
use super::range::{ByteRange, parse_range};
use super::reader::ObjectReader;
use super::target::{S3Options, target};
use crate::stdout::StdoutStream;
use crate::{CliError, Global};
use clap::Args;
use std::ops::ControlFlow;

#[derive(Debug, Args)]
pub struct CatArgs {
    /// Objects: s3://BUCKET/KEY or BUCKET/KEY.
    #[arg(required = true, value_name = "PATH", value_parser = parse_object)]
    paths: Vec<RemotePath>,
    /// Bytes to print, counted from 0: A-B, A- or -N for the last N bytes.
    #[arg(long, value_name = "A-B", value_parser = parse_range, allow_hyphen_values = true)]
    range: Option<ByteRange>,
    #[command(flatten)]
    s3: S3Options,
}

pub(crate) async fn run(args: CatArgs, global: &Global) -> Result<(), CliError> {
    let client = S3Client::new(target(&args.s3, global)?)?;
    let mut out = StdoutStream::open()?;
    for object in &args.paths {
        if print_object(&client, object, args.range, &mut out).await?.is_break() {
            break;
        }
    }
    Ok(())
}

/// Prints an object, or a range of it. Returns `Break` if the reader of standard output closed the pipe.
///
/// # Errors
/// The object cannot be read, or standard output cannot be written.
pub(super) async fn print_object(
    client: &S3Client,
    object: &RemotePath,
    range: Option<ByteRange>,
    out: &mut StdoutStream,
) -> Result<ControlFlow<()>, CliError> {
    let failed = |failure| client.error(failure, object);
    let opened = match range {
        Some(range) => ObjectReader::open_range(client, object, range).await,
        None => ObjectReader::open(client, object, None).await,
    };
    let mut reader = opened.map_err(failed)?;
    while let Some(bytes) = reader.next().await.map_err(failed)? {
        if out.write(&bytes)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}
