//! Nodes of a test: members with a store, edges with and without one, and their listeners.

use super::network::{MemberLink, NetworkOfNode, TestNetwork};
use crate::edge::{ForwardingEdge, MemberEdge, S3Edge};
use crate::forwarded::ForwardedRequests;
use crate::member::{MemberGateway, MemberPart, MemberView};
use crate::request_ids::RequestIds;
use crate::upload_ids::UploadIds;
use crate::{Gateway, S3Config};
use mlgw_auth::AuthRules;
use mlgw_cache::policy_driver::PolicyDriver;
use mlgw_cache::remote_backed::RemoteBackedBuckets;
use mlgw_cache::writeback::{WriteBack, WriteBackParts};
use mlgw_common::clock::ManualClock;
use mlgw_common::time::Instant;
use mlgw_common::{BucketName, CheckedClock, Clock, ClockCheck, NodeId, Secret, SplitKeys, Timestamp};
use mlgw_credentials::{Keyring, RootCredentials, Sealer};
use mlgw_formats::schema::Binding;
use mlgw_forwarding::counters::ForwardCounters;
use mlgw_forwarding::route::{RangeMembers, RangeRoute};
use mlgw_forwarding::{Forwarder, MapEpoch, RouteTable};
use mlgw_listener::ConnectionListener;
use mlgw_listener::connection::HttpServer;
use mlgw_listener::proxies::TrustedProxies;
use mlgw_listener::watch::{ClientTimeouts, MinimumTransferRate};
use mlgw_metadata::{Catalogue, CatalogueOptions, NewBucket};
use mlgw_objects::ObjectLayer;
use mlgw_objects::etag::EtagSource;
use mlgw_objects::memory::RequestMemory;
use mlgw_policy_runtime::{Policies, ServerProfile, WatchedPolicyFiles};
use mlgw_remote::origin::OriginFence;
use mlgw_segments::hot::{HotOptions, HotTier};
use mlgw_segments::memory::MemoryTier;
use mlgw_segments::tiers::Tiers;
use mlgw_telemetry::GatewayMetrics;
use mlgw_testing::signer::{ACCESS_KEY, NOW, SECRET};
use mlgw_wire::lanes::WorkloadLanes;
use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// The bucket that every member has.
pub(super) const BUCKET: &str = "data";
const LONG: Duration = Duration::from_secs(600);
/// Time limits that no test reaches.
pub(super) const PATIENT: ClientTimeouts =
    ClientTimeouts { head: LONG, idle: LONG, min_rate: MinimumTransferRate { window: LONG, rate_min: 0 } };

/// Memory of the requests of a node.
pub(super) fn memory() -> RequestMemory {
    RequestMemory::new(64 << 20, 100, None)
}

/// A member with a store.
pub(super) struct TestMember {
    pub(super) gateway: Arc<Gateway>,
    pub(super) clock: Arc<ManualClock>,
    pub(super) checks: watch::Sender<ClockCheck>,
    pub(super) routes: watch::Sender<Arc<RouteTable>>,
    pub(super) lost_groups: watch::Sender<BTreeSet<u32>>,
    /// Permission to serve remote-backed buckets, which the first member uses.
    pub(super) fence: OriginFence,
    _dir: TempDir,
}

/// Members with a network, and a node that stores nothing.
pub(super) struct ForwardingCluster {
    pub(super) network: Arc<TestNetwork>,
    pub(super) members: Vec<(TestMember, Arc<MemberLink>)>,
    pub(super) edge: Arc<ForwardingEdge>,
    pub(super) edge_clock: Arc<ManualClock>,
    pub(super) edge_routes: watch::Sender<Arc<RouteTable>>,
}

/// An open listener. It is closed when it is dropped.
pub(super) struct OpenListener {
    pub(super) address: SocketAddr,
    _stop: DropGuard,
}

/// Returns a table in which these nodes own every key.
pub(super) fn table_of(epoch: u64, members: &[u64], leader: Option<u64>) -> Arc<RouteTable> {
    let members = members.iter().copied().map(NodeId).collect();
    let group = RangeMembers::new(members, leader.map(NodeId));
    let mut table = RouteTable::new(MapEpoch(epoch), group.clone());
    table.add_bucket(BUCKET, vec![RangeRoute { begin: String::new(), group }]).unwrap();
    Arc::new(table)
}

async fn object_layer(dir: &Path, clock: &Arc<dyn Clock>) -> ObjectLayer {
    let options = CatalogueOptions::new(dir.join("catalogue"), clock.clone());
    let catalogue = Catalogue::open(options).await.unwrap();
    let options = HotOptions::new(dir.join("segments"), 1 << 30, clock.clone());
    let hot = HotTier::open(options, catalogue.clone()).await.unwrap();
    ObjectLayer::new(catalogue, Tiers::new(MemoryTier::new(1 << 20), hot), EtagSource::Md5)
}

/// Host names of buckets, by node.
#[derive(Clone, Copy, Default)]
pub(super) struct TestDomains {
    /// Those of the node that stores nothing.
    pub(super) of_edge: &'static [&'static str],
    /// Those of the members.
    pub(super) of_members: &'static [&'static str],
}

fn texts(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Opens the gateway of a member with an empty bucket.
async fn open_gateway(
    dir: &Path,
    node: NodeId,
    clock: Arc<dyn Clock>,
    member: MemberPart,
    domains: Vec<String>,
) -> Gateway {
    let objects = object_layer(dir, &clock).await;
    let catalogue = objects.catalogue.clone();
    let sealer = Sealer::open_or_create(dir).unwrap();
    let root = RootCredentials { access_key: ACCESS_KEY.to_owned(), secret: Secret::new(SECRET) };
    let keyring = Keyring::open(catalogue.clone(), sealer, clock.clone(), Some(root)).await.unwrap();
    let (profile, watched) = (ServerProfile::default(), WatchedPolicyFiles::default());
    let policies = Policies::open(catalogue.clone(), clock.clone(), profile, watched).await.unwrap();
    let parts = WriteBackParts {
        catalogue: catalogue.clone(),
        remote_backed: RemoteBackedBuckets::default(),
        clock: clock.clone(),
        bytes_max: 1 << 20,
        budgets: HashMap::new(),
        duty_term: None,
    };
    let program = Arc::clone(&policies.program().borrow());
    let new = NewBucket {
        name: BucketName::new(BUCKET).unwrap(),
        owner: mlgw_wire::access::OWNER.to_owned(),
        region: String::new(),
        binding: None,
        split_keys: SplitKeys::default(),
    };
    catalogue.create_bucket(new).await.unwrap();
    Gateway {
        objects: Arc::new(objects),
        remote_backed: RemoteBackedBuckets::default(),
        policy_driver: PolicyDriver::new(1 << 16, program, &*clock),
        policies,
        writeback: WriteBack::open(parts).unwrap().0,
        keyring,
        upload_ids: UploadIds::open(&catalogue).await.unwrap(),
        config: S3Config { domains, region: "us-east-1".to_owned(), rules: AuthRules::new("s3") },
        lanes: WorkloadLanes::default(),
        metrics: Arc::new(GatewayMetrics::new(0)),
        clock,
        ids: Arc::new(RequestIds::new(node)),
        member: Some(member),
    }
}

impl TestMember {
    async fn open(node: NodeId, domains: Vec<String>) -> Self {
        let (dir, clock) = (tempfile::tempdir().unwrap(), Arc::new(ManualClock::new(NOW)));
        let (checks, checked) = CheckedClock::unknown(clock.clone());
        let (routes, lost_groups) = (watch::Sender::new(Arc::default()), watch::Sender::default());
        let view = MemberView { clock: checked, lost_groups: lost_groups.subscribe(), reads_stale: false };
        let fence = OriginFence::new();
        fence.extend(Instant::now() + LONG);
        let part = MemberPart::new(node, (node == NodeId(1)).then(|| fence.clone()), view);
        let gateway = Arc::new(open_gateway(dir.path(), node, clock.clone(), part, domains).await);
        Self { gateway, clock, checks, routes, lost_groups, fence, _dir: dir }
    }

    /// Returns the gateway as a server of a cluster has it.
    fn gateways(&self) -> Arc<MemberGateway> {
        Arc::new(MemberGateway::new(Arc::clone(&self.gateway)))
    }

    /// Returns the object `key`, if there is one.
    pub(super) fn has(&self, key: &str) -> bool {
        let bucket = self.gateway.objects.bucket(BUCKET).unwrap();
        let key = mlgw_common::ObjectKey::new(key).unwrap();
        self.gateway.objects.current(bucket.bucket_id(), &key).unwrap().is_some()
    }
}

impl ForwardingCluster {
    /// Opens members with the numbers 1 to `count`, and node 9 without a store. Each member owns every key.
    pub(super) async fn open(count: u64) -> Self {
        Self::open_with(count, TestDomains::default()).await
    }

    /// The same with host names of buckets.
    pub(super) async fn open_with(count: u64, domains: TestDomains) -> Self {
        let network = Arc::new(TestNetwork::default());
        let mut members = Vec::new();
        let all: Vec<u64> = (1..=count).collect();
        for node in 1..=count {
            let member = TestMember::open(NodeId(node), texts(domains.of_members)).await;
            member.routes.send_replace(table_of(1, &all, Some(1)));
            let requests = ForwardedRequests {
                gateway: member.gateways(),
                memory: memory(),
                routes: member.routes.subscribe(),
            };
            let link = network.add(NodeId(node), requests);
            members.push((member, link));
        }
        let edge_routes = watch::Sender::new(table_of(1, &all, Some(1)));
        let edge_clock = Arc::new(ManualClock::new(NOW));
        let ids = Arc::new(RequestIds::new(NodeId(9)));
        let edge = ForwardingEdge {
            domains: texts(domains.of_edge),
            ..forwarding_edge(&network, ids, edge_clock.clone(), &edge_routes)
        };
        Self { network, members, edge: Arc::new(edge), edge_clock, edge_routes }
    }

    /// Returns the first member.
    pub(super) fn member(&self) -> &TestMember {
        &self.members[0].0
    }

    /// Returns the link to the first member.
    pub(super) fn link(&self) -> &MemberLink {
        &self.members[0].1
    }

    /// Opens the listener of the node without a store.
    pub(super) async fn listen(&self) -> OpenListener {
        listen(S3Edge::Forwarding(Arc::clone(&self.edge)), PATIENT).await
    }

    /// Opens a listener of the first member that serves everything itself.
    pub(super) async fn listen_directly(&self) -> OpenListener {
        listen(S3Edge::Local(Arc::clone(&self.member().gateway)), PATIENT).await
    }

    /// Creates a remote-backed bucket at every member.
    pub(super) async fn bind_bucket(&self, name: &str) {
        for (member, _) in &self.members {
            let new = NewBucket {
                name: BucketName::new(name).unwrap(),
                owner: mlgw_wire::access::OWNER.to_owned(),
                region: String::new(),
                binding: Some(Binding { upstream: "store".to_owned(), ..Binding::default() }),
                split_keys: SplitKeys::default(),
            };
            member.gateway.objects.catalogue.create_bucket(new).await.unwrap();
        }
    }

    /// Opens a listener of a member, which forwards requests for remote-backed buckets.
    pub(super) async fn listen_as_member(&self, at: usize) -> OpenListener {
        let member = &self.members[at].0;
        let ids = Arc::clone(&member.gateway.ids);
        let forwarding = forwarding_edge(&self.network, ids, member.clock.clone(), &member.routes);
        let edge = MemberEdge { gateway: member.gateways(), forwarding };
        listen(S3Edge::Member(Arc::new(edge)), PATIENT).await
    }

    /// Waits until no request is in flight at the first member.
    pub(super) async fn quiet(&self) {
        while self.member().gateway.metrics.inflight_requests() > 0 {
            mlgw_common::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Returns the edge of a node. It needs no catalogue, no store and no access keys.
fn forwarding_edge(
    network: &Arc<TestNetwork>,
    ids: Arc<RequestIds>,
    clock: Arc<dyn Clock>,
    routes: &watch::Sender<Arc<RouteTable>>,
) -> ForwardingEdge {
    let (from, counters) = (ids.node(), Arc::<ForwardCounters>::default());
    let mut metrics = GatewayMetrics::new(0);
    metrics.forwarding = Some(Arc::clone(&counters));
    let streams = Arc::new(NetworkOfNode { network: Arc::clone(network), from });
    ForwardingEdge {
        domains: Vec::new(),
        metrics: Arc::new(metrics),
        clock,
        ids,
        routes: routes.subscribe(),
        forwarder: Forwarder::new(from, streams, counters),
    }
}

/// Opens a listener.
pub(super) async fn listen(edge: S3Edge, timeouts: ClientTimeouts) -> OpenListener {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    let listener = ConnectionListener {
        listener,
        certificate: None,
        connections_max: 100,
        makes_room: false,
        probe_slots: None,
        refusals_max: 10,
        server: HttpServer::new(timeouts),
        memory: memory(),
        proxies: TrustedProxies::default(),
        metrics: None,
        stop: stop.clone(),
        tasks: TaskTracker::new(),
    };
    tokio::spawn(listener.accept(move |request, peer| edge.handle(request, peer)));
    OpenListener { address, _stop: stop.drop_guard() }
}

/// A moment after that of the signatures.
pub(super) const fn later(seconds: i64) -> Timestamp {
    Timestamp(NOW.0 + seconds * 1000)
}
