//! Nodes for tests: a cluster with an authority, transports on loopback, and services that tests control.

pub(super) use crate::body::empty_body;
use crate::state::TransportState;
use crate::{
    AddressBook, ClusterTransport, IncomingCall, IncomingStream, PeerAddress, PeerBody, PeerBodyError,
    PeerServices, ServiceRefusal, StreamAnswer, TransportConfig, WireVersions,
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt as _};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use mlgw_common::time::{Instant, sleep, timeout};
use mlgw_common::{Clock as _, ClusterId, Incarnation, NodeId, SystemClock};
use mlgw_trust::{ClusterAuthority, NodeCredentials, NodeKey, NodeStart, PeerStarts};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Returns the body.
pub(super) const ECHO: u16 = 1;
/// Refuses with code 7.
pub(super) const REFUSE: u16 = 2;
/// Waits for a permit of [`TestServices::gate`].
pub(super) const WAIT: u16 = 3;
/// Panics.
pub(super) const PANIC: u16 = 4;
/// Returns [`TestServices::source_bytes`] of zeros, as a body in pieces of 64 KiB or as an answer.
pub(super) const SOURCE: u16 = 5;
/// Accepts, and reads the body piece by piece, each for a permit of [`TestServices::gate`].
pub(super) const SINK: u16 = 6;
/// Accepts, and answers with a piece and, after a permit of [`TestServices::gate`], a failure.
pub(super) const BROKEN: u16 = 7;

/// Time that no test is meant to reach.
pub(super) const LONG: Duration = Duration::from_secs(120);

/// A deadline that is not meant to be reached.
pub(super) fn late() -> Instant {
    Instant::now() + LONG
}

/// Services that count what they get.
pub(super) struct TestServices {
    pub(super) calls: Mutex<Vec<NodeId>>,
    pub(super) started: Semaphore,
    pub(super) gate: Arc<Semaphore>,
    pub(super) finished: Semaphore,
    pub(super) source_bytes: AtomicUsize,
    /// Bytes that were taken from the body of [`SOURCE`].
    pub(super) produced: Arc<AtomicUsize>,
    pub(super) joins: AtomicUsize,
    /// True if all requests to join are refused with code 7.
    pub(super) refuses_joins: AtomicBool,
    /// Nodes without a record in the cluster.
    pub(super) not_members: Mutex<BTreeSet<NodeId>>,
    pub(super) stated: Mutex<Vec<(NodeId, PeerAddress)>>,
    /// The end of the last body that [`SINK`] read.
    pub(super) sunk: Arc<Mutex<Option<Result<usize, PeerBodyError>>>>,
    pub(super) sunk_end: Arc<Semaphore>,
}

impl Default for TestServices {
    fn default() -> Self {
        Self {
            calls: Mutex::default(),
            started: Semaphore::new(0),
            gate: Arc::new(Semaphore::new(0)),
            finished: Semaphore::new(0),
            source_bytes: AtomicUsize::new(1 << 20),
            produced: Arc::default(),
            joins: AtomicUsize::default(),
            refuses_joins: AtomicBool::default(),
            not_members: Mutex::default(),
            stated: Mutex::default(),
            sunk: Arc::default(),
            sunk_end: Arc::new(Semaphore::new(0)),
        }
    }
}

/// Services that can pass a reference to themselves to their tasks.
struct SharedServices(Arc<TestServices>);

fn refusal() -> ServiceRefusal {
    ServiceRefusal { code: 7, message: "not today; come again".to_owned() }
}

impl PeerServices for SharedServices {
    fn call(&self, call: IncomingCall) -> BoxFuture<'static, Result<Bytes, ServiceRefusal>> {
        let of = self.0.clone();
        Box::pin(async move {
            of.calls.lock().push(call.peer);
            of.started.add_permits(1);
            match call.service {
                ECHO => Ok(call.body),
                WAIT => {
                    of.gate.acquire().await.unwrap().forget();
                    of.finished.add_permits(1);
                    Ok(call.body)
                }
                SOURCE => Ok(Bytes::from(vec![0; of.source_bytes.load(Ordering::SeqCst)])),
                PANIC => panic!("on purpose"),
                _ => Err(refusal()),
            }
        })
    }

    fn stream(&self, stream: IncomingStream) -> BoxFuture<'static, Result<StreamAnswer, ServiceRefusal>> {
        let of = self.0.clone();
        Box::pin(async move {
            of.calls.lock().push(stream.peer);
            of.started.add_permits(1);
            let body = match stream.service {
                ECHO => stream.body,
                WAIT => {
                    of.gate.acquire().await.unwrap().forget();
                    stream.body
                }
                SOURCE => zeros(of.source_bytes.load(Ordering::SeqCst), of.produced.clone()),
                SINK => {
                    tokio::spawn(sink(of, stream.body));
                    empty_body()
                }
                BROKEN => {
                    let piece = stream::once(async { Ok(Frame::data(Bytes::from_static(b"piece"))) });
                    let failure = stream::once(async move {
                        of.gate.acquire().await.unwrap().forget();
                        Err(PeerBodyError::Failed("on purpose".to_owned()))
                    });
                    StreamBody::new(Box::pin(piece.chain(failure))).boxed_unsync()
                }
                PANIC => panic!("on purpose"),
                _ => return Err(refusal()),
            };
            Ok(StreamAnswer { head: [&b"re: "[..], &stream.head].concat().into(), body })
        })
    }

    fn join(&self, _from: SocketAddr, body: Bytes) -> BoxFuture<'static, Result<Bytes, ServiceRefusal>> {
        self.0.joins.fetch_add(1, Ordering::SeqCst);
        let is_refused = body == "refuse" || self.0.refuses_joins.load(Ordering::SeqCst);
        let gate = (body == "wait").then(|| self.0.gate.clone());
        Box::pin(async move {
            if let Some(gate) = gate {
                gate.acquire().await.unwrap().forget();
            }
            if is_refused { Err(refusal()) } else { Ok(body) }
        })
    }

    fn is_admitted(&self, node: NodeId) -> BoxFuture<'static, bool> {
        let is_member = !self.0.not_members.lock().contains(&node);
        Box::pin(async move { is_member })
    }

    fn address_stated(&self, node: NodeId, address: PeerAddress) {
        self.0.stated.lock().push((node, address));
    }
}

async fn sink(of: Arc<TestServices>, mut body: PeerBody) {
    let mut bytes = 0;
    let end = loop {
        of.gate.acquire().await.unwrap().forget();
        match body.frame().await {
            Some(Ok(frame)) => bytes += frame.data_ref().map_or(0, Bytes::len),
            Some(Err(error)) => break Err(error),
            None => break Ok(bytes),
        }
    };
    *of.sunk.lock() = Some(end);
    of.sunk_end.add_permits(1);
}

/// Body of `bytes` zeros in pieces of at most 64 KiB; `taken` counts the bytes that were polled.
pub(super) fn zeros(bytes: usize, taken: Arc<AtomicUsize>) -> PeerBody {
    let pieces = stream::unfold(bytes, move |left| {
        let taken = taken.clone();
        async move {
            let piece = left.min(64 << 10);
            taken.fetch_add(piece, Ordering::SeqCst);
            (piece > 0).then(|| (Ok(Frame::data(Bytes::from(vec![0; piece]))), left - piece))
        }
    });
    StreamBody::new(Box::pin(pieces)).boxed_unsync()
}

/// Body of one piece.
pub(super) fn body_of(bytes: impl Into<Bytes>) -> PeerBody {
    StreamBody::new(stream::iter([Ok(Frame::data(bytes.into()))])).boxed_unsync()
}

/// A cluster with an authority.
pub(super) struct TestCluster {
    pub(super) cluster: ClusterId,
    pub(super) authority: ClusterAuthority,
}

/// Differences of a node from the usual.
pub(super) struct NodeOptions {
    pub(super) start: NodeStart,
    pub(super) versions: WireVersions,
    pub(super) removed: BTreeSet<NodeId>,
    /// The directory with the starts of peers; a new one otherwise.
    pub(super) dir: Option<Arc<TempDir>>,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self { start: start(1), versions: WireVersions::OWN, removed: BTreeSet::new(), dir: None }
    }
}

/// Start with a counter and a fixed nonce.
pub(super) fn start(counter: u64) -> NodeStart {
    NodeStart { incarnation: Incarnation(1), counter, nonce: 1 }
}

/// A node with a transport.
pub(super) struct TransportNode {
    pub(super) transport: ClusterTransport,
    pub(super) services: Arc<TestServices>,
    pub(super) address: PeerAddress,
    pub(super) node: NodeId,
    pub(super) starts: Arc<PeerStarts>,
    pub(super) dir: Arc<TempDir>,
}

impl TestCluster {
    pub(super) fn new() -> Self {
        let cluster = ClusterId(5);
        Self { cluster, authority: ClusterAuthority::create(cluster, SystemClock.now()).unwrap() }
    }

    /// Credentials of a node, with a new key.
    pub(super) fn credentials(&self, node: u64) -> NodeCredentials {
        let key = NodeKey::generate().unwrap();
        let request = key.request().unwrap();
        let issued = self.authority.sign(&request, NodeId(node), SystemClock.now()).unwrap();
        let authorities = vec![self.authority.certificate().clone()];
        NodeCredentials::new(Arc::new(key), issued.certificate, issued.validity, authorities).unwrap()
    }

    pub(super) async fn node(&self, node: u64) -> TransportNode {
        self.node_with(node, NodeOptions::default()).await
    }

    pub(super) async fn node_with(&self, node: u64, options: NodeOptions) -> TransportNode {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: PeerAddress = listener.local_addr().unwrap().to_string().parse().unwrap();
        let services = Arc::new(TestServices::default());
        let dir = options.dir.clone().unwrap_or_else(|| Arc::new(tempfile::tempdir().unwrap()));
        let starts = Arc::new(PeerStarts::create(dir.path(), self.cluster).unwrap());
        let config = self.config(node, address.clone(), starts.clone(), options);
        let shared = Arc::new(SharedServices(services.clone()));
        let transport = ClusterTransport::start(config, listener, shared).unwrap();
        TransportNode { transport, services, address, node: NodeId(node), starts, dir }
    }

    fn config(
        &self,
        node: u64,
        address: PeerAddress,
        starts: Arc<PeerStarts>,
        options: NodeOptions,
    ) -> TransportConfig {
        TransportConfig {
            cluster: self.cluster,
            node: NodeId(node),
            start: options.start,
            address,
            versions: options.versions,
            credentials: self.credentials(node),
            starts,
            book: AddressBook::default(),
            removed: options.removed,
        }
    }

    /// State of a transport without a listener.
    pub(super) fn state(&self, node: u64) -> Arc<TransportState> {
        self.state_in(node, tempfile::tempdir().unwrap().path())
    }

    /// The same with the starts of peers in `dir`.
    pub(super) fn state_in(&self, node: u64, dir: &Path) -> Arc<TransportState> {
        self.state_with(node, dir, Arc::default())
    }

    /// The same with services.
    pub(super) fn state_with(
        &self,
        node: u64,
        dir: &Path,
        services: Arc<TestServices>,
    ) -> Arc<TransportState> {
        let starts = Arc::new(PeerStarts::create(dir, self.cluster).unwrap());
        let config = self.config(node, "unused:1".parse().unwrap(), starts, NodeOptions::default());
        Arc::new(TransportState::new(config, Arc::new(SharedServices(services))).unwrap())
    }

    /// Nodes 1 and 2. Node 1 knows the address of node 2.
    pub(super) async fn pair(&self) -> [TransportNode; 2] {
        let (one, two) = (self.node(1).await, self.node(2).await);
        one.knows(&two);
        [one, two]
    }
}

impl TransportNode {
    /// Puts the address of another node into the rows.
    pub(super) fn knows(&self, other: &Self) {
        self.transport.book().set_rows(BTreeMap::from([(other.node, other.address.clone())]));
    }

    /// Ends all connections and tasks without a wait, as a crash does.
    pub(super) async fn crash(&self) {
        self.transport.state.ended.cancel();
        self.transport.stop().await;
    }

    /// Calls [`ECHO`] of another node on the control connection.
    pub(super) async fn echo(&self, other: NodeId) -> Result<Bytes, crate::CallError> {
        let body = Bytes::from_static(b"hello");
        self.transport.call(other, crate::Channel::Control, ECHO, body, late()).await
    }
}

/// Waits until a condition holds.
pub(super) async fn until(condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(LONG, waiting).await.expect("the condition never holds");
}

/// Waits for a permit and takes it.
pub(super) async fn take(semaphore: &Semaphore) {
    timeout(LONG, semaphore.acquire()).await.expect("nothing happens").unwrap().forget();
}

/// Reads a body to its end.
pub(super) async fn read(mut body: PeerBody) -> Result<Vec<u8>, PeerBodyError> {
    let mut bytes = Vec::new();
    while let Some(frame) = timeout(LONG, body.frame()).await.expect("the body never ends") {
        bytes.extend_from_slice(frame?.data_ref().unwrap());
    }
    Ok(bytes)
}
