//! Sizes of files and functions.

use crate::measures::{Measure, Offender};
use crate::source::{Function, Source};
use crate::tree::Tree;

const FILE_LINES_MAX: usize = 700;
const FUNCTION_LINES_MAX: usize = 70;

/// Largest ninth decile of the files, and of the functions, outside tests.
const FILE_LINES_P90_MAX: usize = 400;
const FUNCTION_LINES_P90_MAX: usize = 25;

/// Number of lines of a file. Files of tests count completely, others without their items for tests.
fn file_lines(path: &str, source: &Source, tree: &Tree) -> usize {
    if tree.test_files.contains(path) { source.text.lines().count() } else { source.lines }
}

/// Checks that files have at most 700 lines, nine of ten at most 400, and nine of ten functions at most 25.
pub(crate) fn files_and_functions_stay_readable(tree: &Tree) -> Vec<String> {
    let files = tree.sources.iter().map(|(path, source)| (path, file_lines(path, source, tree)));
    let long = files.filter(|(_, lines)| *lines > FILE_LINES_MAX);
    let mut found: Vec<String> = long.map(|(path, lines)| format!("{path} has {lines} lines")).collect();
    let lines = p90(tree.shipped().map(|(_, source)| source.lines));
    if lines > FILE_LINES_P90_MAX {
        found.push(format!("one file in ten has more than {lines} lines"));
    }
    let lines = p90(shipped_functions(tree).map(|(_, function)| function.lines));
    if lines > FUNCTION_LINES_P90_MAX {
        found.push(format!("one function in ten has more than {lines} lines"));
    }
    found
}

/// Functions of more than 70 lines, including their signature but not their comments: free functions,
/// methods, trait methods and nested ones; also in files of tests, but not in modules of tests.
pub(crate) fn long_functions(tree: &Tree) -> Measure {
    let functions = tree.sources.iter().flat_map(|(path, source)| {
        let long = source.functions.iter().filter(|function| function.lines > FUNCTION_LINES_MAX);
        long.map(move |f| Offender::new(f.lines, path, f.line, format!("{} has {} lines", f.name, f.lines)))
    });
    Measure::count("long_functions", functions.collect())
}

pub(crate) fn shipped_functions(tree: &Tree) -> impl Iterator<Item = (&str, &Function)> {
    tree.shipped().flat_map(|(path, source)| source.functions.iter().map(move |function| (path, function)))
}

/// The ninth decile.
fn p90(numbers: impl Iterator<Item = usize>) -> usize {
    let mut numbers: Vec<usize> = numbers.filter(|number| *number > 0).collect();
    numbers.sort_unstable();
    numbers.get(numbers.len() * 9 / 10).copied().unwrap_or(0)
}

#[test]
fn a_long_function_is_found() {
    let long =
        |lines: usize| format!("//! A.\nimpl A {{\n    pub fn long() {{\n{}    }}\n}}\n", "\n".repeat(lines));
    let (at_limit, beyond) = (long(FUNCTION_LINES_MAX - 2), long(FUNCTION_LINES_MAX - 1));
    let found = long_functions(&Tree::of(&[("a.rs", &at_limit), ("tests/b.rs", &beyond)]));
    assert_eq!(found.value, 1.0);
    assert_eq!(found.offenders[0].to_string(), "tests/b.rs:3: long has 71 lines");
    assert_eq!(p90((1..=20).chain([0, 0])), 19);
}
