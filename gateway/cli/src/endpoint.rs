//! URLs of the APIs that commands use. Pure.
//!
//! Messages contain them, so a URL that may have a password is refused without being repeated.

use super::CliError;
use http::Uri;

/// An API of a server, by the example of its URL for messages.
#[derive(Clone, Copy, Debug)]
pub(super) enum ServerApi {
    Admin,
    S3,
}

impl ServerApi {
    /// Returns the URL of this API without a final `/`, its scheme in lower case.
    ///
    /// # Errors
    /// It is not an HTTP URL, or has a user, a query or a fragment.
    pub(super) fn base_url(self, endpoint: &str) -> Result<String, CliError> {
        let base = endpoint.trim_end_matches('/');
        let problem = if base.contains(['@', '?', '#']) {
            "the URL of an API has no user, query or fragment".to_owned()
        } else if !is_http_url(base) {
            format!("{endpoint}: not an HTTP URL")
        } else {
            return Ok(with_lower_scheme(base));
        };
        Err(CliError::Usage(format!("{problem}: give a URL such as {}", self.example())))
    }

    const fn example(self) -> &'static str {
        match self {
            Self::Admin => "http://127.0.0.1:9001",
            Self::S3 => "http://127.0.0.1:9000",
        }
    }
}

fn with_lower_scheme(url: &str) -> String {
    match url.split_once(':') {
        Some((scheme, rest)) => format!("{}:{rest}", scheme.to_ascii_lowercase()),
        None => url.to_owned(),
    }
}

fn is_http_url(text: &str) -> bool {
    text.parse::<Uri>().is_ok_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::ServerApi;

    #[test]
    fn an_endpoint_is_an_http_url_without_a_password() {
        for api in [ServerApi::Admin, ServerApi::S3] {
            assert_eq!(api.base_url("https://h:1/p/"), Ok("https://h:1/p".to_owned()));
            assert_eq!(api.base_url("HTTPS://H:1/P"), Ok("https://H:1/P".to_owned()));
            for endpoint in [
                "h:9000",
                "localhost",
                "ftp://h",
                "http://",
                "http://u:hush@h",
                "u:hush@h:9000",
                "http:/u:hush@h",
                "http://h?token=hush",
                "http://h#hush",
            ] {
                let error = api.base_url(endpoint).unwrap_err();
                assert!(error.status() == 2 && !error.to_string().contains("hush"), "{error}");
            }
        }
    }
}
