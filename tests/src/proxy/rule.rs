//! A rule as a test writes it or as it comes in JSON: a fault, and the conditions for a request to receive
//! it.

use std::time::Duration;

use serde::Deserialize;

use super::head::MessageHead;
use super::units;

/// A fault to inject.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// A response with this status and an S3 error with this code; the request is not sent to the origin.
    Status {
        /// The status, such as 503.
        status: u16,
        /// The S3 error code, such as `SlowDown`.
        code: String,
    },
    /// The request is forwarded with this additional delay.
    Delay {
        /// The delay; in JSON a string such as `"20ms"`.
        #[serde(deserialize_with = "units::duration_in_json")]
        by: Duration,
    },
    /// The connection to the client is closed after the origin has received the whole request and has
    /// responded.
    CutBeforeAnswer,
    /// The connection closes after this many bytes of the request's body were passed on. A shorter body
    /// passes.
    CutRequest {
        /// Bytes of payload.
        after: u64,
    },
    /// The connection closes after this many bytes of the response's body were passed on. A shorter body
    /// passes.
    CutAnswer {
        /// Bytes of payload.
        after: u64,
    },
    /// The response is truncated to this many bytes and its framing agrees: an error that HTTP does not
    /// reveal.
    Truncate {
        /// Bytes of payload.
        after: u64,
    },
    /// The lowest bit of one byte of the response's body is flipped. A shorter body passes.
    Corrupt {
        /// Position of the byte in the payload.
        at: u64,
    },
    /// A header of the response is set to this value, whether it was present or not.
    Header {
        /// The name, such as `etag`.
        name: String,
        /// The complete value, including the quotes of an `ETag`.
        value: String,
    },
    /// The response pauses after this many bytes of its body were passed on. A shorter body passes.
    Stall {
        /// Bytes of payload.
        after: u64,
        /// The pause; in JSON a string such as `"2s"`.
        #[serde(deserialize_with = "units::duration_in_json")]
        pause: Duration,
    },
    /// The connection closes immediately. A rule without conditions on the request applies when the
    /// connection is accepted, before anything is read; any other applies after the request's head was read,
    /// before anything is forwarded.
    Refuse,
}

/// A fault and the requests to which it applies: those that meet every condition given here.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The method, such as `GET`.
    #[serde(default)]
    pub method: Option<String>,
    /// A substring of the path, as it was sent.
    #[serde(default)]
    pub path: Option<String>,
    /// A substring of the query, as it was sent; a request without a query has an empty one.
    #[serde(default)]
    pub query: Option<String>,
    /// The name of a header that the request must have.
    #[serde(default)]
    pub header: Option<String>,
    /// Applies only to the n-th request that matches, from 1.
    #[serde(default)]
    pub nth: Option<u64>,
    /// Maximum number of applications.
    #[serde(default)]
    pub times: Option<u64>,
    /// Probability of each application, from 0 to 1.
    #[serde(default)]
    pub probability: Option<f64>,
    /// Seed of all random decisions of this rule.
    #[serde(default)]
    pub seed: u64,
    /// The fault to inject.
    pub fault: Fault,
}

impl Rule {
    /// A rule for every request.
    #[must_use]
    pub fn new(fault: Fault) -> Self {
        let (method, path, query, header) = (None, None, None, None);
        Self { method, path, query, header, nth: None, times: None, probability: None, seed: 0, fault }
    }

    /// Restricts the rule to this method.
    #[must_use]
    pub fn method(mut self, method: &str) -> Self {
        self.method = Some(method.to_owned());
        self
    }

    /// Restricts the rule to paths that contain `part`.
    #[must_use]
    pub fn path(mut self, part: &str) -> Self {
        self.path = Some(part.to_owned());
        self
    }

    /// Restricts the rule to queries that contain `part`.
    #[must_use]
    pub fn query(mut self, part: &str) -> Self {
        self.query = Some(part.to_owned());
        self
    }

    /// Restricts the rule to requests with this header.
    #[must_use]
    pub fn header(mut self, name: &str) -> Self {
        self.header = Some(name.to_owned());
        self
    }

    /// Restricts the rule to the n-th matching request, from 1.
    #[must_use]
    pub fn nth(mut self, nth: u64) -> Self {
        self.nth = Some(nth);
        self
    }

    /// Sets the maximum number of applications.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = Some(times);
        self
    }

    /// Sets the probability of each application, from 0 to 1.
    #[must_use]
    pub fn probability(mut self, probability: f64, seed: u64) -> Self {
        (self.probability, self.seed) = (Some(probability), seed);
        self
    }

    /// # Errors
    /// The rule could never fire, or has a probability or a status outside its range.
    pub(super) fn check(&self) -> Result<(), RuleError> {
        if self.nth == Some(0) {
            return Err(RuleError::Nth);
        }
        if self.probability.is_some_and(|probability| !(0.0..=1.0).contains(&probability)) {
            return Err(RuleError::Probability);
        }
        match &self.fault {
            Fault::Status { status, .. } if !(200..=599).contains(status) => Err(RuleError::Status(*status)),
            _ => Ok(()),
        }
    }

    fn has_request_conditions(&self) -> bool {
        [&self.method, &self.path, &self.query, &self.header].into_iter().any(Option::is_some)
    }

    pub(super) fn is_for_connections(&self) -> bool {
        self.fault == Fault::Refuse && !self.has_request_conditions()
    }

    pub(super) fn matches(&self, request: &MessageHead) -> bool {
        let target = request.target();
        let (path, query) = target.split_once('?').unwrap_or((&*target, ""));
        let meets =
            |condition: &Option<String>, is: &dyn Fn(&str) -> bool| condition.as_deref().is_none_or(is);
        meets(&self.method, &|method| request.method() == method)
            && meets(&self.path, &|part| path.contains(part))
            && meets(&self.query, &|part| query.contains(part))
            && meets(&self.header, &|name| request.value(name).is_some())
    }
}

/// The reason for which a list of rules was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// `nth` is 0.
    #[error("nth counts from 1")]
    Nth,
    /// `probability` is not from 0 to 1.
    #[error("a probability is from 0 to 1")]
    Probability,
    /// The status is interim, so that another response would have to follow, or is not a status.
    #[error("{0} is not a final status: expected 200 to 599")]
    Status(u16),
}
