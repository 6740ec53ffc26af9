//! The script of deploy/kubernetes that makes the volumes of pods nodes of a cluster, run for each pod as its
//! init container runs it, and followed by the server, as the main container.
//!
//! A pod is a process group, and a kill ends all of it, as the kubelet ends a container. It keeps its
//! addresses when it restarts and when its volume is lost, as a pod keeps its name.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;

use http::Method;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::cluster::testbed::wait_until;
use crate::s3::{S3TestClient, full_body};
use crate::server::{ACCESS_KEY, SECRET_KEY, ServerSetup, binary, runtime};

const BUCKET: &str = "deployed";
const KEY: &str = "object";
const BODY: &str = "stored before the pods were lost";
/// The pods of storage nodes. The first may begin a cluster.
const STORAGE_PODS: [&str; 3] = ["mlgw-0", "mlgw-1", "mlgw-2"];
const FIRST_POD: &str = STORAGE_PODS[0];
const GATEWAY_POD: &str = "mlgw-gateway-0";
/// First port of pods, below the ports that the kernel gives to connections.
const FIRST_PORT: u16 = 9100;

/// The commands of both containers of a pod. The main one has no root credentials.
const POD: &str = r#""$0" && unset MLGW_ROOT_ACCESS_KEY_ID MLGW_ROOT_SECRET_ACCESS_KEY && exec mlgw serve"#;

/// Addresses of a pod.
#[derive(Clone, Copy)]
struct PodAddresses {
    s3: SocketAddr,
    admin: SocketAddr,
    peers: SocketAddr,
}

impl PodAddresses {
    /// Returns addresses that nothing else uses: their host is made of the id of this process, in a network
    /// that no other test uses, and no connection gets their ports.
    fn unused() -> Self {
        static NEXT_PORT: AtomicU16 = AtomicU16::new(FIRST_PORT);
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        let host = Ipv4Addr::new(127, 128 | (high & 63), middle, low);
        let next = || SocketAddr::from((host, NEXT_PORT.fetch_add(1, Ordering::Relaxed)));
        Self { s3: next(), admin: next(), peers: next() }
    }
}

/// A container that runs. It is killed when it is dropped.
struct PodProcess {
    child: Child,
    log: PathBuf,
}

impl PodProcess {
    fn signal(&self, signal: Signal) {
        kill_process_group(Pid::from_child(&self.child), signal).expect("our process group");
    }

    /// Ends all processes of the container at once.
    fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if self.child.try_wait().expect("our child").is_none() {
            self.signal(Signal::KILL);
            self.child.wait().expect("our child");
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("the log")
    }

    /// Waits until the container ends by itself.
    fn wait(&mut self) -> ExitStatus {
        let mut ended = None;
        wait_until("the container ends", || {
            ended = self.child.try_wait().expect("our child");
            ended.is_some()
        });
        ended.expect("it has ended")
    }
}

impl Drop for PodProcess {
    fn drop(&mut self) {
        if thread::panicking() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            eprintln!("--- {} ---\n{log}---", self.log.display());
        }
        self.end();
    }
}

/// The volumes of the pods, and what all pods have in common.
struct PodSite {
    room: TempDir,
    storage: [PodAddresses; 3],
    gateway: PodAddresses,
    runtime: Runtime,
}

impl PodSite {
    fn new() -> Self {
        let room = tempfile::tempdir().expect("a directory");
        symlink(binary(), room.path().join("mlgw")).expect("a link");
        let storage = STORAGE_PODS.map(|_| PodAddresses::unused());
        Self { room, storage, gateway: PodAddresses::unused(), runtime: runtime() }
    }

    fn addresses(&self, pod: &str) -> PodAddresses {
        let at = STORAGE_PODS.iter().position(|name| *name == pod);
        at.map_or(self.gateway, |at| self.storage[at])
    }

    /// The volume of a pod, which is created if it was lost.
    fn volume(&self, pod: &str) -> PathBuf {
        let volume = self.room.path().join(pod);
        fs::create_dir_all(&volume).expect("a volume");
        volume
    }

    fn data_dir(&self, pod: &str) -> PathBuf {
        self.volume(pod).join("data")
    }

    /// True if the script has nothing left to do for a pod.
    fn is_formed(&self, pod: &str) -> bool {
        self.volume(pod).join("data.formed").exists()
    }

    /// The id of the cluster of a pod's volume.
    fn cluster_of(&self, pod: &str) -> String {
        let text = fs::read_to_string(self.data_dir(pod).join("node.json")).expect("a member");
        let node: Value = serde_json::from_str(&text).expect("a description");
        node["cluster"].as_str().expect("a cluster").to_owned()
    }

    /// Removes the volume of a pod.
    fn remove_volume(&self, pod: &str) {
        fs::remove_dir_all(self.volume(pod)).expect("removed");
    }

    /// Runs the script, as the init container of a pod.
    fn prepare(&self, pod: &str) -> PodProcess {
        let mut command = Command::new("/bin/sh");
        command.arg(script());
        self.spawn(pod, command)
    }

    /// Runs both containers of a pod.
    fn start(&self, pod: &str) -> PodProcess {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", POD]).arg(script());
        self.spawn(pod, command)
    }

    fn spawn(&self, pod: &str, mut command: Command) -> PodProcess {
        let log = self.room.path().join(format!("{pod}.log"));
        let output = || Stdio::from(File::options().create(true).append(true).open(&log).expect("a log"));
        let own = self.addresses(pod);
        let role = if pod == GATEWAY_POD { "gateway" } else { "storage" };
        let admin = self.storage.map(|one| format!("http://{}", one.admin));
        let seeds = self.storage.map(|one| one.peers.to_string());
        command
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", self.room.path().display()))
            .env("MLGW_DATA_DIR", self.data_dir(pod))
            .env("MLGW_S3__LISTEN", own.s3.to_string())
            .env("MLGW_ADMIN__LISTEN", own.admin.to_string())
            .env("MLGW_CLUSTER__LISTEN", own.peers.to_string())
            .env("MLGW_CLUSTER__SEEDS", seeds.join(","))
            .env("MLGW_ROOT_ACCESS_KEY_ID", ACCESS_KEY)
            .env("MLGW_ROOT_SECRET_ACCESS_KEY", SECRET_KEY)
            .env("NODE_NAME", pod)
            .env("NODE_ROLE", role)
            .env("FIRST_NODE", FIRST_POD)
            .env("STORAGE_NODES", STORAGE_PODS.len().to_string())
            .env("ADMIN_URLS", admin.join(" "))
            .env("PAUSE_SECONDS", "0.2")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(output())
            .stderr(output());
        let child = command.spawn().expect("a shell");
        PodProcess { child, log }
    }

    /// Runs the script until a file of the data directory exists, and kills it then.
    fn kill_at(&self, pod: &str, file: &str) {
        let container = self.prepare(pod);
        let path = self.data_dir(pod).join(file);
        wait_until(file, || path.exists());
        assert!(!self.is_formed(pod), "the pod waits for others");
        container.kill();
    }

    /// Starts these pods, and waits until they have joined and their S3 endpoints are open.
    fn start_all(&self, pods: &[&str]) -> Vec<PodProcess> {
        let started = pods.iter().map(|pod| self.start(pod)).collect();
        for pod in pods {
            wait_until(pod, || self.is_formed(pod) && self.is_serving(pod));
        }
        started
    }

    /// True if clients can connect to the S3 endpoint of a pod.
    fn is_serving(&self, pod: &str) -> bool {
        TcpStream::connect(self.addresses(pod).s3).is_ok()
    }

    fn client(&self, pod: &str) -> S3TestClient {
        S3TestClient::new(self.addresses(pod).s3, ACCESS_KEY, SECRET_KEY)
    }

    /// Stores the object through a pod. Requests fail while groups have no leader.
    fn store(&self, pod: &str) {
        let client = self.client(pod);
        wait_until("the bucket exists", || {
            match self.runtime.block_on(client.create_bucket(BUCKET)) {
                Ok(()) => true,
                // An attempt without an answer has created it.
                Err(failure) => failure.status() == Some(409),
            }
        });
        wait_until("the object is stored", || {
            self.runtime.block_on(client.put(BUCKET, KEY, full_body(BODY))).is_ok()
        });
    }

    /// Waits until a pod returns the object.
    fn until_read(&self, pod: &str) {
        let client = self.client(pod);
        wait_until("the object is read", || {
            self.runtime.block_on(client.get(BUCKET, KEY)).is_ok_and(|read| read.body == BODY.as_bytes())
        });
    }

    /// The cluster as a pod describes it.
    fn view(&self, pod: &str) -> Value {
        let client = S3TestClient::admin(self.addresses(pod).admin, ACCESS_KEY, SECRET_KEY);
        let view = self.runtime.block_on(client.call_admin(Method::GET, "/v1/cluster", &Value::Null));
        view.unwrap_or_else(|failure| panic!("{pod}: {failure:?}"))
    }

    /// Waits until all storage nodes vote in every group, so that two of them are a majority.
    fn until_all_vote(&self) {
        wait_until("three nodes vote in every group", || {
            let views = STORAGE_PODS.map(|pod| self.view(pod));
            let groups = views[0]["groups"].as_array().expect("groups").len();
            // The leader of a group lists its members.
            let parts = views.iter().flat_map(|view| view["groups"].as_array().expect("groups"));
            let voters = |group: &Value| {
                let members = group["members"].as_array().expect("members");
                members.iter().filter(|member| member["part"] == "voter").count()
            };
            parts.filter(|group| voters(group) == STORAGE_PODS.len()).count() == groups
        });
    }

    /// Roles and names of the nodes, sorted, as the first pod describes them.
    fn nodes(&self) -> Vec<String> {
        let view = self.view(FIRST_POD);
        let nodes = view["nodes"].as_array().expect("nodes");
        let text = |node: &Value, field: &str| node[field].as_str().expect("a text").to_owned();
        let mut found: Vec<String> =
            nodes.iter().map(|node| format!("{} {}", text(node, "role"), text(node, "name"))).collect();
        found.sort();
        found
    }
}

/// The script in the folder deploy.
fn script() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace");
    root.join("deploy/kubernetes/mlgw-prepare.sh")
}

#[test]
fn pods_that_are_killed_at_every_step_become_one_cluster_of_three_and_a_gateway() {
    let site = PodSite::new();
    for file in ["LOCK", "node.json", "catalogue-1", "admin.json"] {
        site.kill_at(FIRST_POD, file);
    }
    let _first = site.start(FIRST_POD);
    for file in ["LOCK", "cluster/node.key", "node.json"] {
        site.kill_at("mlgw-1", file);
    }
    let second = site.start("mlgw-1");
    wait_until("the second pod waits for the third", || {
        second.log().contains("mlgw-1 waits for 3 storage nodes")
    });
    assert!(![FIRST_POD, "mlgw-1"].iter().any(|pod| site.is_formed(pod) || site.is_serving(pod)));

    let _started = site.start_all(&["mlgw-2", GATEWAY_POD]);
    wait_until("the first pods serve", || site.is_serving(FIRST_POD) && site.is_serving("mlgw-1"));
    site.store("mlgw-2");
    for pod in [FIRST_POD, "mlgw-1", "mlgw-2", GATEWAY_POD] {
        site.until_read(pod);
        assert_eq!(site.cluster_of(pod), site.cluster_of(FIRST_POD), "{pod}");
    }
    // The first node has no name.
    let mut expected = vec![format!("gateway {GATEWAY_POD}"), "storage ".to_owned()];
    expected.extend(STORAGE_PODS[1..].iter().map(|pod| format!("storage {pod}")));
    assert_eq!(site.nodes(), expected, "no node joined twice");
}

#[test]
fn pods_of_a_complete_cluster_start_without_each_other_and_keep_their_objects() {
    let site = PodSite::new();
    let pods = site.start_all(&STORAGE_PODS);
    site.store(FIRST_POD);
    pods.into_iter().for_each(PodProcess::kill);
    for pod in STORAGE_PODS {
        assert!(site.prepare(pod).wait().success(), "the script needs no other pod");
    }
    let _pods = site.start_all(&STORAGE_PODS);
    site.until_read("mlgw-1");
    assert_eq!(site.nodes().len(), STORAGE_PODS.len(), "no node joined again");
}

#[test]
fn a_first_pod_that_lost_its_volume_joins_the_others_and_never_serves_a_second_cluster() {
    let site = PodSite::new();
    let pods = site.start_all(&STORAGE_PODS);
    let cluster = site.cluster_of(FIRST_POD);
    site.store(FIRST_POD);
    site.until_read("mlgw-2");
    site.until_all_vote();
    pods.into_iter().for_each(PodProcess::kill);

    // No other pod answers, so it begins a second cluster.
    site.remove_volume(FIRST_POD);
    let mut first = site.prepare(FIRST_POD);
    let admin = site.data_dir(FIRST_POD).join("admin.json");
    wait_until("the first pod waits for the others", || admin.exists());
    assert_ne!(site.cluster_of(FIRST_POD), cluster);
    let _others = site.start_all(&STORAGE_PODS[1..]);
    assert_eq!(first.wait().code(), Some(1), "{}", first.log());
    assert!(first.log().contains(&format!("is a node of cluster {cluster}, and ")), "{}", first.log());
    assert!(!site.is_formed(FIRST_POD));

    // With another new volume it finds the others.
    site.remove_volume(FIRST_POD);
    let _first = site.start_all(&[FIRST_POD]);
    assert_eq!(site.cluster_of(FIRST_POD), cluster);
    site.until_read(FIRST_POD);
}

#[test]
fn a_server_without_peers_becomes_the_first_node_with_its_objects_and_no_other_node() {
    let site = PodSite::new();
    let server = ServerSetup::new(site.data_dir(FIRST_POD)).start();
    let client = server.client();
    site.runtime.block_on(async {
        client.create_bucket(BUCKET).await.expect("made");
        client.put(BUCKET, KEY, full_body(BODY)).await.expect("stored");
    });
    server.stop();
    ServerSetup::new(site.data_dir("mlgw-1")).start().stop();
    let mut refused = site.prepare("mlgw-1");
    assert_eq!(refused.wait().code(), Some(1), "{}", refused.log());
    assert!(refused.log().contains("belongs to a server without peers"), "{}", refused.log());

    site.remove_volume("mlgw-1");
    let _pods = site.start_all(&STORAGE_PODS);
    STORAGE_PODS.iter().for_each(|pod| site.until_read(pod));
}

#[test]
fn a_deleted_pod_that_waits_stops_its_server() {
    let site = PodSite::new();
    let mut first = site.prepare(FIRST_POD);
    let admin = site.data_dir(FIRST_POD).join("admin.json");
    wait_until("the server runs", || admin.exists());
    // The kubelet signals the first process of a container.
    rustix::process::kill_process(Pid::from_child(&first.child), Signal::TERM).expect("our child");
    assert_eq!(first.wait().code(), Some(143), "{}", first.log());
    assert!(!admin.exists(), "the server stopped in order");
}
