//! The command `mlgw cluster join`: admits this host to a cluster, and makes an empty data directory that of
//! the new node.
//!
//! The directory gets its description last, so after a power loss it is empty, or that of the node. The same
//! command may be repeated while the token is valid.

use clap::{Args, ValueEnum};
use mlgw_cli::cluster::{TOKEN_VARIABLE, is_loopback};
use mlgw_cli::output::Out;
use mlgw_cli::{CliError, ConfigFile, run_async};
use mlgw_common::limits::{CLUSTER_SEEDS_MAX, JOIN_TOKEN_BYTES_MAX};
use mlgw_common::time::Instant;
use mlgw_common::{Clock as _, SystemClock};
use mlgw_config::{Address, Config, ConfigSources, LoadedConfig};
use mlgw_node::{JoinCluster, JoinClusterError, JoinedNode, join_cluster, known_cluster_version};
use mlgw_store::StoreLocation;
use mlgw_store::node_file::DirectoryRole;
use mlgw_transport::PeerAddress;
use mlgw_trust::JoinToken;
use serde_json::json;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time limit of the whole command.
const PATIENCE: Duration = Duration::from_secs(60);

/// Argument for a token on standard input.
const STDIN: &str = "-";

#[derive(Debug, Args)]
pub(crate) struct JoinArgs {
    /// The data directory, empty or absent. Default: `data_dir` of the configuration.
    #[arg(value_name = "D")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    file: ConfigFile,
    /// Token of `mlgw cluster token`, or `-` to read it from standard input. Other users of this host see
    /// arguments, so prefer the variable or `-`.
    #[arg(long, env = TOKEN_VARIABLE, hide_env_values = true, value_name = "TOKEN")]
    token: Option<String>,
    /// Address of a member, its `cluster.address`; may be repeated. Default: `cluster.seeds` of the
    /// configuration.
    #[arg(long = "seed", value_name = "HOST:PORT")]
    seeds: Vec<PeerAddress>,
    /// Address at which other nodes connect to the new one. Default: `cluster.address`, or else
    /// `cluster.listen`.
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<PeerAddress>,
    /// Role of the node.
    #[arg(long, value_enum, default_value_t = JoinRole::Storage)]
    role: JoinRole,
    /// Name for operators.
    #[arg(long, value_name = "N", default_value = "")]
    name: String,
}

/// Role of a new node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum JoinRole {
    /// Stores metadata and segments of objects.
    Storage,
    /// Member of the system group alone, which forwards requests.
    Gateway,
}

impl From<JoinRole> for DirectoryRole {
    fn from(role: JoinRole) -> Self {
        match role {
            JoinRole::Storage => Self::Storage,
            JoinRole::Gateway => Self::Gateway,
        }
    }
}

/// Arguments that were checked, completed by the configuration.
#[derive(Debug, PartialEq, Eq)]
struct JoinPlan {
    seeds: Vec<PeerAddress>,
    address: PeerAddress,
}

pub(super) fn run(args: JoinArgs, out: Out) -> Result<(), CliError> {
    let loaded = LoadedConfig::load(&ConfigSources::from_process(args.file.config.clone()));
    let mut config = loaded.map_err(|error| CliError::Usage(error.to_string()))?.config;
    if let Some(dir) = &args.dir {
        config.data_dir.clone_from(dir);
    }
    let plan = JoinPlan::of(&args, &config)?;
    let token = token_of(args.token.as_deref(), &mut io::stdin().lock())?;
    let place = StoreLocation::of(&config);
    let joined = run_async(async {
        let join = JoinCluster {
            place: &place,
            token: &token,
            seeds: &plan.seeds,
            address: &plan.address,
            name: &args.name,
            role: args.role.into(),
            build: env!("CARGO_PKG_VERSION"),
            cluster_version: known_cluster_version(),
            now: SystemClock.now(),
            deadline: Instant::now() + PATIENCE,
        };
        join_cluster(join).await.map_err(join_failure)
    })?;
    show(&joined, &config.data_dir, args.file.config.as_deref(), out)
}

fn join_failure(error: JoinClusterError) -> CliError {
    match error {
        JoinClusterError::NoSeeds | JoinClusterError::Address(_) | JoinClusterError::Name(_) => {
            CliError::Usage(error.to_string())
        }
        _ => CliError::Failed(error.to_string()),
    }
}

fn show(joined: &JoinedNode, dir: &Path, config: Option<&Path>, out: Out) -> Result<(), CliError> {
    let role = match joined.role {
        DirectoryRole::Storage => "storage",
        DirectoryRole::Gateway => "gateway",
    };
    let document = json!({
        "cluster": joined.cluster.to_string(),
        "node": joined.node.get(),
        "role": role,
        "data_dir": dir.display().to_string(),
    });
    let config = config.map_or_else(String::new, |file| format!(" --config {}", file.display()));
    let sentence = format!(
        "{dir} is node {} of cluster {}, with the role {role}. Start it with `mlgw serve{config} --data-dir \
         {dir}`.",
        joined.node,
        joined.cluster,
        dir = dir.display(),
    );
    out.done(&document, &sentence)
}

impl JoinPlan {
    /// Checks the arguments, and takes what they omit from the configuration.
    fn of(args: &JoinArgs, config: &Config) -> Result<Self, CliError> {
        let seeds = seeds_of(&args.seeds, config)?;
        let address = match (&args.address, &config.cluster.address) {
            (Some(given), _) => given.clone(),
            (None, Some(address)) => peer_address("cluster.address", address)?,
            (None, None) => peer_address("cluster.listen", &config.cluster.listen)?,
        };
        if address.is_loopback()
            && let Some(seed) = seeds.iter().find(|seed| !seed.is_loopback())
        {
            return Err(CliError::Usage(format!(
                "other hosts, such as {seed}, cannot connect to this node at {address}: set cluster.listen \
                 and cluster.address to an address of this host, or give it with --address"
            )));
        }
        let listen = config.cluster.listen.to_string();
        if !address.is_loopback() && is_loopback(&listen) {
            return Err(CliError::Usage(format!(
                "`mlgw serve` would listen for other nodes on {listen} alone, and {address} is to reach it: \
                 set cluster.listen and cluster.address in the configuration of this node first"
            )));
        }
        Ok(Self { seeds, address })
    }
}

fn seeds_of(given: &[PeerAddress], config: &Config) -> Result<Vec<PeerAddress>, CliError> {
    let configured = config.cluster.seeds.iter().map(|seed| peer_address("cluster.seeds", seed));
    let seeds = if given.is_empty() { configured.collect::<Result<Vec<_>, _>>()? } else { given.to_vec() };
    match seeds.len() {
        0 => Err(CliError::Usage(
            "no address of a member: give --seed HOST:PORT with an address that `mlgw cluster status` \
             prints on a member, or set cluster.seeds"
                .to_owned(),
        )),
        1..=CLUSTER_SEEDS_MAX => Ok(seeds),
        count => Err(CliError::Usage(format!(
            "--seed was given {count} times: give at most {CLUSTER_SEEDS_MAX} addresses, one that answers is \
             enough"
        ))),
    }
}

/// Returns the address of a setting for the connections between nodes.
fn peer_address(key: &str, address: &Address) -> Result<PeerAddress, CliError> {
    let parsed = address.to_string().parse::<PeerAddress>();
    parsed.map_err(|error| CliError::Usage(format!("{key}: {error}")))
}

/// Returns the token. `stdin` is read if the token is `-`.
fn token_of(given: Option<&str>, stdin: &mut impl Read) -> Result<JoinToken, CliError> {
    let text = match given {
        None => {
            return Err(CliError::Usage(format!(
                "no join token: create one with `mlgw cluster token` on a member, and give it by \
                 {TOKEN_VARIABLE} or with `--token -`"
            )));
        }
        Some(STDIN) => token_from(stdin)
            .map_err(|error| CliError::Usage(format!("the token on standard input: {error}")))?,
        Some(given) => given.to_owned(),
    };
    text.trim().parse::<JoinToken>().map_err(|error| CliError::Usage(error.to_string()))
}

fn token_from(stdin: &mut impl Read) -> io::Result<String> {
    // A longer text is no token, whose parts are then reported as damaged.
    let mut text = String::new();
    stdin.take(2 * JOIN_TOKEN_BYTES_MAX as u64).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{JoinClusterError, JoinPlan, STDIN, join_failure, token_of};
    use crate::cluster::ClusterCommand;
    use crate::{Cli, ProgramCommand};
    use clap::{CommandFactory as _, Parser as _};
    use mlgw_cli::CliError;
    use mlgw_common::limits::CLUSTER_SEEDS_MAX;
    use mlgw_config::{ConfigSources, LoadedConfig};
    use mlgw_trust::{AuthorityHash, JoinToken};

    fn plan(arguments: &[&str], settings: &[(&str, &str)]) -> Result<JoinPlan, CliError> {
        let environment = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let sources = ConfigSources { environment: environment.collect(), ..ConfigSources::default() };
        let config = LoadedConfig::load(&sources).unwrap().config;
        let words = ["mlgw", "cluster", "join", "--token", "t"].iter().chain(arguments);
        let ProgramCommand::Cluster(ClusterCommand::Join(args)) = Cli::parse_from(words).command else {
            panic!("join")
        };
        JoinPlan::of(&args, &config)
    }

    fn refusal(arguments: &[&str], settings: &[(&str, &str)]) -> String {
        let error = plan(arguments, settings).unwrap_err();
        assert_eq!(error.status(), 2, "{error}");
        error.to_string()
    }

    #[test]
    fn arguments_precede_the_configuration() {
        let settings = [
            ("MLGW_CLUSTER__SEEDS", "10.0.0.1:1,10.0.0.2:2"),
            ("MLGW_CLUSTER__LISTEN", "0.0.0.0:3"),
            ("MLGW_CLUSTER__ADDRESS", "h:3"),
        ];
        let found = plan(&[], &settings).unwrap();
        assert_eq!(
            found.seeds.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["10.0.0.1:1", "10.0.0.2:2"]
        );
        assert_eq!(found.address.as_str(), "h:3");
        let found = plan(&["--seed", "s:1", "--seed", "t:2", "--address", "a:4"], &settings).unwrap();
        assert_eq!(found.seeds.iter().map(ToString::to_string).collect::<Vec<_>>(), ["s:1", "t:2"]);
        assert_eq!(found.address.as_str(), "a:4");
        let found = plan(&["--seed", "127.0.0.1:1"], &[]).unwrap();
        assert_eq!(found.address.as_str(), "127.0.0.1:9002", "cluster.listen");
    }

    #[test]
    fn a_join_without_seeds_or_with_too_many_is_refused() {
        assert!(refusal(&[], &[]).starts_with("no address of a member: give --seed HOST:PORT"));
        let many = ["--seed", "127.0.0.1:1"].repeat(CLUSTER_SEEDS_MAX + 1);
        assert!(refusal(&many, &[]).starts_with("--seed was given 65 times"));
    }

    #[test]
    fn an_address_that_no_other_node_can_use_is_refused() {
        let loopback = refusal(&["--seed", "10.0.0.1:1"], &[]);
        assert!(loopback.starts_with("other hosts, such as 10.0.0.1:1, cannot connect"), "{loopback}");
        let port = refusal(&["--seed", "127.0.0.1:1"], &[("MLGW_CLUSTER__LISTEN", "127.0.0.1:0")]);
        assert!(port.starts_with("cluster.listen: \"127.0.0.1:0\" has no port"), "{port}");
        let any = join_failure(JoinClusterError::Address("[::]:1".parse().unwrap()));
        assert_eq!((any.status(), join_failure(JoinClusterError::Name(321)).status()), (2, 2), "{any}");
    }

    #[test]
    fn a_token_is_an_argument_or_standard_input() {
        let token = JoinToken::create(AuthorityHash([3; 32])).unwrap();
        let text = token.text();
        let id_of = |given: Option<&str>, stdin: &str| {
            token_of(given, &mut stdin.as_bytes()).map(|token| token.id()).map_err(|error| error.to_string())
        };
        assert_eq!(id_of(Some(text.as_str()), ""), Ok(token.id()));
        assert_eq!(id_of(Some(STDIN), &format!("{}\n", *text)), Ok(token.id()));
        assert!(id_of(None, text.as_str()).unwrap_err().starts_with("no join token: create one with"));
        assert!(id_of(Some("secret"), "").unwrap_err().starts_with("a join token begins with"));
        let longer = format!("{}{}", *text, "A".repeat(10_000));
        assert_eq!(
            id_of(Some(STDIN), &longer).unwrap_err(),
            "the length of the join token is damaged; copy it whole"
        );
    }

    #[test]
    fn help_does_not_print_the_token_in_the_environment() {
        let command = Cli::command();
        let cluster = command.find_subcommand("cluster").unwrap();
        let join = cluster.find_subcommand("join").unwrap();
        let token = join.get_arguments().find(|argument| argument.get_id() == "token").unwrap();
        assert!(token.is_hide_env_values_set(), "it is a secret");
    }
}
