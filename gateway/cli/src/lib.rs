//! The commands that use a server's admin API, and local commands for policies and traces.
//!
//! Exit status: 0 success, 1 failure or findings, 2 wrong usage, 3 server unreachable, 4 refused. An error
//! states the problem, its place, and the next step. A change requested by a command is durable on the server
//! before the command reports success.

mod access;
mod bucket;
pub mod client;
pub mod completion;
mod dataset;
pub mod discover;
mod figures;
mod job;
mod object;
pub mod output;
mod policy;
pub mod progress;
mod quota;
mod server_name;
mod status;
mod tier;
mod top;
mod trace;
mod upstream;
mod workload;

pub use output::Out;

use clap::{Args, Subcommand, ValueEnum};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::path::PathBuf;

/// Options of every command.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// URL of the admin API. Default: the server that uses the data directory on this host.
    #[arg(long, global = true, env = "MLGW_ADMIN_ENDPOINT", value_name = "URL")]
    pub endpoint: Option<String>,
    /// Output format.
    #[arg(long, global = true, value_enum, default_value_t = OutputForm::Table)]
    pub output: OutputForm,
    /// Do not ask for confirmation.
    #[arg(long, global = true)]
    pub yes: bool,
    /// Print no progress and no confirmations.
    #[arg(long, global = true)]
    pub quiet: bool,
}

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputForm {
    /// Aligned columns.
    Table,
    /// JSON.
    Json,
}

/// A command that uses a server, or works on policies and traces on this host.
#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// Access keys: create, list, update, delete.
    #[command(subcommand)]
    Access(access::AccessCommand),
    /// Buckets: create, list, set quotas, bind to an upstream, delete.
    #[command(subcommand)]
    Bucket(bucket::BucketCommand),
    /// Objects: metadata and location of the data.
    #[command(subcommand)]
    Object(object::ObjectSubcommand),
    /// Storage tiers: usage, scrub, compaction, drain.
    #[command(subcommand)]
    Tier(tier::TierCommand),
    /// Datasets: named sets of keys to import, warm, pin and evict together.
    #[command(subcommand)]
    Dataset(dataset::DatasetCommand),
    /// Jobs: list, show, wait, cancel.
    #[command(subcommand)]
    Job(job::JobCommand),
    /// Placement policies: validate, simulate, apply, explain.
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Workloads: phases and progress of training and serving clients, access plans.
    #[command(subcommand)]
    Workload(workload::WorkloadCommand),
    /// Access traces: record, export, import.
    #[command(subcommand)]
    Trace(trace::TraceCommand),
    /// Upstream object stores: list, check, adopt.
    #[command(subcommand)]
    Upstream(upstream::UpstreamCommand),
    /// Server health and findings.
    Status {
        /// Print the metrics instead.
        #[arg(long)]
        metrics: bool,
    },
    /// Live server load, refreshed until `q`.
    Top(top::TopArgs),
}

impl ClientCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// The error of the command, for people.
    pub fn run(self, global: &Global, out: Out) -> Result<(), CliError> {
        match self {
            Self::Access(command) => run_async(access::run(command, global, out)),
            Self::Bucket(command) => run_async(bucket::run(command, global, out)),
            Self::Object(command) => run_async(object::run(command, global, out)),
            Self::Status { metrics } => run_async(status::run(metrics, global, out)),
            Self::Top(args) => run_async(top::run(args, global, out)),
            Self::Tier(command) => run_async(tier::run(command, global, out)),
            Self::Dataset(command) => run_async(dataset::run(command, global, out)),
            Self::Job(command) => run_async(job::run(command, global, out)),
            Self::Policy(command) => policy::run(command, global, out),
            Self::Workload(command) => run_async(workload::run(command, global, out)),
            Self::Trace(command) => trace::run(command, global, out),
            Self::Upstream(command) => run_async(upstream::run(command, global, out)),
        }
    }
}

/// The configuration file of commands that read one.
#[derive(Clone, Debug, Args)]
pub struct ConfigFile {
    /// TOML file of settings.
    #[arg(long, env = "MLGW_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Error of a command.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CliError {
    /// The command failed, or reported findings.
    #[error("{0}")]
    Failed(String),
    /// The arguments are wrong.
    #[error("{0}")]
    Usage(String),
    /// The server cannot be reached.
    #[error("{0}")]
    Unreachable(String),
    /// The server refused the request, or a running server holds the lock.
    #[error("{0}")]
    Refused(String),
}

impl CliError {
    /// Returns the exit status for this error.
    #[must_use]
    pub const fn status(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
            Self::Unreachable(_) => 3,
            Self::Refused(_) => 4,
        }
    }
}

/// Runs a command that uses a server, on one thread.
pub fn run_async<T>(command: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|e| CliError::Failed(format!("cannot start the runtime: {e}")))?.block_on(command)
}

/// Encodes a name as one segment of a URL's path, or one value of its query.
pub(crate) fn path_segment(name: &str) -> String {
    const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(name, ENCODED).to_string()
}
