//! Services of this node for its peers, by number.
//!
//! Peers have passed the handshake; only a request to join comes from a stranger. The numbers are in
//! [`crate::numbers`].

use crate::addresses::answer_addresses;
use crate::admin_calls::{AdminAnswer, AdminCall, AdminServer};
use crate::admission::Admission;
use crate::contact::{answer_contact, node_of};
use crate::numbers::{
    ADDRESSES, ADMIN, APPEND, CATALOGUE, CLOSE, CONTACT, MEMBER, PING, REPLICA, REQUEST, SETTINGS, SNAPSHOT,
    YES,
};
use crate::peers::RunningTransport;
use crate::refusals::{CATALOGUE_REFUSED, NOT_SERVING, refusal, unknown};
use crate::replicas::{SegmentServer, ServedReplicas};
use crate::sets::set_rows;
use crate::settings::ComparedSettings;
use crate::streams::{member_body, peer_body};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use http_body::Frame;
use http_body_util::{BodyDataStream, StreamBody};
use mlgw_common::time::Instant;
use mlgw_common::{Clock, NodeId};
use mlgw_formats::node_load::{NodeLoad, PingAnswer};
use mlgw_formats::schema::Node;
use mlgw_forwarding::{MemberBody, OpenedStream};
use mlgw_metadata::{CallRefused, Catalogue};
use mlgw_transport::{
    Channel, IncomingCall, IncomingStream, PeerAddress, PeerBody, PeerBodyError, PeerServices,
    ServiceRefusal, StreamAnswer,
};
use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Longest time in which peers answer [`MEMBER`].
const MEMBER_ANSWER_MAX: Duration = Duration::from_secs(3);

/// Serves requests of clients that other nodes forward.
pub trait RequestServer: Send + Sync + 'static {
    /// Judges a request by its head and returns the verdict and the answer.
    fn serve(&self, from: NodeId, head: Bytes, body: MemberBody) -> BoxFuture<'static, OpenedStream>;
}

/// The services. Clones share them.
#[derive(Clone)]
pub(crate) struct NodeServices {
    catalogue: Catalogue,
    transport: Arc<RunningTransport>,
    admission: Arc<Admission>,
    clock: Arc<dyn Clock>,
    requests: Arc<OnceLock<Arc<dyn RequestServer>>>,
    admin: Arc<Mutex<Option<Arc<dyn AdminServer>>>>,
    /// True from the begin of serving until the stop.
    serves: Arc<AtomicBool>,
    /// True from the stop on.
    stops: Arc<AtomicBool>,
    /// True while this node cannot do the work of the duty node.
    lacks_duty: Arc<AtomicBool>,
    /// True once this node was found to have the rows of all groups.
    has_groups: Arc<AtomicBool>,
    replicas: Arc<ServedReplicas>,
    settings: Arc<ComparedSettings>,
}

impl NodeServices {
    pub(crate) fn new(
        catalogue: Catalogue,
        transport: Arc<RunningTransport>,
        admission: Admission,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            catalogue,
            transport,
            admission: Arc::new(admission),
            clock,
            requests: Arc::default(),
            admin: Arc::default(),
            serves: Arc::default(),
            stops: Arc::default(),
            lacks_duty: Arc::default(),
            has_groups: Arc::default(),
            replicas: Arc::default(),
            settings: Arc::default(),
        }
    }

    /// The settings of this node and of the others.
    pub(crate) const fn settings(&self) -> &Arc<ComparedSettings> {
        &self.settings
    }

    fn answer_settings(&self) -> Result<Bytes, ServiceRefusal> {
        let own = self.settings.own();
        let own = own.ok_or_else(|| refusal(NOT_SERVING, "this node has not read its settings yet"))?;
        Ok(own.encode_answer())
    }

    /// Serves forwarded requests from now on. A second server is ignored.
    pub(crate) fn serve_requests(&self, server: Arc<dyn RequestServer>) {
        let is_first = self.requests.set(server).is_ok();
        debug_assert!(is_first, "a node has one server of requests");
        self.serves.store(true, Ordering::Release);
    }

    /// Serves requests to the admin API from now on, or refuses them.
    pub(crate) fn serve_admin(&self, server: Option<Arc<dyn AdminServer>>) {
        *self.admin.lock() = server;
    }

    /// Answers pings as a node that does not serve: it stops.
    pub(crate) fn stop_serving(&self) {
        self.stops.store(true, Ordering::Release);
        self.serves.store(false, Ordering::Release);
    }

    /// True from the begin of serving until the stop.
    pub(crate) fn is_serving(&self) -> bool {
        self.serves.load(Ordering::Acquire)
    }

    /// True from the begin of the stop on.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stops.load(Ordering::Acquire)
    }

    /// States to the other nodes if this one can do the work of the duty node.
    pub(crate) fn set_fit_for_duty(&self, is_fit: bool) {
        if self.lacks_duty.swap(!is_fit, Ordering::AcqRel) == is_fit {
            tracing::info!(is_fit, "the fitness of this node for the duty has changed");
        }
    }

    /// States to the other nodes if this one has the rows of all groups.
    pub(crate) fn set_has_groups(&self, has_groups: bool) {
        self.has_groups.store(has_groups, Ordering::Release);
    }

    /// True if this node has the rows of all groups. A node that is not in the first set leaves some of them.
    fn has_all_groups(&self) -> bool {
        let sets = set_rows(&self.catalogue);
        let is_found = || self.has_groups.load(Ordering::Acquire);
        sets.is_empty() || sets.has_all_groups(self.catalogue.node()) && is_found()
    }

    /// The load of this node.
    pub(crate) fn load(&self) -> NodeLoad {
        let space = self.replicas.space();
        NodeLoad {
            used_bytes: space.map(|space| space.used_bytes),
            free_bytes: space.map(|space| space.free_bytes),
            applied: self.catalogue.applied_index(),
            clock_ms: Some(self.clock.now().as_millis()),
            is_full: space.map(|space| space.is_full),
            is_slow: Some(self.catalogue.is_log_slow() || space.is_some_and(|space| space.is_slow)),
            lacks_duty: Some(self.lacks_duty.load(Ordering::Acquire)),
            lacks_groups: Some(!self.has_all_groups()),
            has_old_rows: Some(!self.catalogue.has_recent_system_rows()),
        }
    }

    /// The replicas of this node.
    pub(crate) fn replicas(&self) -> Weak<ServedReplicas> {
        Arc::downgrade(&self.replicas)
    }

    fn answer_ping(&self, body: &[u8]) -> Bytes {
        let answer = PingAnswer { is_serving: self.is_serving(), load: Some(self.load()) };
        answer.for_request(body).encode_answer()
    }

    /// Serves the replicas of this node from now on.
    pub(crate) fn serve_segments(&self, server: Arc<dyn SegmentServer>) {
        self.replicas.serve(server);
    }

    /// Serves no replicas from now on.
    pub(crate) fn stop_segments(&self) {
        self.replicas.stop();
    }

    /// True if the rows of this node have the node, and it is not removed. `None` if they do not have it. A
    /// new node has no rows yet, and accepts the members that admitted it.
    fn recorded(&self, node: NodeId) -> Option<bool> {
        if self.catalogue.nodes().is_empty() {
            return Some(true);
        }
        match self.catalogue.node_record(node) {
            Some(record) => Some(!record.is_removed()),
            None => self.catalogue.is_removed_node(node).then_some(false),
        }
    }

    /// Asks the nodes that this one knows whether their rows have the node; one of them is enough.
    async fn ask_peers(&self, node: NodeId) -> bool {
        let Some(transport) = self.transport.get() else { return false };
        let nodes = self.catalogue.nodes();
        let known =
            nodes.iter().filter(|known| known.is_staying() && known.node_id() != self.catalogue.node());
        let asked = Bytes::copy_from_slice(&node.get().to_be_bytes());
        let deadline = Instant::now() + MEMBER_ANSWER_MAX;
        let ask = |known: &Arc<Node>| {
            let (transport, id, asked) = (Arc::clone(&transport), known.node_id(), asked.clone());
            async move { transport.call(id, Channel::Control, MEMBER, asked, deadline).await }
        };
        let mut answers: FuturesUnordered<_> = known.map(ask).collect();
        while let Some(answer) = answers.next().await {
            if answer.is_ok_and(|answer| answer == YES) {
                return true;
            }
        }
        false
    }

    /// Answers whether the rows of this node have a node.
    fn answer_member(&self, asked: &[u8]) -> Result<Bytes, ServiceRefusal> {
        let record = self.catalogue.node_record(node_of(asked)?);
        let is_member = record.is_some_and(|record| !record.is_removed());
        Ok(Bytes::from_static(if is_member { YES } else { &[] }))
    }

    /// Accepts a snapshot; its body is received, and it is installed, while the answer is read.
    fn accept_snapshot(&self, stream: IncomingStream) -> Result<StreamAnswer, ServiceRefusal> {
        let incoming = self.catalogue.accept_snapshot(stream.peer, &stream.head).map_err(refused)?;
        let pieces = BodyDataStream::new(stream.body).map(|piece| piece.map_err(io::Error::other));
        let receiving = async move {
            let received = incoming.receive(Box::pin(pieces)).await;
            received.map(Frame::data).map_err(|why| PeerBodyError::Failed(why.to_string()))
        };
        let body = PeerBody::new(StreamBody::new(stream::once(receiving.boxed())));
        Ok(StreamAnswer { head: Bytes::new(), body })
    }

    async fn serve_request(self, stream: IncomingStream) -> Result<StreamAnswer, ServiceRefusal> {
        let Some(server) = self.requests.get() else {
            return Err(refusal(NOT_SERVING, "this node serves no forwarded requests: it starts or stops"));
        };
        let opened = server.serve(stream.peer, stream.head, member_body(stream.body)).await;
        Ok(StreamAnswer { head: opened.head, body: peer_body(opened.body) })
    }

    async fn serve_admin_call(self, stream: IncomingStream) -> Result<StreamAnswer, ServiceRefusal> {
        let server = self.admin.lock().clone();
        let refused = || refusal(NOT_SERVING, "this node serves no admin requests: it starts or stops");
        let server = server.ok_or_else(refused)?;
        let call = AdminCall::decode(&stream.head)?;
        let serving = server.serve(stream.peer, call, member_body(stream.body));
        let answer = serving.map(AdminAnswer::into_stream).flatten_stream();
        let body = MemberBody::new(StreamBody::new(answer));
        // Accepted before it is carried out: the body of the request arrives only then.
        Ok(StreamAnswer { head: Bytes::new(), body: peer_body(body) })
    }
}

impl PeerServices for NodeServices {
    fn call(&self, call: IncomingCall) -> BoxFuture<'static, Result<Bytes, ServiceRefusal>> {
        let services = self.clone();
        async move {
            match call.service {
                CATALOGUE => services.catalogue.serve_call(call.peer, call.body).await.map_err(refused),
                PING => Ok(services.answer_ping(&call.body)),
                MEMBER => services.answer_member(&call.body),
                CONTACT => answer_contact(&services.transport, &call.body).await,
                ADDRESSES => {
                    let transport = services.transport.get();
                    answer_addresses(&call.body, |node| transport.as_ref()?.book().stated(node))
                }
                SETTINGS => services.answer_settings(),
                CLOSE => services.replicas.close(call.body).await,
                service => Err(unknown(service)),
            }
        }
        .boxed()
    }

    fn stream(&self, stream: IncomingStream) -> BoxFuture<'static, Result<StreamAnswer, ServiceRefusal>> {
        let services = self.clone();
        async move {
            match stream.service {
                SNAPSHOT => services.accept_snapshot(stream),
                REQUEST => services.serve_request(stream).await,
                ADMIN => services.serve_admin_call(stream).await,
                // The body of the request is empty.
                REPLICA => services.replicas.open(stream.peer, &stream.head),
                APPEND => services.replicas.append(stream.peer, stream.head, stream.body).await,
                service => Err(unknown(service)),
            }
        }
        .boxed()
    }

    fn join(&self, from: SocketAddr, body: Bytes) -> BoxFuture<'static, Result<Bytes, ServiceRefusal>> {
        let admission = Arc::clone(&self.admission);
        async move { admission.admit(from, body).await }.boxed()
    }

    fn is_admitted(&self, node: NodeId) -> BoxFuture<'static, bool> {
        let services = self.clone();
        async move {
            match services.recorded(node) {
                Some(is_admitted) => is_admitted,
                // The rows of this node may be older than the admission.
                None => services.ask_peers(node).await,
            }
        }
        .boxed()
    }

    fn address_stated(&self, node: NodeId, address: PeerAddress) {
        tracing::info!(%node, %address, "a node stated its address");
    }
}

fn refused(why: CallRefused) -> ServiceRefusal {
    refusal(CATALOGUE_REFUSED, &why.0)
}
