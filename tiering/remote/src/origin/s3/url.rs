//! URLs of an S3 origin: host, path, query. Keys are encoded, never normalised.

use crate::upstream::UpstreamSettings;
use mlgw_common::hide_url_secrets;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Characters that a path leaves unencoded: the unreserved ones of RFC 3986, and `/`.
const UNENCODED_IN_PATH: &AsciiSet = &UNENCODED_IN_QUERY.remove(b'/');
/// Characters that a query leaves unencoded.
const UNENCODED_IN_QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Base URL of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BucketUrl {
    /// `https` or `http`.
    scheme: String,
    /// Host and port.
    pub(super) authority: String,
    /// Prefix of all paths, without a trailing `/`.
    path: String,
}

impl BucketUrl {
    /// Returns the base URL of the bucket of an upstream.
    ///
    /// # Errors
    /// A description of the fault of its endpoint.
    pub(super) fn from_settings(settings: &UpstreamSettings) -> Result<Self, String> {
        let endpoint = settings.s3_endpoint();
        let bad = |why: &str| format!("its endpoint {:?} {why}", hide_url_secrets(&endpoint));
        let (scheme, rest) =
            endpoint.split_once("://").ok_or_else(|| bad("is not a URL such as https://host:port"))?;
        if !matches!(scheme, "http" | "https") {
            return Err(bad("is neither http nor https"));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.is_empty() || rest.contains(['?', '#', '@']) {
            return Err(bad("may have only a host, a port and a path"));
        }
        let path = path.trim_end_matches('/');
        let path = if path.is_empty() { String::new() } else { format!("/{path}") };
        let (authority, path) = match settings.is_bucket_in_host() {
            true => (format!("{}.{authority}", settings.bucket), path),
            false => (authority.to_owned(), format!("{path}/{}", settings.bucket)),
        };
        Ok(Self { scheme: scheme.to_owned(), authority, path })
    }

    /// Returns the URL of a key.
    pub(super) fn object(&self, key: &str) -> String {
        format!("{}/{}", self.root(), utf8_percent_encode(key, UNENCODED_IN_PATH))
    }

    /// Returns the URL of a key, with a query.
    pub(super) fn object_with(&self, key: &str, query: &[(&str, &str)]) -> String {
        format!("{}?{}", self.object(key), encoded_query(query))
    }

    /// Returns the URL of the bucket, with a query.
    pub(super) fn bucket(&self, query: &[(&str, &str)]) -> String {
        // If the bucket is in the path, no `/` follows it; if it is in the host, the path is `/`.
        let slash = if self.path.is_empty() { "/" } else { "" };
        format!("{}{slash}?{}", self.root(), encoded_query(query))
    }

    fn root(&self) -> String {
        format!("{}://{}{}", self.scheme, self.authority, self.path)
    }
}

fn encoded_query(query: &[(&str, &str)]) -> String {
    let pair =
        |(name, value): &(&str, &str)| format!("{name}={}", utf8_percent_encode(value, UNENCODED_IN_QUERY));
    query.iter().map(pair).collect::<Vec<_>>().join("&")
}

/// Returns a bucket and a key in the form in which a copy names its source.
pub(super) fn copy_source(bucket: &str, key: &str) -> String {
    format!("/{bucket}/{}", utf8_percent_encode(key, UNENCODED_IN_PATH))
}

#[cfg(test)]
mod tests {
    use super::BucketUrl;
    use crate::origin::s3::testing::settings;
    use crate::upstream::{BucketAddressing, UpstreamSettings};
    use mlgw_common::hide_url_secrets;

    fn base(endpoint: Option<&str>, bucket: &str, addressing: BucketAddressing) -> Result<BucketUrl, String> {
        let endpoint = endpoint.map(str::to_owned);
        BucketUrl::from_settings(&UpstreamSettings {
            endpoint,
            bucket: bucket.into(),
            addressing,
            ..settings("")
        })
    }

    #[test]
    fn the_bucket_is_in_the_host_at_aws_and_in_the_path_elsewhere() {
        let url = |endpoint, bucket, addressing| base(endpoint, bucket, addressing).unwrap().object("k");
        assert_eq!(url(None, "b", BucketAddressing::Auto), "https://b.s3.eu-x.amazonaws.com/k");
        assert_eq!(url(None, "b.c", BucketAddressing::Auto), "https://s3.eu-x.amazonaws.com/b.c/k");
        assert_eq!(url(Some("http://h:9/"), "b", BucketAddressing::Auto), "http://h:9/b/k");
        assert_eq!(url(Some("http://h:9/s3/"), "b", BucketAddressing::Auto), "http://h:9/s3/b/k");
        assert_eq!(url(Some("https://h"), "b", BucketAddressing::Virtual), "https://b.h/k");
        let china =
            UpstreamSettings { endpoint: None, bucket: "b".into(), region: "cn-x".into(), ..settings("") };
        assert_eq!(
            BucketUrl::from_settings(&china).unwrap().object("k"),
            "https://b.s3.cn-x.amazonaws.com.cn/k"
        );
    }

    #[test]
    fn keys_are_not_normalised() {
        let base = base(Some("http://h"), "b", BucketAddressing::Path).unwrap();
        assert_eq!(base.object("a//b/../c d+%/ü/"), "http://h/b/a//b/../c%20d%2B%25/%C3%BC/");
        assert!(base.object("../x").parse::<http::Uri>().unwrap().path().ends_with("/../x"));
        assert_eq!(base.bucket(&[("prefix", "a/b&c")]), "http://h/b?prefix=a%2Fb%26c");
    }

    #[test]
    fn an_invalid_endpoint_is_rejected() {
        for endpoint in ["h:9", "ftp://h", "http://", "http://u:p@h", "http://h/?q"] {
            let why = base(Some(endpoint), "b", BucketAddressing::Auto).unwrap_err();
            assert!(why.contains(&hide_url_secrets(endpoint)[..]), "{why}");
            assert!(!why.contains("u:p@"), "{why}");
        }
    }
}
