//! Requests for a replica of a segment on another node: to read it, to append to it, and to close it.
//!
//! A request is one byte for the format and then a protobuf message, as records are. The answer to a request
//! to read is a stream of the bytes of the file, without framing: the receiver verifies the records in it. A
//! request to append begins a stream of [frames](crate::append_frames). Numbers are checked before anything
//! of that size is read. Nothing is stored.

use crate::format_error::FormatError;
use crate::schema::{decode, encode};
use crate::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use bytes::Bytes;
use mlgw_common::{Generation, SegmentId, SegmentSeed, SegmentStamp};
use std::ops::Range;

/// Maximum number of bytes that one request asks for.
pub const SEGMENT_READ_BYTES_MAX: u64 = 1 << 30;

/// Maximum number of bytes that one request for a client asks for: more than the largest record has.
pub const RECORD_READ_BYTES_MAX: u64 = 2 << 20;

/// Maximum length of an encoded request.
const REQUEST_BYTES_MAX: usize = 128;

/// Request for a range of the file of a replica.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ReadReplica {
    /// The segment.
    #[prost(uint64, tag = "1")]
    pub segment: u64,
    /// Generation of the segment.
    #[prost(uint32, tag = "2")]
    pub generation: u32,
    /// Random number that seeds the checksums of the segment.
    #[prost(fixed64, tag = "3")]
    pub stamp: u64,
    /// Offset of the first byte.
    #[prost(uint64, tag = "4")]
    pub from: u64,
    /// Offset of the byte after the last one.
    #[prost(uint64, tag = "5")]
    pub to: u64,
    /// True if a client waits for the bytes. Then an open segment is read too.
    #[prost(bool, tag = "6")]
    pub is_foreground: bool,
}

impl ReadReplica {
    /// Returns the request for `range` of a segment.
    #[must_use]
    pub const fn new(segment: SegmentId, seed: SegmentSeed, range: Range<u64>) -> Self {
        let (generation, stamp) = (seed.generation.0, seed.stamp.0);
        let (from, to) = (range.start, range.end);
        Self { segment: segment.0, generation, stamp, from, to, is_foreground: false }
    }

    /// Returns the request for `range` of a segment, at most [`RECORD_READ_BYTES_MAX`] bytes, for which a
    /// client waits.
    #[must_use]
    pub const fn for_client(segment: SegmentId, seed: SegmentSeed, range: Range<u64>) -> Self {
        Self { is_foreground: true, ..Self::new(segment, seed, range) }
    }

    /// Returns the segment.
    #[must_use]
    pub const fn segment_id(&self) -> SegmentId {
        SegmentId(self.segment)
    }

    /// Returns the seed of the segment's checksums.
    #[must_use]
    pub const fn seed(&self) -> SegmentSeed {
        SegmentSeed { generation: Generation(self.generation), stamp: SegmentStamp(self.stamp) }
    }

    /// Returns the requested range.
    #[must_use]
    pub const fn range(&self) -> Range<u64> {
        self.from..self.to
    }

    /// Returns the bytes of the request.
    #[must_use]
    pub fn encode_request(&self) -> Bytes {
        encode(self).into()
    }

    /// Decodes a request.
    ///
    /// # Errors
    /// If the bytes are no request of this format, or its range is empty or too long.
    pub fn decode_request(bytes: &[u8]) -> Result<Self, FormatError> {
        let request: Self = decode_short(bytes)?;
        let bytes_max = if request.is_foreground { RECORD_READ_BYTES_MAX } else { SEGMENT_READ_BYTES_MAX };
        match request.to.checked_sub(request.from) {
            Some(length) if (1..=bytes_max).contains(&length) => Ok(request),
            _ => Err(FormatError("a request for bytes of a segment has an empty or too long range".into())),
        }
    }
}

/// Request of the writer of a new segment to create a replica and to append to it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct OpenReplica {
    /// The header of the segment, as in its file.
    #[prost(bytes = "bytes", tag = "1")]
    pub header: Bytes,
    /// True if the appended chunks are not of clients.
    #[prost(bool, tag = "2")]
    pub is_background: bool,
}

impl OpenReplica {
    /// Returns the bytes of the request.
    #[must_use]
    pub fn encode_request(&self) -> Bytes {
        encode(self).into()
    }

    /// Decodes a request, and the header in it.
    ///
    /// # Errors
    /// If the bytes are no request of this format, or have no segment header.
    pub fn decode_request(bytes: &[u8]) -> Result<(Self, SegmentHeader), FormatError> {
        let request: Self = decode_short(bytes)?;
        if request.header.len() as u64 != SEGMENT_HEADER_BYTES {
            return Err(FormatError("a request to open a replica has no header of a segment".into()));
        }
        let header = SegmentHeader::decode(&request.header);
        let header = header.map_err(|fault| FormatError(format!("a request to open a replica: {fault}")))?;
        Ok((request, header))
    }
}

/// Request to end all appends to a replica of a segment that is not sealed yet.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct CloseReplica {
    /// The segment.
    #[prost(uint64, tag = "1")]
    pub segment: u64,
    /// Generation of the segment.
    #[prost(uint32, tag = "2")]
    pub generation: u32,
    /// Random number that seeds the checksums of the segment.
    #[prost(fixed64, tag = "3")]
    pub stamp: u64,
}

impl CloseReplica {
    /// Returns the request for a segment.
    #[must_use]
    pub const fn new(segment: SegmentId, seed: SegmentSeed) -> Self {
        Self { segment: segment.0, generation: seed.generation.0, stamp: seed.stamp.0 }
    }

    /// Returns the segment.
    #[must_use]
    pub const fn segment_id(&self) -> SegmentId {
        SegmentId(self.segment)
    }

    /// Returns the seed of the segment's checksums.
    #[must_use]
    pub const fn seed(&self) -> SegmentSeed {
        SegmentSeed { generation: Generation(self.generation), stamp: SegmentStamp(self.stamp) }
    }

    /// Returns the bytes of the request.
    #[must_use]
    pub fn encode_request(&self) -> Bytes {
        encode(self).into()
    }

    /// Decodes a request.
    ///
    /// # Errors
    /// If the bytes are no request of this format.
    pub fn decode_request(bytes: &[u8]) -> Result<Self, FormatError> {
        decode_short(bytes)
    }
}

/// Answer to a request to close a replica: its state, which does not change any more.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ClosedReplica {
    /// True if there is a file with the header of the segment, or with a record of it.
    #[prost(bool, tag = "1")]
    pub has_file: bool,
    /// End of the last intact record, which is synced; 0 without a file.
    #[prost(uint64, tag = "2")]
    pub length: u64,
    /// Bytes before that end that belong to no intact record.
    #[prost(uint64, tag = "3")]
    pub damaged_bytes: u64,
    /// Bytes after that end, up to the last one that is not zero: a torn write, or a damaged record; 0
    /// without a file.
    #[prost(uint64, tag = "4")]
    pub uncertain_bytes: u64,
}

impl ClosedReplica {
    /// Returns the bytes of the answer.
    #[must_use]
    pub fn encode_answer(&self) -> Bytes {
        encode(self).into()
    }

    /// Decodes an answer.
    ///
    /// # Errors
    /// If the bytes are no answer of this format, or contradict themselves.
    pub fn decode_answer(bytes: &[u8]) -> Result<Self, FormatError> {
        let answer: Self = decode_short(bytes)?;
        let end = answer.length.checked_add(answer.uncertain_bytes);
        let is_possible = answer.damaged_bytes <= answer.length && end.is_some();
        if !is_possible || (!answer.has_file && end != Some(0)) {
            return Err(FormatError("the state of a closed replica contradicts itself".into()));
        }
        Ok(answer)
    }
}

fn decode_short<M: prost::Message + Default>(bytes: &[u8]) -> Result<M, FormatError> {
    if bytes.len() > REQUEST_BYTES_MAX {
        return Err(FormatError("a request for a replica is too long".into()));
    }
    Ok(decode(bytes)?)
}

#[cfg(test)]
mod tests {
    use super::{
        CloseReplica, ClosedReplica, OpenReplica, RECORD_READ_BYTES_MAX, ReadReplica, SEGMENT_READ_BYTES_MAX,
    };
    use crate::schema::{SegmentClass, encode};
    use crate::segment_header::{NewSegment, SegmentHeader};
    use bytes::Bytes;
    use mlgw_common::{Generation, SegmentId, SegmentSeed, SegmentStamp};
    use mlgw_common::{Identity, Timestamp};
    use proptest::prelude::any;
    use proptest::{collection, prop_assert_eq, proptest};

    const SEED: SegmentSeed = SegmentSeed { generation: Generation(2), stamp: SegmentStamp(u64::MAX) };

    proptest! {
        #[test]
        fn a_request_is_decoded_as_it_was_encoded(
            segment: u64,
            from in 0..u64::MAX / 2,
            length in 1..1u64 << 30,
        ) {
            let request = ReadReplica::new(SegmentId(segment), SEED, from..from + length);
            prop_assert_eq!(ReadReplica::decode_request(&request.encode_request()), Ok(request));
            prop_assert_eq!((request.segment_id(), request.seed()), (SegmentId(segment), SEED));
            prop_assert_eq!(request.range(), from..from + length);
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in collection::vec(any::<u8>(), 0..200)) {
            if let Ok(request) = ReadReplica::decode_request(&bytes) {
                prop_assert_eq!(ReadReplica::decode_request(&request.encode_request()), Ok(request));
            }
            if let Ok(answer) = ClosedReplica::decode_answer(&bytes) {
                prop_assert_eq!(ClosedReplica::decode_answer(&answer.encode_answer()), Ok(answer));
            }
        }
    }

    #[test]
    fn a_request_to_open_or_close_is_decoded_as_it_was_encoded() {
        let minted = NewSegment { id: SegmentId(7), seed: SEED, created: Timestamp(1_000) };
        let header = SegmentHeader::of(&minted, SegmentClass::Small, &Identity::default());
        let open = OpenReplica { header: Bytes::copy_from_slice(&header.encode()), is_background: true };
        assert_eq!(OpenReplica::decode_request(&open.encode_request()), Ok((open.clone(), header)));
        for cut in [&open.header[..63], &[0; 64]] {
            let open = OpenReplica { header: Bytes::copy_from_slice(cut), ..open.clone() };
            assert!(OpenReplica::decode_request(&open.encode_request()).is_err());
        }
        let close = CloseReplica::new(SegmentId(7), SEED);
        assert_eq!(CloseReplica::decode_request(&close.encode_request()), Ok(close));
        assert_eq!((close.segment_id(), close.seed()), (SegmentId(7), SEED));
    }

    #[test]
    fn a_replica_without_a_file_has_no_bytes() {
        let decoded = |has_file, length, damaged_bytes, uncertain_bytes| {
            let answer = ClosedReplica { has_file, length, damaged_bytes, uncertain_bytes };
            ClosedReplica::decode_answer(&encode(&answer)).is_ok()
        };
        assert!(decoded(true, 100, 100, u64::MAX - 100) && decoded(false, 0, 0, 0));
        assert!(!decoded(false, 64, 0, 0) && !decoded(false, 0, 0, 1) && !decoded(true, 64, 65, 0));
        assert!(!decoded(true, 100, 0, u64::MAX - 99));
    }

    #[test]
    fn the_answer_of_a_node_that_states_no_uncertain_bytes_has_none() {
        // Format 1; has_file is true, length is 100.
        let before = [1, 0x08, 1, 0x10, 100];
        let answer = ClosedReplica { has_file: true, length: 100, damaged_bytes: 0, uncertain_bytes: 0 };
        assert_eq!(ClosedReplica::decode_answer(&before), Ok(answer));
        assert_eq!(answer.encode_answer(), before.to_vec());
        let more = ClosedReplica { uncertain_bytes: 7, ..answer };
        assert_eq!(more.encode_answer(), [&before[..], &[4 << 3, 7]].concat());
    }

    #[test]
    fn an_empty_range_and_a_long_one_are_refused() {
        let decoded = |from, to| {
            let request = ReadReplica { segment: 7, from, to, ..ReadReplica::default() };
            ReadReplica::decode_request(&request.encode_request()).is_ok()
        };
        assert!(decoded(5, 6) && decoded(0, SEGMENT_READ_BYTES_MAX));
        assert!(!decoded(5, 5) && !decoded(6, 5) && !decoded(0, SEGMENT_READ_BYTES_MAX + 1));
        assert!(ReadReplica::decode_request(&[]).is_err());
    }

    #[test]
    fn a_request_for_a_client_is_short_and_otherwise_the_same() {
        let range = |length| 7..7 + length;
        let request = ReadReplica::for_client(SegmentId(7), SEED, range(RECORD_READ_BYTES_MAX));
        assert!(request.is_foreground);
        assert_eq!(ReadReplica::decode_request(&request.encode_request()), Ok(request));
        let long = ReadReplica::for_client(SegmentId(7), SEED, range(RECORD_READ_BYTES_MAX + 1));
        assert!(ReadReplica::decode_request(&long.encode_request()).is_err());
        // The version before has no field 6: it sends none, and skips it.
        let background = ReadReplica::new(SegmentId(7), SEED, range(RECORD_READ_BYTES_MAX));
        let expected = [&background.encode_request()[..], &[6 << 3, 1]].concat();
        assert_eq!(request.encode_request(), expected);
    }
}
