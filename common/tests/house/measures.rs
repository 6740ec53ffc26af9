//! The ratchet: every measure has a goal and a reached value, both in `measures.toml`. The test fails if a
//! measure is worse than the reached value, and also if it is clearly better, so that improvements are
//! recorded.
//!
//! `HOUSE=print` prints every measure with its worst places, `HOUSE=write` writes improved values into the
//! file: `HOUSE=print cargo nextest run -p mlgw-common --no-capture -E 'test(every_rule)'`.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

use crate::tree::{Tree, root};
use crate::{circles, prose, sizes, types, words};

/// Number of the worst places that are printed.
const PLACES_PRINTED: usize = 20;

/// Share by which a rate may be worse: it moves whenever other code is added or removed.
const RATE_TOLERANCE: f64 = 0.01;

/// Share of improvement from which a better value must be recorded.
const CLEARLY: f64 = 0.1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A number of places, or the size of the largest.
    Count,
    /// A percentage or a number per thousand. Fewer is better.
    Rate,
    /// A rate of which more is better.
    RateOfMore,
}

/// A measured value with its places, worst first.
#[derive(Debug)]
pub(crate) struct Measure {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) value: f64,
    pub(crate) offenders: Vec<Offender>,
}

/// A place that makes a measure worse.
#[derive(Debug)]
pub(crate) struct Offender {
    pub(crate) weight: usize,
    pub(crate) place: String,
    text: String,
}

impl Offender {
    pub(crate) fn new(weight: usize, path: &str, line: usize, text: impl Into<String>) -> Self {
        Offender { weight, place: format!("{path}:{line}"), text: text.into() }
    }
}

impl fmt::Display for Offender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.text)
    }
}

impl Measure {
    /// Counts the places.
    pub(crate) fn count(name: &str, offenders: Vec<Offender>) -> Self {
        Measure::new(name, Kind::Count, offenders.len() as f64, offenders)
    }

    /// The ratio of `part` to `whole`, times `scale`.
    pub(crate) fn rate(name: &str, part: usize, whole: usize, scale: f64, offenders: Vec<Offender>) -> Self {
        Measure::new(name, Kind::Rate, part as f64 / whole.max(1) as f64 * scale, offenders)
    }

    pub(crate) fn new(name: &str, kind: Kind, value: f64, mut offenders: Vec<Offender>) -> Self {
        offenders.sort_by_key(|offender| std::cmp::Reverse(offender.weight));
        Measure { name: name.to_owned(), kind, value: (value * 100.0).round() / 100.0, offenders }
    }

    /// True if the value is better than the recorded one, however little.
    fn is_nearer(&self, bound: Bound) -> bool {
        if self.kind == Kind::RateOfMore { self.value > bound.now } else { self.value < bound.now }
    }

    /// Compares the value with the recorded one.
    fn judge(&self, bound: Bound) -> Verdict {
        let less_is_better = if self.kind == Kind::RateOfMore { -1.0 } else { 1.0 };
        let worse_by = (self.value - bound.now) * less_is_better;
        let tolerance = if self.kind == Kind::Count { 0.0 } else { bound.now * RATE_TOLERANCE };
        let reaches_goal = (self.value - bound.goal) * less_is_better <= 0.0;
        let reached_goal = (bound.now - bound.goal) * less_is_better <= 0.0;
        let is_clear = -worse_by >= (bound.now * CLEARLY).max(f64::EPSILON);
        if worse_by > tolerance && !(reached_goal && reaches_goal) {
            Verdict::Worse
        } else if !reached_goal && (reaches_goal || is_clear) {
            Verdict::Better
        } else {
            Verdict::Same
        }
    }

    fn print(&self, bound: Option<Bound>) {
        let now = bound.map_or("nothing".to_owned(), |bound| format!("{} (goal {})", bound.now, bound.goal));
        println!("\n{}: {}, recorded {now}", self.name, self.value);
        for offender in self.offenders.iter().take(PLACES_PRINTED) {
            println!("    {offender}");
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Worse,
    Same,
    Better,
}

/// A line of `measures.toml`: the value reached, and the goal.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bound {
    now: f64,
    goal: f64,
}

/// All measures, in the order of `measures.toml`.
fn all(tree: &Tree) -> Vec<Measure> {
    let mut found = vec![
        types::shared_names(tree),
        types::names_in_a_third_file(tree),
        types::tuple_parameters(tree),
        types::bool_parameters(tree),
        types::asserts(tree),
        sizes::long_functions(tree),
        words::vague_summaries(tree),
        words::speaking_programs(tree),
        prose::long_lines(tree),
        prose::longest_paragraph(tree),
        prose::long_paragraphs(tree),
    ];
    found.extend(circles::measures(tree));
    found.extend(words::dialect(tree));
    found
}

/// Measures that are worse than recorded, or clearly better.
pub(crate) fn failures(tree: &Tree) -> Vec<String> {
    let (mode, file) = (std::env::var("HOUSE").unwrap_or_default(), "common/tests/house/measures.toml");
    let mut text = tree.texts[file].clone();
    let sections: BTreeMap<String, BTreeMap<String, Bound>> = toml::from_str(&text).unwrap();
    let mut bounds: BTreeMap<String, Bound> = sections.into_values().flatten().collect();
    let (mut failures, measures) = (Vec::new(), all(tree));
    for measure in &measures {
        let bound = bounds.remove(&measure.name);
        if mode == "print" {
            measure.print(bound);
        }
        let Some(bound) = bound else {
            failures.push(format!("{} has no line: write {}", measure.name, measure.value));
            continue;
        };
        match measure.judge(bound) {
            Verdict::Same | Verdict::Better if mode == "write" => {
                if measure.is_nearer(bound) {
                    text = with_value(&text, &measure.name, measure.value);
                }
            }
            Verdict::Same => {}
            Verdict::Better => {
                failures.push(format!("{} improved to {}: record it", measure.name, measure.value));
            }
            Verdict::Worse => {
                measure.print(Some(bound));
                failures.push(format!("{} is {}, was {}", measure.name, measure.value, bound.now));
            }
        }
    }
    if mode == "print" {
        circles::print(tree);
    }
    if mode == "write" {
        std::fs::write(root().join(file), text).unwrap();
    }
    failures.extend(bounds.keys().map(|name| format!("{name} is not a measure")));
    if !failures.is_empty() {
        failures
            .push(format!("HOUSE=print prints the places, HOUSE=write writes improved values into {file}"));
    }
    failures
}

/// The text of `measures.toml` with another value of one measure.
fn with_value(text: &str, name: &str, value: f64) -> String {
    let start = format!("{name} = {{ now = ");
    let lines =
        text.lines().map(|line| match line.strip_prefix(&start).and_then(|rest| rest.split_once(',')) {
            Some((_, rest)) => format!("{start}{value},{rest}\n"),
            None => format!("{line}\n"),
        });
    lines.collect()
}

#[test]
fn a_measure_may_only_come_nearer_to_its_goal() {
    let judge =
        |kind, value: f64, now, goal| Measure::new("m", kind, value, Vec::new()).judge(Bound { now, goal });
    assert_eq!(judge(Kind::Count, 41.0, 40.0, 0.0), Verdict::Worse);
    assert_eq!(judge(Kind::Count, 40.0, 40.0, 0.0), Verdict::Same);
    assert_eq!(judge(Kind::Count, 37.0, 40.0, 0.0), Verdict::Same);
    assert_eq!(judge(Kind::Count, 36.0, 40.0, 0.0), Verdict::Better);
    assert_eq!(judge(Kind::Count, 0.0, 1.0, 0.0), Verdict::Better);
    assert_eq!(judge(Kind::Count, 30.0, 31.0, 30.0), Verdict::Better);
    assert_eq!(judge(Kind::Count, 25.0, 20.0, 30.0), Verdict::Same, "within the goal it may move");
    assert_eq!(judge(Kind::Count, 31.0, 20.0, 30.0), Verdict::Worse);
    assert_eq!(judge(Kind::Rate, 7.35, 7.3, 0.3), Verdict::Same);
    assert_eq!(judge(Kind::Rate, 7.4, 7.3, 0.3), Verdict::Worse);
    assert_eq!(judge(Kind::RateOfMore, 0.5, 0.6, 2.0), Verdict::Worse);
    assert_eq!(judge(Kind::RateOfMore, 0.62, 0.6, 2.0), Verdict::Same);
    assert_eq!(judge(Kind::RateOfMore, 0.7, 0.6, 2.0), Verdict::Better);
    assert_eq!(judge(Kind::RateOfMore, 2.1, 0.6, 2.0), Verdict::Better);
    assert_eq!(judge(Kind::RateOfMore, 2.1, 2.5, 2.0), Verdict::Same);
}

#[test]
fn an_improved_value_is_written_into_its_line() {
    let text = "# A.\nab = { now = 3, goal = 0 }\nb = { now = 3, goal = 0 }\n";
    let expected = "# A.\nab = { now = 3, goal = 0 }\nb = { now = 2.5, goal = 0 }\n";
    assert_eq!(with_value(text, "b", 2.5), expected);
}
