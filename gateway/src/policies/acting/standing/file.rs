//! The file of deletions that wait: a line `mlgw-deletions 1 CRC JSON`, with the CRC32C of the JSON in hexadecimal.
//!
//! Always: what is read back is what was written, and anything else is refused.

use crc_fast::{CrcAlgorithm, checksum};
use mlgw_policies::at_rest::Note;
use serde::{Deserialize, Serialize};

const MAGIC: &str = "mlgw-deletions";
const VERSION: &str = "1";

/// A checkpoint whose deletion waits.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    bucket: u64,
    prefix: String,
    rule: String,
    noted_ms: i64,
    due_ms: i64,
    files: u64,
    bytes: u64,
}

/// Why a file says nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadFile {
    /// It is not what was written.
    #[error("the file is damaged")]
    Damaged,
    /// A later program wrote it.
    #[error("the file is of version {0}, which this program does not know")]
    Version(String),
}

/// A file's bytes.
pub(super) fn written<'n>(notes: impl Iterator<Item = &'n Note>) -> Vec<u8> {
    let rows: Vec<Row> = notes
        .cloned()
        .map(|Note { bucket, prefix, rule, noted_ms, due_ms, files, bytes }| Row {
            bucket,
            prefix,
            rule,
            noted_ms,
            due_ms,
            files,
            bytes,
        })
        .collect();
    let json = serde_json::to_string(&rows).unwrap_or_default();
    format!("{MAGIC} {VERSION} {:08x} {json}\n", crc(&json)).into_bytes()
}

/// What a file's bytes say.
pub(super) fn read(bytes: &[u8]) -> Result<Vec<Note>, BadFile> {
    let line = std::str::from_utf8(bytes).ok().and_then(|text| text.strip_suffix('\n'));
    let mut words = line.ok_or(BadFile::Damaged)?.splitn(4, ' ');
    let mut word = || words.next().ok_or(BadFile::Damaged);
    if word()? != MAGIC {
        return Err(BadFile::Damaged);
    }
    let version = word()?;
    if version != VERSION {
        return Err(BadFile::Version(version.to_owned()));
    }
    let (sum, json) = (word()?, word()?);
    if sum != format!("{:08x}", crc(json)) {
        return Err(BadFile::Damaged);
    }
    let rows: Vec<Row> = serde_json::from_str(json).map_err(|_| BadFile::Damaged)?;
    let note = |Row { bucket, prefix, rule, noted_ms, due_ms, files, bytes }: Row| Note {
        bucket,
        prefix,
        rule,
        noted_ms,
        due_ms,
        files,
        bytes,
    };
    Ok(rows.into_iter().map(note).collect())
}

fn crc(text: &str) -> u64 {
    checksum(CrcAlgorithm::Crc32Iscsi, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::{BadFile, read, written};
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
            assert!(matches!(read(&bytes[..bytes.len() - 1]), Err(BadFile::Damaged)));
        }
        let newer = String::from_utf8(written([].iter())).unwrap().replace("deletions 1", "deletions 2");
        assert!(matches!(read(newer.as_bytes()), Err(BadFile::Version(version)) if version == "2"));
    }
}
