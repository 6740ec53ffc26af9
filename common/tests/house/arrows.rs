//! Allowed dependencies between crates, and external crates that only some folders may name.

use std::path::Path;
use std::process::Command;

use crate::source::Source;
use crate::tree::{Tree, root};

/// Our crates that each crate may use, from the lowest layer to the highest. Tests use the binary, not the
/// crates of the engine. `mlgw-testing` and `mlgw-schedules` are for tests, and `mlgw-admin` tests its
/// handlers with the client of the command line.
const ARROWS: &[(&str, &[&str])] = &[
    ("mlgw-common", &[]),
    ("base2histogram", &[]),
    ("mlgw-carrier", &["mlgw-common"]),
    ("mlgw-formats", &["mlgw-common"]),
    ("mlgw-trust", &["mlgw-common"]),
    ("mlgw-transport", &["mlgw-common", "mlgw-trust"]),
    ("mlgw-schedules", &[]),
    ("mlgw-membership", &["mlgw-common", "mlgw-formats", "mlgw-schedules"]),
    ("mlgw-replication", &["mlgw-common", "mlgw-schedules"]),
    ("mlgw-metadata", &["mlgw-common", "mlgw-formats", "mlgw-schedules"]),
    ("mlgw-policies", &["mlgw-common"]),
    ("mlgw-lab", &["mlgw-api", "mlgw-common", "mlgw-formats", "mlgw-policies"]),
    ("mlgw-remote", &["mlgw-carrier", "mlgw-common", "mlgw-formats"]),
    (
        "mlgw-segments",
        &[
            "mlgw-common",
            "mlgw-formats",
            "mlgw-metadata",
            "mlgw-policies",
            "mlgw-remote",
            "mlgw-replication",
            "mlgw-schedules",
        ],
    ),
    (
        "mlgw-cache",
        &["mlgw-common", "mlgw-formats", "mlgw-metadata", "mlgw-policies", "mlgw-remote", "mlgw-segments"],
    ),
    ("mlgw-objects", &["mlgw-common", "mlgw-formats", "mlgw-metadata", "mlgw-segments"]),
    (
        "mlgw-policy-runtime",
        &[
            "mlgw-cache",
            "mlgw-common",
            "mlgw-formats",
            "mlgw-metadata",
            "mlgw-objects",
            "mlgw-policies",
            "mlgw-segments",
        ],
    ),
    ("mlgw-api", &["mlgw-common"]),
    ("mlgw-testing", &["mlgw-api", "mlgw-common", "mlgw-objects"]),
    (
        "mlgw-wire",
        &["mlgw-api", "mlgw-common", "mlgw-formats", "mlgw-metadata", "mlgw-objects", "mlgw-policies"],
    ),
    (
        "mlgw-config",
        &["mlgw-api", "mlgw-common", "mlgw-policies", "mlgw-remote", "mlgw-testing", "mlgw-wire"],
    ),
    ("mlgw-auth", &["mlgw-api", "mlgw-common", "mlgw-testing", "mlgw-wire"]),
    ("mlgw-body", &["mlgw-api", "mlgw-auth", "mlgw-common", "mlgw-formats", "mlgw-testing", "mlgw-wire"]),
    (
        "mlgw-telemetry",
        &[
            "mlgw-carrier",
            "mlgw-common",
            "mlgw-config",
            "mlgw-forwarding",
            "mlgw-objects",
            "mlgw-testing",
            "mlgw-wire",
        ],
    ),
    ("mlgw-listener", &["mlgw-common", "mlgw-config", "mlgw-objects", "mlgw-telemetry", "mlgw-wire"]),
    (
        "mlgw-credentials",
        &["mlgw-api", "mlgw-auth", "mlgw-common", "mlgw-formats", "mlgw-metadata", "mlgw-wire"],
    ),
    ("mlgw-forwarding", &["mlgw-common", "mlgw-wire"]),
    (
        "mlgw-protocol",
        &[
            "mlgw-auth",
            "mlgw-body",
            "mlgw-cache",
            "mlgw-common",
            "mlgw-credentials",
            "mlgw-forwarding",
            "mlgw-formats",
            "mlgw-listener",
            "mlgw-metadata",
            "mlgw-objects",
            "mlgw-policies",
            "mlgw-policy-runtime",
            "mlgw-remote",
            "mlgw-segments",
            "mlgw-telemetry",
            "mlgw-testing",
            "mlgw-wire",
        ],
    ),
    (
        "mlgw-background",
        &[
            "mlgw-cache",
            "mlgw-common",
            "mlgw-formats",
            "mlgw-metadata",
            "mlgw-objects",
            "mlgw-policies",
            "mlgw-policy-runtime",
            "mlgw-remote",
            "mlgw-segments",
            "mlgw-telemetry",
            "mlgw-wire",
        ],
    ),
    (
        "mlgw-store",
        &[
            "mlgw-api",
            "mlgw-background",
            "mlgw-common",
            "mlgw-config",
            "mlgw-credentials",
            "mlgw-formats",
            "mlgw-metadata",
            "mlgw-policy-runtime",
            "mlgw-segments",
            "mlgw-telemetry",
        ],
    ),
    (
        "mlgw-node",
        &[
            "mlgw-common",
            "mlgw-config",
            "mlgw-credentials",
            "mlgw-formats",
            "mlgw-forwarding",
            "mlgw-membership",
            "mlgw-metadata",
            "mlgw-replication",
            "mlgw-segments",
            "mlgw-store",
            "mlgw-transport",
            "mlgw-trust",
        ],
    ),
    (
        "mlgw-cli",
        &[
            "mlgw-api",
            "mlgw-carrier",
            "mlgw-common",
            "mlgw-config",
            "mlgw-formats",
            "mlgw-lab",
            "mlgw-policies",
            "mlgw-testing",
        ],
    ),
    (
        "mlgw-admin",
        &[
            "mlgw-api",
            "mlgw-auth",
            "mlgw-background",
            "mlgw-cache",
            "mlgw-cli",
            "mlgw-common",
            "mlgw-config",
            "mlgw-credentials",
            "mlgw-formats",
            "mlgw-lab",
            "mlgw-listener",
            "mlgw-metadata",
            "mlgw-node",
            "mlgw-objects",
            "mlgw-policies",
            "mlgw-policy-runtime",
            "mlgw-remote",
            "mlgw-segments",
            "mlgw-store",
            "mlgw-telemetry",
            "mlgw-testing",
            "mlgw-wire",
        ],
    ),
    (
        "mlgw-server",
        &[
            "mlgw-admin",
            "mlgw-api",
            "mlgw-auth",
            "mlgw-background",
            "mlgw-cache",
            "mlgw-common",
            "mlgw-config",
            "mlgw-credentials",
            "mlgw-forwarding",
            "mlgw-listener",
            "mlgw-metadata",
            "mlgw-node",
            "mlgw-objects",
            "mlgw-policy-runtime",
            "mlgw-protocol",
            "mlgw-remote",
            "mlgw-segments",
            "mlgw-store",
            "mlgw-telemetry",
            "mlgw-transport",
            "mlgw-wire",
        ],
    ),
    (
        "mlgw",
        &[
            "mlgw-api",
            "mlgw-cli",
            "mlgw-common",
            "mlgw-config",
            "mlgw-metadata",
            "mlgw-node",
            "mlgw-segments",
            "mlgw-server",
            "mlgw-store",
            "mlgw-transport",
            "mlgw-trust",
        ],
    ),
    ("mlgw-tests", &["mlgw-common", "mlgw-schedules"]),
];

/// Crates without protocol code: they depend on no HTTP crate.
const WITHOUT_HTTP: &[&str] = &[
    "mlgw-common",
    "mlgw-formats",
    "mlgw-schedules",
    "mlgw-trust",
    "mlgw-membership",
    "mlgw-replication",
    "mlgw-metadata",
    "mlgw-policies",
    "mlgw-lab",
    "mlgw-segments",
    "mlgw-objects",
    "mlgw-policy-runtime",
    "mlgw-background",
    "mlgw-api",
    "mlgw-config",
    "mlgw-credentials",
    "mlgw-store",
];

/// Crates that only some folders may name.
const NAMED_ONLY_IN: &[(&str, &[&str])] = &[
    ("openraft", &["common/formats/src/log_", "metadata/src/raft"]),
    ("rocksdb", &["metadata/src/store"]),
    ("hyper", &["cluster/transport", "common/carrier", "gateway/listener", "tests"]),
    ("hyper_util", &["cluster/transport", "common/carrier", "gateway/listener", "tests"]),
    ("hyper_rustls", &["common/carrier"]),
    ("rustls", &["cluster", "common/carrier", "gateway/listener"]),
    ("webpki", &["cluster/trust"]),
    ("rustls_native_certs", &["common/carrier"]),
    (
        "aws_sigv4",
        &[
            "common/carrier",
            "gateway/auth/src/tests",
            "gateway/body/src/tests",
            "gateway/protocol/src/forwarding_tests",
            "gateway/testing",
            "tests",
        ],
    ),
    ("axum", &["gateway/admin"]),
    ("opendal", &["tiering/remote/src/upstream"]),
    ("reqsign_aws_v4", &["tiering/remote/src/upstream"]),
    ("reqsign_core", &["tiering/remote/src/upstream"]),
];

/// Checks that crates use each other along the arrows only, and that every target of theirs is among the
/// files read.
pub(crate) fn crates_use_each_other_along_the_arrows_only(tree: &Tree) -> Vec<String> {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let mut found = Vec::new();
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        let Some((_, allowed)) = ARROWS.iter().find(|(row, _)| *row == name) else {
            found.push(format!("{name} has no row"));
            continue;
        };
        for target in package["targets"].as_array().unwrap() {
            let path = Path::new(target["src_path"].as_str().unwrap());
            let path = path.strip_prefix(root()).unwrap_or(path).to_string_lossy();
            if !tree.sources.contains_key(&*path) {
                found.push(format!("{path} of {name} is not read: its folder is missing in this test"));
            }
        }
        for dependency in package["dependencies"].as_array().unwrap() {
            let dependency = dependency["name"].as_str().unwrap();
            let ours = dependency == "mlgw" || dependency.starts_with("mlgw-");
            let is_http = ["http", "hyper", "axum"].iter().any(|prefix| dependency.starts_with(prefix));
            if ours && !allowed.contains(&dependency) || is_http && WITHOUT_HTTP.contains(&name) {
                found.push(format!("{name} uses {dependency}"));
            }
        }
    }
    found
}

/// Checks that external crates behind a seam are named only there, and that every row of the tables is in
/// use.
pub(crate) fn what_is_behind_a_seam_is_named_only_there(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (name, folders) in NAMED_ONLY_IN {
        let mut unused = folders.to_vec();
        for (path, source) in &tree.sources {
            let Some(line) = line_that_names(source, &[name]) else { continue };
            unused.retain(|folder| !path.starts_with(folder));
            if !folders.iter().any(|folder| path.starts_with(folder)) {
                found.push(format!("{path}:{line} names {name}"));
            }
        }
        let out_of_date = |folder| format!("no file in {folder} names {name}: the row is out of date");
        found.extend(unused.into_iter().map(out_of_date));
    }
    found
}

/// The first line of a file with a path, in code or an import, that begins with these names.
fn line_that_names(source: &Source, name: &[&str]) -> Option<usize> {
    let begins = |path: &[String]| path.len() >= name.len() && path.iter().zip(name).all(|(a, b)| a == b);
    let imports = source.imports.iter().map(|import| (&import.path, import.line));
    let paths = source.paths.iter().map(|(mention, line)| (&mention.path, *line));
    imports.chain(paths).filter(|(path, _)| begins(path)).map(|(_, line)| line).min()
}

#[test]
fn a_crate_is_named_by_code_and_not_by_comments() {
    let tree = Tree::of(&[
        ("a.rs", "//! Of rocksdb::DB.\nfn f() { let _ = \"rocksdb::DB\"; my::rocksdb::f(); }"),
        ("b.rs", "//! B.\nuse {std::fs, rocksdb::{DB, Options}};"),
        ("c.rs", "//! C.\nfn f() {\n    log!(rocksdb::properties::STATS);\n}"),
        ("d.rs", "//! D.\nuse rocksdb;"),
    ]);
    let found: Vec<Option<usize>> =
        tree.sources.values().map(|source| line_that_names(source, &["rocksdb"])).collect();
    assert_eq!(found, [None, Some(2), Some(3), Some(2)]);
}
