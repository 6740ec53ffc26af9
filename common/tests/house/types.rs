//! Measures of types and signatures: shared names, tuples and flags as parameters, asserts.

use std::collections::BTreeMap;

use crate::measures::{Kind, Measure, Offender};
use crate::sizes::shipped_functions;
use crate::tree::Tree;

/// Names that types in several files may share.
const SHARED_BY_CUSTOM: &[&str] = &["Config", "Error", "Options"];

/// Files that define each type name outside tests, with one line per file.
fn definitions(tree: &Tree) -> BTreeMap<&str, BTreeMap<&str, usize>> {
    let mut found: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    for (path, source) in tree.shipped() {
        for (name, line) in &source.types {
            if !SHARED_BY_CUSTOM.contains(&&**name) {
                found.entry(name).or_default().entry(path).or_insert(*line);
            }
        }
    }
    found
}

/// Names that more than `files` files define.
fn defined_in_more_than(files: usize, tree: &Tree) -> Vec<Offender> {
    let shared = definitions(tree).into_iter().filter(|(_, places)| places.len() > files);
    let offenders = shared.map(|(name, places)| {
        let (path, line) = places.iter().next().map_or(("", 0), |(path, line)| (*path, *line));
        let others: Vec<String> =
            places.iter().skip(1).map(|(path, line)| format!("{path}:{line}")).collect();
        Offender::new(places.len(), path, line, format!("{name}, also in {}", others.join(", ")))
    });
    offenders.collect()
}

/// Types (structs, enums, unions, traits, aliases) outside tests whose name is also that of a type in another
/// file, as a percentage of all types. `Error`, `Config` and `Options` are not counted.
pub(crate) fn shared_names(tree: &Tree) -> Measure {
    let definitions = definitions(tree);
    let all = definitions.values().map(BTreeMap::len).sum();
    let shared = definitions.values().map(BTreeMap::len).filter(|files| *files > 1).sum();
    Measure::rate("shared_type_names_percent", shared, all, 100.0, defined_in_more_than(1, tree))
}

/// Type names that three or more files define.
pub(crate) fn names_in_a_third_file(tree: &Tree) -> Measure {
    Measure::count("type_names_in_a_third_file", defined_in_more_than(2, tree))
}

/// Functions outside tests with a parameter that is a tuple of two or more types, which hides a struct.
/// References are looked through. Methods of trait implementations are not counted, because the trait gives
/// their signature.
pub(crate) fn tuple_parameters(tree: &Tree) -> Measure {
    let functions = shipped_functions(tree).filter(|(_, function)| function.tuples > 0);
    let offenders = functions.map(|(path, f)| Offender::new(f.tuples, path, f.line, f.name.clone()));
    Measure::count("functions_with_tuple_parameters", offenders.collect())
}

/// Parameters of type `bool` of functions outside tests, with the same exceptions as for tuples.
pub(crate) fn bool_parameters(tree: &Tree) -> Measure {
    let functions = shipped_functions(tree).filter(|(_, function)| function.bools > 0);
    let offenders = functions.map(|(path, f)| Offender::new(f.bools, path, f.line, f.name.clone()));
    let bools = shipped_functions(tree).map(|(_, function)| function.bools).sum::<usize>();
    Measure::new("bool_parameters", Kind::Count, bools as f64, offenders.collect())
}

/// Calls of `assert!`, `assert_eq!`, `assert_ne!` and their `debug_` forms outside tests, per 1,000 lines
/// outside tests. Folders without any are listed.
pub(crate) fn asserts(tree: &Tree) -> Measure {
    let lines = tree.shipped().map(|(_, source)| source.lines).sum::<usize>();
    let asserts = tree.shipped().map(|(_, source)| source.asserts).sum::<usize>();
    let mut folders: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for (path, source) in tree.shipped() {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let counts = folders.entry(folder).or_default();
        *counts = (counts.0 + source.lines, counts.1 + source.asserts);
    }
    let without = folders.into_iter().filter(|(_, (_, asserts))| *asserts == 0);
    let offenders =
        without.map(|(folder, (lines, _))| Offender::new(lines, folder, 0, format!("{lines} lines")));
    let value = asserts as f64 / lines.max(1) as f64 * 1000.0;
    Measure::new("asserts_per_1000_lines", Kind::RateOfMore, value, offenders.collect())
}

#[test]
fn types_that_share_their_name_are_counted() {
    let tree = Tree::of(&[
        ("a.rs", "struct State;\nenum Held {}\nstruct Error;\nmod m { struct State; }"),
        ("b.rs", "type State = u8;\ntrait Held {}\nstruct Error;\n#[cfg(test)]\nmod tests { struct Own; }"),
        ("c.rs", "union State { a: u8 }\nstruct Own;\nfn state() { struct Inner; }"),
    ]);
    let shared = shared_names(&tree);
    assert_eq!(shared.value, 71.43, "five of seven");
    assert_eq!(shared.offenders[0].to_string(), "a.rs:1: State, also in b.rs:1, c.rs:1");
    assert_eq!(names_in_a_third_file(&tree).value, 1.0);
}

#[test]
fn tuples_and_flags_are_counted_where_their_function_is_declared() {
    let tree = Tree::of(&[(
        "a.rs",
        "fn a(x: (u8, u8), y: &[(u8, u8)], z: &(u8, ())) {}\n\
         fn b((c, d): &(u8, bool), e: bool, f: &bool) {}\ntrait T { fn g(self, h: bool); }\n\
         impl T for S { fn g(self, h: bool) {} }\n\
         impl S { fn i(j: impl Fn((u8, u8)) -> bool) { |k: (u8, u8), l: bool| {}; } }\n#[test]\n\
         fn m(n: bool, o: (u8, u8)) {}",
    )]);
    let tuples = tuple_parameters(&tree);
    let places: Vec<String> = tuples.offenders.iter().map(Offender::to_string).collect();
    assert_eq!(places, ["a.rs:1: a", "a.rs:2: b"]);
    assert_eq!(bool_parameters(&tree).value, 3.0);
}

#[test]
fn asserts_are_counted_by_lines() {
    let tree = Tree::of(&[
        (
            "a/b.rs",
            "fn f() {\n    assert!(true);\n    debug_assert_ne!(1, 2);\n}\n#[test]\nfn t() { assert!(true) }",
        ),
        ("c/d.rs", "\n\n\n\n"),
        ("tests/e.rs", "fn t() { assert!(true) }"),
    ]);
    let asserts = asserts(&tree);
    assert_eq!(asserts.value, 250.0, "two in eight lines");
    assert_eq!(asserts.offenders[0].to_string(), "c:0: 4 lines");
}
