//! Whole bodies, with arbitrary heads. Property: a body that decodes has the length, the MD5 and the
//! checksum that its head declares.

use crate::input::{Input, run as wait};
use bytes::Bytes;
use http_body::Frame;
use http_body_util::StreamBody;
use mlgw_auth::BodyRequirement;
use mlgw_body::{BodyTerms, RequestBody};
use std::convert::Infallible;

/// The input: the size of the pieces and the terms, then the head, then the body.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (kind, step) = (input.byte(), input.byte());
    let Some(mut head) = input.head() else { return };
    if kind & 4 == 0 {
        // HTTP/2 requires no Content-Length.
        head.version = http::Version::HTTP_2;
    }
    let (terms, payload) = match kind % 4 {
        0 => (BodyTerms::object(None), BodyRequirement::Unsigned),
        1 => (
            BodyTerms::object(Some(mlgw_formats::checksum::Algorithm::Crc64Nvme)),
            BodyRequirement::UnsignedTrailer,
        ),
        2 => (BodyTerms::document(1000), BodyRequirement::Unsigned),
        _ => (BodyTerms::document(1000), BodyRequirement::Sha256([7; 32])),
    };
    let sent = input.0;
    let pieces = input
        .pieces(step)
        .into_iter()
        .map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(piece))));
    let stream = futures_util::stream::iter(pieces.collect::<Vec<_>>());
    let Ok(mut body) = RequestBody::new(StreamBody::new(stream), &head, payload, terms) else { return };
    let read = wait(async {
        let mut bytes = Vec::new();
        while let Some(more) = body.next().await? {
            bytes.extend_from_slice(&more);
        }
        Ok::<_, mlgw_wire::error::S3Error>(bytes)
    });
    let Ok(read) = read else { return };
    assert!(read.len() <= sent.len() && read.len() as u64 <= terms.bytes_max);
    let declared = body.declared_algorithm();
    let digests = body.finish();
    assert_eq!((digests.bytes, digests.declared), (read.len() as u64, declared));
    for (algorithm, value) in &digests.checksums {
        assert_eq!(*value, algorithm.digest(&read));
    }
}
