//! Frames on exclusive and multiplexed connections: one byte of kind, four bytes of length (big-endian) and
//! the payload. Pure.
//!
//! Both sides send a hello first. On an exclusive connection the dialing side then sends a request, and the
//! other one an answer. That is complete for a call. For a stream, the data of its body follows, and an end:
//! a body without its end was cut off. The next request follows the end of the answer. Only the request of
//! appends has a body: data and an end, which the dialing side sends after the head of the answer; it is the
//! last request of its connection. The accepting side sends a goodbye before it closes the connection, and
//! still answers a request that crosses it.
//!
//! On a multiplexed connection requests and answers have numbers, which the dialing side chooses, and come in
//! any order. An answer has the head of a stream and its whole body, or the beginning and the key under which
//! the rest is requested ([`crate::rests`]). The dialing side cancels a request by its number.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use mlgw_common::limits::{
    HANDSHAKE_BYTES_MAX, PEER_CALL_BYTES_MAX, PEER_EXCLUSIVE_REQUEST_BYTES_MAX, PEER_STREAM_HEAD_BYTES_MAX,
};
use std::time::Duration;

/// Bytes of kind and length.
pub(crate) const FRAME_HEAD_BYTES: usize = 5;
/// Bytes of a request before its body or head, and of an answer.
const REQUEST_HEAD_BYTES: usize = 7;
const ANSWER_HEAD_BYTES: usize = 1;
/// The same on a multiplexed connection, and the bytes of a number.
const NUMBERED_REQUEST_HEAD_BYTES: usize = 10;
const NUMBERED_ANSWER_HEAD_BYTES: usize = 17;
const NUMBER_BYTES: usize = 4;
/// Bytes of the body in one answer on a multiplexed connection. They wait in memory for a slow client, within
/// what is charged for its connection.
pub(crate) const NUMBERED_BODY_BYTES_MAX: usize = 16 << 10;
/// Maximum number of bytes in one frame of data.
pub(crate) const DATA_BYTES_MAX: usize = PEER_CALL_BYTES_MAX;

/// Kind of a frame, by its number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    Hello = 1,
    Request = 2,
    Answer = 3,
    Data = 4,
    End = 5,
    Goodbye = 6,
    NumberedRequest = 7,
    NumberedAnswer = 8,
    Cancel = 9,
}

impl FrameKind {
    const ALL: [Self; 9] = [
        Self::Hello,
        Self::Request,
        Self::Answer,
        Self::Data,
        Self::End,
        Self::Goodbye,
        Self::NumberedRequest,
        Self::NumberedAnswer,
        Self::Cancel,
    ];

    fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    const fn payload_max(self) -> usize {
        match self {
            Self::Hello => HANDSHAKE_BYTES_MAX,
            Self::Request => REQUEST_HEAD_BYTES + PEER_EXCLUSIVE_REQUEST_BYTES_MAX,
            Self::Answer => ANSWER_HEAD_BYTES + PEER_CALL_BYTES_MAX,
            Self::Data => DATA_BYTES_MAX,
            Self::End | Self::Goodbye => 0,
            Self::NumberedRequest => NUMBERED_REQUEST_HEAD_BYTES + PEER_STREAM_HEAD_BYTES_MAX,
            Self::NumberedAnswer => {
                NUMBERED_ANSWER_HEAD_BYTES + PEER_STREAM_HEAD_BYTES_MAX + NUMBERED_BODY_BYTES_MAX
            }
            Self::Cancel => NUMBER_BYTES,
        }
    }
}

/// What a request is for, by its number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestTarget {
    /// A call; its bytes are the body.
    Call = 0,
    /// The stream of a client's request, which has no body; its bytes are the head.
    Stream = 1,
    /// A stream of appends, whose body follows the answer; its bytes are the head.
    Append = 2,
}

impl RequestTarget {
    fn of(number: u8) -> Option<Self> {
        [Self::Call, Self::Stream, Self::Append].into_iter().find(|target| *target as u8 == number)
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestFrame {
    pub(crate) target: RequestTarget,
    pub(crate) service: u16,
    /// Time for which its sender waits for an answer.
    pub(crate) wait: Duration,
    pub(crate) bytes: Bytes,
}

/// A request without a body, as one of many on its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NumberedRequest {
    pub(crate) number: u32,
    pub(crate) service: u16,
    /// Time for which its sender waits for an answer.
    pub(crate) wait: Duration,
    /// The head.
    pub(crate) head: Bytes,
}

/// What precedes the head of a stream in the answer of a numbered request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AnswerFields {
    pub(crate) number: u32,
    pub(crate) status: AnswerStatus,
    /// The key of the rest of the body; zero if there is none.
    pub(crate) rest: u64,
}

/// The answer of a numbered request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NumberedAnswer {
    pub(crate) fields: AnswerFields,
    /// The head of the answer, or the refusal of the service.
    pub(crate) head: Bytes,
    /// The body, or its beginning.
    pub(crate) body: Bytes,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerStatus {
    /// The service answered; the bytes are its answer, or the head of the answer of a stream.
    Answered = 0,
    /// The service refused; the bytes are its refusal.
    Refused = 1,
    /// No service got the request, because it is not one of this connection.
    NotUnderstood = 2,
    /// The service panicked, its answer is too large, or the body of a short answer failed.
    Failed = 3,
}

impl AnswerStatus {
    fn of(number: u8) -> Option<Self> {
        [Self::Answered, Self::Refused, Self::NotUnderstood, Self::Failed]
            .into_iter()
            .find(|status| *status as u8 == number)
    }
}

/// A frame, or a part of the data of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Hello(Bytes),
    Request(RequestFrame),
    Answer(AnswerStatus, Bytes),
    Data(Bytes),
    End,
    Goodbye,
    NumberedRequest(NumberedRequest),
    NumberedAnswer(NumberedAnswer),
    Cancel(u32),
}

impl Frame {
    fn put(&self, out: &mut BytesMut) {
        match self {
            Self::Hello(bytes) => put_frame(out, FrameKind::Hello, &[bytes]),
            Self::Request(request) => put_request(out, request),
            Self::Answer(status, bytes) => put_answer(out, *status, bytes),
            Self::Data(bytes) => put_frame(out, FrameKind::Data, &[bytes]),
            Self::End => put_frame(out, FrameKind::End, &[]),
            Self::Goodbye => put_frame(out, FrameKind::Goodbye, &[]),
            Self::NumberedRequest(request) => put_numbered_request(out, request),
            Self::NumberedAnswer(answer) => {
                put_numbered_answer(out, answer.fields, &answer.head, std::slice::from_ref(&answer.body));
            }
            Self::Cancel(number) => put_cancel(out, *number),
        }
    }
}

/// Bytes that are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes that are no frame: {0}")]
pub(crate) struct BadFrame(&'static str);

/// Appends a frame whose payload consists of these parts.
pub(crate) fn put_frame(out: &mut BytesMut, kind: FrameKind, parts: &[&[u8]]) {
    put_frame_head(out, kind, parts.iter().map(|part| part.len()).sum());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// Appends the head of a frame, and makes room for its payload of this length.
fn put_frame_head(out: &mut BytesMut, kind: FrameKind, length: usize) {
    assert!(length <= kind.payload_max(), "the caller checks the length of a payload");
    out.reserve(FRAME_HEAD_BYTES + length);
    out.put_u8(kind as u8);
    out.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
}

/// Appends the head of a frame of data.
pub(crate) fn put_data_head(out: &mut BytesMut, bytes: usize) {
    assert!((1..=DATA_BYTES_MAX).contains(&bytes), "data has bytes, and no more than a frame");
    out.put_u8(FrameKind::Data as u8);
    out.put_u32(u32::try_from(bytes).unwrap_or(u32::MAX));
}

/// Appends a request.
pub(crate) fn put_request(out: &mut BytesMut, request: &RequestFrame) {
    let mut head = [0; REQUEST_HEAD_BYTES];
    head[0] = request.target as u8;
    head[1..3].copy_from_slice(&request.service.to_be_bytes());
    head[3..].copy_from_slice(&wait_ms(request.wait).to_be_bytes());
    put_frame(out, FrameKind::Request, &[&head, &request.bytes]);
}

/// Appends an answer.
pub(crate) fn put_answer(out: &mut BytesMut, status: AnswerStatus, bytes: &[u8]) {
    put_frame(out, FrameKind::Answer, &[&[status as u8], bytes]);
}

/// Appends a request of a multiplexed connection.
pub(crate) fn put_numbered_request(out: &mut BytesMut, request: &NumberedRequest) {
    let mut head = [0; NUMBERED_REQUEST_HEAD_BYTES];
    head[..4].copy_from_slice(&request.number.to_be_bytes());
    head[4..6].copy_from_slice(&request.service.to_be_bytes());
    head[6..].copy_from_slice(&wait_ms(request.wait).to_be_bytes());
    put_frame(out, FrameKind::NumberedRequest, &[&head, &request.head]);
}

/// Appends an answer of a multiplexed connection: the head of the stream, and pieces of its body.
pub(crate) fn put_numbered_answer(out: &mut BytesMut, fields: AnswerFields, head: &[u8], pieces: &[Bytes]) {
    let body_bytes: usize = pieces.iter().map(Bytes::len).sum();
    let length = NUMBERED_ANSWER_HEAD_BYTES + head.len() + body_bytes;
    put_frame_head(out, FrameKind::NumberedAnswer, length);
    out.put_u32(fields.number);
    out.put_u8(fields.status as u8);
    out.put_u64(fields.rest);
    out.put_u32(u32::try_from(head.len()).unwrap_or(u32::MAX));
    out.extend_from_slice(head);
    pieces.iter().for_each(|piece| out.extend_from_slice(piece));
}

/// Appends the cancellation of a request of a multiplexed connection.
pub(crate) fn put_cancel(out: &mut BytesMut, number: u32) {
    put_frame(out, FrameKind::Cancel, &[&number.to_be_bytes()]);
}

fn wait_ms(wait: Duration) -> u32 {
    u32::try_from(wait.as_millis()).unwrap_or(u32::MAX)
}

/// The frames that a side of a connection receives. No other one is read: before the handshake has passed,
/// the other side may be anybody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReceivedFrames {
    /// A hello.
    #[default]
    Hello,
    /// Requests, on the accepting side.
    Requests,
    /// Answers and what follows them, on the dialing side.
    Answers,
    /// The body of appends, on the accepting side.
    Body,
    /// Requests of a multiplexed connection, on the accepting side.
    NumberedRequests,
    /// Answers of a multiplexed connection, on the dialing side.
    NumberedAnswers,
}

impl ReceivedFrames {
    const fn contain(self, kind: FrameKind) -> bool {
        match self {
            Self::Hello => matches!(kind, FrameKind::Hello),
            Self::Requests => matches!(kind, FrameKind::Request),
            Self::Body => matches!(kind, FrameKind::Data | FrameKind::End),
            Self::Answers => {
                matches!(kind, FrameKind::Answer | FrameKind::Data | FrameKind::End | FrameKind::Goodbye)
            }
            Self::NumberedRequests => matches!(kind, FrameKind::NumberedRequest | FrameKind::Cancel),
            Self::NumberedAnswers => matches!(kind, FrameKind::NumberedAnswer | FrameKind::Goodbye),
        }
    }
}

/// Takes frames from the bytes of a connection.
#[derive(Debug, Default)]
pub(crate) struct FrameDecoder {
    received: ReceivedFrames,
    /// Bytes of the current frame of data that have not arrived.
    data_left: usize,
}

impl FrameDecoder {
    /// Takes only these frames from now on.
    pub(crate) const fn receive(&mut self, frames: ReceivedFrames) {
        self.received = frames;
    }

    /// Takes the next frame from the begin of `bytes`, or a part of the data of one; `None` if more bytes are
    /// needed.
    ///
    /// # Errors
    /// See [`BadFrame`].
    pub(crate) fn next(&mut self, bytes: &mut BytesMut) -> Result<Option<Frame>, BadFrame> {
        if self.data_left > 0 {
            return Ok(self.data(bytes));
        }
        let Some(head) = bytes.first_chunk::<FRAME_HEAD_BYTES>() else { return Ok(None) };
        let [kind, length @ ..] = *head;
        let kind = FrameKind::of(kind).filter(|kind| self.received.contain(*kind));
        let kind = kind.ok_or(BadFrame("a kind that is unknown, or none of this side"))?;
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length > kind.payload_max() {
            return Err(BadFrame("too long"));
        }
        if kind == FrameKind::Data {
            // The next frame could already be here, and would not be found.
            if length == 0 {
                return Err(BadFrame("data without bytes"));
            }
            bytes.advance(FRAME_HEAD_BYTES);
            self.data_left = length;
            return Ok(self.data(bytes));
        }
        if bytes.len() < FRAME_HEAD_BYTES + length {
            return Ok(None);
        }
        bytes.advance(FRAME_HEAD_BYTES);
        frame_of(kind, bytes.split_to(length).freeze()).map(Some)
    }

    /// The data that has arrived.
    fn data(&mut self, bytes: &mut BytesMut) -> Option<Frame> {
        let arrived = self.data_left.min(bytes.len());
        self.data_left -= arrived;
        (arrived > 0).then(|| Frame::Data(bytes.split_to(arrived).freeze()))
    }
}

/// Reads the frames that one side receives from bytes that arrive in pieces of this length, up to the first
/// bytes that are none, and returns them encoded again, data without heads. `side` is 0 for hellos, 1 for
/// requests, 2 for bodies of appends, 3 for numbered requests, 4 for numbered answers, and otherwise for
/// answers. For fuzzing.
#[must_use]
pub fn read_frames(side: u8, bytes: &[u8], piece: usize) -> Vec<u8> {
    let received = match side {
        0 => ReceivedFrames::Hello,
        1 => ReceivedFrames::Requests,
        2 => ReceivedFrames::Body,
        3 => ReceivedFrames::NumberedRequests,
        4 => ReceivedFrames::NumberedAnswers,
        _ => ReceivedFrames::Answers,
    };
    let (mut decoder, mut inbox) = (FrameDecoder { received, data_left: 0 }, BytesMut::new());
    let mut read = BytesMut::new();
    for piece in bytes.chunks(piece.max(1)) {
        inbox.extend_from_slice(piece);
        loop {
            match decoder.next(&mut inbox) {
                Ok(Some(Frame::Data(data))) => read.extend_from_slice(&data),
                Ok(Some(frame)) => frame.put(&mut read),
                Ok(None) => break,
                Err(_) => return read.to_vec(),
            }
        }
    }
    read.to_vec()
}

fn frame_of(kind: FrameKind, mut payload: Bytes) -> Result<Frame, BadFrame> {
    Ok(match kind {
        FrameKind::Hello => Frame::Hello(payload),
        FrameKind::Data => Frame::Data(payload),
        FrameKind::End => Frame::End,
        FrameKind::Goodbye => Frame::Goodbye,
        FrameKind::Request => {
            if payload.len() < REQUEST_HEAD_BYTES {
                return Err(BadFrame("a request without its head"));
            }
            let target = RequestTarget::of(payload.get_u8());
            let target = target.ok_or(BadFrame("a request for nothing known"))?;
            let service = payload.get_u16();
            let wait = Duration::from_millis(u64::from(payload.get_u32()));
            Frame::Request(RequestFrame { target, service, wait, bytes: payload })
        }
        FrameKind::Answer => {
            let status = payload.first().copied().and_then(AnswerStatus::of);
            let status = status.ok_or(BadFrame("an answer without a status"))?;
            Frame::Answer(status, payload.split_off(ANSWER_HEAD_BYTES))
        }
        FrameKind::NumberedRequest => Frame::NumberedRequest(numbered_request(payload)?),
        FrameKind::NumberedAnswer => Frame::NumberedAnswer(numbered_answer(&payload)?),
        FrameKind::Cancel if payload.len() == NUMBER_BYTES => Frame::Cancel(payload.get_u32()),
        FrameKind::Cancel => return Err(BadFrame("a cancellation without a number")),
    })
}

fn numbered_request(mut payload: Bytes) -> Result<NumberedRequest, BadFrame> {
    if payload.len() < NUMBERED_REQUEST_HEAD_BYTES {
        return Err(BadFrame("a request without its head"));
    }
    let (number, service) = (payload.get_u32(), payload.get_u16());
    let wait = Duration::from_millis(u64::from(payload.get_u32()));
    Ok(NumberedRequest { number, service, wait, head: payload })
}

/// The answer has bytes of its own: those of the connection are many times as many, and would stay as long.
fn numbered_answer(received: &[u8]) -> Result<NumberedAnswer, BadFrame> {
    if received.len() < NUMBERED_ANSWER_HEAD_BYTES {
        return Err(BadFrame("an answer without its head"));
    }
    let mut payload = Bytes::copy_from_slice(received);
    let number = payload.get_u32();
    let status = AnswerStatus::of(payload.get_u8()).ok_or(BadFrame("an answer without a status"))?;
    let rest = payload.get_u64();
    let head_bytes = usize::try_from(payload.get_u32()).unwrap_or(usize::MAX);
    if head_bytes > payload.len() {
        return Err(BadFrame("an answer whose head is longer than it"));
    }
    let head = payload.split_to(head_bytes);
    Ok(NumberedAnswer { fields: AnswerFields { number, status, rest }, head, body: payload })
}

#[cfg(test)]
mod tests {
    use super::{
        AnswerFields, AnswerStatus, DATA_BYTES_MAX, Frame, FrameDecoder, FrameKind, NumberedAnswer,
        NumberedRequest, ReceivedFrames, RequestFrame, RequestTarget, put_numbered_answer, put_request,
        read_frames,
    };
    use bytes::{Bytes, BytesMut};
    use mlgw_common::limits::{
        HANDSHAKE_BYTES_MAX, PEER_EXCLUSIVE_REQUEST_BYTES_MAX, PEER_STREAM_HEAD_BYTES_MAX,
    };
    use proptest::prelude::*;
    use std::time::Duration;

    const SIDES: [ReceivedFrames; 6] = [
        ReceivedFrames::Hello,
        ReceivedFrames::Requests,
        ReceivedFrames::Answers,
        ReceivedFrames::Body,
        ReceivedFrames::NumberedRequests,
        ReceivedFrames::NumberedAnswers,
    ];

    fn some_bytes() -> impl Strategy<Value = Bytes> {
        prop::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from)
    }

    fn frames(of: ReceivedFrames) -> BoxedStrategy<Frame> {
        let request = (0..3_u8, any::<u16>(), any::<u32>(), some_bytes());
        let request = request.prop_map(|(target, service, wait_ms, bytes)| {
            let wait = Duration::from_millis(u64::from(wait_ms));
            Frame::Request(RequestFrame { target: RequestTarget::of(target).unwrap(), service, wait, bytes })
        });
        let answer = (0..4_u8, some_bytes())
            .prop_map(|(status, bytes)| Frame::Answer(AnswerStatus::of(status).unwrap(), bytes));
        let data = prop::collection::vec(any::<u8>(), 1..300).prop_map(|data| Frame::Data(data.into()));
        match of {
            ReceivedFrames::Hello => some_bytes().prop_map(Frame::Hello).boxed(),
            ReceivedFrames::Requests => request.boxed(),
            ReceivedFrames::Answers => {
                prop_oneof![answer, data, Just(Frame::End), Just(Frame::Goodbye)].boxed()
            }
            ReceivedFrames::Body => prop_oneof![data, Just(Frame::End)].boxed(),
            ReceivedFrames::NumberedRequests => {
                prop_oneof![numbered_requests(), any::<u32>().prop_map(Frame::Cancel)].boxed()
            }
            ReceivedFrames::NumberedAnswers => prop_oneof![numbered_answers(), Just(Frame::Goodbye)].boxed(),
        }
    }

    fn numbered_requests() -> impl Strategy<Value = Frame> {
        (any::<u32>(), any::<u16>(), any::<u32>(), some_bytes()).prop_map(
            |(number, service, wait_ms, head)| {
                let wait = Duration::from_millis(u64::from(wait_ms));
                Frame::NumberedRequest(NumberedRequest { number, service, wait, head })
            },
        )
    }

    fn numbered_answers() -> impl Strategy<Value = Frame> {
        let answer = (any::<u32>(), 0..4_u8, any::<u64>(), some_bytes(), some_bytes());
        answer.prop_map(|(number, status, rest, head, body)| {
            let status = AnswerStatus::of(status).unwrap();
            let fields = AnswerFields { number, status, rest };
            Frame::NumberedAnswer(NumberedAnswer { fields, head, body })
        })
    }

    fn decoder(received: ReceivedFrames) -> FrameDecoder {
        let mut decoder = FrameDecoder::default();
        decoder.receive(received);
        decoder
    }

    /// Adjacent pieces of data as one.
    fn joined(frames: Vec<Frame>) -> Vec<Frame> {
        let mut joined: Vec<Frame> = Vec::new();
        for frame in frames {
            match (joined.last_mut(), frame) {
                (Some(Frame::Data(last)), Frame::Data(next)) => {
                    *last = [&last[..], &next[..]].concat().into()
                }
                (_, frame) => joined.push(frame),
            }
        }
        joined
    }

    fn sent_frames() -> impl Strategy<Value = (ReceivedFrames, Vec<Frame>)> {
        prop::sample::select(&SIDES[..])
            .prop_flat_map(|of| (Just(of), prop::collection::vec(frames(of), 0..12)))
    }

    proptest! {
        #[test]
        fn frames_are_read_back_whatever_pieces_they_come_in(
            (of, sent) in sent_frames(),
            piece in 1..400_usize,
        ) {
            let mut out = BytesMut::new();
            sent.iter().for_each(|frame| frame.put(&mut out));
            let (mut decoder, mut bytes, mut received) = (decoder(of), BytesMut::new(), Vec::new());
            for piece in out.chunks(piece) {
                bytes.extend_from_slice(piece);
                while let Some(frame) = decoder.next(&mut bytes).unwrap() {
                    received.push(frame);
                }
            }
            prop_assert!(bytes.is_empty());
            prop_assert_eq!(joined(received), joined(sent));
        }

        #[test]
        fn any_bytes_are_frames_or_an_error_whatever_pieces_they_come_in(
            side in 0..6_u8,
            bytes in prop::collection::vec(prop_oneof![0..10_u8, any::<u8>()], 0..400),
            piece in 1..400_usize,
        ) {
            let whole = read_frames(side, &bytes, bytes.len());
            prop_assert!(whole.len() <= bytes.len());
            prop_assert_eq!(read_frames(side, &bytes, piece), whole);
        }
    }

    #[test]
    fn frames_that_are_too_long_or_of_the_other_side_are_refused_before_they_arrive() {
        let refused = |of, bytes: &[u8]| decoder(of).next(&mut BytesMut::from(bytes)).is_err();
        let head = |kind: FrameKind, length: usize| {
            [&[kind as u8][..], &u32::try_from(length).unwrap().to_be_bytes()].concat()
        };
        let [hello, requests, answers, body, numbered_requests, numbered_answers] = SIDES;
        for (of, kind, most) in [
            (hello, FrameKind::Hello, HANDSHAKE_BYTES_MAX),
            (requests, FrameKind::Request, PEER_EXCLUSIVE_REQUEST_BYTES_MAX + 7),
            (answers, FrameKind::Data, DATA_BYTES_MAX),
            (answers, FrameKind::End, 0),
            (numbered_requests, FrameKind::NumberedRequest, PEER_STREAM_HEAD_BYTES_MAX + 10),
            (numbered_requests, FrameKind::Cancel, 4),
            (numbered_answers, FrameKind::NumberedAnswer, PEER_STREAM_HEAD_BYTES_MAX + (16 << 10) + 17),
        ] {
            assert!(!refused(of, &head(kind, most)) && refused(of, &head(kind, most + 1)), "{kind:?}");
            let is_of_bodies = matches!(kind, FrameKind::Data | FrameKind::End);
            let others = SIDES.into_iter().filter(|other| *other != of);
            for other in others.filter(|other| *other != body || !is_of_bodies) {
                assert!(refused(other, &head(kind, most)), "{kind:?} of {other:?}");
            }
        }
        assert!(!refused(body, &head(FrameKind::Data, 1)) && !refused(body, &head(FrameKind::End, 0)));
        assert!(refused(requests, &[0, 0, 0, 0, 0]) && refused(requests, &[7, 0, 0, 0, 0]));
        assert!(refused(requests, &[2, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0]), "a request of 6 bytes");
        assert!(refused(requests, &[2, 0, 0, 0, 7, 3, 0, 0, 0, 0, 0, 0]), "an unknown target");
        assert!(refused(answers, &[3, 0, 0, 0, 0]) && refused(answers, &[3, 0, 0, 0, 1, 4]));
        assert!(refused(answers, &[4, 0, 0, 0, 0]), "data without bytes");
        assert!(refused(numbered_requests, &[9, 0, 0, 0, 3, 0, 0, 0]), "a number of 3 bytes");
        let mut answer = [&[8, 0, 0, 0, 17][..], &[0; 17]].concat();
        assert!(!refused(numbered_answers, &answer));
        answer[21] = 1;
        assert!(refused(numbered_answers, &answer), "a head that is longer than the answer");
    }

    #[test]
    fn a_request_has_these_bytes() {
        let mut out = BytesMut::new();
        let (wait, bytes) = (Duration::from_millis(300), Bytes::from_static(b"head"));
        put_request(&mut out, &RequestFrame { target: RequestTarget::Stream, service: 258, wait, bytes });
        assert_eq!(out[..], *b"\x02\0\0\0\x0b\x01\x01\x02\0\0\x01\x2chead");
    }

    #[test]
    fn a_numbered_answer_has_these_bytes() {
        let fields = AnswerFields { number: 259, status: AnswerStatus::Refused, rest: 5 };
        let mut out = BytesMut::new();
        put_numbered_answer(
            &mut out,
            fields,
            b"head",
            &[Bytes::from_static(b"bo"), Bytes::from_static(b"dy")],
        );
        let expected = b"\x08\0\0\0\x19\0\0\x01\x03\x01\0\0\0\0\0\0\0\x05\0\0\0\x04headbody";
        assert_eq!(out[..], *expected);
    }
}
