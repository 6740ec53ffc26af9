//! haproxy in front of the storage nodes, with both variants of the configuration in `deploy/haproxy`: one
//! reads HTTP, and one passes connections on with a header of the PROXY protocol. Requests are spread over
//! the nodes, a node stops without a failed request, and after the loss of another one no request fails any
//! more.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mlgw_common::time::sleep;
use tokio::task::JoinHandle;

use super::testbed::{BUCKET, STORAGE, TestCluster, content_of, node_of, put, unused_address, wait_until};
use crate::observability::access_log::lines;
use crate::s3::S3TestClient;
use crate::server::{ACCESS_KEY, SECRET_KEY, ServerSetup, get_text};

const CONFIGURATION: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/haproxy/haproxy.cfg");
/// Source address of the clients.
const CLIENT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Node that is stopped, and node that is killed.
const STOPPED: usize = 3;
const KILLED: usize = 2;
/// Objects that are stored and read between two events.
const OBJECTS: usize = 20;
/// Reads among which each node in use serves some.
const READS: usize = 60;
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Where the section of the shipped configuration begins that is instead of `s3` and `mlgw`, as a comment.
const CONNECTIONS_SECTION: &str = "\n# Instead of the frontend and the backend above";

/// What haproxy passes on: the variants of the shipped configuration.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Passing {
    /// Requests, with `X-Forwarded-For`.
    Requests,
    /// Connections, with a header of the PROXY protocol, version 2.
    Connections,
}

impl Passing {
    /// Returns the shipped configuration of this variant.
    fn shipped(self) -> String {
        let shipped = std::fs::read_to_string(Path::new(CONFIGURATION)).expect("it is in this repository");
        let (requests, connections) = shipped.split_once(CONNECTIONS_SECTION).expect("it has both variants");
        match self {
            Self::Requests => requests.to_owned(),
            Self::Connections => {
                let (before, rest) = requests.split_once("\nfrontend s3\n").expect("a frontend");
                let (_, status) = rest.split_once("\nfrontend status\n").expect("a frontend");
                // A line of prose has one space after the `#`, and a line of the configuration none or four.
                let lines = connections.lines().filter_map(|line| line.strip_prefix('#'));
                let is_setting = |line: &&str| line.starts_with("    ") || !line.starts_with(' ');
                let lines: Vec<&str> = lines.filter(is_setting).collect();
                format!("{before}\nfrontend status\n{status}\n{}\n", lines.join("\n"))
            }
        }
    }

    /// Options of the servers in this variant.
    const fn options(self) -> &'static str {
        match self {
            Self::Requests => "",
            Self::Connections => " send-proxy-v2",
        }
    }
}

/// Settings of nodes behind haproxy.
fn behind_haproxy(setup: ServerSetup) -> ServerSetup {
    setup.with("s3.trusted_proxies", "127.0.0.1").with("access_log.one_in", 1)
}

/// A running haproxy.
struct LoadBalancer {
    child: Child,
    s3: SocketAddr,
    status: SocketAddr,
}

impl LoadBalancer {
    /// Starts haproxy in front of the storage nodes of a cluster.
    fn start(cluster: &TestCluster, passing: Passing) -> Self {
        let Some(haproxy) = std::env::var_os("MLGW_HAPROXY") else {
            panic!("MLGW_HAPROXY does not name a haproxy; tests/steps/rust-tests system installs one");
        };
        let (s3, status) = (unused_address(), unused_address());
        let file = cluster.file("haproxy.cfg", &configuration(cluster, passing, s3, status));
        let child = Command::new(haproxy).args(["-db", "-f", &file]).stdin(Stdio::null()).spawn();
        let balancer = Self { child: child.expect("haproxy runs"), s3, status };
        for id in STORAGE {
            wait_until(&format!("haproxy finds node {id} ready"), || balancer.state_of(id) == "UP");
        }
        balancer
    }

    /// Returns the state of a node as haproxy sees it; empty before the first check.
    fn state_of(&self, id: usize) -> String {
        let table = get_text(self.status, "/;csv").unwrap_or_default();
        let mut rows = table.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let Some(column) = rows.find_map(|row| row.iter().position(|name| *name == "status")) else {
            return String::new();
        };
        let row = rows.find(|row| row.len() > column && row[..2] == ["mlgw", &*format!("node-{id}")]);
        row.map(|row| row[column].to_owned()).unwrap_or_default()
    }

    fn client(&self) -> S3TestClient {
        S3TestClient::new(self.s3, ACCESS_KEY, SECRET_KEY).with_source_address(IpAddr::V4(CLIENT))
    }
}

impl Drop for LoadBalancer {
    fn drop(&mut self) {
        // It has ended already if its start failed.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Returns the shipped configuration with the addresses of a test, without the user of the process.
fn configuration(cluster: &TestCluster, passing: Passing, s3: SocketAddr, status: SocketAddr) -> String {
    let (shipped, options) = (passing.shipped(), passing.options());
    let mut text = String::new();
    for line in shipped.lines().filter(|line| !line.contains(" user ") && !line.contains(" group ")) {
        text += line;
        text.push('\n');
    }
    let mut changed = vec![
        ("\n    bind :9000\n".to_owned(), format!("\n    bind {s3}\n")),
        ("    bind 127.0.0.1:8404\n".to_owned(), format!("    bind {status}\n")),
    ];
    for id in STORAGE {
        let node = cluster.process(id);
        changed.push((
            format!("    server node-{id} 10.0.0.{id}:9000 check port 9101{options}\n"),
            format!("    server node-{id} {} check port {}{options}\n", node.s3, node.admin.port()),
        ));
    }
    for (from, to) in changed {
        assert_eq!(text.matches(&from).count(), 1, "{from:?} in {text}");
        text = text.replace(&from, &to);
    }
    text
}

/// A client that stores objects and reads them, one after the other.
struct BalancedClient {
    task: JoinHandle<Vec<String>>,
    is_over: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
}

impl BalancedClient {
    fn start(cluster: &TestCluster, balancer: &LoadBalancer, label: &'static str) -> Self {
        let (is_over, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let task = run_client(balancer.client(), label, Arc::clone(&is_over), Arc::clone(&done));
        Self { task: cluster.runtime().spawn(task), is_over, done }
    }

    /// Waits until it has stored and read some more objects.
    fn until_more(&self) {
        let wanted = self.done.load(Ordering::Relaxed) + OBJECTS;
        wait_until("some more objects are stored and read through haproxy", || {
            self.done.load(Ordering::Relaxed) >= wanted
        });
    }

    /// Ends it after its current request, and returns its failures.
    fn end(self, cluster: &TestCluster) -> Vec<String> {
        self.is_over.store(true, Ordering::Relaxed);
        cluster.block_on(self.task).expect("the client does not panic")
    }
}

/// Stores and reads objects until it is over. Returns the failures.
async fn run_client(
    client: S3TestClient,
    label: &str,
    is_over: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
) -> Vec<String> {
    let mut failures = Vec::new();
    for number in 0.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        match store_and_read(&client, &format!("{label}-{number}")).await {
            Ok(()) => {
                done.fetch_add(1, Ordering::Relaxed);
            }
            Err(failure) => {
                failures.push(failure);
                sleep(RETRY_PAUSE).await;
            }
        }
    }
    failures
}

async fn store_and_read(client: &S3TestClient, key: &str) -> Result<(), String> {
    put(client, key).await.map_err(|failure| format!("PUT {key}: {failure:?}"))?;
    let read = client.get(BUCKET, key).await.map_err(|failure| format!("GET {key}: {failure:?}"))?;
    match content_of(key).difference(&read.body) {
        None => Ok(()),
        Some(difference) => Err(format!("GET {key}: {difference:?}")),
    }
}

/// Returns the nodes that serve reads of an object through haproxy, each on a connection of its own.
fn serving_nodes(cluster: &TestCluster, balancer: &LoadBalancer, key: &str) -> BTreeSet<usize> {
    cluster.block_on(async {
        let mut nodes = BTreeSet::new();
        for _ in 0..READS {
            nodes.insert(node_of(&balancer.client().get(BUCKET, key).await.expect("read")));
        }
        nodes
    })
}

/// Kills a node, and asserts that no request fails any more when haproxy has found that and every group has
/// a leader again.
fn no_request_fails_after_a_loss(cluster: &mut TestCluster, balancer: &LoadBalancer) {
    let client = BalancedClient::start(cluster, balancer, "killed");
    client.until_more();
    cluster.kill(KILLED);
    client.until_more();
    wait_until("haproxy finds that the node is lost", || balancer.state_of(KILLED) == "DOWN");
    cluster.until_led();
    client.until_more();
    // Requests to the lost node have failed, and some others until its groups had new leaders.
    eprintln!("failed requests: {:#?}", client.end(cluster));
    let client = BalancedClient::start(cluster, balancer, "after");
    client.until_more();
    client.until_more();
    assert_eq!(client.end(cluster), Vec::<String>::new(), "the other nodes serve everything");
}

#[test]
fn behind_haproxy_a_node_stops_without_a_failed_request_and_another_one_is_lost() {
    let mut cluster = TestCluster::first_with(behind_haproxy);
    cluster.join("storage");
    cluster.join_stopped("storage");
    // A second signal ends the delay.
    cluster.set(STOPPED, "s3.shutdown_delay", "1h");
    cluster.start(STOPPED);
    cluster.until_settled();
    let balancer = LoadBalancer::start(&cluster, Passing::Requests);
    let client = BalancedClient::start(&cluster, &balancer, "stopped");
    client.until_more();
    assert_eq!(serving_nodes(&cluster, &balancer, "stopped-0"), STORAGE.into());

    cluster.send_stop(STOPPED);
    wait_until("haproxy finds that the node stops", || balancer.state_of(STOPPED) == "DOWN");
    client.until_more();
    let others: BTreeSet<usize> = STORAGE.into_iter().filter(|id| *id != STOPPED).collect();
    assert_eq!(serving_nodes(&cluster, &balancer, "stopped-0"), others);
    cluster.send_stop(STOPPED);
    cluster.until_stopped(STOPPED);
    client.until_more();
    assert_eq!(client.end(&cluster), Vec::<String>::new(), "a stop fails no request");
    // haproxy states no port.
    assert_eq!(logged_clients(&cluster), [SocketAddr::from((CLIENT, 0))].into());

    // haproxy does not have the new addresses of this node, which votes and stores replicas again.
    cluster.start(STOPPED);
    cluster.until_settled();
    no_request_fails_after_a_loss(&mut cluster, &balancer);
}

#[test]
fn haproxy_passes_connections_on_with_the_addresses_of_the_clients() {
    let mut cluster = TestCluster::three_with(behind_haproxy);
    for id in STORAGE {
        cluster.set(id, "s3.proxy_protocol", "true");
    }
    cluster.restart(&STORAGE);
    cluster.until_settled();
    let balancer = LoadBalancer::start(&cluster, Passing::Connections);
    let client = BalancedClient::start(&cluster, &balancer, "passed-on");
    client.until_more();
    assert_eq!(client.end(&cluster), Vec::<String>::new());
    assert_eq!(serving_nodes(&cluster, &balancer, "passed-on-0"), STORAGE.into());
    let direct = cluster.block_on(cluster.client(STOPPED).get(BUCKET, "passed-on-0"));
    assert!(direct.is_err(), "a connection without the header is refused");

    no_request_fails_after_a_loss(&mut cluster, &balancer);
    cluster.stop(STOPPED);
    let logged = logged_clients(&cluster);
    assert!(!logged.is_empty() && logged.iter().all(|from| from.ip() == IpAddr::V4(CLIENT)), "{logged:?}");
}

/// Returns the addresses that a node that has stopped has logged: those of clients, and not that of haproxy.
fn logged_clients(cluster: &TestCluster) -> BTreeSet<SocketAddr> {
    let logged = lines(&cluster.member(STOPPED).setup.data_dir);
    let from = |line: &serde_json::Value| line["from"].as_str().and_then(|from| from.parse().ok());
    logged.iter().filter_map(from).collect()
}
