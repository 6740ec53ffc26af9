//! A check finds each damage and reports no other; a repair fixes the damage that it reports as fixed.

use super::damages::{DAMAGES, DamagedBase};
use super::directories::{assert_serves, copy_directory, directories, setup};
use super::{assert_undamaged, check, damage_in, path_text, run_store, run_store_json};
use std::fs;

#[test]
fn every_damage_is_found_and_every_repairable_one_is_repaired() {
    let made = directories();
    for sound in [&made.old, &made.killed, &made.stopped] {
        assert_undamaged(sound);
    }
    assert!(DAMAGES.len() >= 20);
    for (name, base, kind, mended, damage) in DAMAGES {
        let dir = made.temp_dir.path().join("damaged");
        copy_directory(if *base == DamagedBase::Stopped { &made.stopped } else { &made.killed }, &dir);
        damage(&dir, &made.old);
        let found = check(&dir);
        assert!(found.iter().any(|found| found == kind), "{name}: {found:?}");

        let (repaired, status) = run_store_json(&["repair", path_text(&dir)]);
        let left = damage_in(&repaired["left"]["findings"]);
        assert_eq!(status, i32::from(!left.is_empty()), "{name}: {repaired:#}");
        assert_eq!(left.is_empty(), *mended, "{name}: {repaired:#}");
        if *mended {
            assert_serves(&dir, &made.objects);
        } else {
            assert_eq!(check(&dir), left, "{name}: the check reports the remaining damage");
        }
        fs::remove_dir_all(&dir).expect("removed");
    }
    assert_serves(&made.killed, &made.objects);
}

#[test]
fn a_directory_in_use_a_newer_one_and_a_missing_one_are_refused() {
    let room = tempfile::tempdir().expect("a directory");
    let dir = room.path().join("data");
    let server = setup(&dir).start();
    let out = room.path().join("elsewhere");
    for verb in ["check", "repair", "rebuild", "salvage"] {
        let refused = run_store(&[verb, path_text(&dir)]);
        let output = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(4), "{verb}: {output}");
        assert!(output.contains("in use") && output.contains(&server.pid().to_string()), "{output}");
    }
    server.stop();
    fs::write(dir.join("node.json"), "{\"format\": 99}").expect("written");
    for verb in ["check", "repair", "rebuild", "salvage"] {
        let refused = run_store(&[verb, path_text(&dir)]);
        let output = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(4), "{verb}: {output}");
        assert!(output.contains("has format 99") && output.contains("newer"), "{output}");
    }
    let none = run_store(&["check", path_text(&out)]);
    assert_eq!(none.status.code(), Some(1), "{}", String::from_utf8_lossy(&none.stderr));
    assert!(!out.exists(), "a check creates nothing");
}
