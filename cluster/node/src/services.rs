//! Services of this node for its peers, by number.
//!
//! Numbers are part of the protocol between nodes and are never used again for another service. Peers have
//! passed the handshake; only a request to join comes from a stranger.

use crate::admission::Admission;
use crate::streams::{member_body, peer_body};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use http_body::Frame;
use http_body_util::{BodyDataStream, StreamBody};
use mlgw_common::NodeId;
use mlgw_forwarding::{MemberBody, OpenedStream};
use mlgw_metadata::{CallRefused, Catalogue};
use mlgw_transport::{
    IncomingCall, IncomingStream, PeerAddress, PeerBody, PeerBodyError, PeerServices, ServiceRefusal,
    StreamAnswer,
};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

/// Calls of the catalogue's members.
pub(crate) const CATALOGUE: u16 = 1;
/// Snapshots of the catalogue's groups.
pub(crate) const SNAPSHOT: u16 = 2;
/// Forwarded requests of clients.
pub(crate) const REQUEST: u16 = 3;
/// An empty call with an empty answer, by which nodes find out who is reachable.
pub(crate) const PING: u16 = 4;

/// Code of the refusal of a service that this version does not have.
const UNKNOWN_SERVICE: u32 = 1;
/// Code of the refusal of a call or snapshot by the catalogue.
const CATALOGUE_REFUSED: u32 = 2;
/// Code of the refusal of a forwarded request by a node that serves none.
const NOT_SERVING: u32 = 3;

/// Serves requests of clients that other nodes forward.
pub trait RequestServer: Send + Sync + 'static {
    /// Judges a request by its head and returns the verdict and the answer.
    fn serve(&self, from: NodeId, head: Bytes, body: MemberBody) -> BoxFuture<'static, OpenedStream>;
}

/// The services. Clones share them.
#[derive(Clone)]
pub(crate) struct NodeServices {
    catalogue: Catalogue,
    admission: Arc<Admission>,
    requests: Arc<OnceLock<Arc<dyn RequestServer>>>,
}

impl NodeServices {
    pub(crate) fn new(catalogue: Catalogue, admission: Admission) -> Self {
        Self { catalogue, admission: Arc::new(admission), requests: Arc::default() }
    }

    /// Serves forwarded requests from now on. A second server is ignored.
    pub(crate) fn serve_requests(&self, server: Arc<dyn RequestServer>) {
        let is_first = self.requests.set(server).is_ok();
        debug_assert!(is_first, "a node has one server of requests");
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
}

impl PeerServices for NodeServices {
    fn call(&self, call: IncomingCall) -> BoxFuture<'static, Result<Bytes, ServiceRefusal>> {
        let catalogue = self.catalogue.clone();
        async move {
            match call.service {
                CATALOGUE => catalogue.serve_call(call.peer, call.body).await.map_err(refused),
                PING => Ok(Bytes::new()),
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
                service => Err(unknown(service)),
            }
        }
        .boxed()
    }

    fn join(&self, from: SocketAddr, body: Bytes) -> BoxFuture<'static, Result<Bytes, ServiceRefusal>> {
        let admission = Arc::clone(&self.admission);
        async move { admission.admit(from, body).await }.boxed()
    }

    fn address_stated(&self, node: NodeId, address: PeerAddress) {
        tracing::info!(%node, %address, "a node stated its address");
    }
}

fn refused(why: CallRefused) -> ServiceRefusal {
    refusal(CATALOGUE_REFUSED, &why.0)
}

fn unknown(service: u16) -> ServiceRefusal {
    refusal(UNKNOWN_SERVICE, &format!("this version has no service {service}: upgrade this node"))
}

fn refusal(code: u32, message: &str) -> ServiceRefusal {
    ServiceRefusal { code, message: message.to_owned() }
}
