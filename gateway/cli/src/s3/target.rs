//! Finds the S3 API and the access key of a command.
//!
//! The endpoint is that of the options, of the AWS variables, or of the server on this host. The key is that
//! of `--profile`, of the AWS variables, or of `AWS_PROFILE`. Without any of them it is the key in the data
//! directory of the server on this host, or for another endpoint that of the profile `default`.

use crate::client::ServerTarget;
use crate::endpoint::ServerApi;
use crate::{CliError, Global, discover};
use clap::Args;
use mlgw_carrier::ProfileKeys;
use mlgw_common::{Secret, regular};
use std::path::PathBuf;

/// Options of every command over S3.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct S3Options {
    /// URL of the S3 API. Default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or the server that uses the data
    /// directory on this host.
    #[arg(long, value_name = "URL")]
    pub(super) s3_endpoint: Option<String>,
    /// Profile of the AWS credentials file to take the access key from. Default: AWS_ACCESS_KEY_ID and
    /// AWS_SECRET_ACCESS_KEY, or AWS_PROFILE.
    #[arg(long, value_name = "NAME")]
    pub(super) profile: Option<String>,
    /// PEM file of the certificate authorities to trust. Default: AWS_CA_BUNDLE, or those of this host.
    #[arg(long, value_name = "FILE")]
    pub(super) ca_file: Option<PathBuf>,
}

/// The S3 API that a command uses, and the access key for it.
#[derive(Clone, Debug)]
pub(super) struct S3Target {
    pub(super) endpoint: String,
    pub(super) region: String,
    pub(super) ca_file: Option<PathBuf>,
    pub(super) key: S3AccessKey,
}

/// An access key.
#[derive(Clone, Debug)]
pub(super) struct S3AccessKey {
    pub(super) access_key: String,
    pub(super) secret: Secret,
    pub(super) session_token: Option<Secret>,
    /// Source of the key, for messages.
    pub(super) source: String,
}

#[cfg(test)]
impl S3Target {
    /// Returns the API at this endpoint, with the temporary key `AK`, whose secrets contain `hush`.
    pub(super) fn for_test(endpoint: &str) -> Self {
        let key = S3AccessKey {
            access_key: "AK".into(),
            secret: Secret::new("secret-hush"),
            session_token: Some(Secret::new("token-hush")),
            source: "AWS_ACCESS_KEY_ID".into(),
        };
        Self { endpoint: endpoint.into(), region: "us-east-1".into(), ca_file: None, key }
    }
}

/// Returns the S3 API that the command addresses.
pub(super) fn target(options: &S3Options, global: &Global) -> Result<S3Target, CliError> {
    let finder = TargetFinder {
        variable: &|name| std::env::var(name).ok(),
        local: &|| discover::s3_target(global),
        read: &|path| regular::read_to_string(path).map_err(|error| error.to_string()),
    };
    finder.target(options)
}

/// The sources of endpoints and keys.
struct TargetFinder<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    /// The server on this host.
    local: &'a dyn Fn() -> Result<ServerTarget, CliError>,
    read: &'a dyn Fn(&std::path::Path) -> Result<String, String>,
}

impl TargetFinder<'_> {
    fn target(&self, options: &S3Options) -> Result<S3Target, CliError> {
        let given = options.s3_endpoint.clone();
        let given = given.or_else(|| self.first(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]));
        let given = given.map(|given| ServerApi::S3.base_url(&given)).transpose()?;
        let key = self.given_key(options)?;
        let (endpoint, key) = match (given, key) {
            (Some(endpoint), Some(key)) => (endpoint, key),
            (Some(endpoint), None) => {
                let key = self.key_for(&endpoint)?;
                (endpoint, key)
            }
            (None, key) => {
                let local = (self.local)()?;
                (local.endpoint.clone(), key.unwrap_or_else(|| key_of_host(local)))
            }
        };
        Ok(S3Target {
            endpoint,
            region: self
                .first(&["AWS_REGION", "AWS_DEFAULT_REGION"])
                .unwrap_or_else(|| "us-east-1".to_owned()),
            ca_file: options.ca_file.clone().or_else(|| self.first(&["AWS_CA_BUNDLE"]).map(PathBuf::from)),
            key,
        })
    }

    /// Returns the first of these variables that is not empty.
    fn first(&self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| (self.variable)(name).filter(|value| !value.is_empty()))
    }

    /// Returns the key that the options or the variables name.
    fn given_key(&self, options: &S3Options) -> Result<Option<S3AccessKey>, CliError> {
        if let Some(profile) = &options.profile {
            return self.profile(profile).map(Some);
        }
        match (self.first(&["AWS_ACCESS_KEY_ID"]), self.first(&["AWS_SECRET_ACCESS_KEY"])) {
            (Some(access_key), Some(secret)) => Ok(Some(S3AccessKey {
                access_key,
                secret: Secret::new(secret),
                session_token: self.first(&["AWS_SESSION_TOKEN"]).map(Secret::new),
                source: "AWS_ACCESS_KEY_ID".to_owned(),
            })),
            (None, None) => self.first(&["AWS_PROFILE"]).map(|profile| self.profile(&profile)).transpose(),
            (Some(_), None) => Err(missing("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID")),
            (None, Some(_)) => Err(missing("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")),
        }
    }

    /// Returns the key for an endpoint if none is given.
    fn key_for(&self, endpoint: &str) -> Result<S3AccessKey, CliError> {
        if let Some(local) = (self.local)().ok().filter(|local| local.endpoint == endpoint) {
            return Ok(key_of_host(local));
        }
        let default = (self.read)(&self.credentials_file()).ok();
        match default.is_some_and(|text| ProfileKeys::parse(&text, "default").is_some()) {
            true => self.profile("default"),
            false => Err(CliError::Usage(format!(
                "no access key for {endpoint}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a \
                 profile of {} with --profile. On a server's host, `mlgw access key create` makes a key",
                self.credentials_file().display()
            ))),
        }
    }

    fn credentials_file(&self) -> PathBuf {
        let file = self.first(&["AWS_SHARED_CREDENTIALS_FILE"]).map(PathBuf::from);
        file.unwrap_or_else(|| {
            PathBuf::from(self.first(&["HOME"]).unwrap_or_default()).join(".aws/credentials")
        })
    }

    fn profile(&self, profile: &str) -> Result<S3AccessKey, CliError> {
        let path = self.credentials_file();
        let wrong = |problem: &str| CliError::Usage(format!("{}: {problem}", path.display()));
        let text = (self.read)(&path).map_err(|error| wrong(&error))?;
        let keys = ProfileKeys::parse(&text, profile)
            .ok_or_else(|| wrong(&format!("has no profile [{profile}]")))?;
        let incomplete = |name| wrong(&format!("the profile [{profile}] has no {name}"));
        Ok(S3AccessKey {
            access_key: keys.access_key.ok_or_else(|| incomplete("aws_access_key_id"))?,
            secret: keys.secret.ok_or_else(|| incomplete("aws_secret_access_key"))?,
            session_token: keys.session_token,
            source: format!("the profile [{profile}] of {}", path.display()),
        })
    }
}

fn missing(variable: &str, other: &str) -> CliError {
    CliError::Usage(format!("{other} is set, but not {variable}: set both or neither"))
}

fn key_of_host(local: ServerTarget) -> S3AccessKey {
    S3AccessKey {
        access_key: local.access_key,
        secret: local.secret,
        session_token: None,
        source: "the data directory on this host".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{S3Options, S3Target, TargetFinder};
    use crate::CliError;
    use crate::client::ServerTarget;
    use mlgw_common::Secret;

    const FILE: &str = "[default]\naws_access_key_id = AKD\naws_secret_access_key = d\n\
                        [team]\naws_access_key_id = AKT\naws_secret_access_key = t\n[empty]\n";

    fn find(options: &S3Options, variables: &[(&str, &str)]) -> Result<S3Target, CliError> {
        let local = ServerTarget {
            endpoint: "http://127.0.0.1:9000".into(),
            access_key: "AKL".into(),
            secret: Secret::new("l"),
        };
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        let read = |path: &std::path::Path| match path.to_str() {
            Some("/u/.aws/credentials") => Ok(FILE.to_owned()),
            _ => Err("no such file".to_owned()),
        };
        TargetFinder { variable: &variable, local: &|| Ok(local.clone()), read: &read }.target(options)
    }

    fn found(options: &S3Options, variables: &[(&str, &str)]) -> (String, String) {
        let target = find(options, variables).unwrap();
        (target.endpoint, target.key.access_key)
    }

    #[test]
    fn the_strongest_source_decides() {
        let none = S3Options::default();
        let endpoint = S3Options { s3_endpoint: Some("http://h:1".into()), ..S3Options::default() };
        let keys = [("AWS_ACCESS_KEY_ID", "AKE"), ("AWS_SECRET_ACCESS_KEY", "e"), ("HOME", "/u")];
        let home = &keys[2..];
        let pair = |endpoint: &str, key: &str| (endpoint.to_owned(), key.to_owned());
        assert_eq!(found(&none, &[]), pair("http://127.0.0.1:9000", "AKL"));
        assert_eq!(found(&none, home), pair("http://127.0.0.1:9000", "AKL"), "no profile is named");
        assert_eq!(found(&none, &keys), pair("http://127.0.0.1:9000", "AKE"));
        assert_eq!(found(&endpoint, &keys), pair("http://h:1", "AKE"));
        assert_eq!(found(&endpoint, home), pair("http://h:1", "AKD"));
        let same = S3Options { s3_endpoint: Some("http://127.0.0.1:9000/".into()), ..S3Options::default() };
        assert_eq!(found(&same, home), pair("http://127.0.0.1:9000", "AKL"));
        let both = [("AWS_ENDPOINT_URL", "http://h:2"), ("AWS_ENDPOINT_URL_S3", "http://h:3")];
        let both = [&both, home, &[("AWS_PROFILE", "team")]].concat();
        assert_eq!(found(&none, &both), pair("http://h:3", "AKT"));
        let profile = S3Options { profile: Some("team".into()), ..endpoint };
        assert_eq!(found(&profile, &keys), pair("http://h:1", "AKT"));
    }

    #[test]
    fn a_missing_key_is_wrong_usage_with_the_next_step() {
        let none = S3Options::default();
        let elsewhere = S3Options { s3_endpoint: Some("http://h:1".into()), ..S3Options::default() };
        let secret = S3Options { s3_endpoint: Some("http://u:hush@h:1".into()), ..S3Options::default() };
        let profile = |name: &str| S3Options { profile: Some(name.into()), ..S3Options::default() };
        let home = [("HOME", "/u")];
        for (options, variables, words) in [
            (&elsewhere, &[][..], "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile"),
            (&secret, &[], "give a URL such as http://127.0.0.1:9000"),
            (&none, &[("AWS_ENDPOINT_URL", "http://h?t=hush")], "give a URL such as http://127.0.0.1:9000"),
            (&none, &[("AWS_ACCESS_KEY_ID", "AKE")], "but not AWS_SECRET_ACCESS_KEY"),
            (&none, &[("AWS_SECRET_ACCESS_KEY", "hush")], "but not AWS_ACCESS_KEY_ID"),
            (&profile("other"), &home, "/u/.aws/credentials: has no profile [other]"),
            (&profile("empty"), &home, "has no aws_access_key_id"),
            (&profile("team"), &[], "no such file"),
        ] {
            let error = find(options, variables).unwrap_err();
            assert!(error.status() == 2 && error.to_string().contains(words), "{words}: {error}");
            assert!(!error.to_string().contains("hush"), "{error}");
        }
    }
}
