//! Hexadecimal encoding of hashes and signatures, in lower case. Pure.

use subtle::ConstantTimeEq;

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Digit pairs of all byte values.
const PAIRS: [[u8; 2]; 256] = {
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [DIGITS[byte >> 4], DIGITS[byte & 15]];
        byte += 1;
    }
    pairs
};

/// Encodes a SHA-256 or an HMAC-SHA256.
pub fn encode(bytes: &[u8; 32]) -> [u8; 64] {
    let mut out = [0; 64];
    for (pair, byte) in out.as_chunks_mut().0.iter_mut().zip(bytes) {
        *pair = PAIRS[usize::from(*byte)];
    }
    out
}

/// True if `text` equals the output of [`encode`]. The comparison takes the same time wherever they differ.
pub fn is_same(encoded: &[u8; 64], text: &[u8]) -> bool {
    let Ok(text) = <&[u8; 64]>::try_from(text) else { return false };
    // Comparing eight words is faster than comparing 64 bytes.
    let words = |bytes: &[u8; 64]| -> [u64; 8] {
        std::array::from_fn(|word| u64::from_ne_bytes(bytes.as_chunks().0[word]))
    };
    words(encoded).ct_eq(&words(text)).into()
}

/// Encodes any bytes as a `String`.
pub fn text(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from(DIGITS[usize::from(half)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Decodes 2 × `N` digits of either case into `N` bytes; `None` for any other text.
pub fn decode<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    if text.len() != 2 * N {
        return None;
    }
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(text.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(high << 4 | low).ok()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::{decode, encode, is_same, text};

    #[test]
    fn encoded_bytes_are_decoded() {
        let bytes: [u8; 32] = std::array::from_fn(|i| u8::try_from(i * 8).unwrap());
        assert_eq!(decode(&encode(&bytes)), Some(bytes));
        assert_eq!(decode(text(&bytes).to_uppercase().as_bytes()), Some(bytes));
    }

    #[test]
    fn a_difference_in_any_digit_is_detected() {
        let right = encode(&[0xa5; 32]);
        assert!(is_same(&right, &right));
        for at in 0..64 {
            let mut wrong = right;
            wrong[at] ^= 1;
            assert!(!is_same(&right, &wrong), "{at}");
        }
        assert!(!is_same(&right, &right[..63]) && !is_same(&right, &[&right[..], b"a"].concat()));
    }

    #[test]
    fn invalid_digits_and_lengths_are_refused() {
        assert_eq!(decode::<32>(b""), None);
        assert_eq!(decode::<32>(&[b'a'; 63]), None);
        assert_eq!(decode::<32>(&[b'g'; 64]), None);
    }
}
