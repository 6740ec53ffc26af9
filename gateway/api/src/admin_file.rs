//! `admin.json`, the file by which commands on a host find its server. Pure.

use serde::{Deserialize, Serialize};

/// Name of the file in the data directory.
pub const ADMIN_FILE: &str = "admin.json";

/// `admin.json`: how commands on this host reach the server. Its key dies with the server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AdminFile {
    /// URL of the admin API.
    pub endpoint: String,
    /// Access key id.
    pub access_key_id: String,
    /// Its secret.
    pub secret_access_key: String,
}
