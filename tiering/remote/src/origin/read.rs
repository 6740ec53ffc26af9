//! Requests that read an origin, and their results. Pure.
//!
//! Invariant: an accepted page of keys is in byte order and lies within its query. Nothing here is kept on
//! disk, so nothing is lost at a power failure.

use super::OriginError;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use mlgw_formats::schema::ObjectVersion;
use std::ops::Range;

/// Bytes of an object, in order. The stream ends early only with an error.
pub type OriginBody = BoxStream<'static, Result<Bytes, OriginError>>;

/// Part of an object to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectPart {
    /// The whole object.
    Whole,
    /// A byte range, cut at the end of the object.
    Range {
        /// First byte.
        first: u64,
        /// End, exclusive.
        end: u64,
    },
    /// All bytes from this offset on.
    From(u64),
    /// The last bytes; the value is their number.
    Last(u64),
}

/// Parameters of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetQuery {
    /// Part to read.
    pub part: ObjectPart,
    /// Succeeds only if the ETag (without quotes) is this one.
    pub if_match: Option<String>,
    /// Succeeds only if the ETag (without quotes) is not this one.
    pub if_none_match: Option<String>,
}

impl GetQuery {
    /// Creates an unconditional read of `part`.
    #[must_use]
    pub const fn unconditional(part: ObjectPart) -> Self {
        Self { part, if_match: None, if_none_match: None }
    }
}

/// Result of a read: an object or a part of it.
pub struct OriginObject {
    /// Metadata of the object. Its size is that of the whole object. Checksums are present only if the whole
    /// object was requested.
    pub object: ObjectVersion,
    /// True if the origin reports that the object has tags. They are read by a separate request.
    pub is_tagged: bool,
    /// Byte range of the object that `body` holds.
    pub range: Range<u64>,
    /// Bytes of `range`.
    pub body: OriginBody,
}

/// Parameters of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// Common prefix of the keys.
    pub prefix: String,
    /// Delimiter that groups keys; empty means none.
    pub delimiter: String,
    /// Only keys greater than this one are listed; empty means from the start.
    pub start_after: String,
    /// Continuation token of the previous page, used instead of `start_after`.
    pub token: Option<String>,
    /// Maximum number of lines.
    pub max_keys: usize,
}

/// Page of keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListPage {
    /// Objects and groups, in byte order.
    pub lines: Vec<ListLine>,
    /// Continuation token of the next page; `None` on the last page.
    pub next: Option<String>,
}

impl ListPage {
    /// Returns the page if it lies within `query`: its names have the prefix, come after `start_after`, and
    /// its token advances, so that a listing makes progress and ends.
    pub(crate) fn within(self, query: &ListQuery) -> Result<Self, OriginError> {
        let invalid = |what: String| Err(OriginError::InvalidResponse(format!("invalid listing: {what}")));
        let behind = query.token.is_none().then_some(&*query.start_after);
        check_length(self.lines.len(), query.max_keys)?;
        for line in &self.lines {
            let name = line.name();
            if name.is_empty() || !name.starts_with(&query.prefix) {
                return invalid(format!("{name:?} does not begin with {:?}", query.prefix));
            }
            // A group that contains `start_after` may hold more keys after it.
            let is_begun = |behind: &str| matches!(line, ListLine::Group(group) if behind.starts_with(group));
            if let Some(behind) = behind.filter(|behind| name <= *behind && !is_begun(behind)) {
                return invalid(format!("{name:?} does not follow {behind:?}"));
            }
        }
        if query.token.is_some() && self.next == query.token {
            return invalid("the continuation token does not advance".to_owned());
        }
        Ok(self)
    }
}

/// Checks that a page has at most `max` lines. A `max` of 0 is not checked, because origins interpret it
/// differently.
pub(super) fn check_length(lines: usize, max: usize) -> Result<(), OriginError> {
    match max > 0 && lines > max {
        true => {
            Err(OriginError::InvalidResponse(format!("{lines} entries, but at most {max} were requested")))
        }
        false => Ok(()),
    }
}

/// Line of a page of keys.
#[derive(Clone, Debug, PartialEq)]
pub enum ListLine {
    /// Object, with the metadata that listings contain.
    Object(String, Box<ObjectVersion>),
    /// All keys with this prefix.
    Group(String),
}

impl ListLine {
    /// Removes `prefix` from the name.
    pub fn strip(&mut self, prefix: &str) -> Result<(), OriginError> {
        let (Self::Object(name, _) | Self::Group(name)) = self;
        match name.strip_prefix(prefix) {
            Some(rest) => *name = rest.to_owned(),
            None => {
                return Err(OriginError::InvalidResponse(format!("{name:?} does not begin with {prefix:?}")));
            }
        }
        Ok(())
    }

    /// Key of the object, or prefix of the group.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Object(name, _) | Self::Group(name) => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ListLine, ListPage, ListQuery};

    fn object(name: &str) -> ListLine {
        ListLine::Object(name.to_owned(), Box::default())
    }

    fn group(name: &str) -> ListLine {
        ListLine::Group(name.to_owned())
    }

    #[test]
    fn a_page_lies_within_its_query() {
        let of = |lines: &[ListLine], next: Option<&str>| ListPage {
            lines: lines.to_vec(),
            next: next.map(str::to_owned),
        };
        let query = ListQuery {
            prefix: "p/".into(),
            start_after: "p/b/c".into(),
            max_keys: 2,
            ..ListQuery::default()
        };
        let good = of(&[group("p/b/"), object("p/d")], Some("t"));
        assert_eq!(good.clone().within(&query), Ok(good));
        for lines in [
            &[object("q")][..],
            &[object("p/b/c")],
            &[object("p/a")],
            &[group("p/a/")],
            &[object("p/d"), object("p/e"), object("p/f")],
        ] {
            assert!(of(lines, None).within(&query).is_err(), "{lines:?}");
        }
        let on = ListQuery { token: Some("t".into()), ..query };
        assert!(of(&[object("p/a")], Some("u")).within(&on).is_ok(), "the token sets the start");
        assert!(of(&[object("p/a")], Some("t")).within(&on).is_err(), "it would never end");
        assert!(of(&[object("")], None).within(&ListQuery::default()).is_err());
    }
}
