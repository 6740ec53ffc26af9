//! The network between the nodes of a cluster: a relay before the address of each node, through which the
//! other nodes connect to it, and which holds back bytes from one node to another on request.
//!
//! A node listens at a further address, which only its relay knows; its own address is that of the relay. All
//! nodes are on loopback, so a relay finds the node that connects by the socket: `/proc/net/tcp` has its
//! inode, and the files of the processes show the owner. That works without rights of root.
//!
//! A direction that is blocked passes nothing, not even the end of a connection, and a new connection waits
//! until both of its directions are open. Nothing is lost: bytes pass later, as TCP would send them again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mlgw_common::time::{sleep, timeout};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::cluster::testbed::TestCluster;

/// The port of a node, above that of its relay and below the ports that the kernel gives to connections.
const PORT_OFFSET: u16 = 10_000;
/// Tries to find the node that opened a connection: its process may be known a moment later.
const DIALER_TRIES: usize = 10;
const DIALER_PAUSE: Duration = Duration::from_millis(20);
/// Time for which nothing may pass, in a test.
const BLOCKED_WAIT: Duration = Duration::from_millis(200);
/// Bytes that a relay reads at a time.
const PIECE_BYTES: usize = 64 << 10;

/// The way of bytes from one node to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LinkDirection {
    pub(super) from: usize,
    pub(super) to: usize,
}

/// The relays of a cluster.
pub(super) struct NodeLinks {
    state: Arc<LinkState>,
}

/// Nodes that run, and directions that are blocked.
struct LinkState {
    /// Process ids by node.
    pids: Mutex<BTreeMap<usize, u32>>,
    blocked: watch::Sender<BTreeSet<LinkDirection>>,
}

impl NodeLinks {
    pub(super) fn new() -> Self {
        let blocked = watch::Sender::new(BTreeSet::new());
        Self { state: Arc::new(LinkState { pids: Mutex::default(), blocked }) }
    }

    /// Puts a relay before a node that does not run. Its next start listens behind the relay.
    pub(super) fn serve(&self, cluster: &mut TestCluster, node: usize) {
        let address = cluster.member(node).address;
        let behind = SocketAddr::new(address.ip(), address.port() + PORT_OFFSET);
        cluster.set(node, "cluster.address", &address.to_string());
        cluster.set(node, "cluster.listen", &behind.to_string());
        let relay = NodeRelay { node, address, behind, state: Arc::clone(&self.state) };
        let listener = cluster.block_on(TcpListener::bind(address)).expect("the node has ended");
        cluster.runtime().spawn(relay.run(listener));
    }

    /// Starts a node that has a relay, and makes its process known before it connects to others.
    pub(super) fn spawn(&self, cluster: &mut TestCluster, node: usize) {
        cluster.spawn(node);
        self.state.set_pid(node, cluster.process(node).pid());
    }

    /// Blocks these directions.
    pub(super) fn block(&self, directions: impl IntoIterator<Item = LinkDirection>) {
        self.state.blocked.send_modify(|blocked| blocked.extend(directions));
    }

    /// Opens all directions.
    pub(super) fn open(&self) {
        self.state.blocked.send_modify(BTreeSet::clear);
    }
}

impl LinkState {
    fn set_pid(&self, node: usize, pid: u32) {
        self.pids.lock().expect("lock is not poisoned").insert(node, pid);
    }

    /// The node with a connection from `from` to `to`; `None` if another process has it.
    async fn dialer(&self, from: SocketAddr, to: SocketAddr) -> Option<usize> {
        for _ in 0..DIALER_TRIES {
            if let Some(node) = self.owner_of(from, to) {
                return Some(node);
            }
            sleep(DIALER_PAUSE).await;
        }
        None
    }

    fn owner_of(&self, from: SocketAddr, to: SocketAddr) -> Option<usize> {
        let socket = format!("socket:[{}]", socket_inode(from, to)?);
        let pids = self.pids.lock().expect("lock is not poisoned");
        pids.iter().find(|(_, pid)| has_file(**pid, &socket)).map(|(node, _)| *node)
    }
}

/// An address as `/proc/net/tcp` has it.
fn kernel_address(address: SocketAddr) -> Option<String> {
    let IpAddr::V4(ip) = address.ip() else { return None };
    Some(format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), address.port()))
}

/// The inode of the socket of this process or another one that is connected from `from` to `to`.
fn socket_inode(from: SocketAddr, to: SocketAddr) -> Option<u64> {
    const LOCAL: usize = 1;
    const REMOTE: usize = 2;
    const INODE: usize = 9;
    let (from, to) = (kernel_address(from)?, kernel_address(to)?);
    let table = fs::read_to_string("/proc/net/tcp").expect("the kernel has a table of connections");
    let inode = table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_wanted = fields.get(LOCAL) == Some(&&*from) && fields.get(REMOTE) == Some(&&*to);
        if is_wanted { fields.get(INODE)?.parse().ok() } else { None }
    });
    // A socket that its process has closed has none.
    inode.filter(|inode| *inode != 0)
}

/// True if a process has a file with this name, such as a socket.
fn has_file(pid: u32, name: &str) -> bool {
    let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let mut targets = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    targets.any(|target| target.as_os_str() == name)
}

/// The relay before a node.
struct NodeRelay {
    node: usize,
    address: SocketAddr,
    behind: SocketAddr,
    state: Arc<LinkState>,
}

impl NodeRelay {
    async fn run(self, listener: TcpListener) {
        let relay = Arc::new(self);
        loop {
            // An error is that of a connection that ended before it was accepted.
            let Ok((stream, from)) = listener.accept().await else { continue };
            tokio::spawn(Arc::clone(&relay).pass(stream, from));
        }
    }

    /// Relays a connection until both of its sides have ended.
    async fn pass(self: Arc<Self>, stream: TcpStream, from: SocketAddr) {
        let dialer = self.state.dialer(from, self.address).await;
        let gate = |from: Option<usize>, to: Option<usize>| LinkGate {
            // A process that is no node, such as a command, is never held back.
            direction: from.zip(to).map(|(from, to)| LinkDirection { from, to }),
            blocked: self.state.blocked.subscribe(),
        };
        let (mut there, mut back) = (gate(dialer, Some(self.node)), gate(Some(self.node), dialer));
        there.until_open().await;
        back.until_open().await;
        let Ok(node) = TcpStream::connect(self.behind).await else { return };
        if stream.set_nodelay(true).and_then(|()| node.set_nodelay(true)).is_err() {
            return;
        }
        let ((from_dialer, to_dialer), (from_node, to_node)) = (stream.into_split(), node.into_split());
        tokio::join!(there.pass(from_dialer, to_node), back.pass(from_node, to_dialer));
    }
}

/// One direction of a connection.
struct LinkGate {
    direction: Option<LinkDirection>,
    blocked: watch::Receiver<BTreeSet<LinkDirection>>,
}

impl LinkGate {
    async fn until_open(&mut self) {
        let Some(direction) = self.direction else { return };
        // The sender lives as long as the relay, so this is no error.
        drop(self.blocked.wait_for(|blocked| !blocked.contains(&direction)).await);
    }

    /// Passes bytes on until the sender ends, or the receiver has ended.
    async fn pass(mut self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            self.until_open().await;
            let read = from.read(&mut piece).await.unwrap_or(0);
            // The direction may have been blocked while the read waited.
            self.until_open().await;
            if read == 0 || to.write_all(&piece[..read]).await.is_err() {
                break;
            }
        }
        // An error is that of a receiver that has ended already.
        drop(to.shutdown().await);
    }
}

#[tokio::test]
async fn a_blocked_direction_passes_nothing_until_it_is_open() {
    let (dialer, node) = (1, 2);
    let links = NodeLinks::new();
    links.state.set_pid(dialer, std::process::id());
    let bind = async || TcpListener::bind(("127.0.0.1", 0)).await.expect("bound");
    let (before, behind) = (bind().await, bind().await);
    let address = before.local_addr().expect("bound");
    let relay = NodeRelay {
        node,
        address,
        behind: behind.local_addr().expect("bound"),
        state: Arc::clone(&links.state),
    };
    tokio::spawn(relay.run(before));
    let mut at_dialer = TcpStream::connect(address).await.expect("connected");
    let (mut at_node, _) = behind.accept().await.expect("connected");
    at_dialer.write_all(b"1").await.expect("sent");
    assert_eq!(at_node.read_u8().await.expect("passed"), b'1');

    links.block([LinkDirection { from: dialer, to: node }]);
    at_dialer.write_all(b"2").await.expect("sent");
    at_node.write_all(b"3").await.expect("sent");
    assert_eq!(at_dialer.read_u8().await.expect("passed"), b'3', "the other direction is open");
    let blocked = timeout(BLOCKED_WAIT, at_node.read_u8()).await;
    assert!(blocked.is_err(), "{blocked:?}");

    links.open();
    assert_eq!(at_node.read_u8().await.expect("passed"), b'2');
    drop(at_dialer);
    assert_eq!(at_node.read(&mut [0]).await.expect("it has ended"), 0);
}
