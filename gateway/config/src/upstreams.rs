//! Sections `[upstream.NAME]`: one for each other object store, all with the same settings.

use super::error::did_you_mean;
use super::table::{Setting, SettingTexts, check};
use super::value::{CredentialKind, SettingType};
use super::{ConfigError, ConfigFinding, SettingOrigin};
use mlgw_common::ByteSize;
use mlgw_common::Secret;
use mlgw_remote::upstream::{BucketAddressing, CredentialSource, EtagTrust, UpstreamKind, UpstreamSettings};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

macro_rules! blocks {
    (
        $Block:ident,
        $SETTINGS:ident { $($(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:literal;)* }
    ) => {
        struct $Block { $($name: $type,)* }

        /// Settings of a section, under the key `upstream.NAME.…`.
        pub const $SETTINGS: &[Setting] = &[$(Setting {
            key: concat!("upstream.NAME.", stringify!($name)),
            doc: concat!($($doc),+),
            default: $default,
            expects: <$type as SettingType>::EXPECTS,
            live: false,
            check: check::<$type>,
        },)*];

        impl $Block {
            fn from_texts(mut texts: SettingTexts<'_>) -> Result<Self, String> {
                Ok(Self { $($name: texts.next()?,)* })
            }
        }
    };
}

blocks! { Block, UPSTREAM_SETTINGS {
    /// Protocol of the store. Buckets can be bound to stores of kind `s3`.
    kind: UpstreamKind = "s3";
    /// Bucket or container; for kinds `fs` and `webhdfs` a directory.
    bucket: Option<String> = "";
    /// Prefix of the keys of spilled segments.
    prefix: Option<String> = "";
    /// URL of the store; unset is the vendor's own.
    endpoint: Option<String> = "";
    /// Region; unset is us-east-1 for kind `s3`. Kinds `gcs`, `azure`, `webhdfs` and `fs` have none.
    region: Option<String> = "";
    /// Place of the bucket in the URL: path or host; `auto` is the path if `endpoint` is set.
    addressing: BucketAddressing = "auto";
    /// Source of credentials: `static` for this section, `env` for the vendor's variables, `file` for a file
    /// in the vendor's format, `chain` for the sources of AWS' tools, `none`. Unset is `chain` for kind `s3`,
    /// `none` for `fs` and `webhdfs`, `env` for the others.
    credentials: Option<CredentialKind> = "";
    /// With `static`: the access key; for Azure the account.
    access_key: Option<String> = "";
    /// With `static`: the secret of the access key.
    secret_key: Option<Secret> = "";
    /// With `static`: the token of temporary credentials.
    session_token: Option<Secret> = "";
    /// With `file`: the file.
    credentials_file: Option<PathBuf> = "";
    /// With `file`: the profile in it.
    profile: String = "default";
    /// PEM file of certificate authorities to trust instead of the machine's.
    ca_file: Option<PathBuf> = "";
    /// URL of an HTTP proxy.
    proxy: Option<String> = "";
    /// Encrypt segments before they are sent to the store.
    encrypt: bool = "false";
    /// Maximum bytes per second sent to and received from the store, for segments and remote-backed buckets
    /// together; 0: no limit.
    bytes_per_second: ByteSize = "0";
    /// Maximum requests per second to the store, for segments and remote-backed buckets together; 0: no
    /// limit.
    requests_per_second: u64 = "0";
    /// Maximum bytes per second of write-back objects that are sent to the store; 0: no limit.
    persist_bytes_per_second: ByteSize = "0";
    /// Maximum time until a response begins, and maximum pause within a response.
    timeout: Duration = "10s";
    /// Meaning of the ETags of remote-backed buckets. `auto`: an ETag of 32 hexadecimal digits is the MD5 of
    /// the bytes, unless the response names KMS or a customer key. `opaque`: no ETag is an MD5, and a HEAD
    /// confirms each write.
    etag: EtagTrust = "auto";
} }

/// A value of a section.
#[derive(Clone, Debug)]
struct UpstreamSettingValue {
    /// Index of the setting in [`UPSTREAM_SETTINGS`].
    index: usize,
    text: String,
    origin: SettingOrigin,
}

/// Values of the sections, weakest first.
#[derive(Clone, Debug, Default)]
pub(super) struct UpstreamSections(BTreeMap<String, Vec<UpstreamSettingValue>>);

impl UpstreamSections {
    /// Adds a value of `[upstream.name]`. Returns a finding if the name, the setting or the value is invalid.
    pub(super) fn add(
        &mut self,
        name: &str,
        setting: &str,
        text: String,
        origin: SettingOrigin,
    ) -> Option<ConfigFinding> {
        if let Err(reason) = check_name(name) {
            return Some(ConfigFinding { origin, reason });
        }
        let Some(index) = UPSTREAM_SETTINGS.iter().position(|known| setting_name(known) == setting) else {
            let names = UPSTREAM_SETTINGS.iter().map(|known| setting_name(known).to_owned());
            let reason =
                format!("unknown setting 'upstream.{name}.{setting}'{}", did_you_mean(setting, names));
            return Some(ConfigFinding { origin, reason });
        };
        let known = &UPSTREAM_SETTINGS[index];
        if let Err(why) = (known.check)(&text) {
            let expects = known.expects;
            let reason = format!("wrong value for 'upstream.{name}.{setting}': {why}; expected {expects}");
            return Some(ConfigFinding { origin, reason });
        }
        self.0.entry(name.to_owned()).or_default().push(UpstreamSettingValue { index, text, origin });
        None
    }

    /// Returns the complete sections.
    ///
    /// # Errors
    /// Lists all sections with missing or inconsistent settings.
    pub(super) fn merge(self) -> Result<Vec<UpstreamSection>, ConfigError> {
        let mut findings = Vec::new();
        let mut merged = Vec::new();
        for (name, given) in self.0 {
            let mut texts: Vec<String> = UPSTREAM_SETTINGS.iter().map(|s| s.default.to_owned()).collect();
            let mut origins = vec![SettingOrigin::BuiltIn; texts.len()];
            let begun = given.first().map_or(SettingOrigin::BuiltIn, |given| given.origin.clone());
            for UpstreamSettingValue { index, text, origin } in given {
                (texts[index], origins[index]) = (text, origin);
            }
            match Block::from_texts(SettingTexts::new(&texts)).and_then(|block| block.settings(&name)) {
                Ok(settings) => merged.push(UpstreamSection { settings, texts, origins }),
                Err(reason) => findings.push(ConfigFinding { origin: begun, reason }),
            }
        }
        if findings.is_empty() { Ok(merged) } else { Err(ConfigError(findings)) }
    }
}

/// A section with the origins of its values.
#[derive(Clone, Debug)]
pub struct UpstreamSection {
    /// Typed settings of the section.
    pub settings: UpstreamSettings,
    pub(super) texts: Vec<String>,
    origins: Vec<SettingOrigin>,
}

impl UpstreamSection {
    /// Iterates over the keys with their values in TOML form (secrets are hidden) and the origins.
    pub(super) fn values(&self) -> impl Iterator<Item = (String, String, &SettingOrigin)> {
        UPSTREAM_SETTINGS.iter().zip(&self.texts).zip(&self.origins).map(|((setting, text), origin)| {
            let key = setting.key.replacen("NAME", &self.settings.name, 1);
            (key, (setting.check)(text).unwrap_or_default(), origin)
        })
    }
}

/// Returns a setting's name within its section.
pub(super) fn setting_name(setting: &Setting) -> &'static str {
    setting.key.rsplit('.').next().unwrap_or_default()
}

fn check_name(name: &str) -> Result<(), String> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if (1..=63).contains(&name.len()) && name.bytes().all(fits) {
        return Ok(());
    }
    Err(format!("invalid upstream name {name:?}: expected 1 to 63 lower-case letters, digits and '-'"))
}

/// Returns the default source of credentials of a kind.
fn default_credentials(kind: UpstreamKind) -> CredentialKind {
    match kind {
        UpstreamKind::S3 => CredentialKind::Chain,
        UpstreamKind::Fs | UpstreamKind::WebHdfs => CredentialKind::None,
        UpstreamKind::Gcs
        | UpstreamKind::Azure
        | UpstreamKind::Oss
        | UpstreamKind::Cos
        | UpstreamKind::Obs => CredentialKind::Env,
    }
}

fn default_region(kind: UpstreamKind) -> &'static str {
    if kind == UpstreamKind::S3 { "us-east-1" } else { "" }
}

impl Block {
    fn settings(self, name: &str) -> Result<UpstreamSettings, String> {
        let key = |setting: &str| format!("'upstream.{name}.{setting}'");
        let Some(bucket) = self.bucket else {
            return Err(format!("{} is required: the bucket, or the directory", key("bucket")));
        };
        if self.timeout.is_zero() {
            return Err(format!("{} must be more than 0s", key("timeout")));
        }
        let kind = self.kind;
        let credentials = match self.credentials.unwrap_or_else(|| default_credentials(kind)) {
            CredentialKind::Static => match (self.access_key, self.secret_key) {
                (Some(access_key), Some(secret)) => {
                    CredentialSource::Static { access_key, secret, session_token: self.session_token }
                }
                _ => return Err(format!("{} and {} are required", key("access_key"), key("secret_key"))),
            },
            other if self.access_key.is_some() || self.secret_key.is_some() => {
                let (set, is) = (key("credentials"), other.to_text());
                return Err(format!("{set} is {is:?}; an access key is allowed only with \"static\""));
            }
            CredentialKind::Env => CredentialSource::Env,
            CredentialKind::File => {
                let path = self.credentials_file;
                let path = path.ok_or_else(|| format!("{} is required", key("credentials_file")))?;
                CredentialSource::File { path, profile: self.profile }
            }
            CredentialKind::Chain => CredentialSource::Chain,
            CredentialKind::None => CredentialSource::Anonymous,
        };
        Ok(UpstreamSettings {
            name: name.to_owned(),
            kind: self.kind,
            endpoint: self.endpoint,
            bucket,
            prefix: self.prefix.unwrap_or_default(),
            region: self.region.unwrap_or_else(|| default_region(kind).to_owned()),
            addressing: self.addressing,
            credentials,
            ca_file: self.ca_file,
            proxy: self.proxy,
            encrypt: self.encrypt,
            bytes_per_second: self.bytes_per_second.0,
            requests_per_second: self.requests_per_second,
            persist_bytes_per_second: self.persist_bytes_per_second.0,
            timeout: self.timeout,
            etag: self.etag,
        })
    }
}
