//! The program `mlgw`: its command line, and the commands that run or repair a server.
//!
//! Exit status: 0 success, 1 failure or findings, 2 wrong usage, 3 server unreachable, 4 refused. An error
//! states the problem, its place, and the next step.

mod cluster;
mod completions;
mod config;
mod manual;
mod recovered;
mod serve;
mod store;

use clap::{CommandFactory as _, Parser, Subcommand};
use mlgw_cli::{CliError, ClientCommand, Global, Out, write_stderr};
use std::process::ExitCode;

/// S3-compatible object gateway with ML-aware tiering.
#[derive(Debug, Parser)]
#[command(name = "mlgw", version, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: ProgramCommand,
}

#[derive(Debug, Subcommand)]
enum ProgramCommand {
    /// Run the server.
    Serve(serve::ServeArgs),
    /// Configuration: show the effective settings, check a file, print an example.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    #[command(flatten)]
    Client(ClientCommand),
    /// Clusters: begin one, add nodes, show nodes and groups.
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Data directories: check, repair, rebuild, back up, restore.
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Print the version.
    Version,
    /// Print a completion script for a shell.
    Completions(completions::CompletionsArgs),
    /// Write the manual pages of all commands to a directory.
    Man(manual::ManualArgs),
}

/// Runs the command of this process.
#[must_use]
pub fn main() -> ExitCode {
    completions::answer_shell(Cli::command);
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            write_stderr(&format!("mlgw: {error}\n"));
            ExitCode::from(error.status())
        }
    }
}

fn run(cli: Cli) -> Result<(), CliError> {
    let out = Out { form: cli.global.output, quiet: cli.global.quiet };
    match cli.command {
        ProgramCommand::Serve(args) => serve::run(args),
        ProgramCommand::Config(command) => config::run(command, out),
        ProgramCommand::Client(command) => command.run(&cli.global, out),
        ProgramCommand::Cluster(command) => cluster::run(command, &cli.global, out),
        ProgramCommand::Store(command) => store::run(command, out),
        ProgramCommand::Version => {
            let version = env!("CARGO_PKG_VERSION");
            out.document(&serde_json::json!({ "version": version }), |_| format!("mlgw {version}\n"))
        }
        ProgramCommand::Completions(args) => completions::run(&args, out),
        ProgramCommand::Man(args) => manual::run(&args, Cli::command(), out),
    }
}

#[cfg(test)]
mod tests {
    use super::{Cli, ProgramCommand};
    use clap::{CommandFactory as _, Parser as _};

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_does_not_print_the_endpoint_in_the_environment() {
        let command = Cli::command();
        let endpoint = command.get_arguments().find(|argument| argument.get_id() == "endpoint").unwrap();
        assert!(endpoint.is_hide_env_values_set(), "it may have a password");
    }

    #[test]
    fn every_documented_command_is_parsed() {
        for line in [
            "serve --config F --data-dir D --listen h:1 --admin-listen h:2 --metrics-listen h:3 --log-format \
             json",
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
            "bucket create b --split-key g --split-key p",
            "bucket delete b --yes",
            "object show s3://b/k",
            "tier compact",
            "tier compact --dead-percent 5 --wait",
            "tier list",
            "tier show hot",
            "tier scrub hot --wait",
            "disk replace D --yes",
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
            "policy simulate --profile mix --workloads 3 --seed 2 --epochs 4 --order shard-shuffled \
             --objects 9 --from-epoch 2",
            "workload list --limit 5 --output json",
            "workload show 00deadbeef00cafe",
            "workload plan put F --workload resnet --id p",
            "workload plan show",
            "workload plan show p",
            "workload plan delete p --yes",
            "trace import --from s3 L M OUT",
            "trace import --from own - OUT",
            "cluster init D --config F",
            "cluster token --output json",
            "cluster join D --config F --token - --seed h:1 --seed [::1]:2 --address h:3 --role gateway \
             --name n",
            "cluster join --seed h:1",
            "cluster status --endpoint http://h:1",
            "cluster rotate-ca",
            "cluster rebalance",
            "cluster rebalance --status --output json",
            "cluster drain 2 --to-copies 2",
            "cluster undrain 2",
            "cluster remove 2 --lost --yes",
            "cluster recover --from D --config F --yes",
            "cluster recover --from D --take-over",
            "cluster recover --from D --old-rows",
            "cluster replace 2 --with 4",
            "cluster replace 2 --with 4 --lost --yes",
            "store check D",
            "store repair D",
            "store rebuild D --without-log",
            "store backup D OUT",
            "store restore IN D",
            "store salvage D --output json",
            "status --metrics --endpoint http://h:1",
            "top --interval 0.5 --count 3 --output json",
            "ls",
            "ls -r --bytes s3://b/p --s3-endpoint http://h:1 --ca-file F --profile P",
            "cp f s3://b/k --part-size 8MiB --parallel 4 --content-type text/plain",
            "cp --recursive s3://b/p d",
            "cp - s3://b/k",
            "cat s3://b/k b/k --range -5",
            "du b/p --depth 2 --human --output json",
            "version",
            "completions bash",
            "man D",
        ] {
            let words = std::iter::once("mlgw").chain(line.split(' '));
            assert!(Cli::try_parse_from(words).is_ok(), "{line}");
        }
    }

    #[test]
    fn flags_of_serve_become_the_strongest_layer() {
        let cli = Cli::try_parse_from(["mlgw", "serve", "--listen", "h:7", "--log-format", "json"]).unwrap();
        let ProgramCommand::Serve(args) = cli.command else { panic!("serve") };
        let flags = args.flags();
        assert_eq!(flags[0], ("s3.listen", "--listen", "h:7".to_owned()));
        assert_eq!(flags[1], ("log.format", "--log-format", "json".to_owned()));
    }
}
