//! The request to join, of a node that has no certificate yet.

use crate::address::PeerAddress;
use crate::body::SentBody;
use crate::dial::{DIAL_LIMIT, http_client, no_answer, secure};
use crate::error::{DialError, JoinError, ServiceRefusal, UnknownOutcome};
use crate::wire::{ANSWERED, BUSY, PeerTarget, REFUSED, content_length, decode_refusal};
use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use mlgw_common::limits::JOIN_BYTES_MAX;
use mlgw_common::time::{Instant, timeout_at};
use mlgw_trust::{JoinToken, join_client_config};
use rustls::ClientConfig;
use std::pin::pin;
use std::sync::Arc;

/// Sends a request to join to the first of `addresses` that answers, and returns its answer. The member is
/// accepted if the authority of the token signed its certificate; it is not sent anything otherwise. After a
/// refusal for which `goes_on` returns true the next address is tried.
///
/// # Errors
/// See [`JoinError`].
pub async fn join(
    addresses: &[PeerAddress],
    token: &JoinToken,
    body: Bytes,
    deadline: Instant,
    goes_on: impl Fn(&ServiceRefusal) -> bool,
) -> Result<Bytes, JoinError> {
    if body.len() > JOIN_BYTES_MAX {
        return Err(JoinError::TooLarge { bytes: body.len(), limit: JOIN_BYTES_MAX });
    }
    let mut failed = JoinError::NoAddress;
    for address in addresses {
        let config =
            join_client_config(token.authority()).map(Arc::new).map_err(|error| tls(address, &error))?;
        match attempt(address, config, body.clone(), deadline).await {
            Err(JoinError::Refused(refusal)) if goes_on(&refusal) => failed = JoinError::Refused(refusal),
            Err(error @ (JoinError::Dial(_) | JoinError::Busy { .. })) => {
                // A refusal has precedence over an address that does not answer.
                if !matches!(failed, JoinError::Refused(_)) {
                    failed = error;
                }
            }
            outcome => return outcome,
        }
    }
    Err(failed)
}

fn tls(address: &PeerAddress, error: &rustls::Error) -> JoinError {
    JoinError::Dial(DialError::Unreachable { address: address.clone(), cause: error.to_string() })
}

async fn attempt(
    address: &PeerAddress,
    config: Arc<ClientConfig>,
    body: Bytes,
    deadline: Instant,
) -> Result<Bytes, JoinError> {
    let dial_deadline = deadline.min(Instant::now() + DIAL_LIMIT);
    let client = async { http_client(address, secure(address, config).await?).await };
    let client = timeout_at(dial_deadline, client).await;
    let late = || DialError::Unreachable { address: address.clone(), cause: no_answer(DIAL_LIMIT) };
    let mut client = client.map_err(|_| late())??;
    let request = PeerTarget::Join.request(SentBody::whole(body), deadline);
    let answer = async {
        let broken = |error: &dyn std::error::Error| UnknownOutcome::Broken(client.facts.cause(error));
        let response = client.sender.send_request(request).await.map_err(|error| broken(&error))?;
        let (head, body): (_, Incoming) = response.into_parts();
        let bytes = Limited::new(body, JOIN_BYTES_MAX).collect().await.map_err(|error| broken(&*error))?;
        Ok::<_, UnknownOutcome>(Response::from_parts(head, bytes.to_bytes()))
    };
    let answer = timeout_at(deadline, async {
        let mut answer = pin!(answer);
        tokio::select! {
            answer = &mut answer => answer,
            // The member ends the connection, which may be noticed before its answer is read.
            _ = client.connection => answer.await,
        }
    });
    let answer = answer.await.unwrap_or(Err(UnknownOutcome::Deadline)).map_err(JoinError::Unknown)?;
    judge_answer(address, answer)
}

fn judge_answer(address: &PeerAddress, answer: Response<Bytes>) -> Result<Bytes, JoinError> {
    let bad = |reason: &str| JoinError::Unknown(UnknownOutcome::BadAnswer(reason.to_owned()));
    // A stream that is reset may look like the end of the body.
    let is_whole = content_length(answer.headers()) == Some(answer.body().len());
    match answer.status() {
        ANSWERED if is_whole => Ok(answer.into_body()),
        BUSY => Err(JoinError::Busy { address: address.clone() }),
        REFUSED if is_whole => Err(decode_refusal(answer.body())
            .map_or_else(|| bad("its refusal cannot be decoded"), JoinError::Refused)),
        StatusCode::PAYLOAD_TOO_LARGE => {
            let cause = "it accepts only shorter requests to join".to_owned();
            Err(JoinError::Dial(DialError::Unreachable { address: address.clone(), cause }))
        }
        _ => Err(bad("it is not complete")),
    }
}
