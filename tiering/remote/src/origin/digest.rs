//! MD5 of bytes sent to an origin or received from one. Pure.

use super::etag::Md5Sum;
use bytes::Bytes;
use md5::{Digest as _, Md5};

/// Returns the MD5 of `bytes`.
pub(crate) fn md5_sum(bytes: &[u8]) -> Md5Sum {
    Md5::digest(bytes).into()
}

/// Incremental check of bytes, received in order, against their expected MD5.
#[derive(Clone)]
pub struct Md5Check {
    expected: Md5Sum,
    so_far: Md5,
}

impl Md5Check {
    /// Creates a check for bytes whose MD5 should be `expected`.
    pub fn new(expected: Md5Sum) -> Self {
        Self { expected, so_far: Md5::new() }
    }

    /// Adds the next bytes.
    pub fn add(&mut self, bytes: &Bytes) {
        self.so_far.update(bytes);
    }

    /// Returns the MD5 of all bytes added.
    ///
    /// # Errors
    /// The actual MD5, if it differs from the expected one.
    pub fn end(self) -> Result<Md5Sum, Md5Sum> {
        let sum: Md5Sum = self.so_far.finalize().into();
        if sum == self.expected { Ok(sum) } else { Err(sum) }
    }
}

#[cfg(test)]
mod tests {
    use super::{Md5Check, md5_sum};
    use crate::origin::etag::md5_digits;
    use bytes::Bytes;

    const HELLO: &str = "5d41402abc4b2a76b9719d911017c592";

    #[test]
    fn bytes_are_compared_however_they_are_split() {
        let mut check = Md5Check::new(md5_digits(HELLO).unwrap());
        for piece in ["he", "", "llo"] {
            check.add(&Bytes::from_static(piece.as_bytes()));
        }
        let mut wrong = check.clone();
        assert_eq!(check.end(), Ok(md5_sum(b"hello")));
        wrong.add(&Bytes::from_static(b"!"));
        assert_eq!(wrong.end(), Err(md5_sum(b"hello!")));
    }
}
