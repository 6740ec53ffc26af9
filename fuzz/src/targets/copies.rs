//! The contents file of a backup. Properties: a file that decodes is encoded to an equal list, and every
//! path in it is inside of the backup. The checksum is corrected first.

use std::path::{Component, Path};

use mlgw_common::checksum::crc32c;
use mlgw_formats::backup_contents::BackupContents;

/// Decodes the text unchanged, and with its last line corrected.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    check(text);
    let listed = text.rsplit_once("end ").map_or(text, |(listed, _)| listed);
    check(&format!("{listed}end {:08x}\n", crc32c(listed.as_bytes())));
}

fn check(text: &str) {
    let Ok(contents) = BackupContents::decode(text) else { return };
    for name in contents.files.keys() {
        assert!(Path::new(name).components().all(|part| matches!(part, Component::Normal(_))), "{name}");
    }
    assert_eq!(BackupContents::decode(&contents.encode()), Ok(contents));
}
