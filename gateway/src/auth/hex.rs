//! Lower-case hexadecimal of hashes and signatures.

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// A SHA-256 or an HMAC-SHA256 as text.
pub(crate) fn encode(bytes: &[u8; 32]) -> [u8; 64] {
    let mut out = [0; 64];
    for (pair, byte) in out.chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    out
}

/// Any bytes as a `String`.
pub(crate) fn text(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from(DIGITS[usize::from(half)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// The 32 bytes that 64 digits of either case stand for.
pub(crate) fn decode(text: &[u8]) -> Option<[u8; 32]> {
    let text: &[u8; 64] = text.try_into().ok()?;
    let mut out = [0; 32];
    for (byte, pair) in out.iter_mut().zip(text.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(high << 4 | low).ok()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::{decode, encode, text};

    #[test]
    fn what_is_written_is_read_back() {
        let bytes: [u8; 32] = std::array::from_fn(|i| u8::try_from(i * 8).unwrap());
        assert_eq!(decode(&encode(&bytes)), Some(bytes));
        assert_eq!(decode(text(&bytes).to_uppercase().as_bytes()), Some(bytes));
    }

    #[test]
    fn what_is_no_hash_is_refused() {
        assert_eq!(decode(b""), None);
        assert_eq!(decode(&[b'a'; 63]), None);
        assert_eq!(decode(&[b'g'; 64]), None);
    }
}
