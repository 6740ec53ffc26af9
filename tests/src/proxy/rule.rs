//! One rule as a test writes it or as it comes in JSON: a fault, and what a request must have to meet it.

use std::time::Duration;

use serde::Deserialize;

use super::head::Head;
use super::units;

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// An answer with this status and an S3 error of this code; the origin is not asked.
    Status {
        /// As 503.
        status: u16,
        /// As `SlowDown`.
        code: String,
    },
    /// The request is sent on so much later.
    Delay {
        /// In JSON as `"20ms"`.
        #[serde(deserialize_with = "units::duration_in_json")]
        by: Duration,
    },
    /// The origin has the whole request and has answered it; the client's connection is closed instead.
    CutBeforeAnswer,
    /// The connection closes when so many bytes of the request's body were passed on. A shorter body passes.
    CutRequest {
        /// Bytes of payload.
        after: u64,
    },
    /// The connection closes when so many bytes of the answer's body were passed on. A shorter body passes.
    CutAnswer {
        /// Bytes of payload.
        after: u64,
    },
    /// The answer has no more than so many bytes and says so itself: a lie that HTTP does not show.
    Truncate {
        /// Bytes of payload.
        after: u64,
    },
    /// The lowest bit of one byte of the answer's body is flipped. A shorter body passes.
    Corrupt {
        /// The byte's place in the payload.
        at: u64,
    },
    /// A header of the answer has this value, whatever it had or whether it was there.
    Header {
        /// As `etag`.
        name: String,
        /// All of it, with the quotes of an `ETag`.
        value: String,
    },
    /// The answer stops when so many bytes of its body were passed on, and goes on later. A shorter body
    /// passes.
    Stall {
        /// Bytes of payload.
        after: u64,
        /// In JSON as `"2s"`.
        #[serde(deserialize_with = "units::duration_in_json")]
        pause: Duration,
    },
    /// The connection closes at once: of a rule that asks for nothing in a request when it is accepted,
    /// before anything is read; of another when the request's head was read and nothing was sent on.
    Refuse,
}

/// A fault and the requests that it is for: those that have all that is asked for here.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The method, as `GET`.
    #[serde(default)]
    pub method: Option<String>,
    /// In the path, as it was sent.
    #[serde(default)]
    pub path: Option<String>,
    /// In the query, as it was sent; a request without one has an empty one.
    #[serde(default)]
    pub query: Option<String>,
    /// The name of a header that the request has.
    #[serde(default)]
    pub header: Option<String>,
    /// Only the how-manieth of the requests that match, from 1.
    #[serde(default)]
    pub nth: Option<u64>,
    /// How often at most.
    #[serde(default)]
    pub times: Option<u64>,
    /// How likely each time, from 0 to 1.
    #[serde(default)]
    pub probability: Option<f64>,
    /// Decides all chances of this rule.
    #[serde(default)]
    pub seed: u64,
    /// What happens.
    pub fault: Fault,
}

impl Rule {
    /// For every request.
    #[must_use]
    pub fn new(fault: Fault) -> Self {
        let (method, path, query, header) = (None, None, None, None);
        Self { method, path, query, header, nth: None, times: None, probability: None, seed: 0, fault }
    }

    /// Only for this method.
    #[must_use]
    pub fn method(mut self, method: &str) -> Self {
        self.method = Some(method.to_owned());
        self
    }

    /// Only where the path has this in it.
    #[must_use]
    pub fn path(mut self, part: &str) -> Self {
        self.path = Some(part.to_owned());
        self
    }

    /// Only where the query has this in it.
    #[must_use]
    pub fn query(mut self, part: &str) -> Self {
        self.query = Some(part.to_owned());
        self
    }

    /// Only with this header.
    #[must_use]
    pub fn header(mut self, name: &str) -> Self {
        self.header = Some(name.to_owned());
        self
    }

    /// Only the how-manieth that matches, from 1.
    #[must_use]
    pub fn nth(mut self, nth: u64) -> Self {
        self.nth = Some(nth);
        self
    }

    /// So often at most.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = Some(times);
        self
    }

    /// So likely each time, from 0 to 1.
    #[must_use]
    pub fn probability(mut self, probability: f64, seed: u64) -> Self {
        (self.probability, self.seed) = (Some(probability), seed);
        self
    }

    /// # Errors
    /// It could never fire, or not as it says.
    pub(super) fn check(&self) -> Result<(), WrongRule> {
        if self.nth == Some(0) {
            return Err(WrongRule::Nth);
        }
        if self.probability.is_some_and(|probability| !(0.0..=1.0).contains(&probability)) {
            return Err(WrongRule::Probability);
        }
        match &self.fault {
            Fault::Status { status, .. } if !(200..=599).contains(status) => Err(WrongRule::Status(*status)),
            _ => Ok(()),
        }
    }

    fn asks_of_a_request(&self) -> bool {
        [&self.method, &self.path, &self.query, &self.header].into_iter().any(Option::is_some)
    }

    pub(super) fn is_for_connections(&self) -> bool {
        self.fault == Fault::Refuse && !self.asks_of_a_request()
    }

    pub(super) fn matches(&self, request: &Head) -> bool {
        let target = request.target();
        let (path, query) = target.split_once('?').unwrap_or((&*target, ""));
        let is_or_has = |asked: &Option<String>, is: &dyn Fn(&str) -> bool| asked.as_deref().is_none_or(is);
        is_or_has(&self.method, &|method| request.method() == method)
            && is_or_has(&self.path, &|part| path.contains(part))
            && is_or_has(&self.query, &|part| query.contains(part))
            && is_or_has(&self.header, &|name| request.value(name).is_some())
    }
}

/// Why a list of rules was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongRule {
    /// `nth` is 0.
    #[error("nth counts from 1")]
    Nth,
    /// `probability` is none.
    #[error("a probability is from 0 to 1")]
    Probability,
    /// After such an answer another one would have to come, or there is none such.
    #[error("{0} is no status that ends a request: 200 to 599")]
    Status(u16),
}
