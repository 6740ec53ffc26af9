//! Upstreams: other object stores and checks of their capabilities.
//!
//! Field names and their order are a stable interface for programs.

use crate::words::words;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An upstream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UpstreamInfo {
    /// Name in the configuration.
    pub name: String,
    /// Protocol of the store.
    pub kind: UpstreamProtocol,
    /// URL of the store; absent for the vendor's default.
    pub endpoint: Option<String>,
    /// Bucket, container or directory.
    pub bucket: String,
    /// Prefix of the keys of segments.
    pub prefix: String,
    /// True if segments are encrypted before the upload.
    pub encrypt: bool,
    /// Remote-backed buckets whose origin is here.
    pub bound: Vec<String>,
    /// True if segments are spilled to this upstream.
    pub spilled_to: bool,
    /// Number of segments here.
    pub segments: u64,
    /// Bytes of these segments.
    pub segment_bytes: u64,
    /// Relation of this server to the prefix by its ownership mark. Nothing is deleted under the prefix
    /// unless it is `own`.
    pub owner: UpstreamOwner,
    /// Identity in the mark, if it is not this server's.
    pub marked_by: Option<String>,
    /// Fault of the mark, with advice.
    pub advice: Option<String>,
    /// True if the store honors conditional writes; unknown before its prefix is claimed.
    pub conditions: Option<bool>,
}

/// All upstreams.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UpstreamList {
    /// Upstreams, sorted by name.
    pub upstreams: Vec<UpstreamInfo>,
}

/// A step of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckInfo {
    /// Operation tested.
    pub step: UpstreamCheckStep,
    /// Fault, if any.
    pub fault: Option<String>,
    /// Missing permission, if the store reported one.
    pub missing: Option<String>,
}

words! {
    /// Protocol of an upstream.
    UpstreamProtocol {
        /// S3 or a compatible protocol.
        S3 = "s3",
        /// Google Cloud Storage.
        Gcs = "gcs",
        /// Azure Blob Storage.
        Azure = "azure",
        /// Alibaba Cloud OSS.
        Oss = "oss",
        /// Tencent Cloud COS.
        Cos = "cos",
        /// Huawei Cloud OBS.
        Obs = "obs",
        /// HDFS over HTTP.
        WebHdfs = "webhdfs",
        /// A directory.
        Fs = "fs",
    }
}

words! {
    /// Owner of an upstream's prefix by its ownership mark.
    UpstreamOwner {
        /// The mark is this server's.
        Own = "own",
        /// The mark was not compared since this server started.
        Unchecked = "unchecked",
        /// The mark is that of an earlier incarnation of this server, which may still run elsewhere.
        Earlier = "earlier",
        /// The mark is that of a later start of a copy of this data directory, or of an adoption.
        Superseded = "superseded",
        /// The mark is that of another server.
        Foreign = "foreign",
        /// The mark is missing although it must exist.
        Missing = "missing",
        /// The mark does not parse.
        Damaged = "damaged",
    }
}

words! {
    /// Operation that a step of a check tests.
    UpstreamCheckStep {
        /// The address is reachable: its name, a connection, TLS.
        Reach = "reach",
        /// The store accepts the credentials.
        Credentials = "credentials",
        /// Lists segments.
        List = "list",
        /// Writes an object in one piece.
        Write = "write",
        /// Reads that object.
        Read = "read",
        /// Reads a range of that object.
        Range = "range",
        /// Writes an object in two parts.
        Multipart = "multipart",
        /// Aborts an upload.
        Abort = "abort",
        /// Deletes the objects.
        Delete = "delete",
    }
}
