//! Framework plugins: detection of a framework's files, and the rules that then apply.
//!
//! A plugin is a file, so adding one needs no rebuild. There are three kinds of evidence: the key, the first
//! bytes and the user agent. Of each kind only the strongest evidence counts, because a second glob that
//! matches the same key adds no information. The kinds are assumed to be independent and combined by
//! noisy-or, `1 - (1 - a)(1 - b)(1 - c)`.

use super::diagnostic::Diagnostics;
use super::file::{read_instances, read_rules, read_templates, read_version, top_level_fields};
use super::findings::Findings;
use super::limits::{FIRST_BYTES, ITEMS_MAX};
use super::notes::{DeletionParameter, FileNotes, FileOrigin};
use super::parser;
use super::pattern::TextPattern;
use super::reader::{Fields, LocatedNode};
use super::rule::Rule;
use super::template::{Template, TemplateInstance};
use super::tree::NodeData;
use super::words::{Word, words};
use std::sync::Arc;

words! {
    /// Kind of a framework's files, by their keys.
    Hint {
        /// Files of samples.
        Shards = "shards",
        /// Indexes of where samples are.
        Indexes = "indexes",
        /// Parts of checkpoints.
        Checkpoints = "checkpoints",
        /// The file written last, which completes a checkpoint.
        CheckpointLast = "checkpoint_last",
        /// Parts of models.
        Models = "models",
        /// Validation sets.
        Validation = "validation",
    }
}

/// A framework plugin as read from a file.
#[derive(Clone, Debug)]
pub struct Framework {
    /// Name of the file, for messages.
    pub file: Arc<str>,
    /// Name of the framework.
    pub name: Box<str>,
    /// Description for readers; without effect.
    pub description: Option<Box<str>>,
    /// Evidence by which the framework is detected.
    pub detect: FrameworkEvidence,
    /// Its rules. Each is tried only where the framework is detected, unless it names another framework.
    pub rules: Vec<Rule>,
    /// Its templates.
    pub templates: Vec<Template>,
    /// Instances of templates.
    pub instances: Vec<TemplateInstance>,
    hints: Vec<(Hint, Vec<TextPattern>)>,
    pub(super) notes: FileNotes,
}

/// Evidence for a framework, each with a confidence from 0 to 1.
#[derive(Clone, Debug, Default)]
pub struct FrameworkEvidence {
    keys: Vec<(TextPattern, f64)>,
    magic: Vec<(Magic, f64)>,
    user_agents: Vec<(TextPattern, f64)>,
}

/// Bytes at an offset of an object.
#[derive(Clone, Debug)]
struct Magic {
    offset: usize,
    bytes: Vec<u8>,
}

impl FrameworkEvidence {
    /// Returns the confidence, 0 to 1, that an object belongs to the framework.
    #[must_use]
    pub fn confidence(&self, key: &str, first_bytes: Option<&[u8]>, user_agent: Option<&str>) -> f64 {
        let by_key = strongest(&self.keys, |pattern| pattern.is_match(key));
        let by_bytes = first_bytes.map_or(0.0, |bytes| strongest(&self.magic, |magic| magic.is_in(bytes)));
        let by_agent =
            user_agent.map_or(0.0, |agent| strongest(&self.user_agents, |one| one.is_match(agent)));
        1.0 - (1.0 - by_key) * (1.0 - by_bytes) * (1.0 - by_agent)
    }
}

fn strongest<T>(evidence: &[(T, f64)], found: impl Fn(&T) -> bool) -> f64 {
    evidence.iter().filter(|(one, _)| found(one)).map(|(_, confidence)| *confidence).fold(0.0, f64::max)
}

impl Magic {
    fn is_in(&self, first_bytes: &[u8]) -> bool {
        first_bytes.get(self.offset..).is_some_and(|rest| rest.starts_with(&self.bytes))
    }
}

/// Fields of a framework file.
pub(super) const FRAMEWORK_FIELDS: &[&str] =
    &["version", "framework", "description", "detect", "hints", "rules", "templates", "use"];
/// Fields of `detect`.
pub(super) const DETECT_FIELDS: &[&str] = &["keys", "magic", "user_agents"];

/// True if a text is a plugin rather than a policy: it has the field `framework` or `detect` at the top
/// level.
#[must_use]
pub fn is_framework(text: &str) -> bool {
    match parser::parse(text, &mut Findings::new("")).map(|node| node.data) {
        Some(NodeData::Map(entries)) => {
            entries.iter().any(|entry| matches!(&*entry.key, "framework" | "detect"))
        }
        _ => false,
    }
}

impl Framework {
    /// Parses YAML or JSON; messages call the file `file`.
    ///
    /// # Errors
    /// All errors of the file.
    pub fn parse(file: &str, text: &str) -> Result<Self, Diagnostics> {
        let (framework, wrong) = Self::parse_partially(file, text, FileOrigin::Submitted);
        wrong.result(framework)
    }

    /// Parses as much of the file as possible, if it is a map, and returns it with all errors.
    pub(super) fn parse_partially(file: &str, text: &str, origin: FileOrigin) -> (Option<Self>, Diagnostics) {
        let mut findings = Findings::new(file);
        findings.notes.origin = origin;
        let node = parser::parse(text, &mut findings);
        let framework = node.and_then(|node| Self::read(&LocatedNode::root(&node), &mut findings));
        (framework, findings.into_diagnostics())
    }

    /// True if a pattern of kind `hint` matches `key`.
    #[must_use]
    pub fn has_hint(&self, hint: Hint, key: &str) -> bool {
        let patterns = self.hints.iter().find(|(of, _)| *of == hint).map(|(_, patterns)| patterns);
        patterns.is_some_and(|patterns| patterns.iter().any(|pattern| pattern.is_match(key)))
    }

    fn read(place: &LocatedNode<'_>, findings: &mut Findings) -> Option<Self> {
        let fields = top_level_fields(place, FRAMEWORK_FIELDS, findings)?;
        read_version(&fields, findings);
        let name = fields.required("framework", findings).and_then(|at| findings.name(&at));
        let detect =
            fields.required("detect", findings).and_then(|at| FrameworkEvidence::read(&at, findings));
        let rules = fields.all("rules").flat_map(|at| read_rules(&at, findings)).collect();
        report_deletions(findings);
        let mut read = Self {
            file: Arc::clone(&findings.file),
            name: name.unwrap_or_default(),
            description: fields.text("description", findings),
            detect: detect.unwrap_or_default(),
            rules,
            templates: read_templates(&fields, findings),
            instances: read_instances(&fields, findings),
            hints: fields.get("hints").and_then(|at| read_hints(&at, findings)).unwrap_or_default(),
            notes: FileNotes::default(),
        };
        for template in &mut read.templates {
            template.is_from_plugin = true;
            report_template_deletions(template, findings);
        }
        read.notes = std::mem::take(&mut findings.notes);
        if read.name.is_empty() {
            read.notes.doubts.frameworks.add(None);
            return Some(read);
        }
        for rule in &mut read.rules {
            rule.framework.get_or_insert_with(|| read.name.clone());
        }
        Some(read)
    }
}

/// Reports deletions in a submitted plugin's own rules, which have no effect. In a plugin that is already in
/// force they are ignored.
fn report_deletions(findings: &mut Findings) {
    if findings.notes.is_stored() {
        return;
    }
    for DeletionParameter { parameter: what, spot, path } in std::mem::take(&mut findings.notes.deletions) {
        let found =
            format!("{what} has no effect in a plugin's own rule: only a user's policy deletes checkpoints");
        findings.add(spot, &path, found, EXPECTED_DELETION.to_owned(), None);
    }
}

/// Reports deletions in a template that happen for every instance.
fn report_template_deletions(template: &Template, findings: &mut Findings) {
    let deletions = if findings.notes.is_stored() { Vec::new() } else { template.deletions() };
    for spot in deletions {
        let found = "delete has no effect in a plugin's template unless an instance sets it".to_owned();
        let path = format!("template {}", template.id);
        findings.add(spot, &path, found, "a parameter of the template".to_owned(), None);
    }
}

const EXPECTED_DELETION: &str = "in a policy, or as a template parameter that an instance in a policy sets";

impl FrameworkEvidence {
    fn read(place: &LocatedNode<'_>, findings: &mut Findings) -> Option<Self> {
        let fields = Fields::checked(place, DETECT_FIELDS, findings)?;
        let detect = Self {
            keys: read_evidence(&fields, "keys", &["pattern", "confidence"], read_pattern, findings),
            magic: read_evidence(
                &fields,
                "magic",
                &["offset", "hex", "text", "confidence"],
                Magic::read,
                findings,
            ),
            user_agents: read_evidence(
                &fields,
                "user_agents",
                &["pattern", "confidence"],
                read_pattern,
                findings,
            ),
        };
        let has_any = DETECT_FIELDS.iter().any(|field| fields.get(field).is_some());
        if !has_any && !fields.has_unknown() {
            findings.report_wrong(
                place,
                "detects nothing",
                super::diagnostic::one_of(DETECT_FIELDS.iter().copied()),
            );
        }
        Some(detect)
    }
}

fn read_evidence<T>(
    fields: &Fields<'_>,
    field: &str,
    known: &[&str],
    read: impl Fn(&Fields<'_>, &mut Findings) -> Option<T>,
    findings: &mut Findings,
) -> Vec<(T, f64)> {
    let Some(place) = fields.get(field) else { return Vec::new() };
    let mut evidence = Vec::new();
    for item in findings.items(&place, ITEMS_MAX) {
        let Some(fields) = Fields::checked(&item, known, findings) else { continue };
        let one = read(&fields, findings);
        let confidence =
            fields.required("confidence", findings).and_then(|at| findings.number(&at, 0.0, 1.0));
        evidence.extend(one.zip(confidence));
    }
    evidence
}

fn read_pattern(fields: &Fields<'_>, findings: &mut Findings) -> Option<TextPattern> {
    let place = fields.required("pattern", findings)?;
    findings.pattern(&place)
}

impl Magic {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be in range")]
    fn read(fields: &Fields<'_>, findings: &mut Findings) -> Option<Self> {
        #[expect(clippy::cast_precision_loss, reason = "a small constant")]
        let last = FIRST_BYTES as f64 - 1.0;
        let offset = fields.get("offset").map_or(Some(0.0), |at| findings.whole_number(&at, 0.0, last));
        let (at, bytes) = match (fields.get("hex"), fields.get("text")) {
            (Some(at), None) => {
                let bytes = parse_hex(&findings.scalar(&at, HEX)?.text);
                (at, bytes)
            }
            (None, Some(at)) => {
                let bytes = findings.scalar(&at, "a text")?.text.as_bytes().to_vec();
                (at, Some(bytes))
            }
            _ if fields.has_unknown() => return None,
            _ => {
                findings.report_wrong(
                    fields.place,
                    "does not have exactly one of hex and text",
                    "either hex or text".to_owned(),
                );
                return None;
            }
        };
        let offset = offset? as usize;
        match bytes {
            Some(bytes) if !bytes.is_empty() && offset + bytes.len() <= FIRST_BYTES => {
                Some(Self { offset, bytes })
            }
            _ => {
                let expected = format!("{HEX}, or a text; it ends within the first {FIRST_BYTES} bytes");
                findings.report_wrong(&at, "is not a valid magic", expected);
                None
            }
        }
    }
}

const HEX: &str = "pairs of hexadecimal digits such as \"50 4b 03 04\"";

fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text.bytes().filter(|b| *b != b' ').collect();
    let value = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    digits.chunks_exact(2).map(|pair| Some(value(pair[0])? * 16 + value(pair[1])?)).collect()
}

/// Reads the hints, each a pattern or a list of patterns.
fn read_hints(place: &LocatedNode<'_>, findings: &mut Findings) -> Option<Vec<(Hint, Vec<TextPattern>)>> {
    let fields = Fields::checked(place, Hint::WORDS, findings)?;
    let mut hints = Vec::new();
    for hint in Hint::ALL {
        let Some(at) = fields.get(hint.name()) else { continue };
        let patterns = match &at.node.data {
            NodeData::List(_) => {
                let items = findings.items(&at, ITEMS_MAX);
                items.iter().filter_map(|item| findings.pattern(item)).collect()
            }
            _ => findings.pattern(&at).into_iter().collect(),
        };
        hints.push((*hint, patterns));
    }
    Some(hints)
}
