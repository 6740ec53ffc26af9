//! A request that was authenticated, as operations see it.

pub use mlgw_wire::target::{Query, Target};

use http::request::Parts;
use mlgw_auth::principal::Principal;
use mlgw_common::{ObjectKey, Timestamp};
use mlgw_objects::memory::Account;
use mlgw_wire::error::{Code, S3Error};
use std::sync::Arc;

/// A request that was authenticated and has an operation.
pub struct Request<'a> {
    /// Method, target and headers as sent.
    pub head: &'a Parts,
    /// Bucket and key.
    pub target: &'a Target,
    /// The query's parameters.
    pub query: &'a Query<'a>,
    /// Who asks.
    pub principal: Arc<Principal>,
    /// What its connection may hold.
    pub memory: &'a Account,
    /// When the request began.
    pub now: Timestamp,
}

impl Request<'_> {
    /// A header's value as text; nothing when it is absent.
    ///
    /// # Errors
    /// `InvalidArgument` when it has bytes that are not visible ASCII or UTF-8.
    pub fn header(&self, name: &'static str) -> Result<Option<&str>, S3Error> {
        let Some(value) = self.head.headers.get(name) else { return Ok(None) };
        let text = std::str::from_utf8(value.as_bytes())
            .map_err(|_| S3Error::invalid_argument(format!("the header {name} must be UTF-8"), name, ""))?;
        Ok(Some(text))
    }

    /// The name of the bucket; operations on buckets and objects always have one.
    #[must_use]
    pub fn bucket(&self) -> &str {
        self.target.bucket.as_deref().unwrap_or_default()
    }

    /// The key.
    ///
    /// # Errors
    /// `InvalidURI` when the request names none.
    pub fn key(&self) -> Result<&ObjectKey, S3Error> {
        self.target.key.as_ref().ok_or_else(|| S3Error::new(Code::InvalidURI))
    }
}
