//! Variable-length encoding of integers.

/// Maximum length of an encoded number in bytes.
pub(crate) const BYTES_MAX: usize = 10;

pub(crate) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends the difference of two numbers in zigzag encoding, so that small differences of either sign are
/// short.
pub(crate) fn put_difference(out: &mut Vec<u8>, to: u64, from: u64) {
    let difference = to.wrapping_sub(from) as i64;
    put(out, (difference << 1 ^ difference >> 63) as u64);
}

/// Bytes that have not been decoded yet.
pub(crate) struct ByteReader<'a>(pub(crate) &'a [u8]);

impl<'a> ByteReader<'a> {
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*taken))
    }

    pub(crate) fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for place in 0..BYTES_MAX {
            let byte = self.byte()?;
            // The tenth byte holds one bit.
            if place == BYTES_MAX - 1 && byte > 1 {
                return None;
            }
            number |= u64::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    pub(crate) fn difference(&mut self, from: u64) -> Option<u64> {
        let zigzag = self.varint()?;
        Some(from.wrapping_add(zigzag >> 1 ^ (zigzag & 1).wrapping_neg()))
    }
}

#[cfg(test)]
mod tests {
    use super::{ByteReader, put, put_difference};

    #[test]
    fn numbers_round_trip() {
        let numbers = [0, 1, 127, 128, 16383, 16384, u64::from(u32::MAX), 1 << 63, u64::MAX];
        for number in numbers {
            let mut out = Vec::new();
            put(&mut out, number);
            assert_eq!(ByteReader(&out).varint(), Some(number));
            assert_eq!(ByteReader(&out[..out.len() - 1]).varint(), None);
            for from in numbers {
                let mut out = Vec::new();
                put_difference(&mut out, number, from);
                assert_eq!(ByteReader(&out).difference(from), Some(number));
            }
        }
    }

    #[test]
    fn overlong_numbers_are_refused() {
        assert_eq!(ByteReader(&[0xff; 20]).varint(), None);
        assert_eq!(ByteReader(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]).varint(), None);
    }
}
