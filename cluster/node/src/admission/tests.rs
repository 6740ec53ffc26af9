//! Tests of admissions over a real catalogue, and the member and the new nodes that other tests use as well.

use super::{Admission, JoinRefusal, JoinRefusalCode};
use crate::authority::{create_authority, open_authority, seal_key, trusted_authorities};
use crate::join_wire::{JoinAnswer, JoinRequest};
use crate::joining::{BegunJoin, JoinCluster, PendingJoin, begin};
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use mlgw_common::clock::ManualClock;
use mlgw_common::limits::JOIN_TOKEN_MS_MAX;
use mlgw_common::time::Instant;
use mlgw_common::{CheckedClock, Clock, ClockComparison, NodeId, SystemClock, Timestamp};
use mlgw_config::{Config, ConfigSources, LoadedConfig};
use mlgw_credentials::Sealer;
use mlgw_formats::cluster_version::{CLUSTER_VERSION, MEMBERSHIP_CLUSTER_VERSION};
use mlgw_formats::command::{AdmitNode, Reject};
use mlgw_formats::schema::{AuthorityRecord, NodeRole, NodeState};
use mlgw_metadata::catalogue::NewJoinToken;
use mlgw_metadata::{Catalogue, CatalogueOptions, ProposeError};
use mlgw_store::StoreLocation;
use mlgw_store::catalogue_dir::CatalogueName;
use mlgw_store::node_file::{DirectoryRole, NodeDescription};
use mlgw_transport::{
    AddressBook, ClusterTransport, IncomingCall, IncomingStream, PeerAddress, PeerServices, ServiceRefusal,
    StreamAnswer, TransportConfig, WireVersions,
};
use mlgw_trust::{
    AuthorityHash, CertifiedNode, ClusterAuthority, JoinToken, NodeCredentials, NodeFiles, NodeStart,
    PeerStarts, TokenId,
};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpListener;
use zeroize::Zeroizing;

/// The first node of a cluster.
pub(crate) struct TestMember {
    pub(crate) dir: TempDir,
    pub(crate) catalogue: Catalogue,
    pub(crate) sealer: Sealer,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) description: NodeDescription,
    pub(crate) authority: AuthorityHash,
    pub(crate) admission: Arc<Admission>,
}

impl TestMember {
    pub(crate) async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        // TLS verifies certificates by the clock of the system.
        let clock = Arc::new(ManualClock::new(SystemClock.now()));
        let shared: Arc<dyn Clock> = clock.clone();
        let options = CatalogueOptions::new(dir.path().join("catalogue"), Arc::clone(&shared));
        let catalogue = Catalogue::open(options).await.unwrap();
        catalogue.raise_cluster_version(MEMBERSHIP_CLUSTER_VERSION).await.unwrap();
        let sealer = Sealer::open_or_create(dir.path()).unwrap();
        let description = NodeDescription::first(clock.now()).unwrap();
        let description = description.clustered(CatalogueName::FIRST.next()).unwrap();
        let named = CertifiedNode { cluster: description.cluster, node: NodeId(1) };
        let created = create_authority(&catalogue, &sealer, named, clock.now()).await;
        let authority = created.unwrap().hash();
        let path = dir.path().to_owned();
        let checked = CheckedClock::alone(shared);
        let admission = Admission::new(catalogue.clone(), sealer.clone(), path, description.clone(), checked);
        let admission = Arc::new(admission);
        Self { dir, catalogue, sealer, clock, description, authority, admission }
    }

    pub(crate) async fn stop(self) {
        self.catalogue.shutdown().await;
    }

    /// A new token of the cluster.
    pub(crate) async fn token(&self) -> JoinToken {
        let token = JoinToken::create(self.authority).unwrap();
        let new = NewJoinToken {
            token: token.id().0,
            secret_hash: token.stored(self.clock.now()).secret_hash.to_vec(),
            life_ms: JOIN_TOKEN_MS_MAX,
            created_by: "AK".to_owned(),
        };
        self.catalogue.create_join_token(new).await.unwrap();
        token
    }

    /// Id of the node that used the token; 0 if none did.
    fn user_of(&self, token: &JoinToken) -> u64 {
        self.catalogue.join_token(token.id().0).unwrap().unwrap().node
    }

    pub(crate) async fn answer(&self, request: Bytes) -> Result<JoinAnswer, ServiceRefusal> {
        let from = SocketAddr::from(([192, 0, 2, 1], 50_000));
        self.admission.admit(from, request).await.map(|answer| JoinAnswer::decode(&answer).unwrap())
    }

    /// This member in its certificate.
    fn named(&self) -> CertifiedNode {
        CertifiedNode { cluster: self.description.cluster, node: NodeId(1) }
    }

    /// Opens the authority that signs for this member.
    pub(crate) fn signer(&self) -> ClusterAuthority {
        open_authority(&self.catalogue, &self.sealer, self.named()).unwrap().unwrap()
    }

    /// Adds an authority after the one with the number `after`.
    pub(crate) async fn add_authority(&self, after: u64) -> ClusterAuthority {
        let now = self.clock.now();
        let authority = ClusterAuthority::create(self.description.cluster, now).unwrap();
        let record = AuthorityRecord {
            certificate: authority.certificate().to_vec(),
            sealed_key: seal_key(&self.sealer, &authority.key()).unwrap(),
            created_ms: now.as_millis(),
            ..AuthorityRecord::default()
        };
        self.catalogue.put_authority(record, after).await.unwrap();
        authority
    }

    /// Admits a node whose key has this byte.
    pub(crate) async fn admit(&self, key: u8) {
        let token = self.token().await;
        let admit = AdmitNode {
            token: token.id().0,
            secret_hash: token.stored(self.clock.now()).secret_hash.to_vec(),
            key_hash: vec![key; 32],
            address: "a:1".to_owned(),
            cluster_version: CLUSTER_VERSION,
            ..AdmitNode::default()
        };
        self.catalogue.admit_node(admit).await.unwrap();
    }

    pub(crate) fn files(&self) -> NodeFiles {
        NodeFiles::new(&self.dir.path().join("cluster")).unwrap()
    }

    /// Signs and stores the certificate of this member.
    pub(crate) fn certify(&self) -> NodeCredentials {
        let files = self.files();
        let request = files.key().unwrap().request().unwrap();
        let issued = self.signer().sign(&request, NodeId(1), self.clock.now()).unwrap();
        files.store_certificate(&issued, &trusted_authorities(&self.catalogue).unwrap()).unwrap();
        files.credentials().unwrap().unwrap()
    }

    /// Starts a transport that admits nodes, and returns its address as well.
    pub(crate) async fn transport(&self, credentials: NodeCredentials) -> (ClusterTransport, PeerAddress) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: PeerAddress = listener.local_addr().unwrap().to_string().parse().unwrap();
        let starts = PeerStarts::create(self.files().dir(), self.description.cluster).unwrap();
        let config = TransportConfig {
            cluster: self.description.cluster,
            node: NodeId(1),
            start: NodeStart { incarnation: self.description.incarnation, counter: 1, nonce: 1 },
            address: address.clone(),
            versions: WireVersions::OWN,
            credentials,
            starts: Arc::new(starts),
            book: AddressBook::default(),
            removed: BTreeSet::new(),
        };
        let services = Arc::new(AdmittingServices(Arc::clone(&self.admission)));
        (ClusterTransport::start(config, listener, services).unwrap(), address)
    }
}

/// Services of a member that does nothing but admit nodes.
struct AdmittingServices(Arc<Admission>);

impl PeerServices for AdmittingServices {
    fn call(&self, call: IncomingCall) -> BoxFuture<'static, Result<Bytes, ServiceRefusal>> {
        panic!("no call was expected: {call:?}")
    }

    fn stream(&self, stream: IncomingStream) -> BoxFuture<'static, Result<StreamAnswer, ServiceRefusal>> {
        panic!("no stream was expected: {stream:?}")
    }

    fn join(&self, from: SocketAddr, body: Bytes) -> BoxFuture<'static, Result<Bytes, ServiceRefusal>> {
        let admission = Arc::clone(&self.0);
        async move { admission.admit(from, body).await }.boxed()
    }

    fn is_admitted(&self, _node: NodeId) -> BoxFuture<'static, bool> {
        async { true }.boxed()
    }

    fn address_stated(&self, _node: NodeId, _address: PeerAddress) {}
}

/// A new node with an empty directory.
pub(crate) struct TestJoiner {
    pub(crate) place: StoreLocation,
    pub(crate) token: JoinToken,
    pub(crate) seeds: Vec<PeerAddress>,
    pub(crate) address: PeerAddress,
    pub(crate) role: DirectoryRole,
    pub(crate) now: Timestamp,
    pub(crate) _room: TempDir,
}

impl TestJoiner {
    pub(crate) fn new(token: &JoinToken) -> Self {
        let room = tempfile::tempdir().unwrap();
        let config = LoadedConfig::load(&ConfigSources::default()).unwrap().config;
        let place = StoreLocation::of(&Config { data_dir: room.path().join("new"), ..config });
        Self {
            place,
            token: token.clone(),
            seeds: vec!["member.example:9002".parse().unwrap()],
            address: "new.example:9002".parse().unwrap(),
            role: DirectoryRole::Storage,
            now: SystemClock.now(),
            _room: room,
        }
    }

    pub(crate) fn join(&self) -> JoinCluster<'_> {
        JoinCluster {
            place: &self.place,
            token: &self.token,
            seeds: &self.seeds,
            address: &self.address,
            name: "new",
            role: self.role,
            build: "0.1.0",
            cluster_version: CLUSTER_VERSION,
            now: self.now,
            deadline: Instant::now() + Duration::from_mins(1),
        }
    }

    /// The request of the node. Its directory is unlocked again.
    pub(crate) fn request(&self) -> Bytes {
        pending(&self.join()).request().unwrap()
    }
}

/// Begins a join of a node that has not joined yet.
pub(crate) fn pending<'a>(join: &'a JoinCluster<'a>) -> PendingJoin<'a> {
    match begin(join).unwrap() {
        BegunJoin::Pending(pending) => pending,
        BegunJoin::Joined(joined) => panic!("{joined:?}"),
    }
}

/// A refusal with its code; its text has a remedy.
fn assert_refused(answer: Result<JoinAnswer, ServiceRefusal>, code: JoinRefusalCode, text: &str) {
    let refusal = answer.unwrap_err();
    assert_eq!(refusal.code, code as u32, "{refusal}");
    assert!(refusal.message.contains(text), "{refusal}");
}

#[tokio::test]
async fn a_token_admits_one_node_and_the_same_node_again() {
    let member = TestMember::new().await;
    let token = member.token().await;
    let (one, two) = (TestJoiner::new(&token), TestJoiner::new(&token));
    let first = member.answer(one.request()).await.unwrap();
    assert_eq!(
        (first.node, first.role, first.cluster),
        (NodeId(2), NodeRole::Storage, member.description.cluster)
    );
    assert_eq!(first.incarnation, member.description.incarnation);
    assert_eq!(first.cluster_key, Sealer::export_key(member.dir.path()).unwrap());
    let again = member.answer(one.request()).await.unwrap();
    assert_eq!(again.node, first.node);
    assert_ne!(again.certificate, first.certificate, "a new certificate");
    assert_refused(member.answer(two.request()).await, JoinRefusalCode::TokenUsed, "make another");
    let record = member.catalogue.node_record(NodeId(2)).unwrap();
    assert_eq!(
        (record.state(), &*record.name, &*record.address),
        (NodeState::Joining, "new", "new.example:9002")
    );
    assert_eq!(member.catalogue.nodes().len(), 2, "nothing else was admitted");

    let third = TestJoiner { role: DirectoryRole::Gateway, ..TestJoiner::new(&member.token().await) };
    let third = member.answer(third.request()).await.unwrap();
    assert_eq!((third.node, third.role), (NodeId(3), NodeRole::Gateway));
    let members: Vec<_> = third.members.iter().map(|of| (of.node, of.address.as_str())).collect();
    assert_eq!(members, [(NodeId(2), "new.example:9002")], "the first node has no address here");
    member.stop().await;
}

#[tokio::test]
async fn a_stranger_gets_one_answer_and_puts_nothing_into_the_log() {
    let member = TestMember::new().await;
    let (used, unused) = (member.token().await, member.token().await);
    member.answer(TestJoiner::new(&used).request()).await.unwrap();
    let commands = member.catalogue.metrics().commands_applied;
    let request = JoinRequest::decode(&TestJoiner::new(&unused).request()).unwrap();
    let wrong = JoinRequest { secret: Zeroizing::new([0; 32]), ..request.clone() };
    let of_used = JoinRequest { token: used.id(), ..wrong.clone() };
    let requests = [
        JoinRequest { token: TokenId(unused.id().0 ^ 1), ..request.clone() },
        wrong.clone(),
        of_used,
        JoinRequest { certificate_request: vec![1; 138], ..wrong.clone() },
        JoinRequest { address: "no port".to_owned(), role: 9, name: "\n".to_owned(), ..wrong.clone() },
        JoinRequest { cluster_version: 0, ..wrong.clone() },
    ];
    let expected = ServiceRefusal {
        code: JoinRefusalCode::TokenNotValid as u32,
        message: "the join token is not valid: make another on a member".to_owned(),
    };
    for request in requests {
        assert_eq!(member.answer(request.encode()).await, Err(expected.clone()), "{request:?}");
    }
    member.clock.set(Timestamp(member.clock.now().0 + JOIN_TOKEN_MS_MAX));
    assert_eq!(member.answer(wrong.encode()).await, Err(expected));
    assert_refused(member.answer(request.encode()).await, JoinRefusalCode::TokenExpired, "make another");
    assert_eq!(member.catalogue.metrics().commands_applied, commands);
    member.stop().await;
}

#[tokio::test]
async fn a_request_with_a_valid_token_is_refused_for_what_is_wrong_and_leaves_the_token() {
    let member = TestMember::new().await;
    let token = member.token().await;
    let request = JoinRequest::decode(&TestJoiner::new(&token).request()).unwrap();
    let stolen = JoinRequest { certificate_request: vec![1; 138], ..request.clone() };
    for (wrong, code, text) in [
        (stolen, JoinRefusalCode::Field, "not signed by its key"),
        (JoinRequest { role: 9, ..request.clone() }, JoinRefusalCode::Field, "role 9"),
        (
            JoinRequest { address: "no port".to_owned(), ..request.clone() },
            JoinRefusalCode::Field,
            "HOST:PORT",
        ),
        (JoinRequest { name: "a\nb".to_owned(), ..request.clone() }, JoinRefusalCode::Field, "the name"),
        (
            JoinRequest { cluster_version: 1, ..request.clone() },
            JoinRefusalCode::NodeTooOld,
            "upgrade the node",
        ),
    ] {
        assert_refused(member.answer(wrong.encode()).await, code, text);
    }
    assert_refused(member.answer(Bytes::from_static(b"\x02")).await, JoinRefusalCode::Malformed, "version 2");
    assert_eq!(member.user_of(&token), 0);
    let node = member.answer(request.encode()).await.unwrap().node;
    assert_eq!(member.user_of(&token), node.0);
    member.catalogue.remove_node(node).await.unwrap();
    assert_refused(member.answer(request.encode()).await, JoinRefusalCode::NodeRemoved, "empty directory");
    let again = JoinRequest::decode(&TestJoiner::new(&member.token().await).request()).unwrap();
    let same_key = JoinRequest { certificate_request: request.certificate_request, ..again };
    assert_refused(member.answer(same_key.encode()).await, JoinRefusalCode::NodeRemoved, "new ID");
    member.stop().await;
}

#[tokio::test]
async fn a_member_that_cannot_sign_leaves_the_token() {
    let member = TestMember::new().await;
    let token = member.token().await;
    let elsewhere = tempfile::tempdir().unwrap();
    let other_key = Sealer::open_or_create(elsewhere.path()).unwrap();
    let unable = Admission::new(
        member.catalogue.clone(),
        other_key,
        elsewhere.path().to_owned(),
        member.description.clone(),
        CheckedClock::alone(member.clock.clone()),
    );
    let joiner = TestJoiner::new(&token);
    let from = SocketAddr::from(([192, 0, 2, 1], 50_000));
    let refused = unable.admit(from, joiner.request()).await.unwrap_err();
    assert_eq!(refused.code, JoinRefusalCode::Failed as u32);
    assert!(refused.message.contains("ask another member"), "{refused}");
    assert_eq!(member.user_of(&token), 0);
    assert_eq!(member.answer(joiner.request()).await.unwrap().node, NodeId(2));
    drop(unable);
    member.stop().await;
}

#[tokio::test]
async fn a_member_whose_clock_deviates_leaves_the_token() {
    let member = TestMember::new().await;
    let token = member.token().await;
    let (checks, clock) = CheckedClock::unknown(member.clock.clone());
    let admission = Admission::new(
        member.catalogue.clone(),
        member.sealer.clone(),
        member.dir.path().to_owned(),
        member.description.clone(),
        clock,
    );
    let joiner = TestJoiner::new(&token);
    let from = SocketAddr::from(([192, 0, 2, 1], 50_000));
    checks.send_modify(|check| check.comparison = ClockComparison::Compared { skew_ms: 65_000 });
    let refused = admission.admit(from, joiner.request()).await.unwrap_err();
    assert_eq!(refused.code, JoinRefusalCode::Failed as u32);
    assert!(refused.message.contains("its clock deviates by 6"), "{refused}");
    assert_eq!(member.user_of(&token), 0);
    checks.send_modify(|check| check.comparison = ClockComparison::Unknown);
    admission.admit(from, joiner.request()).await.unwrap();
    assert_eq!(member.user_of(&token), 2);
    drop(admission);
    member.stop().await;
}

#[test]
fn a_refusal_of_the_command_is_that_of_the_check() {
    let of = |reject| {
        let refusal = ServiceRefusal::from(JoinRefusal::of_proposal(ProposeError::Rejected(reject)));
        (refusal.code, refusal.message)
    };
    assert_eq!(of(Reject::NoSuchJoinToken), of(Reject::WrongJoinSecret));
    let (code, message) = of(Reject::JoinTokenUsed { node: 77 });
    assert!(code == 4 && !message.contains("77"), "{message}");
    assert_eq!(of(Reject::JoinTokenExpired).0, 3);
    assert_eq!(of(Reject::TooManyNodes).0, 9);
    assert_eq!(of(Reject::NodeKeyInUse { node: 2 }).0, 7);
    assert_eq!(of(Reject::NoSuchBucket).0, 11);
    let unknown = JoinRefusal::of_proposal(ProposeError::UnknownOutcome);
    assert_eq!(unknown.code() as u32, 10);
    assert!(unknown.to_string().contains("repeat the command"), "{unknown}");
    let unchecked = JoinRefusal::Unchecked("node 3 leads".to_owned()).to_string();
    assert!(!unchecked.contains("node 3"), "a stranger reads it: {unchecked}");
}
