//! Buckets of others that are fronted here.
//!
//! What is asked of one is a trait, so that everything above it is tested against origins that fail in every way. Keys are
//! bytes as their owner wrote them: `a//b`, `../c` and `d/` are three keys like any others, and pages come in byte order. The one
//! that speaks S3 is a client of our own, because libraries for many stores tidy keys up.
//!
//! Nothing here is kept, so nothing is lost when power fails.

mod error;
mod metrics;
mod retry;
pub mod s3;

pub use error::OriginError;
pub use metrics::OriginMetrics;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use mlgw_metadata::schema::ObjectVersion;
use std::ops::Range;

/// An answer of an origin.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, OriginError>>;

/// Bytes of an object, in order. It ends early with an error only.
pub type Body = BoxStream<'static, Result<Bytes, OriginError>>;

/// A bucket of somebody else's.
pub trait Origin: Send + Sync + 'static {
    /// A page of keys, in byte order.
    fn list<'a>(&'a self, query: &'a ListQuery) -> Answer<'a, ListPage>;

    /// What the object is like, with its checksums.
    fn head<'a>(&'a self, key: &'a str) -> Answer<'a, ObjectVersion>;

    /// The object or a range of it: one round trip until its first bytes.
    fn get<'a>(&'a self, key: &'a str, query: &'a GetQuery) -> Answer<'a, Got>;

    /// For messages: which it is.
    fn name(&self) -> &str;

    /// What was asked of it.
    fn metrics(&self) -> OriginMetrics;
}

/// What part of an object is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// These bytes, as far as there are any.
    Range {
        /// The first.
        first: u64,
        /// The one behind the last.
        end: u64,
    },
    /// From this byte on.
    From(u64),
    /// So many at its end.
    Last(u64),
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetQuery {
    /// What part.
    pub part: Part,
    /// Only if this is its ETag (without quotes).
    pub if_match: Option<String>,
    /// Only if this is not its ETag (without quotes).
    pub if_none_match: Option<String>,
}

impl GetQuery {
    /// A part of an object, whatever it is now.
    #[must_use]
    pub const fn of(part: Part) -> Self {
        Self { part, if_match: None, if_none_match: None }
    }
}

/// An object, or a part of it.
pub struct Got {
    /// What it is like; its size is the whole object's. Checksums are there only when all of it was asked for.
    pub object: ObjectVersion,
    /// Which bytes of it follow.
    pub range: Range<u64>,
    /// They.
    pub body: Body,
}

/// Which page of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// What keys begin with.
    pub prefix: String,
    /// What rolls keys up; empty is nothing.
    pub delimiter: String,
    /// Keys come behind this one; empty is nothing.
    pub start_after: String,
    /// The token of the page before, instead.
    pub token: Option<String>,
    /// Lines at most.
    pub max_keys: usize,
}

/// A page of keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListPage {
    /// Objects and groups, in byte order.
    pub lines: Vec<ListLine>,
    /// What to ask with for the next page; nothing when this is the last.
    pub next: Option<String>,
}

/// A line of a page.
#[derive(Clone, Debug, PartialEq)]
pub enum ListLine {
    /// An object; of what it is like only what listings tell.
    Object(String, Box<ObjectVersion>),
    /// All keys that begin so.
    Group(String),
}

impl ListLine {
    /// Takes `prefix` off its name.
    pub(crate) fn strip(&mut self, prefix: &str) -> Result<(), OriginError> {
        let (Self::Object(name, _) | Self::Group(name)) = self;
        match name.strip_prefix(prefix) {
            Some(rest) => *name = rest.to_owned(),
            None => return Err(OriginError::Nonsense(format!("{name:?} does not begin with {prefix:?}"))),
        }
        Ok(())
    }

    /// Its key, or what its keys begin with.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Object(name, _) | Self::Group(name) => name,
        }
    }
}
