//! Tests of the classification of the first bytes of a request.

use super::{Beginning, PREFACE, RESTING_HEAD_BYTES_MAX};
use proptest::prelude::*;

#[test]
fn whole_heads_and_invalid_bytes_make_a_connection_active() {
    let long = vec![b'x'; RESTING_HEAD_BYTES_MAX];
    let long_head = [&long[..RESTING_HEAD_BYTES_MAX - 2], b"\n\n"].concat();
    for (bytes, expected) in [
        (&b""[..], Beginning::Short),
        (b"P", Beginning::Short),
        (b"GET / HTTP/1.1\r\nhost: h\r\n", Beginning::Short),
        (b"GET / HTTP/1.1\r\nhost: h\r\n\r\n", Beginning::Head),
        (b"PUT / HTTP/1.1\nhost: h\n\nbody", Beginning::Head),
        (b"\r\n\r\n", Beginning::Short),
        (b"\r\n\r\nGET / HTTP/1.1\r\n\r\n", Beginning::Head),
        (b"\x16\x03\x01", Beginning::Head),
        (&PREFACE[..20], Beginning::Short),
        (PREFACE, Beginning::Multiplexed),
        (&[PREFACE, b"\0\0\0"].concat(), Beginning::Multiplexed),
        (b"PRI * HTTP/1.1\r\n\r\n", Beginning::Head),
        (&long, Beginning::Long),
        (&long_head, Beginning::Head),
    ] {
        assert_eq!(Beginning::of(bytes), expected, "{:?}", String::from_utf8_lossy(bytes));
    }
}

proptest! {
    /// Any [`RESTING_HEAD_BYTES_MAX`] bytes, in any pieces, are classified, because the connection may not
    /// buffer more.
    #[test]
    fn an_idle_connection_never_waits_with_a_full_buffer(bytes: Vec<u8>) {
        let full = bytes.iter().copied().cycle().take(RESTING_HEAD_BYTES_MAX).collect::<Vec<_>>();
        if full.len() == RESTING_HEAD_BYTES_MAX {
            prop_assert_ne!(Beginning::of(&full), Beginning::Short);
        }
    }
}
