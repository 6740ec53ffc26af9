//! The commands that use a server's admin API or its S3 API, and local commands for policies and traces.
//!
//! Exit status: 0 success, 1 failure or findings, 2 wrong usage, 3 server unreachable, 4 refused. An error
//! states the problem, its place, and the next step. A change requested by a command is durable on the server
//! before the command reports success.

mod access;
mod bucket;
#[cfg(test)]
mod canned_server;
pub mod client;
pub mod cluster;
pub mod completion;
mod dataset;
pub mod discover;
mod disk;
mod endpoint;
mod error;
mod figures;
mod global;
mod job;
mod load;
mod nodes;
mod object;
pub mod output;
mod policy;
pub mod progress;
mod quota;
mod runtime;
mod s3;
mod server_name;
mod status;
mod stderr;
mod stdout;
mod terminal_text;
mod tier;
mod top;
mod trace;
mod upstream;
mod word_arg;
mod workload;

pub(crate) use client::path_segment;
pub use error::CliError;
pub use global::{ConfigFile, Global, OutputForm};
pub use output::Out;
pub use runtime::run_async;
pub use stderr::{print_stderr, write_stderr};

use clap::Subcommand;

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
    /// Disks of a node: replace a lost segment directory.
    #[command(subcommand)]
    Disk(disk::DiskCommand),
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
    /// List buckets, or the objects of a bucket.
    Ls(s3::ls::LsArgs),
    /// Copy files and objects: to a server, from it, or inside it.
    Cp(s3::cp::CpArgs),
    /// Print objects.
    Cat(s3::cat::CatArgs),
    /// Count the objects below a prefix, and their bytes.
    Du(s3::du::DuArgs),
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
            Self::Status { metrics: true } => run_async(status::metrics(global, out)),
            Self::Status { metrics: false } => run_async(status::run(global, out)),
            Self::Top(args) => run_async(top::run(args, global, out)),
            Self::Tier(command) => run_async(tier::run(command, global, out)),
            Self::Disk(command) => run_async(disk::run(command, global, out)),
            Self::Dataset(command) => run_async(dataset::run(command, global, out)),
            Self::Job(command) => run_async(job::run(command, global, out)),
            Self::Policy(command) => policy::run(command, global, out),
            Self::Workload(command) => run_async(workload::run(command, global, out)),
            Self::Trace(command) => trace::run(command, global, out),
            Self::Upstream(command) => run_async(upstream::run(command, global, out)),
            Self::Ls(args) => run_async(s3::ls::run(args, global, out)),
            Self::Cp(args) => run_async(s3::cp::run(args, global, out)),
            Self::Cat(args) => run_async(s3::cat::run(args, global)),
            Self::Du(args) => run_async(s3::du::run(args, global, out)),
        }
    }
}
