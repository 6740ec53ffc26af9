//! Kinds of wrong responses.

/// Operation to which a fault applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultOperation {
    Put,
    Delete,
    Part,
    Complete,
    CreateUpload,
    Get,
    List,
}

/// A fault of the origin. Unless stated otherwise, an acknowledged operation has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseFault {
    /// A write or a part is acknowledged with this status and an ETag.
    Status(FaultOperation, u16),
    /// The same with status 200 and without an ETag.
    NoEtag(FaultOperation),
    /// The same with status 200, an error document and no ETag.
    ErrorDocument(FaultOperation),
    /// The same with status 200 and an HTML page.
    HtmlPage(FaultOperation),
    /// Other bytes are stored, under their own ETag.
    StoresOtherBytes(FaultOperation),
    /// The first half is stored, under its own ETag.
    StoresHalf(FaultOperation),
    /// The response is correct, but nothing is stored.
    StoresNothing(FaultOperation),
    /// The first half of the requested bytes, with a matching length.
    Half,
    /// Fifty additional bytes, with a matching length.
    Longer,
    /// Other bytes of the same length: one bit at the end is flipped.
    Flip,
    /// Bytes with one bit at the beginning flipped.
    FlipFirst,
    /// An error document as the object's body.
    ErrorAsObject,
    /// Other, shorter bytes, as from a proxy that compresses.
    Compressed,
    /// The whole object for any range, with one bit flipped.
    FlipOfWhole,
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
    SlowBody,
    /// An upload is created, but the connection is closed instead of the response.
    CreateUploadLost,
}

impl ResponseFault {
    /// Returns the operation to which the fault applies.
    pub(crate) fn operation(self) -> FaultOperation {
        match self {
            Self::Status(on, _)
            | Self::NoEtag(on)
            | Self::ErrorDocument(on)
            | Self::HtmlPage(on)
            | Self::StoresOtherBytes(on)
            | Self::StoresHalf(on)
            | Self::StoresNothing(on) => on,
            Self::Half
            | Self::Longer
            | Self::Flip
            | Self::FlipFirst
            | Self::ErrorAsObject
            | Self::Compressed
            | Self::FlipOfWhole
            | Self::ReadNoEtag
            | Self::ReadNoLength
            | Self::Huge
            | Self::LongTotal
            | Self::BadLength
            | Self::SlowBody => FaultOperation::Get,
            Self::CreateUploadLost => FaultOperation::CreateUpload,
        }
    }
}

/// The faults that the tests of all faults use.
pub(crate) const RESPONSE_FAULTS: &[ResponseFault] = &[
    ResponseFault::NoEtag(FaultOperation::Put),
    ResponseFault::ErrorDocument(FaultOperation::Put),
    ResponseFault::HtmlPage(FaultOperation::Put),
    ResponseFault::Status(FaultOperation::Put, 201),
    ResponseFault::Status(FaultOperation::Put, 202),
    ResponseFault::Status(FaultOperation::Put, 203),
    ResponseFault::Status(FaultOperation::Put, 204),
    ResponseFault::StoresOtherBytes(FaultOperation::Put),
    ResponseFault::StoresHalf(FaultOperation::Put),
    ResponseFault::ErrorDocument(FaultOperation::Delete),
    ResponseFault::HtmlPage(FaultOperation::Delete),
    ResponseFault::Status(FaultOperation::Delete, 202),
    ResponseFault::NoEtag(FaultOperation::Part),
    ResponseFault::Status(FaultOperation::Part, 201),
    ResponseFault::Status(FaultOperation::Part, 204),
    ResponseFault::StoresOtherBytes(FaultOperation::Part),
    ResponseFault::StoresHalf(FaultOperation::Part),
    ResponseFault::ErrorDocument(FaultOperation::Complete),
    ResponseFault::HtmlPage(FaultOperation::Complete),
    ResponseFault::Status(FaultOperation::Complete, 202),
    ResponseFault::StoresNothing(FaultOperation::Complete),
    ResponseFault::StoresHalf(FaultOperation::Complete),
    ResponseFault::Half,
    ResponseFault::Longer,
    ResponseFault::Flip,
    ResponseFault::FlipFirst,
    ResponseFault::ErrorAsObject,
    ResponseFault::Compressed,
    ResponseFault::FlipOfWhole,
    ResponseFault::ReadNoEtag,
    ResponseFault::ReadNoLength,
    ResponseFault::Huge,
    ResponseFault::BadLength,
    ResponseFault::SlowBody,
    ResponseFault::CreateUploadLost,
    ResponseFault::HtmlPage(FaultOperation::List),
    ResponseFault::ErrorDocument(FaultOperation::List),
];
