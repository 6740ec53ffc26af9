//! Heads of forwarded requests, verdicts about them, and answers. Properties: a decoded value encodes to
//! bytes that decode to the same value; the pieces in which an answer arrives have no meaning.

use crate::input::Input;
use bytes::{Bytes, BytesMut};
use mlgw_forwarding::answer::{AnswerDecoder, AnswerError, AnswerFrame};
use mlgw_forwarding::{RoutingVerdict, decode_head, encode_head};

/// The input: the kind of the message, the length of a piece, then its bytes.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (kind, piece) = (input.byte(), input.byte());
    match kind % 3 {
        0 => check_head(input.0),
        1 => check_verdict(input.0),
        _ => check_answer(input, piece),
    }
}

fn check_head(bytes: &[u8]) {
    let Ok((head, context)) = decode_head(Bytes::copy_from_slice(bytes)) else { return };
    // The target may be longer when it is written in full.
    let Ok(again) = encode_head(&head, &context) else { return };
    let (head_again, context_again) = decode_head(again).expect("an encoded head decodes");
    assert_eq!(context_again, context);
    assert_eq!((&head_again.method, head_again.version), (&head.method, head.version));
    assert_eq!(head_again.uri.to_string(), head.uri.to_string());
    assert!(head_again.headers.iter().eq(head.headers.iter()));
}

fn check_verdict(bytes: &[u8]) {
    if let Ok(verdict) = RoutingVerdict::decode(bytes) {
        assert_eq!(RoutingVerdict::decode(&verdict.encode()), Ok(verdict));
    }
}

/// The frames of an answer and the bytes after them.
type DecodedAnswer = (Vec<AnswerFrame>, Vec<u8>);

/// Decodes an answer that arrives in `pieces`.
fn frames<'a>(mut pieces: impl Iterator<Item = &'a [u8]>) -> Result<DecodedAnswer, AnswerError> {
    let (mut decoder, mut frames) = (AnswerDecoder::default(), Vec::new());
    while !matches!(frames.last(), Some(AnswerFrame::Head(_))) {
        match decoder.next_frame()? {
            Some(frame) => frames.push(frame),
            None => match pieces.next() {
                Some(piece) => decoder.feed(Bytes::copy_from_slice(piece)),
                None => return Ok((frames, Vec::new())),
            },
        }
    }
    let mut rest = decoder.into_rest().to_vec();
    pieces.for_each(|piece| rest.extend_from_slice(piece));
    Ok((frames, rest))
}

fn check_answer(input: Input<'_>, piece: u8) {
    let whole = frames(std::iter::once(input.0));
    assert_eq!(frames(input.pieces(piece).into_iter()), whole);
    let Ok((found, _)) = whole else { return };
    let mut bytes = BytesMut::new();
    for frame in &found {
        frame.write(&mut bytes).expect("a decoded frame is short enough");
    }
    assert_eq!(frames(std::iter::once(&bytes[..])).map(|(again, _)| again), Ok(found));
}
