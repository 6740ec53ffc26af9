//! An authenticated request, as operations receive it.

pub use mlgw_wire::target::{Query, RequestTarget};

use http::request::Parts;
use mlgw_auth::principal::Principal;
use mlgw_common::{ObjectKey, Timestamp};
use mlgw_objects::memory::Account;
use mlgw_wire::error::{Code, S3Error};
use std::sync::Arc;

/// An authenticated request with its operation's target and query.
pub struct AuthenticatedRequest<'a> {
    /// Method, target and headers as sent.
    pub head: &'a Parts,
    /// Bucket and key.
    pub target: &'a RequestTarget,
    /// Parameters of the query.
    pub query: &'a Query<'a>,
    /// The caller.
    pub principal: Arc<Principal>,
    /// Memory account of the connection.
    pub memory: &'a Account,
    /// Time at which the request began.
    pub now: Timestamp,
}

impl AuthenticatedRequest<'_> {
    /// Returns the value of a header as text, or `None` if it is absent.
    ///
    /// # Errors
    /// `InvalidArgument` if the value is not UTF-8.
    pub fn header(&self, name: &'static str) -> Result<Option<&str>, S3Error> {
        let Some(value) = self.head.headers.get(name) else { return Ok(None) };
        let text = std::str::from_utf8(value.as_bytes())
            .map_err(|_| S3Error::invalid_argument(format!("the header {name} must be UTF-8"), name, ""))?;
        Ok(Some(text))
    }

    /// Returns the name of the bucket. Operations on buckets and objects always have one.
    #[must_use]
    pub fn bucket(&self) -> &str {
        self.target.bucket.as_deref().unwrap_or_default()
    }

    /// Returns the key.
    ///
    /// # Errors
    /// `InvalidURI` if the request has no key.
    pub fn key(&self) -> Result<&ObjectKey, S3Error> {
        self.target.key.as_ref().ok_or_else(|| S3Error::new(Code::InvalidURI))
    }
}
