//! Responses of long operations: white space until the result is known.
//!
//! A copy of gigabytes takes longer than clients wait for a first byte. After a few seconds status 200 and
//! the XML prolog are sent, then a blank at regular intervals, then the document. A late error is an
//! `<Error>` document after the status 200, as AWS does; clients check for it. The operation runs in a task
//! of its own until it ends or the client disconnects.

use super::response::{BodyError, ResponseBody, S3Response, S3Result, empty, xml};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use mlgw_common::time::{Interval, MissedTickBehavior, interval, timeout};
use mlgw_wire::error::S3Error;
use mlgw_wire::xml::PROLOG;
use std::future::Future;
use std::time::Duration;
use tokio_util::task::AbortOnDropHandle;

/// Timing of a response: when to stop waiting for the real status, and the interval of blanks afterwards.
#[derive(Clone, Copy)]
struct KeepAliveTiming {
    /// Time to wait for the real status.
    status_timeout: Duration,
    /// Interval between blanks after that.
    blank_interval: Duration,
}

/// Clients and load balancers close a connection after 30 s or more without a byte.
const TIMING: KeepAliveTiming =
    KeepAliveTiming { status_timeout: Duration::from_secs(5), blank_interval: Duration::from_secs(5) };

type LongOperationTask = AbortOnDropHandle<Result<LongOperationResult, S3Error>>;

/// Result of a long operation.
#[derive(Default)]
pub struct LongOperationResult {
    /// Document of the response.
    pub document: String,
    /// Headers that are sent if the result is known before the response has begun.
    pub headers: HeaderMap,
}

impl From<String> for LongOperationResult {
    fn from(document: String) -> Self {
        Self { document, ..Self::default() }
    }
}

/// Runs `work` and responds with the document that it returns.
///
/// # Errors
/// Those of `work`, if they occur before the response has begun.
pub async fn respond<D>(work: impl Future<Output = Result<D, S3Error>> + Send + 'static) -> S3Result
where
    D: Into<LongOperationResult>,
{
    respond_with(TIMING, async { work.await.map(Into::into) }).await
}

async fn respond_with(
    pace: KeepAliveTiming,
    work: impl Future<Output = Result<LongOperationResult, S3Error>> + Send + 'static,
) -> S3Result {
    let mut work = AbortOnDropHandle::new(tokio::spawn(work));
    match timeout(pace.status_timeout, &mut work).await {
        Ok(joined) => {
            let LongOperationResult { document, headers } = outcome(joined)?;
            let mut response = xml(document);
            response.headers_mut().extend(headers);
            Ok(response)
        }
        Err(_) => Ok(keep_alive_response(work, pace.blank_interval)),
    }
}

fn outcome(
    joined: Result<Result<LongOperationResult, S3Error>, tokio::task::JoinError>,
) -> Result<LongOperationResult, S3Error> {
    joined.unwrap_or_else(|error| {
        tracing::error!(%error, "an operation panicked or was cancelled");
        Err(S3Error::new(mlgw_wire::error::Code::InternalError))
    })
}

fn keep_alive_response(work: LongOperationTask, blank_every: Duration) -> S3Response {
    let mut blanks = interval(blank_every);
    blanks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let prolog = stream::once(async { Ok(Bytes::from_static(PROLOG.as_bytes())) });
    let rest = stream::unfold(Some((work, blanks)), |state| async {
        let (work, blanks) = state?;
        Some(next_piece(work, blanks).await)
    });
    let mut response = empty(StatusCode::OK);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    *response.body_mut() = ResponseBody::KeptAlive(prolog.chain(rest).boxed());
    response
}

type KeepAliveStep = (Result<Bytes, BodyError>, Option<(LongOperationTask, Interval)>);

/// Returns the next blank, or the document (without its prolog, which was sent) as the last piece.
async fn next_piece(mut work: LongOperationTask, mut blanks: Interval) -> KeepAliveStep {
    tokio::select! {
        joined = &mut work => {
            let done = outcome(joined).map(|done| done.document);
            let document = done.unwrap_or_else(|error| error.to_element("", ""));
            let rest = document.strip_prefix(PROLOG).unwrap_or(&document).to_owned();
            (Ok(Bytes::from(rest)), None)
        }
        _ = blanks.tick() => (Ok(Bytes::from_static(b" ")), Some((work, blanks))),
    }
}

#[cfg(test)]
mod tests {
    use super::{KeepAliveTiming, PROLOG, respond, respond_with};
    use http::StatusCode;
    use http_body_util::BodyExt;
    use mlgw_wire::error::{Code, S3Error};
    use std::time::Duration;
    use tokio::sync::oneshot;

    const IMMEDIATE: KeepAliveTiming =
        KeepAliveTiming { status_timeout: Duration::ZERO, blank_interval: Duration::from_millis(1) };

    #[tokio::test]
    async fn quick_work_answers_with_its_own_status() {
        let response = respond(async { Ok(format!("{PROLOG}<A/>")) }).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let error = respond(async { Err::<String, _>(S3Error::new(Code::NoSuchKey)) }).await;
        assert!(error.is_err());
    }

    /// Returns the whole body of a response whose work ends with `result` only after a blank was sent.
    async fn late_response(result: Result<String, S3Error>) -> String {
        let (go, gone) = oneshot::channel();
        let response = respond_with(IMMEDIATE, async move {
            gone.await.unwrap();
            result.map(Into::into)
        });
        let response = response.await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let (mut body, mut text) = (response.into_body(), Vec::new());
        while text.last() != Some(&b' ') {
            text.extend(body.frame().await.unwrap().unwrap().into_data().unwrap());
        }
        go.send(()).unwrap();
        text.extend(body.collect().await.unwrap().to_bytes());
        String::from_utf8(text).unwrap()
    }

    #[tokio::test]
    async fn long_work_is_kept_alive_and_ends_with_one_document() {
        let text = late_response(Ok(format!("{PROLOG}<A/>"))).await;
        assert!(text.starts_with(PROLOG) && text.ends_with(" <A/>"), "{text:?}");
        assert_eq!(text.matches("<?xml").count(), 1);
    }

    #[tokio::test]
    async fn a_late_error_is_a_document_after_status_200() {
        let text = late_response(Err(S3Error::new(Code::InternalError))).await;
        assert!(text.ends_with("</Error>"), "{text:?}");
    }
}
