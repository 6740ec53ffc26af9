//! The command `mlgw dataset …`.

use super::client::Client;
use super::job;
use super::output::{Out, columns, confirm, pairs};
use super::server_name::ServerName;
use super::word_arg::word_of;
use super::{CliError, Global, discover, path_segment};
use clap::{Args, Subcommand};
use http::Method;
use mlgw_api::{
    DatasetInfo, DatasetJobKind, DatasetList, JobInfo, JobRequest, NewDataset, PinRequest, ResidencyInfo,
    ScheduleInfo, ScheduleRequest, SourceInfo, WarmOrder,
};
use mlgw_common::ByteSize;

#[derive(Debug, Subcommand)]
pub enum DatasetCommand {
    /// List all datasets, with the most recent byte counts.
    List,
    /// Show a dataset: its size, its local part, its bytes by node and tier, and its jobs.
    Show {
        /// Name of the dataset.
        #[arg(add = ServerName::Dataset)]
        dataset: String,
    },
    /// Create a dataset: a name for a bucket or a part of it.
    Create {
        /// Name of the dataset.
        dataset: String,
        /// Bucket of the dataset, native or remote-backed.
        #[arg(long, add = ServerName::Bucket)]
        bucket: String,
        /// Prefix of its keys; may be repeated. Default: the whole bucket.
        #[arg(long = "prefix", value_name = "PREFIX")]
        prefixes: Vec<String>,
        /// Source of imports by sync; may be repeated: an upstream, the prefix of keys there, and after the
        /// last ':' the prefix that replaces it on this server.
        #[arg(
            long = "source", value_name = "UPSTREAM[/PREFIX][:INTO]", value_parser = source,
            add = ServerName::Upstream
        )]
        sources: Vec<SourceInfo>,
    },
    /// Delete the name, its schedules and its jobs. Objects and copies are kept.
    Delete {
        /// Name of the dataset.
        #[arg(add = ServerName::Dataset)]
        dataset: String,
    },
    /// Import new and changed objects from its sources.
    Sync {
        #[command(flatten)]
        job: JobStartArgs,
        /// Delete imported objects that no longer exist at their source.
        #[arg(long)]
        delete: bool,
    },
    /// Fetch ahead of use: copies of a remote-backed bucket, or segments of a native one into the hot tier.
    Warm {
        #[command(flatten)]
        job: JobStartArgs,
        /// Only keys with this prefix.
        #[arg(long, default_value = "")]
        prefix: String,
        /// Order: `sequential` (by key), `shuffled` (random objects) or `shard-shuffled` (random directories,
        /// each by key). For a local bucket, whose segments are promoted, it is the order of segments.
        #[arg(long, default_value = "sequential", value_parser = word_of(WarmOrder::ALL, WarmOrder::name))]
        order: WarmOrder,
    },
    /// Evict copies that were not read recently.
    Evict {
        #[command(flatten)]
        job: JobStartArgs,
        /// Minimum time since the last read, such as 7d.
        #[arg(long, value_name = "AGE")]
        older_than: String,
        /// Only keys with this prefix.
        #[arg(long, default_value = "")]
        prefix: String,
    },
    /// Evict all of its copies. Objects at the origin are kept.
    Clear {
        #[command(flatten)]
        job: JobStartArgs,
        /// Only keys with this prefix.
        #[arg(long, default_value = "")]
        prefix: String,
    },
    /// Protect its copies from eviction.
    Pin {
        /// Name of the dataset.
        #[arg(add = ServerName::Dataset)]
        dataset: String,
        /// Maximum bytes, such as 100GiB. Default: its known size.
        #[arg(long, value_name = "BYTES")]
        bytes_max: Option<String>,
    },
    /// Allow eviction of its copies again.
    Unpin {
        /// Name of the dataset.
        #[arg(add = ServerName::Dataset)]
        dataset: String,
    },
}

/// Dataset and time of a job.
#[derive(Clone, Debug, Args)]
pub struct JobStartArgs {
    /// Name of the dataset.
    #[arg(add = ServerName::Dataset)]
    dataset: String,
    /// Schedule instead of running now: a cron expression in UTC, five fields or six with seconds; `off`
    /// removes it.
    #[arg(long, value_name = "CRON", conflicts_with = "wait")]
    schedule: Option<String>,
    /// Wait for the end. Exit status 1 if the job fails.
    #[arg(long)]
    wait: bool,
}

fn source(text: &str) -> Result<SourceInfo, String> {
    let (there, into) = text.rsplit_once(':').unwrap_or((text, ""));
    let (upstream, prefix) = there.split_once('/').unwrap_or((there, ""));
    if upstream.is_empty() {
        return Err("expected UPSTREAM[/PREFIX][:INTO]".to_owned());
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
            out.done(&gone, &format!("Deleted the dataset {dataset}; its objects and copies are kept."))
        }
        DatasetCommand::Sync { job, delete } => {
            begin(
                &client,
                &job,
                JobRequest { kind: DatasetJobKind::Sync, delete, ..JobRequest::default() },
                out,
            )
            .await
        }
        DatasetCommand::Warm { job, prefix, order } => {
            let request = JobRequest {
                kind: DatasetJobKind::Warm,
                prefix,
                order: Some(order),
                ..JobRequest::default()
            };
            begin(&client, &job, request, out).await
        }
        DatasetCommand::Evict { job, older_than, prefix } => {
            let older_than = Some(older_than);
            let request =
                JobRequest { kind: DatasetJobKind::Evict, older_than, prefix, ..JobRequest::default() };
            begin(&client, &job, request, out).await
        }
        DatasetCommand::Clear { job, prefix } => {
            begin(
                &client,
                &job,
                JobRequest { kind: DatasetJobKind::Clear, prefix, ..JobRequest::default() },
                out,
            )
            .await
        }
        DatasetCommand::Pin { dataset, bytes_max } => {
            let pin = format!("{}/pin", path(&dataset));
            let pinned: DatasetInfo = client.call(Method::PUT, &pin, Some(&PinRequest { bytes_max })).await?;
            let bytes = ByteSize(pinned.pinned_bytes_max.unwrap_or(0)).human();
            out.done(
                &pinned,
                &format!("Pinned the dataset {dataset}: up to {bytes} of its copies are not evicted."),
            )
        }
        DatasetCommand::Unpin { dataset } => {
            let pin = format!("{}/pin", path(&dataset));
            let unpinned: DatasetInfo = client.call(Method::DELETE, &pin, None::<&()>).await?;
            out.done(&unpinned, &format!("Unpinned the dataset {dataset}."))
        }
    }
}

/// Begins a job, or sets or removes its schedule.
async fn begin(client: &Client, begin: &JobStartArgs, request: JobRequest, out: Out) -> Result<(), CliError> {
    let (dataset, kind) = (&begin.dataset, request.kind);
    if let Some(cron) = &begin.schedule {
        let schedule = format!("{}/schedules/{kind}", path(dataset));
        if cron == "off" {
            let changed: DatasetInfo = client.call(Method::DELETE, &schedule, None::<&()>).await?;
            return out.done(&changed, &format!("Removed the schedule for {kind} of {dataset}."));
        }
        let JobRequest { older_than, delete, prefix, order, .. } = request;
        let wanted = ScheduleRequest { cron: cron.clone(), older_than, delete, prefix, order };
        let changed: DatasetInfo = client.call(Method::PUT, &schedule, Some(&wanted)).await?;
        let next = changed.schedules.iter().find(|schedule| schedule.kind == kind);
        let next = next.and_then(|schedule| schedule.next.clone()).unwrap_or_default();
        return out.done(&changed, &format!("Scheduled {kind} of {dataset}; next run at {next}."));
    }
    let jobs = format!("{}/jobs", path(dataset));
    let made: JobInfo = client.call(Method::POST, &jobs, Some(&request)).await?;
    if begin.wait {
        return job::wait(client, made, out).await;
    }
    out.done(
        &made,
        &format!("Started job {0}: {kind} {dataset}; wait for it with `mlgw job wait {0}`.", made.id),
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
            dataset.readiness.to_string(),
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
        None => dataset.readiness.to_string(),
    };
    let total = match (dataset.objects, dataset.bytes) {
        (Some(objects), Some(bytes)) => format!("{} in {objects} objects", size(bytes)),
        _ => "unknown; a warm job counts it".to_owned(),
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
        ("job", dataset.job.as_ref().map_or_else(|| "none".to_owned(), job::progress_line)),
    ]);
    let row = |of: &ResidencyInfo| vec![of.node.to_string(), of.tier.to_string(), size(of.bytes)];
    let rows: Vec<_> = dataset.residency.iter().map(row).collect();
    format!("{facts}\n{}", columns(&["NODE", "TIER", "BYTES"], &rows))
}

#[cfg(test)]
mod tests {
    use super::{DatasetInfo, ResidencyInfo, SourceInfo, show, source};
    use mlgw_api::ResidencyTier;

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

    #[test]
    fn a_dataset_is_shown_with_its_bytes_by_node_and_tier() {
        let of = |node, tier, bytes| ResidencyInfo { node, tier, bytes };
        let residency = vec![
            of(2, ResidencyTier::Cold, 512),
            of(2, ResidencyTier::Hot, 3 << 20),
            of(12, ResidencyTier::Copies, 2 << 30),
        ];
        let dataset =
            DatasetInfo { residency, bytes: Some(4 << 20), cached_bytes: 3 << 20, ..DatasetInfo::default() };
        let shown = show(&dataset);
        let table = "\n\n\
NODE  TIER    BYTES
2     cold    512 B
2     hot     3.0 MiB
12    copies  2.0 GiB
";
        assert!(shown.ends_with(table), "{shown}");
        assert!(shown.contains("3.0 MiB (75 %)"), "{shown}");
    }
}
