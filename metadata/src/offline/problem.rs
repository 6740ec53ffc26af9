//! Errors of RocksDB on a scratch copy, reported for the original store.

use super::finding::{Finding, Kind};
use std::path::Path;

/// Finding for an error of opening or reading the copy at `to` of the store in `from`.
pub(super) fn of(error: &str, from: &Path, to: &Path) -> Finding {
    let said = error.replace(&to.display().to_string(), &from.display().to_string());
    let kind = [
        (".sst", Kind::Table),
        ("MANIFEST", Kind::Manifest),
        ("CURRENT", Kind::Current),
        (".log", Kind::Log),
    ]
    .into_iter()
    .find(|(mark, _)| said.contains(mark))
    .map_or(Kind::Store, |(_, kind)| kind);
    // The place is the table that the error names, else the store.
    let place = match kind {
        Kind::Table => named_table(&said).map_or_else(|| from.to_owned(), |name| from.join(name)),
        _ => from.to_owned(),
    };
    Finding::damage(kind, place.display(), said)
}

/// The name of the table in a message: its number and `.sst`.
fn named_table(said: &str) -> Option<String> {
    let end = said.find(".sst")?;
    let start = said[..end].rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
    (start < end).then(|| format!("{}.sst", &said[start..end]))
}

#[cfg(test)]
mod tests {
    use super::of;
    use crate::offline::Kind;
    use std::path::Path;

    #[test]
    fn an_error_of_the_copy_is_reported_for_the_original_store() {
        let said = "Corruption: block checksum mismatch: in /tmp/s/000012.sst offset 0 size 9";
        let finding = of(said, Path::new("/d/group-0/state-1"), Path::new("/tmp/s"));
        assert_eq!((finding.kind, finding.place.as_str()), (Kind::Table, "/d/group-0/state-1/000012.sst"));
        assert!(finding.what.contains("in /d/group-0/state-1/000012.sst"), "{}", finding.what);
        let other = of("Corruption: checksum mismatch in MANIFEST-000005", Path::new("/d"), Path::new("/s"));
        assert_eq!((other.kind, other.place.as_str()), (Kind::Manifest, "/d"));
    }
}
