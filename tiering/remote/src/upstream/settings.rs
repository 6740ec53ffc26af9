//! Settings of an upstream.

use std::path::PathBuf;
use std::time::Duration;

use mlgw_common::Secret;

/// Protocol of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UpstreamKind {
    /// S3 or a compatible protocol.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
    /// Alibaba Cloud OSS.
    Oss,
    /// Tencent Cloud COS.
    Cos,
    /// Huawei Cloud OBS.
    Obs,
    /// HDFS over HTTP.
    WebHdfs,
    /// A directory.
    Fs,
}

/// Position of the bucket of an S3 upstream in a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BucketAddressing {
    /// In the host at AWS, in the path at a configured endpoint.
    Auto,
    /// In the path.
    Path,
    /// In the host.
    Virtual,
}

/// Interpretation of the ETags of an upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EtagTrust {
    /// An ETag of 32 hexadecimal digits is the MD5 of the bytes, unless the response names an encryption.
    #[default]
    Auto,
    /// No ETag is an MD5.
    Opaque,
}

/// Source of the credentials of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialSource {
    /// Configuration.
    Static {
        /// Access key; for Azure the account.
        access_key: String,
        /// Secret; for Azure the account key, for GCS the service account key in base64.
        secret: Secret,
        /// Token of temporary credentials.
        session_token: Option<Secret>,
    },
    /// Environment variables that the vendor's own tools read.
    Env,
    /// File in the format of the vendor's own tools.
    File {
        /// Path of the file.
        path: PathBuf,
        /// Profile in the file.
        profile: String,
    },
    /// Chain of the AWS tools: environment, profile, web identity, container, instance; refreshed before they
    /// expire.
    Chain,
    /// Requests are not signed.
    Anonymous,
}

/// Settings of an upstream.
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamSettings {
    /// Name in the configuration.
    pub name: String,
    /// Protocol.
    pub kind: UpstreamKind,
    /// URL; `None` means the vendor's public endpoint.
    pub endpoint: Option<String>,
    /// Bucket or container; path of a directory.
    pub bucket: String,
    /// Prefix of all keys; empty, or ends with `/`.
    pub prefix: String,
    /// Region.
    pub region: String,
    /// Position of the bucket in a URL.
    pub addressing: BucketAddressing,
    /// Source of the credentials.
    pub credentials: CredentialSource,
    /// PEM file of the authorities to trust instead of those of the machine.
    pub ca_file: Option<PathBuf>,
    /// URL of an HTTP proxy.
    pub proxy: Option<String>,
    /// True if segments are encrypted before they are sent.
    pub encrypt: bool,
    /// Maximum bytes per second in both directions; 0 means no limit.
    pub bytes_per_second: u64,
    /// Maximum requests per second; 0 means no limit.
    pub requests_per_second: u64,
    /// Maximum bytes per second sent by write-back; 0 means no limit.
    pub persist_bytes_per_second: u64,
    /// Maximum time to answer a request, and maximum pause within a response.
    pub timeout: Duration,
    /// Interpretation of its ETags, for remote-backed buckets.
    pub etag: EtagTrust,
}

impl UpstreamSettings {
    /// Returns the endpoint of an S3 store: the AWS endpoint of the region if none is configured.
    pub(crate) fn s3_endpoint(&self) -> String {
        let china = if self.region.starts_with("cn-") { ".cn" } else { "" };
        self.endpoint.clone().unwrap_or_else(|| format!("https://s3.{}.amazonaws.com{china}", self.region))
    }

    /// True if the bucket is in the host of the URL.
    pub(crate) fn is_bucket_in_host(&self) -> bool {
        match self.addressing {
            BucketAddressing::Virtual => true,
            BucketAddressing::Path => false,
            // A dot in the bucket name breaks the host's certificate.
            BucketAddressing::Auto => self.endpoint.is_none() && !self.bucket.contains('.'),
        }
    }
}
