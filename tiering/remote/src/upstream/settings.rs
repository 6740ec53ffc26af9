//! What is configured of an upstream.

use std::path::PathBuf;
use std::time::Duration;

use mlgw_common::Secret;

/// Whose protocol an upstream speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UpstreamKind {
    /// S3, or what speaks like it.
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

/// Where the bucket of an S3 upstream stands in a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addressing {
    /// In the host at AWS, in the path at a named endpoint.
    Auto,
    /// In the path.
    Path,
    /// In the host.
    Virtual,
}

/// What is known of the ETags of an upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EtagTrust {
    /// An ETag of 32 hexadecimal digits is the MD5 of the bytes, unless the answer names an encryption.
    #[default]
    Auto,
    /// No ETag is an MD5.
    Opaque,
}

/// Where the credentials of an upstream come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialSource {
    /// From the configuration.
    Static {
        /// The access key; of Azure the account.
        access_key: String,
        /// Its secret; of Azure the account's key, of GCS the service account's key in base64.
        secret: Secret,
        /// The token of temporary credentials.
        session_token: Option<Secret>,
    },
    /// From the variables that the vendor's own tools read.
    Env,
    /// From a file in the form that the vendor's own tools read.
    File {
        /// The file.
        path: PathBuf,
        /// The profile in it.
        profile: String,
    },
    /// As AWS' own tools find them: environment, profile, web identity, container, instance; fetched anew
    /// before they expire.
    Chain,
    /// Requests are not signed.
    Anonymous,
}

/// What is configured of an upstream.
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamSettings {
    /// Its name here.
    pub name: String,
    /// Whose protocol it speaks.
    pub kind: UpstreamKind,
    /// Its URL; none is AWS', Google's and so on.
    pub endpoint: Option<String>,
    /// Its bucket or container; the path of a directory.
    pub bucket: String,
    /// What all keys in it begin with; empty, or with a `/` at its end.
    pub prefix: String,
    /// Its region.
    pub region: String,
    /// Where the bucket stands in a URL.
    pub addressing: Addressing,
    /// Where credentials come from.
    pub credentials: CredentialSource,
    /// PEM file of the authorities to trust instead of the machine's.
    pub ca_file: Option<PathBuf>,
    /// URL of an HTTP proxy.
    pub proxy: Option<String>,
    /// Whether segments are encrypted before they are sent there.
    pub encrypt: bool,
    /// Bytes that are sent to it and taken from it in a second at most; 0 is no bound.
    pub bytes_per_second: u64,
    /// Requests to it in a second at most; 0 is no bound.
    pub requests_per_second: u64,
    /// Bytes that are sent to it in a second at most of what was written back; 0 is no bound.
    pub persist_bytes_per_second: u64,
    /// How long it may take to answer a request, or pause within an answer.
    pub timeout: Duration,
    /// What its ETags are, for buckets that are bound to it.
    pub etag: EtagTrust,
}

impl UpstreamSettings {
    /// Where a store is that speaks S3: AWS' own place for the region, if no other is named.
    pub(crate) fn s3_endpoint(&self) -> String {
        let china = if self.region.starts_with("cn-") { ".cn" } else { "" };
        self.endpoint.clone().unwrap_or_else(|| format!("https://s3.{}.amazonaws.com{china}", self.region))
    }

    /// True unless its endpoint is plain HTTP.
    pub(crate) fn needs_tls(&self) -> bool {
        !self.endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"))
    }

    /// Whether its bucket stands in the host.
    pub(crate) fn is_bucket_in_host(&self) -> bool {
        match self.addressing {
            Addressing::Virtual => true,
            Addressing::Path => false,
            // A dot in the name breaks the certificate of a host.
            Addressing::Auto => self.endpoint.is_none() && !self.bucket.contains('.'),
        }
    }
}
