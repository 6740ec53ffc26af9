//! The command `mlgw job …`.

use super::client::Client;
use super::figures::age;
use super::output::{Out, columns, pairs};
use super::progress::CommandProgress;
use super::server_name::ServerName;
use super::{CliError, Global, discover, path_segment};
use clap::Subcommand;
use http::Method;
use mlgw_api::{DatasetJobState, JobInfo, JobList};
use mlgw_common::ByteSize;
use std::time::Duration;

/// Interval between requests for the state of an awaited job.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// List the known jobs, the newest first.
    List {
        /// Only jobs of this dataset.
        #[arg(long, add = ServerName::Dataset)]
        dataset: Option<String>,
    },
    /// Show a job and its progress.
    Show {
        /// Number of the job.
        #[arg(add = ServerName::Job)]
        id: u64,
    },
    /// Wait for the end of a job. Exit status 1 if it fails or is cancelled.
    Wait {
        /// Number of the job.
        #[arg(add = ServerName::Job)]
        id: u64,
    },
    /// Cancel a job. Completed work is kept.
    Cancel {
        /// Number of the job.
        #[arg(add = ServerName::Job)]
        id: u64,
    },
}

pub(super) async fn run(command: JobCommand, global: &Global, out: Out) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    match command {
        JobCommand::List { dataset } => {
            let of =
                dataset.map(|dataset| format!("?dataset={}", path_segment(&dataset))).unwrap_or_default();
            out.document(&client.get::<JobList>(&format!("/v1/jobs{of}")).await?, list)
        }
        JobCommand::Show { id } => out.document(&client.get::<JobInfo>(&path(id)).await?, show),
        JobCommand::Wait { id } => {
            let job = client.get(&path(id)).await?;
            wait(&client, job, out).await
        }
        JobCommand::Cancel { id } => {
            let cancel = format!("{}/cancel", path(id));
            let job: JobInfo = client.call(Method::POST, &cancel, None::<&()>).await?;
            out.done(&job, &format!("Requested the cancellation of job {id}; completed work is kept."))
        }
    }
}

/// Waits for a job's end, and shows its progress meanwhile.
pub(super) async fn wait(client: &Client, mut job: JobInfo, out: Out) -> Result<(), CliError> {
    let progress = CommandProgress::new(out.quiet);
    while matches!(job.state, DatasetJobState::Queued | DatasetJobState::Running) {
        let total = if job.counted { job.bytes_total } else { 0 };
        progress.line(job.bytes_done, total, || progress_line(&job));
        mlgw_common::time::sleep(POLL_INTERVAL).await;
        job = client.get(&path(job.id)).await?;
    }
    progress.done();
    out.document(&job, show)?;
    match job.state {
        DatasetJobState::Done => Ok(()),
        state => Err(CliError::Failed(format!(
            "job {} {state}{}",
            job.id,
            job.error.map(|error| format!(": {error}")).unwrap_or_default()
        ))),
    }
}

fn path(id: u64) -> String {
    format!("/v1/jobs/{id}")
}

/// Formats the progress of a job in one line.
pub(super) fn progress_line(job: &JobInfo) -> String {
    let size = |bytes: u64| ByteSize(bytes).human();
    let at_least = if job.counted { "" } else { "at least " };
    let percent = match job.bytes_total {
        total if job.counted && total > 0 => format!(" ({} %)", job.bytes_done.min(total) * 100 / total),
        _ => String::new(),
    };
    let rate = job.bytes_per_second.map(|rate| format!(", {}/s", size(rate))).unwrap_or_default();
    let left = job.eta_seconds.map(|seconds| format!(", {} left", age(seconds))).unwrap_or_default();
    format!(
        "{} {} ({}): {} of {at_least}{} objects, {} of {at_least}{}{percent}{rate}{left}",
        job.kind,
        job.id,
        job.state,
        job.objects_done,
        job.objects_total,
        size(job.bytes_done),
        size(job.bytes_total)
    )
}

fn list(list: &JobList) -> String {
    let row = |job: &JobInfo| {
        vec![
            job.id.to_string(),
            job.dataset.clone(),
            job.kind.to_string(),
            job.state.to_string(),
            format!("{}/{}", job.objects_done, job.objects_total),
            ByteSize(job.moved_bytes).human(),
            job.created.clone(),
        ]
    };
    let rows: Vec<_> = list.jobs.iter().map(row).collect();
    columns(&["JOB", "DATASET", "KIND", "STATE", "OBJECTS", "MOVED", "CREATED"], &rows)
}

fn show(job: &JobInfo) -> String {
    let size = |bytes: u64| ByteSize(bytes).human();
    let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let mut rows = vec![
        ("job", job.id.to_string()),
        ("dataset", job.dataset.clone()),
        ("kind", job.kind.to_string()),
        (
            "state",
            if job.cancel_asked {
                format!("{}, cancellation requested", job.state)
            } else {
                job.state.to_string()
            },
        ),
        ("objects", format!("{} of {}", job.objects_done, job.objects_total)),
        ("bytes", format!("{} of {}", size(job.bytes_done), size(job.bytes_total))),
        ("moved", format!("{} in {} objects", size(job.moved_bytes), job.moved_objects)),
        ("failed", job.failed_objects.to_string()),
        ("deleted", job.deleted_objects.to_string()),
        ("requested", format!("{} by {}", job.created, job.requested_by)),
        ("started", or_none(&job.started)),
        ("ended", or_none(&job.ended)),
        ("starts", job.starts.to_string()),
    ];
    rows.extend(job.order.map(|order| ("order", order.to_string())));
    rows.extend(job.to.as_ref().map(|to| ("to", format!("{}/{}", to.upstream, to.prefix))));
    rows.extend(job.bytes_per_second.map(|rate| ("rate", format!("{}/s", size(rate)))));
    rows.extend(job.eta_seconds.map(|seconds| ("left", age(seconds))));
    rows.extend(job.error.clone().map(|error| ("error", error)));
    pairs(&rows)
}

#[cfg(test)]
pub(super) mod tests {
    use super::progress_line;
    use mlgw_api::{DatasetJobKind, DatasetJobState, JobInfo};

    pub(crate) fn a_job() -> JobInfo {
        JobInfo {
            id: 7,
            dataset: "images".into(),
            kind: DatasetJobKind::Warm,
            state: DatasetJobState::Running,
            objects_done: 3,
            objects_total: 10,
            bytes_done: 3 << 20,
            bytes_total: 10 << 20,
            ..JobInfo::default()
        }
    }

    #[test]
    fn a_line_has_the_progress_the_rate_and_the_remaining_time() {
        let job = a_job();
        assert_eq!(
            progress_line(&job),
            "warm 7 (running): 3 of at least 10 objects, 3.0 MiB of at least 10.0 MiB"
        );
        let counted = JobInfo { counted: true, bytes_per_second: Some(1 << 20), eta_seconds: Some(7), ..job };
        assert_eq!(
            progress_line(&counted),
            "warm 7 (running): 3 of 10 objects, 3.0 MiB of 10.0 MiB (30 %), 1.0 MiB/s, 7 s left"
        );
    }
}
