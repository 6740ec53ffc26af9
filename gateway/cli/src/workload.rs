//! The command `mlgw workload …`.

use super::client::Client;
use super::output::{Out, columns, confirm, pairs};
use super::policy::read;
use super::server_name::ServerName;
use super::{CliError, Global, discover, path_segment};
use crate::figures::age;
use clap::Subcommand;
use http::Method;
use mlgw_api::{
    AccessPlanInfo, AccessPlanList, NewAccessPlan, TreatmentInfo, WorkloadDataset, WorkloadInfo,
    WorkloadList, WorkloadPhase,
};
use mlgw_common::ByteSize;
use std::path::PathBuf;
use std::time::Duration;

/// Time limit of the upload of a plan. The server reports errors earlier.
const PUT_TIMEOUT: Duration = Duration::from_secs(600);

#[derive(Debug, Subcommand)]
pub enum WorkloadCommand {
    /// List the known workloads, the most recently active first. They are kept over restarts.
    List {
        /// Maximum number of workloads.
        #[arg(long, default_value_t = 100, value_name = "N")]
        limit: u32,
    },
    /// Show a workload: its phase with the evidence, its datasets, and its progress.
    Show {
        /// Id of the workload, or the name that it sends.
        #[arg(add = ServerName::WorkloadId)]
        id: String,
    },
    /// Access plans: keys that workloads will read.
    #[command(subcommand)]
    Plan(PlanCommand),
}

#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// Upload a plan to a server, replacing the one with its id.
    Put {
        /// Plan in YAML or JSON.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Name sent by the workloads that follow the plan.
        #[arg(long, value_name = "NAME", add = ServerName::WorkloadName)]
        workload: String,
        /// Id of the plan. Default: the name of the workload.
        #[arg(long, add = ServerName::AccessPlan)]
        id: Option<String>,
    },
    /// Show all plans, or one, and their progress.
    Show {
        /// Id of the plan.
        #[arg(add = ServerName::AccessPlan)]
        id: Option<String>,
    },
    /// Delete a plan. Reads of its workloads are predicted again.
    Delete {
        /// Id of the plan.
        #[arg(add = ServerName::AccessPlan)]
        id: String,
    },
}

pub(super) async fn run(command: WorkloadCommand, global: &Global, out: Out) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    match command {
        WorkloadCommand::List { limit } => {
            let path = format!("/v1/workloads?limit={limit}");
            out.document(&client.get::<WorkloadList>(&path).await?, list)
        }
        WorkloadCommand::Show { id } => {
            let path = format!("/v1/workloads/{}", path_segment(&id));
            out.document(&client.get::<WorkloadInfo>(&path).await?, show)
        }
        WorkloadCommand::Plan(command) => run_plan(command, client, global, out).await,
    }
}

async fn run_plan(command: PlanCommand, client: Client, global: &Global, out: Out) -> Result<(), CliError> {
    let path = |id: &str| format!("/v1/workload-plans/{}", path_segment(id));
    match command {
        PlanCommand::Put { file, workload, id } => {
            let id = id.unwrap_or_else(|| workload.clone());
            let new = NewAccessPlan { workload, name: file.display().to_string(), text: read(&file)? };
            let client = client.with_patience(PUT_TIMEOUT);
            let plan: AccessPlanInfo = client.call(Method::PUT, &path(&id), Some(&new)).await?;
            let (keys, name) = (plan.keys, &plan.workload);
            out.done(&plan, &format!("Uploaded the plan {id} with {keys} keys for workloads named {name:?}."))
        }
        PlanCommand::Show { id: Some(id) } => {
            out.document(&client.get::<AccessPlanInfo>(&path(&id)).await?, show_plan)
        }
        PlanCommand::Show { id: None } => {
            out.document(&client.get::<AccessPlanList>("/v1/workload-plans").await?, list_plans)
        }
        PlanCommand::Delete { id } => {
            confirm(&format!("Delete the plan {id}?"), global.yes)?;
            let plan: AccessPlanInfo = client.call(Method::DELETE, &path(&id), None::<&()>).await?;
            out.done(&plan, &format!("Deleted the plan {id}."))
        }
    }
}

fn list(list: &WorkloadList) -> String {
    let row = |it: &WorkloadInfo| {
        vec![
            it.id.clone(),
            or_none(it.name.as_deref()),
            or_none(it.phase.map(WorkloadPhase::name)),
            if it.active { "yes" } else { "no" }.to_owned(),
            it.epochs.to_string(),
            it.batches.to_string(),
            rate(it),
            ByteSize(it.bytes_read).human(),
            it.workers.to_string(),
            it.last_access.clone(),
        ]
    };
    let rows: Vec<_> = list.workloads.iter().map(row).collect();
    let head =
        ["ID", "NAME", "PHASE", "ACTIVE", "EPOCHS", "BATCHES", "ITEMS/S", "READ", "WORKERS", "LAST ACCESS"];
    let totals = &list.totals;
    let phases = totals.phases.iter().filter(|of| of.workloads > 0);
    let phases: Vec<_> = phases.map(|of| format!("{} {}", of.workloads, of.phase)).collect();
    let phases = if phases.is_empty() { String::new() } else { format!(" ({})", phases.join(", ")) };
    format!(
        "{}\n{} workloads, {} active{phases}; {} epochs, {} batches, {} decisions.\n",
        columns(&head, &rows),
        totals.workloads,
        totals.active,
        totals.epochs,
        totals.batches,
        totals.decisions
    )
}

fn rate(it: &WorkloadInfo) -> String {
    format!("{:.1}", it.items_per_second)
}

fn or_none(text: Option<&str>) -> String {
    text.unwrap_or("-").to_owned()
}

fn show(it: &WorkloadInfo) -> String {
    let phase = match &it.phase {
        Some(phase) => format!("{phase} since {}: {}", it.since, it.evidence),
        None => format!("unknown: {}", it.evidence),
    };
    let batches = match it.batch_size {
        Some(size) => format!("{} of {size:.1} each", it.batches),
        None => it.batches.to_string(),
    };
    let facts = pairs(&[
        ("workload", it.id.clone()),
        ("name", or_none(it.name.as_deref())),
        ("user agent", or_none(it.user_agent.as_deref())),
        ("frameworks", if it.frameworks.is_empty() { "-".to_owned() } else { it.frameworks.join(", ") }),
        ("phase", phase),
        ("treatment", treated(&it.treatment)),
        ("started", it.started.clone()),
        ("last access", format!("{}{}", it.last_access, if it.active { "" } else { ", inactive" })),
        ("workers", it.workers.to_string()),
        ("epochs", it.epochs.to_string()),
        ("batches", batches),
        ("items", format!("{}, {} per second recently", it.items, rate(it))),
        ("read", ByteSize(it.bytes_read).human()),
        ("written", ByteSize(it.bytes_written).human()),
        ("checkpoints", checkpoints(it)),
    ]);
    let row = |set: &WorkloadDataset| {
        vec![
            set.role.to_string(),
            format!("s3://{}/{}", set.bucket, set.keys),
            set.passes.to_string(),
            set.reads.to_string(),
            ByteSize(set.bytes).human(),
            set.last_read.clone(),
        ]
    };
    let rows: Vec<_> = it.datasets.iter().map(row).collect();
    format!("{facts}\n{}", columns(&["ROLE", "DATASET", "PASSES", "READS", "BYTES", "LAST READ"], &rows))
}

fn treated(of: &TreatmentInfo) -> String {
    let TreatmentInfo { optimization, prefetch, cache } = of;
    format!("optimization {optimization}, prefetch {prefetch}, cache {cache}, unless a rule overrides it")
}

fn checkpoints(it: &WorkloadInfo) -> String {
    let Some(last) = &it.last_checkpoint else { return "none".to_owned() };
    let prefix = it.last_checkpoint_prefix.as_ref().map(|prefix| format!(" ({prefix})")).unwrap_or_default();
    let interval = it.checkpoint_interval_seconds.map(|seconds| format!(", every {}", age(seconds as u64)));
    format!("{}, last at {last}{prefix}{}", it.checkpoints, interval.unwrap_or_default())
}

fn list_plans(list: &AccessPlanList) -> String {
    let row = |plan: &AccessPlanInfo| {
        vec![
            plan.id.clone(),
            plan.workload.clone(),
            plan.bucket.clone(),
            plan.keys.to_string(),
            plan.sampler.to_string(),
            if plan.trusted { "yes" } else { "no" }.to_owned(),
            plan_progress(plan),
        ]
    };
    let rows: Vec<_> = list.plans.iter().map(row).collect();
    columns(&["ID", "WORKLOAD", "BUCKET", "KEYS", "SAMPLER", "TRUSTED", "EPOCH"], &rows)
}

/// Formats the current epoch of a plan, and how much of it was read.
fn plan_progress(plan: &AccessPlanInfo) -> String {
    let last = plan.first_epoch + plan.epochs - 1;
    format!("{} of {}..{last}, {} of {} reads", plan.epoch, plan.first_epoch, plan.read, plan.reads)
}

fn show_plan(plan: &AccessPlanInfo) -> String {
    let ranks = match plan.rank {
        Some(rank) => format!("{rank} of {}", plan.ranks),
        None => format!("all {}", plan.ranks),
    };
    let workloads = if plan.workloads.is_empty() { "none yet".to_owned() } else { plan.workloads.join(", ") };
    pairs(&[
        ("plan", plan.id.clone()),
        ("uploaded", plan.put.clone()),
        ("for", format!("workloads named {:?}", plan.workload)),
        ("workloads", workloads),
        ("keys", format!("{} of s3://{}", plan.keys, plan.bucket)),
        ("sampler", format!("{}, seed {}", plan.sampler, plan.seed)),
        ("ranks", ranks),
        (
            "trusted",
            if plan.trusted { "yes" } else { "no: reads differ from the plan, or too few match yet" }
                .to_owned(),
        ),
        ("epoch", plan_progress(plan)),
    ])
}

#[cfg(test)]
mod tests {
    use super::{checkpoints, plan_progress};
    use mlgw_api::{AccessPlanInfo, WorkloadInfo};

    #[test]
    fn the_progress_of_a_workload_and_its_plan_is_formatted() {
        let mut it = WorkloadInfo::default();
        assert_eq!(checkpoints(&it), "none");
        it.checkpoints = 3;
        it.last_checkpoint = Some("T".into());
        assert_eq!(checkpoints(&it), "3, last at T");
        it.checkpoint_interval_seconds = Some(90.4);
        it.last_checkpoint_prefix = Some("s3://b/run/".into());
        assert_eq!(checkpoints(&it), "3, last at T (s3://b/run/), every 1 min 30 s");
        let plan = AccessPlanInfo {
            first_epoch: 3,
            epochs: 10,
            epoch: 4,
            read: 5,
            reads: 9,
            ..AccessPlanInfo::default()
        };
        assert_eq!(plan_progress(&plan), "4 of 3..12, 5 of 9 reads");
    }
}
