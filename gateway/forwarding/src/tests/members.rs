//! Members that behave as a test prescribes. Both directions of a stream are real bodies; only the network
//! between them is missing.

use crate::answer_stream::AnswerStream;
use crate::streams::{MemberBody, MemberStreams, OpenedStream, StreamFault, StreamOpenError, empty_body};
use crate::{
    ForwardedContext, ForwardedRequestBody, MapEpoch, RoutingVerdict, decode_head, is_body_awaited,
    is_released_later,
};
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::Response;
use http::request::Parts;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, Full};
use mlgw_common::NodeId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use tokio::sync::oneshot;

/// Behavior of a member.
#[derive(Clone, Debug)]
pub(super) enum Behavior {
    /// It cannot be reached.
    Down,
    /// All streams to it are in use.
    Full,
    /// It accepts the request, and its verdict is lost.
    VerdictLost,
    /// It accepts the request, and its verdict does not arrive.
    VerdictLate,
    /// It refuses the request.
    Refuses(RoutingVerdict),
    /// Its verdict cannot be read.
    Garbled,
    /// It carries out the request and answers with this number of bytes, or fewer than announced.
    Serves {
        /// Bytes of the answer.
        bytes: usize,
        /// Bytes that the answer announces and does not have.
        missing: usize,
    },
    /// It answers with an error before it reads the body.
    AnswersEarly,
    /// It carries out the request, and its answer is lost.
    Dies,
}

/// Scripted members.
#[derive(Default)]
pub(super) struct ScriptedMembers {
    behaviors: HashMap<NodeId, Behavior>,
    /// Members that have announced that they stop.
    pub(super) stopping: Mutex<Vec<NodeId>>,
    /// Members that were tried, in order.
    pub(super) tried: Mutex<Vec<u64>>,
    /// Number of times that a member carried out a request, and the bytes of its body.
    pub(super) executed: AtomicUsize,
    /// Bytes of the bodies of these requests.
    pub(super) body_bytes: AtomicUsize,
    /// Head of the last request.
    pub(super) last: Mutex<Option<(Parts, ForwardedContext)>>,
}

/// The network between a member and the forwarding node failed.
#[derive(Debug, thiserror::Error)]
#[error("the stream broke off")]
struct Broken;

impl ScriptedMembers {
    pub(super) fn new(behaviors: &[(u64, Behavior)]) -> Arc<Self> {
        let behaviors = behaviors.iter().map(|(member, behavior)| (NodeId(*member), behavior.clone()));
        Arc::new(Self { behaviors: behaviors.collect(), ..Self::default() })
    }

    /// Carries out a request as a member does: after the release, with its whole body.
    async fn carry_out(
        self: &Arc<Self>,
        mut body: ForwardedRequestBody,
        is_later: bool,
    ) -> Result<(), StreamFault> {
        if is_later {
            body.released().await?;
        }
        let whole = body.collect().await?.to_bytes();
        self.executed.fetch_add(1, Relaxed);
        self.body_bytes.fetch_add(whole.len(), Relaxed);
        Ok(())
    }
}

/// Handle by which the forwarder reaches the members.
pub(super) struct ScriptedNetwork(pub(super) Arc<ScriptedMembers>);

impl MemberStreams for ScriptedNetwork {
    fn is_stopping(&self, member: NodeId) -> bool {
        self.0.stopping.lock().contains(&member)
    }

    fn open(
        &self,
        member: NodeId,
        head: Bytes,
        body: MemberBody,
    ) -> BoxFuture<'_, Result<OpenedStream, StreamOpenError>> {
        let members = Arc::clone(&self.0);
        async move {
            members.tried.lock().push(member.get());
            let behavior = members.behaviors.get(&member).cloned().unwrap_or(Behavior::Down);
            match behavior {
                Behavior::Down => return Err(StreamOpenError::NotSent("it is down".to_owned())),
                Behavior::Full => return Err(StreamOpenError::Busy("too many requests".to_owned())),
                _ => {}
            }
            let (head, context) = decode_head(head).unwrap();
            *members.last.lock() = Some((head.clone(), context.clone()));
            let refuse = |head: Bytes| Ok(OpenedStream { head, body: empty_body() });
            let is_later = is_released_later(&head.method, context.body);
            let (notify, wanted) = is_body_awaited(&head, context.body).then(oneshot::channel).unzip();
            let body = ForwardedRequestBody::new(body, context.body, notify);
            let serving = Arc::clone(&members);
            let answer: BoxFuture<'static, Result<Response<AnnouncedBody>, StreamFault>> = match behavior {
                Behavior::Down | Behavior::Full => unreachable!("handled above"),
                Behavior::VerdictLost => {
                    tokio::spawn(async move { drop(serving.carry_out(body, is_later).await) });
                    return Err(StreamOpenError::Lost("the connection broke off".to_owned()));
                }
                Behavior::VerdictLate => {
                    tokio::spawn(async move { drop(serving.carry_out(body, is_later).await) });
                    return std::future::pending().await;
                }
                Behavior::Refuses(verdict) => return refuse(verdict.encode()),
                Behavior::Garbled => return refuse(Bytes::from_static(b"\xff")),
                Behavior::Serves { bytes, missing } => async move {
                    serving.carry_out(body, is_later).await?;
                    let body = Full::new(Bytes::from(vec![7; bytes]));
                    Ok(Response::new(AnnouncedBody { body, missing }))
                }
                .boxed(),
                Behavior::AnswersEarly => async move {
                    let _unread = body;
                    Ok(Response::builder().status(403).body(AnnouncedBody::whole(b"no")).unwrap())
                }
                .boxed(),
                Behavior::Dies => async move {
                    serving.carry_out(body, is_later).await?;
                    Err(Broken.into())
                }
                .boxed(),
            };
            let answer = AnswerStream::new(answer, wanted, ());
            let verdict = RoutingVerdict::Accepted { epoch: MapEpoch(9) };
            Ok(OpenedStream { head: verdict.encode(), body: MemberBody::new(answer) })
        }
        .boxed()
    }
}

/// A body that may announce more bytes than it has.
struct AnnouncedBody {
    body: Full<Bytes>,
    missing: usize,
}

impl AnnouncedBody {
    fn whole(bytes: &'static [u8]) -> Self {
        Self { body: Full::new(Bytes::from_static(bytes)), missing: 0 }
    }
}

impl Body for AnnouncedBody {
    type Data = Bytes;
    type Error = StreamFault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StreamFault>>> {
        Pin::new(&mut self.body).poll_frame(cx).map_err(|never| match never {})
    }

    fn is_end_stream(&self) -> bool {
        self.missing == 0 && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.body.size_hint().exact().unwrap_or(0) + self.missing as u64)
    }
}
