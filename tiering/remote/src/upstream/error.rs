//! Why an upstream did not do what it was asked to, by what is to be done about it.
//!
//! An error has what the store said, its name for the fault included, and never what it was asked with:
//! requests carry signatures and tokens, so neither they nor headers are ever shown.

use std::io;

use mlgw_common::ids::SegmentId;
use opendal::ErrorKind;

use super::metrics::Outcome;
use crate::origin::OriginError;

/// How an error of the way to a store begins: everything that another try may mend.
pub(super) const UNREACHABLE: &str = "unreachable: ";
/// How opendal begins what it says when it finds no credentials.
const NO_CREDENTIALS: [&str; 2] = ["loading credential", "signing http request"];
/// How opendal says that an answer was shorter than what was asked for, when HTTP saw nothing wrong with it.
const TOO_LITTLE: &str = "reader got too little data";
/// The most of a store's words that is shown.
const SAID_CHARS_MAX: usize = 400;

/// Why an upstream did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// A setting that cannot be: change it.
    #[error("upstream.{upstream}.{setting} {fault}")]
    Setting {
        /// The upstream.
        upstream: String,
        /// The setting.
        setting: &'static str,
        /// What is wrong with it, and what to do.
        fault: String,
    },
    /// The segment is not there: look its record up again.
    #[error("segment {segment} is not in upstream {upstream}")]
    Gone {
        /// The upstream.
        upstream: String,
        /// The segment.
        segment: SegmentId,
    },
    /// No answer, or the store failed or had too much to do, and that after several tries: try again later.
    #[error("upstream {upstream} is unreachable: {said}")]
    Unreachable {
        /// The upstream.
        upstream: String,
        /// What came instead of an answer.
        said: String,
    },
    /// The store refuses: mend credentials, permissions or the name of the bucket; `mlgw upstream check` says
    /// which.
    #[error("upstream {upstream} refuses: {said}; see `mlgw upstream check {upstream}`")]
    Refused {
        /// The upstream.
        upstream: String,
        /// What it said.
        said: String,
    },
    /// An answer that makes no sense of what was asked: a mistake here or there.
    #[error("upstream {upstream} gave an unexpected answer: {said}")]
    Answer {
        /// The upstream.
        upstream: String,
        /// What it said.
        said: String,
    },
    /// Fewer bytes than are stored there: the object was cut, another copy is needed.
    #[error(
        "segment {segment} in upstream {upstream} ends early: there are not {wanted} bytes from {offset}"
    )]
    Short {
        /// The upstream.
        upstream: String,
        /// The segment.
        segment: SegmentId,
        /// Where in the object.
        offset: u64,
        /// Bytes that were asked for.
        wanted: u64,
    },
    /// Other bytes than were stored there: another copy is needed.
    #[error("segment {segment} in upstream {upstream} is not what was stored: {fault}")]
    Corrupt {
        /// The upstream.
        upstream: String,
        /// The segment.
        segment: SegmentId,
        /// What is wrong, and where.
        fault: String,
    },
    /// The prefix does not carry this server's mark: nothing is deleted there.
    #[error("nothing is deleted in upstream {upstream}: {advice}")]
    NotOwner {
        /// The upstream.
        upstream: String,
        /// What is wrong with the mark, and what to do.
        advice: String,
    },
    /// The file that was to be stored, or who asked to store it, ended it.
    #[error("segment {segment} was not sent to upstream {upstream}: {source}")]
    Source {
        /// The upstream.
        upstream: String,
        /// The segment.
        segment: SegmentId,
        /// What it said.
        source: io::Error,
    },
}

impl UpstreamError {
    /// Whether the same may succeed later without anything being changed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }
}

/// What an error of opendal means, whatever it is about.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Gone,
    Unreachable(String),
    Refused(String),
    /// The object ends before the range does.
    Short,
    Answer(String),
    /// The condition of the request does not hold.
    Condition,
}

impl Fault {
    /// What `error` means. What a store without HTTP says unasked is that its disk failed.
    pub(super) fn of(error: &opendal::Error, has_http: bool) -> Self {
        let said = said(error);
        match error.kind() {
            ErrorKind::NotFound if no_bucket(&said) => Self::Refused(said),
            ErrorKind::NotFound => Self::Gone,
            ErrorKind::RangeNotSatisfied => Self::Short,
            ErrorKind::ConditionNotMatch => Self::Condition,
            ErrorKind::Unexpected if said.contains(TOO_LITTLE) => Self::Short,
            ErrorKind::RateLimited => Self::Unreachable(said),
            ErrorKind::PermissionDenied | ErrorKind::ConfigInvalid => Self::Refused(said),
            _ if NO_CREDENTIALS.iter().any(|words| said.starts_with(words)) => Self::Refused(said),
            _ => match said.strip_prefix(UNREACHABLE) {
                Some(said) => Self::Unreachable(said.to_owned()),
                None if error.is_temporary() || !has_http => Self::Unreachable(said),
                None => Self::Answer(said),
            },
        }
    }

    /// What an error of the client for S3 means.
    pub(super) fn of_s3(error: &OriginError) -> Self {
        match error {
            OriginError::NoSuchKey => Self::Gone,
            OriginError::NoSuchBucket | OriginError::Denied(_) => Self::Refused(error.to_string()),
            OriginError::OutOfRange(_) => Self::Short,
            error if error.is_transient() => Self::Unreachable(error.to_string()),
            error => Self::Answer(error.to_string()),
        }
    }

    pub(super) fn outcome(&self) -> Outcome {
        match self {
            Self::Gone => Outcome::Missing,
            Self::Unreachable(_) => Outcome::Failed,
            Self::Refused(_) | Self::Short | Self::Answer(_) | Self::Condition => Outcome::Refused,
        }
    }

    /// In words.
    pub(super) fn words(self) -> String {
        match self {
            Self::Gone => "there is no such object".to_owned(),
            Self::Short => "the object ends before the range does".to_owned(),
            Self::Condition => "the condition of the request does not hold".to_owned(),
            Self::Unreachable(said) | Self::Refused(said) | Self::Answer(said) => said,
        }
    }

    /// Of a request about the mark of the prefix.
    pub(super) fn about_mark(self, upstream: &str) -> UpstreamError {
        // No segment is meant: 0 is none.
        match self {
            Self::Gone => Self::Answer(Self::Gone.words()).about(upstream, SegmentId(0)),
            fault => fault.about(upstream, SegmentId(0)),
        }
    }

    /// Of a request about `segment`.
    pub(super) fn about(self, upstream: &str, segment: SegmentId) -> UpstreamError {
        let upstream = upstream.to_owned();
        match self {
            Self::Gone => UpstreamError::Gone { upstream, segment },
            Self::Unreachable(said) => UpstreamError::Unreachable { upstream, said },
            Self::Refused(said) => UpstreamError::Refused { upstream, said },
            Self::Short | Self::Answer(_) | Self::Condition => {
                UpstreamError::Answer { upstream, said: self.words() }
            }
        }
    }
}

/// Some stores answer "not found" when it is the bucket that is not there; no object of it is gone.
fn no_bucket(said: &str) -> bool {
    ["NoSuchBucket", "ContainerNotFound", "bucket does not exist"].iter().any(|words| said.contains(words))
}

/// What opendal says of it, without what surrounds it: the context of an error has addresses and headers.
fn said(error: &opendal::Error) -> String {
    // An answer to HEAD has no words.
    let mut said = match error.message() {
        "" => error.kind().to_string(),
        message => message.to_owned(),
    };
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        said = format!("{said}: {error}");
        cause = error.source();
    }
    shortened(&said)
}

/// One line, and not too long.
pub(super) fn shortened(text: &str) -> String {
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match one_line.char_indices().nth(SAID_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &one_line[..end]),
        None => one_line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(kind: ErrorKind, message: &str) -> Fault {
        Fault::of(&opendal::Error::new(kind, message), true)
    }

    #[test]
    fn faults_are_told_apart_by_what_is_to_be_done() {
        use ErrorKind::{ConfigInvalid, NotFound, PermissionDenied, RateLimited, Unexpected};
        assert_eq!(fault(NotFound, "S3Error { code: \"NoSuchKey\" }"), Fault::Gone);
        let refused = |fault| matches!(fault, Fault::Refused(_));
        assert!(refused(fault(NotFound, "code: \"ContainerNotFound\"")), "the segment may well be there");
        assert!(
            refused(fault(PermissionDenied, "AccessDenied")) && refused(fault(ConfigInvalid, "NoSuchBucket"))
        );
        assert!(refused(fault(Unexpected, "loading credential to sign http request")));
        assert_eq!(fault(Unexpected, "unreachable: no route"), Fault::Unreachable("no route".to_owned()));
        assert_eq!(fault(RateLimited, "SlowDown"), Fault::Unreachable("SlowDown".to_owned()));
        assert_eq!(fault(Unexpected, "400"), Fault::Answer("400".to_owned()));
        let disk = Fault::of(&opendal::Error::new(Unexpected, "input/output error"), false);
        assert_eq!(disk, Fault::Unreachable("input/output error".to_owned()));
    }

    #[test]
    fn no_context_of_an_error_is_shown() {
        let error = opendal::Error::new(ErrorKind::Unexpected, "odd\n answer")
            .with_context("response", "authorization: hush")
            .set_source(io::Error::other("deep down"));
        assert_eq!(said(&error), "odd answer: deep down");
        assert_eq!(said(&opendal::Error::new(ErrorKind::PermissionDenied, "")), "PermissionDenied");
        assert_eq!(shortened(&"é".repeat(500)).chars().count(), SAID_CHARS_MAX + 1);
    }
}
