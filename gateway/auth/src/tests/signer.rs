//! Verification of requests signed by `aws-sigv4`, the signer of the Rust SDK.

use super::authenticate;
use super::{OneKey, is_verified, verify};
use crate::{AuthRules, BodyRequirement};
use aws_sigv4::http_request::SignableBody;
use mlgw_testing::signer::{NOW, RequestToSign, SECRET};
use mlgw_wire::error::Code;
use proptest::prelude::*;
use std::time::Duration;

const TARGETS: &[&str] = &[
    "/",
    "/b",
    "/b/",
    "/b/a//b/../c/",
    "/b/a%20b%2Bc%25%F0%9F%98%80",
    "/b/k?uploads",
    "/b/k?partNumber=1&uploadId=0f",
    "/b?list-type=2&prefix=a%2Fb%20c&delimiter=%2F&start-after=%C3%A9&encoding-type=url",
    "/b?prefix=&delimiter=",
];

#[test]
fn header_signatures_are_verified_for_any_request() {
    for target in TARGETS {
        for method in ["GET", "PUT", "DELETE", "HEAD", "POST"] {
            assert!(
                is_verified(&RequestToSign { method, target, ..Default::default() }.sign().0),
                "{method} {target}"
            );
        }
    }
}

#[test]
fn presigned_urls_are_verified_for_any_request() {
    for target in TARGETS {
        let expires = Some(Duration::from_secs(60));
        assert!(is_verified(&RequestToSign { target, expires, ..Default::default() }.sign().0), "{target}");
    }
}

#[test]
fn header_values_are_signed_trimmed_and_with_single_spaces() {
    let headers = &[
        ("x-amz-meta-a", "  two   words\tand a tab "),
        ("x-amz-meta-b", ""),
        ("content-type", "a; b=\"c\""),
    ];
    assert!(is_verified(&RequestToSign { method: "PUT", headers, ..Default::default() }.sign().0));
}

#[test]
fn a_header_sent_twice_is_signed_as_a_list() {
    let headers = &[("x-amz-meta-a", "1"), ("x-amz-meta-a", "2")];
    assert!(is_verified(&RequestToSign { headers, ..Default::default() }.sign().0));
}

#[test]
fn the_payload_follows_the_signed_value() {
    let payload =
        |body| verify(&RequestToSign { method: "PUT", body, ..Default::default() }.sign().0).unwrap().payload;
    assert!(matches!(payload(SignableBody::UnsignedPayload), BodyRequirement::Unsigned));
    assert!(
        matches!(payload(SignableBody::Bytes(b"hello")), BodyRequirement::Sha256(hash) if hash[0] == 0x2c)
    );
    assert!(matches!(
        payload(SignableBody::StreamingUnsignedPayloadTrailer),
        BodyRequirement::UnsignedTrailer
    ));
}

#[test]
fn a_target_in_absolute_form_is_signed_by_its_path_alone() {
    let (mut head, _) = RequestToSign { target: "/b/k?a=b", ..Default::default() }.sign();
    head.uri = "http://localhost:9000/b/k?a=b".parse().unwrap();
    assert!(is_verified(&head));
    head.headers.remove("host");
    assert!(is_verified(&head), "HTTP/2 has the host in the target only");
}

#[test]
fn a_path_re_encoded_by_an_intermediary_is_accepted() {
    let (mut head, _) = RequestToSign { target: "/b/a%2Bb%28c%29", ..Default::default() }.sign();
    for same in ["/b/a+b(c)", "/b/%61%2bb%28c)"] {
        head.uri = same.parse().unwrap();
        assert!(is_verified(&head), "{same}");
    }
    for other in ["/b/a%20b(c)", "/b/a+b(c)/", "/b//a+b(c)"] {
        head.uri = other.parse().unwrap();
        assert_eq!(verify(&head).unwrap_err().code(), Code::SignatureDoesNotMatch, "{other}");
    }
}

#[test]
fn any_region_is_accepted_unless_one_is_set() {
    let (head, _) = RequestToSign { region: "mars-north-1", ..Default::default() }.sign();
    assert!(is_verified(&head));
    let mut rules = AuthRules::new("s3");
    rules.region = Some("us-east-1".to_owned());
    let error = authenticate(&head, &OneKey::with_secret(SECRET), NOW, &rules).unwrap_err();
    assert_eq!(error.code(), Code::AuthorizationHeaderMalformed);
    assert_eq!(error.get("Region"), Some("us-east-1"));
}

#[test]
fn a_changed_secret_takes_effect_immediately() {
    let rules = AuthRules::new("s3");
    let (head, _) = RequestToSign::default().sign();
    for _ in 0..2 {
        assert!(authenticate(&head, &OneKey::with_secret(SECRET), NOW, &rules).is_ok());
        let error = authenticate(&head, &OneKey::with_secret("another"), NOW, &rules).unwrap_err();
        assert_eq!(error.code(), Code::SignatureDoesNotMatch);
    }
}

proptest! {
    #[test]
    fn any_key_and_any_query_value_verify(key in "\\PC{1,20}", value in "\\PC{0,20}", presign: bool) {
        use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode as encode};
        let target =
            format!("/b/{}?prefix={}", encode(&key, NON_ALPHANUMERIC), encode(&value, NON_ALPHANUMERIC));
        let expires = presign.then_some(Duration::from_secs(60));
        let (head, _) = RequestToSign { target: &target, expires, ..Default::default() }.sign();
        prop_assert!(is_verified(&head));
    }
}
