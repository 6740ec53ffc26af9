//! Finds the server and the key for requests to it.
//!
//! For a given endpoint, the keys of the AWS variables are used. Without an endpoint, both are taken from
//! `admin.json` of the data directory on this host.

use super::endpoint::ServerApi;
use super::{CliError, Global};
use mlgw_api::{ADMIN_FILE, AdminFile};
use mlgw_common::Secret;
use mlgw_config::{ConfigSources, LoadedConfig};
use std::path::{Path, PathBuf};

/// Address of a server and the key for requests to it.
#[derive(Clone, Debug)]
pub struct ServerTarget {
    /// URL of the API: the admin API, or S3 for the commands over S3.
    pub endpoint: String,
    /// Access key id.
    pub access_key: String,
    /// Its secret.
    pub secret: Secret,
}

/// Returns the server that the command addresses.
pub(super) fn target(global: &Global) -> Result<ServerTarget, CliError> {
    let aws = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let keys = aws("AWS_ACCESS_KEY_ID").zip(aws("AWS_SECRET_ACCESS_KEY"));
    match (given_endpoint(global)?, keys) {
        (Some(endpoint), Some((access_key, secret))) => {
            Ok(ServerTarget { endpoint, access_key, secret: Secret::new(secret) })
        }
        (Some(endpoint), None) => match read(&data_dir()?) {
            Ok(file) if file.endpoint == endpoint => Ok(from_admin_file(file)),
            _ => Err(CliError::Usage(format!(
                "no access key for {endpoint}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to a key \
                 with the role admin"
            ))),
        },
        (None, _) => {
            let dir = data_dir()?;
            let file = read(&dir).map_err(|reason| {
                CliError::Unreachable(format!(
                    "no server runs on {}: {reason}. Start one with `mlgw serve`, set MLGW_DATA_DIR to its \
                     directory, or give --endpoint URL and the AWS variables of a key with the role admin",
                    dir.display()
                ))
            })?;
            Ok(from_admin_file(file))
        }
    }
}

/// Returns the S3 API of the server on this host, with the key of its data directory.
pub(super) fn s3_target(global: &Global) -> Result<ServerTarget, CliError> {
    let given = given_endpoint(global)?;
    let dir = data_dir()?;
    let file = read(&dir).map_err(|reason| {
        CliError::Unreachable(format!(
            "no server runs on {}: {reason}. Start one with `mlgw serve`, set MLGW_DATA_DIR to its \
             directory, or give --s3-endpoint URL and the AWS variables of an access key",
            dir.display()
        ))
    })?;
    let other = given.filter(|given| *given != file.endpoint);
    match (other, file.s3_endpoint.clone()) {
        (None, Some(endpoint)) => Ok(ServerTarget { endpoint, ..from_admin_file(file) }),
        (Some(other), _) => Err(CliError::Usage(format!(
            "{other} is the admin API of a server elsewhere: give its S3 API with --s3-endpoint URL"
        ))),
        (None, None) => Err(CliError::Usage(format!(
            "the server on {} is of an earlier version: give its S3 API with --s3-endpoint URL",
            dir.display()
        ))),
    }
}

/// Returns the admin API that the options name.
fn given_endpoint(global: &Global) -> Result<Option<String>, CliError> {
    global.endpoint.as_deref().map(|given| ServerApi::Admin.base_url(given)).transpose()
}

/// Returns the server that uses the data directory `dir`.
pub fn server_of(dir: &Path) -> Result<ServerTarget, CliError> {
    read(dir).map(from_admin_file).map_err(CliError::Unreachable)
}

fn from_admin_file(file: AdminFile) -> ServerTarget {
    ServerTarget {
        endpoint: file.endpoint,
        access_key: file.access_key_id,
        secret: Secret::new(file.secret_access_key),
    }
}

fn data_dir() -> Result<PathBuf, CliError> {
    let file = std::env::var_os("MLGW_CONFIG").map(PathBuf::from);
    let loaded =
        LoadedConfig::load(&ConfigSources::from_process(file)).map_err(|e| CliError::Usage(e.to_string()))?;
    Ok(loaded.config.data_dir)
}

fn read(dir: &Path) -> Result<AdminFile, String> {
    let path = dir.join(ADMIN_FILE);
    let text = mlgw_common::regular::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::{s3_target, target};
    use crate::{Global, OutputForm};

    #[test]
    fn an_endpoint_with_a_password_is_refused_and_not_printed() {
        for endpoint in ["http://u:hush@h:1", "u:hush@h", "http://h:1?token=hush"] {
            let endpoint = Some(endpoint.to_owned());
            let global = Global { endpoint, output: OutputForm::Table, yes: false, quiet: false };
            for found in [target(&global), s3_target(&global)] {
                let error = found.unwrap_err();
                assert_eq!(error.status(), 2, "{error}");
                assert!(!error.to_string().contains("hush"), "{error}");
            }
        }
    }
}
