//! Trust between the nodes of a cluster.
//!
//! The cluster has an authority of its own ([`ClusterAuthority`]). Each node has a key that never leaves it,
//! and a certificate with its number and its cluster ([`CertifiedNode`]). A node without a certificate joins
//! with a token ([`JoinToken`]). Every node keeps the last known start of each other node ([`PeerStarts`])
//! and refuses an older one or a copy: such a node lacks votes and acknowledgements that it gave.
//!
//! Decisions are pure and take the time as an argument. Files are replaced as a whole and synced, so a power
//! loss leaves the old file or the new one.

mod authority;
mod certificate;
mod credentials;
mod files;
mod pem;
mod request;
mod starts;
mod starts_file;
mod tls;
mod token;
mod validity;
mod verifier;

pub use authority::{AuthorityError, AuthorityHash, ClusterAuthority, IssuedCertificate};
pub use certificate::{BadCertificate, CertifiedNode};
pub use credentials::{CredentialsError, NodeCredentials};
pub use files::{NodeFiles, NodeFilesError};
pub use request::{BadCertificateRequest, CertificateRequest, NodeKey, NodeKeyError, PublicKeyHash};
pub use starts::{NodeStart, StartRefusal, StartVerdict, judge_start};
pub use starts_file::{PeerStarts, StartsFileError, decode_starts};
pub use tls::{EXCLUSIVE_PROTOCOL, MULTIPLEXED_PROTOCOL, join_client_config, tls_reason};
pub use token::{
    BadJoinToken, JoinToken, StoredToken, TokenId, TokenRefusal, TokenUse, TokenVerdict, judge_token,
};
pub use validity::{CertificateAge, Validity};
