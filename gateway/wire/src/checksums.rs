//! Checksums in headers and documents.
//!
//! Invariant: an object written to a local bucket has a checksum, whether its client sent one or
//! not.

use super::error::{Code, S3Error};
use super::values::header_value;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::{HeaderMap, HeaderName, HeaderValue};
use mlgw_formats::checksum::{Algorithm, algorithm_from_stored};
use mlgw_formats::schema::{Checksum, ChecksumAlgorithm, ChecksumKind, ObjectVersion};
use std::fmt::Write;

static CHECKSUM_TYPE: HeaderName = HeaderName::from_static("x-amz-checksum-type");

/// Returns the XML element that carries a checksum of `algorithm`.
#[must_use]
pub const fn xml_element(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Crc32 => "ChecksumCRC32",
        Algorithm::Crc32c => "ChecksumCRC32C",
        Algorithm::Crc64Nvme => "ChecksumCRC64NVME",
        Algorithm::Sha1 => "ChecksumSHA1",
        Algorithm::Sha256 => "ChecksumSHA256",
    }
}

/// Returns a kind's name in headers and documents.
#[must_use]
pub const fn kind_name(kind: ChecksumKind) -> &'static str {
    match kind {
        ChecksumKind::FullObject => "FULL_OBJECT",
        ChecksumKind::Composite => "COMPOSITE",
    }
}

/// Returns a checksum as in headers and documents; a composite one ends with its number of parts.
#[must_use]
pub fn wire_value(checksum: &Checksum, part_count: u32) -> String {
    let mut text = BASE64.encode(&checksum.value);
    if checksum.kind() == ChecksumKind::Composite {
        // Writing to a String cannot fail.
        let _ = write!(text, "-{part_count}");
    }
    text
}

/// Returns the error for a checksum whose algorithm is not that of its upload.
#[must_use]
pub fn mismatch(expected: Algorithm, actual: Option<Algorithm>) -> S3Error {
    let actual = actual.map_or("null", Algorithm::name).to_ascii_lowercase();
    let expected = expected.name().to_ascii_lowercase();
    S3Error::new(Code::InvalidRequest).message(format!(
        "Checksum Type mismatch occurred, expected checksum Type: {expected}, actual checksum Type: {actual}"
    ))
}

/// Checks the declared checksum algorithm of a part. An upload without an algorithm accepts any or none. An
/// upload with an algorithm accepts no other; if a part declares none, only full-object CRCs are computed by
/// mlgw.
///
/// # Errors
/// `InvalidRequest`.
pub fn check_part(
    upload: Option<(Algorithm, ChecksumKind)>,
    declared: Option<Algorithm>,
) -> Result<(), S3Error> {
    match (upload, declared) {
        (None, _) | (Some((_, ChecksumKind::FullObject)), None) => Ok(()),
        (Some((expected, _)), Some(actual)) if expected == actual => Ok(()),
        (Some((expected, _)), actual) => Err(mismatch(expected, actual)),
    }
}

/// Adds the checksums of a body that was not uploaded in parts to the response headers.
fn add_whole_body_headers<'a>(checksums: impl IntoIterator<Item = &'a Checksum>, headers: &mut HeaderMap) {
    for checksum in checksums {
        let name = HeaderName::from_static(algorithm_from_stored(checksum.algorithm()).header());
        headers.insert(name, header_value(&wire_value(checksum, 0)));
    }
}

/// Adds the checksum of one algorithm to the response headers.
pub fn add_header_of(algorithm: Algorithm, checksums: &[Checksum], headers: &mut HeaderMap) {
    let stored_algorithm = ChecksumAlgorithm::from(algorithm);
    add_whole_body_headers(
        checksums.iter().filter(|checksum| checksum.algorithm() == stored_algorithm),
        headers,
    );
}

/// Adds the checksum of a part of `object` to the headers, with the kind of the object's checksum. The
/// checksum is that of the object's algorithm; a part may have a second one that its client chose.
pub fn describe_part(object: &ObjectVersion, part: &[Checksum], headers: &mut HeaderMap) {
    let Some(whole) = object.checksums.first() else { return };
    let Some(of_part) = part.iter().find(|one| one.algorithm == whole.algorithm) else { return };
    add_whole_body_headers([of_part], headers);
    headers.insert(&CHECKSUM_TYPE, HeaderValue::from_static(kind_name(whole.kind())));
}

/// Adds the checksums of an object to the headers, with their kind.
pub fn describe(object: &ObjectVersion, headers: &mut HeaderMap) {
    for checksum in &object.checksums {
        let name = HeaderName::from_static(algorithm_from_stored(checksum.algorithm()).header());
        headers.insert(name, header_value(&wire_value(checksum, object.part_count)));
        headers.insert(&CHECKSUM_TYPE, HeaderValue::from_static(kind_name(checksum.kind())));
    }
}

#[cfg(test)]
mod tests {
    use super::{Algorithm, Code, check_part, wire_value};
    use mlgw_formats::checksum::stored_checksum;
    use mlgw_formats::schema::ChecksumKind;

    #[test]
    fn parts_carry_the_algorithm_of_their_upload() {
        for upload in Algorithm::ALL {
            for kind in [ChecksumKind::Composite, ChecksumKind::FullObject] {
                for declared in Algorithm::ALL.iter().copied().map(Some).chain([None]) {
                    let is_taken =
                        declared == Some(*upload) || (declared.is_none() && kind == ChecksumKind::FullObject);
                    let checked = check_part(Some((*upload, kind)), declared);
                    assert_eq!(checked.is_ok(), is_taken, "{upload:?} {kind:?} {declared:?}");
                    assert_eq!(check_part(None, declared), Ok(()));
                }
            }
        }
        let refused = check_part(Some((Algorithm::Sha256, ChecksumKind::Composite)), None).unwrap_err();
        assert_eq!(refused.code(), Code::InvalidRequest);
        assert!(refused.text().ends_with("expected checksum Type: sha256, actual checksum Type: null"));
    }

    #[test]
    fn a_composite_checksum_names_its_parts() {
        let of = |kind| wire_value(&stored_checksum(Algorithm::Crc32, kind, vec![0; 4]), 3);
        assert_eq!(of(ChecksumKind::FullObject), "AAAAAA==");
        assert_eq!(of(ChecksumKind::Composite), "AAAAAA==-3");
    }
}
