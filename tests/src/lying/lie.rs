//! Every kind of wrong answer, one at a time.

/// What an origin lies about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    Put,
    Delete,
    Part,
    Complete,
    Begin,
    Get,
    List,
}

/// A lie. Unless it says otherwise nothing is done of what is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// A write or a part is acknowledged with this status and an ETag.
    Status(On, u16),
    /// … with 200 and no ETag.
    NoEtag(On),
    /// … with 200 and an error document, and no ETag.
    ErrorDocument(On),
    /// … with 200 and a page of HTML.
    Page(On),
    /// Other bytes are stored, under their own ETag.
    StoresOthers(On),
    /// The first half is stored, under its own ETag.
    StoresHalf(On),
    /// The right document, and nothing is stored.
    StoresNothing(On),
    /// The first half of what was asked for, with a length that fits.
    Half,
    /// Fifty bytes more, with a length that fits.
    More,
    /// Other bytes of the same length: one bit at the end is wrong.
    Flip,
    /// One bit at the beginning is wrong.
    FlipFirst,
    /// An error document as if it were the object.
    ErrorAsObject,
    /// Other, shorter bytes, as of a proxy that compresses.
    Packed,
    /// All of it, whatever range was asked for, and one bit wrong.
    FlipOfAll,
    /// No ETag.
    ReadNoEtag,
    /// No Content-Length.
    ReadNoLength,
    /// An object of 2^63 bytes.
    Huge,
    /// A total that is five bytes too large.
    LongTotal,
    /// A length that is none.
    BadLength,
    /// Some bytes now and then.
    Drip,
    /// An upload is begun, and the connection closes instead of the answer.
    BeginLost,
}

impl Lie {
    /// What it is about.
    pub(crate) fn on(self) -> On {
        match self {
            Self::Status(on, _)
            | Self::NoEtag(on)
            | Self::ErrorDocument(on)
            | Self::Page(on)
            | Self::StoresOthers(on)
            | Self::StoresHalf(on)
            | Self::StoresNothing(on) => on,
            Self::Half
            | Self::More
            | Self::Flip
            | Self::FlipFirst
            | Self::ErrorAsObject
            | Self::Packed
            | Self::FlipOfAll
            | Self::ReadNoEtag
            | Self::ReadNoLength
            | Self::Huge
            | Self::LongTotal
            | Self::BadLength
            | Self::Drip => On::Get,
            Self::BeginLost => On::Begin,
        }
    }
}

/// All of them.
pub(crate) const LIES: &[Lie] = &[
    Lie::NoEtag(On::Put),
    Lie::ErrorDocument(On::Put),
    Lie::Page(On::Put),
    Lie::Status(On::Put, 201),
    Lie::Status(On::Put, 202),
    Lie::Status(On::Put, 203),
    Lie::Status(On::Put, 204),
    Lie::StoresOthers(On::Put),
    Lie::StoresHalf(On::Put),
    Lie::ErrorDocument(On::Delete),
    Lie::Page(On::Delete),
    Lie::Status(On::Delete, 202),
    Lie::NoEtag(On::Part),
    Lie::Status(On::Part, 201),
    Lie::Status(On::Part, 204),
    Lie::StoresOthers(On::Part),
    Lie::StoresHalf(On::Part),
    Lie::ErrorDocument(On::Complete),
    Lie::Page(On::Complete),
    Lie::Status(On::Complete, 202),
    Lie::StoresNothing(On::Complete),
    Lie::StoresHalf(On::Complete),
    Lie::Half,
    Lie::More,
    Lie::Flip,
    Lie::FlipFirst,
    Lie::ErrorAsObject,
    Lie::Packed,
    Lie::FlipOfAll,
    Lie::ReadNoEtag,
    Lie::ReadNoLength,
    Lie::Huge,
    Lie::BadLength,
    Lie::Drip,
    Lie::BeginLost,
    Lie::Page(On::List),
    Lie::ErrorDocument(On::List),
];
