//! Measures of language: summaries that begin without a subject, programs that speak, and discouraged words
//! in identifiers.

use std::collections::BTreeMap;

use crate::comments::first_words;
use crate::measures::{Kind, Measure, Offender};
use crate::tree::Tree;

/// First words of summaries that have no subject.
const VAGUE: &[&str] = &["How", "Of", "That", "What", "Who", "Whether"];

/// Verbs of speech: programs read, write and notify; they do not speak.
const SPEAKING: &[&str] = &["heard", "hears", "said", "says", "tells", "told"];

/// Names too general for a type: counted where an identifier is exactly this word.
const BARE_TYPES: &[&str] = &[
    "Acting", "Asked", "Claim", "Decider", "Found", "Given", "Held", "Later", "Note", "Order", "Place",
    "Said", "Standing", "Step", "Walk", "Wanted",
];

/// Words for which the field has standard terms: counted wherever they are whole words of an identifier.
const DIALECT: &[&str] = &[
    "Deeds",
    "Doomed",
    "Fronted",
    "Keeper",
    "Lack",
    "MustStay",
    "Superfluous",
    "Unbroken",
    "Whereabouts",
    "Wish",
    "away",
    "bury",
    "dear",
    "diary",
    "far",
    "heard",
    "let_go",
    "lose",
    "mend",
    "noted",
    "recall",
    "settle",
    "spare",
    "stands",
    "take_back",
    "told",
];

/// Standard terms that contain one of these words.
const STANDARD: &[&str] = &["so_far", "spare_capacity"];

/// Doc comments (`///` and `//!`), tests included, whose first word is in [`VAGUE`], as a percentage of all.
pub(crate) fn vague_summaries(tree: &Tree) -> Measure {
    let (mut all, mut files) = (0, Vec::new());
    for (path, source) in &tree.sources {
        let words = first_words(&source.comments);
        all += words.len();
        let vague: Vec<_> = words.iter().filter(|(_, word)| VAGUE.contains(&&**word)).collect();
        if let Some((line, word)) = vague.first() {
            files.push(Offender::new(
                vague.len(),
                path,
                *line,
                format!("{word} … ({} in this file)", vague.len()),
            ));
        }
    }
    let vague = files.iter().map(|file| file.weight).sum();
    Measure::rate("vague_doc_summaries_percent", vague, all, 100.0, files)
}

/// Words of [`SPEAKING`] in comments of Rust files, tests included, per 1,000 words of comments.
pub(crate) fn speaking_programs(tree: &Tree) -> Measure {
    let (mut all, mut files) = (0, Vec::new());
    for (path, source) in &tree.sources {
        all += source.comment_words();
        let lines: Vec<usize> = source
            .comments
            .iter()
            .flat_map(|comment| {
                let words = comment.text.split(|c: char| !c.is_alphanumeric());
                words.filter(|word| SPEAKING.contains(&&*word.to_lowercase())).map(|_| comment.line)
            })
            .collect();
        if let Some(line) = lines.first() {
            files.push(Offender::new(lines.len(), path, *line, format!("{} in this file", lines.len())));
        }
    }
    let speaking = files.iter().map(|file| file.weight).sum();
    Measure::rate("speaking_words_per_1000", speaking, all, 1000.0, files)
}

/// Identifiers of Rust files, tests included, that contain a discouraged word: one measure per word.
pub(crate) fn dialect(tree: &Tree) -> Vec<Measure> {
    let mut identifiers: BTreeMap<&str, (usize, &str, usize)> = BTreeMap::new();
    for (path, source) in &tree.sources {
        for (name, (count, line)) in &source.identifiers {
            identifiers.entry(name).or_insert((0, path, *line)).0 += count;
        }
    }
    let entries = BARE_TYPES.iter().chain(DIALECT).map(|entry| (*entry, Entry::new(entry)));
    let mut found: Vec<(&str, Entry, Vec<Offender>)> =
        entries.map(|(name, entry)| (name, entry, Vec::new())).collect();
    for (name, (count, path, line)) in identifiers {
        let parts = words_of(name);
        for (_, entry, offenders) in &mut found {
            if entry.matches(name, &parts) {
                offenders.push(Offender::new(count, path, line, format!("{name}, {count} times")));
            }
        }
    }
    let measure = |(name, _, offenders): (&str, Entry, Vec<Offender>)| {
        let count = offenders.iter().map(|offender| offender.weight).sum::<usize>();
        Measure::new(name, Kind::Count, count as f64, offenders)
    };
    found.into_iter().map(measure).collect()
}

/// Row of the word lists, prepared for comparison.
enum Entry {
    Bare(&'static str),
    /// The words, and the standard terms that contain them.
    Words(Vec<String>, Vec<Vec<String>>),
}

impl Entry {
    fn new(name: &'static str) -> Self {
        if BARE_TYPES.contains(&name) {
            return Entry::Bare(name);
        }
        let words = words_of(name);
        let terms = STANDARD.iter().map(|term| words_of(term)).filter(|term| contains(term, &words));
        let terms = terms.collect();
        Entry::Words(words, terms)
    }

    fn matches(&self, name: &str, parts: &[String]) -> bool {
        match self {
            Entry::Bare(bare) => name == *bare,
            Entry::Words(words, terms) => {
                contains(parts, words) && !terms.iter().any(|term| contains(parts, term))
            }
        }
    }
}

fn contains(parts: &[String], words: &[String]) -> bool {
    parts.windows(words.len()).any(|window| window == words)
}

/// Words of an identifier in lower case: `HotTier`, `hot_tier` and `HOT_TIER` have two.
fn words_of(name: &str) -> Vec<String> {
    let (mut words, mut after_lower) = (vec![String::new()], false);
    for c in name.chars() {
        if c == '_' || c.is_uppercase() && after_lower {
            words.push(String::new());
        }
        after_lower = c.is_lowercase() || c.is_numeric();
        if let Some(word) = words.last_mut().filter(|_| c != '_') {
            word.extend(c.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[test]
fn summaries_without_a_subject_are_counted() {
    let tree = Tree::of(&[(
        "a.rs",
        "//! What it does.\n\n/// Whether so.\nfn a() {}\n/// A thing.\n/// That is so.\nfn b() {}\n\
         /// Whatever.\nfn c() { let d = \"/// Of\"; }\n// How.\n",
    )]);
    let measure = vague_summaries(&tree);
    assert_eq!(measure.value, 50.0, "two of four");
    assert_eq!(measure.offenders[0].to_string(), "a.rs:1: What … (2 in this file)");
}

#[test]
fn speaking_programs_are_counted_in_comments_alone() {
    let tree = Tree::of(&[(
        "a.rs",
        "//! Told by it: one two three.\n\nfn told(said: u8) {} // it says, sayso, unsaid\n\
         /* four hears */\n",
    )]);
    assert_eq!(speaking_programs(&tree).value, 214.29, "three of 14, the marks of a block comment included");
}

#[test]
fn words_of_the_dialect_are_counted_as_whole_words() {
    let tree = Tree::of(&[(
        "a.rs",
        "struct Wish; struct WishKind; struct Found; struct FoundThing; const FAR_MAX: u8 = 1;\n\
         fn let_go_of(read_so_far: u8, faraway: u8, found: Found) { must_stay(); v.spare_capacity_mut(); }\n\
         // Wish, far and let_go in a comment; \"Found\"\n\
         fn f() { let_it_go(\"Wish\"); log!(let_go); MustStay }",
    )]);
    let counts: BTreeMap<String, f64> = dialect(&tree).into_iter().map(|m| (m.name, m.value)).collect();
    let count = |word: &str| counts[word];
    assert_eq!((count("Wish"), count("Found"), count("far"), count("let_go")), (2.0, 2.0, 1.0, 2.0));
    assert_eq!((count("MustStay"), count("spare"), count("away")), (2.0, 0.0, 0.0));
    assert_eq!(words_of("HTTPHotTier2Read_X"), ["httphot", "tier2", "read", "x"]);
}
