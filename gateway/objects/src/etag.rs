//! ETags: names of the bytes of an object.
//!
//! By default an ETag is the MD5 of the body, and for an upload in parts the MD5 of the MD5s of its parts, as
//! at AWS. The MD5 of a large body takes longer than all other work on it. With `s3.etag = "fast"` no MD5 is
//! computed and the ETag is 128 random bits: two bodies always have different ETags, even if their bytes are
//! the same. A random ETag ends in `-1`, as that of an upload in parts does, so clients do not compare it
//! with an MD5 of their own. A client that sends `Content-MD5` gets the MD5 as ETag with either setting.
//! Pure: a power failure changes nothing.

use crate::ObjectError;
use md5::{Digest, Md5};

/// Source of the ETags of new bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EtagSource {
    /// The MD5 of the body.
    Md5,
    /// Random bits, unless the client sends the MD5.
    Random,
}

/// Returns the ETag of a body or part: its MD5 in hexadecimal, or a random name if `md5` is `None`.
///
/// # Errors
/// [`ObjectError::Internal`] when the system has no random bytes.
pub fn of_body(md5: Option<[u8; 16]>) -> Result<String, ObjectError> {
    match md5 {
        Some(md5) => Ok(hex(&md5)),
        None => {
            let name = random().map_err(ObjectError::internal)?;
            Ok(hex(&name) + "-1")
        }
    }
}

/// Returns the ETag of an upload that was completed with `count` parts of these ETags.
#[must_use]
pub fn of_parts<'a>(parts: impl Iterator<Item = &'a str>, count: u32) -> String {
    let mut md5 = Md5::new();
    for etag in parts {
        md5.update(unhex(etag));
    }
    format!("{}-{count}", hex(&md5.finalize()))
}

fn random() -> Result<[u8; 16], getrandom::Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

fn hex(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from(b"0123456789abcdef"[usize::from(half)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Decodes a hexadecimal ETag. Other text is returned as its bytes.
fn unhex(etag: &str) -> Vec<u8> {
    let pairs = etag.as_bytes().chunks(2).map(|pair| {
        let digits = std::str::from_utf8(pair).ok().filter(|digits| digits.len() == 2)?;
        u8::from_str_radix(digits, 16).ok()
    });
    pairs.collect::<Option<Vec<u8>>>().unwrap_or_else(|| etag.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::{of_body, of_parts, unhex};

    #[test]
    fn etags_are_hexadecimal() {
        assert_eq!(unhex("00ff10"), [0, 255, 16]);
        assert_eq!(unhex("xyz"), b"xyz");
    }

    #[test]
    fn a_body_without_an_md5_gets_a_random_etag_that_is_no_md5() {
        let (one, other) = (of_body(None).unwrap(), of_body(None).unwrap());
        assert_ne!(one, other);
        assert!(one.len() == 34 && one.ends_with("-1"), "{one}");
        assert_eq!(of_body(Some([0xab; 16])).unwrap(), "ab".repeat(16));
        assert_ne!(of_parts([&*one].into_iter(), 1), of_parts([&*other].into_iter(), 1));
    }
}
