//! Requests signed by `aws-sigv4`, which the Rust SDK signs with.

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SignatureLocation,
    SigningSettings, UriPathNormalizationMode, sign,
};
use aws_sigv4::sign::v4::{SigningParams, sign_chunk, sign_trailer};
use bytes::Bytes;
use http::Request;
use http::request::Parts;
use mlgw_common::Timestamp;
use std::time::{Duration, SystemTime};

/// The access key of AWS's examples.
pub const ACCESS_KEY: &str = "AKIAIOSFODNN7EXAMPLE";
/// The secret of [`ACCESS_KEY`].
pub const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";

/// The time of AWS's examples: 24 May 2013, 0:00 UTC.
pub const NOW: Timestamp = Timestamp::from_secs(1_369_353_600);

/// Returns the head of a request with these headers.
///
/// # Panics
/// When there can be no such request.
#[must_use]
pub fn head(method: &str, target: &str, headers: &[(&str, &str)]) -> Parts {
    let request = Request::builder().method(method).uri(target);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    request.body(()).expect("a request").into_parts().0
}

/// A request to be signed.
pub struct RequestToSign<'a> {
    /// The method.
    pub method: &'a str,
    /// Path and query as sent.
    pub target: &'a str,
    /// Further headers.
    pub headers: &'a [(&'a str, &'a str)],
    /// The signed part of the body.
    pub body: SignableBody<'a>,
    /// Validity of a signature in the query. `None` for a signature in the header.
    pub expires: Option<Duration>,
    /// The region of the scope.
    pub region: &'a str,
}

impl Default for RequestToSign<'_> {
    fn default() -> Self {
        let body = SignableBody::UnsignedPayload;
        Self { method: "GET", target: "/b/k", headers: &[], body, expires: None, region: "us-east-1" }
    }
}

impl RequestToSign<'_> {
    /// Returns the head as it is sent, and its signature.
    ///
    /// # Panics
    /// When there can be no such request.
    #[must_use]
    pub fn sign(self) -> (Parts, String) {
        let uri = format!("http://localhost:9000{}", self.target);
        let signable = SignableRequest::new(self.method, &uri, self.headers.iter().copied(), self.body)
            .expect("it can be signed");
        let signed =
            with_params(self.region, settings(self.expires), |params| sign(signable, &params.into()));
        let (instructions, signature) = signed.expect("it can be signed").into_parts();
        let mut request = Request::builder().method(self.method).uri(&uri).header("host", "localhost:9000");
        for (name, value) in self.headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(()).expect("it can be signed");
        instructions.apply_to_request_http1x(&mut request);
        let mut head = request.into_parts().0;
        // In origin form, as most clients send it.
        head.uri =
            head.uri.path_and_query().expect("it can be signed").as_str().parse().expect("it can be signed");
        (head, signature)
    }
}

/// Returns the signature of a chunk that follows the one with signature `previous`.
///
/// # Panics
/// When it cannot be signed.
#[must_use]
pub fn chunk_signature(chunk: &[u8], previous: &str) -> String {
    let chunk = Bytes::copy_from_slice(chunk);
    with_params("us-east-1", (), |params| {
        sign_chunk(&chunk, previous, &params).expect("it can be signed").into_parts().1
    })
}

/// Returns the signature of a trailer that follows the last chunk.
///
/// # Panics
/// When it cannot be signed.
#[must_use]
pub fn trailer_signature(name: &'static str, value: &str, previous: &str) -> String {
    let mut headers = http::HeaderMap::new();
    headers.insert(name, value.parse().expect("it can be signed"));
    let headers = headers.try_into().expect("it can be signed");
    with_params("us-east-1", (), |params| {
        sign_trailer(&headers, previous, &params).expect("it can be signed").into_parts().1
    })
}

fn settings(expires: Option<Duration>) -> SigningSettings {
    let mut settings = SigningSettings::default();
    settings.percent_encoding_mode = PercentEncodingMode::Single;
    settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
    settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
    if expires.is_some() {
        settings.payload_checksum_kind = PayloadChecksumKind::NoHeader;
        settings.signature_location = SignatureLocation::QueryParams;
        settings.expires_in = expires;
    }
    settings
}

fn with_params<S: Default, R>(
    region: &str,
    settings: S,
    use_them: impl FnOnce(SigningParams<'_, S>) -> R,
) -> R {
    let identity = Credentials::new(ACCESS_KEY, SECRET, None, None, "tests").into();
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(NOW.as_millis().unsigned_abs());
    let params = SigningParams::builder().identity(&identity).region(region).name("s3").time(time);
    use_them(params.settings(settings).build().expect("it can be signed"))
}
