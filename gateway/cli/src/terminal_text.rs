//! Text without characters that control a terminal. Names of files and keys, and messages of a server, may
//! have such characters. Pure.

use std::borrow::Cow;

/// Returns one line without control characters.
pub(super) fn printable(line: &str) -> Cow<'_, str> {
    escaped(line, char::is_control)
}

/// Returns text of several lines without control characters, except the ends of its lines and tabs.
pub(super) fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c.is_control() && c != '\n' && c != '\t')
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_escaped(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::{printable, printable_lines};

    #[test]
    fn no_character_controls_the_terminal() {
        assert_eq!(printable("ü b"), "ü b");
        assert_eq!(printable("a\x1b[2J\n\t\u{9b}"), "a\\u{1b}[2J\\n\\t\\u{9b}");
        assert_eq!(printable_lines("a\x1b[2J\n\t\u{9b}\r"), "a\\u{1b}[2J\n\t\\u{9b}\\r");
    }
}
