//! The command `mlgw upstream …`.

use super::client::Client;
use super::output::{Out, columns, pairs};
use super::server_name::ServerName;
use super::{CliError, Global, discover, path_segment};
use clap::Subcommand;
use http::Method;
use mlgw_api::{CheckInfo, UpstreamInfo, UpstreamList};
use mlgw_common::ByteSize;

#[derive(Debug, Subcommand)]
pub enum UpstreamCommand {
    /// List the configured upstreams.
    List,
    /// Show an upstream and its remote-backed buckets.
    Show {
        /// Name of the upstream in the configuration.
        #[arg(add = ServerName::Upstream)]
        upstream: String,
    },
    /// Transfer the ownership of its prefix to this server, after a restore or a rebuild. Other servers stop
    /// deleting in it.
    Adopt {
        /// Name of the upstream in the configuration.
        #[arg(add = ServerName::Upstream)]
        upstream: String,
    },
    /// Test an upstream: write, read and delete an object, and report missing permissions. Exit status 1 on
    /// failure.
    Check {
        /// Name of the upstream in the configuration.
        #[arg(add = ServerName::Upstream)]
        upstream: String,
    },
}

pub(super) async fn run(command: UpstreamCommand, global: &Global, out: Out) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    match command {
        UpstreamCommand::List => out.document(&client.get::<UpstreamList>("/v1/upstreams").await?, list),
        UpstreamCommand::Show { upstream } => {
            out.document(&client.get::<UpstreamInfo>(&path(&upstream)).await?, show)
        }
        UpstreamCommand::Adopt { upstream } => {
            let path = format!("{}/adopt", path(&upstream));
            let adopted: UpstreamInfo = client.call(Method::POST, &path, None::<&()>).await?;
            out.document(&adopted, show)
        }
        UpstreamCommand::Check { upstream } => check(&client, &upstream, out).await,
    }
}

fn path(upstream: &str) -> String {
    format!("/v1/upstreams/{}", path_segment(upstream))
}

async fn check(client: &Client, upstream: &str, out: Out) -> Result<(), CliError> {
    let path = format!("{}/check", path(upstream));
    let steps: Vec<CheckInfo> = client.call(Method::POST, &path, None::<&()>).await?;
    let failed: Vec<&str> =
        steps.iter().filter(|step| step.fault.is_some()).map(|step| step.step.name()).collect();
    out.document(&steps, |steps| {
        let rows: Vec<_> = steps.iter().map(row).collect();
        columns(&["STEP", "RESULT", "MISSING"], &rows)
    })?;
    match failed.is_empty() {
        true => Ok(()),
        false => Err(CliError::Failed(format!(
            "the upstream {upstream} failed these steps: {}",
            failed.join(", ")
        ))),
    }
}

fn row(step: &CheckInfo) -> Vec<String> {
    let result = step.fault.clone().unwrap_or_else(|| "ok".to_owned());
    vec![step.step.to_string(), result, step.missing.clone().unwrap_or_default()]
}

fn list(list: &UpstreamList) -> String {
    let row = |upstream: &UpstreamInfo| {
        vec![
            upstream.name.clone(),
            upstream.kind.to_string(),
            upstream.bucket.clone(),
            upstream.endpoint.clone().unwrap_or_default(),
            upstream.bound.len().to_string(),
            ByteSize(upstream.segment_bytes).human(),
            upstream.owner.to_string(),
        ]
    };
    let rows: Vec<_> = list.upstreams.iter().map(row).collect();
    columns(&["UPSTREAM", "KIND", "BUCKET", "ENDPOINT", "BOUND", "SEGMENTS", "OWNER"], &rows)
}

fn show(upstream: &UpstreamInfo) -> String {
    let mut owner = upstream.owner.to_string();
    if let Some(advice) = &upstream.advice {
        owner = format!("{owner}: {advice}");
    }
    let conditions = match upstream.conditions {
        Some(true) => "honored",
        Some(false) => "ignored",
        None => "unknown",
    };
    pairs(&[
        ("upstream", upstream.name.clone()),
        ("kind", upstream.kind.to_string()),
        ("endpoint", upstream.endpoint.clone().unwrap_or_else(|| "the vendor's default".to_owned())),
        ("bucket", upstream.bucket.clone()),
        ("prefix", upstream.prefix.clone()),
        ("encrypt", upstream.encrypt.to_string()),
        ("bound", upstream.bound.join(", ")),
        ("spilled to", upstream.spilled_to.to_string()),
        ("segments", format!("{}, {}", upstream.segments, ByteSize(upstream.segment_bytes).human())),
        ("owner", owner),
        ("conditional writes", conditions.to_owned()),
    ])
}
