//! `mlgw dataset …`

use super::client::Client;
use super::job;
use super::output::{Out, columns, confirm, pairs};
use super::{CliError, Global, discover, path_segment};
use clap::{Args, Subcommand};
use http::Method;
use mlgw_api::{
    DatasetInfo, DatasetList, JobInfo, JobRequest, NewDataset, PinRequest, ResidencyInfo, ScheduleInfo,
    ScheduleRequest, SourceInfo,
};
use mlgw_common::ByteSize;

#[derive(Debug, Subcommand)]
pub enum DatasetCommand {
    /// All datasets, with bytes as they were counted last.
    List,
    /// One dataset: how much there is, how much of it is here, where, and what is done with it.
    Show {
        /// Its name.
        dataset: String,
    },
    /// A name for a bucket or some of it.
    Create {
        /// Its name.
        dataset: String,
        /// The bucket that it is of, native or bound.
        #[arg(long)]
        bucket: String,
        /// What its keys begin with; may be given again. The whole bucket when not given.
        #[arg(long = "prefix", value_name = "PREFIX")]
        prefixes: Vec<String>,
        /// Where a sync imports it from; may be given again: an upstream, what keys there begin with, and after the last ':' what they begin
        /// with here instead.
        #[arg(long = "source", value_name = "UPSTREAM[/PREFIX][:INTO]", value_parser = source)]
        sources: Vec<SourceInfo>,
    },
    /// Forget the name, its schedules and its jobs; objects and copies stay.
    Delete {
        /// Its name.
        dataset: String,
    },
    /// Import what is new or changed at its sources.
    Sync {
        #[command(flatten)]
        job: Begin,
        /// Delete here what was imported and is gone at its source.
        #[arg(long)]
        delete: bool,
    },
    /// Bring it in ahead of use: into copies when its bucket is bound, into the hot tier when it is ours.
    Warm {
        #[command(flatten)]
        job: Begin,
        /// Only keys that begin so.
        #[arg(long, default_value = "")]
        prefix: String,
        /// In which order: `sequential` (as keys sort), `shuffled` (objects at random) or `shard-shuffled` (directories at random, each as
        /// keys sort). Of a bucket of ours, whose segments are promoted, that is the order of segments.
        #[arg(long, default_value = "sequential")]
        order: String,
    },
    /// Drop copies that nobody read for long.
    Evict {
        #[command(flatten)]
        job: Begin,
        /// How long, such as 7d.
        #[arg(long, value_name = "AGE")]
        older_than: String,
        /// Only keys that begin so.
        #[arg(long, default_value = "")]
        prefix: String,
    },
    /// Drop all of its copies; what is at the origin stays.
    Clear {
        #[command(flatten)]
        job: Begin,
        /// Only keys that begin so.
        #[arg(long, default_value = "")]
        prefix: String,
    },
    /// Keep its copies from making room for others.
    Pin {
        /// Its name.
        dataset: String,
        /// Bytes at most, such as 100GiB; as much as it is known to have when not given.
        #[arg(long, value_name = "BYTES")]
        bytes_max: Option<String>,
    },
    /// Let its copies make room again.
    Unpin {
        /// Its name.
        dataset: String,
    },
}

/// Which dataset, and when.
#[derive(Clone, Debug, Args)]
pub struct Begin {
    /// Its name.
    dataset: String,
    /// By the clock instead of now: a cron expression in UTC, five fields or six with seconds; `off` ends that.
    #[arg(long, value_name = "CRON", conflicts_with = "wait")]
    schedule: Option<String>,
    /// Wait for the end; exit status 1 when something fails.
    #[arg(long)]
    wait: bool,
}

fn source(text: &str) -> Result<SourceInfo, String> {
    let (there, into) = text.rsplit_once(':').unwrap_or((text, ""));
    let (upstream, prefix) = there.split_once('/').unwrap_or((there, ""));
    if upstream.is_empty() {
        return Err("a source is written UPSTREAM[/PREFIX][:INTO]".to_owned());
    }
    Ok(SourceInfo { upstream: upstream.to_owned(), prefix: prefix.to_owned(), into: into.to_owned() })
}

pub(super) async fn run(command: DatasetCommand, global: &Global, out: Out) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    match command {
        DatasetCommand::List => out.document(&client.get::<DatasetList>("/v1/datasets").await?, list),
        DatasetCommand::Show { dataset } => {
            out.document(&client.get::<DatasetInfo>(&path(&dataset)).await?, show)
        }
        DatasetCommand::Create { dataset, bucket, prefixes, sources } => {
            let new = NewDataset { name: dataset.clone(), bucket, slices: prefixes, sources };
            let made: DatasetInfo = client.call(Method::POST, "/v1/datasets", Some(&new)).await?;
            out.done(&made, &format!("Created the dataset {dataset}."))
        }
        DatasetCommand::Delete { dataset } => {
            confirm(&format!("Delete the dataset {dataset}?"), global.yes)?;
            let gone: DatasetInfo = client.call(Method::DELETE, &path(&dataset), None::<&()>).await?;
            out.done(&gone, &format!("Deleted the dataset {dataset}; its objects and copies stay."))
        }
        DatasetCommand::Sync { job, delete } => {
            begin(&client, &job, JobRequest { kind: "sync".into(), delete, ..JobRequest::default() }, out)
                .await
        }
        DatasetCommand::Warm { job, prefix, order } => {
            let request =
                JobRequest { kind: "warm".into(), prefix, order: Some(order), ..JobRequest::default() };
            begin(&client, &job, request, out).await
        }
        DatasetCommand::Evict { job, older_than, prefix } => {
            let older_than = Some(older_than);
            let request = JobRequest { kind: "evict".into(), older_than, prefix, ..JobRequest::default() };
            begin(&client, &job, request, out).await
        }
        DatasetCommand::Clear { job, prefix } => {
            begin(&client, &job, JobRequest { kind: "clear".into(), prefix, ..JobRequest::default() }, out)
                .await
        }
        DatasetCommand::Pin { dataset, bytes_max } => {
            let pin = format!("{}/pin", path(&dataset));
            let pinned: DatasetInfo = client.call(Method::PUT, &pin, Some(&PinRequest { bytes_max })).await?;
            let bytes = ByteSize(pinned.pinned_bytes_max.unwrap_or(0)).human();
            out.done(&pinned, &format!("Pinned the dataset {dataset}: up to {bytes} of its copies stay."))
        }
        DatasetCommand::Unpin { dataset } => {
            let pin = format!("{}/pin", path(&dataset));
            let unpinned: DatasetInfo = client.call(Method::DELETE, &pin, None::<&()>).await?;
            out.done(&unpinned, &format!("The dataset {dataset} is not pinned."))
        }
    }
}

/// Begins a job, or says when it is to be begun.
async fn begin(client: &Client, begin: &Begin, request: JobRequest, out: Out) -> Result<(), CliError> {
    let (dataset, kind) = (&begin.dataset, request.kind.clone());
    if let Some(cron) = &begin.schedule {
        let schedule = format!("{}/schedules/{kind}", path(dataset));
        if cron == "off" {
            let changed: DatasetInfo = client.call(Method::DELETE, &schedule, None::<&()>).await?;
            return out.done(&changed, &format!("{kind} of {dataset} is not done by the clock any more."));
        }
        let JobRequest { older_than, delete, prefix, order, .. } = request;
        let wanted = ScheduleRequest { cron: cron.clone(), older_than, delete, prefix, order };
        let changed: DatasetInfo = client.call(Method::PUT, &schedule, Some(&wanted)).await?;
        let next = changed.schedules.iter().find(|schedule| schedule.kind == kind);
        let next = next.and_then(|schedule| schedule.next.clone()).unwrap_or_default();
        return out.done(&changed, &format!("{kind} of {dataset}: next at {next}."));
    }
    let jobs = format!("{}/jobs", path(dataset));
    let made: JobInfo = client.call(Method::POST, &jobs, Some(&request)).await?;
    if begin.wait {
        return job::wait(client, made, out).await;
    }
    out.done(
        &made,
        &format!("Job {0} is asked to {kind} {dataset}; `mlgw job wait {0}` waits for it.", made.id),
    )
}

fn path(dataset: &str) -> String {
    format!("/v1/datasets/{}", path_segment(dataset))
}

fn size(bytes: u64) -> String {
    ByteSize(bytes).human()
}

fn list(list: &DatasetList) -> String {
    let row = |dataset: &DatasetInfo| {
        vec![
            dataset.name.clone(),
            dataset.bucket.clone(),
            dataset.readiness.clone(),
            dataset.bytes.map_or_else(|| "-".to_owned(), size),
            size(dataset.cached_bytes),
            dataset.job.as_ref().map_or_else(String::new, |job| format!("{} {}", job.kind, job.id)),
        ]
    };
    let rows: Vec<_> = list.datasets.iter().map(row).collect();
    columns(&["DATASET", "BUCKET", "READY", "SIZE", "CACHED", "JOB"], &rows)
}

fn show(dataset: &DatasetInfo) -> String {
    let whole = || "the whole bucket".to_owned();
    let source =
        |source: &SourceInfo| format!("{}/{} into {:?}", source.upstream, source.prefix, source.into);
    let schedule = |schedule: &ScheduleInfo| {
        format!(
            "{} at {:?}, next {}",
            schedule.kind,
            schedule.cron,
            schedule.next.as_deref().unwrap_or("never")
        )
    };
    let joined = |lines: Vec<String>, none: &str| {
        if lines.is_empty() { none.to_owned() } else { lines.join("; ") }
    };
    let readiness = match &dataset.fault {
        Some(fault) => format!("{}: {fault}", dataset.readiness),
        None => dataset.readiness.clone(),
    };
    let total = match (dataset.objects, dataset.bytes) {
        (Some(objects), Some(bytes)) => format!("{} in {objects} objects", size(bytes)),
        _ => "not known; a warm counts it".to_owned(),
    };
    let percent = |bytes: u64| 100 * u128::from(dataset.cached_bytes) / u128::from(bytes.max(1));
    let cached = match dataset.bytes {
        Some(bytes) if bytes > 0 => format!("{} ({} %)", size(dataset.cached_bytes), percent(bytes)),
        _ => size(dataset.cached_bytes),
    };
    let facts = pairs(&[
        ("dataset", dataset.name.clone()),
        ("bucket", dataset.bucket.clone()),
        ("slices", if dataset.slices.is_empty() { whole() } else { dataset.slices.join(", ") }),
        ("sources", joined(dataset.sources.iter().map(source).collect(), "none")),
        ("ready", readiness),
        ("total", total),
        ("cached", cached),
        ("space left", size(dataset.space_left_bytes)),
        (
            "pinned",
            dataset.pinned_bytes_max.map_or_else(|| "no".to_owned(), |b| format!("up to {}", size(b))),
        ),
        ("schedules", joined(dataset.schedules.iter().map(schedule).collect(), "none")),
        ("job", dataset.job.as_ref().map_or_else(|| "none".to_owned(), job::in_short)),
    ]);
    let row = |of: &ResidencyInfo| vec![of.node.clone(), of.tier.clone(), size(of.bytes)];
    let rows: Vec<_> = dataset.residency.iter().map(row).collect();
    format!("{facts}\n{}", columns(&["NODE", "TIER", "BYTES"], &rows))
}

#[cfg(test)]
mod tests {
    use super::{SourceInfo, source};

    #[test]
    fn a_source_is_an_upstream_a_prefix_and_a_place() {
        let of = |upstream: &str, prefix: &str, into: &str| {
            Ok(SourceInfo { upstream: upstream.into(), prefix: prefix.into(), into: into.into() })
        };
        assert_eq!(source("lake"), of("lake", "", ""));
        assert_eq!(source("lake/set/year=2024/"), of("lake", "set/year=2024/", ""));
        assert_eq!(source("lake/set/:train/"), of("lake", "set/", "train/"));
        assert_eq!(source("lake:train/"), of("lake", "", "train/"));
        assert_eq!(source("lake/a:b/:"), of("lake", "a:b/", ""));
        assert!(source("/set").is_err());
    }
}
