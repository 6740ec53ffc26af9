//! Errors of RocksDB on a scratch copy, reported for the original store.

use super::finding::{CheckFinding, FindingKind};
use std::path::Path;

/// Finding for an error of opening or reading the copy at `to` of the store in `from`.
pub(super) fn finding_of(error: &str, from: &Path, to: &Path) -> CheckFinding {
    let message = error.replace(&to.display().to_string(), &from.display().to_string());
    let kind = [
        (".sst", FindingKind::Table),
        ("MANIFEST", FindingKind::Manifest),
        ("CURRENT", FindingKind::Current),
        (".log", FindingKind::Log),
    ]
    .into_iter()
    .find(|(mark, _)| message.contains(mark))
    .map_or(FindingKind::Store, |(_, kind)| kind);
    // The place is the table that the error names, else the store.
    let place = match kind {
        FindingKind::Table => named_table(&message).map_or_else(|| from.to_owned(), |name| from.join(name)),
        _ => from.to_owned(),
    };
    CheckFinding::damage(kind, place.display(), message)
}

/// The name of the table in a message: its number and `.sst`.
fn named_table(message: &str) -> Option<String> {
    let end = message.find(".sst")?;
    let start = message[..end].rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
    (start < end).then(|| format!("{}.sst", &message[start..end]))
}

#[cfg(test)]
mod tests {
    use super::finding_of;
    use crate::offline::FindingKind;
    use std::path::Path;

    #[test]
    fn an_error_of_the_copy_is_reported_for_the_original_store() {
        let message = "Corruption: block checksum mismatch: in /tmp/s/000012.sst offset 0 size 9";
        let finding = finding_of(message, Path::new("/d/group-0/state-1"), Path::new("/tmp/s"));
        assert_eq!(
            (finding.kind, finding.place.as_str()),
            (FindingKind::Table, "/d/group-0/state-1/000012.sst")
        );
        assert!(finding.what.contains("in /d/group-0/state-1/000012.sst"), "{}", finding.what);
        let other =
            finding_of("Corruption: checksum mismatch in MANIFEST-000005", Path::new("/d"), Path::new("/s"));
        assert_eq!((other.kind, other.place.as_str()), (FindingKind::Manifest, "/d"));
    }
}
