//! Streams of forwarded requests, over the transport.

use crate::numbers::REQUEST;
use crate::peers::RunningTransport;
use crate::probes::Probes;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http_body::Body as _;
use http_body_util::BodyExt as _;
use mlgw_common::NodeId;
use mlgw_common::limits::FORWARD_ACCEPT_WAIT_MS;
use mlgw_common::time::Instant;
use mlgw_forwarding::{MemberBody, MemberStreams, OpenedStream, StreamFault, StreamOpenError};
use mlgw_transport::{CallError, NotSent, PeerBody, PeerBodyError, StreamClass};
use std::sync::Arc;
use std::time::Duration;

/// Longest time until a member gives its verdict about a request.
const ACCEPT_WAIT: Duration = Duration::from_millis(FORWARD_ACCEPT_WAIT_MS);

/// Opens streams to the members that serve requests.
#[derive(Debug)]
pub(crate) struct TransportStreams {
    transport: Arc<RunningTransport>,
    probes: Arc<Probes>,
}

impl TransportStreams {
    pub(crate) const fn new(transport: Arc<RunningTransport>, probes: Arc<Probes>) -> Self {
        Self { transport, probes }
    }

    async fn open_stream(
        &self,
        member: NodeId,
        head: Bytes,
        body: MemberBody,
    ) -> Result<OpenedStream, StreamOpenError> {
        let stopped = || StreamOpenError::NotSent("the transport of this node does not run".to_owned());
        let transport = self.transport.get().ok_or_else(stopped)?;
        let deadline = Instant::now() + ACCEPT_WAIT;
        // Only a read has no body at all: a change waits for its release.
        let opened = match body.is_end_stream() {
            true => transport.read(member, REQUEST, head, deadline).await,
            false => {
                let body = peer_body(body);
                transport.stream(member, StreamClass::Request, REQUEST, head, body, deadline).await
            }
        };
        let opened = opened.map_err(|error| open_error(&error))?;
        Ok(OpenedStream { head: opened.head, body: member_body(opened.body) })
    }
}

impl MemberStreams for TransportStreams {
    fn is_stopping(&self, member: NodeId) -> bool {
        self.probes.answers(member) == Some(true) && !self.probes.serves(member)
    }

    fn open(
        &self,
        member: NodeId,
        head: Bytes,
        body: MemberBody,
    ) -> BoxFuture<'_, Result<OpenedStream, StreamOpenError>> {
        self.open_stream(member, head, body).boxed()
    }
}

/// The error of a stream by what forwarding may do next.
fn open_error(error: &CallError) -> StreamOpenError {
    match error {
        CallError::NotSent { reason: NotSent::Busy(_), .. } => StreamOpenError::Busy(error.to_string()),
        CallError::NotSent { .. } | CallError::PeerRefused { .. } | CallError::Refused { .. } => {
            StreamOpenError::NotSent(error.to_string())
        }
        CallError::Unknown { .. } => StreamOpenError::Lost(error.to_string()),
    }
}

/// A direction of a forwarded request as a body of the transport.
pub(crate) fn peer_body(body: MemberBody) -> PeerBody {
    PeerBody::new(body.map_err(|fault| PeerBodyError::Failed(fault.to_string())))
}

/// A body of the transport as a direction of a forwarded request.
pub(crate) fn member_body(body: PeerBody) -> MemberBody {
    MemberBody::new(body.map_err(|error| -> StreamFault { Box::new(error) }))
}

#[cfg(test)]
mod tests {
    use super::open_error;
    use crate::peers::tests::call_errors;
    use mlgw_forwarding::StreamOpenError;
    use mlgw_transport::{CallError, NotSent};

    #[test]
    fn only_an_unknown_outcome_is_lost_and_only_a_full_connection_is_busy() {
        for error in call_errors() {
            let opened = open_error(&error);
            let is_expected = match &error {
                CallError::NotSent { reason: NotSent::Busy(_), .. } => {
                    matches!(opened, StreamOpenError::Busy(_))
                }
                CallError::NotSent { .. } | CallError::PeerRefused { .. } | CallError::Refused { .. } => {
                    matches!(opened, StreamOpenError::NotSent(_))
                }
                CallError::Unknown { .. } => matches!(opened, StreamOpenError::Lost(_)),
            };
            assert!(is_expected, "{error:?}: {opened:?}");
        }
    }
}
