//! Answers that take long: white space until the result is known.
//!
//! A copy of gigabytes takes longer than clients wait for a first byte. After a few seconds the
//! status is sent as 200 with the XML prolog, then a blank now and then, then the document. An
//! error that comes so late is an `<Error>` document behind the 200, as AWS does; clients look for
//! it. Work goes on in a task of its own until it ends or the client goes away.

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

/// When an answer stops waiting for its true status, and how often it then shows life.
#[derive(Clone, Copy)]
struct Pace {
    /// How long the true status is waited for.
    patience: Duration,
    /// How often a blank is sent after that.
    blank_every: Duration,
}

/// Clients and load balancers give up after 30 s without a byte, or later.
const PACE: Pace = Pace { patience: Duration::from_secs(5), blank_every: Duration::from_secs(5) };

type Work = AbortOnDropHandle<Result<Done, S3Error>>;

/// What long work makes.
#[derive(Default)]
pub struct Done {
    /// The answer's document.
    pub document: String,
    /// Headers that are sent if it comes before the answer has begun.
    pub headers: HeaderMap,
}

impl From<String> for Done {
    fn from(document: String) -> Self {
        Self { document, ..Self::default() }
    }
}

/// Runs `work`, which makes a document, and answers with it.
///
/// # Errors
/// Those of `work`, when they come in time.
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

/// The next blank, or the document (without its prolog, which was sent) as the last piece.
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

    /// The whole body of an answer whose work ends with `result` only after a blank was sent.
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
    async fn a_late_error_is_a_document_behind_200() {
        let text = late(Err(S3Error::new(Code::InternalError))).await;
        assert!(text.ends_with("</Error>"), "{text:?}");
    }
}
