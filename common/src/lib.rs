//! What every mlgw crate shares: names, ids, identity, limits, secrets, the clock, checksums and histograms.
//!
//! Nothing here knows HTTP, Raft or storage, so any crate may depend on it. Outside input becomes one of these types exactly once, at the edge; from there on the
//! type is the proof that it was checked.

pub mod bytes;
pub mod checksum;
pub mod clock;
pub mod header_text;
pub mod hex;
pub mod histogram;
pub mod identity;
pub mod ids;
pub mod limits;
pub mod names;
pub mod private_file;
mod random;
pub mod regular;
mod secret;

pub use bytes::ByteSize;
pub use clock::{Clock, SystemClock, Timestamp};
pub use identity::{ClusterId, Identity, Incarnation, Kinship, Lineage, NodeName};
pub use ids::{
    BodyId, BucketId, Epoch, Generation, GroupId, NodeId, PartNumber, SegmentId, SegmentSeed, SegmentStamp,
    Seq,
};
pub use names::{BucketName, NameError, ObjectKey};
pub use random::{RandomError, random};
pub use secret::{Secret, hide_url_secrets};
