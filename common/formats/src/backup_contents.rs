//! Contents list of a backup or catalogue snapshot, as text.
//!
//! Invariant: every path in a decoded list stays within the directory of the backup.

use mlgw_common::checksum::crc32c;
use std::collections::BTreeMap;
use std::path::{Component, Path};

/// First line of the list; the number is the version of the format.
const HEADER: &str = "mlgw-copy 1";

/// Entry of one file in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupFileEntry {
    /// CRC32C of the file's bytes.
    pub crc: u32,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Fingerprint of the source file, which distinguishes it from another file under the same name; `-` if
    /// none.
    pub source: String,
}

/// The contents list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackupContents {
    /// Time at which the backup was made, for display.
    pub written: String,
    /// The files, by their path in the backup.
    pub files: BTreeMap<String, BackupFileEntry>,
}

impl BackupContents {
    /// Returns the list as text.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = format!("{HEADER}\nwritten {}\n", self.written);
        for (name, BackupFileEntry { crc, bytes, source }) in &self.files {
            text += &format!("file {crc:08x} {bytes} {source} {name}\n");
        }
        let crc = crc32c(text.as_bytes());
        text + &format!("end {crc:08x}\n")
    }

    /// Parses the list in `text`.
    ///
    /// # Errors
    /// Describes why `text` is not a list, is damaged or is of a newer version.
    pub fn decode(text: &str) -> Result<Self, String> {
        let first = text.split('\n').next().unwrap_or_default();
        if first != HEADER {
            return Err(match first.strip_prefix("mlgw-copy ") {
                Some(version) => {
                    format!(
                        "this backup has format {version}, which this mlgw cannot read; use the version \
                         that wrote it or a newer one"
                    )
                }
                None => "not the contents list of a copy".to_owned(),
            });
        }
        let damaged = || "the contents list of the copy is damaged".to_owned();
        let end = text.rfind("end ").ok_or_else(damaged)?;
        let (listed, last) = text.split_at(end);
        if last != format!("end {:08x}\n", crc32c(listed.as_bytes())) {
            return Err(damaged());
        }
        let mut contents = Self::default();
        for line in listed.strip_suffix('\n').ok_or_else(damaged)?.split('\n').skip(1) {
            if let Some(written) = line.strip_prefix("written ") {
                written.clone_into(&mut contents.written);
                continue;
            }
            let mut fields = line.strip_prefix("file ").ok_or_else(damaged)?.splitn(4, ' ');
            let mut next = || fields.next().ok_or_else(damaged);
            let crc = u32::from_str_radix(next()?, 16).map_err(|_| damaged())?;
            let bytes = next()?.parse().map_err(|_| damaged())?;
            let (source, name) = (next()?.to_owned(), next()?.to_owned());
            let mut parts = Path::new(&name).components();
            if name.is_empty() || !parts.all(|part| matches!(part, Component::Normal(_))) {
                return Err(format!(
                    "the contents list of the copy names {name:?}, which is outside the copy"
                ));
            }
            contents.files.insert(name, BackupFileEntry { crc, bytes, source });
        }
        Ok(contents)
    }

    /// Returns the total bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::{BackupContents, HEADER};
    use mlgw_common::checksum::crc32c;

    #[test]
    fn a_path_outside_the_backup_is_rejected() {
        for (name, within) in
            [("a/b", true), ("../a", false), ("/a", false), ("a/../../b", false), ("", false)]
        {
            let text = format!("{HEADER}\nfile 00000000 0 - {name}\n");
            let text = format!("{text}end {:08x}\n", crc32c(text.as_bytes()));
            assert_eq!(BackupContents::decode(&text).is_ok(), within, "{name}");
        }
    }

    #[test]
    fn an_unterminated_or_unknown_line_is_damage() {
        for listed in ["file 00000000 0 - a\r", "file 00000000 0 - a", "pile 00000000 0 - a\n"] {
            let text = format!("{HEADER}\n{listed}");
            let text = format!("{text}end {:08x}\n", crc32c(text.as_bytes()));
            assert!(BackupContents::decode(&text).is_err(), "{listed:?}");
        }
    }
}
