//! POST forms.

use super::OneKey;
use crate::AuthRules;
use crate::post::{FormFields, FormGrant, verify};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use mlgw_common::Timestamp;
use mlgw_testing::signer::{ACCESS_KEY, SECRET};
use mlgw_wire::error::{Code, S3Error};
use sha1::Sha1;

/// 29 December 2015, the day of AWS's example.
const NOW: Timestamp = Timestamp::from_secs(1_451_390_400);

const CREDENTIAL: &str = "AKIAIOSFODNN7EXAMPLE/20151229/us-east-1/s3/aws4_request";

/// Returns the policy of AWS's example, as its page encodes it: with CR LF.
fn example_policy() -> String {
    let lines = [
        r#"{ "expiration": "2015-12-30T12:00:00.000Z","#,
        r#"  "conditions": ["#,
        r#"    {"bucket": "sigv4examplebucket"},"#,
        r#"    ["starts-with", "$key", "user/user1/"],"#,
        r#"    {"acl": "public-read"},"#,
        r#"    {"success_action_redirect": "http://sigv4examplebucket.s3.amazonaws.com/successful_upload.html"},"#,
        r#"    ["starts-with", "$Content-Type", "image/"],"#,
        r#"    {"x-amz-meta-uuid": "14365123651274"},"#,
        r#"    {"x-amz-server-side-encryption": "AES256"},"#,
        r#"    ["starts-with", "$x-amz-meta-tag", ""],"#,
        "",
        r#"    {"x-amz-credential": "AKIAIOSFODNN7EXAMPLE/20151229/us-east-1/s3/aws4_request"},"#,
        r#"    {"x-amz-algorithm": "AWS4-HMAC-SHA256"},"#,
        r#"    {"x-amz-date": "20151229T000000Z" }"#,
        "  ]",
        "}",
    ];
    BASE64_STANDARD.encode(lines.join("\r\n"))
}

fn example() -> Vec<(String, String)> {
    let fields = [
        ("key", "user/user1/a.png"),
        ("acl", "public-read"),
        ("success_action_redirect", "http://sigv4examplebucket.s3.amazonaws.com/successful_upload.html"),
        ("Content-Type", "image/jpeg"),
        ("x-amz-meta-uuid", "14365123651274"),
        ("x-amz-server-side-encryption", "AES256"),
        ("X-Amz-Credential", CREDENTIAL),
        ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
        ("X-Amz-Date", "20151229T000000Z"),
        ("x-amz-meta-tag", ""),
        ("Policy", &example_policy()),
        ("X-Amz-Signature", "8afdbf4008c03f22c2cd3cdb72e4afbb1f6a588f3255ac628749a66d7f09699e"),
    ];
    fields.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
}

fn check(fields: &[(String, String)]) -> Result<FormGrant, S3Error> {
    let rules = AuthRules::new("s3");
    verify(&FormFields::new(fields)?, "sigv4examplebucket", &OneKey::with_secret(SECRET), NOW, &rules)
}

fn with(name: &str, value: &str) -> Result<FormGrant, S3Error> {
    let mut fields = example();
    fields.retain(|(n, _)| n != name);
    fields.push((name.to_owned(), value.to_owned()));
    check(&fields)
}

#[test]
fn the_published_example() {
    let grant = check(&example()).unwrap();
    assert_eq!(grant.principal.unwrap().access_key, ACCESS_KEY);
    assert_eq!(grant.length, 0..=u64::MAX);
}

#[test]
fn fields_without_a_condition_are_refused() {
    for (name, value, text) in [
        ("key", "user/user2/a.png", "Policy Condition failed"),
        ("acl", "private", "Policy Condition failed"),
        ("x-amz-meta-more", "1", "Extra input fields: x-amz-meta-more"),
    ] {
        let error = with(name, value).unwrap_err();
        assert_eq!(error.code(), Code::AccessDenied, "{name}");
        assert!(error.text().contains(text), "{}", error.text());
    }
}

#[test]
fn invalid_signatures_are_refused() {
    let other = BASE64_STANDARD.encode(r#"{"expiration":"2030-01-01T00:00:00Z","conditions":[]}"#);
    assert_eq!(with("Policy", &other).unwrap_err().code(), Code::SignatureDoesNotMatch);
    assert_eq!(with("X-Amz-Signature", &"0".repeat(64)).unwrap_err().code(), Code::SignatureDoesNotMatch);
    let unknown = CREDENTIAL.replace("AKIA", "BKIA");
    assert_eq!(with("X-Amz-Credential", &unknown).unwrap_err().code(), Code::InvalidAccessKeyId);
    assert_eq!(with("X-Amz-Credential", "a/b").unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(with("X-Amz-Date", "20151230T000000Z").unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(with("x-amz-security-token", "t").unwrap_err().code(), Code::InvalidToken);
    for missing in ["Policy", "X-Amz-Signature", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Algorithm"] {
        let fields: Vec<_> = example().into_iter().filter(|(name, _)| name != missing).collect();
        assert_eq!(check(&fields).unwrap_err().code(), Code::InvalidArgument, "{missing}");
    }
}

#[test]
fn a_repeated_field_is_refused() {
    let mut fields = example();
    fields.push(("KEY".to_owned(), "user/user2/a.png".to_owned()));
    assert_eq!(check(&fields).unwrap_err().code(), Code::InvalidArgument);
}

#[test]
fn the_older_signature_is_accepted_unless_switched_off() {
    let policy = BASE64_STANDARD.encode(concat!(
        r#"{"expiration":"2030-01-01T00:00:00Z","#,
        r#""conditions":[["eq","$key","a"],["content-length-range",1,9]]}"#
    ));
    let mut mac = Hmac::<Sha1>::new_from_slice(SECRET.as_bytes()).unwrap();
    mac.update(policy.as_bytes());
    let signature = BASE64_STANDARD.encode(mac.finalize().into_bytes());
    let fields =
        [("AWSAccessKeyId", ACCESS_KEY), ("policy", &policy), ("signature", &signature), ("key", "a")];
    let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(check(&fields).unwrap().length, 1..=9);
    let mut rules = AuthRules::new("s3");
    rules.sigv2 = false;
    let source = OneKey::with_secret(SECRET);
    let error = verify(&FormFields::new(&fields).unwrap(), "b", &source, NOW, &rules).unwrap_err();
    assert_eq!(error.code(), Code::InvalidRequest);
}

#[test]
fn a_form_without_a_policy_is_anonymous() {
    let fields = [("key".to_owned(), "a".to_owned())];
    assert!(check(&fields).unwrap().principal.is_none());
}
