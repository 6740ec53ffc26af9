//! The commands `mlgw cluster …` that use the admin API of a member.

mod authority;
mod leaving;
#[cfg(test)]
mod operations_page;
mod rows;
mod sets;
mod upgrade;

pub use authority::rotate_ca;
pub use leaving::{RemoveOptions, drain, remove, replace, undrain};
pub use sets::{rebalance, rebalance_status};

use super::client::Client;
use super::figures::findings;
use super::output::{Out, columns, counted, pairs, text_line};
use super::status::without_findings;
use super::{CliError, Global, discover};
use http::Method;
use mlgw_api::{
    ClusterDutyPhase, ClusterGroupInfo, ClusterInfo, ClusterMemberPart, ClusterNodeInfo, ClusterNodeRole,
    ClusterNodeState, NewJoinTokenInfo,
};
use mlgw_common::ByteSize;

/// Path of the cluster.
const CLUSTER: &str = "/v1/cluster";
/// Path of the join tokens.
const TOKENS: &str = "/v1/cluster/tokens";

/// Environment variable with the token of `mlgw cluster join`.
pub const TOKEN_VARIABLE: &str = "MLGW_CLUSTER_TOKEN";

/// Prints nodes and groups of the cluster, as the server knows them.
///
/// # Errors
/// If there are findings, or the server has no cluster; see [`CliError`].
pub async fn status(global: &Global, out: Out) -> Result<(), CliError> {
    let cluster: ClusterInfo = Client::new(discover::target(global)?)?.get(CLUSTER).await?;
    out.document(&cluster, show)?;
    without_findings(&cluster.findings)
}

/// Creates a join token, and prints it with the command for the new node.
///
/// # Errors
/// See [`CliError`].
pub async fn token(global: &Global, out: Out) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    let (cluster, token) = new_token(&client).await?;
    out.document(
        &token,
        |token| if out.quiet { text_line(&token.token) } else { show_token(&cluster, token) },
    )
}

/// Creates a token. The cluster is requested first, so that a failure of that leaves no token.
async fn new_token(client: &Client) -> Result<(ClusterInfo, NewJoinTokenInfo), CliError> {
    let cluster = client.get(CLUSTER).await?;
    let token = client.call(Method::POST, TOKENS, None::<&()>).await?;
    Ok((cluster, token))
}

/// Returns true if an address `HOST:PORT` is one that other hosts cannot use, because it means themselves.
#[must_use]
pub fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare.eq_ignore_ascii_case("localhost")
        || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Formats a token as a command. The secret is in a variable of the environment, because other users of a
/// host see the arguments of a process.
fn show_token(cluster: &ClusterInfo, token: &NewJoinTokenInfo) -> String {
    let own = cluster.nodes.iter().find(|node| node.own).map_or("", |node| node.address.as_str());
    let seed = if own.is_empty() { "HOST:PORT".to_owned() } else { shell_word(own) };
    let mut out = text_line(&format!(
        "# The token admits one node, until {}. Run this on the host of the new node:",
        token.expires
    ));
    out +=
        &text_line(&format!("{TOKEN_VARIABLE}={} mlgw cluster join --seed {seed}", shell_word(&token.token)));
    if own.is_empty() {
        out += "# HOST:PORT is the cluster.address of a member: this node has not stated its own yet.\n";
    } else if is_loopback(own) {
        out += &text_line(&format!(
            "# {own} is an address of this host alone. For nodes on other hosts, set cluster.listen and \
             cluster.address, and start this server again."
        ));
    }
    out
}

/// Quotes a word for a shell, if it has characters of other meanings.
fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

/// Describes the duty node, which runs jobs and rules and serves remote-backed buckets.
fn duty(cluster: &ClusterInfo) -> String {
    let Some(node) = cluster.duty else { return "unknown".to_owned() };
    let phase = match cluster.duty_phase {
        ClusterDutyPhase::Active => "",
        ClusterDutyPhase::Waiting => ", which does not write at origins yet",
        ClusterDutyPhase::Left | ClusterDutyPhase::Ended => ", which has stopped: another node takes over",
    };
    format!("on node {node}, term {}{phase}", cluster.duty_term)
}

fn show(cluster: &ClusterInfo) -> String {
    let mut out: String = findings(&cluster.findings).iter().map(|line| text_line(line)).collect();
    if !out.is_empty() {
        out.push('\n');
    }
    out += &pairs(&[
        ("cluster", cluster.cluster.clone()),
        ("this node", cluster.node.to_string()),
        ("duty", duty(cluster)),
        ("certificate", format!("valid until {}", cluster.certificate_expires)),
        ("authority", authority::line(cluster)),
        ("version", upgrade::version(cluster)),
        ("settings", upgrade::settings(cluster)),
        ("membership", waits(cluster)),
        ("copies", copies(cluster)),
        ("open", open_segments(cluster)),
        ("sets", sets::line(cluster)),
        ("rows", rows::line(cluster)),
    ]);
    out += &leaving::lines(cluster);
    out += &sets::table(cluster);
    let nodes: Vec<_> = cluster.nodes.iter().map(node_row).collect();
    let head = &["NODE", "NAME", "ADDRESS", "ROLE", "STATE", "ANSWERS", "FREE", "USED", "BUILD", "JOINED"];
    out += &format!("\n{}", columns(head, &nodes));
    let groups: Vec<_> = cluster.groups.iter().map(group_row).collect();
    out + &format!("\n{}", columns(&["GROUP", "LEADER", "VOTERS", "LEARNERS", "BEHIND"], &groups))
}

fn waits(cluster: &ClusterInfo) -> String {
    cluster.waits.as_ref().map_or_else(|| "nothing waits".to_owned(), |reason| format!("waits: {reason}"))
}

/// Describes the copies of sealed segments: how many there are, and if some are missing or damaged.
fn copies(cluster: &ClusterInfo) -> String {
    let copies = &cluster.copies;
    let size = |bytes: u64| ByteSize(bytes).human();
    let (wanted, total) = (copies.wanted, counted(copies.segments, "sealed segment"));
    let mut line = match copies.below_segments {
        0 => format!("{wanted} of each of {total} ({})", size(copies.bytes)),
        below => {
            let outlook = match can_be_complete(cluster) {
                true => "they are being copied",
                false => "a storage node for more copies does not answer",
            };
            format!("{below} of {total} ({}) have fewer than {wanted}; {outlook}", size(copies.below_bytes))
        }
    };
    if copies.suspect_segments > 0 {
        line += &format!("; {} with a suspect copy", copies.suspect_segments);
    }
    line
}

/// Returns true if enough storage nodes answer for the wanted number of copies.
fn can_be_complete(cluster: &ClusterInfo) -> bool {
    let is_usable = |node: &&ClusterNodeInfo| {
        let answers = node.own || node.reachable == Some(true);
        let stays = matches!(node.state, ClusterNodeState::Joining | ClusterNodeState::Active);
        answers && node.role == ClusterNodeRole::Storage && stays
    };
    let usable = cluster.nodes.iter().filter(is_usable).count();
    u32::try_from(usable).unwrap_or(u32::MAX) >= cluster.copies.wanted
}

/// Describes the segments that are appended to, and where their bytes are when they are acknowledged.
fn open_segments(cluster: &ClusterInfo) -> String {
    let copies = &cluster.copies;
    if copies.open_segments == 0 {
        return "no segments".to_owned();
    }
    let segments = counted(copies.open_segments, "segment");
    match copies.wanted {
        // The number of storage nodes, up to three.
        0 | 1 => format!("{segments}, on one node alone"),
        _ => format!("{segments}, each chunk on two nodes before it is acknowledged"),
    }
}

/// Returns true if a storage node answers and does not serve: it starts or stops. A gateway never serves
/// itself.
fn is_idle(node: &ClusterNodeInfo) -> bool {
    node.role == ClusterNodeRole::Storage && node.serves == Some(false)
}

fn node_row(node: &ClusterNodeInfo) -> Vec<String> {
    let answers = match (node.own, node.reachable) {
        (true, _) => "this node",
        (false, Some(true)) if is_idle(node) => "not serving",
        (false, Some(true)) => "yes",
        (false, Some(false)) => "no",
        (false, None) => "unknown",
    };
    let size = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), |bytes| ByteSize(bytes).human());
    vec![
        node.id.to_string(),
        or_dash(node.name.clone()),
        or_dash(node.address.clone()),
        node.role.to_string(),
        node.state.to_string(),
        answers.to_owned(),
        size(node.free_bytes),
        size(node.used_bytes),
        node.build.clone(),
        node.joined.clone(),
    ]
}

/// Returns the text of a cell: `-` if it is empty.
fn or_dash(cell: String) -> String {
    if cell.is_empty() { "-".to_owned() } else { cell }
}

/// Formats a group. Its leader alone knows the members, and a group has at least one voter.
fn group_row(group: &ClusterGroupInfo) -> Vec<String> {
    let leader = group.leader.map_or_else(|| "unknown".to_owned(), |id| id.to_string());
    let of_part = |part: ClusterMemberPart| {
        let members = group.members.iter().filter(|member| member.part == part);
        members.map(|member| member.node.to_string()).collect::<Vec<_>>().join(", ")
    };
    let behind = group.members.iter().filter(|member| member.lag_bytes > 0);
    let behind = behind.map(|member| {
        let bytes = ByteSize(member.lag_bytes).human();
        format!("node {} by {bytes}", member.node)
    });
    vec![
        group.id.to_string(),
        leader,
        or_dash(of_part(ClusterMemberPart::Voter)),
        or_dash(of_part(ClusterMemberPart::Learner)),
        or_dash(behind.collect::<Vec<_>>().join(", ")),
    ]
}

#[cfg(test)]
mod tests {
    use super::{duty, is_loopback, new_token, shell_word, show, show_token};
    use crate::canned_server::{CannedServer, response};
    use crate::client::{Client, ServerTarget};
    use mlgw_api::{
        ClusterCopiesInfo, ClusterDutyPhase, ClusterGroupInfo, ClusterInfo, ClusterMemberInfo,
        ClusterMemberPart, ClusterNodeInfo, ClusterNodeRole, ClusterNodeState, Health, HealthFinding,
        NewJoinTokenInfo,
    };
    use mlgw_common::Secret;
    use serde::Serialize;

    fn node(id: u64, role: ClusterNodeRole) -> ClusterNodeInfo {
        ClusterNodeInfo {
            id,
            name: format!("n{id}"),
            address: format!("10.0.0.{id}:9002"),
            role,
            state: ClusterNodeState::Active,
            build: "0.1.0".into(),
            cluster_version: 2,
            joined: "2026-11-27T00:00:00.000Z".into(),
            own: id == 1,
            duty: id == 1,
            reachable: Some(true),
            serves: Some(role == ClusterNodeRole::Storage),
            used_bytes: (role == ClusterNodeRole::Storage).then_some(28 << 30),
            free_bytes: (role == ClusterNodeRole::Storage).then_some(100 << 30),
            applied: Some(120),
            clock_skew_ms: Some(0),
            differing_settings: vec![],
        }
    }

    pub(super) fn cluster() -> ClusterInfo {
        let member = |node, part, lag_bytes| ClusterMemberInfo { node, part, lag_bytes };
        ClusterInfo {
            cluster: "00000000000000ab".into(),
            node: 1,
            duty: Some(1),
            duty_term: 4,
            duty_phase: ClusterDutyPhase::Active,
            waits: Some("node 2 is ready to vote: add a third node, and both get a vote".into()),
            certificate_expires: "2027-11-27T00:00:00.000Z".into(),
            authority_change: None,
            cluster_version: 2,
            upgrade: None,
            findings: vec![],
            leaving: vec![],
            sets: vec![],
            rebalance: None,
            moving_groups: vec![],
            sets_wait: None,
            rows: vec![],
            copies: ClusterCopiesInfo {
                wanted: 1,
                segments: 120,
                bytes: 3 << 30,
                open_segments: 2,
                off_set_bytes: Some(0),
                ..ClusterCopiesInfo::default()
            },
            nodes: vec![node(1, ClusterNodeRole::Storage), node(2, ClusterNodeRole::Gateway)],
            groups: vec![
                ClusterGroupInfo {
                    id: 0,
                    leader: Some(1),
                    members: vec![
                        member(1, ClusterMemberPart::Voter, 0),
                        member(2, ClusterMemberPart::Learner, 2 << 20),
                    ],
                },
                ClusterGroupInfo { id: 1, leader: None, members: vec![] },
            ],
        }
    }

    fn token() -> NewJoinTokenInfo {
        NewJoinTokenInfo {
            token: "mlgw-join-1.a.b.c".into(),
            id: "b".into(),
            expires: "2026-11-27T01:00:00.000Z".into(),
        }
    }

    fn json(status: &str, document: &impl Serialize) -> String {
        let body = serde_json::to_string(document).unwrap();
        response(status, &[("content-length", &body.len().to_string())], &body)
    }

    fn client_of(server: &CannedServer) -> Client {
        let (endpoint, secret) = (server.endpoint(), Secret::new("secret"));
        Client::new(ServerTarget { endpoint, access_key: "AK".into(), secret }).unwrap()
    }

    #[test]
    fn a_status_names_the_duty_node_and_its_phase() {
        let taken =
            ClusterInfo { duty: Some(2), duty_term: 6, duty_phase: ClusterDutyPhase::Waiting, ..cluster() };
        assert_eq!(duty(&taken), "on node 2, term 6, which does not write at origins yet");
        for phase in [ClusterDutyPhase::Left, ClusterDutyPhase::Ended] {
            let over = ClusterInfo { duty_phase: phase, ..taken.clone() };
            assert_eq!(duty(&over), "on node 2, term 6, which has stopped: another node takes over");
        }
        assert_eq!(duty(&ClusterInfo { duty: None, ..taken }), "unknown");
    }

    #[test]
    fn a_status_lists_nodes_and_groups() {
        let text = show(&cluster());
        for expected in [
            "cluster      00000000000000ab\n",
            "duty         on node 1, term 4\n",
            "certificate  valid until 2027-11-27T00:00:00.000Z\n",
            "authority    one, in use by every node\n",
            "version      2\n",
            "settings     equal where they should be\n",
            "membership   waits: node 2 is ready to vote: add a third node, and both get a vote\n",
            "copies       1 of each of 120 sealed segments (3.0 GiB)\n",
            "open         2 segments, on one node alone\n",
            "sets         none: every storage node is a member of every group\n",
            "rows         not compared since the start of this node\n",
            "NODE  NAME  ADDRESS        ROLE     STATE   ANSWERS    FREE       USED      BUILD  JOINED\n",
            "1     n1    10.0.0.1:9002  storage  active  this node  100.0 GiB  28.0 GiB  0.1.0  2026-",
            "2     n2    10.0.0.2:9002  gateway  active  yes        -          -         0.1.0  2026-",
            "GROUP  LEADER   VOTERS  LEARNERS  BEHIND\n",
            "0      1        1       2         node 2 by 2.0 MiB\n",
            "1      unknown  -       -         -\n",
        ] {
            assert!(text.contains(expected), "{expected:?} is missing in\n{text}");
        }
        assert!(text.lines().all(|line| line.len() <= 110), "{text}");
    }

    #[test]
    fn a_storage_node_that_answers_and_does_not_serve_is_shown() {
        let shown = |serves, reachable| {
            let other = node(2, ClusterNodeRole::Storage);
            let nodes = vec![ClusterNodeInfo { serves, reachable, ..other }];
            let text = show(&ClusterInfo { nodes, ..cluster() });
            let line = text.lines().find(|line| line.starts_with("2     n2 "));
            line.unwrap_or_else(|| panic!("no line of the node in\n{text}")).to_owned()
        };
        assert!(shown(Some(true), Some(true)).contains("  yes "));
        assert!(shown(Some(false), Some(true)).contains("  not serving  "));
        assert!(shown(None, Some(true)).contains("  yes "), "an earlier version of the server");
        assert!(shown(Some(false), Some(false)).contains("  no "));
    }

    #[test]
    fn missing_and_suspect_copies_are_shown_with_their_outlook() {
        let shown = |reachable, copies: ClusterCopiesInfo| {
            let mut cluster = ClusterInfo { copies, ..cluster() };
            cluster.nodes = [1, 2, 3].map(|id| node(id, ClusterNodeRole::Storage)).into();
            cluster.nodes[2].reachable = Some(reachable);
            let text = show(&cluster);
            let line = text.lines().find_map(|line| line.strip_prefix("copies       "));
            line.unwrap_or_else(|| panic!("no line of copies in\n{text}")).to_owned()
        };
        let copies = ClusterCopiesInfo {
            wanted: 3,
            segments: 120,
            bytes: 3 << 30,
            below_segments: 4,
            below_bytes: 1 << 30,
            ..ClusterCopiesInfo::default()
        };
        let begin = "4 of 120 sealed segments (1.0 GiB) have fewer than 3; ";
        assert_eq!(shown(true, copies), format!("{begin}they are being copied"));
        let waiting = format!("{begin}a storage node for more copies does not answer");
        assert_eq!(shown(false, copies), waiting);
        let suspect = ClusterCopiesInfo { suspect_segments: 1, ..copies };
        let expected = format!("{begin}they are being copied; 1 with a suspect copy");
        assert_eq!(shown(true, suspect), expected);
        let whole = ClusterCopiesInfo { below_segments: 0, below_bytes: 0, ..copies };
        assert_eq!(shown(false, whole), "3 of each of 120 sealed segments (3.0 GiB)");
        assert!(show(&ClusterInfo { copies, ..cluster() }).contains("open         no segments\n"));
    }

    #[test]
    fn a_cell_without_a_value_is_a_dash() {
        let mut cluster = cluster();
        (cluster.nodes[0].name, cluster.nodes[1].address) = (String::new(), String::new());
        cluster.groups[0].members.truncate(1);
        let text = show(&cluster);
        for expected in [
            "1     -     10.0.0.1:9002  storage  ",
            "2     n2    -              gateway  ",
            "0      1        1       -         -\n",
        ] {
            assert!(text.contains(expected), "{expected:?} is missing in\n{text}");
        }
    }

    #[test]
    fn open_segments_are_on_two_nodes_if_there_are_as_many() {
        let shown = |wanted, open_segments| {
            let copies = ClusterCopiesInfo { wanted, open_segments, ..ClusterCopiesInfo::default() };
            let text = show(&ClusterInfo { copies, ..cluster() });
            let line = text.lines().find_map(|line| line.strip_prefix("open         "));
            line.unwrap_or_else(|| panic!("no line of open segments in\n{text}")).to_owned()
        };
        assert_eq!(shown(1, 1), "1 segment, on one node alone");
        assert_eq!(shown(2, 1), "1 segment, each chunk on two nodes before it is acknowledged");
        assert_eq!(shown(3, 2), "2 segments, each chunk on two nodes before it is acknowledged");
        assert_eq!(shown(3, 0), "no segments");
    }

    #[test]
    fn findings_come_before_the_nodes() {
        let finding = HealthFinding {
            severity: Health::Warning,
            what: "Node 2 does not answer.".into(),
            advice: "Check that it runs.".into(),
        };
        let text = show(&ClusterInfo { findings: vec![finding], waits: None, ..cluster() });
        let expected = "WARNING  Node 2 does not answer.\n          Check that it runs.\n\ncluster ";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("membership   nothing waits\n"), "{text}");
    }

    #[tokio::test]
    async fn a_token_is_requested_after_the_address_of_the_member() {
        let server = CannedServer::start(vec![json("200 OK", &cluster()), json("201 Created", &token())]);
        let (cluster, token) = new_token(&client_of(&server)).await.unwrap();
        let requests = server.requests();
        assert!(requests[0].starts_with("get /v1/cluster "), "{requests:?}");
        assert!(requests[1].starts_with("post /v1/cluster/tokens "), "{requests:?}");
        let expected = "# The token admits one node, until 2026-11-27T01:00:00.000Z. Run this on the host of \
                        the new node:\n\
                        MLGW_CLUSTER_TOKEN=mlgw-join-1.a.b.c mlgw cluster join --seed 10.0.0.1:9002\n";
        assert_eq!(show_token(&cluster, &token), expected);
    }

    #[tokio::test]
    async fn a_server_without_a_cluster_creates_no_token() {
        let body = r#"{"code": "NotClustered", "message": "Use `mlgw cluster init`."}"#;
        let length = body.len().to_string();
        let refusal = response("404 Not Found", &[("content-length", &length)], body);
        let server = CannedServer::start(vec![refusal]);
        let error = new_token(&client_of(&server)).await.unwrap_err();
        assert_eq!(error.status(), 1);
        assert_eq!(error.to_string(), "Use `mlgw cluster init`. (NotClustered)");
        assert_eq!(server.requests().len(), 1);
    }

    #[test]
    fn an_address_that_no_other_host_can_use_has_a_comment() {
        let own = |address: &str| {
            let mut cluster = cluster();
            cluster.nodes[0].address = address.to_owned();
            show_token(&cluster, &token())
        };
        assert!(own("127.0.0.1:9002").contains("# 127.0.0.1:9002 is an address of this host alone."));
        assert!(own("[fd00::1]:9002").contains(" --seed '[fd00::1]:9002'\n"));
        assert!(own("").contains(" --seed HOST:PORT\n# HOST:PORT is the cluster.address of a member"));
    }

    #[test]
    fn loopback_addresses_are_recognized() {
        for address in ["127.0.0.1:1", "127.9.0.1:1", "[::1]:1", "localhost:1", "LOCALHOST:1"] {
            assert!(is_loopback(address), "{address}");
        }
        for address in ["10.0.0.1:1", "[fd00::1]:1", "h:1", "localhost.example:1"] {
            assert!(!is_loopback(address), "{address}");
        }
    }

    #[test]
    fn a_word_is_quoted_where_a_shell_would_read_more() {
        assert_eq!(shell_word("a-b.c_d:1"), "a-b.c_d:1");
        assert_eq!(shell_word("$(x)'"), r"'$(x)'\'''");
    }
}
