//! Reasons that a server does not start or run.

use crate::files::TooFewFiles;
use mlgw_config::{ConfigError, TooLittleMemory};
use mlgw_credentials::OpenKeyringError;
use mlgw_listener::BindError;
use mlgw_listener::tls::TlsError;
use mlgw_node::NodeError;
use mlgw_policy_runtime::PolicyError;
use mlgw_store::node_file::DataDirError;
use mlgw_transport::BadPeerAddress;
use std::io;

/// Error of starting or running the server.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// A file of the data directory is of another type, or a newer version wrote it.
    #[error("{0}; run `mlgw store check` on the data directory")]
    Unfit(mlgw_store::UnfitFile),
    /// The catalogue did not open.
    #[error("cannot open the catalogue: {0}; run `mlgw store check` on the data directory")]
    Catalogue(#[from] mlgw_metadata::OpenError),
    /// The directory of checkpoints belongs to another server.
    #[error(transparent)]
    Checkpoints(#[from] mlgw_store::checkpoint_dir::CheckpointDirError),
    /// The hot tier did not open.
    #[error("cannot open the hot tier: {0}")]
    Hot(#[from] mlgw_segments::hot::HotOpenError),
    /// The copies of remote-backed buckets did not open.
    #[error(
        "cannot open the copies of remote-backed buckets: {0}; it is safe to remove them: they are fetched \
         again"
    )]
    Copies(#[from] mlgw_cache::copies::OpenCopiesError),
    /// The log of decisions cannot be read.
    #[error("cannot open the decision log: {0}; it is safe to remove it")]
    Decisions(#[from] mlgw_segments::decisions::DecisionFileError),
    /// An upstream is configured wrongly.
    #[error("{0}")]
    Upstream(String),
    /// The keyring did not open.
    #[error(transparent)]
    Keyring(#[from] OpenKeyringError),
    /// Only one of the two root variables is set.
    #[error("set both MLGW_ROOT_ACCESS_KEY_ID and MLGW_ROOT_SECRET_ACCESS_KEY, or neither")]
    IncompleteRootCredentials,
    /// The root credentials of the environment are not those of the cluster.
    #[error(
        "MLGW_ROOT_ACCESS_KEY_ID and MLGW_ROOT_SECRET_ACCESS_KEY are not the root credentials of the \
         cluster, which are fixed since it began: unset both, or set both to the cluster's"
    )]
    OtherRootCredentials,
    /// A setting contradicts the cluster of the node.
    #[error(transparent)]
    Contradiction(#[from] ConfigError),
    /// The part of a node with peers did not start.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// Other nodes cannot connect to an address of the configuration.
    #[error("{setting}: {source}")]
    PeerAddress {
        /// The setting.
        setting: &'static str,
        /// The defect.
        source: BadPeerAddress,
    },
    /// The node runs on an old copy of its disk.
    #[error(
        "the other nodes refuse this node: it was removed, or it runs on an old copy of its data directory. \
         Stop the copy, or remove this node and let it join under a new id, with an empty data directory"
    )]
    Superseded,
    /// The task of the duty node has ended.
    #[error(
        "the task of the duty node ended because of an internal error: see the log, and start the server \
         again"
    )]
    DutyEnded,
    /// A listener did not open.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The certificate cannot be used.
    #[error("HTTPS: {0}")]
    Tls(#[from] TlsError),
    /// There is too little memory.
    #[error(transparent)]
    Memory(#[from] TooLittleMemory),
    /// The limit of open files is too small.
    #[error(transparent)]
    Files(#[from] TooFewFiles),
    /// The running policy cannot be read.
    #[error("the policy: {0}")]
    Policy(#[from] PolicyError),
    /// A file or a part of the process could not be created.
    #[error("{what}: {source}")]
    Io {
        /// Name of the file or part.
        what: String,
        /// Error of the system.
        source: io::Error,
    },
}

pub(super) fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> ServeError {
    let what = what.into();
    move |source| ServeError::Io { what, source }
}
