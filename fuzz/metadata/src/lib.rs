//! The decoders of the catalogue, compiled from its own files without the stores below it.
//!
//! Everything that reads bytes of the log or of a row is here under its own name; what needs
//! RocksDB is not, so a decoder that comes to need it no longer compiles here.
#![allow(dead_code, reason = "decoders without their users")]

#[path = "../../../metadata/src"]
mod catalogue {
    pub mod command;
    pub mod copy {
        pub(crate) mod contents;

        pub use contents::{Contents, Listed};
    }
    pub mod key;
    pub mod schema;
    pub mod view;

    pub mod raft {
        pub(crate) mod batch;
        pub(crate) mod entry;
        pub(crate) mod types;
    }

    pub mod store {
        pub(crate) mod files;
        pub(crate) mod frames;
        pub(crate) mod manifest;
    }
}

pub use catalogue::{command, copy, key, raft, schema, store, view};

/// Decoders that are private to the catalogue.
pub mod inner {
    use crate::raft::{batch, entry};
    use crate::schema;
    use crate::store_error::StoreError;
    use bytes::Bytes;

    /// Decodes a log entry; one that decodes is encoded to the same bytes but for its membership,
    /// whose record may come in many forms.
    ///
    /// # Errors
    /// When it is none.
    pub fn log_entry(index: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let found = entry::decode(index, bytes.to_vec())?;
        let again = entry::encode(&found);
        let decoded = entry::decode(index, again.clone())?;
        assert_eq!(entry::encode(&decoded), again, "an encoding is stable");
        Ok(())
    }

    /// Decodes the commands of an entry; each is encoded and decoded to the same.
    ///
    /// # Errors
    /// When they are none.
    pub fn commands(bytes: &[u8]) -> Result<(), StoreError> {
        let found = batch::Batch::decode(Bytes::copy_from_slice(bytes))?;
        let mut encoded = Vec::new();
        for command in &found.commands {
            batch::encode_into(command, &mut encoded);
        }
        let again = batch::Batch::decode(encoded.into())?;
        assert_eq!(again.commands, found.commands);
        Ok(())
    }

    /// Decodes a vote and a membership.
    ///
    /// # Errors
    /// When the bytes are not both.
    pub fn vote_and_membership(bytes: &[u8]) -> Result<(), StoreError> {
        let vote = entry::decode_vote(bytes).map(|vote| entry::encode_vote(&vote));
        let membership = entry::stored(&schema::decode(bytes)?)?;
        let record = entry::stored_record(&membership);
        assert_eq!(entry::stored(&record)?, membership);
        vote.map(drop)
    }

    /// Where the walk over a MANIFEST finds a torn end.
    #[must_use]
    pub fn torn_from(bytes: &[u8]) -> Option<usize> {
        crate::store::manifest::torn_from(bytes)
    }

    /// Offsets of the records of a write-ahead log that verify, with whether each is behind a frame that
    /// does not, and where the first such frame begins.
    #[must_use]
    pub fn frames(bytes: &[u8]) -> (Vec<(usize, bool)>, Option<usize>) {
        let mut records = Vec::new();
        let bad = crate::store::frames::each(bytes, &mut |at, _, behind| records.push((at, behind)));
        (records, bad)
    }
}
