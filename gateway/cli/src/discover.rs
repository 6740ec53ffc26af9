//! Finds the server and the key for requests to it.
//!
//! For a given endpoint, the keys of the AWS variables are used. Without an endpoint, both are taken from
//! `admin.json` of the data directory on this host.

use super::{CliError, Global};
use mlgw_api::{ADMIN_FILE, AdminFile};
use mlgw_common::Secret;
use mlgw_config::{ConfigSources, LoadedConfig};
use std::path::{Path, PathBuf};

/// Address of a server and the key for requests to it.
#[derive(Clone, Debug)]
pub struct ServerTarget {
    /// URL of the admin API.
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
    match (&global.endpoint, keys) {
        (Some(endpoint), Some((access_key, secret))) => {
            Ok(ServerTarget { endpoint: endpoint.clone(), access_key, secret: Secret::new(secret) })
        }
        (Some(endpoint), None) => match read(&data_dir()?) {
            Ok(file) if file.endpoint.trim_end_matches('/') == endpoint.trim_end_matches('/') => {
                Ok(from_admin_file(file))
            }
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
