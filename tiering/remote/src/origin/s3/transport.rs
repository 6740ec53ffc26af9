//! Connections to an S3 origin (kept alive, with or without TLS, through a proxy if one is configured) and
//! their timeouts. Behind a fence, changes have connections of their own, which send nothing without a lease.

use super::outgoing::{OriginRequestBody, SendProgress};
use crate::origin::rate::MinimumRate;
use crate::origin::{OriginBody, OriginError, OriginFence};
use crate::upstream::UpstreamSettings;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use http::{Method, Request, Response};
use http_body_util::BodyStream;
use mlgw_carrier::{Authorities, Client, ClientSettings, Incoming, SendError, SendGuard, innermost};
use mlgw_common::limits::ORIGIN_SEND_MS_MAX;
use mlgw_common::time::Instant;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// Longest time to establish a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum timeout of copies and of completing an upload: gigabytes at some tens of megabytes a second.
/// Behind a fence they are given up earlier.
const LONG_TIMEOUT: Duration = Duration::from_mins(5);
/// Time for which an unused connection is kept; origins close theirs after some tens of seconds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// Time that an origin may take for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OriginPatience {
    /// The configured timeout.
    Usual,
    /// Minutes: the origin copies gigabytes before it responds.
    Long,
}

/// Connections to one origin.
pub(super) struct Transport {
    client: Client<OriginRequestBody>,
    /// Connections for changes, if they are behind a fence.
    fenced: Option<Client<OriginRequestBody>>,
    timeout: Duration,
}

/// True if requests of a method change nothing at the origin.
pub(super) fn is_read(method: &Method) -> bool {
    *method == Method::GET || *method == Method::HEAD
}

impl Transport {
    /// Creates the connections that an upstream's settings describe. With a fence, changes are sent only
    /// while it has a lease.
    ///
    /// # Errors
    /// A description of the setting that is wrong.
    pub(super) fn new(settings: &UpstreamSettings, fence: Option<&OriginFence>) -> Result<Self, String> {
        let of_client = ClientSettings {
            authorities: Authorities::for_endpoint(settings.ca_file.as_deref(), settings.endpoint.as_deref()),
            proxy: settings.proxy.as_deref(),
            connect_timeout: CONNECT_TIMEOUT,
            idle_timeout: IDLE_TIMEOUT,
        };
        let guard_of = |fence: &OriginFence| {
            let send_max = Duration::from_millis(ORIGIN_SEND_MS_MAX);
            SendGuard { permit: Arc::new(fence.clone()), send_max }
        };
        let client = Client::new(&of_client).map_err(|error| format!("its {error}"))?;
        let fenced = fence.map(|fence| Client::guarded(&of_client, guard_of(fence))).transpose();
        let fenced = fenced.map_err(|error| format!("its {error}"))?;
        Ok(Self { client, fenced, timeout: settings.timeout })
    }

    /// True if changes are behind a fence.
    pub(super) const fn is_fenced(&self) -> bool {
        self.fenced.is_some()
    }

    /// Sends a request and returns the head of its response. The time that the origin may take is counted
    /// anew whenever the request waits for the origin again.
    pub(super) async fn send(
        &self,
        request: Request<OriginRequestBody>,
        turn: &SendProgress,
        patience: OriginPatience,
    ) -> Result<Response<Incoming>, OriginError> {
        let patience = match patience {
            OriginPatience::Usual => self.timeout,
            OriginPatience::Long => self.timeout.max(LONG_TIMEOUT),
        };
        let is_change = !is_read(request.method());
        let client = self.fenced.as_ref().filter(|_| is_change).unwrap_or(&self.client);
        let answer = client.send(request);
        let mut answer = pin!(answer);
        loop {
            let left = turn.time_left(patience).ok_or(OriginError::TimedOut)?;
            let Ok(answer) = mlgw_common::time::timeout(left, &mut answer).await else { continue };
            return answer.map_err(|error| match error {
                SendError::Connect(why) => OriginError::Unreachable(why),
                SendError::Broken(why) => OriginError::ConnectionLost(why),
            });
        }
    }

    /// Returns a body, which must have exactly `length` bytes.
    pub(super) fn body(&self, incoming: Incoming, length: u64) -> OriginBody {
        let frames = PacedFrames::new(incoming, self.timeout);
        futures_util::stream::try_unfold((frames, length), move |(mut frames, left)| async move {
            match frames.next().await? {
                Some(bytes) => {
                    let left = left.checked_sub(bytes.len() as u64);
                    let left = left.ok_or_else(|| {
                        OriginError::InvalidResponse("the body has more bytes than declared".into())
                    })?;
                    Ok(Some((bytes, (frames, left))))
                }
                None if left == 0 => Ok(None),
                None => Err(OriginError::Unreachable(format!("the response ended {left} bytes early"))),
            }
        })
        .boxed()
    }

    /// Reads a whole body of at most `max` bytes.
    pub(super) async fn document(&self, incoming: Incoming, max: usize) -> Result<Bytes, OriginError> {
        let mut frames = PacedFrames::new(incoming, self.timeout);
        let mut document = BytesMut::new();
        while let Some(bytes) = frames.next().await? {
            document.extend_from_slice(&bytes);
            if document.len() > max {
                return Err(OriginError::InvalidResponse(format!("the document has more than {max} bytes")));
            }
        }
        Ok(document.freeze())
    }
}

/// Bytes of a response, which must arrive at the minimum rate or faster.
struct PacedFrames {
    frames: BodyStream<Incoming>,
    timeout: Duration,
    rate: MinimumRate,
}

impl PacedFrames {
    fn new(incoming: Incoming, timeout: Duration) -> Self {
        Self { frames: BodyStream::new(incoming), timeout, rate: MinimumRate::per_window(timeout) }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, OriginError> {
        loop {
            let begun = Instant::now();
            let next = mlgw_common::time::timeout(self.timeout, self.frames.next()).await;
            match next.map_err(|_| OriginError::TimedOut)? {
                Some(Ok(frame)) => {
                    let Ok(bytes) = frame.into_data() else { continue };
                    if !self.rate.has_enough(begun.elapsed(), bytes.len() as u64) {
                        return Err(OriginError::TimedOut);
                    }
                    return Ok(Some(bytes));
                }
                Some(Err(error)) => return Err(OriginError::Unreachable(innermost(&error))),
                None => return Ok(None),
            }
        }
    }
}
