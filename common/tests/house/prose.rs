//! Measures of layout: lines that are too wide, paragraphs that are too long.

use crate::measures::{Kind, Measure, Offender};
use crate::tree::Tree;

const COLUMNS_MAX: usize = 110;
const PARAGRAPH_WORDS_MAX: usize = 90;

/// Lines of more than 110 columns in Rust files, shell and Python scripts, TOML files and prose in Markdown.
/// Tables and code in Markdown are not counted, and URLs are not counted anywhere.
pub(crate) fn long_lines(tree: &Tree) -> Measure {
    let mut found = Vec::new();
    for (path, text) in texts(tree) {
        let lines = numbered_prose(path, text);
        for (number, line) in lines.into_iter().filter(|(_, line)| line.len() > COLUMNS_MAX) {
            let columns = columns(line);
            if columns > COLUMNS_MAX {
                found.push(Offender::new(columns, path, number, format!("{columns} columns")));
            }
        }
    }
    Measure::count("lines_over_110_columns", found)
}

/// Words of the longest paragraph in Markdown.
pub(crate) fn longest_paragraph(tree: &Tree) -> Measure {
    let found = paragraphs_over(tree, 0);
    let longest = found.iter().map(|paragraph| paragraph.weight).max().unwrap_or(0);
    Measure::new("longest_paragraph_words", Kind::Count, longest as f64, found)
}

/// Paragraphs of more than 90 words in Markdown.
pub(crate) fn long_paragraphs(tree: &Tree) -> Measure {
    Measure::count("paragraphs_over_90_words", paragraphs_over(tree, PARAGRAPH_WORDS_MAX))
}

fn paragraphs_over(tree: &Tree, words_max: usize) -> Vec<Offender> {
    let mut found = Vec::new();
    for (path, text) in tree.texts.iter().filter(|(path, _)| path.ends_with(".md")) {
        let long = paragraphs(text).into_iter().filter(|(_, words)| *words > words_max);
        found.extend(long.map(|(line, words)| Offender::new(words, path, line, format!("{words} words"))));
    }
    found
}

fn texts(tree: &Tree) -> impl Iterator<Item = (&str, &str)> {
    let rust = tree.sources.iter().map(|(path, source)| (&**path, &*source.text));
    rust.chain(tree.texts.iter().map(|(path, text)| (&**path, &**text)))
}

/// The lines of a file with their numbers, without the code and the tables of a Markdown file.
fn numbered_prose<'a>(path: &str, text: &'a str) -> Vec<(usize, &'a str)> {
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
    if !path.ends_with(".md") {
        return lines.collect();
    }
    let mut in_code = false;
    let is_prose = |(_, line): &(usize, &str)| {
        let start = line.trim_start();
        let is_fence = start.starts_with("```") || start.starts_with("~~~");
        in_code ^= is_fence;
        !in_code && !is_fence && !start.starts_with('|')
    };
    lines.filter(is_prose).collect()
}

/// Columns of a line without its URLs: `https://…` and the target of `[text](target)`.
fn columns(line: &str) -> usize {
    let mut rest = line;
    let mut columns = 0;
    while let Some(start) = ["](", "https://", "http://"].iter().filter_map(|mark| rest.find(mark)).min() {
        let start = if rest[start..].starts_with("](") { start + 2 } else { start };
        let address = &rest[start..];
        let end = address.find([')', '>', '"', ' ']).unwrap_or(address.len());
        columns += rest[..start].chars().count();
        rest = &address[end..];
    }
    columns + rest.chars().count()
}

/// Paragraphs of a Markdown text: first line and number of words. Each item of a list is a paragraph.
fn paragraphs(text: &str) -> Vec<(usize, usize)> {
    let mut found: Vec<(usize, usize)> = Vec::new();
    let mut last = 0;
    for (number, line) in numbered_prose(".md", text) {
        let start = line.trim_start();
        if start.is_empty() || start.starts_with('#') {
            continue;
        }
        let starts_item = is_item(start) || number != last + 1;
        last = number;
        let words = start.split_whitespace().count() - usize::from(is_item(start));
        match found.last_mut().filter(|_| !starts_item) {
            Some(paragraph) => paragraph.1 += words,
            None => found.push((number, words)),
        }
    }
    found
}

/// True for the first line of a list item: `- `, `* `, `+ `, `1. `.
fn is_item(line: &str) -> bool {
    let after_number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    ["- ", "* ", "+ "].iter().any(|mark| line.starts_with(mark))
        || after_number.len() < line.len() && after_number.starts_with(". ")
}

#[test]
fn long_lines_are_found_in_every_kind_of_file() {
    let wide = "x".repeat(111);
    let prose = format!(
        "{wide}\n| {wide} |\n```\n{wide}\n```\nSee [this](https://{wide}) or https://{wide}.\n- {wide}\n"
    );
    let rust = format!("//! {wide}\nconst S: &str = \"{wide}\";\n");
    let exact = "ä".repeat(110);
    let shell = format!("{exact}\n{exact}ä\n");
    let tree =
        Tree::of(&[("a.md", &prose), ("b.rs", &rust), ("c.sh", &shell), ("d.py", &wide), ("e.toml", &wide)]);
    let found = long_lines(&tree);
    let places: Vec<&str> = found.offenders.iter().map(|offender| &*offender.place).collect();
    assert_eq!(places, ["b.rs:2", "b.rs:1", "a.md:7", "a.md:1", "c.sh:2", "d.py:1", "e.toml:1"]);
}

#[test]
fn paragraphs_end_at_blank_lines_items_tables_and_code() {
    let text = "# Title of it\n\none two\nthree\n- four\n  five six\n2. seven\n| a | b | c |\neight\n```\n\
        nine ten\n```\neleven\n";
    assert_eq!(paragraphs(text), [(3, 3), (5, 3), (7, 1), (9, 1), (13, 1)]);
    let tree = Tree::of(&[("a.md", &"word ".repeat(91)), ("b.rs", "//! A.")]);
    assert_eq!((long_paragraphs(&tree).value, longest_paragraph(&tree).value), (1.0, 91.0));
}
