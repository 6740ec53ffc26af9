//! Credential of a SigV4 signature: `KEY/20130524/us-east-1/s3/aws4_request`.

use super::AuthRules;
use super::time::AmzDate;
use memchr::memrchr;
use mlgw_wire::error::{Code, S3Error};

const TERMINAL: &str = "aws4_request";

/// A parsed credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CredentialScope<'a> {
    /// The whole credential, under which signing keys are cached.
    pub(super) credential: &'a str,
    pub(super) access_key: &'a str,
    /// Text after the access key, which is the signed part.
    pub(super) text: &'a str,
    pub(super) day: &'a str,
    pub(super) region: &'a str,
    pub(super) service: &'a str,
}

/// Reason why a credential is refused, displayed in AWS's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ScopeError {
    #[error("the Credential is mal-formed; expecting \"<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request\".")]
    Malformed,
    #[error("incorrect date format \"{0}\". This date in the credential must be in the format \"yyyyMMdd\".")]
    Day(String),
    #[error("the region '{wrong}' is wrong; expecting '{expected}'")]
    Region { wrong: String, expected: String },
    #[error("incorrect service \"{wrong}\". This endpoint belongs to \"{expected}\".")]
    Service { wrong: String, expected: &'static str },
    #[error("incorrect terminal \"{0}\". This endpoint uses \"aws4_request\".")]
    Terminal(String),
}

impl<'a> CredentialScope<'a> {
    /// Parses `credential` and checks it against `rules`. The access key may contain slashes.
    pub(super) fn parse(credential: &'a str, rules: &AuthRules) -> Result<Self, ScopeError> {
        let mut access_key = credential;
        let mut last = || {
            let (before, part) = split_last(access_key).ok_or(ScopeError::Malformed)?;
            access_key = before;
            Ok(part)
        };
        let (terminal, service, region, day) = (last()?, last()?, last()?, last()?);
        if access_key.is_empty() {
            return Err(ScopeError::Malformed);
        }
        if day.len() != 8 || !day.bytes().all(|b| b.is_ascii_digit()) {
            return Err(ScopeError::Day(day.to_owned()));
        }
        if let Some(expected) = rules.region.as_ref().filter(|expected| *expected != region) {
            return Err(ScopeError::Region { wrong: region.to_owned(), expected: expected.clone() });
        }
        if service != rules.service {
            return Err(ScopeError::Service { wrong: service.to_owned(), expected: rules.service });
        }
        if terminal != TERMINAL {
            return Err(ScopeError::Terminal(terminal.to_owned()));
        }
        let text = &credential[access_key.len() + 1..];
        Ok(Self { credential, access_key, text, day, region, service })
    }

    /// True if the scope is for the day on which the request was signed.
    pub(super) fn has_day_of(&self, date: &AmzDate) -> bool {
        self.day == date.day()
    }
}

/// Returns the text before and after the last slash, or `None` without a slash or without text after it.
fn split_last(text: &str) -> Option<(&str, &str)> {
    let at = memrchr(b'/', text.as_bytes())?;
    Some((&text[..at], &text[at + 1..])).filter(|(_, part)| !part.is_empty())
}

impl ScopeError {
    fn into_s3_error(self, code: Code, prefix: &str) -> S3Error {
        let error = S3Error::new(code).message(format!("{prefix}{self}"));
        match self {
            // Clients retry with the region in this field.
            Self::Region { expected, .. } => error.field("Region", expected),
            Self::Malformed | Self::Day(_) | Self::Service { .. } | Self::Terminal(_) => error,
        }
    }

    pub(super) fn in_header(self) -> S3Error {
        self.into_s3_error(Code::AuthorizationHeaderMalformed, "The authorization header is malformed; ")
    }

    pub(super) fn in_query(self) -> S3Error {
        self.into_s3_error(
            Code::AuthorizationQueryParametersError,
            "Error parsing the X-Amz-Credential parameter; ",
        )
    }

    pub(super) fn in_form(self, credential: &str) -> S3Error {
        S3Error::invalid_argument(self.to_string(), "x-amz-credential", credential)
    }
}

#[cfg(test)]
mod tests {
    use super::{CredentialScope, ScopeError};
    use crate::AuthRules;
    use mlgw_wire::error::Code;

    #[test]
    fn a_credential_is_read_from_its_end() {
        let rules = AuthRules::new("s3");
        let scope = CredentialScope::parse("A/K=/20130524/eu-north-9/s3/aws4_request", &rules).unwrap();
        assert_eq!((scope.access_key, scope.day, scope.region), ("A/K=", "20130524", "eu-north-9"));
        assert_eq!(scope.text, "20130524/eu-north-9/s3/aws4_request");
    }

    #[test]
    fn each_wrong_part_has_its_own_answer() {
        let mut rules = AuthRules::new("s3");
        rules.region = Some("us-east-1".to_owned());
        for (credential, clause) in [
            ("AK", "mal-formed"),
            ("/20130524/us-east-1/s3/aws4_request", "mal-formed"),
            ("20130524/us-east-1/s3/aws4_request", "mal-formed"),
            ("AK//us-east-1/s3/aws4_request", "mal-formed"),
            ("AK/20130524/us-east-1/s3/", "mal-formed"),
            ("AK/2013-5-4/us-east-1/s3/aws4_request", "incorrect date format \"2013-5-4\""),
            ("AK/20130524/us-west-1/s3/aws4_request", "'us-west-1' is wrong; expecting 'us-east-1'"),
            ("AK/20130524/us-east-1/ec2/aws4_request", "incorrect service \"ec2\""),
            ("AK/20130524/us-east-1/s3/aws5_request", "incorrect terminal \"aws5_request\""),
        ] {
            let error = CredentialScope::parse(credential, &rules).unwrap_err();
            assert!(error.to_string().contains(clause), "{credential}: {error}");
        }
    }

    #[test]
    fn a_wrong_region_names_the_right_one_where_clients_look() {
        let wrong = ScopeError::Region { wrong: "a".to_owned(), expected: "b".to_owned() };
        let error = wrong.in_header();
        assert_eq!(error.code(), Code::AuthorizationHeaderMalformed);
        assert_eq!(error.get("Region"), Some("b"));
    }
}
