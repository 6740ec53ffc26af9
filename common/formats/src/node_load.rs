//! The load of a node of a cluster, which it states in its answers to pings.
//!
//! A ping asks for it with the body [`LOAD_REQUEST`]; nodes of earlier versions ignore the body. An answer is
//! one byte, 1 if the node serves requests, else 0, and then the load: one byte for the format and a protobuf
//! message, as records are. Earlier versions answer with the byte 1 alone, or with nothing. Pure; nothing is
//! stored.

use crate::format_error::FormatError;
use crate::schema::{decode, encode};
use bytes::Bytes;

/// Body of a ping that asks for the load.
pub const LOAD_REQUEST: &[u8] = &[1];

/// Maximum length of an answer.
const ANSWER_BYTES_MAX: usize = 256;

/// The byte of a node that serves requests.
const SERVES: u8 = 1;

/// Load of a node at one moment.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct NodeLoad {
    /// Bytes of segments in the hot tier; absent on a node that stores none.
    #[prost(uint64, optional, tag = "1")]
    pub used_bytes: Option<u64>,
    /// Bytes that the hot tier can still store; absent on a node that stores no segments.
    #[prost(uint64, optional, tag = "2")]
    pub free_bytes: Option<u64>,
    /// Index of the last entry of the system group that the node has applied; absent before the first one.
    #[prost(uint64, optional, tag = "3")]
    pub applied: Option<u64>,
    /// Time of day of the node when it answered, in milliseconds since the epoch; absent in an answer of an
    /// earlier version.
    #[prost(int64, optional, tag = "4")]
    pub clock_ms: Option<i64>,
    /// True if the hot tier has no space for further segments; absent in an answer of an earlier version, and
    /// on a node that stores no segments.
    #[prost(bool, optional, tag = "5")]
    pub is_full: Option<bool>,
    /// True if syncs of the node's disk take longer than a second; absent in an answer of an earlier version.
    #[prost(bool, optional, tag = "6")]
    pub is_slow: Option<bool>,
    /// True if the node cannot do the work of the duty node; absent in an answer of an earlier version.
    #[prost(bool, optional, tag = "7")]
    pub lacks_duty: Option<bool>,
    /// True if the node does not have the rows of all groups, as a node outside of the first set; absent in
    /// an answer of an earlier version, which knows no sets.
    #[prost(bool, optional, tag = "8")]
    pub lacks_groups: Option<bool>,
    /// True if no majority has confirmed the node's rows of the system group for 10 s; absent in an answer of
    /// an earlier version.
    #[prost(bool, optional, tag = "9")]
    pub has_old_rows: Option<bool>,
}

impl NodeLoad {
    /// True if the node should lead groups: its disk is neither full nor slow, and its rows of the system
    /// group are recent, as far as it states. A leader with old rows does not receive that its group moves.
    #[must_use]
    pub fn can_lead(&self) -> bool {
        [self.is_full, self.is_slow, self.has_old_rows].iter().all(|fault| *fault != Some(true))
    }

    /// True if the node can do the work of the duty node, as far as it states. The work needs the rows of all
    /// groups.
    #[must_use]
    pub fn can_have_duty(&self) -> bool {
        self.lacks_duty != Some(true) && self.has_all_groups()
    }

    /// True if the node has the rows of all groups, as far as it states.
    #[must_use]
    pub fn has_all_groups(&self) -> bool {
        self.lacks_groups != Some(true)
    }
}

/// Answer to a ping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PingAnswer {
    /// True if the node serves forwarded requests.
    pub is_serving: bool,
    /// The load; `None` in an answer of an earlier version.
    pub load: Option<NodeLoad>,
}

impl PingAnswer {
    /// Returns the answer to a ping with this body. An earlier version sends an empty one, and compares the
    /// whole answer with the byte of a node that serves, so it gets no load.
    #[must_use]
    pub fn for_request(self, body: &[u8]) -> Self {
        Self { load: self.load.filter(|_| body == LOAD_REQUEST), ..self }
    }

    /// Returns the bytes of the answer.
    #[must_use]
    pub fn encode_answer(&self) -> Bytes {
        match &self.load {
            Some(load) => [&[u8::from(self.is_serving)][..], &encode(load)].concat().into(),
            None if self.is_serving => Bytes::from_static(&[SERVES]),
            None => Bytes::new(),
        }
    }

    /// Decodes an answer, also of an earlier version.
    ///
    /// # Errors
    /// If the answer is too long, or its load is not of this format.
    pub fn decode_answer(bytes: &[u8]) -> Result<Self, FormatError> {
        if bytes.len() > ANSWER_BYTES_MAX {
            return Err(FormatError("an answer to a ping is too long".into()));
        }
        let Some((first, load)) = bytes.split_first() else { return Ok(Self::default()) };
        let load = if load.is_empty() { None } else { Some(decode(load)?) };
        Ok(Self { is_serving: *first == SERVES, load })
    }
}

#[cfg(test)]
mod tests {
    use super::{ANSWER_BYTES_MAX, LOAD_REQUEST, NodeLoad, PingAnswer};
    use proptest::prelude::any;
    use proptest::{collection, prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in collection::vec(any::<u8>(), 0..300)) {
            if let Ok(answer) = PingAnswer::decode_answer(&bytes) {
                prop_assert_eq!(PingAnswer::decode_answer(&answer.encode_answer()), Ok(answer));
            }
        }
    }

    #[test]
    fn an_answer_of_an_earlier_version_has_no_load() {
        let answer = |is_serving| PingAnswer { is_serving, load: None };
        for (bytes, is_serving) in [(&[1][..], true), (&[][..], false)] {
            assert_eq!(PingAnswer::decode_answer(bytes), Ok(answer(is_serving)));
            assert_eq!(answer(is_serving).encode_answer(), bytes);
        }
    }

    #[test]
    fn a_load_follows_the_byte_of_a_node_that_serves() {
        let load = NodeLoad {
            used_bytes: Some(5),
            free_bytes: Some(0),
            applied: Some(7),
            clock_ms: Some(9),
            is_full: Some(true),
            is_slow: Some(false),
            lacks_duty: Some(true),
            lacks_groups: Some(true),
            has_old_rows: Some(false),
        };
        let answer = PingAnswer { is_serving: true, load: Some(load) };
        // Serves; format 1; used_bytes, free_bytes, applied, clock_ms, is_full, is_slow, lacks_duty,
        // lacks_groups, has_old_rows.
        let fields = [(1, 5), (2, 0), (3, 7), (4, 9), (5, 1), (6, 0), (7, 1), (8, 1), (9, 0)];
        let fields = fields.into_iter().flat_map(|(tag, value)| [tag << 3, value]);
        assert_eq!(answer.encode_answer(), [1, 1].into_iter().chain(fields).collect::<Vec<u8>>());
        assert_eq!(PingAnswer::decode_answer(&answer.encode_answer()), Ok(answer));
        let gateway = PingAnswer { is_serving: false, load: Some(NodeLoad::default()) };
        assert_eq!(gateway.encode_answer(), [0, 1].as_slice(), "no answer of an earlier version");
        assert_eq!(PingAnswer::decode_answer(&gateway.encode_answer()), Ok(gateway));
    }

    #[test]
    fn a_node_that_is_full_or_slow_or_has_old_rows_should_not_lead() {
        let of = |is_full, is_slow, has_old_rows| {
            NodeLoad { is_full, is_slow, has_old_rows, ..NodeLoad::default() }.can_lead()
        };
        let (yes, no) = (Some(true), Some(false));
        assert!(of(None, None, None) && of(no, no, no), "an earlier version states nothing");
        assert!(!of(yes, None, None) && !of(no, yes, no) && !of(no, no, yes));
    }

    #[test]
    fn a_node_can_have_the_duty_unless_it_states_that_it_cannot() {
        let of = |lacks_duty, lacks_groups| {
            NodeLoad { lacks_duty, lacks_groups, ..NodeLoad::default() }.can_have_duty()
        };
        assert!(of(None, None) && of(Some(false), Some(false)), "an earlier version states nothing");
        assert!(!of(Some(true), None) && !of(Some(false), Some(true)), "it needs the rows of all groups");
    }

    #[test]
    fn a_node_has_all_groups_unless_it_states_that_it_lacks_some() {
        let of = |lacks_groups| NodeLoad { lacks_groups, ..NodeLoad::default() }.has_all_groups();
        assert!(of(None) && of(Some(false)), "an earlier version states nothing");
        assert!(!of(Some(true)));
    }

    #[test]
    fn only_a_ping_that_asks_for_the_load_gets_it() {
        let answer = PingAnswer { is_serving: true, load: Some(NodeLoad::default()) };
        assert_eq!(answer.for_request(LOAD_REQUEST), answer);
        assert_eq!(answer.for_request(&[]).encode_answer(), [1].as_slice(), "as an earlier version expects");
    }

    #[test]
    fn fields_of_a_later_version_are_skipped_and_other_formats_refused() {
        let later = [1, 1, 3 << 3, 7, 15 << 3, 9];
        let load = NodeLoad { applied: Some(7), ..NodeLoad::default() };
        let expected = PingAnswer { is_serving: true, load: Some(load) };
        assert_eq!(PingAnswer::decode_answer(&later), Ok(expected));
        assert!(PingAnswer::decode_answer(&[1, 2, 3 << 3, 7]).is_err());
        assert!(PingAnswer::decode_answer(&vec![1; ANSWER_BYTES_MAX + 1]).is_err());
    }
}
