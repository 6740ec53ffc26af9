//! The S3 edge of a node: it serves each request itself, or forwards it to a member of the key's group.
//!
//! A node without peers serves everything. A member serves all keys of the groups that it has, except those
//! of remote-backed buckets, which it forwards to the duty node unless it is that itself. While it is drained
//! it forwards all changes too, and while its directory for new segments is not used those of local buckets.
//! A change of a key whose bytes the nodes of another set store is forwarded to them. A node that stores
//! nothing forwards everything; it has no objects and no segments, and needs only the parts of
//! [`ForwardingEdge`].

use crate::barriers::unavailable;
use crate::forwarded::route_target;
use crate::member::{
    MemberGateway, RequestOwner, is_change, is_stored_elsewhere, lacks_disk, owner_of, source_bucket,
};
use crate::observed_response::observe_response;
use crate::request_ids::{AssignedId, RequestIds};
use crate::response::{ResponseBody, S3Response, S3Result};
use crate::{Gateway, finish_error, handle, refuse};
use futures_util::FutureExt as _;
use futures_util::future::Either;
use http::Request;
use http::request::Parts;
use http_body_util::{BodyDataStream, BodyExt as _};
use mlgw_common::limits::SMALL_BODY_BYTES;
use mlgw_common::time::Instant;
use mlgw_common::{Clock, NodeId};
use mlgw_forwarding::route::{RangeMembers, RouteTarget};
use mlgw_forwarding::{
    DeclaredBody, ForwardFailure, ForwardedBody, ForwardedContext, ForwardedResponse, ForwardedTarget,
    Forwarder, MapEpoch, OutgoingRequest, RouteTable,
};
use mlgw_listener::Peer;
use mlgw_listener::pace::PacedRequestBody;
use mlgw_objects::stages::{follow, stage};
use mlgw_telemetry::GatewayMetrics;
use mlgw_telemetry::observed::Observed;
use mlgw_wire::error::S3Error;
use mlgw_wire::headers;
use mlgw_wire::target::{HttpRequestView, Query, RequestTarget};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Time after the arrival of a request for a remote-backed bucket until which it waits while this node takes
/// the bucket over.
const TAKE_OVER_WAIT: Duration = Duration::from_millis(1500);

/// Facts about a request before it is forwarded.
#[derive(Clone, Copy, Debug, Default)]
struct KnownBefore {
    /// Time for which it has waited on this node.
    waited: Duration,
    /// The node that has its rows, by the rows of this node.
    owner: Option<NodeId>,
}

/// The S3 edge of a node.
#[derive(Clone)]
pub enum S3Edge {
    /// A node without peers.
    Local(Arc<Gateway>),
    /// A member of groups.
    Member(Arc<MemberEdge>),
    /// A node without objects, which forwards every request.
    Forwarding(Arc<ForwardingEdge>),
}

/// Edge of a member: serves what it owns and forwards the rest.
pub struct MemberEdge {
    /// Serves the requests that this node owns.
    pub gateway: Arc<MemberGateway>,
    /// Forwards the others.
    pub forwarding: ForwardingEdge,
}

/// Parts of a node that forwards.
pub struct ForwardingEdge {
    /// Base names whose sub-domains are buckets.
    pub domains: Vec<String>,
    /// Metrics of requests.
    pub metrics: Arc<GatewayMetrics>,
    /// The source of the current time.
    pub clock: Arc<dyn Clock>,
    /// Ids of requests. Those of a member are shared with its gateway.
    pub ids: Arc<RequestIds>,
    /// The range map.
    pub routes: watch::Receiver<Arc<RouteTable>>,
    /// Forwards the requests.
    pub forwarder: Forwarder,
}

impl S3Edge {
    /// Answers one request of a client.
    pub fn handle(
        &self,
        request: Request<PacedRequestBody>,
        peer: Peer,
    ) -> impl Future<Output = S3Response> + Send + use<> {
        // Futures of clusters are boxed, so that a request of a single node pays for one branch only.
        match self {
            Self::Local(gateway) => Either::Left(handle(Arc::clone(gateway), request, peer)),
            Self::Member(edge) => {
                let edge = Arc::clone(edge);
                Either::Right(async move { edge.handle(request, peer).await }.boxed())
            }
            Self::Forwarding(edge) => {
                let edge = Arc::clone(edge);
                Either::Right(async move { edge.handle(request, peer, KnownBefore::default()).await }.boxed())
            }
        }
    }
}

impl MemberEdge {
    async fn handle(&self, request: Request<PacedRequestBody>, peer: Peer) -> S3Response {
        let (arrived, (head, body)) = (Instant::now(), request.into_parts());
        if self.hands_over(&head) {
            let request = Request::from_parts(head, body);
            return self.forwarding.handle(request, peer, KnownBefore::default()).await;
        }
        // A target that is not well-formed is refused by any node.
        let target = RequestTarget::parse(&head, &self.forwarding.domains).unwrap_or_default();
        let owner = match owner_of(&self.gateway, &head, &target, arrived + TAKE_OVER_WAIT).await {
            Ok(RequestOwner::Here(gateway))
                if !lacks_disk(&gateway, &head, &target)
                    && !is_stored_elsewhere(&gateway, &head, &target) =>
            {
                return handle(gateway, Request::from_parts(head, body), peer).await;
            }
            // If no node serves it yet, the forwarder finds that too.
            Ok(RequestOwner::Here(_) | RequestOwner::TakingOver) => None,
            Ok(RequestOwner::Elsewhere(owner)) => Some(owner),
            Err(error) => return refuse(&self.gateway.load_full(), &head, &peer, unavailable(error)),
        };
        let known = KnownBefore { waited: arrived.elapsed(), owner };
        self.forwarding.handle(Request::from_parts(head, body), peer, known).await
    }

    /// True for a change while this node leaves: another node stores what it appends. Reads are answered
    /// here.
    fn hands_over(&self, head: &Parts) -> bool {
        is_change(&head.method) && self.forwarding.routes.borrow().is_left_out(self.forwarding.ids.node())
    }
}

impl ForwardingEdge {
    async fn handle(&self, request: Request<PacedRequestBody>, peer: Peer, known: KnownBefore) -> S3Response {
        let (head, body) = request.into_parts();
        let now = self.clock.now();
        let assigned = self.ids.assign(now);
        let mut observed = self.metrics.begin();
        observed.record_arrival(assigned.arrival(now, &peer), &head);
        let AssignedId { number, id } = assigned;
        let context = ForwardedContext {
            client: peer.address,
            is_secure: peer.is_secure,
            received: now,
            request_id: id.clone(),
            // Those by which the member is chosen below.
            epoch: MapEpoch::default(),
            target: ForwardedTarget::default(),
            body: DeclaredBody::of(&body),
        };
        let answered = {
            let stages = observed.stages();
            let answer = pin!(self.answer(&head, context, number, known, body, &mut observed));
            follow(stages, answer).await
        };
        let mut response = answered.unwrap_or_else(|error| finish_error(error, &mut observed, &head, &id));
        observe_response(observed, &head, &mut response);
        response
    }

    async fn answer(
        &self,
        head: &Parts,
        mut context: ForwardedContext,
        turn: u64,
        known: KnownBefore,
        body: PacedRequestBody,
        observed: &mut Observed,
    ) -> S3Result {
        headers::check_size(head)?;
        let target = RequestTarget::parse(head, &self.domains)?;
        let query = Query::parse(head.uri.query().unwrap_or_default());
        observed.operation = HttpRequestView(head, &query).operation(target.level());
        let table = Arc::clone(&self.routes.borrow());
        context.epoch = table.epoch;
        context.target = ForwardedTarget::of(route_target(&target));
        let group = members_for(&table, route_target(&target), source_bucket(head).as_deref());
        let KnownBefore { waited, owner } = known;
        let request = OutgoingRequest { head, context, group, owner, turn, waited, body };
        let answered = stage("forward", self.forwarder.forward(request)).await?;
        let ForwardedResponse { member, response } = answered;
        observed.record_forwarding(member);
        let (head, body) = response.into_parts();
        Ok(S3Response::from_parts(head, response_body(body).await?))
    }
}

/// Returns the nodes that may serve a request. A copy from a remote-backed bucket, or to one, is for the
/// nodes that own it. Any other copy may read any group, so it is for nodes that have all.
fn members_for<'t>(table: &'t RouteTable, target: RouteTarget<'_>, source: Option<&str>) -> &'t RangeMembers {
    let members = table.members_of(target);
    let Some(bucket) = source else { return members };
    let from = table.members_of(RouteTarget { bucket: Some(bucket), key: None });
    match (from.leader, members.leader) {
        (Some(_), _) => from,
        (None, Some(_)) => members,
        (None, None) => table.members_of_all().unwrap_or(members),
    }
}

/// Returns the body of a member's answer. A small one is complete before the head is sent, so its failure is
/// an error response.
async fn response_body(body: ForwardedBody) -> Result<ResponseBody, S3Error> {
    match body.left_bytes() {
        Some(bytes) if bytes <= SMALL_BODY_BYTES as u64 => {
            let whole = body.collect().await.map_err(|error| ForwardFailure::Lost.error(error))?;
            Ok(ResponseBody::full(whole.to_bytes()))
        }
        Some(bytes) => Ok(ResponseBody::sized(bytes, BodyDataStream::new(body))),
        None => Ok(ResponseBody::KeptAlive(futures_util::StreamExt::boxed(BodyDataStream::new(body)))),
    }
}

#[cfg(test)]
mod tests {
    use super::members_for;
    use mlgw_common::NodeId;
    use mlgw_forwarding::route::{RangeMembers, RouteTarget};
    use mlgw_forwarding::{MapEpoch, RouteTable};

    #[test]
    fn a_copy_is_for_the_owner_of_a_remote_backed_bucket_or_for_nodes_that_have_all_groups() {
        let of = |members: &[u64], leader: Option<u64>| {
            RangeMembers::new(members.iter().copied().map(NodeId).collect(), leader.map(NodeId))
        };
        let mut table = RouteTable::new(MapEpoch(1), of(&[1, 2, 3, 4], None));
        table.add_whole_bucket("local", of(&[3, 4], None));
        table.add_whole_bucket("bound", of(&[2], Some(2)));
        let members = |table: &RouteTable, bucket, source| {
            let target = RouteTarget { bucket: Some(bucket), key: Some("k") };
            members_for(table, target, source).members.iter().map(|node| node.0).collect::<Vec<_>>()
        };
        assert_eq!(members(&table, "local", Some("other")), [3, 4], "without sets");
        table.set_all_groups(of(&[1, 2], None));
        assert_eq!(members(&table, "local", None), [3, 4]);
        assert_eq!(members(&table, "local", Some("local")), [1, 2]);
        assert_eq!(members(&table, "local", Some("bound")), [2]);
        assert_eq!(members(&table, "bound", Some("local")), [2]);
    }
}
