//! Construction of opendal operators from upstream settings, one function for each kind of store.
//!
//! A setting that a kind does not support is rejected by name: if it were silently ignored, the operator
//! would rely on it. Nothing is sent to the store here, so an upstream that is down does not prevent a start.
//! Credentials are passed to opendal's builders only; the signer refreshes expiring ones before they expire.

use std::fs::File;
use std::path::PathBuf;

use opendal::{Builder, Operator, services};
use reqsign_aws_v4::{EnvCredentialProvider, ProfileCredentialProvider};
use reqsign_core::ProvideCredentialChain;

use super::error::UpstreamError;
use super::settings::{BucketAddressing, CredentialSource, UpstreamKind, UpstreamSettings};
use mlgw_common::Secret;

/// Directory of unfinished files and blocks, below the prefix; no segment has this name.
pub(super) const UNFINISHED_DIR: &str = "unfinished/";
/// Default endpoint of Google Cloud Storage.
const GCS_ENDPOINT: &str = "https://storage.googleapis.com";

/// Operator of a store.
pub(super) struct Connected {
    pub(super) operator: Operator,
    /// URL of the store; `None` for a directory.
    pub(super) endpoint: Option<String>,
    /// Directory, if the store is one.
    pub(super) dir: Option<PathBuf>,
}

/// Invalid setting, with a description and advice.
type SettingFault = (&'static str, String);

/// Builds the operator that `settings` describe, without HTTP client and retries.
pub(super) fn connect(settings: &UpstreamSettings) -> Result<Connected, UpstreamError> {
    check_common(settings)
        .and_then(|()| match settings.kind {
            UpstreamKind::S3 => s3(settings),
            UpstreamKind::Gcs => gcs(settings),
            UpstreamKind::Azure => azure(settings),
            UpstreamKind::Oss => oss(settings),
            UpstreamKind::Cos => cos(settings),
            UpstreamKind::Obs => obs(settings),
            UpstreamKind::WebHdfs => webhdfs(settings),
            UpstreamKind::Fs => fs(settings),
        })
        .map_err(|(setting, fault)| UpstreamError::Setting {
            upstream: settings.name.clone(),
            setting,
            fault,
        })
}

/// Checks the settings that all kinds have in common.
fn check_common(settings: &UpstreamSettings) -> Result<(), SettingFault> {
    if settings.bucket.is_empty() {
        return Err(("bucket", "is empty; name the bucket, the container or the directory".to_owned()));
    }
    if settings.prefix.starts_with('/') || !(settings.prefix.is_empty() || settings.prefix.ends_with('/')) {
        return Err(("prefix", "must be empty, or end with `/` and not begin with `/`".to_owned()));
    }
    if settings.prefix.contains("//") || settings.prefix.split('/').any(|part| part == "." || part == "..") {
        return Err(("prefix", "must not contain `//`, `.` or `..`".to_owned()));
    }
    let addressed = matches!(settings.kind, UpstreamKind::S3 | UpstreamKind::Oss);
    if settings.addressing != BucketAddressing::Auto && !addressed {
        return Err(unused("addressing", "leave it at auto"));
    }
    let has_region = !matches!(
        settings.kind,
        UpstreamKind::Gcs | UpstreamKind::Azure | UpstreamKind::WebHdfs | UpstreamKind::Fs
    );
    if !has_region && !settings.region.is_empty() {
        return Err(unused("region", "leave it out"));
    }
    if let Some(endpoint) = &settings.endpoint
        && !(endpoint.starts_with("http://") || endpoint.starts_with("https://"))
    {
        return Err(("endpoint", "must begin with http:// or https://".to_owned()));
    }
    Ok(())
}

fn s3(settings: &UpstreamSettings) -> Result<Connected, SettingFault> {
    if settings.region.is_empty() {
        return Err(("region", "is missing; use us-east-1 for a store without regions".to_owned()));
    }
    let in_host = settings.is_bucket_in_host();
    if in_host && settings.bucket.contains('.') {
        return Err(("addressing", "cannot be virtual with a `.` in the bucket's name; use path".to_owned()));
    }
    let endpoint = settings.s3_endpoint();
    let mut builder = services::S3::default()
        .bucket(&settings.bucket)
        .root(&settings.prefix)
        .region(&settings.region)
        .endpoint(&endpoint);
    if in_host {
        builder = builder.enable_virtual_host_style();
    }
    let builder = match &settings.credentials {
        CredentialSource::Static { access_key, secret, session_token } => {
            let token = session_token.as_ref().map_or("", |token| token.expose());
            builder
                .disable_config_load()
                .disable_ec2_metadata()
                .access_key_id(access_key)
                .secret_access_key(secret.expose())
                .session_token_if(token)
        }
        CredentialSource::Env => builder
            .credential_provider_chain(ProvideCredentialChain::new().push(EnvCredentialProvider::new())),
        CredentialSource::File { path, profile } => {
            let path = path.to_string_lossy();
            let file = ProfileCredentialProvider::new().with_credentials_file(path).with_profile(profile);
            builder.credential_provider_chain(ProvideCredentialChain::new().push(file))
        }
        CredentialSource::Chain => builder,
        CredentialSource::Anonymous => builder.skip_signature(),
    };
    connected(builder, Some(endpoint))
}

/// Sets a session token unless it is empty: opendal would treat an empty one as set.
trait SetIfPresent {
    fn session_token_if(self, token: &str) -> Self;
}

impl SetIfPresent for services::S3 {
    fn session_token_if(self, token: &str) -> Self {
        if token.is_empty() { self } else { self.session_token(token) }
    }
}

fn gcs(settings: &UpstreamSettings) -> Result<Connected, SettingFault> {
    let endpoint = settings.endpoint.clone().unwrap_or_else(|| GCS_ENDPOINT.to_owned());
    let builder =
        services::Gcs::default().bucket(&settings.bucket).root(&settings.prefix).endpoint(&endpoint);
    let builder = match &settings.credentials {
        CredentialSource::Static { access_key, secret, session_token } => {
            if !access_key.is_empty() {
                return Err(unused(
                    "access_key",
                    "leave it out; the service account's key names its account",
                ));
            }
            no_token(session_token.as_ref())?;
            builder.disable_config_load().disable_vm_metadata().credential(secret.expose())
        }
        CredentialSource::Env => builder,
        CredentialSource::File { path, .. } => {
            builder.disable_config_load().disable_vm_metadata().credential_path(&path.to_string_lossy())
        }
        CredentialSource::Chain => return Err(no_chain()),
        CredentialSource::Anonymous => builder.skip_signature(),
    };
    connected(builder, Some(endpoint))
}

fn azure(settings: &UpstreamSettings) -> Result<Connected, SettingFault> {
    let account = match &settings.credentials {
        CredentialSource::Static { access_key, .. } if !access_key.is_empty() => Some(access_key),
        _ => None,
    };
    let of_account = || account.map(|account| format!("https://{account}.blob.core.windows.net"));
    let endpoint = settings.endpoint.clone().or_else(of_account);
    let endpoint = endpoint.ok_or_else(|| missing("https://<account>.blob.core.windows.net"))?;
    let builder =
        services::Azblob::default().container(&settings.bucket).root(&settings.prefix).endpoint(&endpoint);
    let builder = match &settings.credentials {
        CredentialSource::Static { access_key, secret, session_token } => {
            no_token(session_token.as_ref())?;
            builder.account_name(access_key).account_key(secret.expose())
        }
        CredentialSource::Env => builder,
        CredentialSource::File { .. } => return Err(no_file()),
        CredentialSource::Chain => return Err(no_chain()),
        CredentialSource::Anonymous => builder.skip_signature(),
    };
    connected(builder, Some(endpoint))
}

fn oss(settings: &UpstreamSettings) -> Result<Connected, SettingFault> {
    let endpoint = endpoint_of_region(settings, |region| format!("https://oss-{region}.aliyuncs.com"))?;
    let style = if settings.addressing == BucketAddressing::Path { "path" } else { "virtual" };
    let builder = services::Oss::default()
        .bucket(&settings.bucket)
        .root(&settings.prefix)
        .endpoint(&endpoint)
        .addressing_style(style);
    let builder = match &settings.credentials {
        CredentialSource::Static { access_key, secret, session_token } => {
            let builder = builder.access_key_id(access_key).access_key_secret(secret.expose());
            match session_token {
                Some(token) => builder.security_token(token.expose()),
                None => builder,
            }
        }
        CredentialSource::Env => builder,
        CredentialSource::File { .. } => return Err(no_file()),
        CredentialSource::Chain => return Err(no_chain()),
        CredentialSource::Anonymous => builder.skip_signature(),
    };
    connected(builder, Some(endpoint))
}

fn cos(settings: &UpstreamSettings) -> Result<Connected, SettingFault> {
    let endpoint = endpoint_of_region(settings, |region| format!("https://cos.{region}.myqcloud.com"))?;
    let builder =
        services::Cos::default().bucket(&settings.bucket).root(&settings.prefix).endpoint(&endpoint);
    let builder = match &settings.credentials {
        CredentialSource::Static { access_key, secret, session_token } => {
            let builder = builder.disable_config_load().secret_id(access_key).secret_key(secret.expose());
            match session_token {
                Some(token) => builder.security_token(token.expose()),
                None => builder,
            }
        }
        CredentialSource::Env => builder,
        CredentialSource::File { .. } => return Err(no_file()),
        CredentialSource::Chain => return Err(no_chain()),
        CredentialSource::Anonymous => return Err(no_anonymous()),
    };
    connected(builder, Some(endpoint))
}

fn obs(settings: &UpstreamSettings) -> Result<Connected, SettingFault> {
    let endpoint = endpoint_of_region(settings, |region| format!("https://obs.{region}.myhuaweicloud.com"))?;
    let builder =
        services::Obs::default().bucket(&settings.bucket).root(&settings.prefix).endpoint(&endpoint);
    let builder = match &settings.credentials {
        CredentialSource::Static { access_key, secret, session_token } => {
            no_token(session_token.as_ref())?;
            builder.access_key_id(access_key).secret_access_key(secret.expose())
        }
        CredentialSource::Env => builder,
        CredentialSource::File { .. } => return Err(no_file()),
        CredentialSource::Chain => return Err(no_chain()),
        CredentialSource::Anonymous => return Err(no_anonymous()),
    };
    connected(builder, Some(endpoint))
}

fn webhdfs(settings: &UpstreamSettings) -> Result<Connected, SettingFault> {
    let endpoint = settings.endpoint.clone().ok_or_else(|| missing("http://<name node>:9870"))?;
    let builder = services::Webhdfs::default()
        .root(&format!("{}/{}", settings.bucket, settings.prefix))
        .endpoint(&endpoint)
        .atomic_write_dir(UNFINISHED_DIR);
    let builder = match &settings.credentials {
        CredentialSource::Static { access_key, secret, session_token } => {
            no_token(session_token.as_ref())?;
            builder.user_name(access_key).delegation(secret.expose())
        }
        CredentialSource::Anonymous => builder,
        _ => {
            let to_do = "set a user and its delegation token, or set it to anonymous";
            return Err(unused("credentials", to_do));
        }
    };
    connected(builder, Some(endpoint))
}

fn fs(settings: &UpstreamSettings) -> Result<Connected, SettingFault> {
    let set = [
        ("endpoint", settings.endpoint.is_some()),
        ("ca_file", settings.ca_file.is_some()),
        ("proxy", settings.proxy.is_some()),
    ];
    if let Some((setting, _)) = set.into_iter().find(|(_, is_set)| *is_set) {
        return Err(unused(setting, "leave it out"));
    }
    if settings.credentials != CredentialSource::Anonymous {
        return Err(unused("credentials", "set it to anonymous"));
    }
    let bucket = PathBuf::from(&settings.bucket);
    // A directory that is not mounted would otherwise be created on the disk below the mount point.
    if !bucket.is_dir() {
        return Err(("bucket", format!("{} is not a directory; mount or create it", bucket.display())));
    }
    let dir = bucket.join(&settings.prefix);
    let unfinished = dir.join(UNFINISHED_DIR);
    let builder =
        services::Fs::default().root(&dir.to_string_lossy()).atomic_write_dir(&unfinished.to_string_lossy());
    let connected = connected(builder, None)?;
    // Directories created here are synced so that they survive a power failure. The directory of segments is
    // created and synced with the first segment.
    let made = dir.ancestors().take_while(|made| made.starts_with(&bucket));
    made.map(File::open)
        .try_for_each(|made| made?.sync_all())
        .map_err(|error| ("bucket", format!("{} cannot be synced: {error}", dir.display())))?;
    Ok(Connected { dir: Some(dir), ..connected })
}

fn connected(builder: impl Builder, endpoint: Option<String>) -> Result<Connected, SettingFault> {
    // The message names the setting; the context of the error is not shown, because it may contain secrets.
    let operator =
        Operator::new(builder).map_err(|error| ("kind", format!("is invalid: {}", error.message())))?;
    Ok(Connected { operator, endpoint, dir: None })
}

fn endpoint_of_region(
    settings: &UpstreamSettings,
    of: impl Fn(&str) -> String,
) -> Result<String, SettingFault> {
    match (&settings.endpoint, settings.region.as_str()) {
        (Some(endpoint), _) => Ok(endpoint.clone()),
        (None, "") => Err(missing("that of its region, or set region")),
        (None, region) => Ok(of(region)),
    }
}

fn unused(setting: &'static str, to_do: &str) -> SettingFault {
    (setting, format!("does not apply to this kind of upstream; {to_do}"))
}

fn missing(example: &str) -> SettingFault {
    ("endpoint", format!("is missing; set it to {example}"))
}

fn no_token(token: Option<&Secret>) -> Result<(), SettingFault> {
    token.map_or(Ok(()), |_| Err(unused("session_token", "leave it out")))
}

fn no_file() -> SettingFault {
    unused("credentials", "it has no credentials file; use static or env")
}

fn no_chain() -> SettingFault {
    unused(
        "credentials",
        "the chain is specific to AWS; use env, which also uses the identity of the machine",
    )
}

fn no_anonymous() -> SettingFault {
    unused("credentials", "every request to it is signed; use static or env")
}
