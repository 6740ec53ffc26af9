//! Answers that take long: white space until the result is known.
//!
//! A copy of gigabytes takes longer than clients wait for a first byte. After a few seconds the
//! status is sent as 200 with the XML prolog, then a blank now and then, then the document. An
//! error that comes so late is an `<Error>` document behind the 200, as AWS does; clients look for
//! it. Work goes on in a task of its own until it ends or the client goes away.

use super::error::S3Error;
use super::response::{BodyError, ResponseBody, S3Response, S3Result, empty, xml};
use super::xml::PROLOG;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderValue, StatusCode, header};
use std::future::Future;
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};
use tokio_util::task::AbortOnDropHandle;

/// How long the true status is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a blank is sent after that. Load balancers give up after 30 s or more.
const BLANK_EVERY: Duration = Duration::from_secs(5);

type Work = AbortOnDropHandle<Result<String, S3Error>>;

/// Runs `work`, which makes a document, and answers with it.
///
/// # Errors
/// Those of `work`, when they come in time.
pub async fn answer<F>(work: F) -> S3Result
where
    F: Future<Output = Result<String, S3Error>> + Send + 'static,
{
    let mut work = AbortOnDropHandle::new(tokio::spawn(work));
    match timeout(PATIENCE, &mut work).await {
        Ok(joined) => Ok(xml(outcome(joined)?)),
        Err(_) => Ok(kept_alive(work)),
    }
}

fn outcome(joined: Result<Result<String, S3Error>, tokio::task::JoinError>) -> Result<String, S3Error> {
    joined.unwrap_or_else(|error| {
        tracing::error!(%error, "an operation came to grief");
        Err(S3Error::new(super::error::Code::InternalError))
    })
}

fn kept_alive(work: Work) -> S3Response {
    let mut blanks = interval(BLANK_EVERY);
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
            let document = outcome(joined).unwrap_or_else(|error| error.to_xml(false, "", ""));
            let rest = document.strip_prefix(PROLOG).unwrap_or(&document).to_owned();
            (Ok(Bytes::from(rest)), None)
        }
        _ = blanks.tick() => (Ok(Bytes::from_static(b" ")), Some((work, blanks))),
    }
}

#[cfg(test)]
mod tests {
    use super::{PROLOG, answer};
    use crate::s3::error::{Code, S3Error};
    use http::StatusCode;
    use http_body_util::BodyExt;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn quick_work_answers_with_its_own_status() {
        let response = answer(async { Ok(format!("{PROLOG}<A/>")) }).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let error = answer(async { Err(S3Error::new(Code::NoSuchKey)) }).await;
        assert!(error.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn long_work_is_kept_alive_and_ends_with_one_document() {
        let response = answer(async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            Ok(format!("{PROLOG}<A/>"))
        });
        let body = response.await.unwrap().into_body().collect().await.unwrap().to_bytes();
        let text = std::str::from_utf8(&body).unwrap();
        assert!(text.starts_with(PROLOG) && text.ends_with(" <A/>"), "{text:?}");
        assert_eq!(text.matches("<?xml").count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_error_is_a_document_behind_200() {
        let response = answer(async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            Err(S3Error::new(Code::InternalError))
        });
        let response = response.await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(std::str::from_utf8(&body).unwrap().contains("<Error>"));
    }
}
