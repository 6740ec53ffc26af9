//! Records of the catalogue, one file per family: key, value, limits, golden bytes.
//!
//! A value is one byte for its format and then a protobuf message (written by hand, no `.proto` files).
//! Fields are only ever added, under new tags. An incompatible change takes the next format byte and a
//! decoder for both. Golden bytes in each file's tests pin the encodings.

pub mod authority;
pub mod bucket;
pub mod copy;
pub mod credential;
pub mod dataset;
pub mod duty;
pub mod extent;
pub mod fence;
pub mod job;
pub mod join_token;
pub mod meta;
pub mod node;
pub mod object;
pub mod part;
pub mod partition;
pub mod policy;
pub mod quota;
pub mod rebalance;
pub mod release;
pub mod segment;
pub mod set;
pub mod upload;
pub mod usage;
pub mod version;

pub use authority::AuthorityRecord;
pub use bucket::{BindMode, Binding, Bucket, BucketState, LockDefault, LockMode, Mirror, Versioning};
pub use copy::{BlockName, CopyRecord, CopySegment};
pub use credential::{Credential, Role};
pub use dataset::{Dataset, DatasetSize, ImportSource, Schedule};
pub use duty::{Duty, DutyPhase};
pub use extent::{Encoding, Extent, ExtentPage, PartRange};
pub use fence::FencedRange;
pub use job::{Job, JobCursor, JobKind, JobOrder, JobParams, JobProgress, JobState, MigrateTo};
pub use join_token::JoinTokenRecord;
pub use node::{Node, NodeRole, NodeState, RecordedStart};
pub use object::{
    Checksum, ChecksumAlgorithm, ChecksumKind, ChecksumNames, EncryptionEnvelope, EtagKind, Imported,
    ObjectSummary, ObjectVersion, Pair, Retention,
};
pub use part::PartRecord;
pub use partition::Partition;
pub use policy::{LearntBound, PolicyFile, PolicyFiles, PolicyKind, PolicyVersion};
pub use quota::{Excess, Measure, Payer, Quota, QuotaSlice, SliceState};
pub use rebalance::Rebalance;
pub use release::{Release, ReleaseScope};
pub use segment::{Replica, SegmentClass, SegmentRecord, SegmentState};
pub use set::{GroupSet, NodeSet};
pub use upload::Upload;
pub use usage::{BucketUsage, SegmentUsage};

use prost::Message;

/// Format byte of every record written by this version.
pub const FORMAT: u8 = 1;

/// Bytes are not a record of the family in which they were found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRecord {
    /// No bytes.
    #[error("a record is empty")]
    Empty,
    /// A format of a newer version.
    #[error("a record has format {0}; this version reads {FORMAT}")]
    Format(u8),
    /// A field that this version does not know.
    #[error("a record has a field that this version does not know; a later version wrote it")]
    UnknownField,
    /// Not a message of the family.
    #[error("a record cannot be decoded: {0}")]
    Message(#[from] prost::DecodeError),
    /// A replica in a tier of a newer version.
    #[error("a replica of a segment is in tier number {0}, which this version does not know")]
    Tier(u32),
}

/// Returns the stored bytes of a record.
#[must_use]
pub fn encode<M: Message>(record: &M) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + record.encoded_len());
    bytes.push(FORMAT);
    record.encode_raw(&mut bytes);
    bytes
}

/// Decodes the record in `bytes`.
///
/// # Errors
/// Returns [`BadRecord`] if `bytes` is not a record of this format.
pub fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M, BadRecord> {
    match bytes.split_first() {
        None => Err(BadRecord::Empty),
        Some((&FORMAT, message)) => Ok(M::decode(message)?),
        Some((&other, _)) => Err(BadRecord::Format(other)),
    }
}

/// Decodes the record in `bytes`, all of whose fields must be known. A member that changed a record without
/// its unknown fields would drop them, and its state would differ from that of other members.
///
/// # Errors
/// Those of [`decode`], and [`BadRecord::UnknownField`].
pub fn decode_all<M: Message + Default>(bytes: &[u8]) -> Result<M, BadRecord> {
    let record: M = decode(bytes)?;
    if record.encoded_len() + 1 != bytes.len() {
        return Err(BadRecord::UnknownField);
    }
    Ok(record)
}

#[cfg(test)]
pub(crate) mod golden {
    //! Checks of encodings against golden bytes.

    use super::{decode, encode};
    use prost::Message;
    use std::fmt::Write;

    pub(crate) fn check<M: Message + Default + PartialEq + std::fmt::Debug>(record: &M, hex: &str) {
        let bytes = encode(record);
        let shown = bytes.iter().fold(String::new(), |mut s, b| {
            let _ = write!(s, "{b:02x}");
            s
        });
        let golden: String = hex.split_whitespace().collect();
        assert_eq!(shown, golden, "the bytes of {record:?}");
        assert_eq!(&decode::<M>(&bytes).unwrap(), record);
    }

    #[test]
    fn a_newer_format_and_an_empty_record_are_refused() {
        use super::{BadRecord, Node};
        assert_eq!(decode::<Node>(&[]), Err(BadRecord::Empty));
        assert_eq!(decode::<Node>(&[2, 8, 1]), Err(BadRecord::Format(2)));
        assert!(matches!(decode::<Node>(&[1, 0xFF]), Err(BadRecord::Message(_))));
    }
}
