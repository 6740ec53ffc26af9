//! The MD5 of bytes that go to an origin or come from one. Pure.

use super::etag::Md5Sum;
use bytes::Bytes;
use md5::{Digest as _, Md5};

/// The MD5 of bytes.
pub(crate) fn md5_sum(bytes: &[u8]) -> Md5Sum {
    Md5::digest(bytes).into()
}

/// Compares bytes that come in order with the MD5 that they should have.
#[derive(Clone)]
pub struct Md5Check {
    expected: Md5Sum,
    so_far: Md5,
}

impl Md5Check {
    /// For bytes that should have this MD5.
    pub fn new(expected: Md5Sum) -> Self {
        Self { expected, so_far: Md5::new() }
    }

    /// More bytes came.
    pub fn add(&mut self, bytes: &Bytes) {
        self.so_far.update(bytes);
    }

    /// The MD5 of all that came.
    ///
    /// # Errors
    /// The same, where it is another one than expected.
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
    fn bytes_are_compared_in_whatever_pieces_they_come() {
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
