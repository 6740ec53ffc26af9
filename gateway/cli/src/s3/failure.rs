//! Failures of requests: their causes, when a request is sent again, and the error of the command. Pure.

use super::target::S3Target;
use super::xml::parse_error;
use crate::CliError;
use backon::ExponentialBuilder;
use http::{HeaderMap, StatusCode, header};
use std::time::Duration;

/// Longest waits before the five retries: 100, 200, 400, 800 and 1,600 ms.
pub(super) const WAITS: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(100))
    .with_max_delay(Duration::from_secs(5))
    .with_max_times(5);
/// Longest wait that a server may request; a longer one makes the failure final.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);
/// Codes of refusals that depend on the bucket, on the access key or on this host, and rarely on the object.
///
/// `AccessDenied` is one of them although an access key may be restricted to prefixes: a copy is of one
/// prefix, so that rights usually cover all of it or nothing, and each further object would be refused too.
/// The error names the object, and a copy of the permitted prefix alone succeeds.
const CODES_OF_ALL_OBJECTS: [&str; 10] = [
    "AccessDenied",
    "AuthorizationHeaderMalformed",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "NoSuchBucket",
    "PermanentRedirect",
    "QuotaExceeded",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
];

/// A request that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum S3Failure {
    /// The request cannot be sent as it is.
    Invalid(String),
    /// No connection could be made: the server received nothing.
    NoConnection(String),
    /// The connection broke, or the time limit passed: the server may have acted on the request.
    Broken(String),
    /// The body of an object broke off after the head of the response, and could not be continued.
    CutBody(String),
    /// The response is not what S3 sends.
    InvalidResponse(String),
    /// The received bytes do not match this value of the object.
    Corrupt(&'static str),
    /// Another object took the name while the command read the object.
    Replaced,
    /// The server answered with an error.
    Refused(S3Refusal),
}

/// An error response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct S3Refusal {
    pub(super) status: StatusCode,
    /// S3 code such as `NoSuchKey`; empty if the response has no document.
    pub(super) code: String,
    pub(super) message: String,
    /// Wait that the server requests.
    pub(super) retry_after: Option<Duration>,
}

/// Idempotency of a request: the safety of sending it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Idempotency {
    /// A second execution does no harm.
    Idempotent,
    /// A second execution creates something twice.
    NotIdempotent,
}

impl S3Failure {
    /// Returns the failure that an error response reports.
    pub(super) fn of_response(status: StatusCode, headers: &HeaderMap, document: &[u8]) -> Self {
        let (code, message) = parse_error(document).unwrap_or_default();
        let seconds = || headers.get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok();
        let retry_after = seconds().map(Duration::from_secs);
        Self::Refused(S3Refusal { status, code, message, retry_after })
    }

    /// Returns the failure that a document after a 200 reports, if it is an error document.
    pub(super) fn of_late_error(document: &[u8]) -> Option<Self> {
        let (code, message) = parse_error(document)?;
        let status = match code.as_str() {
            "InternalError" => StatusCode::INTERNAL_SERVER_ERROR,
            "SlowDown" | "ServiceUnavailable" => StatusCode::SERVICE_UNAVAILABLE,
            "AccessDenied" | "QuotaExceeded" => StatusCode::FORBIDDEN,
            "NoSuchKey" | "NoSuchBucket" | "NoSuchUpload" => StatusCode::NOT_FOUND,
            _ => StatusCode::BAD_REQUEST,
        };
        Some(Self::Refused(S3Refusal { status, code, message, retry_after: None }))
    }

    /// Returns [`S3Failure::Replaced`] for an unmet condition of a request that requires the ETag of an
    /// object.
    pub(super) fn of_condition(self) -> Self {
        match self {
            Self::Refused(refusal) if refusal.status == StatusCode::PRECONDITION_FAILED => Self::Replaced,
            other => other,
        }
    }

    /// True if requests for other objects of the bucket would fail in the same way.
    pub(super) fn concerns_all_objects(&self) -> bool {
        match self {
            Self::NoConnection(_) | Self::Broken(_) => true,
            Self::Refused(refusal) => CODES_OF_ALL_OBJECTS.contains(&refusal.code.as_str()),
            Self::Invalid(_)
            | Self::CutBody(_)
            | Self::InvalidResponse(_)
            | Self::Corrupt(_)
            | Self::Replaced => false,
        }
    }

    /// Returns the wait before the next try, or `None` if the failure is final. `longest` is the next item of
    /// [`WAITS`], `chance` a random number from 0 to 1.
    pub(super) fn wait(
        &self,
        idempotency: Idempotency,
        longest: Option<Duration>,
        chance: f64,
    ) -> Option<Duration> {
        let (may_repeat, requested) = match self {
            Self::Invalid(_) | Self::InvalidResponse(_) | Self::Corrupt(_) | Self::Replaced => (false, None),
            Self::NoConnection(_) => (true, None),
            Self::Broken(_) | Self::CutBody(_) => (idempotency == Idempotency::Idempotent, None),
            Self::Refused(refusal) => (refusal.is_transient(idempotency), refusal.retry_after),
        };
        let requested = requested.unwrap_or_default();
        let longest = longest.filter(|_| may_repeat && requested <= RETRY_AFTER_MAX)?;
        Some(requested + longest.mul_f64(chance.clamp(0.0, 1.0)))
    }

    /// Returns the error of the command. `subject` is the bucket or object.
    pub(super) fn error(self, target: &S3Target, subject: &str) -> CliError {
        let endpoint = &target.endpoint;
        match self {
            Self::Invalid(problem) => CliError::Usage(format!("{subject}: {problem}")),
            Self::InvalidResponse(problem) => CliError::Failed(format!(
                "{subject}: unexpected response from {endpoint} ({problem}): check that it is an S3 API"
            )),
            Self::CutBody(problem) => CliError::Failed(format!(
                "{subject}: the body from {endpoint} broke off before its end ({problem}): try again"
            )),
            Self::Corrupt(value) => CliError::Failed(format!(
                "{subject}: the bytes from {endpoint} do not match the {value} of the object"
            )),
            Self::Replaced => {
                CliError::Failed(format!("{subject}: the object was replaced while it was read"))
            }
            Self::NoConnection(problem) | Self::Broken(problem) => {
                let advice = match problem.contains("certificate") {
                    true => "Name the authority of its certificate with --ca-file or AWS_CA_BUNDLE",
                    false => "Check that the server runs and that this is its S3 address",
                };
                CliError::Unreachable(format!("cannot reach {endpoint}: {problem}. {advice}"))
            }
            Self::Refused(refusal) => refusal.error(target, subject),
        }
    }
}

impl S3Refusal {
    fn is_transient(&self, idempotency: Idempotency) -> bool {
        match self.status {
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => true,
            StatusCode::INTERNAL_SERVER_ERROR | StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => {
                idempotency == Idempotency::Idempotent
            }
            _ => self.code == "RequestTimeout" && idempotency == Idempotency::Idempotent,
        }
    }

    fn error(&self, target: &S3Target, subject: &str) -> CliError {
        let (key, source, endpoint) = (&target.key.access_key, &target.key.source, &target.endpoint);
        let answer = match (self.code.as_str(), self.message.as_str()) {
            ("", _) => format!("the server answered {}", self.status),
            (code, "") => code.to_owned(),
            (code, message) => format!("{message} ({code})"),
        };
        match self.code.as_str() {
            "NoSuchBucket" => {
                CliError::Failed(format!("{subject}: no such bucket; `mlgw ls` lists the buckets"))
            }
            "NoSuchKey" => CliError::Failed(format!("{subject}: no such object; `mlgw ls` lists the keys")),
            "InvalidAccessKeyId" => CliError::Refused(format!(
                "{endpoint} has no access key {key}, which comes from {source}: set AWS_ACCESS_KEY_ID and \
                 AWS_SECRET_ACCESS_KEY to a key of this server"
            )),
            "SignatureDoesNotMatch" => CliError::Refused(format!(
                "the secret of access key {key}, which comes from {source}, is not the one that {endpoint} \
                 has for it"
            )),
            "AccessDenied" => CliError::Refused(format!(
                "{subject}: access denied to key {key}, which comes from {source}: `mlgw access key show` \
                 prints its rights"
            )),
            "RequestTimeTooSkewed" => CliError::Refused(format!("{answer}: set the clock of this host")),
            _ if self.status.is_server_error() || self.status == StatusCode::NOT_FOUND => {
                CliError::Failed(format!("{subject}: {answer}"))
            }
            _ => CliError::Refused(format!("{subject}: {answer}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Idempotency, S3Failure, WAITS};
    use crate::s3::target::S3Target;
    use backon::BackoffBuilder as _;
    use http::{HeaderMap, HeaderValue, StatusCode, header};
    use std::time::Duration;

    const LONGEST: Option<Duration> = Some(Duration::from_millis(100));

    fn refused(status: u16, code: &str) -> S3Failure {
        let document = format!("<Error><Code>{code}</Code><Message>Words.</Message></Error>");
        let status = StatusCode::from_u16(status).unwrap();
        S3Failure::of_response(status, &HeaderMap::new(), document.as_bytes())
    }

    #[test]
    fn a_failure_has_an_exit_status_and_the_next_step() {
        for (failure, status, words) in [
            (refused(404, "NoSuchBucket"), 1, "s3://b/k: no such bucket; `mlgw ls`"),
            (refused(404, "NoSuchKey"), 1, "s3://b/k: no such object"),
            (refused(404, "NoSuchUpload"), 1, "Words. (NoSuchUpload)"),
            (refused(500, "InternalError"), 1, "Words. (InternalError)"),
            (refused(403, "InvalidAccessKeyId"), 4, "has no access key AK, which comes from AWS_ACCESS"),
            (refused(403, "SignatureDoesNotMatch"), 4, "the secret of access key AK"),
            (refused(403, "AccessDenied"), 4, "`mlgw access key show`"),
            (refused(403, "QuotaExceeded"), 4, "Words. (QuotaExceeded)"),
            (refused(400, ""), 4, "the server answered 400 Bad Request"),
            (S3Failure::Invalid("not a URL".into()), 2, "not a URL"),
            (S3Failure::InvalidResponse("html".into()), 1, "check that it is an S3 API"),
            (
                S3Failure::CutBody("reset".into()),
                1,
                "s3://b/k: the body from http://h:1 broke off before its",
            ),
            (S3Failure::Corrupt("ETag"), 1, "s3://b/k: the bytes from http://h:1 do not match the ETag of"),
            (S3Failure::Replaced, 1, "s3://b/k: the object was replaced"),
            (S3Failure::NoConnection("refused".into()), 3, "cannot reach http://h:1: refused. Check"),
            (S3Failure::Broken("invalid peer certificate".into()), 3, "--ca-file"),
        ] {
            let error = failure.error(&S3Target::for_test("http://h:1"), "s3://b/k");
            assert!(error.status() == status && error.to_string().contains(words), "{words}: {error}");
            assert!(!error.to_string().contains("hush"), "{error}");
        }
    }

    #[test]
    fn transient_failures_are_repeated_with_longer_waits_up_to_a_bound() {
        let slow_down = refused(503, "SlowDown");
        let waits =
            WAITS.build().map(|longest| slow_down.wait(Idempotency::NotIdempotent, Some(longest), 1.0));
        let waits: Vec<_> = waits.map(|wait| wait.unwrap().as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600]);
        assert_eq!(slow_down.wait(Idempotency::Idempotent, None, 1.0), None);
        for final_one in [refused(404, "NoSuchKey"), refused(403, "AccessDenied"), refused(412, "")] {
            assert_eq!(final_one.wait(Idempotency::Idempotent, LONGEST, 0.5), None);
        }
        for unknown in [S3Failure::Broken("reset".into()), refused(500, "InternalError")] {
            assert!(unknown.wait(Idempotency::Idempotent, LONGEST, 0.5).is_some());
            assert_eq!(unknown.wait(Idempotency::NotIdempotent, LONGEST, 0.5), None);
        }
    }

    #[test]
    fn a_requested_wait_is_honored_unless_it_is_long() {
        let throttled = |seconds: &'static str| {
            let headers = HeaderMap::from_iter([(header::RETRY_AFTER, HeaderValue::from_static(seconds))]);
            S3Failure::of_response(StatusCode::SERVICE_UNAVAILABLE, &headers, b"")
        };
        assert_eq!(throttled("2").wait(Idempotency::Idempotent, LONGEST, 0.0), Some(Duration::from_secs(2)));
        assert_eq!(throttled("60").wait(Idempotency::Idempotent, LONGEST, 0.0), None);
    }

    #[test]
    fn a_failure_of_one_object_does_not_concern_the_others() {
        for failure in [
            refused(403, "AccessDenied"),
            refused(400, "AuthorizationHeaderMalformed"),
            refused(400, "ExpiredToken"),
            refused(403, "InvalidAccessKeyId"),
            refused(400, "InvalidToken"),
            refused(403, "QuotaExceeded"),
            refused(404, "NoSuchBucket"),
            refused(301, "PermanentRedirect"),
            S3Failure::NoConnection("refused".into()),
            S3Failure::Broken("reset".into()),
        ] {
            assert!(failure.concerns_all_objects(), "{failure:?}");
        }
        for failure in [
            refused(404, "NoSuchKey"),
            refused(403, "InvalidObjectState"),
            refused(400, "KeyTooLongError"),
            refused(500, "InternalError"),
            refused(503, "SlowDown"),
            S3Failure::Invalid("a header".into()),
            S3Failure::CutBody("reset".into()),
            S3Failure::Corrupt("ETag"),
            S3Failure::Replaced,
        ] {
            assert!(!failure.concerns_all_objects(), "{failure:?}");
        }
    }

    #[test]
    fn an_unmet_condition_reports_another_object() {
        assert_eq!(refused(412, "PreconditionFailed").of_condition(), S3Failure::Replaced);
        assert_eq!(refused(404, "NoSuchKey").of_condition(), refused(404, "NoSuchKey"));
    }

    #[test]
    fn an_error_may_follow_a_200() {
        let late = S3Failure::of_late_error(b"\n<Error><Code>SlowDown</Code></Error>").unwrap();
        assert!(late.wait(Idempotency::NotIdempotent, LONGEST, 0.0).is_some());
        assert_eq!(S3Failure::of_late_error(b"<CopyObjectResult/>"), None);
    }
}
