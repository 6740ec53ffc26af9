//! The file of deletions that wait: a [line](crate::line_file) `mlgw-deletions 2 CRC JSON`, and nothing
//! else. That of intervals between checkpoints:
//! `mlgw-spacings 1 CRC JSON`.
//!
//! Always: what is read back is what was written, and anything else is refused. Version 1 of the deletions
//! has no `seq`; it reads as 0, which is the place of
//! no write, so that what it notes waits its grace anew.

use crate::line_file::{BadLine, Kind};
use mlgw_policies::at_rest::Note;
use mlgw_policies::checkpoints::Spacings;
use serde::{Deserialize, Serialize};

const KIND: Kind = Kind { magic: "mlgw-deletions", version: "2" };
const OLDER: Kind = Kind { magic: "mlgw-deletions", version: "1" };
const SPACINGS: Kind = Kind { magic: "mlgw-spacings", version: "1" };

/// How a [`Note`] is written.
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

/// A file's bytes.
pub(super) fn written<'n>(notes: impl Iterator<Item = &'n Note>) -> Vec<u8> {
    KIND.line(&notes.cloned().map(Written).collect::<Vec<_>>())
}

/// What a file's bytes say.
pub(super) fn read(bytes: &[u8]) -> Result<Vec<Note>, BadLine> {
    let rows: Vec<Written> = match KIND.read_alone(bytes) {
        Err(BadLine::Version(version)) if version == OLDER.version => OLDER.read_alone(bytes)?,
        read => read?,
    };
    Ok(rows.into_iter().map(|Written(note)| note).collect())
}

/// The bytes of the file of intervals: rows of bucket, run and interval.
pub(super) fn written_spacings(spacings: &Spacings) -> Vec<u8> {
    SPACINGS.line(&spacings.rows().map(|((bucket, run), spacing)| (bucket, run, spacing)).collect::<Vec<_>>())
}

/// What such bytes say.
pub(super) fn read_spacings(bytes: &[u8]) -> Result<Spacings, BadLine> {
    let rows: Vec<(u64, String, u64)> = SPACINGS.read_alone(bytes)?;
    Ok(rows.into_iter().map(|(bucket, run, spacing)| ((bucket, run), spacing)).collect())
}

#[cfg(test)]
mod tests {
    use super::{BadLine, read, read_spacings, written, written_spacings};
    use mlgw_policies::at_rest::Note;

    #[test]
    fn the_format_is_what_was_released() {
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
        assert_eq!(read(golden.as_bytes()).unwrap(), [Note { seq: 0, ..note.clone() }]);
        let golden = "mlgw-deletions 2 2185f349 [{\"bucket\":1,\"prefix\":\"run/step-5/\",\"rule\":\"few\",\"noted_ms\":-5,\"due_ms\":7,\"seq\":11,\"files\":2,\"bytes\":9}]\n";
        assert_eq!(String::from_utf8(written([note].iter())).unwrap(), golden);
        let spacings = [((1, "run/step-#/".to_owned()), 500)].into_iter().collect();
        let golden = "mlgw-spacings 1 db74e1d8 [[1,\"run/step-#/\",500]]\n";
        assert_eq!(String::from_utf8(written_spacings(&spacings)).unwrap(), golden);
        assert_eq!(read_spacings(golden.as_bytes()).unwrap(), spacings);
        assert!(matches!(read_spacings(&golden.as_bytes()[1..]), Err(BadLine::Damaged)));
    }

    #[test]
    fn what_is_read_is_what_was_written_and_nothing_else_is_taken() {
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
            let bytes = written(notes.iter());
            assert_eq!(read(&bytes).unwrap(), notes);
            assert!(matches!(read(&bytes[..bytes.len() - 1]), Err(BadLine::Damaged)));
            assert!(matches!(read(&[&bytes[..], b"x"].concat()), Err(BadLine::Damaged)));
        }
        let newer = String::from_utf8(written([].iter())).unwrap().replace("deletions 2", "deletions 3");
        assert!(matches!(read(newer.as_bytes()), Err(BadLine::Version(version)) if version == "3"));
    }
}
