//! The command `mlgw cluster …`: makes a stopped server the first node of a cluster, adds and removes nodes,
//! and shows nodes and groups.

mod join;
pub(super) mod recover;

use crate::store::{DataDirArgs, failure};
use clap::Subcommand;
use join::JoinArgs;
use mlgw_cli::cluster::RemoveOptions;
use mlgw_cli::output::Out;
use mlgw_cli::progress::CommandProgress;
use mlgw_cli::{CliError, ConfigFile, Global, cluster, run_async};
use mlgw_common::{Clock, SystemClock};
use mlgw_store::{ClusterInitError, OldRows, cluster_init};
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Debug, Subcommand)]
pub(super) enum ClusterCommand {
    /// Make a stopped server the first node of a cluster. Its objects stay where they are.
    Init(DataDirArgs),
    /// Create a token that admits one node to the cluster within an hour, and print the command that uses it.
    Token,
    /// Make an empty data directory that of a new node of a cluster. Start the node with `mlgw serve`.
    Join(JoinArgs),
    /// Nodes and Raft groups of the cluster, with findings.
    Status,
    /// Replace the authority that signs the certificates of the nodes, while the cluster serves.
    RotateCa,
    /// Spread groups and segments over more than three storage nodes: create sets of nodes, and move groups.
    Rebalance {
        /// Begin nothing: print the sets, and what is left to do.
        #[arg(long)]
        status: bool,
    },
    /// Empty a node, so that it can be removed: others copy its segments and take its votes over.
    Drain {
        /// Id of the node.
        node: u64,
        /// Keep so many copies of each segment, 2 or 3; as many active storage nodes must be left.
        #[arg(long, value_name = "COPIES", value_parser = clap::value_parser!(u64).range(2..=3))]
        to_copies: Option<u64>,
    },
    /// End the draining of a node: it is active again.
    Undrain {
        /// Id of the node.
        node: u64,
    },
    /// Remove a drained node for ever. Its id is never used again.
    Remove {
        /// Id of the node.
        node: u64,
        /// The node never returns: remove it although it is not drained. What only it has is lost.
        #[arg(long)]
        lost: bool,
    },
    /// Make a stopped storage node a server of its own, after the loss of all other nodes of its cluster.
    Recover {
        /// The data directory of the node.
        #[arg(long, value_name = "D")]
        from: PathBuf,
        #[command(flatten)]
        file: ConfigFile,
        /// Accept the loss of acknowledged changes in groups whose rows on this node may be old.
        #[arg(long, conflicts_with = "take_over")]
        old_rows: bool,
        /// End the recovery of a stopped server: write-back, rules and jobs run again.
        #[arg(long)]
        take_over: bool,
    },
    /// Replace a storage node by another one that has joined: drain it, and remove it when it is drained.
    Replace {
        /// Id of the node that leaves.
        old: u64,
        /// Id of the active storage node that takes its place.
        #[arg(long, value_name = "NODE")]
        with: u64,
        /// The old node never returns: remove it at once. What only it has is lost.
        #[arg(long)]
        lost: bool,
    },
}

pub(super) fn run(command: ClusterCommand, global: &Global, out: Out) -> Result<(), CliError> {
    match command {
        ClusterCommand::Init(place) => init(&place, out),
        ClusterCommand::Token => run_async(cluster::token(global, out)),
        ClusterCommand::Join(args) => join::run(args, out),
        ClusterCommand::Status => run_async(cluster::status(global, out)),
        ClusterCommand::RotateCa => run_async(cluster::rotate_ca(global, out)),
        ClusterCommand::Rebalance { status: false } => run_async(cluster::rebalance(global, out)),
        ClusterCommand::Rebalance { status: true } => run_async(cluster::rebalance_status(global, out)),
        ClusterCommand::Drain { node, to_copies } => run_async(cluster::drain(global, out, node, to_copies)),
        ClusterCommand::Undrain { node } => run_async(cluster::undrain(global, out, node)),
        ClusterCommand::Remove { node, lost } => {
            run_async(cluster::remove(global, out, node, RemoveOptions { is_lost: lost }))
        }
        ClusterCommand::Recover { from, file, take_over: true, old_rows: _ } => {
            recover::take_over(&DataDirArgs::new(from, file), out)
        }
        ClusterCommand::Recover { from, file, take_over: false, old_rows } => {
            let old_rows = if old_rows { OldRows::Accept } else { OldRows::Refuse };
            recover::run(&DataDirArgs::new(from, file), old_rows, global, out)
        }
        ClusterCommand::Replace { old, with, lost } => {
            run_async(cluster::replace(global, out, old, with, RemoveOptions { is_lost: lost }))
        }
    }
}

fn init(place: &DataDirArgs, out: Out) -> Result<(), CliError> {
    let config = place.config()?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let progress = CommandProgress::new(out.quiet);
    let watch = |stage, done, total| progress.step(stage, done, total);
    let made = run_async(async { cluster_init(&config, &clock, &watch).await.map_err(init_failure) });
    progress.done();
    let made = made?;
    let document = json!({
        "cluster": made.cluster.to_string(),
        "node": made.node.get(),
        "catalogue": made.catalogue.to_string(),
        "object_group": made.division.object_group,
        "rows": made.division.rows,
        "objects": made.division.objects,
        "entries": made.division.entries,
    });
    let sentence = format!(
        "{} is node {} of cluster {}: {} objects and {} rows were verified. The catalogue is in {}.",
        config.data_dir.display(),
        made.node,
        made.cluster,
        made.division.objects,
        made.division.rows,
        made.catalogue
    );
    out.done(&document, &sentence)
}

fn init_failure(error: ClusterInitError) -> CliError {
    match error {
        ClusterInitError::Store(error) => failure(error),
        ClusterInitError::Clustered(..)
        | ClusterInitError::Recovered(_)
        | ClusterInitError::Durability
        | ClusterInitError::DeletingRules(_) => CliError::Refused(error.to_string()),
        ClusterInitError::Policy(_) | ClusterInitError::Divide(_) => CliError::Failed(error.to_string()),
    }
}
