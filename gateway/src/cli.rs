//! The command line: `mlgw serve` and everything that talks to a server.
//!
//! Exit status: 0 done, 1 failed or found something, 2 wrong usage, 3 no server to be reached, 4
//! refused. An error says what was wrong, where, and what to do next. Commands change nothing by
//! themselves: what they ask of a server is durable there before they say so.

mod access;
mod bucket;
pub mod client;
mod config;
mod dataset;
pub(crate) mod discover;
mod figures;
mod job;
mod object;
mod output;
mod policy;
mod progress;
mod quota;
mod serve;
mod status;
mod store;
mod tier;
mod top;
mod trace;
mod upstream;
mod workload;

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use output::Out;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::path::PathBuf;
use std::process::ExitCode;

/// An S3-compatible object gateway with ML-aware tiering.
#[derive(Debug, Parser)]
#[command(name = "mlgw", version, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Clone, Debug, Args)]
struct Global {
    /// Admin API of the server; without it, the data directory on this host says where it is.
    #[arg(long, global = true, env = "MLGW_ADMIN_ENDPOINT", value_name = "URL")]
    endpoint: Option<String>,
    /// Form of the answer.
    #[arg(long, global = true, value_enum, default_value_t = OutputForm::Table)]
    output: OutputForm,
    /// Do not ask before something is deleted.
    #[arg(long, global = true)]
    yes: bool,
    /// Say only what was asked for.
    #[arg(long, global = true)]
    quiet: bool,
}

/// Form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OutputForm {
    /// Columns for people.
    Table,
    /// The server's document.
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve S3.
    Serve(serve::ServeArgs),
    /// Settings: what is in force, whether a file is right, an example file.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Who may sign requests, and for what.
    #[command(subcommand)]
    Access(access::AccessCommand),
    /// Buckets and what they hold.
    #[command(subcommand)]
    Bucket(bucket::BucketCommand),
    /// Objects: where their bytes are.
    #[command(subcommand)]
    Object(object::ObjectCommand),
    /// Data directories: check, repair, copy, put back.
    #[command(subcommand)]
    Store(store::StoreCommand),
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
    /// Version of this binary.
    Version,
    /// Completions for a shell, to be sourced by it.
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
}

/// The configuration file of commands that read one.
#[derive(Clone, Debug, Args)]
struct ConfigFile {
    /// TOML file of settings.
    #[arg(long, env = "MLGW_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
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

/// Runs the command of this process.
#[must_use]
pub fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mlgw: {error}");
            ExitCode::from(error.status())
        }
    }
}

fn run(cli: Cli) -> Result<(), CliError> {
    let out = Out { form: cli.global.output, quiet: cli.global.quiet };
    match cli.command {
        Command::Serve(args) => serve::run(args),
        Command::Config(command) => config::run(command, out),
        Command::Access(command) => talk(access::run(command, &cli.global, out)),
        Command::Bucket(command) => talk(bucket::run(command, &cli.global, out)),
        Command::Object(command) => talk(object::run(command, &cli.global, out)),
        Command::Status { metrics } => talk(status::run(metrics, &cli.global, out)),
        Command::Top(args) => talk(top::run(args, &cli.global, out)),
        Command::Store(command) => store::run(command, out),
        Command::Tier(command) => talk(tier::run(command, &cli.global, out)),
        Command::Dataset(command) => talk(dataset::run(command, &cli.global, out)),
        Command::Job(command) => talk(job::run(command, &cli.global, out)),
        Command::Policy(command) => policy::run(command, &cli.global, out),
        Command::Workload(command) => talk(workload::run(command, &cli.global, out)),
        Command::Trace(command) => trace::run(command, &cli.global, out),
        Command::Upstream(command) => talk(upstream::run(command, &cli.global, out)),
        Command::Version => {
            let version = env!("CARGO_PKG_VERSION");
            out.document(&serde_json::json!({ "version": version }), |_| format!("mlgw {version}\n"))
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "mlgw", &mut script);
            out.text(&String::from_utf8_lossy(&script))
        }
    }
}

/// Runs a command that talks to a server; one thread is plenty for it.
fn talk<T>(command: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|e| CliError::Failed(format!("the runtime does not start: {e}")))?.block_on(command)
}

/// A name as one segment of a URL's path, or one value of its query.
fn path_segment(name: &str) -> String {
    const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(name, ENCODED).to_string()
}

#[cfg(test)]
mod tests {
    use super::{Cli, Command};
    use clap::{CommandFactory as _, Parser as _};

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_of_the_interface_is_understood() {
        for line in [
            "serve --config F --data-dir D --listen h:1 --admin-listen h:2 --metrics-listen h:3 --log-format json",
            "config show",
            "config check F",
            "config example",
            "--endpoint http://h:1 --output json --yes --quiet access key list",
            "access key show AK",
            "access key create --role write --bucket b* --prefix p/ --description d",
            "access key update AK --role read --disable",
            "access key delete AK --yes",
            "bucket list",
            "bucket show b",
            "bucket create b --region eu-west-1",
            "bucket delete b --yes",
            "object show s3://b/k",
            "tier compact",
            "tier compact --dead-percent 5 --wait",
            "tier list",
            "tier show hot",
            "tier scrub hot --wait",
            "dataset list",
            "dataset show d",
            "dataset create d --bucket b --prefix p/ --prefix q/ --source lake/x/:p/ --source other:q/",
            "dataset delete d --yes",
            "dataset sync d --delete --wait",
            "dataset warm d --order sequential --prefix p/ --wait",
            "dataset warm d --schedule 0_3_*_*_*",
            "dataset evict d --older-than 7d",
            "dataset clear d",
            "dataset pin d --bytes-max 1GiB",
            "dataset unpin d",
            "job list --dataset d",
            "job show 1",
            "job wait 1",
            "job cancel 1",
            "policy plan F --framework P --framework Q --output json",
            "policy apply F G --framework P --if-version 3 --message m",
            "policy apply --framework P",
            "policy apply F --without-frameworks",
            "policy show --effective",
            "policy history --limit 3",
            "policy rollback",
            "policy rollback 2 --if-version 3 --message m",
            "policy freeze",
            "policy unfreeze --if-version 3",
            "policy explain s3://b/k",
            "policy decisions --limit 5 --kind spill --bucket b --output json",
            "policy schema",
            "policy schema --framework",
            "policy validate F G --output json",
            "policy test F --keys L",
            "policy test F --files D --environment production --limit 3",
            "policy test F --trace T",
            "policy simulate F --trace T --cache .1,10GiB --block 4MiB --policy mlgw,lru --plot P.svg",
            "policy simulate --profile mix --workloads 3 --seed 2 --epochs 4 --order shard-shuffled --objects 9 --from-epoch 2",
            "workload list --limit 5 --output json",
            "workload show 00deadbeef00cafe",
            "workload plan put F --workload resnet --id p",
            "workload plan show",
            "workload plan show p",
            "workload plan delete p --yes",
            "trace import --from s3 L M OUT",
            "trace import --from own - OUT",
            "store check D",
            "store repair D",
            "store rebuild D --without-log",
            "store backup D OUT",
            "store restore IN D",
            "store salvage D --output json",
            "status --metrics --endpoint http://h:1",
            "top --interval 0.5 --count 3 --output json",
            "version",
            "completions bash",
        ] {
            let words = std::iter::once("mlgw").chain(line.split(' '));
            assert!(Cli::try_parse_from(words).is_ok(), "{line}");
        }
    }

    #[test]
    fn flags_of_serve_become_the_strongest_layer() {
        let cli = Cli::try_parse_from(["mlgw", "serve", "--listen", "h:7", "--log-format", "json"]).unwrap();
        let Command::Serve(args) = cli.command else { panic!("serve") };
        let flags = args.flags();
        assert_eq!(flags[0], ("s3.listen", "--listen", "h:7".to_owned()));
        assert_eq!(flags[1], ("log.format", "--log-format", "json".to_owned()));
    }
}
