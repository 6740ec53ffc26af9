//! File formats of pending deletions and of intervals between checkpoints: a [line](crate::line_file)
//! `mlgw-deletions 3 OWNER CRC JSON` and `mlgw-spacings 2 OWNER CRC JSON`, and nothing else.
//!
//! Only files that this server wrote on its present timeline are accepted. Versions 1 and 2 of the deletions
//! and version 1 of the intervals have no owner. Version 1 of the deletions has no `seq`. The field then
//! reads as 0, which is the sequence number of no write, so that the grace period of its entries starts
//! again.

use crate::line_file::{BadLine, Kind};
use mlgw_common::{Identity, Lineage};
use mlgw_policies::at_rest::Note;
use mlgw_policies::checkpoints::Spacings;
use serde::{Deserialize, Serialize};

const DELETIONS: Kind = Kind { magic: "mlgw-deletions", version: "3", without_owner: &["1", "2"] };
const SPACINGS: Kind = Kind { magic: "mlgw-spacings", version: "2", without_owner: &["1"] };

/// Serialized form of a [`Note`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Note", deny_unknown_fields)]
struct Row {
    bucket: u64,
    prefix: String,
    rule: String,
    noted_ms: i64,
    due_ms: i64,
    #[serde(default)]
    seq: u64,
    files: u64,
    bytes: u64,
}

#[derive(Serialize, Deserialize)]
struct Written(#[serde(with = "Row")] Note);

/// Serializes the file of pending deletions.
pub(super) fn written<'n>(owner: &Identity, notes: impl Iterator<Item = &'n Note>) -> Vec<u8> {
    DELETIONS.line(owner, &notes.cloned().map(Written).collect::<Vec<_>>())
}

/// Parses the file of pending deletions.
pub(super) fn read(lineage: &Lineage, bytes: &[u8]) -> Result<Vec<Note>, BadLine> {
    let rows: Vec<Written> = DELETIONS.read_alone(lineage, bytes)?;
    Ok(rows.into_iter().map(|Written(note)| note).collect())
}

/// Serializes the file of intervals: rows of bucket, run and interval.
pub(super) fn written_spacings(owner: &Identity, spacings: &Spacings) -> Vec<u8> {
    let rows = spacings.rows().map(|((bucket, run), spacing)| (bucket, run, spacing));
    SPACINGS.line(owner, &rows.collect::<Vec<_>>())
}

/// Parses the file of intervals.
pub(super) fn read_spacings(lineage: &Lineage, bytes: &[u8]) -> Result<Spacings, BadLine> {
    let rows: Vec<(u64, String, u64)> = SPACINGS.read_alone(lineage, bytes)?;
    Ok(rows.into_iter().map(|(bucket, run, spacing)| ((bucket, run), spacing)).collect())
}

#[cfg(test)]
mod tests {
    use super::{BadLine, read, read_spacings, written, written_spacings};
    use crate::line_file::tests::lineages;
    use mlgw_policies::at_rest::Note;

    #[test]
    fn the_formats_equal_the_released_ones() {
        let note = Note {
            bucket: 1,
            prefix: "run/step-5/".into(),
            rule: "few".into(),
            noted_ms: -5,
            due_ms: 7,
            seq: 11,
            files: 2,
            bytes: 9,
        };
        let golden = "mlgw-deletions 1 2c87a256 [{\"bucket\":1,\"prefix\":\"run/step-5/\",\"rule\":\"few\",\"noted_ms\":-5,\"due_ms\":7,\"files\":2,\"bytes\":9}]\n";
        let (lineage, _) = lineages();
        assert_eq!(read(&lineage, golden.as_bytes()).unwrap(), [Note { seq: 0, ..note.clone() }]);
        let golden = "mlgw-deletions 2 2185f349 [{\"bucket\":1,\"prefix\":\"run/step-5/\",\"rule\":\"few\",\"noted_ms\":-5,\"due_ms\":7,\"seq\":11,\"files\":2,\"bytes\":9}]\n";
        assert_eq!(read(&lineage, golden.as_bytes()).unwrap(), std::slice::from_ref(&note));
        let golden = "mlgw-deletions 3 0000000000000001-0000000000000002-0000000000000003 2314f55f [{\"bucket\":1,\"prefix\":\"run/step-5/\",\"rule\":\"few\",\"noted_ms\":-5,\"due_ms\":7,\"seq\":11,\"files\":2,\"bytes\":9}]\n";
        assert_eq!(String::from_utf8(written(&lineage.own, [note].iter())).unwrap(), golden);
        let spacings = [((1, "run/step-#/".to_owned()), 500)].into_iter().collect();
        let golden = "mlgw-spacings 1 db74e1d8 [[1,\"run/step-#/\",500]]\n";
        assert_eq!(read_spacings(&lineage, golden.as_bytes()).unwrap(), spacings);
        assert!(matches!(read_spacings(&lineage, &golden.as_bytes()[1..]), Err(BadLine::Damaged)));
        let golden = "mlgw-spacings 2 0000000000000001-0000000000000002-0000000000000003 358529ab [[1,\"run/step-#/\",500]]\n";
        assert_eq!(String::from_utf8(written_spacings(&lineage.own, &spacings)).unwrap(), golden);
        assert_eq!(read_spacings(&lineage, golden.as_bytes()).unwrap(), spacings);
    }

    #[test]
    fn a_file_reads_back_as_written_and_damage_is_detected() {
        let (lineage, restored) = lineages();
        let note = |prefix: &str| Note {
            bucket: 1,
            prefix: prefix.into(),
            rule: "few".into(),
            noted_ms: -5,
            due_ms: 7,
            seq: 11,
            files: 2,
            bytes: 9,
        };
        for notes in [vec![], vec![note("run/ä 1/"), note("\n")]] {
            let bytes = written(&lineage.own, notes.iter());
            assert_eq!(read(&lineage, &bytes).unwrap(), notes);
            assert!(matches!(read(&restored, &bytes), Err(BadLine::Foreign(owner)) if owner == lineage.own));
            assert!(matches!(read(&lineage, &bytes[..bytes.len() - 1]), Err(BadLine::Damaged)));
            assert!(matches!(read(&lineage, &[&bytes[..], b"x"].concat()), Err(BadLine::Damaged)));
        }
        let bytes = String::from_utf8(written(&lineage.own, [].iter())).unwrap();
        let newer = bytes.replace("deletions 3", "deletions 4");
        assert!(matches!(read(&lineage, newer.as_bytes()), Err(BadLine::Version(version)) if version == "4"));
    }
}
