//! The text that `mlgw serve` prints on standard output when it is ready: addresses, capacity, and usage. The
//! root secret is included only if `s3.print_credentials` allows it, because a service manager's log must not
//! contain it.

use super::files::FileBudget;
use mlgw_auth::key::SigningAccessKey;
use mlgw_common::ByteSize;
use mlgw_config::{Config, MachineSizes, PrintCredentials, SettingType as _};
use mlgw_store::node_file::NodeDescription;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};

/// Facts that the banner states.
pub(super) struct BannerFacts<'a> {
    pub(super) config: &'a Config,
    /// Lines about the data directory and the cluster.
    pub(super) data: String,
    pub(super) machine: &'a MachineSizes,
    pub(super) files: &'a FileBudget,
    pub(super) root: &'a SigningAccessKey,
    /// URL of the S3 API.
    pub(super) endpoint: &'a str,
    /// URL of the admin API.
    pub(super) admin: &'a str,
}

/// Prints the banner.
pub(super) fn print(facts: &BannerFacts<'_>) {
    let BannerFacts { config, data, machine, files, root, endpoint, admin } = facts;
    let with_keys = match config.s3.print_credentials {
        PrintCredentials::Always => true,
        PrintCredentials::Never => false,
        PrintCredentials::Terminal => io::stdout().is_terminal(),
    };
    let mut text = format!(
        "mlgw {} serves S3 at {endpoint}, its admin API at {admin}\n\
         {data}\
         {} memory for requests, {}\n",
        env!("CARGO_PKG_VERSION"),
        ByteSize(config.memory_bytes(machine)).human(),
        connections(config.limits.connections, files),
    );
    if with_keys {
        text += &usage(endpoint, &config.s3.region, root);
    }
    // The server also runs if standard output is closed.
    let _ = io::stdout().lock().write_all(text.as_bytes()).and_then(|()| io::stdout().flush());
}

/// Returns the lines about the data of a server with objects.
pub(super) fn stored_data(config: &Config, machine: &MachineSizes, node: &NodeDescription) -> String {
    let mut text = disk(config, machine);
    if node.is_clustered() {
        text += &format!("{}\n", membership(config, node));
    }
    text
}

/// Returns the line about the disk of a server with segments.
fn disk(config: &Config, machine: &MachineSizes) -> String {
    format!(
        "data in {}, hot capacity {}, durability {}\n",
        config.data_dir.display(),
        ByteSize(config.hot_capacity_bytes(machine)).human(),
        config.durability.to_text(),
    )
}

/// Returns the lines about the data of a gateway.
pub(super) fn forwarded_data(config: &Config, node: &NodeDescription) -> String {
    format!("data in {}\n{}, forwards requests\n", config.data_dir.display(), membership(config, node))
}

fn membership(config: &Config, node: &NodeDescription) -> String {
    let address = config.cluster.address.as_ref().unwrap_or(&config.cluster.listen);
    format!("node {} of cluster {}, reached by other nodes at {address}", node.node_id(), node.cluster)
}

/// Returns the maximum number of connections, and the reason if it is below the configured one.
fn connections(configured: u64, files: &FileBudget) -> String {
    let FileBudget { connections, limit, .. } = files;
    if *connections >= configured {
        return format!("up to {connections} connections");
    }
    format!(
        "up to {connections} connections: the limit of open files ({limit}) or the memory is too low for \
         limits.connections = {configured}"
    )
}

/// Returns lines for a shell and for Python that can be pasted unchanged.
fn usage(endpoint: &str, region: &str, root: &SigningAccessKey) -> String {
    let (access_key, secret) = (&root.principal.access_key, root.secret.expose());
    let mut out = format!(
        "\nexport AWS_ENDPOINT_URL={endpoint}\n\
         export AWS_ACCESS_KEY_ID={}\n\
         export AWS_SECRET_ACCESS_KEY={}\n\
         export AWS_DEFAULT_REGION={region}\n",
        shell_word(access_key),
        shell_word(secret),
    );
    let _ = write!(
        out,
        "\nimport boto3\n\
         s3 = boto3.client(\"s3\", endpoint_url=\"{endpoint}\", region_name=\"{region}\",\n\
         \x20                 aws_access_key_id={}, aws_secret_access_key={})\n\
         buckets = [bucket[\"Name\"] for bucket in s3.list_buckets()[\"Buckets\"]]\n\
         created = \"first\" in buckets or s3.create_bucket(Bucket=\"first\")\n\
         put = s3.put_object(Bucket=\"first\", Key=\"hello.txt\", Body=b\"hello\")\n\
         print(s3.get_object(Bucket=\"first\", Key=\"hello.txt\")[\"Body\"].read())\n",
        python_text(access_key),
        python_text(secret),
    );
    out
}

/// Quotes `text` if it has a character that is special in a shell.
fn shell_word(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./+=:@%".contains(&b);
    if text.bytes().all(plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

fn python_text(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::{FileBudget, connections, forwarded_data, python_text, shell_word, stored_data, usage};
    use mlgw_api::AccessKeyRole;
    use mlgw_auth::key::SigningAccessKey;
    use mlgw_auth::principal::Principal;
    use mlgw_common::{ClusterId, Incarnation, Secret, Timestamp};
    use mlgw_config::{ConfigSources, LoadedConfig, MachineSizes};
    use mlgw_store::node_file::{DirectoryRole, GivenIdentity, NodeDescription};
    use mlgw_wire::access::OWNER;
    use std::num::NonZeroU64;
    use std::sync::Arc;

    fn member(id: u64) -> NodeDescription {
        let given = GivenIdentity {
            cluster: ClusterId(5),
            incarnation: Incarnation(6),
            earlier: Vec::new(),
            id: NonZeroU64::new(id).unwrap(),
            role: DirectoryRole::Storage,
        };
        NodeDescription::joined(&given, Timestamp(0)).unwrap()
    }

    #[test]
    fn a_node_of_a_cluster_states_its_part() {
        let config = LoadedConfig::load(&ConfigSources::default()).unwrap().config;
        let machine = MachineSizes { memory_bytes: 1 << 30, disk_bytes: None };
        let alone = NodeDescription::first(Timestamp(0)).unwrap();
        assert_eq!(stored_data(&config, &machine, &alone).lines().count(), 1);
        let reached = "of cluster 0000000000000005, reached by other nodes at 127.0.0.1:9002";
        let stored = stored_data(&config, &machine, &member(2));
        assert!(
            stored.contains("hot capacity") && stored.ends_with(&format!("\nnode 2 {reached}\n")),
            "{stored}"
        );
        let other = forwarded_data(&config, &member(2));
        assert!(other.ends_with(&format!("\nnode 2 {reached}, forwards requests\n")), "{other}");
    }

    #[test]
    fn fewer_connections_than_configured_are_explained() {
        let budget = |limit, wanted| connections(wanted, &FileBudget::of(limit, wanted).unwrap());
        assert_eq!(budget(1 << 20, 10_000), "up to 10000 connections");
        let few = budget(1024, 10_000);
        assert!(
            few.starts_with("up to 512 connections: the limit of open files (1024) or the memory"),
            "{few}"
        );
    }

    #[test]
    fn the_lines_can_be_pasted_with_any_secret() {
        assert_eq!(shell_word("abc+/="), "abc+/=");
        assert_eq!(shell_word("a'b$c"), "'a'\\''b$c'");
        assert_eq!(python_text("a\"b\\"), "\"a\\\"b\\\\\"");
        let principal = Principal::unrestricted("AK", OWNER, AccessKeyRole::Admin);
        let root = SigningAccessKey { principal: Arc::new(principal), secret: Secret::new("it's") };
        let usage = usage("http://h:1", "us-east-1", &root);
        assert!(usage.contains("\nexport AWS_ENDPOINT_URL=http://h:1\nexport AWS_ACCESS_KEY_ID=AK\n"));
        assert!(usage.contains("\nexport AWS_SECRET_ACCESS_KEY='it'\\''s'\n"), "{usage}");
    }
}
