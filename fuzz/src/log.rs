//! Properties of the decoders of the Raft log.

use bytes::Bytes;
use mlgw_formats::format_error::FormatError;
use mlgw_formats::{log_batch as batch, log_entry as entry, manifest, schema, wal_frames};

/// Decodes a log entry. Encoding the result is stable, except that the record of a membership has several
/// valid forms.
///
/// # Errors
/// Fails if the bytes are not an entry.
pub fn log_entry(index: u64, bytes: &[u8]) -> Result<(), FormatError> {
    let found = entry::decode(index, bytes.to_vec())?;
    let again = entry::encode(&found);
    let decoded = entry::decode(index, again.clone())?;
    assert_eq!(entry::encode(&decoded), again, "an encoding is stable");
    Ok(())
}

/// Decodes the commands of an entry, and checks that each decodes to the same command after encoding.
///
/// # Errors
/// Fails if the bytes are not commands.
pub fn commands(bytes: &[u8]) -> Result<(), FormatError> {
    let found = batch::Batch::decode(Bytes::copy_from_slice(bytes))?;
    let mut encoded = Vec::new();
    for command in &found.commands {
        batch::encode_into(command, &mut encoded);
    }
    let again = batch::Batch::decode(encoded.into())?;
    assert_eq!(again.commands, found.commands);
    Ok(())
}

/// Decodes a vote and a membership from the same bytes.
///
/// # Errors
/// Fails if the bytes are not both.
pub fn vote_and_membership(bytes: &[u8]) -> Result<(), FormatError> {
    let vote = entry::decode_vote(bytes).map(|vote| entry::encode_vote(&vote));
    let membership = entry::membership_of_record(&schema::decode(bytes)?)?;
    let record = entry::record_of_membership(&membership);
    assert_eq!(entry::membership_of_record(&record)?, membership);
    vote.map(drop)
}

/// Returns the offset at which the scan of a MANIFEST finds a torn end.
#[must_use]
pub fn torn_from(bytes: &[u8]) -> Option<usize> {
    manifest::torn_record_offset(bytes)
}

/// Returns the offsets of the valid records of a write-ahead log, each with true if it is after a damaged
/// frame, and the offset of the first damaged frame.
#[must_use]
pub fn frames(bytes: &[u8]) -> (Vec<(usize, bool)>, Option<usize>) {
    let mut records = Vec::new();
    let bad = wal_frames::for_each_record(bytes, &mut |at, _, behind| records.push((at, behind)));
    (records, bad)
}
