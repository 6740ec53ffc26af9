//! Kinds of wrong responses.

/// Operation to which a fault applies.
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

/// A fault of the origin. Unless stated otherwise, an acknowledged operation has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// A write or a part is acknowledged with this status and an ETag.
    Status(On, u16),
    /// The same with status 200 and without an ETag.
    NoEtag(On),
    /// The same with status 200, an error document and no ETag.
    ErrorDocument(On),
    /// The same with status 200 and an HTML page.
    Page(On),
    /// Other bytes are stored, under their own ETag.
    StoresOthers(On),
    /// The first half is stored, under its own ETag.
    StoresHalf(On),
    /// The response is correct, but nothing is stored.
    StoresNothing(On),
    /// The first half of the requested bytes, with a matching length.
    Half,
    /// Fifty additional bytes, with a matching length.
    More,
    /// Other bytes of the same length: one bit at the end is flipped.
    Flip,
    /// Bytes with one bit at the beginning flipped.
    FlipFirst,
    /// An error document as the object's body.
    ErrorAsObject,
    /// Other, shorter bytes, as from a proxy that compresses.
    Packed,
    /// The whole object for any range, with one bit flipped.
    FlipOfAll,
    /// No ETag.
    ReadNoEtag,
    /// No Content-Length.
    ReadNoLength,
    /// An object of 2^63 bytes.
    Huge,
    /// A total size that is five bytes too large.
    LongTotal,
    /// A Content-Length that is not a number.
    BadLength,
    /// Ten bytes at a time, with pauses.
    Drip,
    /// An upload is created, but the connection is closed instead of the response.
    BeginLost,
}

impl Lie {
    /// Returns the operation to which the fault applies.
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

/// The faults that the tests of all faults use.
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
