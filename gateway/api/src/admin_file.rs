//! `admin.json`, the file through which commands on a host find its server. Pure: no I/O.

use serde::{Deserialize, Serialize};

/// Name of the file in the data directory.
pub const ADMIN_FILE: &str = "admin.json";

/// Contents of `admin.json`: addresses and credentials of the server on this host. The key is valid only
/// while this server process runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AdminFile {
    /// URL of the admin API.
    pub endpoint: String,
    /// URL of the S3 API. Earlier versions did not write it.
    pub s3_endpoint: Option<String>,
    /// Access key id.
    pub access_key_id: String,
    /// Secret access key.
    pub secret_access_key: String,
}
