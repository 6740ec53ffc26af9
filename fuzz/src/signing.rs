//! A public test key, and valid signatures by it. Decoders that run after authentication can only be
//! reached with them.

use hmac::{Hmac, KeyInit, Mac};
use http::HeaderValue;
use http::request::Parts;
use mlgw_api::AccessKeyRole;
use mlgw_auth::key::SigningAccessKey;
use mlgw_auth::principal::Principal;
use mlgw_auth::{AuthRules, Authenticated, KeySource, authenticate};
use mlgw_common::Secret;
use mlgw_common::Timestamp;
use mlgw_wire::access::OWNER;
use mlgw_wire::error::S3Error;
use mlgw_wire::query::Query;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::sync::{Arc, LazyLock};

pub(crate) const ACCESS_KEY: &str = "AK";
const SECRET: &str = "secret";
pub(crate) const DAY: &str = "20130524";
pub(crate) const DATE: &str = "20130524T000000Z";
pub(crate) const SCOPE: &str = "20130524/us-east-1/s3/aws4_request";
/// The time of all requests: [`DATE`].
pub(crate) const NOW: Timestamp = Timestamp(1_369_353_600_000);
const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

pub(crate) static RULES: LazyLock<AuthRules> = LazyLock::new(|| AuthRules::new("s3"));

static KEY: LazyLock<Arc<SigningAccessKey>> = LazyLock::new(|| {
    let principal = Principal::new(ACCESS_KEY, OWNER, AccessKeyRole::Write, &[], &[]).expect("no globs");
    Arc::new(SigningAccessKey { principal: Arc::new(principal), secret: Secret::new(SECRET) })
});

/// Key source that contains [`ACCESS_KEY`] only.
pub(crate) struct Keys;

impl KeySource for Keys {
    fn find(&self, access_key: &str) -> Option<Arc<SigningAccessKey>> {
        (access_key == ACCESS_KEY).then(|| Arc::clone(&KEY))
    }
}

pub(crate) fn verify(head: &Parts) -> Result<Authenticated, S3Error> {
    let query = Query::parse(head.uri.query().unwrap_or_default());
    authenticate(head, &query, &Keys, NOW, &RULES)
}

fn hmac(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length");
    mac.update(text);
    mac.finalize().into_bytes().to_vec()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the signature of `text` in [`SCOPE`].
pub(crate) fn sign(text: &[u8]) -> String {
    let key = ["us-east-1", "s3", "aws4_request"]
        .iter()
        .fold(hmac(format!("AWS4{SECRET}").as_bytes(), DAY.as_bytes()), |key, part| {
            hmac(&key, part.as_bytes())
        });
    hex(&hmac(&key, text))
}

/// Signs a request whose body `payload` describes, and returns it with its signature. The string to sign is
/// read from the refusal of a wrong signature.
pub(crate) fn signed(mut head: Parts, payload: &'static str) -> (Parts, String) {
    head.headers.insert("host", HeaderValue::from_static("h"));
    head.headers.insert("x-amz-date", HeaderValue::from_static(DATE));
    head.headers.insert("x-amz-content-sha256", HeaderValue::from_static(payload));
    let mut names: Vec<String> = head.headers.keys().map(ToString::to_string).collect();
    names.sort();
    let names = names.join(";");
    let authorize = |head: &mut Parts, signature: &str| {
        let value = format!(
            "AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{SCOPE}, SignedHeaders={names}, Signature={signature}"
        );
        head.headers.insert("authorization", HeaderValue::from_str(&value).expect("ASCII"));
    };
    authorize(&mut head, &"0".repeat(64));
    let refusal = verify(&head).expect_err("a signature of zeros");
    let to_sign = refusal.get("StringToSign").unwrap_or_else(|| panic!("what is to be signed: {refusal}"));
    let signature = sign(to_sign.as_bytes());
    authorize(&mut head, &signature);
    (head, signature)
}

/// Returns the signature of a chunk that follows the signature `previous`.
pub(crate) fn chunk_signature(previous: &str, chunk: &[u8]) -> String {
    let hash = hex(&Sha256::digest(chunk));
    sign(format!("AWS4-HMAC-SHA256-PAYLOAD\n{DATE}\n{SCOPE}\n{previous}\n{EMPTY_SHA256}\n{hash}").as_bytes())
}

/// Returns the signature of trailer lines that follow the signature `previous`.
pub(crate) fn trailer_signature(previous: &str, lines: &str) -> String {
    let hash = hex(&Sha256::digest(lines));
    sign(format!("AWS4-HMAC-SHA256-TRAILER\n{DATE}\n{SCOPE}\n{previous}\n{hash}").as_bytes())
}
