//! Requests that another node received and forwarded to this one.
//!
//! A forwarded request passes the same steps as any other: it is authenticated here, waits at the same
//! barriers and appears in metrics and logs with the address of its client. Three things differ. The age of
//! its signature is verified by the clock of the node that received it. A change begins only after that node
//! has released it. Nothing here can forward it again: a request for a key that this node does not own is
//! refused with a hint.
//!
//! Invariant: a request is served only if this node reads the same bucket and key from its head as the node
//! that received it. With other host names (`s3.domains`) it reads others, and the signature is valid for
//! both.

use crate::barriers::{unconfirmed_cause, until_recent};
use crate::client_body::ReceivedClientBody;
use crate::member::{
    MemberGateway, MemberPart, RequestOwner, check_clock, is_change, is_lost, lacks_disk, owner_of,
};
use crate::{Gateway, respond};
use bytes::Bytes;
use futures_util::FutureExt as _;
use http::request::Parts;
use mlgw_common::NodeId;
use mlgw_common::limits::FORWARD_ADMIT_WAIT_MS;
use mlgw_common::time::{Instant, timeout};
use mlgw_forwarding::route::RouteTarget;
use mlgw_forwarding::streams::empty_body;
use mlgw_forwarding::{
    AnswerStream, ForwardedContext, ForwardedRequestBody, ForwardedTarget, MapEpoch, MemberBody,
    OpenedStream, RouteTable, RoutingVerdict, StreamFault, UnconfirmedCause, decode_head, is_body_awaited,
    is_released_later,
};
use mlgw_metadata::BarrierError;
use mlgw_objects::memory::{Account, ActiveSlot, RequestMemory};
use mlgw_telemetry::observed::Arrival;
use mlgw_wire::target::RequestTarget;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio_util::task::AbortOnDropHandle;

const ADMIT_WAIT: Duration = Duration::from_millis(FORWARD_ADMIT_WAIT_MS);

/// Reason of the refusal of a request that this node cannot answer now, and another one may.
const NOT_CURRENT: &str = "the rows of this node are not confirmed yet, or it takes the bucket over";

/// Reason of the refusal of a request for a group without a majority.
const LOST: &str = "most voters of a group do not answer this node";

/// Reason of the refusal of a change on a node with a wrong clock.
const CLOCK_DEVIATES: &str = "the clock of this node deviates from those of the others";

/// Reason of the refusal of a change on a node without a directory for new segments.
const NO_DISK: &str = "the directory of the hot tier is not used";

/// Reason of the refusal of a request from which two nodes read different buckets.
const OTHER_TARGET: &str =
    "it reads another bucket or key from the request: use the same s3.domains on all nodes";

/// The serving side of forwarding.
pub struct ForwardedRequests {
    /// Serves the requests.
    pub gateway: Arc<MemberGateway>,
    /// Memory of the requests, shared with those that this node receives itself.
    pub memory: RequestMemory,
    /// The range map of this node.
    pub routes: watch::Receiver<Arc<RouteTable>>,
}

/// A request that this node has accepted.
struct AdmittedRequest {
    gateway: Arc<Gateway>,
    head: Parts,
    context: ForwardedContext,
    account: Account,
    slot: ActiveSlot,
    verdict: RoutingVerdict,
}

impl ForwardedRequests {
    /// Serves a request that `from` forwards. The answer is ready as soon as this node has given its verdict.
    /// Dropping the body of the answer cancels the request.
    pub async fn serve(&self, from: NodeId, head: Bytes, stream: MemberBody) -> OpenedStream {
        match self.admit(head).await {
            Ok(admitted) => Self::begin(from, admitted, stream),
            Err(verdict) => OpenedStream { head: verdict.encode(), body: empty_body() },
        }
    }

    /// Returns the request, or the verdict that refuses it.
    async fn admit(&self, head: Bytes) -> Result<AdmittedRequest, RoutingVerdict> {
        let refused =
            |error: mlgw_forwarding::HeadError| RoutingVerdict::Refused { reason: error.to_string() };
        let (head, context) = decode_head(head).map_err(refused)?;
        // A target that is not well-formed is refused by the forwarding node, and by any other alike.
        let target = RequestTarget::parse(&head, &self.gateway.load().config.domains).unwrap_or_default();
        if ForwardedTarget::of(route_target(&target)) != context.target {
            return Err(RoutingVerdict::Refused { reason: OTHER_TARGET.to_owned() });
        }
        let table = table_at(self.routes.clone(), context.epoch).await;
        let node = self.gateway.load().ids.node();
        let verdict = table.judge(node, context.epoch, route_target(&target));
        let RoutingVerdict::Accepted { .. } = &verdict else { return Err(verdict) };
        let gateway = self.owner(&head, &target, table.epoch).await?;
        let is_change = is_change(&head.method);
        let reads_stale = || !is_change && gateway.member.as_ref().is_some_and(MemberPart::reads_stale);
        if !reads_stale() {
            if is_lost(&gateway, &head, &target) {
                return Err(lost());
            }
            wait_until_recent(&gateway).await?;
        }
        // Another member may store it, under the right time.
        if is_change && check_clock(&gateway).is_err() {
            return Err(RoutingVerdict::Busy { reason: CLOCK_DEVIATES.to_owned() });
        }
        if lacks_disk(&gateway, &head, &target) {
            return Err(RoutingVerdict::Busy { reason: NO_DISK.to_owned() });
        }
        let account = self.memory.account(context.client.ip());
        let slot = timeout(ADMIT_WAIT, account.activate()).await.ok().and_then(Result::ok);
        let slot = slot.ok_or_else(|| RoutingVerdict::Busy { reason: "memory".to_owned() })?;
        Ok(AdmittedRequest { gateway, head, context, account, slot, verdict })
    }

    /// Returns the gateway that answers a request, or the verdict that refuses it: the same decision as for a
    /// request of this node's own clients, because the map of either node may be older than the bucket, and
    /// the map names the new nodes of a group while the former ones still have its rows.
    async fn owner(
        &self,
        head: &Parts,
        target: &RequestTarget,
        epoch: MapEpoch,
    ) -> Result<Arc<Gateway>, RoutingVerdict> {
        let owner = owner_of(&self.gateway, head, target, Instant::now() + ADMIT_WAIT);
        match timeout(ADMIT_WAIT, owner).await {
            Ok(Ok(RequestOwner::Here(gateway))) => Ok(gateway),
            Ok(Ok(RequestOwner::Elsewhere(owner))) => {
                Err(RoutingVerdict::NotMine { leader: Some(owner), epoch })
            }
            Ok(Err(error)) => Err(unconfirmed(error)),
            Ok(Ok(RequestOwner::TakingOver)) | Err(_) if is_lost(&self.gateway.load(), head, target) => {
                Err(lost())
            }
            Ok(Ok(RequestOwner::TakingOver)) | Err(_) => {
                Err(RoutingVerdict::Busy { reason: NOT_CURRENT.to_owned() })
            }
        }
    }

    fn begin(from: NodeId, admitted: AdmittedRequest, stream: MemberBody) -> OpenedStream {
        let AdmittedRequest { gateway, head, context, account, slot, verdict } = admitted;
        let (notify, wanted) = is_body_awaited(&head, context.body).then(oneshot::channel).unzip();
        let mut body = ForwardedRequestBody::new(stream, context.body, notify);
        let is_later = is_released_later(&head.method, context.body);
        let answering = async move {
            if is_later {
                body.released().await?;
            }
            let now = gateway.clock.now();
            let arrival = Arrival {
                number: gateway.ids.next_number(),
                id: &context.request_id,
                time: context.received,
                peer: context.client,
                forwarded_by: Some(from),
            };
            let body = ReceivedClientBody::Forwarded(Box::new(body));
            Ok::<_, StreamFault>(respond(&gateway, head, body, &account, arrival, now).await)
        };
        // The handler of a read runs where its answer is sent, which saves two switches of tasks.
        let answer = match is_later {
            true => run_apart(answering).boxed(),
            false => run_here(Box::pin(answering)).boxed(),
        };
        let body = MemberBody::new(AnswerStream::new(answer, wanted, slot));
        OpenedStream { head: verdict.encode(), body }
    }
}

/// Runs a handler in a task of its own: a change must not wait for room for its answer. Dropping the future
/// aborts the task.
fn run_apart<T: Send + 'static>(
    answering: impl Future<Output = Result<T, StreamFault>> + Send + 'static,
) -> impl Future<Output = Result<T, StreamFault>> {
    let task = AbortOnDropHandle::new(tokio::spawn(answering));
    async move {
        task.await.unwrap_or_else(|error| {
            tracing::error!(%error, "a forwarded request panicked");
            Err(error.into())
        })
    }
}

/// Runs a handler in the task of the caller. The task may serve other requests too, so a panic is caught and
/// fails only this request, whose future is dropped.
async fn run_here<T>(
    answering: Pin<Box<impl Future<Output = Result<T, StreamFault>>>>,
) -> Result<T, StreamFault> {
    AssertUnwindSafe(answering).catch_unwind().await.unwrap_or_else(|_| {
        tracing::error!("a forwarded request panicked");
        Err("a forwarded request panicked".into())
    })
}

/// Waits until the rows by which the request is authenticated are recent.
async fn wait_until_recent(gateway: &Gateway) -> Result<(), RoutingVerdict> {
    match timeout(ADMIT_WAIT, until_recent(gateway)).await {
        Ok(recent) => recent.map_err(unconfirmed),
        Err(_) => Err(RoutingVerdict::Busy { reason: NOT_CURRENT.to_owned() }),
    }
}

/// Returns the verdict about a request whose group has lost its majority.
fn lost() -> RoutingVerdict {
    RoutingVerdict::Unconfirmed { cause: UnconfirmedCause::Majority, reason: LOST.to_owned() }
}

/// Returns the verdict about a request whose barrier was not passed.
fn unconfirmed(error: BarrierError) -> RoutingVerdict {
    let reason = error.to_string();
    match unconfirmed_cause(error) {
        Some(cause) => RoutingVerdict::Unconfirmed { cause, reason },
        None => RoutingVerdict::Busy { reason },
    }
}

/// Returns the range map of `epoch` or a newer one. If it does not arrive soon, returns the newest one.
async fn table_at(mut routes: watch::Receiver<Arc<RouteTable>>, epoch: MapEpoch) -> Arc<RouteTable> {
    let known = Arc::clone(&routes.borrow_and_update());
    if known.epoch >= epoch {
        return known;
    }
    match timeout(ADMIT_WAIT, routes.wait_for(|table| table.epoch >= epoch)).await {
        Ok(Ok(newer)) => Arc::clone(&newer),
        Ok(Err(_)) | Err(_) => known,
    }
}

/// Returns bucket and key of a target for the range map.
pub(crate) fn route_target(target: &RequestTarget) -> RouteTarget<'_> {
    RouteTarget { bucket: target.bucket.as_deref(), key: target.key.as_ref().map(|key| key.as_str()) }
}

#[cfg(test)]
mod tests {
    use super::{ADMIT_WAIT, table_at};
    use mlgw_common::time::{Instant, sleep};
    use mlgw_forwarding::{MapEpoch, RouteTable};
    use std::sync::Arc;
    use tokio::sync::watch;

    fn table(epoch: u64) -> Arc<RouteTable> {
        Arc::new(RouteTable::new(MapEpoch(epoch), mlgw_forwarding::route::RangeMembers::default()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_member_waits_for_the_map_of_the_request() {
        let (routes, begin) = (watch::Sender::new(table(2)), Instant::now());
        assert_eq!(table_at(routes.subscribe(), MapEpoch(1)).await.epoch, MapEpoch(2));
        assert!(begin.elapsed().is_zero(), "a newer map is used at once");
        let waiting = tokio::spawn(table_at(routes.subscribe(), MapEpoch(4)));
        sleep(ADMIT_WAIT / 3).await;
        routes.send_replace(table(3));
        sleep(ADMIT_WAIT / 3).await;
        routes.send_replace(table(5));
        assert_eq!(waiting.await.unwrap().epoch, MapEpoch(5));
        let begin = Instant::now();
        assert_eq!(table_at(routes.subscribe(), MapEpoch(6)).await.epoch, MapEpoch(5));
        assert!(begin.elapsed() >= ADMIT_WAIT);
    }
}
