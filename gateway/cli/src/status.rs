//! The command `mlgw status`: the state of the server, or of all nodes of the cluster, findings, and advice.

use super::client::Client;
use super::figures::{age, findings, operations, syncs, tiers, time};
use super::load::IntervalLoad;
use super::nodes::{answered, named_findings, nodes_table, with_nodes};
use super::output::{Out, TextTable, counted, pairs, text_line};
use super::{CliError, Global, discover};
use http::Method;
use mlgw_api::{CatalogueStatus, Health, HealthFinding, RecentStatus, SettingList, Status};
use mlgw_common::ByteSize;
use mlgw_config::{Address, SettingType as _};

/// Prints the metrics.
pub(super) async fn metrics(global: &Global, out: Out) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    let settings = client.get(SETTINGS).await?;
    let text = metrics_client(&client, &settings)?.send(Method::GET, "/metrics", None::<&()>).await?;
    out.text(&String::from_utf8_lossy(&text))
}

pub(super) async fn run(global: &Global, out: Out) -> Result<(), CliError> {
    let target = discover::target(global)?;
    let status = Client::new(target)?.get::<Status>("/v1/status").await?;
    out.document(&status, show)?;
    without_findings(&status.findings)
}

/// Returns an error if there are findings, so that a script sees them by the exit status.
pub(super) fn without_findings(findings: &[HealthFinding]) -> Result<(), CliError> {
    match findings.len() {
        0 => Ok(()),
        1 => Err(CliError::Failed("1 finding".to_owned())),
        several => Err(CliError::Failed(format!("{several} findings"))),
    }
}

/// Path of the settings in force.
pub(super) const SETTINGS: &str = "/v1/config";

/// Returns a client of the metrics of a server, which may be separate from its admin API.
pub(super) fn metrics_client(admin: &Client, settings: &SettingList) -> Result<Client, CliError> {
    let listen = settings.settings.iter().find(|setting| setting.key == "metrics.listen");
    let listen = listen.map_or("", |setting| setting.value.trim_matches('"'));
    let failed = |problem| CliError::Failed(format!("metrics.listen of the server: {problem}"));
    let address = Option::<Address>::from_text(listen).map_err(failed)?;
    Ok(address.map_or_else(|| admin.clone(), |address| admin.at(address.local_http_url(address.port))))
}

/// Formats the server and its health in one line.
pub(super) fn headline(status: &Status) -> String {
    let health = match status.health {
        Health::Ok => "no findings",
        Health::Warning => "warning",
        Health::Critical => "critical",
    };
    format!("mlgw {} on {}: {}, {health}", status.version, status.node, status.state)
}

fn show(status: &Status) -> String {
    let mut out = text_line(&headline(status));
    for line in findings(&named_findings(status)) {
        out += &text_line(&line);
    }
    out += &format!("\n{}", facts(status));
    if !status.nodes.is_empty() {
        out += &format!("\n{}", nodes_table(&IntervalLoad::of_nodes(&status.nodes, None)));
    }
    let tiers = all_tiers(status);
    if !tiers.rows.is_empty() {
        out += &format!("\n{tiers}");
    }
    let (seconds, operations) = recent_operations(status);
    out += &if operations.rows.is_empty() {
        format!("\nNo request in the last {seconds:.0} s.\n")
    } else {
        format!("\nIn the last {seconds:.0} s:\n{operations}")
    };
    format!("{out}\n{}", all_syncs(status))
}

/// Returns the tiers of the server, or of all nodes of the cluster.
pub(super) fn all_tiers(status: &Status) -> TextTable {
    match status.nodes.is_empty() {
        true => tiers(&status.tiers),
        false => with_nodes(answered(&status.nodes).map(|(node, figures)| (node, tiers(&figures.tiers)))),
    }
}

/// Returns the operations of the last minute, or since the start if that is shorter, and the longest of these
/// periods in seconds.
fn recent_operations(status: &Status) -> (f64, TextTable) {
    let table = |recent: &RecentStatus| operations(&recent.operations, recent.seconds);
    if status.nodes.is_empty() {
        return (status.recent.seconds, table(&status.recent));
    }
    let recent = || answered(&status.nodes).map(|(node, figures)| (node, &figures.recent));
    let seconds = recent().map(|(_, recent)| recent.seconds).fold(0.0, f64::max);
    (seconds, with_nodes(recent().map(|(node, recent)| (node, table(recent)))))
}

fn all_syncs(status: &Status) -> TextTable {
    match status.nodes.is_empty() {
        true => syncs(&status.syncs),
        false => with_nodes(answered(&status.nodes).map(|(node, figures)| (node, syncs(&figures.syncs)))),
    }
}

/// Formats the facts about the server. Another node than the duty node of a cluster has no policy and no jobs
/// of datasets, and names the node that has them.
fn facts(status: &Status) -> String {
    let Status { s3, catalogue, process, .. } = status;
    let counts = [counted(catalogue.buckets, "bucket"), counted(catalogue.access_keys, "access key")];
    let mut facts = vec![
        ("up", format!("{}, since {}", age(status.uptime_seconds), status.started)),
        ("data", format!("{}, durability {}", status.data_dir, status.durability)),
        (
            "s3",
            format!(
                "{}, {} of {} connections, {} requests in flight",
                s3.endpoint, s3.connections, s3.connections_limit, s3.inflight_requests
            ),
        ),
        ("catalogue", counts.join(", ")),
        ("raft", raft(catalogue)),
        ("jobs", jobs(status)),
    ];
    facts.extend(status.policy.iter().map(|of| ("policy", policy(of))));
    facts.push((
        "process",
        format!(
            "{} of CPU, {} of RAM, {} of {} files open",
            time(Some(process.cpu_seconds)),
            ByteSize(process.resident_bytes).human(),
            process.open_files,
            process.open_files_max
        ),
    ));
    let rest = "has policies, datasets, jobs and remote-backed buckets";
    facts.extend(status.duty_node.iter().map(|duty| ("duty node", format!("{duty} {rest}"))));
    pairs(&facts)
}

fn raft(catalogue: &CatalogueStatus) -> String {
    format!(
        "{} commands applied in {} entries, {} rejected, {} waiting; log {} of {}, purged {} times",
        catalogue.commands_applied,
        catalogue.entries_applied,
        catalogue.commands_rejected,
        catalogue.queued_commands,
        ByteSize(catalogue.log_bytes).human(),
        ByteSize(catalogue.log_bytes_max).human(),
        catalogue.snapshots
    )
}

fn jobs(status: &Status) -> String {
    let job = |job: &mlgw_api::JobStatus| match job.waiting {
        0 => format!("{} idle", job.job),
        waiting => format!("{} {waiting} waiting", job.job),
    };
    status.jobs.iter().map(job).collect::<Vec<_>>().join(", ")
}

fn policy(policy: &mlgw_api::PolicyStatus) -> String {
    let version = match (policy.version, &policy.fault) {
        (0, _) => "built-in only".to_owned(),
        (version, None) => format!("version {version}"),
        (version, Some(_)) => format!("built-in only, version {version} is invalid"),
    };
    let learning = if policy.learning { "on" } else { "off" };
    format!(
        "{version}, {} rules act, {} observe, learning {learning}",
        policy.rules_act, policy.rules_observe
    )
}

#[cfg(test)]
mod tests {
    use super::{metrics_client, show};
    use crate::client::{Client, ServerTarget};
    use crate::nodes::tests::of_three;
    use mlgw_api::{Health, HealthFinding, SettingList};
    use mlgw_common::Secret;
    use mlgw_testing::sample_status::healthy;
    use serde_json::json;

    #[test]
    fn a_status_fits_one_page() {
        let text = show(&healthy());
        for says in [
            "mlgw 0.1.0 on n: ready, no findings\n",
            "up         1 d 2 h, since 2026",
            "32 of 10000 connections, 3 requests in flight",
            "hot   1000     10.0 GiB  100.0 GiB",
            "In the last 60 s:",
            "GetObject  1000",
            "log       10     1.0 ms  2.0 ms",
            "release idle",
            "policy     version 3, 20 rules act, 4 observe, learning on\n",
        ] {
            assert!(text.contains(says), "{says:?} is missing in\n{text}");
        }
        assert!(text.lines().count() < 25 && text.lines().all(|line| line.len() <= 110), "{text}");
    }

    #[test]
    fn another_node_shows_its_own_part_and_names_the_duty_node() {
        let mut status = healthy();
        (status.policy, status.duty_node) = (None, Some("node 1 (n1, 10.0.0.1:9002)".into()));
        let text = show(&status);
        for says in [
            "duty node  node 1 (n1, 10.0.0.1:9002) has policies, datasets, jobs and remote-backed buckets\n",
            "hot   1000     10.0 GiB  100.0 GiB",
            "raft       100 commands applied in 5 entries",
        ] {
            assert!(text.contains(says), "{says:?} is missing in\n{text}");
        }
        assert!(!text.contains("\npolicy"), "{text}");
        status.tiers.clear();
        let gateway = show(&status);
        assert!(!gateway.contains("TIER") && gateway.contains("SYNCS OF"), "{gateway}");
        assert!(!show(&healthy()).contains("duty node"));
    }

    #[test]
    fn the_status_of_a_cluster_has_all_nodes() {
        let text = show(&of_three());
        for says in [
            "\nNODE  NAME  STATE  ",
            "\n3     n3    no answer: it does not answer",
            "\nNODE  TIER  OBJECTS",
            "\n2     hot   1000",
            "\nNODE  OPERATION",
            "\nNODE  SYNCS OF",
        ] {
            assert!(text.contains(says), "{says:?} is missing in\n{text}");
        }
    }

    #[test]
    fn metrics_have_the_address_of_their_listener() {
        let endpoint = "http://h:1".to_owned();
        let target = ServerTarget { endpoint, access_key: "AK".into(), secret: Secret::new("secret") };
        let admin = Client::new(target).unwrap();
        let endpoint_of = |listen: &str| {
            let setting = json!({
                "key": "metrics.listen", "value": listen, "derived": null, "origin": "file", "live": false
            });
            let settings: SettingList = serde_json::from_value(json!({ "settings": [setting] })).unwrap();
            let client = metrics_client(&admin, &settings);
            client.map(|client| client.endpoint().to_owned()).map_err(|error| error.status())
        };
        assert_eq!(endpoint_of("\"\""), Ok("http://h:1".to_owned()));
        assert_eq!(endpoint_of("\"0.0.0.0:9\""), Ok("http://127.0.0.1:9".to_owned()));
        assert_eq!(endpoint_of("\"10.0.0.0:9\""), Ok("http://10.0.0.0:9".to_owned()));
        assert_eq!(endpoint_of("\"nowhere\""), Err(1));
    }

    #[test]
    fn findings_come_first_with_advice() {
        let mut status = healthy();
        status.health = Health::Critical;
        status.findings = vec![HealthFinding {
            severity: Health::Critical,
            what: "The hot tier is full.".into(),
            advice: "Delete objects.".into(),
        }];
        let text = show(&status);
        let expected =
            "mlgw 0.1.0 on n: ready, critical\nCRITICAL  The hot tier is full.\n          Delete objects.\n";
        assert!(text.starts_with(expected), "{text}");
    }
}
