//! Acceptance of a 2xx response as proof that an operation was done. Pure except for the response that it
//! passes on.
//!
//! Invariant: the status class alone proves nothing. A page of a proxy, a 202 of a queue and an `<Error>`
//! document after a 200 are 2xx as well.

use super::xml;
use crate::origin::OriginError;
use http::{Response, StatusCode};

/// Success statuses of reads. A partial response is a success only if its Content-Range fits, which is
/// checked elsewhere.
pub(super) const READ: &[StatusCode] = &[StatusCode::OK, StatusCode::PARTIAL_CONTENT];
/// Success statuses of operations that create something.
pub(super) const WRITTEN: &[StatusCode] = &[StatusCode::OK];
/// Success statuses of operations without a document: deletes and tagging.
pub(super) const EMPTY: &[StatusCode] = &[StatusCode::OK, StatusCode::NO_CONTENT];

/// Returns the response if its status is one of `success`.
pub(super) fn check_status<B>(
    answer: Response<B>,
    success: &'static [StatusCode],
) -> Result<Response<B>, OriginError> {
    let status = answer.status();
    match (success.contains(&status), success == READ) {
        (true, _) => Ok(answer),
        (false, true) => Err(OriginError::InvalidResponse(format!("it answered a read with {status}"))),
        (false, false) => Err(OriginError::Unconfirmed(format!("it answered {status}"))),
    }
}

/// Checks that a document is empty.
pub(super) fn check_empty(document: &[u8]) -> Result<(), OriginError> {
    if document.iter().all(u8::is_ascii_whitespace) {
        return Ok(());
    }
    let (code, message) = xml::parse_error(document);
    let what = match code.is_empty() {
        true => "an unexpected document".to_owned(),
        false => format!("the error {code} {message}"),
    };
    Err(OriginError::Unconfirmed(format!("its success response contains {what}")))
}

#[cfg(test)]
mod tests {
    use super::{EMPTY, READ, WRITTEN, check_empty, check_status};
    use crate::origin::OriginError;
    use http::{Response, StatusCode};

    #[test]
    fn only_the_statuses_of_an_operation_are_its_success() {
        for (success, good) in [(READ, &[200, 206][..]), (WRITTEN, &[200]), (EMPTY, &[200, 204])] {
            for status in 200..300 {
                let answer =
                    Response::builder().status(StatusCode::from_u16(status).unwrap()).body(()).unwrap();
                let checked = check_status(answer, success);
                assert_eq!(checked.is_ok(), good.contains(&status), "{status}");
                let Err(error) = checked else { continue };
                assert!(!error.is_undone() && !error.is_transient(), "{error}");
                assert_eq!(matches!(error, OriginError::Unconfirmed(_)), success != READ, "{error}");
            }
        }
    }

    #[test]
    fn an_unexpected_document_is_not_a_success() {
        assert_eq!((check_empty(b""), check_empty(b" \r\n")), (Ok(()), Ok(())));
        for (document, says) in [
            (&b"<Error><Code>InternalError</Code><Message>m</Message></Error>"[..], "InternalError m"),
            (b"<html><body>Welcome</body></html>", "an unexpected document"),
            (b"ok", "an unexpected document"),
            (b"\xff", "an unexpected document"),
        ] {
            let Err(OriginError::Unconfirmed(why)) = check_empty(document) else { panic!("{document:?}") };
            assert!(why.contains(says), "{why}");
        }
    }
}
