//! What is asked of an origin that is read, and what it answers. Pure.
//!
//! Always: what passes as a page of keys is in byte order and lies within what was asked for. Nothing here is
//! kept, so nothing is lost when power fails.

use super::OriginError;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use mlgw_formats::schema::ObjectVersion;
use std::ops::Range;

/// Bytes of an object, in order. It ends early with an error only.
pub type Body = BoxStream<'static, Result<Bytes, OriginError>>;

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
    /// What it is like; its size is the whole object's. Checksums are there only when all of it was asked
    /// for.
    pub object: ObjectVersion,
    /// Whether the origin says that it has tags, which are asked for by themselves.
    pub is_tagged: bool,
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

impl ListPage {
    /// The page, if it is one of those that `query` asks for: who goes on behind its last line or with its
    /// token gets further and ends.
    pub(crate) fn within(self, query: &ListQuery) -> Result<Self, OriginError> {
        let nonsense = |what: String| Err(OriginError::Nonsense(format!("a listing: {what}")));
        let behind = query.token.is_none().then_some(&*query.start_after);
        bounded(self.lines.len(), query.max_keys)?;
        for line in &self.lines {
            let name = line.name();
            if name.is_empty() || !name.starts_with(&query.prefix) {
                return nonsense(format!("{name:?} does not begin with {:?}", query.prefix));
            }
            // Of a group more may come behind a key in it.
            let is_begun = |behind: &str| matches!(line, ListLine::Group(group) if behind.starts_with(group));
            if let Some(behind) = behind.filter(|behind| name <= *behind && !is_begun(behind)) {
                return nonsense(format!("{name:?} does not come behind {behind:?}"));
            }
        }
        if query.token.is_some() && self.next == query.token {
            return nonsense("it goes on where it began".to_owned());
        }
        Ok(self)
    }
}

/// Whether there are no more lines than were asked for. Of none at all, origins understand what they like.
pub(super) fn bounded(lines: usize, max: usize) -> Result<(), OriginError> {
    match max > 0 && lines > max {
        true => Err(OriginError::Nonsense(format!("{lines} lines where {max} are asked for"))),
        false => Ok(()),
    }
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
    pub fn strip(&mut self, prefix: &str) -> Result<(), OriginError> {
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
    fn a_page_lies_within_what_was_asked_for() {
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
        assert!(of(&[object("p/a")], Some("u")).within(&on).is_ok(), "a token says where it begins");
        assert!(of(&[object("p/a")], Some("t")).within(&on).is_err(), "for ever");
        assert!(of(&[object("")], None).within(&ListQuery::default()).is_err());
    }
}
