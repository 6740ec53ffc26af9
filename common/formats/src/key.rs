//! Row keys: a family byte, then numbers in big-endian order and escaped names.
//!
//! Invariant: keys of one family sort by byte order as the tuples that they encode. A name ends in `00 01`
//! and a `00` inside it is written `00 FF`. A name therefore sorts before every name that it is a prefix of,
//! and the fields after a name never take part in the comparison of names.

use mlgw_common::ids::{BodyId, BucketId};

/// First byte of every row's key. A number is never reused for another family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Family {
    /// Applied log id, membership, counters: one row each.
    Meta = 0x01,
    /// Buckets by name (group 0).
    Bucket = 0x02,
    /// Access keys (group 0).
    Credential = 0x03,
    /// Members of the cluster (group 0).
    Node = 0x04,
    /// Key range of each group (group 0).
    Partition = 0x05,
    /// Segments (group 0).
    Segment = 0x06,
    /// Datasets by name (group 0).
    Dataset = 0x07,
    /// Jobs by dataset and number (group 0).
    Job = 0x08,
    /// Versions of the running policy by number (group 0).
    Policy = 0x09,
    /// Files of policy versions, keyed by the version that introduced them (group 0).
    PolicyFiles = 0x0A,
    /// Tokens with which nodes join (group 0).
    JoinToken = 0x0B,
    /// Certificate authorities of the cluster (group 0).
    Authority = 0x0C,
    /// Sets of storage nodes (group 0).
    Set = 0x0D,
    /// Set of each object group that was assigned to one (group 0).
    GroupSet = 0x0E,
    /// An object group's copy of a bucket's definition.
    Mirror = 0x10,
    /// Current versions of objects.
    Object = 0x11,
    /// Versions that are not current.
    Version = 0x12,
    /// Maps of large bodies: extents, or the part index of a multipart body.
    Extent = 0x13,
    /// Multipart uploads in progress.
    Upload = 0x14,
    /// Parts of uploads and of the objects they became.
    Part = 0x15,
    /// Extents of parts that have many.
    PartExtent = 0x16,
    /// Counters of each bucket, for this group's share of it.
    BucketUsage = 0x17,
    /// Referenced bytes of each segment, as counted by this group.
    SegmentUsage = 0x18,
    /// Bodies whose rows wait to be freed.
    Release = 0x19,
    /// Segments that records of this group must no longer refer to.
    Fence = 0x1A,
    /// Usage and quota of each access key in this group.
    Payer = 0x1B,
    /// In a node's own store: cached copies of origins' objects.
    Copy = 0x40,
    /// In a node's own store: blocks of such copies.
    CopyBlock = 0x41,
    /// In a node's own store: the segments that hold such blocks.
    CopySegment = 0x42,
    /// In a node's own store: the block that each body id names.
    CopyName = 0x43,
}

impl Family {
    /// Returns the smallest key of the family.
    #[must_use]
    pub fn start(self) -> Vec<u8> {
        vec![self as u8]
    }

    /// Returns the smallest key after the family.
    #[must_use]
    pub fn end(self) -> Vec<u8> {
        vec![self as u8 + 1]
    }
}

/// Builds a key from its first byte on.
#[derive(Clone, Debug)]
pub struct KeyWriter(Vec<u8>);

impl KeyWriter {
    /// Starts a key of `family` with room for a typical length.
    #[must_use]
    pub fn new(family: Family) -> Self {
        Self::with_capacity(family, 24)
    }

    /// Starts a key of `family` with room for `bytes` bytes.
    #[must_use]
    pub fn with_capacity(family: Family, bytes: usize) -> Self {
        let mut key = Vec::with_capacity(bytes);
        key.push(family as u8);
        Self(key)
    }

    /// Appends a number of eight bytes, big-endian.
    #[must_use]
    pub fn u64(mut self, number: u64) -> Self {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    /// Appends a number of two bytes, big-endian.
    #[must_use]
    pub fn u16(mut self, number: u16) -> Self {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    /// Appends a name, escaped and terminated.
    #[must_use]
    pub fn name(mut self, name: &[u8]) -> Self {
        escape(name, &mut self.0);
        self.0.extend_from_slice(&NAME_END);
        self
    }

    /// Appends the escaped bytes of a name's prefix without a terminator, for a range over names.
    #[must_use]
    pub fn name_prefix(mut self, prefix: &[u8]) -> Self {
        escape(prefix, &mut self.0);
        self
    }

    /// Appends bytes as they are. Valid only as the last field of a key.
    #[must_use]
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Returns the finished key.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

const NAME_END: [u8; 2] = [0x00, 0x01];
const NUL_ESCAPED: [u8; 2] = [0x00, 0xFF];

fn escape(name: &[u8], into: &mut Vec<u8>) {
    if !name.contains(&0) {
        into.extend_from_slice(name);
        return;
    }
    for &byte in name {
        if byte == 0 {
            into.extend_from_slice(&NUL_ESCAPED);
        } else {
            into.push(byte);
        }
    }
}

/// The key does not have the form of its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a row's key does not have the form of its family")]
pub struct BadKey;

/// Parses a key field by field, after its family byte.
#[derive(Clone, Copy, Debug)]
pub struct KeyReader<'a>(&'a [u8]);

impl<'a> KeyReader<'a> {
    /// Returns a reader of the fields of `key`.
    ///
    /// # Errors
    /// Returns [`BadKey`] if `key` is empty or of another family.
    pub fn new(family: Family, key: &'a [u8]) -> Result<Self, BadKey> {
        match key.split_first() {
            Some((&byte, rest)) if byte == family as u8 => Ok(Self(rest)),
            _ => Err(BadKey),
        }
    }

    /// Reads a number of eight bytes.
    ///
    /// # Errors
    /// Returns [`BadKey`] if fewer bytes are left.
    pub fn u64(&mut self) -> Result<u64, BadKey> {
        let (number, rest) = self.0.split_first_chunk::<8>().ok_or(BadKey)?;
        self.0 = rest;
        Ok(u64::from_be_bytes(*number))
    }

    /// Reads a number of two bytes.
    ///
    /// # Errors
    /// Returns [`BadKey`] if fewer bytes are left.
    pub fn u16(&mut self) -> Result<u16, BadKey> {
        let (number, rest) = self.0.split_first_chunk::<2>().ok_or(BadKey)?;
        self.0 = rest;
        Ok(u16::from_be_bytes(*number))
    }

    /// Reads a name up to and including its terminator, and returns it unescaped.
    ///
    /// # Errors
    /// Returns [`BadKey`] if the terminator is missing or an escape is invalid.
    pub fn name(&mut self) -> Result<std::borrow::Cow<'a, [u8]>, BadKey> {
        let bytes = self.0;
        let first = bytes.iter().position(|&b| b == 0).ok_or(BadKey)?;
        if bytes.get(first + 1) == Some(&NAME_END[1]) {
            self.0 = &bytes[first + 2..];
            return Ok(bytes[..first].into());
        }
        let mut name = Vec::with_capacity(bytes.len());
        let mut at = 0;
        loop {
            let byte = *bytes.get(at).ok_or(BadKey)?;
            at += 1;
            if byte != 0 {
                name.push(byte);
                continue;
            }
            match bytes.get(at) {
                Some(&0xFF) => name.push(0),
                Some(&0x01) => break,
                _ => return Err(BadKey),
            }
            at += 1;
        }
        self.0 = &bytes[at + 1..];
        Ok(name.into())
    }

    /// Returns the unread bytes of the key.
    #[must_use]
    pub fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Checks that no bytes are left.
    ///
    /// # Errors
    /// Returns [`BadKey`] if bytes are left.
    pub fn end(self) -> Result<(), BadKey> {
        if self.0.is_empty() { Ok(()) } else { Err(BadKey) }
    }
}

/// Starts the key of (`family`, `bucket`, `key`): an object, or the prefix of its versions or uploads.
#[must_use]
pub fn named_key(family: Family, bucket: BucketId, key: &[u8]) -> KeyWriter {
    KeyWriter::with_capacity(family, key.len() + 32).u64(bucket.0).name(key)
}

/// Returns the key of (`family`, `number`).
#[must_use]
pub fn number_key(family: Family, number: u64) -> Vec<u8> {
    KeyWriter::new(family).u64(number).finish()
}

/// Returns the number in a key that consists of a family byte and one number.
///
/// # Errors
/// Returns [`BadKey`] if `key` has another form.
pub fn parse_number_key(family: Family, key: &[u8]) -> Result<u64, BadKey> {
    let mut fields = KeyReader::new(family, key)?;
    let number = fields.u64()?;
    fields.end()?;
    Ok(number)
}

/// Starts the key of (`family`, `body`): the prefix of a body's extent pages or parts.
#[must_use]
pub fn body_key(family: Family, body: BodyId) -> KeyWriter {
    KeyWriter::new(family).u64(body.0)
}

/// Returns the smallest key that is larger than every key with the prefix `prefix`.
///
/// Such a key always exists, because family bytes are below `FF`.
#[must_use]
pub fn after_prefix(mut prefix: Vec<u8>) -> Vec<u8> {
    while let Some(last) = prefix.pop() {
        if last < u8::MAX {
            prefix.push(last + 1);
            return prefix;
        }
    }
    prefix
}

#[cfg(test)]
mod tests {
    use super::{BadKey, Family, KeyReader, KeyWriter, after_prefix, named_key};
    use mlgw_common::BucketId;
    use proptest::prelude::{Strategy, any, prop};
    use proptest::{prop_assert_eq, proptest};

    /// Names in which NUL, 01 and FF are frequent.
    fn name() -> impl Strategy<Value = Vec<u8>> {
        let byte = proptest::sample::select(vec![0u8, 1, 2, b'a', b'/', 0xFE, 0xFF]);
        prop::collection::vec(byte, 0..12)
    }

    proptest! {
        #[test]
        fn byte_order_of_keys_is_order_of_names(
            a in name(), b in name(), x in any::<u64>(), y in any::<u64>()
        ) {
            let key = |n: &[u8], id| named_key(Family::Upload, BucketId(7), n).u64(id).finish();
            prop_assert_eq!(key(&a, x).cmp(&key(&b, y)), (a, x).cmp(&(b, y)));
        }

        #[test]
        fn written_fields_are_read(n in name(), id in any::<u64>(), part in any::<u16>(), rest in name()) {
            let key = KeyWriter::new(Family::Part).u64(id).name(&n).u16(part).raw(&rest).finish();
            let mut fields = KeyReader::new(Family::Part, &key).unwrap();
            prop_assert_eq!(fields.u64(), Ok(id));
            prop_assert_eq!(fields.name().unwrap().into_owned(), n);
            prop_assert_eq!(fields.u16(), Ok(part));
            prop_assert_eq!(fields.rest(), &rest[..]);
        }

        #[test]
        fn any_bytes_are_parsed_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(mut fields) = KeyReader::new(Family::Object, &bytes) {
                let _ = fields.u64().and_then(|_| fields.name().map(|_| ()));
            }
        }

        #[test]
        fn after_prefix_is_larger_than_every_key_with_the_prefix(prefix in name(), tail in name()) {
            let prefix = [&[0x11], &prefix[..]].concat();
            let longer = [&prefix[..], &tail[..]].concat();
            assert!(after_prefix(prefix.clone()) > longer);
            assert!(after_prefix(prefix.clone()) > prefix);
        }
    }

    #[test]
    fn keys_have_these_bytes() {
        let key = named_key(Family::Object, BucketId(2), b"a\0b").finish();
        assert_eq!(key, [0x11, 0, 0, 0, 0, 0, 0, 0, 2, b'a', 0, 0xFF, b'b', 0, 1]);
    }

    #[test]
    fn another_familys_key_and_trailing_bytes_are_refused() {
        assert_eq!(KeyReader::new(Family::Object, &[0x12]).err(), Some(BadKey));
        let key = KeyWriter::new(Family::Node).u64(1).u16(2).finish();
        let mut fields = KeyReader::new(Family::Node, &key).unwrap();
        assert_eq!(fields.u64(), Ok(1));
        assert_eq!(fields.end(), Err(BadKey));
    }
}
