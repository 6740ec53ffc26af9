//! The list of what is in a copy. One that decodes is encoded to the same list, and names nothing
//! outside of the copy. Its checksum is made right first.

use std::path::{Component, Path};

use mlgw_common::checksum::crc32c;
use mlgw_formats::backup_contents::Contents;

/// The text of the list, as it is and with its last line made right.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    check(text);
    let listed = text.rsplit_once("end ").map_or(text, |(listed, _)| listed);
    check(&format!("{listed}end {:08x}\n", crc32c(listed.as_bytes())));
}

fn check(text: &str) {
    let Ok(contents) = Contents::decode(text) else { return };
    for name in contents.files.keys() {
        assert!(Path::new(name).components().all(|part| matches!(part, Component::Normal(_))), "{name}");
    }
    assert_eq!(Contents::decode(&contents.encode()), Ok(contents));
}
