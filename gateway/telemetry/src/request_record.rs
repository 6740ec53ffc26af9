//! Facts of a request for the access log and traces.

use super::CLIENT_GONE;
use mlgw_common::{NodeId, Timestamp};
use mlgw_objects::stages::Stages;
use mlgw_wire::error::Code;
use mlgw_wire::operation::Operation;
use opentelemetry::Context;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Error with which a request was answered.
#[derive(Clone, Copy, Debug)]
pub struct RequestFailure {
    /// S3 code of the response.
    pub code: Code,
    /// Name of the shortage that caused the error, if one did.
    pub shortage: Option<&'static str>,
}

/// Fields of a sampled request for the access log and traces.
#[derive(Debug)]
pub(super) struct RequestNotes {
    pub(super) id: String,
    pub(super) time: Timestamp,
    pub(super) peer: SocketAddr,
    /// Node from which the request was received, if not from its client.
    pub(super) forwarded_by: Option<NodeId>,
    /// Member that answers the request, if another one does.
    pub(super) forwarded_to: Option<NodeId>,
    pub(super) method: String,
    /// Path without the query, which may contain a signature.
    pub(super) path: String,
    pub(super) user_agent: String,
    pub(super) access_key: Option<String>,
    pub(super) bucket: Option<String>,
    pub(super) logged: bool,
    /// Parent context of the trace and the recorded stages, if the request is traced.
    pub(super) traced: Option<(Context, Arc<Stages>)>,
}

/// End of a request: status, durations, bytes.
#[derive(Clone, Copy, Debug)]
pub struct RequestEnding {
    pub(super) operation: Operation,
    pub(super) status: u16,
    /// Time to the head of the response.
    pub(super) first_byte: Duration,
    /// Time to the last byte of the response.
    pub(super) took: Duration,
    pub(super) bytes_in: u64,
    /// Bytes of the response's body that were sent.
    pub bytes_out: u64,
    pub(super) failure: Option<RequestFailure>,
}

impl RequestEnding {
    /// Marks a response whose body was not sent to its end, because the client is gone.
    pub const fn mark_abandoned(&mut self) {
        self.status = CLIENT_GONE;
    }
}
