//! Encodings: what is encoded decodes to the same value, golden bytes stay, hostile bytes are refused.

use crate::answer::{AnswerDecoder, AnswerError, ForwardedAnswerHead};
use crate::header_block::{self, HeaderBlockError};
use crate::route::RouteTarget;
use crate::{
    AnswerFrame, DeclaredBody, ForwardedContext, ForwardedTarget, HeadError, MalformedVerdict, MapEpoch,
    RoutingVerdict, UnconfirmedCause, decode_head, encode_head,
};
use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Version};
use mlgw_common::limits::{
    FORWARDED_ANSWER_HEAD_BYTES_MAX, FORWARDED_HEAD_BYTES_MAX, REQUEST_HEAD_BYTES_MAX, REQUEST_HEADERS_MAX,
};
use mlgw_common::{NodeId, Timestamp, hex};
use proptest::prelude::*;
use std::net::SocketAddr;

fn context() -> ForwardedContext {
    ForwardedContext {
        client: "192.0.2.7:50123".parse().unwrap(),
        is_secure: true,
        received: Timestamp(1_800_000_000_123),
        request_id: "018CC251F400010AB7".to_owned(),
        epoch: MapEpoch(7),
        target: ForwardedTarget::of(RouteTarget { bucket: Some("b"), key: Some("k ") }),
        body: DeclaredBody::Sized(5),
    }
}

fn head() -> Parts {
    let request = Request::put("/b/k%20?x=1").header("host", "h").header("x-amz-meta-a", "\u{e9}");
    request.body(()).unwrap().into_parts().0
}

/// Compares bytes with those of a file in `golden`.
fn assert_golden(bytes: &[u8], golden: &str) {
    let golden: String = golden.split_whitespace().collect();
    assert_eq!(hex::text(bytes), golden, "the bytes of the encoding");
}

#[test]
fn the_bytes_of_a_head_stay() {
    let bytes = encode_head(&head(), &context()).unwrap();
    assert_golden(&bytes, include_str!("golden/head.hex"));
}

#[test]
fn the_bytes_of_verdicts_stay() {
    let verdicts = [
        RoutingVerdict::Accepted { epoch: MapEpoch(7) },
        RoutingVerdict::NotMine { leader: Some(NodeId(3)), epoch: MapEpoch(8) },
        RoutingVerdict::NotMine { leader: None, epoch: MapEpoch(0) },
        RoutingVerdict::Busy { reason: "memory".into() },
        RoutingVerdict::Refused { reason: "version".into() },
        RoutingVerdict::Unconfirmed { cause: UnconfirmedCause::Majority, reason: "lost".into() },
    ];
    let lines: Vec<_> = include_str!("golden/verdicts.hex").lines().collect();
    assert_eq!(lines.len(), verdicts.len());
    for (verdict, line) in verdicts.iter().zip(lines) {
        assert_golden(&verdict.encode(), line);
        assert_eq!(RoutingVerdict::decode(&verdict.encode()).as_ref(), Ok(verdict));
    }
}

#[test]
fn the_bytes_of_an_answer_stay() {
    let mut bytes = BytesMut::new();
    AnswerFrame::BodyRequest.write(&mut bytes).unwrap();
    let headers =
        [(HeaderName::from_static("etag"), HeaderValue::from_static("\"e\""))].into_iter().collect();
    let head = ForwardedAnswerHead { status: StatusCode::PARTIAL_CONTENT, headers, body_bytes: Some(3) };
    AnswerFrame::Head(head).write(&mut bytes).unwrap();
    assert_golden(&bytes, include_str!("golden/answer.hex"));
}

#[test]
fn heads_of_other_versions_and_wrong_fields_are_refused() {
    let bytes = encode_head(&head(), &context()).unwrap();
    assert_eq!(bytes[..2], [8, 1], "the version is the first field");
    let later = [&[8, 2], &bytes[2..]].concat();
    assert_eq!(decode_head(later.into()).unwrap_err(), HeadError::Version(2));
    assert!(matches!(decode_head(Bytes::from_static(b"\xff\xff")), Err(HeadError::NotMessage(_))));
    let long = Bytes::from(vec![0; FORWARDED_HEAD_BYTES_MAX + 1]);
    assert_eq!(decode_head(long).unwrap_err(), HeadError::TooLong(FORWARDED_HEAD_BYTES_MAX + 1));
    // A field that is repeated replaces the first one.
    for (field, name) in [
        (&[0x1a, 1, b'z'][..], "request id"),
        (&[0x1a, 0], "request id"),
        (&[0x2a, 3, 1, 2, 3], "client address"),
        (&[0x30, 0x80, 0x80, 4], "client address"),
        (&[0x40, 30], "HTTP version"),
        (&[0x4a, 1, b' '], "method"),
        (&[0x52, 1, b' '], "target"),
        (&[0x52, 0], "target"),
        (&[0x60, 0], "length of the body"),
        (&[0x68, 0], "length of the body"),
    ] {
        let changed = [&bytes[..], field].concat();
        assert_eq!(decode_head(changed.into()).unwrap_err(), HeadError::Field(name), "{field:?}");
    }
    let not_text = [&bytes[..], &[0x72, 1, 0xff]].concat();
    assert!(matches!(decode_head(not_text.into()), Err(HeadError::NotMessage(_))), "a bucket of other bytes");
    let broken = [&bytes[..], &[0x5a, 3, 0, 1, 0]].concat();
    assert_eq!(decode_head(broken.into()).unwrap_err(), HeaderBlockError::Incomplete.into());
}

#[test]
fn a_head_that_is_too_long_is_not_encoded() {
    let mut head = head();
    head.uri = format!("http://{}/b", "h".repeat(60_000)).parse().unwrap();
    head.headers.insert("x-amz-meta-b", HeaderValue::from_str(&"v".repeat(60_000)).unwrap());
    assert!(matches!(encode_head(&head, &context()), Err(HeadError::TooLong(_))));
    head.headers.insert("x-amz-meta-b", HeaderValue::from_str(&"v".repeat(70_000)).unwrap());
    assert_eq!(encode_head(&head, &context()).unwrap_err(), HeaderBlockError::TooLong.into());
}

#[test]
fn a_target_is_compared_by_bucket_and_key_and_a_long_bucket_is_cut() {
    let target = |bucket, key| ForwardedTarget::of(RouteTarget { bucket, key });
    let all = [
        target(None, None),
        target(Some("b"), None),
        target(Some("b"), Some("k")),
        target(Some("c"), Some("k")),
        target(Some("b"), Some("l")),
    ];
    for (at, one) in all.iter().enumerate() {
        assert_eq!(all.iter().position(|other| other == one), Some(at));
    }
    // The longest target that a listener accepts.
    let mut head = head();
    let name = "\u{e9}".repeat(REQUEST_HEAD_BYTES_MAX / 2 - 1000);
    head.uri = format!("/{}", "b".repeat(name.len())).parse().unwrap();
    let context = ForwardedContext { target: target(Some(&name), None), ..context() };
    let (_, decoded) = decode_head(encode_head(&head, &context).unwrap()).unwrap();
    assert_eq!(decoded.target, target(Some(&name), None));
}

#[test]
fn header_lines_are_limited_in_number_and_content() {
    let line = [0, 1, 0, 1, b'a', b'b'];
    assert_eq!(
        header_block::decode(line.repeat(REQUEST_HEADERS_MAX).into()).unwrap().len(),
        REQUEST_HEADERS_MAX
    );
    let many = line.repeat(REQUEST_HEADERS_MAX + 1);
    assert_eq!(header_block::decode(many.into()), Err(HeaderBlockError::TooMany));
    for (bytes, error) in [
        (&[0, 1, 0][..], HeaderBlockError::Incomplete),
        (&[0, 1, 0, 2, b'a', b'b'], HeaderBlockError::Incomplete),
        (&[0, 0, 0, 1, b'b'], HeaderBlockError::Forbidden),
        (&[0, 1, 0, 1, b' ', b'b'], HeaderBlockError::Forbidden),
        (&[0, 1, 0, 1, b'a', b'\n'], HeaderBlockError::Forbidden),
    ] {
        assert_eq!(header_block::decode(Bytes::copy_from_slice(bytes)), Err(error), "{bytes:?}");
    }
}

#[test]
fn verdicts_that_are_not_well_formed_are_refused_and_long_reasons_are_cut() {
    for bytes in [&b""[..], b"\x0a", b"\xff", &[0; 2000]] {
        assert_eq!(RoutingVerdict::decode(bytes), Err(MalformedVerdict), "{bytes:?}");
    }
    let long = RoutingVerdict::Busy { reason: "\u{e9}".repeat(1000) };
    assert_eq!(
        RoutingVerdict::decode(&long.encode()),
        Ok(RoutingVerdict::Busy { reason: "\u{e9}".repeat(128) })
    );
}

#[test]
fn answers_that_are_not_well_formed_are_refused() {
    let decode = |bytes: &[u8]| {
        let mut decoder = AnswerDecoder::default();
        decoder.feed(Bytes::copy_from_slice(bytes));
        decoder.next_frame()
    };
    assert_eq!(decode(&[0, 0, 0, 0, 0]), Err(AnswerError::Malformed));
    assert_eq!(decode(&[1, 0, 0, 0, 1]), Err(AnswerError::Malformed));
    let long = [2, 0xff, 0xff, 0xff, 0xff];
    assert_eq!(decode(&long), Err(AnswerError::TooLong(0xffff_ffff)), "before the bytes arrive");
    assert_eq!(
        decode(&[2, 0, 0, 0, 3, 8, 0xe8, 7]),
        Err(AnswerError::Malformed),
        "no status has 999 and more"
    );
    assert_eq!(decode(&[2, 0, 0, 0, 2, 8, 100]), Err(AnswerError::Malformed), "an interim status");
    assert_eq!(decode(&[2, 0, 0, 0, 2, 8]), Ok(None), "more must arrive");
    let headers: HeaderMap = (0..3)
        .map(|_| (HeaderName::from_static("a"), HeaderValue::from_str(&"v".repeat(30_000)).unwrap()))
        .fold(HeaderMap::new(), |mut all, (name, value)| {
            all.append(name, value);
            all
        });
    let large = AnswerFrame::Head(ForwardedAnswerHead { headers, ..ForwardedAnswerHead::default() });
    let written = large.write(&mut BytesMut::new());
    assert!(matches!(written, Err(AnswerError::TooLong(bytes)) if bytes > FORWARDED_ANSWER_HEAD_BYTES_MAX));
}

fn headers() -> impl Strategy<Value = HeaderMap> {
    let name = "[a-z][a-z0-9-]{0,20}".prop_map(|name| HeaderName::from_bytes(name.as_bytes()).unwrap());
    let value = prop::collection::vec(prop_oneof![0x20_u8..=0x7e, 0x80_u8..=0xff, Just(b'\t')], 0..40)
        .prop_map(|value| HeaderValue::from_bytes(&value).unwrap());
    prop::collection::vec((name, value), 0..30).prop_map(|lines| {
        let mut headers = HeaderMap::new();
        lines.into_iter().for_each(|(name, value)| _ = headers.append(name, value));
        headers
    })
}

fn any_head() -> impl Strategy<Value = Parts> {
    let target = "(http://[a-z]{1,9}(:[1-9][0-9]{0,3})?)?/[!-\"$->@-~]{0,40}(\\?[!-\"$-~]{0,40})?";
    let target = prop_oneof![9 => target.prop_map(String::from), 1 => Just("*".to_owned())];
    let version = prop::sample::select(vec![Version::HTTP_10, Version::HTTP_11, Version::HTTP_2]);
    let parts = ("[A-Z]{1,10}", target, version, headers());
    parts.prop_filter_map("http refuses the target", |(method, target, version, headers)| {
        let request = Request::builder().method(method.as_bytes()).uri(target).version(version);
        let mut head = request.body(()).ok()?.into_parts().0;
        head.headers = headers;
        Some(head)
    })
}

fn any_context() -> impl Strategy<Value = ForwardedContext> {
    let body = prop_oneof![
        Just(DeclaredBody::Empty),
        (1..=u64::MAX).prop_map(DeclaredBody::Sized),
        Just(DeclaredBody::Unsized)
    ];
    let client = (any::<std::net::IpAddr>(), any::<u16>()).prop_map(SocketAddr::from);
    let name = || prop::option::of(".{0,40}");
    let target = (name(), name()).prop_map(|(bucket, key)| {
        ForwardedTarget::of(RouteTarget { bucket: bucket.as_deref(), key: key.as_deref() })
    });
    let parts = (client, any::<bool>(), any::<i64>(), "[0-9A-F]{1,32}", any::<u64>(), target, body);
    parts.prop_map(|(client, is_secure, received, request_id, epoch, target, body)| ForwardedContext {
        client,
        is_secure,
        received: Timestamp(received),
        request_id,
        epoch: MapEpoch(epoch),
        target,
        body,
    })
}

fn lines(headers: &HeaderMap) -> Vec<(&HeaderName, &HeaderValue)> {
    headers.iter().collect()
}

proptest! {
    #[test]
    fn a_head_decodes_to_what_was_encoded(head in any_head(), context in any_context()) {
        let bytes = encode_head(&head, &context).unwrap();
        let (again, about) = decode_head(bytes).unwrap();
        prop_assert_eq!(about, context);
        prop_assert_eq!((&again.method, &again.uri, again.version), (&head.method, &head.uri, head.version));
        prop_assert_eq!(again.uri.to_string(), head.uri.to_string());
        prop_assert_eq!(lines(&again.headers), lines(&head.headers), "in the same order");
    }

    #[test]
    fn an_answer_decodes_from_pieces_of_any_size(
        status in 200_u16..600,
        headers in headers(),
        body_bytes in any::<Option<u64>>(),
        is_wanted in any::<bool>(),
        rest in prop::collection::vec(any::<u8>(), 0..100),
        piece in 1_usize..200,
    ) {
        let head = ForwardedAnswerHead { status: StatusCode::from_u16(status).unwrap(), headers, body_bytes };
        let mut bytes = BytesMut::new();
        if is_wanted {
            AnswerFrame::BodyRequest.write(&mut bytes).unwrap();
        }
        AnswerFrame::Head(head.clone()).write(&mut bytes).unwrap();
        bytes.extend_from_slice(&rest);
        let (mut decoder, mut pieces) = (AnswerDecoder::default(), bytes.chunks(piece));
        let mut frames = Vec::new();
        while !matches!(frames.last(), Some(AnswerFrame::Head(_))) {
            match decoder.next_frame().unwrap() {
                Some(frame) => frames.push(frame),
                None => decoder.feed(Bytes::copy_from_slice(pieces.next().unwrap())),
            }
        }
        let mut expected = vec![AnswerFrame::Head(head)];
        if is_wanted {
            expected.insert(0, AnswerFrame::BodyRequest);
        }
        prop_assert_eq!(frames, expected);
        let mut after = decoder.into_rest().to_vec();
        pieces.for_each(|piece| after.extend_from_slice(piece));
        prop_assert_eq!(after, rest);
    }

    #[test]
    fn decoders_accept_any_bytes_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode_head(bytes.clone().into());
        let _ = RoutingVerdict::decode(&bytes);
        let mut decoder = AnswerDecoder::default();
        decoder.feed(bytes.into());
        let _ = decoder.next_frame();
    }
}
