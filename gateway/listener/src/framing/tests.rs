//! Tests that unambiguous requests pass unchanged when cut at any point, and that ambiguous ones do not.

use super::{AmbiguousFraming, FramedConnection, FramingPosition, FramingScanner};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Returns the result of scanning bytes in these pieces.
fn scan<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<FramingPosition, AmbiguousFraming> {
    let mut framing = FramingScanner::new();
    for piece in pieces {
        framing.scan(piece).map_err(|(_, uncertain)| uncertain)?;
    }
    Ok(framing.position)
}

const CERTAIN: &[&str] = &[
    "GET /b HTTP/1.1\r\nHost: a\r\n\r\n",
    "\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
    "PUT /b HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\na\nb\n",
    "PUT /b HTTP/1.1\r\nHost: a\r\ncontent-length:0\r\n\r\n",
    "PUT /b HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\na\nb\r\n1;x=y\r\nc\r\n0\r\n\r\n",
    "PUT /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\na: b\r\nc: d\r\n\r\n",
];

#[test]
fn unambiguous_requests_pass_at_any_cut_and_in_sequence() {
    let all: String = CERTAIN.concat();
    for wire in CERTAIN.iter().copied().chain([&*all]) {
        let bytes = wire.as_bytes();
        for at in 0..=bytes.len() {
            assert_eq!(
                scan([&bytes[..at], &bytes[at..]]),
                Ok(FramingPosition::RequestLine),
                "{wire:?} at {at}"
            );
        }
        assert_eq!(scan(bytes.chunks(1)), Ok(FramingPosition::RequestLine), "{wire:?}");
    }
}

#[test]
fn ambiguous_requests_are_refused_at_any_cut() {
    use AmbiguousFraming::{BareLineFeed, Chunk, Coding, Length};
    let long = format!("GET /b HTTP/1.1\r\nx-a: {}\n\r\n", "v".repeat(1000));
    for (wire, why) in [
        ("GET /b HTTP/1.1\nHost: a\r\n\r\n", BareLineFeed),
        ("GET /b HTTP/1.1\r\nHost: a\n\r\n", BareLineFeed),
        ("GET /b HTTP/1.1\r\nHost: a\r\n\n", BareLineFeed),
        ("\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n", BareLineFeed),
        (&*long, BareLineFeed),
        ("PUT /b HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na", Length),
        ("PUT /b HTTP/1.1\r\nContent-Length: +1\r\n\r\na", Length),
        ("PUT /b HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\na", Length),
        ("PUT /b HTTP/1.1\r\nContent-Length: 0x1\r\n\r\na", Length),
        ("PUT /b HTTP/1.1\r\nContent-Length: \r\n\r\na", Length),
        ("PUT /b HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", Length),
        ("PUT /b HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", Coding),
        ("PUT /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", Coding),
        ("PUT /b HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", Coding),
        ("PUT /b HTTP/1.1\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", Coding),
        ("PUT /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", Coding),
        ("PUT /b HTTP/1.1\r\nTransfer-Encoding: identity\r\n\r\n", Coding),
        ("PUT /b HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n", Coding),
        ("PUT /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n", Chunk),
        ("PUT /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\n0\r\n\r\n", Chunk),
        ("PUT /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n", Chunk),
        ("PUT /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\na\r\n0\r\n\r\n", Chunk),
        ("PUT /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\na: b\n\r\n", Chunk),
    ] {
        let bytes = wire.as_bytes();
        for at in 0..=bytes.len() {
            assert_eq!(scan([&bytes[..at], &bytes[at..]]), Err(why), "{wire:?} at {at}");
        }
        assert_eq!(scan(bytes.chunks(1)), Err(why), "{wire:?}");
    }
}

#[tokio::test]
async fn bytes_before_an_ambiguous_line_are_read_and_none_after_it() {
    let good = "GET /b HTTP/1.1\r\nHost: a\r\n\r\n";
    let (mut client, server) = tokio::io::duplex(1000);
    client.write_all(format!("{good}GET /c HTTP/1.1\r\nHost: a\nX: b\r\n\r\n").as_bytes()).await.unwrap();
    let mut framed = FramedConnection::new(server);
    let mut read = Vec::new();
    assert!(framed.read_to_end(&mut read).await.is_err());
    assert_eq!(read, format!("{good}GET /c HTTP/1.1\r\n").as_bytes(), "not whole, so that it is no request");
    assert_eq!(framed.into_parts().1, Some(AmbiguousFraming::BareLineFeed));
}

proptest! {
    #[test]
    fn a_head_with_a_bare_line_feed_never_passes_whole(
        lines in prop::collection::vec("[a-z]{1,8}: [ -~]{0,200}", 0..6),
        bare in any::<prop::sample::Index>(),
        size in 1usize..50,
    ) {
        let lines = lines.iter().map(|line| &**line);
        let all: Vec<&str> = ["GET / HTTP/1.1"].into_iter().chain(lines).chain([""]).collect();
        let bare = bare.index(all.len());
        let wire: String = all.iter().enumerate().map(|(at, line)| match at == bare {
            true => format!("{line}\n"),
            false => format!("{line}\r\n"),
        }).collect();
        prop_assert_eq!(scan(wire.as_bytes().chunks(size)), Err(AmbiguousFraming::BareLineFeed));
    }

    #[test]
    fn requests_cut_at_any_point_end_at_the_same_position(
        bodies in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..60)), 1..5),
        size in 1usize..80,
    ) {
        let mut wire = Vec::new();
        for (chunked, body) in &bodies {
            wire.extend_from_slice(b"PUT /b/k HTTP/1.1\r\nHost: a\r\n");
            if *chunked {
                wire.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
                for chunk in body.chunks(7) {
                    wire.extend_from_slice(format!("{:X};e=1\r\n", chunk.len()).as_bytes());
                    wire.extend_from_slice(chunk);
                    wire.extend_from_slice(b"\r\n");
                }
                wire.extend_from_slice(b"0\r\n\r\n");
            } else {
                wire.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
                wire.extend_from_slice(body);
            }
        }
        prop_assert_eq!(scan(wire.chunks(size)), Ok(FramingPosition::RequestLine));
    }
}
