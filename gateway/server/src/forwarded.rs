//! The server of requests that other nodes of the cluster forward to this storage node.
//!
//! A forwarded request counts as one of the S3 listener: it takes the same memory, and a stop waits for its
//! answer. A node that stops refuses further ones before they begin, so nothing of them was done.

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http_body::{Body, Frame, SizeHint};
use mlgw_common::NodeId;
use mlgw_forwarding::streams::empty_body;
use mlgw_forwarding::{MemberBody, OpenedStream, RoutingVerdict, StreamFault};
use mlgw_node::RequestServer;
use mlgw_protocol::forwarded::ForwardedRequests;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Serves forwarded requests until the listener stops.
pub(super) struct ServedRequests {
    requests: Arc<ForwardedRequests>,
    /// Stop of the S3 listener.
    stop: CancellationToken,
    /// Work of the S3 listener that a stop waits for.
    tasks: TaskTracker,
}

impl ServedRequests {
    pub(super) fn new(requests: ForwardedRequests, stop: CancellationToken, tasks: TaskTracker) -> Self {
        Self { requests: Arc::new(requests), stop, tasks }
    }
}

impl RequestServer for ServedRequests {
    fn serve(&self, from: NodeId, head: Bytes, body: MemberBody) -> BoxFuture<'static, OpenedStream> {
        // Taken before the check, so that a stop that begins after it waits for this request.
        let in_flight = self.tasks.token();
        if self.stop.is_cancelled() {
            let stopping = RoutingVerdict::Busy { reason: "the node stops".to_owned() };
            let refused = OpenedStream { head: stopping.encode(), body: empty_body() };
            return std::future::ready(refused).boxed();
        }
        let requests = Arc::clone(&self.requests);
        let serving = async move {
            let OpenedStream { head, body } = requests.serve(from, head, body).await;
            OpenedStream { head, body: MemberBody::new(AwaitedBody { body, _in_flight: in_flight }) }
        };
        serving.boxed()
    }
}

/// The body of an answer, until whose end or drop a stop waits.
struct AwaitedBody {
    body: MemberBody,
    _in_flight: TaskTrackerToken,
}

impl Body for AwaitedBody {
    type Data = Bytes;
    type Error = StreamFault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StreamFault>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
