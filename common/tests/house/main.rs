//! Rules and measures of the code base. Rules always hold: allowed dependencies between crates, crates that
//! only some folders may name, sizes of files and functions. Measures have a goal and may only come nearer to
//! it (`measures.toml`).
//!
//! Every file is parsed once per process; rules and measures use only the facts of [`source::Source`]. Each
//! measure has a test on a literal snippet, so that a broken measure does not go unnoticed.

mod arrows;
mod circles;
mod comments;
mod documents;
mod measures;
mod prose;
mod rules;
mod sizes;
mod source;
mod tree;
mod types;
mod words;

use tree::Tree;

/// A rule returns one line for each violation.
type Rule = fn(&Tree) -> Vec<String>;

const RULES: &[(&str, Rule)] = &[
    ("crates use each other along the arrows only", arrows::crates_use_each_other_along_the_arrows_only),
    ("names behind a seam occur only there", arrows::what_is_behind_a_seam_is_named_only_there),
    ("files and functions stay readable", sizes::files_and_functions_stay_readable),
    ("every file opens with its purpose", rules::every_file_opens_with_its_purpose),
    ("unsafe code is in listed files only", rules::unsafe_code_is_in_listed_files_only),
    ("nothing unwraps outside tests", rules::nothing_unwraps_outside_tests),
    ("no file has open to-do marks", rules::nothing_is_left_for_later),
    ("every documented test exists", rules::every_test_behind_a_promise_is_there),
    ("links in documents lead somewhere", documents::links_lead_somewhere),
    ("paths in documents exist", documents::paths_exist),
    ("members of types in documents exist", documents::members_exist),
    ("fuzz targets have small corpora", rules::fuzz_targets_have_small_corpora_and_link_no_rocksdb),
];

/// Single test for all rules and measures: some runners start a process for each test, and each process would
/// parse all files.
#[test]
fn every_rule_and_measure_holds() {
    let tree = Tree::get();
    let mut failures = String::new();
    let rules = RULES.iter().map(|(rule, check)| (*rule, check(tree)));
    for (rule, found) in rules.chain([("every measure holds", measures::failures(tree))]) {
        if !found.is_empty() {
            failures += &format!("\n{rule}:\n  {}\n", found.join("\n  "));
        }
    }
    assert!(failures.is_empty(), "{failures}");
}
