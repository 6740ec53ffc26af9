//! Tests of the classification of the first bytes of a request.

use super::{IDLE_HEAD_BYTES_MAX, PREFACE, RequestStart};
use proptest::prelude::*;

#[test]
fn whole_heads_and_invalid_bytes_make_a_connection_active() {
    let long = vec![b'x'; IDLE_HEAD_BYTES_MAX];
    let long_head = [&long[..IDLE_HEAD_BYTES_MAX - 2], b"\n\n"].concat();
    for (bytes, expected) in [
        (&b""[..], RequestStart::Short),
        (b"P", RequestStart::Short),
        (b"GET / HTTP/1.1\r\nhost: h\r\n", RequestStart::Short),
        (b"GET / HTTP/1.1\r\nhost: h\r\n\r\n", RequestStart::Head),
        (b"PUT / HTTP/1.1\nhost: h\n\nbody", RequestStart::Head),
        (b"\r\n\r\n", RequestStart::Short),
        (b"\r\n\r\nGET / HTTP/1.1\r\n\r\n", RequestStart::Head),
        (b"\x16\x03\x01", RequestStart::Head),
        (&PREFACE[..20], RequestStart::Short),
        (PREFACE, RequestStart::Multiplexed),
        (&[PREFACE, b"\0\0\0"].concat(), RequestStart::Multiplexed),
        (b"PRI * HTTP/1.1\r\n\r\n", RequestStart::Head),
        (&long, RequestStart::Long),
        (&long_head, RequestStart::Head),
    ] {
        assert_eq!(RequestStart::of(bytes), expected, "{:?}", String::from_utf8_lossy(bytes));
    }
}

proptest! {
    /// Any [`IDLE_HEAD_BYTES_MAX`] bytes, in any pieces, are classified, because the connection may not
    /// buffer more.
    #[test]
    fn an_idle_connection_never_waits_with_a_full_buffer(bytes: Vec<u8>) {
        let full = bytes.iter().copied().cycle().take(IDLE_HEAD_BYTES_MAX).collect::<Vec<_>>();
        if full.len() == IDLE_HEAD_BYTES_MAX {
            prop_assert_ne!(RequestStart::of(&full), RequestStart::Short);
        }
    }
}
