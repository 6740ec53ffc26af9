//! The file of deletions that wait: a [line](crate::line_file) `mlgw-deletions 1 CRC JSON`, and nothing else.
//!
//! Always: what is read back is what was written, and anything else is refused.

use crate::line_file::{BadLine, Kind};
use mlgw_policies::at_rest::Note;
use serde::{Deserialize, Serialize};

const KIND: Kind = Kind { magic: "mlgw-deletions", version: "1" };

/// How a [`Note`] is written.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Note", deny_unknown_fields)]
struct Row {
    bucket: u64,
    prefix: String,
    rule: String,
    noted_ms: i64,
    due_ms: i64,
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
    let (rows, rest): (Vec<Written>, _) = KIND.read(bytes)?;
    if !rest.is_empty() {
        return Err(BadLine::Damaged);
    }
    Ok(rows.into_iter().map(|Written(note)| note).collect())
}

#[cfg(test)]
mod tests {
    use super::{BadLine, read, written};
    use mlgw_policies::at_rest::Note;

    #[test]
    fn the_format_is_what_was_released() {
        let note = Note {
            bucket: 1,
            prefix: "run/step-5/".into(),
            rule: "few".into(),
            noted_ms: -5,
            due_ms: 7,
            files: 2,
            bytes: 9,
        };
        let golden = "mlgw-deletions 1 2c87a256 [{\"bucket\":1,\"prefix\":\"run/step-5/\",\"rule\":\"few\",\"noted_ms\":-5,\"due_ms\":7,\"files\":2,\"bytes\":9}]\n";
        assert_eq!(String::from_utf8(written([note].iter())).unwrap(), golden);
    }

    #[test]
    fn what_is_read_is_what_was_written_and_nothing_else_is_taken() {
        let note = |prefix: &str| Note {
            bucket: 1,
            prefix: prefix.into(),
            rule: "few".into(),
            noted_ms: -5,
            due_ms: 7,
            files: 2,
            bytes: 9,
        };
        for notes in [vec![], vec![note("run/ä 1/"), note("\n")]] {
            let bytes = written(notes.iter());
            assert_eq!(read(&bytes).unwrap(), notes);
            assert!(matches!(read(&bytes[..bytes.len() - 1]), Err(BadLine::Damaged)));
            assert!(matches!(read(&[&bytes[..], b"x"].concat()), Err(BadLine::Damaged)));
        }
        let newer = String::from_utf8(written([].iter())).unwrap().replace("deletions 1", "deletions 2");
        assert!(matches!(read(newer.as_bytes()), Err(BadLine::Version(version)) if version == "2"));
    }
}
