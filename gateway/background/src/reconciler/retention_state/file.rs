//! File formats of pending deletions and of intervals between checkpoints: a [line](crate::line_file)
//! `mlgw-deletions 3 OWNER CRC JSON` and `mlgw-spacings 2 OWNER CRC JSON`, and nothing else.
//!
//! Only files that this server wrote on its present timeline are accepted. Versions 1 and 2 of the deletions
//! and version 1 of the intervals have no owner. Version 1 of the deletions has no `seq`. The field then
//! reads as 0, which is the sequence number of no write, so that the grace period of its entries starts
//! again.

use crate::line_file::{LineFileError, LineFormat};
use mlgw_common::{Identity, Lineage};
use mlgw_policies::at_rest::PendingDeletion;
use mlgw_policies::checkpoints::CheckpointSpacings;
use serde::{Deserialize, Serialize};

const DELETIONS: LineFormat =
    LineFormat { magic: "mlgw-deletions", version: "3", without_owner: &["1", "2"] };
const SPACINGS: LineFormat = LineFormat { magic: "mlgw-spacings", version: "2", without_owner: &["1"] };

/// Serialized form of a [`PendingDeletion`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "PendingDeletion", deny_unknown_fields)]
struct PendingDeletionRow {
    bucket: u64,
    prefix: String,
    rule: String,
    #[serde(rename = "noted_ms")]
    recorded_ms: i64,
    due_ms: i64,
    #[serde(default)]
    seq: u64,
    files: u64,
    bytes: u64,
}

#[derive(Serialize, Deserialize)]
struct PendingDeletionEntry(#[serde(with = "PendingDeletionRow")] PendingDeletion);

/// Serializes the file of pending deletions.
pub(super) fn serialize_deletions<'n>(
    owner: &Identity,
    entries: impl Iterator<Item = &'n PendingDeletion>,
) -> Vec<u8> {
    DELETIONS.to_line(owner, &entries.cloned().map(PendingDeletionEntry).collect::<Vec<_>>())
}

/// Parses the file of pending deletions.
pub(super) fn parse_deletions(
    lineage: &Lineage,
    bytes: &[u8],
) -> Result<Vec<PendingDeletion>, LineFileError> {
    let rows: Vec<PendingDeletionEntry> = DELETIONS.read_single_line(lineage, bytes)?;
    Ok(rows.into_iter().map(|PendingDeletionEntry(entry)| entry).collect())
}

/// Serializes the file of intervals: rows of bucket, run and interval.
pub(super) fn serialize_spacings(owner: &Identity, spacings: &CheckpointSpacings) -> Vec<u8> {
    let rows = spacings.rows().map(|((bucket, run), spacing)| (bucket, run, spacing));
    SPACINGS.to_line(owner, &rows.collect::<Vec<_>>())
}

/// Parses the file of intervals.
pub(super) fn parse_spacings(lineage: &Lineage, bytes: &[u8]) -> Result<CheckpointSpacings, LineFileError> {
    let rows: Vec<(u64, String, u64)> = SPACINGS.read_single_line(lineage, bytes)?;
    Ok(rows.into_iter().map(|(bucket, run, spacing)| ((bucket, run), spacing)).collect())
}

#[cfg(test)]
mod tests {
    use super::{LineFileError, parse_deletions, parse_spacings, serialize_deletions, serialize_spacings};
    use crate::line_file::tests::lineages;
    use mlgw_policies::at_rest::PendingDeletion;

    #[test]
    fn the_formats_equal_the_released_ones() {
        let note = PendingDeletion {
            bucket: 1,
            prefix: "run/step-5/".into(),
            rule: "few".into(),
            recorded_ms: -5,
            due_ms: 7,
            seq: 11,
            files: 2,
            bytes: 9,
        };
        let golden = "mlgw-deletions 1 2c87a256 [{\"bucket\":1,\"prefix\":\"run/step-5/\",\"rule\":\"few\",\
            \"noted_ms\":-5,\"due_ms\":7,\"files\":2,\"bytes\":9}]\n";
        let (lineage, _) = lineages();
        assert_eq!(
            parse_deletions(&lineage, golden.as_bytes()).unwrap(),
            [PendingDeletion { seq: 0, ..note.clone() }]
        );
        let golden = "mlgw-deletions 2 2185f349 [{\"bucket\":1,\"prefix\":\"run/step-5/\",\"rule\":\"few\",\
            \"noted_ms\":-5,\"due_ms\":7,\"seq\":11,\"files\":2,\"bytes\":9}]\n";
        assert_eq!(parse_deletions(&lineage, golden.as_bytes()).unwrap(), std::slice::from_ref(&note));
        let golden = "mlgw-deletions 3 0000000000000001-0000000000000002-0000000000000003 2314f55f \
            [{\"bucket\":1,\"prefix\":\"run/step-5/\",\"rule\":\"few\",\"noted_ms\":-5,\"due_ms\":7,\
            \"seq\":11,\"files\":2,\"bytes\":9}]\n";
        assert_eq!(String::from_utf8(serialize_deletions(&lineage.own, [note].iter())).unwrap(), golden);
        let spacings = [((1, "run/step-#/".to_owned()), 500)].into_iter().collect();
        let golden = "mlgw-spacings 1 db74e1d8 [[1,\"run/step-#/\",500]]\n";
        assert_eq!(parse_spacings(&lineage, golden.as_bytes()).unwrap(), spacings);
        assert!(matches!(parse_spacings(&lineage, &golden.as_bytes()[1..]), Err(LineFileError::Damaged)));
        let golden = "mlgw-spacings 2 0000000000000001-0000000000000002-0000000000000003 358529ab \
            [[1,\"run/step-#/\",500]]\n";
        assert_eq!(String::from_utf8(serialize_spacings(&lineage.own, &spacings)).unwrap(), golden);
        assert_eq!(parse_spacings(&lineage, golden.as_bytes()).unwrap(), spacings);
    }

    #[test]
    fn a_file_reads_back_as_written_and_damage_is_detected() {
        let (lineage, restored) = lineages();
        let note = |prefix: &str| PendingDeletion {
            bucket: 1,
            prefix: prefix.into(),
            rule: "few".into(),
            recorded_ms: -5,
            due_ms: 7,
            seq: 11,
            files: 2,
            bytes: 9,
        };
        for entries in [vec![], vec![note("run/ä 1/"), note("\n")]] {
            let bytes = serialize_deletions(&lineage.own, entries.iter());
            assert_eq!(parse_deletions(&lineage, &bytes).unwrap(), entries);
            assert!(matches!(
                parse_deletions(&restored, &bytes),
                Err(LineFileError::Foreign(owner)) if owner == lineage.own
            ));
            assert!(matches!(
                parse_deletions(&lineage, &bytes[..bytes.len() - 1]),
                Err(LineFileError::Damaged)
            ));
            assert!(matches!(
                parse_deletions(&lineage, &[&bytes[..], b"x"].concat()),
                Err(LineFileError::Damaged)
            ));
        }
        let bytes = String::from_utf8(serialize_deletions(&lineage.own, [].iter())).unwrap();
        let newer = bytes.replace("deletions 3", "deletions 4");
        assert!(matches!(
            parse_deletions(&lineage, newer.as_bytes()),
            Err(LineFileError::Version(version)) if version == "4"
        ));
    }
}
