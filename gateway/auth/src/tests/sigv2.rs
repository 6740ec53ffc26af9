//! SigV2 in the query.

use super::OneKey;
use super::authenticate;
use crate::{AuthRules, Authenticated};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use http::request::Parts;
use mlgw_common::Timestamp;
use mlgw_testing::signer::{SECRET, head};
use mlgw_wire::error::{Code, S3Error};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use sha1::Sha1;

/// A moment before the example's URL expires.
const BEFORE: Timestamp = Timestamp::from_secs(1_175_139_619);

fn rules() -> AuthRules {
    let mut rules = AuthRules::new("s3");
    rules.domains = vec!["s3.amazonaws.com".to_owned()];
    rules
}

fn verify(head: &Parts, now: Timestamp) -> Result<Authenticated, S3Error> {
    authenticate(head, &OneKey::with_secret(SECRET), now, &rules())
}

/// Returns the example that AWS publishes.
fn example() -> Parts {
    head(
        "GET",
        "/photos/puppy.jpg?AWSAccessKeyId=AKIAIOSFODNN7EXAMPLE&Signature=NpgCjnDzrM%2BWFzoENXmpNDUsSn8%3D&\
         Expires=1175139620",
        &[("host", "johnsmith.s3.amazonaws.com")],
    )
}

/// Returns a head for `target` with a signature over `to_sign`.
fn signed(method: &str, target: &str, to_sign: &str, headers: &[(&str, &str)]) -> Parts {
    let mut mac = Hmac::<Sha1>::new_from_slice(SECRET.as_bytes()).unwrap();
    mac.update(to_sign.as_bytes());
    let signature = BASE64_STANDARD.encode(mac.finalize().into_bytes());
    let signature = utf8_percent_encode(&signature, NON_ALPHANUMERIC);
    let join = if target.contains('?') { '&' } else { '?' };
    let target =
        format!("{target}{join}AWSAccessKeyId=AKIAIOSFODNN7EXAMPLE&Expires=1175139620&Signature={signature}");
    head(method, &target, headers)
}

#[test]
fn the_published_example() {
    let authenticated = verify(&example(), BEFORE).unwrap();
    assert!(authenticated.principal.is_some());
    let error = verify(&example(), Timestamp::from_secs(1_175_139_621)).unwrap_err();
    assert_eq!((error.code(), error.text()), (Code::AccessDenied, "Request has expired"));
}

#[test]
fn a_bucket_in_the_path_is_signed_unchanged() {
    let head = signed("GET", "/b/a%20b", "GET\n\n\n1175139620\n/b/a%20b", &[("host", "10.0.0.1:9000")]);
    assert!(verify(&head, BEFORE).is_ok());
}

#[test]
fn a_bucket_alone_may_be_signed_with_a_slash_after_it() {
    for resource in ["/b", "/b/"] {
        let head = signed("GET", "/b?prefix=a", &format!("GET\n\n\n1175139620\n{resource}"), &[]);
        assert!(verify(&head, BEFORE).is_ok(), "{resource}");
    }
    let head = signed("GET", "/b/k", "GET\n\n\n1175139620\n/b/k/", &[]);
    assert_eq!(verify(&head, BEFORE).unwrap_err().code(), Code::SignatureDoesNotMatch);
}

#[test]
fn sub_resources_and_overrides_are_signed_decoded_and_sorted() {
    let head = signed(
        "GET",
        "/b/k?versionId=1&response-content-type=text%2Fplain&x-id=GetObject&acl",
        "GET\n\n\n1175139620\n/b/k?acl&response-content-type=text/plain&versionId=1",
        &[],
    );
    assert!(verify(&head, BEFORE).is_ok());
}

#[test]
fn amz_headers_are_signed_in_headers_and_query() {
    let head = signed(
        "PUT",
        "/b/k?x-amz-meta-b=2",
        "PUT\nmd5\ntext/plain\n1175139620\nx-amz-acl:private\nx-amz-meta-b:2\n/b/k",
        &[("content-md5", "md5"), ("content-type", "text/plain"), ("x-amz-acl", "private")],
    );
    assert!(verify(&head, BEFORE).is_ok());
}

#[test]
fn invalid_signatures_are_refused() {
    let mut other = example();
    other.uri = other.uri.to_string().replace("puppy", "kitten").parse().unwrap();
    assert_eq!(verify(&other, BEFORE).unwrap_err().code(), Code::SignatureDoesNotMatch);
    let mut acl = example();
    acl.headers.insert("x-amz-acl", "public-read".parse().unwrap());
    assert_eq!(verify(&acl, BEFORE).unwrap_err().code(), Code::SignatureDoesNotMatch);
    for target in [
        "/k?AWSAccessKeyId=AKIAIOSFODNN7EXAMPLE&Signature=x",
        "/k?Signature=x&Expires=never&AWSAccessKeyId=A",
    ] {
        assert_eq!(
            verify(&head("GET", target, &[]), BEFORE).unwrap_err().code(),
            Code::AccessDenied,
            "{target}"
        );
    }
    let token = signed("GET", "/b/k?x-amz-security-token=t", "", &[]);
    assert_eq!(verify(&token, BEFORE).unwrap_err().code(), Code::InvalidToken);
}

#[test]
fn sigv2_can_be_disabled() {
    let mut rules = rules();
    rules.sigv2 = false;
    let error = authenticate(&example(), &OneKey::with_secret(SECRET), BEFORE, &rules).unwrap_err();
    assert_eq!(error.code(), Code::InvalidRequest);
    assert!(error.text().contains("Please use AWS4-HMAC-SHA256"));
}
