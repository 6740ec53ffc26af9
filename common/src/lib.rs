//! Types that every mlgw crate shares: names, ids, identity, limits, secrets, clocks, checksums and
//! histograms.
//!
//! Nothing here depends on HTTP, Raft or storage, so any crate may depend on it. External input is converted
//! to one of these types exactly once, at the boundary; from there on the type proves that it was checked.

pub mod bytes;
mod checked_clock;
pub mod checksum;
pub mod clock;
pub mod header_text;
pub mod hex;
pub mod histogram;
pub mod identity;
pub mod ids;
mod inline_polls;
pub mod limits;
pub mod names;
pub mod private_file;
mod random;
pub mod regular;
mod secret;
mod shared_setting;
mod split_keys;
mod suspensions;
mod sync_watch;
mod tier;
pub mod time;
mod words;

pub use bytes::ByteSize;
pub use checked_clock::{CheckedClock, ClockCheck, ClockComparison, ClockMoment};
pub use clock::{Clock, SystemClock, Timestamp};
pub use identity::{ClusterId, Identity, Incarnation, Kinship, Lineage, NodeName};
pub use ids::{
    BodyId, BucketId, Epoch, Generation, GroupId, NodeId, PartNumber, SegmentId, SegmentSeed, SegmentStamp,
    Seq,
};
pub use inline_polls::{InlinePolls, poll_woken};
pub use names::{BucketName, NameError, ObjectKey};
pub use random::{RandomError, random};
pub use secret::{Secret, hide_url_secrets};
pub use shared_setting::SharedSetting;
pub use split_keys::{SplitKeys, SplitKeysError};
pub use suspensions::SuspensionWatch;
pub use sync_watch::SyncWatch;
pub use tier::{SegmentTier, Tier};
