//! Parser of YAML and JSON to a tree whose nodes have their positions.
//!
//! JSON is parsed as YAML, so one parser handles both. Syntax that policies do not need is refused: anchors,
//! aliases, tags, several documents, keys that are not scalars, duplicate keys. Sizes are bounded while
//! parsing, so the memory of a tree is bounded by the length of the text.

use super::diagnostic::{TextPosition, quoted};
use super::findings::Findings;
use super::limits::{DEPTH_MAX, NODES_MAX, TEXT_BYTES_MAX};
use super::tree::{DocumentEntry, DocumentNode, NodeData, Scalar};
use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};
use std::borrow::Cow;
use std::collections::HashSet;

/// Limits of a text.
#[derive(Clone, Copy)]
pub(super) struct DocumentLimits {
    /// Bytes of the text.
    pub(super) text_bytes: usize,
    /// Lists, maps and scalars of the text.
    pub(super) nodes: usize,
}

/// Parses `text` as far as possible and adds an entry to `findings` for everything that cannot be parsed.
pub(super) fn parse(text: &str, findings: &mut Findings) -> Option<DocumentNode> {
    parse_within(text, DocumentLimits { text_bytes: TEXT_BYTES_MAX, nodes: NODES_MAX }, findings)
}

/// Parses like [`parse`], with limits other than those of a policy.
pub(super) fn parse_within(
    text: &str,
    bounds: DocumentLimits,
    findings: &mut Findings,
) -> Option<DocumentNode> {
    if text.len() > bounds.text_bytes {
        let found = format!("the file has {} bytes", text.len());
        findings.add(START, "", found, format!("at most {}", bounds.text_bytes), None);
        return None;
    }
    let mut tree = TreeBuilder { findings, open: Vec::new(), root: None, nodes: 0, nodes_max: bounds.nodes };
    let text = join_surrogates(text);
    let mut parser = Parser::new_from_str(&text);
    while let Some(next) = parser.next_event() {
        let (event, span) = match next {
            Ok(next) => next,
            Err(error) => {
                let spot = position_of(error.marker().line(), error.marker().col());
                tree.report(spot, &format!("neither YAML nor JSON: {}", error.info()), "");
                return None;
            }
        };
        if matches!(event, Event::DocumentStart(_)) && tree.root.is_some() {
            tree.report(
                position_of(span.start.line(), span.start.col()),
                "a second document",
                "one document per file",
            );
            tree.findings.notes.doubts.add_any();
            break;
        }
        tree.process_event(event, span)?;
    }
    if tree.root.is_none() {
        tree.report(START, "the file is empty", "a map with the field version");
    }
    tree.root
}

/// Rewrites surrogate pairs: JSON writes characters beyond 16 bits as two escapes, YAML as one, so
/// `\ud83d\ude00` becomes `\U0001f600`.
fn join_surrogates(text: &str) -> Cow<'_, str> {
    let half = |text: &str| {
        let digits = text.strip_prefix("\\u")?.get(..4)?;
        u16::from_str_radix(digits, 16).ok()
    };
    let pair = |text: &str| {
        let units = [half(text)?, half(text.get(6..)?)?];
        // Exactly one surrogate pair makes a character above 16 bits; anything else is left unchanged.
        char::decode_utf16(units).next()?.ok().filter(|c| u32::from(*c) > 0xffff)
    };
    let mut out = String::new();
    let mut rest = text;
    let mut from = 0;
    while let Some(at) = rest[from..].find("\\u").map(|at| from + at) {
        if let Some(c) = pair(&rest[at..]) {
            out.push_str(&rest[..at]);
            out.push_str(&format!("\\U{:08x}", u32::from(c)));
            (rest, from) = (&rest[at + 12..], 0);
        } else {
            from = at + 2;
        }
    }
    if out.is_empty() { Cow::Borrowed(text) } else { Cow::Owned(out + rest) }
}

const START: TextPosition = TextPosition { line: 1, column: 1 };

/// Converts a position of the parser, which counts lines from 1 and characters from 0.
fn position_of(line: usize, column: usize) -> TextPosition {
    let whole = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    TextPosition { line: whole(line.max(1)), column: whole(column).saturating_add(1) }
}

/// A list or map whose end has not been parsed yet.
enum UnclosedNode {
    List(TextPosition, Vec<DocumentNode>),
    Map(TextPosition, Vec<DocumentEntry>, Option<PendingKey>),
}

/// The key of a map entry whose value has not been parsed yet.
enum PendingKey {
    Word(Box<str>, TextPosition),
    Other,
}

impl PendingKey {
    fn from_node(node: DocumentNode) -> Self {
        match node.data {
            NodeData::Scalar(scalar) => Self::Word(scalar.text, node.spot),
            _ => Self::Other,
        }
    }
}

struct TreeBuilder<'a> {
    findings: &'a mut Findings,
    open: Vec<UnclosedNode>,
    root: Option<DocumentNode>,
    nodes: usize,
    nodes_max: usize,
}

impl TreeBuilder<'_> {
    /// Processes one event; none if parsing must stop.
    fn process_event(&mut self, event: Event<'_>, span: Span) -> Option<()> {
        let spot = position_of(span.start.line(), span.start.col());
        match event {
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => {}
            Event::Alias(_) => {
                self.report(spot, "an alias", "anchors and aliases are not supported");
                self.count_node(spot)?;
                self.insert_node(DocumentNode { spot, data: NodeData::Unknown });
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.count_plain_node(spot, anchor, tag.as_deref())?;
                let plain = style == ScalarStyle::Plain;
                let scalar = Scalar { text: text.into(), is_plain: plain };
                self.insert_node(DocumentNode { spot, data: NodeData::Scalar(scalar) });
            }
            Event::SequenceStart(anchor, tag) => {
                self.count_plain_node(spot, anchor, tag.as_deref())?;
                self.open_node(UnclosedNode::List(spot, Vec::new()), spot)?;
            }
            Event::MappingStart(anchor, tag) => {
                self.count_plain_node(spot, anchor, tag.as_deref())?;
                self.open_node(UnclosedNode::Map(spot, Vec::new(), None), spot)?;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let node = match self.open.pop()? {
                    UnclosedNode::List(spot, items) => DocumentNode { spot, data: NodeData::List(items) },
                    UnclosedNode::Map(spot, entries, _) => {
                        self.check_keys(&entries);
                        DocumentNode { spot, data: NodeData::Map(entries) }
                    }
                };
                self.insert_node(node);
            }
        }
        Some(())
    }

    fn report(&mut self, spot: TextPosition, found: &str, expected: &str) {
        self.findings.add(spot, "", found.to_owned(), expected.to_owned(), None);
    }

    /// Counts a node and reports an anchor or a tag. The node is then read as if it had neither.
    fn count_plain_node(&mut self, spot: TextPosition, anchor: usize, tag: Option<&Tag>) -> Option<()> {
        if anchor != 0 {
            self.report(spot, "an anchor", "anchors and aliases are not supported");
        }
        if tag.is_some() {
            self.report(spot, "a tag", "tags are not supported");
        }
        self.count_node(spot)
    }

    /// Counts a node; none if there are too many.
    fn count_node(&mut self, spot: TextPosition) -> Option<()> {
        self.nodes += 1;
        if self.nodes > self.nodes_max {
            let expected = format!("at most {} lists, maps and scalars", self.nodes_max);
            self.report(spot, "too many values", &expected);
            return None;
        }
        Some(())
    }

    fn open_node(&mut self, open: UnclosedNode, spot: TextPosition) -> Option<()> {
        if self.open.len() == DEPTH_MAX {
            let expected = format!("at most {DEPTH_MAX} levels of lists and maps");
            self.report(spot, "nested too deeply", &expected);
            return None;
        }
        if let Some(UnclosedNode::Map(_, _, None)) = self.open.last() {
            self.report(spot, "a list or map as a key", "a word");
        }
        self.open.push(open);
        Some(())
    }

    /// Inserts a complete node in the innermost open list or map, or as the root.
    fn insert_node(&mut self, node: DocumentNode) {
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(UnclosedNode::List(_, items)) => items.push(node),
            Some(UnclosedNode::Map(_, entries, key)) => match key.take() {
                Some(PendingKey::Word(key, spot)) => entries.push(DocumentEntry { key, spot, value: node }),
                // The key that is no word was already reported.
                Some(PendingKey::Other) => {}
                None => *key = Some(PendingKey::from_node(node)),
            },
        }
    }

    fn check_keys(&mut self, entries: &[DocumentEntry]) {
        let mut seen = HashSet::with_capacity(entries.len());
        for entry in entries {
            if !seen.insert(&*entry.key) {
                let found = format!("duplicate field {}", quoted(&entry.key));
                self.findings.add(entry.spot, "", found, "each field once".to_owned(), None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Findings, NodeData, join_surrogates, parse};
    use crate::language::limits::{DEPTH_MAX, NODES_MAX, TEXT_BYTES_MAX};

    fn wrong(text: &str) -> String {
        let mut findings = Findings::new("p.yaml");
        parse(text, &mut findings);
        findings.list.first().map(ToString::to_string).unwrap_or_default()
    }

    #[test]
    fn yaml_and_json_give_the_same_tree_with_positions() {
        let mut findings = Findings::new("p");
        let yaml = parse("a: 1\nb:\n  - x\n  - \"y\"\n", &mut findings).unwrap();
        let NodeData::Map(entries) = &yaml.data else { panic!("{yaml:?}") };
        assert_eq!((entries[1].spot.line, entries[1].spot.column), (2, 1));
        let NodeData::List(items) = &entries[1].value.data else { panic!("{yaml:?}") };
        assert_eq!((items[1].spot.line, items[1].spot.column), (4, 5));
        let json = parse("{\"a\": 1, \"b\": [\"x\", \"y\"]}", &mut findings).unwrap();
        let NodeData::Map(entries) = &json.data else { panic!("{json:?}") };
        assert_eq!((&*entries[0].key, entries[1].value.description().as_str()), ("a", "a list"));
        assert!(findings.list.is_empty());
    }

    #[test]
    fn unsupported_syntax_is_refused() {
        for (text, message) in [
            ("a: &x 1", "p.yaml:1:4: an anchor (anchors and aliases are not supported)"),
            ("a: !!str 1", "p.yaml:1:4: a tag (tags are not supported)"),
            ("a: 1\n---\nb: 2", "p.yaml:2:1: a second document (one document per file)"),
            ("? [a]\n: 1", "p.yaml:1:3: a list or map as a key (a word)"),
            ("a: 1\nb: 2\na: 3", "p.yaml:3:1: duplicate field \"a\" (each field once)"),
            ("", "p.yaml:1:1: the file is empty (a map with the field version)"),
            ("a: [1", "p.yaml:2:1: neither YAML nor JSON: "),
        ] {
            assert!(wrong(text).starts_with(message), "{text:?}: {}", wrong(text));
        }
        assert!(wrong("a: *x").starts_with("p.yaml:1:4: neither YAML nor JSON"), "{}", wrong("a: *x"));
    }

    #[test]
    fn files_of_various_editors_are_parsed() {
        for text in [
            "\u{feff}version: 1\n",
            "version: 1\r\nname: x\r\n",
            "{\n\t\"version\": 1,\n\t\"name\": \"a\\/b\\u00e9\"\n}\n",
            "%YAML 1.2\n---\nversion: 1\n...\n",
            "{\"version\": 1, \"name\": \"\\ud83d\\ude00\"}",
        ] {
            assert_eq!(wrong(text), "", "{text:?}");
        }
        assert_eq!(join_surrogates("a\\u00e9\\ud83d\\ude00\\\\ud83d"), "a\\u00e9\\U0001f600\\\\ud83d");
        assert_eq!(join_surrogates("\\ud83d\\u0041 \\u\u{e9}"), "\\ud83d\\u0041 \\u\u{e9}");
    }

    #[test]
    fn sizes_are_bounded() {
        assert!(wrong(&"#".repeat(TEXT_BYTES_MAX + 1)).contains("bytes"));
        assert!(wrong(&"[".repeat(DEPTH_MAX + 1)).contains("nested too deep"));
        assert!(wrong(&format!("[{}]", "1,".repeat(NODES_MAX))).contains("too many values"));
    }
}
