//! Lines of the decision log: one JSON object per entry, with the number of the format. Pure.
//!
//! Invariant: written entries read back unchanged. A file may contain anything: a line that does not parse is
//! skipped, and a file with a line of a newer format is refused.

use crate::decision_entry::DecisionEntry;
use mlgw_common::limits::DECISIONS_MAX;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the line format.
const FORMAT: u32 = 1;
/// Maximum sequence number accepted from a file, so that numbers continued from it do not overflow.
const SEQ_MAX: u64 = u64::MAX / 2;

/// The part of a line that every version has.
#[derive(Deserialize)]
struct DecisionLineFormat {
    v: u32,
}

#[derive(Serialize)]
struct DecisionLine<'a> {
    v: u32,
    #[serde(flatten)]
    entry: &'a DecisionEntry,
}

/// Encodes entries as lines.
pub fn encode_lines(entries: &[DecisionEntry]) -> serde_json::Result<Vec<u8>> {
    let mut lines = Vec::new();
    for entry in entries {
        serde_json::to_writer(&mut lines, &DecisionLine { v: FORMAT, entry })?;
        lines.push(b'\n');
    }
    Ok(lines)
}

/// Reads the entries of a file into `found`, which keeps the newest [`DECISIONS_MAX`]. Returns the number of
/// skipped lines and the reason of the last, if lines were skipped. The error is the number of a newer
/// format.
pub fn read_lines(text: &[u8], found: &mut BTreeMap<u64, DecisionEntry>) -> Result<Option<String>, u32> {
    let mut skipped = (0, String::new());
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let format = serde_json::from_slice::<DecisionLineFormat>(line).map_or(FORMAT, |format| format.v);
        if format > FORMAT {
            return Err(format);
        }
        match parse_entry(line) {
            Ok(entry) => drop(found.insert(entry.seq, entry)),
            Err(why) => skipped = (skipped.0 + 1, why),
        }
        if found.len() > DECISIONS_MAX {
            found.pop_first();
        }
    }
    let (lines, why) = skipped;
    let noun = if lines == 1 { "line" } else { "lines" };
    Ok((lines > 0).then(|| format!("{lines} {noun} skipped, last reason: {why}")))
}

fn parse_entry(line: &[u8]) -> Result<DecisionEntry, String> {
    let entry: DecisionEntry = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    match entry.seq {
        0..=SEQ_MAX => Ok(entry),
        seq => Err(format!("sequence number {seq} is out of range")),
    }
}

#[cfg(test)]
mod tests {
    use super::read_lines;
    use std::collections::BTreeMap;

    const LINE: &str = concat!(
        r#""at_ms":1,"until_ms":1,"kind":"spill","count":1,"from":"hot","to":"cold","bytes":1,"#,
        r#""reason":"drain","outcome":"done"}"#
    );

    #[test]
    fn sequence_numbers_above_the_maximum_are_skipped() {
        let text =
            [1, u64::MAX, u64::MAX / 2].map(|seq| format!("{{\"v\":1,\"seq\":{seq},{LINE}")).join("\n");
        let mut found = BTreeMap::new();
        let skipped = read_lines(text.as_bytes(), &mut found).unwrap();
        assert_eq!(found.into_keys().collect::<Vec<_>>(), [1, u64::MAX / 2]);
        assert!(skipped.unwrap().contains("1 line skipped, last reason: "), "and reports it");
    }
}
