//! The sections `[upstream.NAME]`: one for each object store of others, all with the same settings.

use super::error::did_you_mean;
use super::table::{Setting, Texts, check};
use super::value::{CredentialKind, Value};
use super::{ConfigError, Finding, Origin};
use mlgw_common::ByteSize;
use mlgw_common::Secret;
use mlgw_remote::upstream::{Addressing, CredentialSource, EtagTrust, UpstreamKind, UpstreamSettings};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

macro_rules! blocks {
    ($Block:ident, $SETTINGS:ident { $($(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:literal;)* }) => {
        struct $Block { $($name: $type,)* }

        /// The settings of a section, under the key `upstream.NAME.…`.
        pub const $SETTINGS: &[Setting] = &[$(Setting {
            key: concat!("upstream.NAME.", stringify!($name)),
            doc: concat!($($doc),+),
            default: $default,
            expects: <$type as Value>::EXPECTS,
            live: false,
            check: check::<$type>,
        },)*];

        impl $Block {
            fn from_texts(mut texts: Texts<'_>) -> Result<Self, String> {
                Ok(Self { $($name: texts.next()?,)* })
            }
        }
    };
}

blocks! { Block, UPSTREAM_SETTINGS {
    /// Whose protocol it speaks. Buckets can be bound to those of kind `s3`.
    kind: UpstreamKind = "s3";
    /// Its bucket or container; of kind `fs` and `webhdfs` a directory.
    bucket: Option<String> = "";
    /// What all keys in it begin with, for segments that are spilled to it.
    prefix: Option<String> = "";
    /// Its URL; unset is the vendor's own.
    endpoint: Option<String> = "";
    /// Its region; unset is us-east-1 of kind `s3`. Of kind `gcs`, `azure`, `webhdfs` and `fs` there is none.
    region: Option<String> = "";
    /// Whether the bucket stands in the URL's path or host; `auto` is the path where `endpoint` is set.
    addressing: Addressing = "auto";
    /// Where credentials come from: `static` from here, `env` from the vendor's variables, `file` from a file
    /// of the vendor's form, `chain` as AWS' tools find them, `none`. Unset is `chain` of kind `s3`, `none`
    /// of `fs` and `webhdfs`, `env` of the others.
    credentials: Option<CredentialKind> = "";
    /// With `static`: the access key; of Azure the account.
    access_key: Option<String> = "";
    /// With `static`: its secret.
    secret_key: Option<Secret> = "";
    /// With `static`: the token of temporary credentials.
    session_token: Option<Secret> = "";
    /// With `file`: the file.
    credentials_file: Option<PathBuf> = "";
    /// With `file`: the profile in it.
    profile: String = "default";
    /// PEM file of the authorities to trust instead of the machine's.
    ca_file: Option<PathBuf> = "";
    /// URL of an HTTP proxy.
    proxy: Option<String> = "";
    /// Whether segments are encrypted before they are sent there.
    encrypt: bool = "false";
    /// Bytes sent to it and taken from it in a second at most, for segments and for bound buckets together; 0
    /// is no bound.
    bytes_per_second: ByteSize = "0";
    /// Requests to it in a second at most, for segments and for bound buckets together; 0 is no bound.
    requests_per_second: u64 = "0";
    /// Bytes of objects that were written back and are sent to it in a second at most; 0 is no bound.
    persist_bytes_per_second: ByteSize = "0";
    /// How long it may take to answer, or pause within an answer.
    timeout: Duration = "10s";
    /// What its ETags are, for buckets that are bound to it. `auto`: one of 32 hexadecimal digits is the
    /// MD5 of the bytes, unless the answer names KMS or a customer key. `opaque`: none is an MD5, and a
    /// HEAD confirms each write.
    etag: EtagTrust = "auto";
} }

/// A value that a section was given.
#[derive(Clone, Debug)]
struct Given {
    /// Its place in [`UPSTREAM_SETTINGS`].
    index: usize,
    text: String,
    origin: Origin,
}

/// What the sections were given, weakest first.
#[derive(Clone, Debug, Default)]
pub(super) struct GivenUpstreams(BTreeMap<String, Vec<Given>>);

impl GivenUpstreams {
    /// Takes a value of `[upstream.name]` in; what is wrong with it is found.
    pub(super) fn give(
        &mut self,
        name: &str,
        setting: &str,
        text: String,
        origin: Origin,
    ) -> Option<Finding> {
        if let Err(reason) = check_name(name) {
            return Some(Finding { origin, reason });
        }
        let Some(index) = UPSTREAM_SETTINGS.iter().position(|known| name_of(known) == setting) else {
            let names = UPSTREAM_SETTINGS.iter().map(|known| name_of(known).to_owned());
            let reason =
                format!("unknown setting 'upstream.{name}.{setting}'{}", did_you_mean(setting, names));
            return Some(Finding { origin, reason });
        };
        let known = &UPSTREAM_SETTINGS[index];
        if let Err(why) = (known.check)(&text) {
            let expects = known.expects;
            let reason = format!("wrong value for 'upstream.{name}.{setting}': {why}; expected {expects}");
            return Some(Finding { origin, reason });
        }
        self.0.entry(name.to_owned()).or_default().push(Given { index, text, origin });
        None
    }

    /// The sections, whole.
    ///
    /// # Errors
    /// Everything that does not go together.
    pub(super) fn merge(self) -> Result<Vec<Upstream>, ConfigError> {
        let mut findings = Vec::new();
        let mut merged = Vec::new();
        for (name, given) in self.0 {
            let mut texts: Vec<String> = UPSTREAM_SETTINGS.iter().map(|s| s.default.to_owned()).collect();
            let mut origins = vec![Origin::BuiltIn; texts.len()];
            let begun = given.first().map_or(Origin::BuiltIn, |given| given.origin.clone());
            for Given { index, text, origin } in given {
                (texts[index], origins[index]) = (text, origin);
            }
            match Block::from_texts(Texts::new(&texts)).and_then(|block| block.settings(&name)) {
                Ok(settings) => merged.push(Upstream { settings, texts, origins }),
                Err(reason) => findings.push(Finding { origin: begun, reason }),
            }
        }
        if findings.is_empty() { Ok(merged) } else { Err(ConfigError(findings)) }
    }
}

/// A section, and where its values were set.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// What it says.
    pub settings: UpstreamSettings,
    texts: Vec<String>,
    origins: Vec<Origin>,
}

impl Upstream {
    /// Each setting's key, its value as TOML writes it (a secret's is hidden), and where it was set.
    pub(super) fn values(&self) -> impl Iterator<Item = (String, String, &Origin)> {
        UPSTREAM_SETTINGS.iter().zip(&self.texts).zip(&self.origins).map(|((setting, text), origin)| {
            let key = setting.key.replacen("NAME", &self.settings.name, 1);
            (key, (setting.check)(text).unwrap_or_default(), origin)
        })
    }
}

/// A setting's name within its section.
pub(super) fn name_of(setting: &Setting) -> &'static str {
    setting.key.rsplit('.').next().unwrap_or_default()
}

fn check_name(name: &str) -> Result<(), String> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if (1..=63).contains(&name.len()) && name.bytes().all(fits) {
        return Ok(());
    }
    Err(format!("an upstream's name is 1 to 63 lower-case letters, digits and '-'; {name:?} is not"))
}

/// Where the credentials of a kind come from unless somebody says so.
fn usual_credentials(kind: UpstreamKind) -> CredentialKind {
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

fn usual_region(kind: UpstreamKind) -> &'static str {
    if kind == UpstreamKind::S3 { "us-east-1" } else { "" }
}

impl Block {
    fn settings(self, name: &str) -> Result<UpstreamSettings, String> {
        let key = |setting: &str| format!("'upstream.{name}.{setting}'");
        let Some(bucket) = self.bucket else {
            return Err(format!("{} is needed: which bucket, or directory, it is", key("bucket")));
        };
        if self.timeout.is_zero() {
            return Err(format!("{} is more than 0s", key("timeout")));
        }
        let kind = self.kind;
        let credentials = match self.credentials.unwrap_or_else(|| usual_credentials(kind)) {
            CredentialKind::Static => match (self.access_key, self.secret_key) {
                (Some(access_key), Some(secret)) => {
                    CredentialSource::Static { access_key, secret, session_token: self.session_token }
                }
                _ => return Err(format!("{} and {} are needed", key("access_key"), key("secret_key"))),
            },
            other if self.access_key.is_some() || self.secret_key.is_some() => {
                let (set, is) = (key("credentials"), other.to_text());
                return Err(format!(
                    "{set} is {is:?}, so there is no use for an access key here: it is for \"static\""
                ));
            }
            CredentialKind::Env => CredentialSource::Env,
            CredentialKind::File => {
                let path = self.credentials_file;
                let path = path.ok_or_else(|| format!("{} is needed", key("credentials_file")))?;
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
            region: self.region.unwrap_or_else(|| usual_region(kind).to_owned()),
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
