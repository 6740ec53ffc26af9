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
use mlgw_wire::error::S3Error;
use mlgw_wire::xml::PROLOG;
use std::future::Future;
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};
use tokio_util::task::AbortOnDropHandle;

/// Timing of a response: when to stop waiting for the real status, and the interval of blanks afterwards.
#[derive(Clone, Copy)]
struct Pace {
    /// Time to wait for the real status.
    patience: Duration,
    /// Interval between blanks after that.
    blank_every: Duration,
}

/// Clients and load balancers close a connection after 30 s or more without a byte.
const PACE: Pace = Pace { patience: Duration::from_secs(5), blank_every: Duration::from_secs(5) };

type Work = AbortOnDropHandle<Result<Done, S3Error>>;

/// Result of a long operation.
#[derive(Default)]
pub struct Done {
    /// Document of the response.
    pub document: String,
    /// Headers that are sent if the result is known before the response has begun.
    pub headers: HeaderMap,
}

impl From<String> for Done {
    fn from(document: String) -> Self {
        Self { document, ..Self::default() }
    }
}

/// Runs `work` and responds with the document that it returns.
///
/// # Errors
/// Those of `work`, if they occur before the response has begun.
pub async fn answer<D>(work: impl Future<Output = Result<D, S3Error>> + Send + 'static) -> S3Result
where
    D: Into<Done>,
{
    answer_at(PACE, async { work.await.map(Into::into) }).await
}

async fn answer_at(
    pace: Pace,
    work: impl Future<Output = Result<Done, S3Error>> + Send + 'static,
) -> S3Result {
    let mut work = AbortOnDropHandle::new(tokio::spawn(work));
    match timeout(pace.patience, &mut work).await {
        Ok(joined) => {
            let Done { document, headers } = outcome(joined)?;
            let mut response = xml(document);
            response.headers_mut().extend(headers);
            Ok(response)
        }
        Err(_) => Ok(kept_alive(work, pace.blank_every)),
    }
}

fn outcome(joined: Result<Result<Done, S3Error>, tokio::task::JoinError>) -> Result<Done, S3Error> {
    joined.unwrap_or_else(|error| {
        tracing::error!(%error, "an operation came to grief");
        Err(S3Error::new(mlgw_wire::error::Code::InternalError))
    })
}

fn kept_alive(work: Work, blank_every: Duration) -> S3Response {
    let mut blanks = interval(blank_every);
    blanks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let prolog = stream::once(async { Ok(Bytes::from_static(PROLOG.as_bytes())) });
    let rest = stream::unfold(Some((work, blanks)), |state| async {
        let (work, blanks) = state?;
        Some(blank_or_document(work, blanks).await)
    });
    let mut response = empty(StatusCode::OK);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    *response.body_mut() = ResponseBody::KeptAlive(prolog.chain(rest).boxed());
    response
}

type Step = (Result<Bytes, BodyError>, Option<(Work, Interval)>);

/// Returns the next blank, or the document (without its prolog, which was sent) as the last piece.
async fn blank_or_document(mut work: Work, mut blanks: Interval) -> Step {
    tokio::select! {
        joined = &mut work => {
            let done = outcome(joined).map(|done| done.document);
            let document = done.unwrap_or_else(|error| error.to_xml(false, "", ""));
            let rest = document.strip_prefix(PROLOG).unwrap_or(&document).to_owned();
            (Ok(Bytes::from(rest)), None)
        }
        _ = blanks.tick() => (Ok(Bytes::from_static(b" ")), Some((work, blanks))),
    }
}

#[cfg(test)]
mod tests {
    use super::{PROLOG, Pace, answer, answer_at};
    use http::StatusCode;
    use http_body_util::BodyExt;
    use mlgw_wire::error::{Code, S3Error};
    use std::time::Duration;
    use tokio::sync::oneshot;

    const IMPATIENT: Pace = Pace { patience: Duration::ZERO, blank_every: Duration::from_millis(1) };

    #[tokio::test]
    async fn quick_work_answers_with_its_own_status() {
        let response = answer(async { Ok(format!("{PROLOG}<A/>")) }).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let error = answer(async { Err::<String, _>(S3Error::new(Code::NoSuchKey)) }).await;
        assert!(error.is_err());
    }

    /// Returns the whole body of a response whose work ends with `result` only after a blank was sent.
    async fn late(result: Result<String, S3Error>) -> String {
        let (go, gone) = oneshot::channel();
        let response = answer_at(IMPATIENT, async move {
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
        let text = late(Ok(format!("{PROLOG}<A/>"))).await;
        assert!(text.starts_with(PROLOG) && text.ends_with(" <A/>"), "{text:?}");
        assert_eq!(text.matches("<?xml").count(), 1);
    }

    #[tokio::test]
    async fn a_late_error_is_a_document_after_status_200() {
        let text = late(Err(S3Error::new(Code::InternalError))).await;
        assert!(text.ends_with("</Error>"), "{text:?}");
    }
}
