//! Comments of a source file. The parser drops them, so a small lexer finds them. It handles strings, raw
//! strings, character literals and nested block comments, and nothing else of the language.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `///`
    Outer,
    /// `//!`
    Inner,
    Plain,
}

/// A line of comment, or a block comment.
#[derive(Debug)]
pub(crate) struct Comment {
    pub(crate) line: usize,
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

/// All comments of a file, in order.
pub(crate) fn comments(text: &str) -> Vec<Comment> {
    let bytes = text.as_bytes();
    let (mut at, mut line, mut found) = (0, 1, Vec::new());
    while at < bytes.len() {
        let rest = &bytes[at..];
        let end = match rest[0] {
            b'/' if rest.starts_with(b"//") => {
                let end = at + rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
                found.push(line_comment(&text[at..end], line));
                end
            }
            b'/' if rest.starts_with(b"/*") => {
                let end = at + block_comment_length(rest);
                found.push(Comment { line, kind: Kind::Plain, text: text[at..end].to_owned() });
                end
            }
            b'r' if at == 0 || !is_word(bytes[at - 1]) || is_string_prefix(bytes, at) => {
                at + raw_string_length(rest).unwrap_or(1)
            }
            b'"' => at + string_length(rest),
            b'\'' => at + character_length(&text[at..]),
            _ => at + 1,
        };
        line += bytes[at..end].iter().filter(|b| **b == b'\n').count();
        at = end;
    }
    found
}

/// First words of all doc comments, with the line of each block of consecutive `///` or `//!` lines: the text
/// before the first whitespace or punctuation.
pub(crate) fn first_words(comments: &[Comment]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut last: Option<(usize, Kind)> = None;
    for comment in comments {
        let continues = last == Some((comment.line - 1, comment.kind));
        last = Some((comment.line, comment.kind));
        if comment.kind == Kind::Plain || continues {
            continue;
        }
        let word =
            comment.text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        found.push((comment.line, word));
    }
    found
}

fn line_comment(text: &str, line: usize) -> Comment {
    let (kind, start) = match text.as_bytes().get(2) {
        Some(b'/') if text.as_bytes().get(3) != Some(&b'/') => (Kind::Outer, 3),
        Some(b'!') => (Kind::Inner, 3),
        _ => (Kind::Plain, 2),
    };
    Comment { line, kind, text: text[start..].to_owned() }
}

fn block_comment_length(bytes: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// True after the first letter of `br"…"` or `cr"…"`.
fn is_string_prefix(bytes: &[u8], at: usize) -> bool {
    matches!(bytes[at - 1], b'b' | b'c') && (at == 1 || !is_word(bytes[at - 2]))
}

fn raw_string_length(bytes: &[u8]) -> Option<usize> {
    let hashes = bytes[1..].iter().take_while(|b| **b == b'#').count();
    if bytes.get(1 + hashes) != Some(&b'"') {
        return None;
    }
    let close = format!("\"{}", "#".repeat(hashes));
    let start = hashes + 2;
    let length = bytes[start..].windows(close.len()).position(|window| window == close.as_bytes());
    Some(length.map_or(bytes.len(), |length| start + length + close.len()))
}

fn string_length(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// Length of a character literal, or 1 for the tick of a lifetime.
fn character_length(text: &str) -> usize {
    let mut characters = text.char_indices().skip(1);
    match characters.next() {
        Some((_, '\\')) => text[3..].find('\'').map_or(1, |end| end + 4),
        Some(_) => characters.next().filter(|(_, c)| *c == '\'').map_or(1, |(at, _)| at + 1),
        None => 1,
    }
}

#[test]
fn comments_are_found_beside_strings_and_lifetimes() {
    let text = "//! Inner.\n\
        fn f<'a>(s: &'a str) -> char { // tail\n    let _ = (\"// no\", r#\"\" // no\"#, b\"\\\"// no\");\n \
           /* a /* nested */ block */ '\\'' // '\n\
        }\n/// Outer.\n//// Plain.\nconst C: char = '\"'; // quote\n";
    let found: Vec<(usize, Kind, String)> =
        comments(text).into_iter().map(|c| (c.line, c.kind, c.text)).collect();
    let expected = [
        (1, Kind::Inner, " Inner."),
        (2, Kind::Plain, " tail"),
        (4, Kind::Plain, "/* a /* nested */ block */"),
        (4, Kind::Plain, " '"),
        (6, Kind::Outer, " Outer."),
        (7, Kind::Plain, "// Plain."),
        (8, Kind::Plain, " quote"),
    ];
    let expected: Vec<(usize, Kind, String)> = expected.map(|(l, k, t)| (l, k, t.to_owned())).into();
    assert_eq!(found, expected);
}

#[test]
fn a_doc_comment_has_one_first_word() {
    let text = "//! The file.\n//! What follows.\n\n/// Who asks.\n/// That is.\nfn f() {}\n/// `Code`.\n\
        fn g() {}\n";
    let found = first_words(&comments(text));
    assert_eq!(found, [(1, "The".to_owned()), (4, "Who".to_owned()), (7, String::new())]);
}
