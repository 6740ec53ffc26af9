//! What every mlgw crate shares: names, ids, limits, secrets, the clock, checksums and histograms.
//!
//! Nothing here does I/O and nothing here knows of HTTP, Raft or files, so any crate may depend
//! on it. Outside input becomes one of these types exactly once, at the edge; from there on the
//! type is the proof that it was checked.

pub mod checksum;
pub mod clock;
pub mod histogram;
pub mod ids;
pub mod limits;
pub mod names;
pub mod regular;
mod secret;

pub use clock::{Clock, SystemClock, Timestamp};
pub use ids::{BodyId, BucketId, Epoch, Generation, GroupId, NodeId, PartNumber, SegmentId, Seq};
pub use names::{BucketName, NameError, ObjectKey};
pub use secret::Secret;
