//! What names the bytes of a version: its ETag.
//!
//! By default that is the MD5 of a body, and of the parts' MD5s for an upload in parts, as AWS has it.
//! MD5 takes longer than everything else that is done with a large body; `s3.etag = "fast"` leaves
//! it out. An ETag is then 128 random bits: never that of other bytes, but another one for the same
//! bytes sent twice. It ends in `-1`, by which clients know that they must not compare it with an MD5 of
//! their own, as they do for uploads in parts. A client that sends `Content-MD5` has it computed and
//! gets it as the ETag, whatever the setting.

use super::Gateway;
use super::error::S3Error;
use crate::auth::hex;
use crate::body::{Algorithm, Terms};
use crate::config::EtagKind;
use crate::credentials::random;
use md5::{Digest, Md5};

/// What is asked of the bytes of an object or part; `also` is a checksum that is wanted besides.
pub(super) fn terms(gateway: &Gateway, also: Option<Algorithm>) -> Terms {
    Terms { md5: wants_md5(gateway), ..Terms::object(also) }
}

/// Whether the MD5 of new bytes is computed although no client asks for it.
pub(crate) fn wants_md5(gateway: &Gateway) -> bool {
    gateway.config.etag == EtagKind::Md5
}

/// The ETag of a body or part of which the MD5 is known, or not.
///
/// # Errors
/// `InternalError` when the system gives no random bytes.
pub(crate) fn of_body(md5: Option<[u8; 16]>) -> Result<String, S3Error> {
    match md5 {
        Some(md5) => Ok(hex::text(&md5)),
        None => {
            let name = random::<16>().map_err(S3Error::internal)?;
            Ok(hex::text(&name) + "-1")
        }
    }
}

/// The ETag of an upload that was completed with these parts.
pub(super) fn of_parts<'a>(parts: impl Iterator<Item = &'a str>, count: u32) -> String {
    let mut md5 = Md5::new();
    for etag in parts {
        md5.update(unhex(etag));
    }
    format!("{}-{count}", hex::text(&md5.finalize()))
}

/// The bytes of a hexadecimal ETag; what is not hexadecimal stays text.
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
    fn what_has_no_md5_gets_a_name_that_nobody_takes_for_one() {
        let (one, other) = (of_body(None).unwrap(), of_body(None).unwrap());
        assert_ne!(one, other);
        assert!(one.len() == 34 && one.ends_with("-1"), "{one}");
        assert_eq!(of_body(Some([0xab; 16])).unwrap(), "ab".repeat(16));
        assert_ne!(of_parts([&*one].into_iter(), 1), of_parts([&*other].into_iter(), 1));
    }
}
