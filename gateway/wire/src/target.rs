//! Target of a request: bucket, key, query and operation, each parsed from the wire exactly once.
//!
//! The bucket comes from the path or, with a virtual-host name, from the host. The path is decoded only here;
//! `..`, `//` and a trailing `/` are ordinary bytes of a key.

pub use crate::query::Query;

use super::error::{Code, S3Error};
use super::operation::{Operation, RequestView, ResourceLevel, check_query};
use http::request::Parts;
use mlgw_common::{NameError, ObjectKey};
use percent_encoding::percent_decode_str;
use std::borrow::Cow;

impl<'a> Query<'a> {
    /// Returns the decoded value of `name`.
    ///
    /// # Errors
    /// `InvalidArgument` if the decoded bytes are not UTF-8.
    pub fn get(&self, name: &'static str) -> Result<Option<Cow<'a, str>>, S3Error> {
        self.raw(name).map(|value| decode_query_value(name, value)).transpose()
    }

    /// Same as [`Query::get`], but an empty value counts as absent.
    ///
    /// # Errors
    /// Same as [`Query::get`].
    pub fn get_non_empty(&self, name: &'static str) -> Result<Option<Cow<'a, str>>, S3Error> {
        Ok(self.get(name)?.filter(|value| !value.is_empty()))
    }

    /// Returns the value of `name` as a whole number.
    ///
    /// # Errors
    /// `InvalidArgument` if the value is not a number.
    pub fn number(&self, name: &'static str) -> Result<Option<u64>, S3Error> {
        let Some(value) = self.raw(name).filter(|value| !value.is_empty()) else { return Ok(None) };
        let number = value.parse().map_err(|_| {
            S3Error::invalid_argument(format!("{name} must be a whole number, 0 or more"), name, value)
        })?;
        Ok(Some(number))
    }
}

/// Decodes a value of a query, in which `+` is a space.
fn decode_query_value<'a>(name: &'static str, value: &'a str) -> Result<Cow<'a, str>, S3Error> {
    let not_utf8 = |_| S3Error::invalid_argument(format!("{name} must be UTF-8"), name, value);
    if value.contains('+') {
        let spaced = value.replace('+', " ");
        let decoded = percent_decode_str(&spaced).decode_utf8().map_err(not_utf8)?.into_owned();
        return Ok(Cow::Owned(decoded));
    }
    percent_decode_str(value).decode_utf8().map_err(not_utf8)
}

/// The bucket and key of a request.
#[derive(Debug, Default)]
pub struct RequestTarget {
    /// Name of the bucket as sent, not yet validated.
    pub bucket: Option<String>,
    /// The key, if the path continues after the bucket.
    pub key: Option<ObjectKey>,
}

impl RequestTarget {
    /// Parses the target from path and host. `domains` are the base names whose sub-domains are buckets.
    ///
    /// # Errors
    /// `InvalidURI` for bytes that are not UTF-8, `KeyTooLongError` for a long key, `InvalidBucketName` for a
    /// key without a bucket, `InvalidRequest` for more than one host.
    pub fn parse(head: &Parts, domains: &[String]) -> Result<Self, S3Error> {
        check_host(head)?;
        let path = head.uri.path();
        let path = path.strip_prefix('/').unwrap_or(path);
        if let Some(bucket) = virtual_bucket(head, domains) {
            return Ok(Self { bucket: Some(bucket), key: decode_key(path)? });
        }
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        if bucket.is_empty() {
            // `//key` names a key without a bucket.
            return match key {
                "" => Ok(Self::default()),
                _ => Err(S3Error::new(Code::InvalidBucketName)),
            };
        }
        let bucket = percent_decode_str(bucket).decode_utf8().map_err(|_| S3Error::new(Code::InvalidURI))?;
        Ok(Self { bucket: Some(bucket.into_owned()), key: decode_key(key)? })
    }

    /// Returns the kind of resource that the target names.
    #[must_use]
    pub fn level(&self) -> ResourceLevel {
        match (&self.bucket, &self.key) {
            (None, _) => ResourceLevel::Service,
            (Some(_), None) => ResourceLevel::Bucket,
            (Some(_), Some(_)) => ResourceLevel::Object,
        }
    }
}

/// Decodes the key part of a path; `None` if it is empty.
pub(super) fn decode_key(raw: &str) -> Result<Option<ObjectKey>, S3Error> {
    if raw.is_empty() {
        return Ok(None);
    }
    let decoded: Cow<'_, [u8]> = percent_decode_str(raw).into();
    match ObjectKey::from_bytes(&decoded) {
        Ok(key) => Ok(Some(key)),
        Err(NameError::KeyTooLong) => Err(S3Error::new(Code::KeyTooLongError)),
        Err(_) => Err(S3Error::new(Code::InvalidURI)),
    }
}

/// Returns the bucket of a virtual-host name, if the host is under one of `domains`.
fn virtual_bucket(head: &Parts, domains: &[String]) -> Option<String> {
    let host = match head.headers.get(http::header::HOST) {
        Some(host) => host.to_str().ok()?,
        None => head.uri.host()?,
    };
    bucket_of_host(host, domains).map(str::to_owned)
}

/// Returns the bucket in a host name (optionally with a port) under one of `domains`. The trailing dot of a
/// fully qualified name is ignored.
pub fn bucket_of_host<'a>(host: &'a str, domains: &[String]) -> Option<&'a str> {
    let name = host.rsplit_once(':').map_or(host, |(name, _port)| name);
    let name = name.strip_suffix('.').unwrap_or(name);
    domains.iter().find_map(|domain| {
        let split = name.len().checked_sub(domain.len() + 1).filter(|at| *at > 0)?;
        let (bucket, rest) = (name.get(..split)?, name.get(split..)?);
        let under = rest.starts_with('.') && rest[1..].eq_ignore_ascii_case(domain);
        under.then_some(bucket)
    })
}

/// Checks that a request names a single host.
fn check_host(head: &Parts) -> Result<(), S3Error> {
    let mut hosts = head.headers.get_all(http::header::HOST).iter();
    let first = hosts.next();
    // HTTP/2 names the host in the request's target. In HTTP/1.1 an absolute target may differ from Host.
    let differs = head.version >= http::Version::HTTP_2
        && matches!((first, head.uri.authority()), (Some(host), Some(authority))
            if !host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes()));
    if hosts.next().is_some() || differs {
        return Err(S3Error::new(Code::InvalidRequest).message("The request specifies more than one host."));
    }
    Ok(())
}

/// Checks a version id. Without versioning the only version is `null`.
///
/// # Errors
/// `InvalidArgument` for an empty id, `NoSuchVersion` for any other.
pub fn check_version(version: Option<&str>) -> Result<(), S3Error> {
    match version {
        None | Some("null") => Ok(()),
        Some("") => Err(S3Error::new(Code::InvalidArgument).message("Version id cannot be the empty string")),
        Some(version) => Err(S3Error::new(Code::NoSuchVersion).field("VersionId", version)),
    }
}

/// View of a request for [`Operation::select`].
pub struct HttpRequestView<'a>(pub &'a Parts, pub &'a Query<'a>);

impl RequestView for HttpRequestView<'_> {
    fn query(&self, name: &str) -> Option<&str> {
        self.1.raw(name)
    }

    fn has_header(&self, name: &str) -> bool {
        self.0.headers.contains_key(name)
    }
}

impl HttpRequestView<'_> {
    /// Returns the operation of the request, whose path names a resource of `level`.
    pub fn operation(&self, level: ResourceLevel) -> Operation {
        Operation::select(&self.0.method, level, self)
    }

    /// Checks that the query of a request for `operation` has no parameter that would be ignored but could
    /// change its effect.
    ///
    /// # Errors
    /// Same as [`check_query`].
    pub fn check_query(&self, level: ResourceLevel, operation: Operation) -> Result<(), S3Error> {
        check_query(&self.0.method, level, operation, self.1)
    }
}

#[cfg(test)]
mod tests {
    use super::{Query, RequestTarget};

    fn target(uri: &str, host: &str) -> Option<(Option<String>, Option<String>)> {
        let (head, ()) = http::Request::get(uri).header("host", host).body(()).unwrap().into_parts();
        let target = RequestTarget::parse(&head, &["localhost".into(), "s3.example.com".into()]).ok()?;
        Some((target.bucket, target.key.map(|k| k.as_str().to_owned())))
    }

    fn named(bucket: &str, key: &str) -> Option<(Option<String>, Option<String>)> {
        let filled = |s: &str| (!s.is_empty()).then(|| s.to_owned());
        Some((filled(bucket), filled(key)))
    }

    #[test]
    fn path_style_names_bucket_and_key() {
        assert_eq!(target("/", "127.0.0.1:9000"), named("", ""));
        assert_eq!(target("/b", "127.0.0.1"), named("b", ""));
        assert_eq!(target("/b/", "127.0.0.1"), named("b", ""));
        assert_eq!(target("/b/k//x/", "127.0.0.1"), named("b", "k//x/"));
        assert_eq!(target("/b/../%2e%2e/a+b%20c", "localhost"), named("b", "../../a+b c"));
        assert_eq!(target("http://h/b/k", "h"), named("b", "k"));
        assert_eq!(target("/b/%ff", "h"), None);
        assert_eq!(target("//k", "h"), None);
    }

    #[test]
    fn virtual_host_style_names_the_bucket_in_the_host() {
        assert_eq!(target("/k", "b.localhost:9000"), named("b", "k"));
        assert_eq!(target("/", "a.b.s3.example.com"), named("a.b", ""));
        assert_eq!(target("/b/k", "s3.example.com"), named("b", "k"));
        assert_eq!(target("/b/k", "xs3.example.com"), named("b", "k"));
        assert_eq!(target("/b/k", "[::1]:9000"), named("b", "k"));
        assert_eq!(target("/k", "b.localhost.:9000"), named("b", "k"));
        assert_eq!(target("/k", "b.LOCALHOST."), named("b", "k"));
        assert_eq!(target("/b/k", "localhost."), named("b", "k"));
        assert_eq!(target("/b/k", "b.localhost.."), named("b", "k"));
    }

    #[test]
    fn a_request_names_one_host() {
        let names = |hosts: &[&str], version, uri: &str| {
            let mut request = http::Request::get(uri).version(version);
            for host in hosts {
                request = request.header("host", *host);
            }
            RequestTarget::parse(&request.body(()).unwrap().into_parts().0, &[]).is_ok()
        };
        use http::Version;
        assert!(names(&["a"], Version::HTTP_11, "/b"));
        assert!(!names(&["a", "b"], Version::HTTP_11, "/b"));
        assert!(!names(&["a", "a"], Version::HTTP_11, "/b"));
        assert!(names(&["a"], Version::HTTP_11, "http://c/b"));
        assert!(names(&[], Version::HTTP_2, "http://a/b"));
        assert!(names(&["A"], Version::HTTP_2, "http://a/b"));
        assert!(!names(&["b"], Version::HTTP_2, "http://a/b"));
    }

    #[test]
    fn query_values_decode_as_forms() {
        let query = Query::parse("prefix=a%2Fb+c&delimiter=&uploads&n=12");
        assert_eq!(query.get("prefix").unwrap().as_deref(), Some("a/b c"));
        assert_eq!(query.get_non_empty("delimiter").unwrap(), None);
        assert_eq!(query.raw("uploads"), Some(""));
        assert_eq!(query.number("n").unwrap(), Some(12));
        assert!(Query::parse("n=x").number("n").is_err());
        assert!(Query::parse("n=%ff").get("n").is_err());
    }
}
