//! Refusal of invalid signatures, with AWS's codes.

use super::authenticate;
use super::{OneKey, verify};
use crate::{AuthRules, BodyRequirement};
use http::request::Parts;
use http::{HeaderValue, Method, Uri};
use mlgw_common::Timestamp;
use mlgw_testing::signer::RequestToSign;
use mlgw_testing::signer::{NOW, SECRET, head};
use mlgw_wire::error::{Code, S3Error};
use proptest::prelude::*;
use std::time::Duration;

fn header() -> Parts {
    RequestToSign {
        target: "/b/k?a=b",
        headers: &[("x-amz-meta-a", "b"), ("range", "bytes=0-1")],
        ..Default::default()
    }
    .sign()
    .0
}

fn presigned() -> Parts {
    RequestToSign { target: "/b/k?a=b", expires: Some(Duration::from_secs(600)), ..Default::default() }
        .sign()
        .0
}

fn at(head: &Parts, secs: i64) -> Result<(), S3Error> {
    let now = Timestamp::from_secs(NOW.as_secs() + secs);
    authenticate(head, &OneKey::with_secret(SECRET), now, &AuthRules::new("s3")).map(|_| ())
}

fn code(head: &Parts) -> Code {
    verify(head).unwrap_err().code()
}

/// Returns the head with a piece of its `Authorization` header or its query replaced.
fn replaced(mut head: Parts, from: &str, to: &str) -> Parts {
    if let Some(value) = head.headers.get("authorization") {
        let value = value.to_str().unwrap();
        assert!(value.contains(from), "{value}");
        head.headers.insert("authorization", HeaderValue::from_str(&value.replace(from, to)).unwrap());
    } else {
        let target = head.uri.to_string();
        assert!(target.contains(from), "{target}");
        head.uri = target.replace(from, to).parse().unwrap();
    }
    head
}

#[test]
fn a_change_to_any_signed_part_is_detected() {
    for original in [header(), presigned()] {
        let change = |change: &dyn Fn(&mut Parts)| {
            let mut head = original.clone();
            change(&mut head);
            code(&head)
        };
        let uri = |f: &dyn Fn(String) -> String| f(original.uri.to_string()).parse::<Uri>().unwrap();
        assert_eq!(change(&|head| head.method = Method::PUT), Code::SignatureDoesNotMatch);
        assert_eq!(
            change(&|head| head.uri = uri(&|u| u.replace("/b/k", "/b/l"))),
            Code::SignatureDoesNotMatch
        );
        assert_eq!(change(&|head| head.uri = uri(&|u| u.replace("a=b", "a=c"))), Code::SignatureDoesNotMatch);
        assert_eq!(change(&|head| head.uri = uri(&|u| u + "&c=d")), Code::SignatureDoesNotMatch);
        let host = HeaderValue::from_static("elsewhere:9000");
        assert_eq!(
            change(&|head| drop(head.headers.insert("host", host.clone()))),
            Code::SignatureDoesNotMatch
        );
    }
    for name in ["x-amz-meta-a", "range", "x-amz-content-sha256"] {
        let mut head = header();
        let value =
            if name == "x-amz-content-sha256" { "STREAMING-UNSIGNED-PAYLOAD-TRAILER" } else { "other" };
        head.headers.insert(name, HeaderValue::from_static(value));
        assert_eq!(code(&head), Code::SignatureDoesNotMatch, "{name}");
        head.headers.append(name, HeaderValue::from_static("more"));
        assert_eq!(code(&head), Code::SignatureDoesNotMatch, "{name}");
    }
}

#[test]
fn a_mismatch_reports_the_expected_string_to_sign() {
    let mut head = header();
    head.method = Method::PUT;
    let error = verify(&head).unwrap_err();
    assert!(error.get("CanonicalRequest").unwrap().starts_with("PUT\n/b/k\na=b\nhost:localhost:9000\n"));
    assert!(
        error
            .get("StringToSign")
            .unwrap()
            .starts_with("AWS4-HMAC-SHA256\n20130524T000000Z\n20130524/us-east-1/s3/")
    );
}

#[test]
fn headers_with_an_effect_must_be_signed() {
    for original in [header(), presigned()] {
        let mut head = original;
        head.headers.insert("x-amz-acl", HeaderValue::from_static("public-read"));
        head.headers.insert("x-tracing", HeaderValue::from_static("1"));
        let error = verify(&head).unwrap_err();
        assert_eq!(error.code(), Code::AccessDenied);
        assert_eq!(error.get("HeadersNotSigned"), Some("x-amz-acl"));
    }
    let error = verify(&replaced(header(), "SignedHeaders=host;", "SignedHeaders=")).unwrap_err();
    assert_eq!(error.get("HeadersNotSigned"), Some("host"));
}

#[test]
fn a_request_is_valid_for_15_minutes() {
    for secs in [-900, 0, 900] {
        assert_eq!(at(&header(), secs), Ok(()));
    }
    for secs in [-901, 901] {
        let error = at(&header(), secs).unwrap_err();
        assert_eq!(error.code(), Code::RequestTimeTooSkewed);
        assert_eq!(error.get("MaxAllowedSkewMilliseconds"), Some("900000"));
    }
}

#[test]
fn a_presigned_url_is_valid_from_its_date_to_its_end() {
    for secs in [-900, 0, 600] {
        assert_eq!(at(&presigned(), secs), Ok(()));
    }
    let early = at(&presigned(), -901).unwrap_err();
    assert_eq!((early.code(), early.text()), (Code::AccessDenied, "Request is not yet valid"));
    let late = at(&presigned(), 601).unwrap_err();
    assert_eq!((late.code(), late.text()), (Code::AccessDenied, "Request has expired"));
    assert_eq!(late.get("Expires"), Some("2013-05-24T00:10:00.000Z"));
}

#[test]
fn a_wrong_presigned_url_returns_the_error_of_aws() {
    for (from, to, text) in [
        ("X-Amz-Expires=600", "X-Amz-Expires=604801", "must be less than a week"),
        ("X-Amz-Expires=600", "X-Amz-Expires=-1", "must be non-negative"),
        ("X-Amz-Expires=600", "X-Amz-Expires=soon", "should be a number"),
        ("X-Amz-Expires=600&", "", "requires the X-Amz-Algorithm"),
        ("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA1", "X-Amz-Algorithm only supports"),
        ("X-Amz-Date=2013", "X-Amz-Date=2O13", "X-Amz-Date must be in the ISO8601"),
        ("X-Amz-Date=20130524", "X-Amz-Date=20130525", "Invalid credential date"),
        ("%2Fs3%2F", "%2Fec2%2F", "incorrect service"),
        ("%2Fs3%2Faws4_request", "", "Credential is mal-formed"),
    ] {
        let error = verify(&replaced(presigned(), from, to)).unwrap_err();
        assert_eq!(error.code(), Code::AuthorizationQueryParametersError, "{to}");
        assert!(error.text().contains(text), "{to}: {}", error.text());
    }
    let token = replaced(presigned(), "X-Amz-Expires", "X-Amz-Security-Token=t&X-Amz-Expires");
    assert_eq!(code(&token), Code::InvalidToken);
}

#[test]
fn a_wrong_header_returns_the_error_of_aws() {
    for (from, to, expected) in [
        ("AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN8EXAMPLE", Code::InvalidAccessKeyId),
        ("/s3/", "/mlgw/", Code::AuthorizationHeaderMalformed),
        ("/20130524/", "/20130525/", Code::AuthorizationHeaderMalformed),
        ("AWS4-HMAC-SHA256 ", "AWS ", Code::InvalidRequest),
        ("SignedHeaders=host", "SignedHeaders=host;host", Code::SignatureDoesNotMatch),
    ] {
        assert_eq!(code(&replaced(header(), from, to)), expected, "{to}");
    }
    let without = |name: &str| {
        let mut head = header();
        head.headers.remove(name);
        verify(&head).unwrap_err()
    };
    assert_eq!(without("x-amz-date").code(), Code::AccessDenied);
    let error = without("x-amz-content-sha256");
    assert_eq!(error.text(), "Missing required header for this request: x-amz-content-sha256");
    let mut head = header();
    head.headers.insert("x-amz-content-sha256", HeaderValue::from_static("hello"));
    assert_eq!(code(&head), Code::InvalidArgument);
    let ecdsa = "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD";
    head.headers.insert("x-amz-content-sha256", HeaderValue::from_static(ecdsa));
    let error = verify(&head).unwrap_err();
    assert_eq!(error.code(), Code::NotImplemented);
    assert!(error.text().contains(ecdsa));
}

#[test]
fn two_signatures_in_a_request_are_refused() {
    let mut head = presigned();
    head.headers.insert("authorization", header().headers["authorization"].clone());
    let error = verify(&head).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.text().starts_with("Only one auth mechanism allowed"));
}

#[test]
fn a_request_without_a_signature_is_anonymous() {
    let anonymous = verify(&head("GET", "/b/k?x-id=GetObject", &[])).unwrap();
    assert!(anonymous.principal.is_none());
    assert!(matches!(anonymous.payload, BodyRequirement::Unsigned));
    let chunks = head("PUT", "/b/k", &[("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD")]);
    assert_eq!(code(&chunks), Code::InvalidRequest);
}

proptest! {
    #[test]
    fn every_other_signature_is_refused(at in 0usize..64, digit in "[0-9a-fA-F]", in_query: bool) {
        let original = if in_query { presigned() } else { header() };
        let text = match original.headers.get("authorization") {
            Some(value) => value.to_str().unwrap().to_owned(),
            None => original.uri.to_string(),
        };
        let begin = text.find("Signature=").unwrap() + "Signature=".len();
        let right = &text[begin..begin + 64];
        let mut wrong = right.to_owned();
        wrong.replace_range(at..=at, &digit);
        prop_assume!(wrong != right);
        prop_assert_eq!(code(&replaced(original, right, &wrong)), Code::SignatureDoesNotMatch);
    }

    #[test]
    fn no_header_or_query_causes_a_panic(
        authorization in prop::option::of("(AWS4-HMAC-SHA256 )?\
            (Credential=|SignedHeaders=|Signature=|[ -~]{0,8}|/|,){0,8}"),
        query in "((X-Amz-(Algorithm|Credential|Date|Expires|SignedHeaders|Signature)|Signature|Expires|\
            AWSAccessKeyId)=[A-Za-z0-9%/+._-]{0,20}&?){0,8}",
        date in prop::option::of("[0-9TZ]{0,16}"),
    ) {
        let target = format!("/b/k?{query}");
        let mut headers = vec![("host", "h")];
        headers.extend(authorization.as_deref().map(|value| ("authorization", value)));
        headers.extend(date.as_deref().map(|value| ("x-amz-date", value)));
        let signed = verify(&head("GET", &target, &headers)).is_ok_and(|who| who.principal.is_some());
        prop_assert!(!signed);
    }
}
