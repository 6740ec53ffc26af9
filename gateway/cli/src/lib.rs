//! The commands that talk to a server: its admin API, and local work on policies and traces.
//!
//! Exit status: 0 done, 1 failed or found something, 2 wrong usage, 3 no server to be reached, 4
//! refused. An error says what was wrong, where, and what to do next. Commands change nothing by
//! themselves: what they ask of a server is durable there before they say so.

mod access;
mod bucket;
pub mod client;
mod dataset;
pub mod discover;
mod figures;
mod job;
mod object;
pub mod output;
mod policy;
pub mod progress;
mod quota;
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

/// What every command takes.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// Admin API of the server; without it, the data directory on this host says where it is.
    #[arg(long, global = true, env = "MLGW_ADMIN_ENDPOINT", value_name = "URL")]
    pub endpoint: Option<String>,
    /// Form of the answer.
    #[arg(long, global = true, value_enum, default_value_t = OutputForm::Table)]
    pub output: OutputForm,
    /// Do not ask before something is deleted.
    #[arg(long, global = true)]
    pub yes: bool,
    /// Say only what was asked for.
    #[arg(long, global = true)]
    pub quiet: bool,
}

/// Form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputForm {
    /// Columns for people.
    Table,
    /// The server's document.
    Json,
}

/// A command that talks to a server, or works on policies and traces on this host.
#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// Who may sign requests, and for what.
    #[command(subcommand)]
    Access(access::AccessCommand),
    /// Buckets and what they hold.
    #[command(subcommand)]
    Bucket(bucket::BucketCommand),
    /// Objects: where their bytes are.
    #[command(subcommand)]
    Object(object::ObjectCommand),
    /// Where bytes are kept, whether they are what was written, and the space of what is gone.
    #[command(subcommand)]
    Tier(tier::TierCommand),
    /// Datasets: names for some of a bucket, which are brought in, kept, imported and let go of as one.
    #[command(subcommand)]
    Dataset(dataset::DatasetCommand),
    /// What is being done with datasets, and what was.
    #[command(subcommand)]
    Job(job::JobCommand),
    /// What is done by itself with where bytes are, and why.
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Who trains, evaluates or serves, in which phase and why; and what they tell that they will read.
    #[command(subcommand)]
    Workload(workload::WorkloadCommand),
    /// Recorded accesses.
    #[command(subcommand)]
    Trace(trace::TraceCommand),
    /// The object stores of others: what is configured, and whether it works.
    #[command(subcommand)]
    Upstream(upstream::UpstreamCommand),
    /// How the server is.
    Status {
        /// Print its metrics instead.
        #[arg(long)]
        metrics: bool,
    },
    /// The server's load, refreshed until `q`.
    Top(top::TopArgs),
}

impl ClientCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// Those of the command, for people.
    pub fn run(self, global: &Global, out: Out) -> Result<(), CliError> {
        match self {
            Self::Access(command) => talk(access::run(command, global, out)),
            Self::Bucket(command) => talk(bucket::run(command, global, out)),
            Self::Object(command) => talk(object::run(command, global, out)),
            Self::Status { metrics } => talk(status::run(metrics, global, out)),
            Self::Top(args) => talk(top::run(args, global, out)),
            Self::Tier(command) => talk(tier::run(command, global, out)),
            Self::Dataset(command) => talk(dataset::run(command, global, out)),
            Self::Job(command) => talk(job::run(command, global, out)),
            Self::Policy(command) => policy::run(command, global, out),
            Self::Workload(command) => talk(workload::run(command, global, out)),
            Self::Trace(command) => trace::run(command, global, out),
            Self::Upstream(command) => talk(upstream::run(command, global, out)),
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

/// Why a command did not do what was asked.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CliError {
    /// It failed, or found something.
    #[error("{0}")]
    Failed(String),
    /// What was asked for makes no sense.
    #[error("{0}")]
    Usage(String),
    /// There is no server to be reached.
    #[error("{0}")]
    Unreachable(String),
    /// The server, or a running one's lock, refused.
    #[error("{0}")]
    Refused(String),
}

impl CliError {
    /// The exit status that it ends with.
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

/// Runs a command that talks to a server; one thread is plenty for it.
pub fn talk<T>(command: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|e| CliError::Failed(format!("the runtime does not start: {e}")))?.block_on(command)
}

/// A name as one segment of a URL's path, or one value of its query.
pub(crate) fn path_segment(name: &str) -> String {
    const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(name, ENCODED).to_string()
}
